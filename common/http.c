// SPDX-License-Identifier: Apache-2.0
// The HTTP server: libmicrohttpd without threads of its own, run by the loop.
//
// libmicrohttpd keeps its sockets in an epoll descriptor. The loop watches that one descriptor,
// keeps a timer for the library's next timeout, and runs it when either fires or when a handler has
// answered (`soon`). A request whose body is complete is suspended first and given to the handler
// after the library has returned, so a handler may call anything of this module, including
// as_http_free, without the library being on the stack. on_abort is the exception that proves it:
// it can come from inside, and as_http_free is put off then.
#include "common/http_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define FILES_TOLD_MS       60000u // between two lines of the log
#define FILES_REST_MS       100u   // until the next try
#define LISTEN_BACKLOG      128
#define CONNECTION_BYTES    65536u // libmicrohttpd's memory of one connection: its headers must fit
#define CONNECTIONS_LARGEST 65536u

// ---- libmicrohttpd's callbacks

static enum MHD_Result queue_answer(as_http_request_t *request)
{
    struct MHD_Response *response = request->response;
    request->response = NULL;
    enum MHD_Result queued =
        MHD_queue_response(request->connection, (unsigned)request->code, response);
    MHD_destroy_response(response); // the library holds its own reference
    return queued;
}

typedef struct framing {
    uint32_t lengths, encodings;
    bool chunked;
} framing_t;

static enum MHD_Result on_framing_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                         const char *value)
{
    framing_t *framing = ctx;
    (void)kind;
    framing->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        framing->encodings++;
        framing->chunked = value && strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

// Whether a proxy in front of us could take the end of the body to be elsewhere, and so let a
// request pass inside of another's body (RFC 9112, section 6.3).
static bool is_ambiguous(struct MHD_Connection *connection)
{
    framing_t framing = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, on_framing_header, &framing);
    return framing.lengths + framing.encodings > 1 || (framing.encodings && !framing.chunked);
}

// A body that is announced as too large is refused before it is sent where the client asks first,
// or where reading and dropping it would take too long. Returns the code, 0 for none. The
// connection is closed after this answer.
static int early_refusal(struct MHD_Connection *connection)
{
    if (is_ambiguous(connection)) {
        return MHD_HTTP_BAD_REQUEST;
    }
    const char *length =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    unsigned long long bytes = length ? strtoull(length, NULL, 10) : 0;
    bool asks =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) != NULL;
    return bytes > (asks ? AS_HTTP_BODY_BYTES_MAX : AS_HTTP_DISCARD_BYTES_MAX)
               ? MHD_HTTP_CONTENT_TOO_LARGE
               : 0;
}

static enum MHD_Result refuse_early(as_http_t *http, struct MHD_Connection *connection, int code)
{
    as_http_refusal_t refusal;
    as_http_refusal_init(http, code, &refusal);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(refusal.body), refusal.body, MHD_RESPMEM_MUST_COPY);
    if (!response) {
        return MHD_NO;
    }
    enum MHD_Result queued =
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, refusal.content_type);
    if (queued == MHD_YES) {
        queued = MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    if (queued == MHD_YES) {
        queued = MHD_queue_response(connection, (unsigned)refusal.code, response);
    }
    MHD_destroy_response(response);
    as_http_connection_received(as_http_connection_of(connection));
    return queued;
}

