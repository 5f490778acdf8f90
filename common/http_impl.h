// SPDX-License-Identifier: Apache-2.0
// The HTTP server's objects: one server on a loop, and its requests.
#ifndef AS_HTTP_IMPL_H
#define AS_HTTP_IMPL_H

#include <microhttpd.h>
#include <uv.h>

#include "common/http.h"

#define AS_HTTP_STREAM_BYTES_MAX (1u << 20) // waiting in one stream
// A connection on which no byte moves, unless half of receive_seconds is less; not counted while we
// work.
#define AS_HTTP_IDLE_SECONDS_MAX 30u
#define AS_HTTP_CHUNK_BYTES      16384u // asked of a stream at once
#define AS_HTTP_DISCARD_BYTES_MAX                                                                  \
    (64u << 20) // read and dropped of a body that is too large, before hanging up

#define AS_HTTP_MAGIC         0x707474685f736100ull // "\0as_http"
#define AS_HTTP_REQUEST_MAGIC 0x7165725f73612e00ull

typedef enum as_http_stage {
    AS_HTTP_RECEIVING, // headers are here, the body is coming
    AS_HTTP_WAITING,   // with the handler, not answered
    AS_HTTP_REPLIED,   // answered whole
    AS_HTTP_STREAMING, // answered as a stream that has not ended
    AS_HTTP_ENDED,     // answered as a stream that has ended
    AS_HTTP_DEAD // the client is gone, or an answer could not be made: the connection is to be
                 // closed
} as_http_stage_t;

typedef struct as_http_connection as_http_connection_t;
typedef struct as_http_header as_http_header_t;

typedef struct as_http_buffer {
    char *bytes;
    size_t start, end, capacity;
} as_http_buffer_t;

struct as_http_request {
    uint64_t magic;
    as_http_t *http;
    as_http_request_t *previous, *next; // in http->requests
    as_http_request_t *waiting_next;    // in http's queue to the handler
    struct MHD_Connection *connection;  // NULL once libmicrohttpd has ended the request
    as_http_stage_t stage;
    bool in_handler; // the handler has been given the pointer and may still use it
    bool suspended;
    bool watched;    // watch is open
    uv_poll_t watch; // tells that the client hung up while we work
    void *user;
    char *method, *path;
    as_http_buffer_t body;
    size_t discarded_bytes;    // of a body that is not kept
    int refusal;               // HTTP code instead of the handler's answer; 0: none
    as_http_header_t *headers; // of the answer, newest first
    uint32_t header_count;
    as_http_buffer_t stream;
    struct MHD_Response *response; // to queue when libmicrohttpd asks next
    int code;
};

// One header of an answer.
struct as_http_header {
    as_http_header_t *next;
    char *name, *value; // behind this
};

// One connection: when the request that it sends must be complete.
struct as_http_connection {
    as_http_t *http;
    as_http_connection_t *previous, *next; // in http->receiving_*
    int fd;
    bool receiving; // in that list
    bool cut;       // was told 408: nothing more of it is taken
    uint64_t until_ms;
};

// What the server says instead of the handler.
typedef struct as_http_refusal {
    int code;
    const char *content_type;
    char body[AS_HTTP_REFUSAL_BYTES_MAX];
} as_http_refusal_t;

struct as_http {
    uint64_t magic;
    struct MHD_Daemon *daemon;
    as_http_handlers_t handlers;
    void *owned; // freed with the server
    char address[128];
    uv_poll_t poll;    // libmicrohttpd's epoll descriptor
    uv_timer_t timer;  // its next timeout
    uv_idle_t soon;    // it wants to run at once
    uv_timer_t cutter; // the next receiving connection's time is over
    uint32_t receive_seconds;
    int listen_fd;
    uint64_t told_files_ms; // that too many files are open; 0: never
    int handles_open;
    bool dispatching; // handlers are being called: free must wait
    bool freeing;
    as_http_request_t *requests;
    as_http_request_t *waiting_first,
        *waiting_last; // complete, to be given to the handler, oldest first
    as_http_connection_t *receiving_first,
        *receiving_last; // whose request is not complete, soonest to be cut first
};

// http.c: has libmicrohttpd run in the loop's next turn.
void as_http_run_soon(as_http_t *http);
// http.c: aborts a request from outside of libmicrohttpd; the handler may free the server then.
void as_http_hang_up(as_http_request_t *request);

// http_connection.c
// NULL: there is no memory for it, and it was closed.
as_http_connection_t *as_http_connection_alloc(as_http_t *http, struct MHD_Connection *connection);
void as_http_connection_free(as_http_connection_t *connection);
as_http_connection_t *as_http_connection_of(struct MHD_Connection *connection);
// A request, or its body, is expected from now on.
void as_http_connection_receive(as_http_connection_t *connection);
// The request is complete, or refused.
void as_http_connection_received(as_http_connection_t *connection);
void as_http_refusal_init(const as_http_t *http, int code, as_http_refusal_t *refusal);

// http_request.c
as_http_request_t *as_http_request_new(as_http_t *http, struct MHD_Connection *connection,
                                       const char *method, const char *path);
// Keeps a piece of the body, or notes why it is not kept. False: hang up.
bool as_http_request_receive(as_http_request_t *request, const char *data, size_t bytes);
// The body is complete: suspends the connection until there is an answer.
void as_http_request_suspend(as_http_request_t *request);
void as_http_request_dispatch(as_http_request_t *request);
// Tells the handler, if it has not ended the request itself.
void as_http_request_abort(as_http_request_t *request);
// libmicrohttpd has ended the request.
void as_http_request_completed(as_http_request_t *request);
void as_http_request_resume(as_http_request_t *request);
// Frees the request, if neither libmicrohttpd nor the watch needs it.
void as_http_request_release(as_http_request_t *request);

#endif
