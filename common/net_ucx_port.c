// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: the data port, which strangers may reach.
//
// UCX's own listener ends the process on bytes that are not UCX's. So the port that is announced is
// ours: a peer says here (net_ucx_hello.h) who it is and from which port UCX will connect, and is
// told where UCX listens; the gate (net_ucx_gate.c) then lets in that address and port, once, and the
// doors (net_ucx_doors.c) its hosts, for as long as it is connected. Whom the owner does not know
// by its credential is let in nowhere.
// Whatever is malformed, too long, too slow or too much closes that connection, with a line in the
// log, and nothing else. The socket goes when UCX has connected. What listens is net_ucx_listener.c.
#include "common/net_ucx.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define ACCEPT_MS  5000u  // the listening side's patience, from TCP's connection to UCX's
#define CONNECT_MS 10000u // the connecting side's
// So many that have said nothing, and so many that were heard: the oldest makes room, as a peer of ours needs
// milliseconds, but nobody who was heard for somebody who says nothing.
#define HALF_OPEN_MAX 128u
#define RETRIES_MAX   3u
// UCX does not survive an accept without a descriptor. Each that is admitted takes three for a while; the
// rest is for files and other ports.
#define FILES_RESERVE   (3 * UCX_ADMITTED_MAX + HALF_OPEN_SHORT + 32)
#define HALF_OPEN_SHORT 16u

typedef enum socket_state {
    DIALLING,     // the connecting side, before TCP is there
    WANT_ACCEPT,  // then
    JOINING,      // UCX connects
    WANT_CONNECT, // the listening side, from the start
    QUEUED,       // others are admitted
    ADMITTED,     // UCX's connection may come
} socket_state_t;

struct ucx_socket {
    ucx_list_t link;  // net's half_open (listening side) or sockets
    ucx_net_t *net;   // NULL: closing
    ucx_conn_t *conn; // of the connecting side
    uv_tcp_t tcp;
    uv_timer_t deadline;
    uv_connect_t dial;
    unsigned open; // handles that libuv has not closed yet
    socket_state_t state;
    unsigned retries;
    struct sockaddr_storage remote;
    ucx_guest_t guest;            // of the listening side, until UCX has connected
    struct sockaddr_storage from; // where UCX's connection comes from
    int reserved;                 // holds that port until UCX takes it; -1: none
    char name[64];
    unsigned char in[UCX_HELLO_BYTES_MAX + 1];
    size_t in_bytes;
};

// The name `socket` is taken in this file.
static int plain_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static bool is_listening_side(const ucx_socket_t *socket)
{
    return socket->state >= WANT_CONNECT;
}

// ---- the end of a socket

static void on_handle_closed(uv_handle_t *handle)
{
    ucx_socket_t *socket = handle->data;
    if (--socket->open == 0) {
        as_mem_free(socket);
    }
}

static void unreserve(ucx_socket_t *socket)
{
    if (socket->reserved >= 0) {
        close(socket->reserved);
        socket->reserved = -1;
    }
}

void ucx_socket_close(ucx_socket_t *socket)
{
    ucx_net_t *net = socket->net;
    net->gate_is_old |= socket->state == ADMITTED;
    ucx_list_remove(&socket->link);
    if (socket->conn) {
        socket->conn->socket = NULL;
        socket->conn = NULL;
    }
    socket->net = NULL;
    ucx_guest_leave(net, &socket->guest);
    unreserve(socket);
    uv_close((uv_handle_t *)&socket->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&socket->deadline, on_handle_closed);
    if (net->gate_is_old || net->doors.old) {
        ucx_net_kick(net);
    }
}

// Closes the socket and fails what it was to become.
static void drop(ucx_socket_t *socket, as_status_t status)
{
    ucx_conn_t *conn = socket->conn;
    ucx_socket_close(socket);
    if (conn) {
        ucx_conn_fail(conn, status);
    }
}

static void drop_because(ucx_socket_t *socket, const char *why)
{
    AS_WARN("net", "data port: connection %s %s closed: %s",
            is_listening_side(socket) ? "from" : "to", socket->name, why);
    drop(socket, AS_ERR_PROTOCOL);
}

// The oldest of those that have said their hello, or that have not, makes room.
static void make_room(ucx_net_t *net, bool heard, unsigned max)
{
    ucx_socket_t *oldest = NULL;
    unsigned count = 0;
    for (ucx_list_t *at = net->half_open.next; at != &net->half_open; at = at->next) {
        ucx_socket_t *socket = UCX_LIST_OF(at, ucx_socket_t);
        if ((socket->state != WANT_CONNECT) == heard) {
            oldest = oldest ? oldest : socket;
            count++;
        }
    }
    if (count > max) {
        drop_because(oldest, heard ? "too many wait for UCX" : "too many wait for their hello");
    }
}

