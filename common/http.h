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

#define AS_HTTP_BODY_BYTES_MAX (8u << 20)

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
} as_http_handlers_t;

// address "host:port"; port 0 picks one.
as_status_t as_http_alloc(as_loop_t *loop, const char *address, uint32_t connections_max,
                          const as_http_handlers_t *handlers, as_http_t **http_p) AS_MUST_USE;
// Aborts every request that is not answered (on_abort) and closes all connections. Allowed from a
// handler. NULL is fine.
void as_http_free(as_http_t *http);
const char *as_http_address(const as_http_t *http);
void as_http_request_set_user(as_http_request_t *request, void *user);
void *as_http_request_user(const as_http_request_t *request);
// A header of the request, or NULL.
const char *as_http_request_header(as_http_request_t *request, const char *name);

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

#endif
