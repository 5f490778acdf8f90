// SPDX-License-Identifier: Apache-2.0
// One connection while it sends a request: it has a bounded time for it.
//
// libmicrohttpd only closes connections on which no byte moves, so a client that sends one byte now
// and then would hold its connection for ever. Every connection whose request is not complete
// stands in one list. All get the same time, so the list is in the order of their ends, and one
// timer is enough. Who is late is told 408 on the socket itself: the library takes an answer only
// to a complete request, and has nothing of its own to send meanwhile.
#include "common/http_impl.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

void as_http_refusal_init(const as_http_t *http, int code, as_http_refusal_t *refusal)
{
    const as_http_handlers_t *handlers = &http->handlers;
    char text[160];
    switch (code) {
    case MHD_HTTP_REQUEST_TIMEOUT:
        snprintf(text, sizeof(text),
                 "request was not complete within %u seconds: send its header and body without "
                 "pauses",
                 http->receive_seconds);
        break;
    case MHD_HTTP_CONTENT_TOO_LARGE:
        snprintf(text, sizeof(text), "request body is larger than %u bytes: send a shorter one",
                 AS_HTTP_BODY_BYTES_MAX);
        break;
    case MHD_HTTP_BAD_REQUEST:
        snprintf(text, sizeof(text),
                 "request does not say clearly where its body ends: send Content-Length once, or "
                 "Transfer-Encoding: chunked");
        break;
    default:
        snprintf(text, sizeof(text), "out of memory: try again later");
        break;
    }
    refusal->code = code;
    if (handlers->on_refuse) {
        refusal->content_type =
            handlers->on_refuse(handlers->ctx, code, text, refusal->body, sizeof(refusal->body));
    } else {
        refusal->content_type = "text/plain; charset=utf-8";
        snprintf(refusal->body, sizeof(refusal->body), "%s\n", text);
    }
}

// ---- The list

static void unlink_connection(as_http_connection_t *connection)
{
    as_http_t *http = connection->http;
    if (connection->previous) {
        connection->previous->next = connection->next;
    } else {
        http->receiving_first = connection->next;
    }
    if (connection->next) {
        connection->next->previous = connection->previous;
    } else {
        http->receiving_last = connection->previous;
    }
    connection->previous = connection->next = NULL;
    connection->receiving = false;
}

static void append_connection(as_http_connection_t *connection)
{
    as_http_t *http = connection->http;
    connection->previous = http->receiving_last;
    if (connection->previous) {
        connection->previous->next = connection;
    } else {
        http->receiving_first = connection;
    }
    http->receiving_last = connection;
    connection->receiving = true;
}

// ---- Cutting

// The library has handed the whole of an earlier answer to the socket by now, so these bytes follow
// it.
static void cut(as_http_connection_t *connection)
{
    as_http_refusal_t refusal;
    char answer[AS_HTTP_REFUSAL_BYTES_MAX + 256];
    as_http_refusal_init(connection->http, MHD_HTTP_REQUEST_TIMEOUT, &refusal);
    int length =
        snprintf(answer, sizeof(answer),
                 "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: %s\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 refusal.content_type, strlen(refusal.body), refusal.body);
    AS_ASSERT(length > 0 && (size_t)length < sizeof(answer));
    AS_INFO("http", "client cut: request not complete within seconds %u",
            connection->http->receive_seconds);
    connection->cut = true;
    if (send(connection->fd, answer, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL) != length) {
        AS_DEBUG("http", "client cut without an answer: it does not read");
    }
    shutdown(connection->fd, SHUT_RDWR); // libmicrohttpd sees the end and closes
}

static void on_cutter(uv_timer_t *cutter)
{
    as_http_t *http = cutter->data;
    uint64_t now_ms = uv_now(cutter->loop);
    as_http_connection_t *first;
    while ((first = http->receiving_first) != NULL && first->until_ms <= now_ms) {
        unlink_connection(first);
        cut(first);
    }
    if (first) {
        uv_timer_start(cutter, on_cutter, first->until_ms - now_ms, 0);
    }
}

// ---- Life

as_http_connection_t *as_http_connection_alloc(as_http_t *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    AS_ASSERT(info != NULL);
    as_http_connection_t *made = as_mem_zalloc(1, sizeof(*made));
    if (!made) {
        AS_WARN("http", "connection closed: out of memory");
        shutdown(info->connect_fd, SHUT_RDWR);
        return NULL;
    }
    made->http = http;
    made->fd = info->connect_fd;
    as_http_connection_receive(made);
    return made;
}

void as_http_connection_free(as_http_connection_t *connection)
{
    if (connection) {
        as_http_connection_received(connection);
        as_mem_free(connection);
    }
}

as_http_connection_t *as_http_connection_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

void as_http_connection_receive(as_http_connection_t *connection)
{
    as_http_t *http = connection->http;
    as_http_connection_received(connection);
    if (connection->cut || http->freeing) {
        return;
    }
    connection->until_ms = uv_now(http->cutter.loop) + http->receive_seconds * 1000ull;
    append_connection(connection);
    if (!uv_is_active((uv_handle_t *)&http->cutter)) {
        uv_timer_start(&http->cutter, on_cutter, http->receive_seconds * 1000ull, 0);
    }
}

void as_http_connection_received(as_http_connection_t *connection)
{
    if (connection->receiving) {
        unlink_connection(connection);
    }
}