static void on_deadline(uv_timer_t *timer)
{
    ucx_socket_t *socket = timer->data;
    if (!socket->net) {
        return;
    }
    drop_because(socket, socket->state == WANT_CONNECT ? "no hello in time"
                         : is_listening_side(socket)   ? "UCX was not connected in time"
                                                       : "no answer in time");
}

// ---- hellos

static bool say(ucx_socket_t *socket, const ucx_hello_t *hello)
{
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    const uv_buf_t out = {(char *)bytes, ucx_hello_write(hello, bytes)};
    // One message at a time is under way, and every socket's buffer takes one.
    return uv_try_write((uv_stream_t *)&socket->tcp, &out, 1) == (int)out.len;
}

static bool say_connect(ucx_socket_t *socket)
{
    const as_net_t *head = &socket->net->head;
    ucx_hello_t hello = {.kind = UCX_HELLO_CONNECT,
                         .port = ucx_sockaddr_port(&socket->from),
                         .credential_bytes = (uint16_t)head->credential_bytes};
    memcpy(hello.credential, head->credential, head->credential_bytes);
    hello.host_count = (uint16_t)ucx_hosts_of_ours(hello.hosts);
    return say(socket, &hello);
}

static bool say_accept(ucx_socket_t *socket)
{
    ucx_hello_t hello = {.kind = UCX_HELLO_ACCEPT, .port = socket->net->ucx_port};
    hello.host_count = (uint16_t)ucx_hosts_of_ours(hello.hosts);
    return say(socket, &hello);
}

static void refuse(ucx_socket_t *socket, uint16_t why)
{
    const ucx_hello_t hello = {.kind = UCX_HELLO_REFUSE, .refusal = why};
    (void)say(socket, &hello); // else it sees the end of the connection
}

// Brings the gates up to date, and lets in who waits.
void ucx_port_admit(ucx_net_t *net)
{
    struct sockaddr_storage admitted[UCX_ADMITTED_MAX];
    ucx_socket_t *fresh[UCX_ADMITTED_MAX];
    unsigned count = 0, fresh_count = 0;
    ucx_doors_update(net);
    if (!net->gate_is_old) {
        return;
    }
    net->gate_is_old = false;
    for (unsigned state = ADMITTED; state >= QUEUED; state--) { // who is in stays in
        ucx_list_t *at = net->half_open.next;
        for (; at != &net->half_open && count < UCX_ADMITTED_MAX; at = at->next) {
            ucx_socket_t *socket = UCX_LIST_OF(at, ucx_socket_t);
            if (socket->state == state) {
                admitted[count++] = socket->from;
                if (state == QUEUED) {
                    fresh[fresh_count++] = socket;
                }
            }
        }
    }
    as_status_t status = ucx_gate_set(net->gate, admitted, count);
    for (unsigned i = 0; i < fresh_count; i++) {
        fresh[i]->state = ADMITTED;
        if (status != AS_OK || !say_accept(fresh[i])) {
            drop_because(fresh[i], "it cannot be answered");
        }
    }
}

bool ucx_port_connected(ucx_net_t *net, const struct sockaddr_storage *from, ucx_guest_t *guest)
{
    for (ucx_list_t *at = net->half_open.next; at != &net->half_open; at = at->next) {
        ucx_socket_t *socket = UCX_LIST_OF(at, ucx_socket_t);
        if (socket->state == ADMITTED && ucx_sockaddr_is(&socket->from, from)) {
            ucx_guest_move(&socket->guest, guest);
            ucx_socket_close(socket);
            return true;
        }
    }
    return false;
}

// A descriptor has the lowest number that is free: all below it are taken.
static bool is_short_of_files(const ucx_socket_t *socket)
{
    struct rlimit limit;
    int fd;
    return uv_fileno((const uv_handle_t *)&socket->tcp, &fd) == 0 &&
           getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd + FILES_RESERVE >= limit.rlim_cur;
}

static void take_connect(ucx_socket_t *socket, const ucx_hello_t *hello)
{
    ucx_net_t *net = socket->net;
    const as_net_handlers_t *handlers = &net->head.handlers;
    if (handlers->on_knock &&
        !handlers->on_knock(handlers->ctx, hello->credential, hello->credential_bytes)) {
        refuse(socket, UCX_REFUSAL_DENIED); // the owner tells of it
        drop(socket, AS_ERR_DENIED);
        return;
    }
    if (is_short_of_files(socket)) {
        refuse(socket, UCX_REFUSAL_BUSY);
        drop_because(socket, "too many files are open here: raise their limit (ulimit -n)");
        return;
    }
    struct sockaddr_storage local = {0};
    int bytes = sizeof(local);
    uv_tcp_getsockname(&socket->tcp, (struct sockaddr *)&local, &bytes);
    socket->from = socket->remote;
    ucx_sockaddr_set_port(&socket->from, hello->port);
    ucx_guest_add_all(net, &socket->guest, &socket->remote, &local, hello);
    socket->state = QUEUED;
    make_room(net, true, HALF_OPEN_MAX);
    net->gate_is_old = true;
    ucx_port_admit(net);
}

