// SPDX-License-Identifier: Apache-2.0
// HTTP server: libmicrohttpd driven by the loop. Used by the worker's API and by every daemon's
// metrics port.
//
// One handler gets every request once its body is complete. It answers at once or later, whole or
// as a stream of chunks. All calls and callbacks are on the loop's thread.
#ifndef AS_HTTP_H
#define AS_HTTP_H

#include <stddef.h>
#include "common/loop.h"

#define AS_HTTP_BODY_BYTES_MAX      (8u << 20)
#define AS_HTTP_HEADERS_MAX         16u   // added to one answer
#define AS_HTTP_HEADER_BYTES_MAX    4096u // name and value of one
#define AS_HTTP_RECEIVE_SECONDS     60u
#define AS_HTTP_RECEIVE_SECONDS_MIN 2u
#define AS_HTTP_REFUSAL_BYTES_MAX   1024u

typedef struct as_http as_http_t;
typedef struct as_http_request as_http_request_t;

typedef struct as_http_call {
    const char *method; // "GET"
    const char *path;   // "/v1/models", without the query
    const char *body;   // NUL-terminated; NULL when there is none
    size_t body_bytes;
} as_http_call_t; // valid until the request is dead

typedef struct as_http_handlers {
    void *ctx;
    void (*on_request)(void *ctx, as_http_request_t *request, const as_http_call_t *call);
    // The client went away before the answer was complete, or as_http_free was called. The request
    // pointer is dead after it. May be NULL. It must not answer this request; it may answer others
    // and call as_http_free.
    void (*on_abort)(void *ctx, as_http_request_t *request);
    // Gives its form to a refusal that never comes to on_request: 408, 413, 503. Writes a body with
    // its NUL and returns its content type. NULL: plain text. It must call nothing of this module.
    const char *(*on_refuse)(void *ctx, int code, const char *text, char *body, size_t bytes_max);
} as_http_handlers_t;

typedef struct as_http_options {
    const char *address; // "host:port"; port 0 picks one
    uint32_t connections_max;
    // The header of a request must be complete this long after the connection's start or its last
    // answer, and the body this long after the header; else the client gets 408 and the connection
    // is closed. An idle connection is closed after half of it, at most 30 s, so no request gets
    // less than half. 0: AS_HTTP_RECEIVE_SECONDS.
    uint32_t receive_seconds;
    as_http_handlers_t handlers;
} as_http_options_t;

as_status_t as_http_alloc(as_loop_t *loop, const as_http_options_t *options,
                          as_http_t **http_p) AS_MUST_USE;
// Aborts every request that is not answered (on_abort) and closes all connections. Allowed from a
// handler. NULL is fine.
void as_http_free(as_http_t *http);
const char *as_http_address(const as_http_t *http);
// Whether one could listen on the address now, for who has long work to do before; the reason is
// logged.
as_status_t as_http_check_address(const char *address) AS_MUST_USE;
// The body is the handler's from now on, to as_mem_free; NULL when there is none. From the handler
// only.
char *as_http_request_take_body(as_http_request_t *request);
void as_http_request_set_user(as_http_request_t *request, void *user);
void *as_http_request_user(const as_http_request_t *request);
// A header of the request, or NULL.
const char *as_http_request_header(as_http_request_t *request, const char *name);

// Adds a header to the answer, before the answer is begun; both texts are copied. AS_ERR_INVALID
// when it cannot stand in a header, or is one that the server writes (Connection, Content-Length,
// Content-Type, Date, Transfer-Encoding); AS_ERR_LIMIT when it is too long or one too many.
as_status_t as_http_request_add_header(as_http_request_t *request, const char *name,
                                       const char *value) AS_MUST_USE;

// Answers whole; the body is copied. The request is dead after it (no on_abort).
void as_http_reply(as_http_request_t *request, int code, const char *content_type, const char *body,
                   size_t bytes);
// Answers as a stream: begin once, write any number of times (copied; AS_ERR_BUSY when the client
// reads too slowly and more than 1 MiB waits, AS_ERR_LIMIT when `bytes` alone is more), end once.
// The request is dead after end.
as_status_t as_http_stream_begin(as_http_request_t *request, int code,
                                 const char *content_type) AS_MUST_USE;
as_status_t as_http_stream_write(as_http_request_t *request, const char *data,
                                 size_t bytes) AS_MUST_USE;
void as_http_stream_end(as_http_request_t *request);

// Adds GET /metrics, /livez and /readyz on a port of their own. `ready` may be NULL (always ready).
as_status_t as_http_alloc_metrics(as_loop_t *loop, const char *address, bool (*ready)(void *ctx),
                                  void *ctx, as_http_t **http_p) AS_MUST_USE;
// Of such a port: called before each answer of /metrics, to set gauges that nobody keeps up to date.
void as_http_metrics_refresh_by(as_http_t *http, void (*refresh)(void *ctx), void *ctx);

#endif
