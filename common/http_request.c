// SPDX-License-Identifier: Apache-2.0
// One HTTP request: its body, its hand-over to the handler, its answer, its end.
//
// A request is shared by the handler (until it answers, ends the stream, or is told of an abort),
// by libmicrohttpd (until the request is completed) and by the watch on the socket (until libuv has
// closed it). It is freed after the last two; the handler's end is always before. While the handler
// works, the connection is suspended, and libmicrohttpd does not look at its socket: the watch is
// what sees the client hang up then.
#include "common/http_impl.h"

#include <string.h>
#include <strings.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

// ---- Buffers

// Appends, keeping one byte beyond the end for a NUL. False when out of memory.
static bool buffer_append(as_http_buffer_t *buffer, const char *data, size_t bytes)
{
    size_t used = buffer->end - buffer->start;
    if (buffer->end + bytes + 1 > buffer->capacity && buffer->start > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, used);
        buffer->start = 0;
        buffer->end = used;
    }
    if (buffer->end + bytes + 1 > buffer->capacity) {
        size_t capacity = buffer->capacity ? 2 * buffer->capacity : 4096;
        capacity = capacity > used + bytes + 1 ? capacity : used + bytes + 1;
        char *grown = as_mem_realloc(buffer->bytes, capacity);
        if (!grown) {
            return false;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->bytes + buffer->end, data, bytes);
    buffer->end += bytes;
    buffer->bytes[buffer->end] = '\0';
    return true;
}

static void buffer_free(as_http_buffer_t *buffer)
{
    as_mem_free(buffer->bytes);
    memset(buffer, 0, sizeof(*buffer));
}

// ---- Life

as_http_request_t *as_http_request_new(as_http_t *http, struct MHD_Connection *connection,
                                       const char *method, const char *path)
{
    as_http_request_t *request = as_mem_zalloc(1, sizeof(*request));
    char *method_copy = as_mem_strdup(method);
    char *path_copy = as_mem_strdup(path);
    if (!request || !method_copy || !path_copy) {
        as_mem_free(path_copy);
        as_mem_free(method_copy);
        as_mem_free(request);
        return NULL;
    }
    request->magic = AS_HTTP_REQUEST_MAGIC;
    request->http = http;
    request->connection = connection;
    request->method = method_copy;
    request->path = path_copy;
    request->next = http->requests;
    if (request->next) {
        request->next->previous = request;
    }
    http->requests = request;
    return request;
}

void as_http_request_release(as_http_request_t *request)
{
    if (request->connection || request->watched) {
        return;
    }
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && !request->in_handler);
    request->magic = 0;
    if (request->response) {
        MHD_destroy_response(request->response);
    }
    while (request->headers) {
        as_http_header_t *header = request->headers;
        request->headers = header->next;
        as_mem_free(header);
    }
    buffer_free(&request->body);
    buffer_free(&request->stream);
    as_mem_free(request->method);
    as_mem_free(request->path);
    as_mem_free(request);
}

// Out of the server's list: the server may go before the watch is closed.
static void unlink_request(as_http_request_t *request)
{
    if (request->previous) {
        request->previous->next = request->next;
    } else {
        request->http->requests = request->next;
    }
    if (request->next) {
        request->next->previous = request->previous;
    }
}

void as_http_request_abort(as_http_request_t *request)
{
    if (!request->in_handler) {
        return;
    }
    as_http_t *http = request->http;
    request->in_handler = false;
    request->stage = AS_HTTP_DEAD;
    if (http->handlers.on_abort) {
        http->handlers.on_abort(http->handlers.ctx, request);
    }
}

static void on_watch_closed(uv_handle_t *watch)
{
    as_http_request_t *request = watch->data;
    request->watched = false;
    as_http_request_release(request);
}

// Before the socket is closed, or its number would be watched for another's events.
static void close_watch(as_http_request_t *request)
{
    if (request->watched && !uv_is_closing((uv_handle_t *)&request->watch)) {
        uv_close((uv_handle_t *)&request->watch, on_watch_closed);
    }
}

void as_http_request_completed(as_http_request_t *request)
{
    request->suspended = false;
    close_watch(request);
    as_http_request_abort(request);
    unlink_request(request);
    request->connection = NULL;
    as_http_request_release(request);
}

// ---- From the client