// True if another attempt is under way: the port that was kept for UCX was taken by somebody else.
static bool dial_again(ucx_socket_t *socket)
{
    ucx_net_t *net = socket->net;
    ucx_conn_t *conn = socket->conn;
    ucx_socket_t *again;
    if (socket->retries == RETRIES_MAX || ucx_socket_make(net, &socket->remote, &again) != AS_OK) {
        return false;
    }
    again->retries = socket->retries + 1;
    socket->conn = NULL;
    ucx_socket_close(socket);
    ucx_socket_dial(again, conn);
    return true;
}

static void take_accept(ucx_socket_t *socket, const ucx_hello_t *hello)
{
    struct sockaddr_storage to = socket->remote;
    ucx_sockaddr_set_port(&to, hello->port);
    ucx_guest_leave(socket->net, &socket->conn->guest); // of an attempt before
    ucx_guest_add_all(socket->net, &socket->conn->guest, &to, &socket->from, hello);
    unreserve(socket);
    socket->state = JOINING;
    if (ucx_conn_join(socket->conn, &to, &socket->from) != AS_OK && !dial_again(socket)) {
        drop_because(socket, "UCX cannot connect");
    }
}

static void take_other(ucx_socket_t *socket, const ucx_hello_t *hello)
{
    char why[96];
    snprintf(why, sizeof(why), "it speaks version %u of the data port, this is %u", hello->version,
             UCX_HELLO_VERSION);
    if (is_listening_side(socket)) {
        refuse(socket, UCX_REFUSAL_VERSION);
    } else {
        socket->conn->state = UCX_OPEN; // it was reached, and is not of our kind
    }
    drop_because(socket, why);
}

static void take_refuse(ucx_socket_t *socket, const ucx_hello_t *hello)
{
    if (hello->refusal == UCX_REFUSAL_DENIED) {
        socket->conn->state = UCX_OPEN; // it was reached
        drop(socket, AS_ERR_DENIED);    // the owner tells of it
    } else {
        drop_because(socket, "refused by the peer; see its log");
    }
}

static void take(ucx_socket_t *socket)
{
    ucx_hello_t hello;
    ucx_hello_parsed_t parsed = ucx_hello_parse(socket->in, socket->in_bytes, &hello);
    if (parsed == UCX_HELLO_PART) {
        return;
    }
    if (socket->state != WANT_CONNECT && socket->state != WANT_ACCEPT) {
        drop_because(socket, "bytes where none belong");
    } else if (parsed == UCX_HELLO_OTHER) {
        take_other(socket, &hello);
    } else if (parsed == UCX_HELLO_BROKEN) {
        drop_because(socket, "what it sent is not of this protocol");
    } else if (socket->state == WANT_CONNECT && hello.kind == UCX_HELLO_CONNECT) {
        take_connect(socket, &hello);
    } else if (socket->state == WANT_ACCEPT && hello.kind == UCX_HELLO_ACCEPT) {
        take_accept(socket, &hello);
    } else if (socket->state == WANT_ACCEPT && hello.kind == UCX_HELLO_REFUSE) {
        take_refuse(socket, &hello);
    } else {
        drop_because(socket, "a message out of turn");
    }
}

// ---- libuv's side

static void on_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    ucx_socket_t *socket = handle->data;
    *buffer = uv_buf_init((char *)socket->in + socket->in_bytes,
                          (unsigned)(sizeof(socket->in) - socket->in_bytes));
}

static void on_ended(ucx_socket_t *socket)
{
    uv_read_stop((uv_stream_t *)&socket->tcp);
    if (socket->state == JOINING) {
        return; // UCX is connected there; the deadline goes on until it is here
    }
    if (socket->state == WANT_CONNECT && socket->in_bytes == 0) {
        AS_INFO("net", "data port: connection from %s closed without a word", socket->name);
        drop(socket, AS_ERR_PEER_LOST);
    } else {
        drop_because(socket, socket->state <= WANT_CONNECT ? "it left in mid hello"
                                                           : "it left before UCX was connected");
    }
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    (void)buffer;
    ucx_socket_t *socket = stream->data;
    if (!socket->net || count == 0) {
        return;
    }
    if (count < 0) {
        on_ended(socket);
    } else {
        socket->in_bytes += (size_t)count;
        take(socket);
    }
}