// Called with the headers, then with each piece of the body, then once without a piece; and again
// after a resume.
static enum MHD_Result as_http_on_access(void *ctx, struct MHD_Connection *connection,
                                         const char *url, const char *method, const char *version,
                                         const char *data, size_t *data_bytes_p, void **request_p)
{
    as_http_t *http = ctx;
    as_http_request_t *request = *request_p;
    as_http_connection_t *sender = as_http_connection_of(connection);
    (void)version;
    if (!sender || sender->cut) {
        return MHD_NO;
    }
    int refusal = request ? 0 : early_refusal(connection);
    if (refusal) {
        return refuse_early(http, connection, refusal);
    }
    if (!request) {
        as_http_connection_receive(sender); // its body
        request = as_http_request_new(http, connection, method, url);
        if (!request) {
            AS_WARN("http", "request dropped: out of memory");
            return MHD_NO;
        }
        *request_p = request;
        return MHD_YES;
    }
    if (*data_bytes_p > 0) {
        bool kept = as_http_request_receive(request, data, *data_bytes_p);
        *data_bytes_p = 0;
        return kept ? MHD_YES : MHD_NO;
    }
    if (request->stage == AS_HTTP_DEAD) {
        return MHD_NO;
    }
    if (request->response) {
        return queue_answer(request);
    }
    AS_ASSERT(request->stage == AS_HTTP_RECEIVING);
    as_http_request_suspend(request);
    return MHD_YES;
}

static void on_completed(void *ctx, struct MHD_Connection *connection, void **request_p,
                         enum MHD_RequestTerminationCode code)
{
    as_http_request_t *request = *request_p;
    as_http_connection_t *sender = as_http_connection_of(connection);
    (void)ctx;
    (void)code;
    if (request) {
        *request_p = NULL;
        as_http_request_completed(request);
    }
    if (sender) {
        as_http_connection_receive(sender); // the next one
    }
}

static void on_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *socket_context = as_http_connection_alloc(ctx, connection);
        return;
    }
    as_http_connection_free(*socket_context);
    *socket_context = NULL;
    // At its limit the library stops to listen, and only begins again when it runs after this.
    as_http_run_soon(ctx);
}

// ---- Running

static void destroy(as_http_t *http);
static void on_soon(uv_idle_t *soon);

void as_http_run_soon(as_http_t *http)
{
    if (!http->freeing) {
        uv_idle_start(&http->soon, on_soon); // no-op when it is started
    }
}

static as_http_request_t *take_waiting(as_http_t *http)
{
    as_http_request_t *request = http->waiting_first;
    if (request) {
        http->waiting_first = request->waiting_next;
        http->waiting_last = http->waiting_first ? http->waiting_last : NULL;
    }
    return request;
}

static void on_timeout(uv_timer_t *timer);

static void set_timeout(as_http_t *http)
{
    MHD_UNSIGNED_LONG_LONG timeout_ms;
    if (MHD_get_timeout(http->daemon, &timeout_ms) != MHD_YES) {
        uv_timer_stop(&http->timer);
    } else if (timeout_ms == 0) {
        as_http_run_soon(http);
    } else {
        uv_timer_start(&http->timer, on_timeout, timeout_ms, 0);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events);

// Somebody waits to be accepted, and there is no descriptor for him.
static bool lacks_files(const as_http_t *http)
{
    struct pollfd waiting = {.fd = http->listen_fd, .events = POLLIN};
    if (poll(&waiting, 1, 0) <= 0) {
        return false;
    }
    int fd = fcntl(http->listen_fd, F_DUPFD_CLOEXEC, 0);
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    return fd < 0 && (error == EMFILE || error == ENFILE);
}

// The library, which has no connection then whose end it could wait for, would try again at once and
// for ever.
static void rest_without_files(as_http_t *http)
{
    uint64_t now_ms = uv_now(http->timer.loop);
    if (!lacks_files(http)) {
        if (!uv_is_active((uv_handle_t *)&http->poll)) {
            uv_poll_start(&http->poll, UV_READABLE, on_readable);
        }
        return;
    }
    if (http->told_files_ms == 0 || now_ms - http->told_files_ms >= FILES_TOLD_MS) {
        http->told_files_ms = now_ms;
        AS_ERROR("http",
                 "%s: too many files are open here, who connects has to wait: raise their limit "
                 "(ulimit -n, LimitNOFILE=)",
                 http->address);
    }
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    if (info && info->num_connections == 0) {
        uv_poll_stop(&http->poll);
        uv_timer_start(&http->timer, on_timeout, FILES_REST_MS, 0);
    }
}

static void pump(as_http_t *http)
{
    as_http_request_t *request;
    if (http->freeing) {
        return;
    }
    uv_idle_stop(&http->soon);
    http->dispatching = true;
    MHD_run(http->daemon);
    while (!http->freeing && (request = take_waiting(http)) != NULL) {
        as_http_request_dispatch(request);
    }
    http->dispatching = false;
    if (http->freeing) {
        destroy(http);
        return;
    }
    set_timeout(http);
    rest_without_files(http);
}

void as_http_hang_up(as_http_request_t *request)
{
    as_http_t *http = request->http;
    http->dispatching = true;
    as_http_request_abort(request);
    http->dispatching = false;
    if (http->freeing) {
        destroy(http);
    } else {
        as_http_request_resume(request); // for libmicrohttpd to close the connection
    }
}

static void on_soon(uv_idle_t *soon)
{
    pump(soon->data);
}

static void on_timeout(uv_timer_t *timer)
{
    pump(timer->data);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)events;
    as_http_t *http = poll->data;
    if (status < 0) {
        AS_ERROR("http", "%s: cannot poll: %s", http->address, uv_strerror(status));
        return;
    }
    pump(http);
}