bool as_http_request_receive(as_http_request_t *request, const char *data, size_t bytes)
{
    if (!request->refusal && bytes > AS_HTTP_BODY_BYTES_MAX - request->body.end) {
        request->refusal = MHD_HTTP_CONTENT_TOO_LARGE;
    }
    if (!request->refusal && !buffer_append(&request->body, data, bytes)) {
        AS_WARN("http", "request refused: out of memory for a body of bytes %zu",
                request->body.end + bytes);
        request->refusal = MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    if (!request->refusal) {
        return true;
    }
    // An answer can only follow the whole body, so the rest is read and dropped, within bounds.
    buffer_free(&request->body);
    request->discarded_bytes += bytes;
    return request->discarded_bytes <= AS_HTTP_DISCARD_BYTES_MAX;
}

// Any event means that the peer has shut down or reset its side. Like other servers we take a
// client that closes its sending side before the answer for one that has left.
static void on_gone(uv_poll_t *watch, int status, int events)
{
    (void)status;
    (void)events;
    as_http_request_t *request = watch->data;
    uv_poll_stop(watch);
    if (request->in_handler) { // else answered already; sending it will tell whether the client is
                               // there
        as_http_hang_up(request);
    }
}

static void open_watch(as_http_request_t *request)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    uv_poll_t *watch = &request->watch;
    int error = info ? uv_poll_init(request->http->poll.loop, watch, info->connect_fd) : UV_EBADF;
    if (error) {
        AS_WARN("http", "cannot watch a client: %s; it is found gone when it is answered",
                uv_strerror(error));
        return;
    }
    watch->data = request;
    request->watched = true;
    error = uv_poll_start(watch, UV_DISCONNECT, on_gone);
    AS_ASSERT(error == 0);
}

void as_http_request_suspend(as_http_request_t *request)
{
    MHD_suspend_connection(request->connection);
    request->suspended = true;
    request->stage = AS_HTTP_WAITING;
    as_http_connection_received(as_http_connection_of(request->connection));
    if (!request->refusal) {
        open_watch(request);
    }
    as_http_t *http = request->http;
    if (http->waiting_last) {
        http->waiting_last->waiting_next = request;
    } else {
        http->waiting_first = request;
    }
    http->waiting_last = request;
}

void as_http_request_resume(as_http_request_t *request)
{
    if (request->suspended && request->connection) {
        request->suspended = false;
        MHD_resume_connection(request->connection);
        as_http_run_soon(request->http);
    }
}

static void refuse(as_http_request_t *request)
{
    as_http_refusal_t refusal;
    as_http_refusal_init(request->http, request->refusal, &refusal);
    as_http_reply(request, refusal.code, refusal.content_type, refusal.body, strlen(refusal.body));
}

void as_http_request_dispatch(as_http_request_t *request)
{
    request->in_handler = true;
    if (request->refusal) {
        refuse(request);
        return;
    }
    as_http_call_t call = {
        .method = request->method,
        .path = request->path,
        .body = request->body.end > 0 ? request->body.bytes : NULL,
        .body_bytes = request->body.end,
    };
    as_http_t *http = request->http;
    http->handlers.on_request(http->handlers.ctx, request, &call);
}

void as_http_request_set_user(as_http_request_t *request, void *user)
{
    request->user = user;
}

void *as_http_request_user(const as_http_request_t *request)
{
    return request->user;
}

char *as_http_request_take_body(as_http_request_t *request)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    char *bytes = request->body.bytes;
    request->body = (as_http_buffer_t){0};
    return bytes;
}

const char *as_http_request_header(as_http_request_t *request, const char *name)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

// ---- To the client

// Of RFC 9110's characters of a name; what libmicrohttpd decides itself is not ours to set.
static bool name_allowed(const char *name)
{
    static const char characters[] = "!#$%&'*+-.^_`|~0123456789"
                                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char *const reserved[] = {"Connection", "Content-Length", "Content-Type", "Date",
                                           "Transfer-Encoding"};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        if (strcasecmp(name, reserved[i]) == 0) {
            return false;
        }
    }
    return name[0] && name[strspn(name, characters)] == '\0';
}

// Without control characters nobody can end the header early and begin another.
static bool value_allowed(const char *value)
{
    for (const char *at = value; *at; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) {
            return false;
        }
    }
    return value[0] != '\0';
}