// A port of the interface that leads to the peer, for UCX to connect from.
static bool reserve(ucx_socket_t *socket)
{
    int bytes = sizeof(socket->from);
    socklen_t length = sizeof(socket->from);
    struct sockaddr *from = (struct sockaddr *)&socket->from;
    if (uv_tcp_getsockname(&socket->tcp, from, &bytes) != 0) {
        return false;
    }
    ucx_sockaddr_set_port(&socket->from, 0);
    socket->reserved = plain_socket(from->sa_family);
    return socket->reserved >= 0 && bind(socket->reserved, from, (socklen_t)bytes) == 0 &&
           getsockname(socket->reserved, from, &length) == 0;
}

static void on_dialled(uv_connect_t *request, int error)
{
    ucx_socket_t *socket = request->data;
    if (!socket->net) {
        return;
    }
    if (error) {
        AS_INFO("net", "cannot connect to %s: %s", socket->name, uv_strerror(error));
        drop(socket, AS_ERR_UNREACHABLE);
        return;
    }
    socket->state = WANT_ACCEPT;
    if (!reserve(socket)) {
        drop_because(socket, strerror(errno));
    } else if (!say_connect(socket) ||
               uv_read_start((uv_stream_t *)&socket->tcp, on_buffer, on_read) != 0) {
        drop_because(socket, "it does not read");
    }
}

static void name_it(ucx_socket_t *socket)
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool six = socket->remote.ss_family == AF_INET6;
    if (six) {
        uv_ip6_name((const struct sockaddr_in6 *)&socket->remote, host, sizeof(host));
    } else if (socket->remote.ss_family == AF_INET) {
        uv_ip4_name((const struct sockaddr_in *)&socket->remote, host, sizeof(host));
    }
    snprintf(socket->name, sizeof(socket->name), six ? "[%s]:%u" : "%s:%u", host,
             ucx_sockaddr_port(&socket->remote));
}

as_status_t ucx_socket_make(ucx_net_t *net, const struct sockaddr_storage *remote,
                            ucx_socket_t **socket_p)
{
    ucx_socket_t *socket = as_mem_zalloc(1, sizeof(*socket));
    if (!socket) {
        return AS_ERR_NO_MEMORY;
    }
    uv_loop_t *loop = as_loop_uv(net->head.loop);
    uv_tcp_init(loop, &socket->tcp);
    uv_timer_init(loop, &socket->deadline);
    socket->open = 2;
    socket->tcp.data = socket->deadline.data = socket->dial.data = socket;
    socket->net = net;
    socket->state = DIALLING;
    socket->reserved = -1;
    ucx_list_append(&net->sockets, &socket->link);
    if (remote) {
        socket->remote = *remote;
        name_it(socket);
    }
    *socket_p = socket;
    return AS_OK;
}

void ucx_socket_dial(ucx_socket_t *socket, ucx_conn_t *conn)
{
    socket->conn = conn;
    conn->socket = socket;
    uv_timer_start(&socket->deadline, on_deadline, CONNECT_MS, 0);
    int error = uv_tcp_connect(&socket->dial, &socket->tcp,
                               (const struct sockaddr *)&socket->remote, on_dialled);
    if (error) {
        AS_INFO("net", "cannot connect to %s: %s", socket->name, uv_strerror(error));
        drop(socket, AS_ERR_UNREACHABLE);
    }
}

// One that libuv has told of.
as_status_t ucx_port_accept(ucx_net_t *net, uv_stream_t *from)
{
    ucx_socket_t *socket;
    if (ucx_socket_make(net, NULL, &socket) != AS_OK) {
        return AS_ERR_NO_MEMORY;
    }
    socket->state = WANT_CONNECT;
    if (uv_accept(from, (uv_stream_t *)&socket->tcp) != 0) {
        drop(socket, AS_ERR_PEER_LOST);
        return AS_OK;
    }
    int bytes = sizeof(socket->remote);
    uv_tcp_getpeername(&socket->tcp, (struct sockaddr *)&socket->remote, &bytes);
    name_it(socket);
    ucx_list_remove(&socket->link);
    ucx_list_append(&net->half_open, &socket->link);
    make_room(net, false, is_short_of_files(socket) ? HALF_OPEN_SHORT : HALF_OPEN_MAX);
    uv_timer_start(&socket->deadline, on_deadline, ACCEPT_MS, 0);
    if (uv_read_start((uv_stream_t *)&socket->tcp, on_buffer, on_read) != 0) {
        drop(socket, AS_ERR_PEER_LOST);
    }
    return AS_OK;
}

void ucx_port_close(ucx_net_t *net)
{
    ucx_listener_close(net);
    while (!ucx_list_is_empty(&net->half_open)) {
        ucx_socket_close(UCX_LIST_OF(net->half_open.next, ucx_socket_t));
    }
    while (!ucx_list_is_empty(&net->sockets)) {
        ucx_socket_close(UCX_LIST_OF(net->sockets.next, ucx_socket_t));
    }
}