// ---- Start

// Splits "host:port" or "[host]:port". The parts are written to buffers of `bytes_max` bytes.
static bool split_address(const char *address, char *host, char *port, size_t bytes_max)
{
    const char *colon = strrchr(address, ':');
    if (!colon || strlen(address) >= bytes_max) {
        return false;
    }
    size_t digits = strlen(colon + 1);
    if (digits == 0 || digits > 5 || strspn(colon + 1, "0123456789") != digits ||
        strtol(colon + 1, NULL, 10) > 65535) {
        return false;
    }
    bool bracketed = colon > address + 1 && address[0] == '[' && colon[-1] == ']';
    size_t bytes = (size_t)(colon - address) - 2 * (size_t)bracketed;
    memcpy(host, address + bracketed, bytes);
    host[bytes] = '\0';
    memcpy(port, colon + 1, digits + 1);
    return bracketed || !strchr(host, ':');
}

static int open_socket(const struct addrinfo *info)
{
    int one = 1;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static as_status_t write_bound_address(int fd, char address[128])
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof(bound);
    char host[64], port[16];
    if (getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&bound, bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return AS_ERR_IO;
    }
    snprintf(address, 128, bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return AS_OK;
}

// Blocks for the name's resolution: at start-up only.
static as_status_t listen_on(const char *address, int *fd_p)
{
    char host[128], port[128];
    if (!split_address(address, host, port, sizeof(host))) {
        AS_ERROR("http", "address '%s' must be host:port, port at most 65535", address);
        return AS_ERR_INVALID;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *info;
    int error = getaddrinfo(host[0] ? host : NULL, port, &hints, &info);
    if (error) {
        AS_ERROR("http", "cannot resolve '%s': %s", address, gai_strerror(error));
        return AS_ERR_INVALID;
    }
    int fd = -1;
    for (const struct addrinfo *at = info; at && fd < 0; at = at->ai_next) {
        fd = open_socket(at);
    }
    freeaddrinfo(info);
    if (fd < 0) {
        AS_ERROR("http", "cannot listen on %s: %s", address, strerror(errno));
        return AS_ERR_IO;
    }
    *fd_p = fd;
    return AS_OK;
}

as_status_t as_http_check_address(const char *address)
{
    int fd;
    as_status_t status = listen_on(address, &fd);
    if (status == AS_OK) {
        close(fd);
    }
    return status;
}

// The path is a C string: an escaped zero byte would end it early, so such a path stays as it came
// and is found nowhere.
static size_t on_unescape(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx;
    (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static struct MHD_Daemon *start_daemon(as_http_t *http, int fd, uint32_t connections_max)
{
    uint32_t idle = http->receive_seconds / 2;
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, as_http_on_access, http,
        MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)connections_max, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(idle < AS_HTTP_IDLE_SECONDS_MAX ? idle : AS_HTTP_IDLE_SECONDS_MAX),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        1, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, http, MHD_OPTION_UNESCAPE_CALLBACK, on_unescape, NULL, MHD_OPTION_END);
}

static void open_handles(as_http_t *http, uv_loop_t *uv, int epoll_fd)
{
    int error = uv_poll_init(uv, &http->poll, epoll_fd);
    AS_ASSERT(error == 0); // fails only on what is no descriptor
    uv_timer_init(uv, &http->timer);
    uv_idle_init(uv, &http->soon);
    uv_timer_init(uv, &http->cutter);
    http->poll.data = http->timer.data = http->soon.data = http->cutter.data = http;
    http->handles_open = 4;
    error = uv_poll_start(&http->poll, UV_READABLE, on_readable);
    AS_ASSERT(error == 0);
}

as_status_t as_http_alloc(as_loop_t *loop, const as_http_options_t *options, as_http_t **http_p)
{
    uv_loop_t *uv = as_loop_uv(loop);
    int fd;
    AS_ASSERT(options->handlers.on_request && options->connections_max > 0 &&
              options->connections_max <= CONNECTIONS_LARGEST);
    AS_ASSERT(options->receive_seconds == 0 ||
              options->receive_seconds >= AS_HTTP_RECEIVE_SECONDS_MIN);
    if (!uv) {
        return AS_ERR_UNSUPPORTED; // there is no HTTP in virtual time
    }
    as_http_t *http = as_mem_zalloc(1, sizeof(*http));
    if (!http) {
        return AS_ERR_NO_MEMORY;
    }
    http->magic = AS_HTTP_MAGIC;
    http->handlers = options->handlers;
    http->receive_seconds =
        options->receive_seconds ? options->receive_seconds : AS_HTTP_RECEIVE_SECONDS;
    as_status_t status = listen_on(options->address, &fd);
    if (status != AS_OK) {
        goto fail_http;
    }
    status = write_bound_address(fd, http->address);
    if (status != AS_OK) {
        close(fd);
        goto fail_http;
    }
    http->listen_fd = fd;
    http->daemon = start_daemon(http, fd, options->connections_max);
    if (!http->daemon) {
        // The library closes the socket in some of its failures and not in others: losing one is
        // the lesser harm.
        AS_ERROR("http", "cannot start a server on %s", http->address);
        status = AS_ERR_IO;
        goto fail_http;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    AS_ASSERT(info != NULL);
    open_handles(http, uv, info->epoll_fd);
    *http_p = http;
    return AS_OK;

fail_http:
    as_mem_free(http);
    return status;
}

const char *as_http_address(const as_http_t *http)
{
    return http->address;
}

// ---- End

static void on_handle_closed(uv_handle_t *handle)
{
    as_http_t *http = handle->data;
    if (--http->handles_open == 0) {
        as_mem_free(http->owned);
        as_mem_free(http);
    }
}

static void destroy(as_http_t *http)
{
    http->magic = 0;
    http->waiting_first = http->waiting_last = NULL;
    uv_close((uv_handle_t *)&http->poll,
             on_handle_closed); // before the library closes the descriptor
    uv_close((uv_handle_t *)&http->timer, on_handle_closed);
    uv_close((uv_handle_t *)&http->soon, on_handle_closed);
    uv_close((uv_handle_t *)&http->cutter, on_handle_closed);
    for (as_http_request_t *request = http->requests; request; request = request->next) {
        as_http_request_resume(request); // the library cannot stop with suspended connections
    }
    MHD_stop_daemon(http->daemon); // completes every request
    AS_ASSERT(http->requests == NULL);
}

static as_http_request_t *next_in_handler(as_http_t *http)
{
    as_http_request_t *request = http->requests;
    while (request && !request->in_handler) {
        request = request->next;
    }
    return request;
}

void as_http_free(as_http_t *http)
{
    as_http_request_t *request;
    if (!http) {
        return;
    }
    AS_ASSERT(http->magic == AS_HTTP_MAGIC && !http->freeing);
    http->freeing = true;
    while ((request = next_in_handler(http)) != NULL) {
        as_http_request_abort(request);
    }
    if (!http->dispatching) {
        destroy(http);
    }
}