as_status_t as_http_request_add_header(as_http_request_t *request, const char *name,
                                       const char *value)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    AS_ASSERT(request->stage == AS_HTTP_WAITING || request->stage == AS_HTTP_DEAD);
    size_t name_bytes = strlen(name) + 1, value_bytes = strlen(value) + 1;
    if (!name_allowed(name) || !value_allowed(value)) {
        return AS_ERR_INVALID;
    }
    if (request->header_count == AS_HTTP_HEADERS_MAX ||
        name_bytes + value_bytes > AS_HTTP_HEADER_BYTES_MAX + 2) {
        return AS_ERR_LIMIT;
    }
    as_http_header_t *header = as_mem_alloc(sizeof(*header) + name_bytes + value_bytes);
    if (!header) {
        return AS_ERR_NO_MEMORY;
    }
    header->name = (char *)(header + 1);
    header->value = header->name + name_bytes;
    memcpy(header->name, name, name_bytes);
    memcpy(header->value, value, value_bytes);
    header->next = request->headers;
    request->headers = header;
    request->header_count++;
    return AS_OK;
}

static bool fill_header(const as_http_request_t *request, const char *content_type,
                        struct MHD_Response *response)
{
    bool filled = !content_type || MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                                                           content_type) == MHD_YES;
    for (const as_http_header_t *at = request->headers; at && filled; at = at->next) {
        filled = MHD_add_response_header(response, at->name, at->value) == MHD_YES;
    }
    return filled;
}

// Hands the response to libmicrohttpd. Without one the connection is closed: a client must not wait
// for ever.
static void answer(as_http_request_t *request, int code, const char *content_type,
                   struct MHD_Response *response)
{
    if (response && !fill_header(request, content_type, response)) {
        MHD_destroy_response(response);
        response = NULL;
    }
    if (!response) {
        AS_WARN("http", "cannot make a response with code %d: out of memory, or a bad content type",
                code);
        request->stage = AS_HTTP_DEAD;
    }
    request->code = code;
    request->response = response;
    as_http_request_resume(request);
}

void as_http_reply(as_http_request_t *request, int code, const char *content_type, const char *body,
                   size_t bytes)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    AS_ASSERT(request->stage == AS_HTTP_WAITING);
    request->in_handler = false;
    request->stage = AS_HTTP_REPLIED;
    answer(
        request, code, content_type,
        MHD_create_response_from_buffer(bytes, bytes ? (void *)body : "", MHD_RESPMEM_MUST_COPY));
}

// libmicrohttpd wants bytes of the stream. With none waiting it is suspended until there are.
static ssize_t on_read(void *ctx, uint64_t position, char *out, size_t bytes_max)
{
    as_http_request_t *request = ctx;
    as_http_buffer_t *stream = &request->stream;
    size_t waiting = stream->end - stream->start;
    (void)position;
    if (request->stage == AS_HTTP_DEAD) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (waiting == 0 && request->stage == AS_HTTP_ENDED) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (waiting == 0) {
        MHD_suspend_connection(request->connection);
        request->suspended = true;
        return 0;
    }
    size_t bytes = waiting < bytes_max ? waiting : bytes_max;
    memcpy(out, stream->bytes + stream->start, bytes);
    stream->start += bytes;
    if (stream->start == stream->end) {
        stream->start = stream->end = 0;
    }
    return (ssize_t)bytes;
}

as_status_t as_http_stream_begin(as_http_request_t *request, int code, const char *content_type)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    AS_ASSERT(request->stage == AS_HTTP_WAITING);
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, AS_HTTP_CHUNK_BYTES, on_read, request, NULL);
    if (!response) {
        return AS_ERR_NO_MEMORY; // not answered yet: the handler may still reply
    }
    request->stage = AS_HTTP_STREAMING;
    answer(request, code, content_type, response);
    return AS_OK;
}

as_status_t as_http_stream_write(as_http_request_t *request, const char *data, size_t bytes)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    size_t waiting = request->stream.end - request->stream.start;
    if (request->stage == AS_HTTP_DEAD) {
        return AS_ERR_PEER_LOST; // on_abort follows
    }
    AS_ASSERT(request->stage == AS_HTTP_STREAMING);
    if (bytes > AS_HTTP_STREAM_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    if (bytes > AS_HTTP_STREAM_BYTES_MAX - waiting) {
        return AS_ERR_BUSY;
    }
    if (bytes > 0 && !buffer_append(&request->stream, data, bytes)) {
        return AS_ERR_NO_MEMORY;
    }
    as_http_request_resume(request);
    return AS_OK;
}

void as_http_stream_end(as_http_request_t *request)
{
    AS_ASSERT(request->magic == AS_HTTP_REQUEST_MAGIC && request->in_handler);
    AS_ASSERT(request->stage == AS_HTTP_STREAMING || request->stage == AS_HTTP_DEAD);
    request->in_handler = false;
    if (request->stage == AS_HTTP_STREAMING) {
        request->stage = AS_HTTP_ENDED;
    }
    as_http_request_resume(request);
}
