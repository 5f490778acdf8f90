// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: nets, their progress on the loop, and connections.
//
// Progress: UCX's worker has an event fd that a uv_poll watches. While there is something to do an
// idle handle runs `tick` in every turn of the loop instead: UCX's progress, then what it has
// finished. When some turns have brought nothing, the worker is armed and the loop sleeps on the
// fd. Sleeping costs 10-20 % of throughput against polling, so a few empty turns are spent first
// while operations are in flight.
//
// Failure: every endpoint is in error mode PEER. UCX never reports a peer that is merely stopped,
// so nothing here waits for the peer: endpoints are closed by force, and as_net_free gives UCX a
// bounded time.
//
// See net_ucx.h for the life of connections and operations. A net belongs to its loop's thread.
#include "common/net_ucx.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <stdlib.h>
#include <time.h>
#include <uv.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define PROGRESS_MAX     64u // calls of UCX's progress in one turn of the loop: others want it too
#define SPIN_TURNS_BUSY  32u // empty turns before sleeping while operations are in flight
#define SPIN_TURNS       4u  // the same with nothing in flight
#define SPIN_TURNS_STUCK 1000u // empty turns before naps, when UCX cannot be armed
#define NAP_US           1000u
#define REAP_MS          500u // as_net_free's patience with UCX; it needs well below 1 ms

// The handles outlive the net until the loop has run their close callbacks.
struct ucx_loop_glue {
    uv_poll_t poll;
    uv_idle_t idle;
    ucx_net_t *net; // NULL once the net is freed
    unsigned open;
    bool spinning;
    unsigned empty_turns;
};

typedef struct ucx_accept {
    ucx_list_t link;
    ucx_guest_t guest;
    ucp_conn_request_h request;
} ucx_accept_t;

static const as_net_ops_t ucx_ops;

static void tick(ucx_net_t *net);

static ucx_net_t *net_of(as_net_t *net)
{
    return (ucx_net_t *)net;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// ---- on the loop

static void on_idle(uv_idle_t *idle)
{
    ucx_loop_glue_t *glue = idle->data;
    if (glue->net) {
        tick(glue->net);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    ucx_loop_glue_t *glue = poll->data;
    if (glue->net && !glue->spinning) {
        ucx_net_kick(glue->net);
        tick(glue->net);
    }
}

void ucx_net_kick(ucx_net_t *net)
{
    ucx_loop_glue_t *glue = net->glue;
    glue->empty_turns = 0;
    if (!glue->spinning) {
        glue->spinning = true;
        uv_idle_start(&glue->idle, on_idle);
    }
}

static void on_glue_closed(uv_handle_t *handle)
{
    ucx_loop_glue_t *glue = handle->data;
    if (--glue->open == 0) {
        as_mem_free(glue);
    }
}

static as_status_t glue_make(ucx_net_t *net)
{
    uv_loop_t *loop = as_loop_uv(net->head.loop);
    int fd;
    ucs_status_t status = ucp_worker_get_efd(net->worker, &fd);
    if (!loop || status != UCS_OK) {
        AS_ERROR("net", "no event descriptor: %s", ucs_status_string(status));
        return AS_ERR_UNSUPPORTED;
    }
    ucx_loop_glue_t *glue = as_mem_zalloc(1, sizeof(*glue));
    if (!glue) {
        return AS_ERR_NO_MEMORY;
    }
    int error = uv_poll_init(loop, &glue->poll, fd);
    if (error) {
        AS_ERROR("net", "cannot poll UCX's descriptor: %s", uv_strerror(error));
        as_mem_free(glue);
        return AS_ERR_IO;
    }
    uv_idle_init(loop, &glue->idle);
    glue->poll.data = glue;
    glue->idle.data = glue;
    glue->open = 2;
    glue->net = net;
    net->glue = glue;
    uv_poll_start(&glue->poll, UV_READABLE, on_poll);
    ucx_net_kick(net); // the descriptor says nothing before it was armed
    return AS_OK;
}

static void glue_close(ucx_loop_glue_t *glue)
{
    glue->net = NULL;
    uv_close((uv_handle_t *)&glue->poll, on_glue_closed);
    uv_close((uv_handle_t *)&glue->idle, on_glue_closed);
}

// ---- accepting

static void on_connection_request(ucp_conn_request_h request, void *arg)
{
    ucx_net_t *net = arg;
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    ucx_guest_t guest = {0};
    if (ucp_conn_request_query(request, &attr) != UCS_OK ||
        !ucx_port_connected(net, &attr.client_address, &guest)) {
        AS_INFO("net", "connection refused: it was given up at the data port before it came");
        ucp_listener_reject(net->ucx_listener, request);
        return;
    }
    ucx_accept_t *accept = net->conn_count < UCX_CONNS_MAX ? as_mem_alloc(sizeof(*accept)) : NULL;
    if (!accept || net->reaping) {
        AS_WARN("net", "connection refused: %u are open", net->conn_count);
        ucp_listener_reject(net->ucx_listener, request);
        as_mem_free(accept);
        ucx_guest_leave(net, &guest);
        return;
    }
    accept->request = request;
    accept->guest = guest;
    ucx_list_append(&net->accepts, &accept->link);
}

static void accept_one(ucx_net_t *net)
{
    ucx_accept_t *accept = UCX_LIST_OF(net->accepts.next, ucx_accept_t);
    ucx_list_remove(&accept->link);
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
                              .conn_request = accept->request};
    ucx_guest_t guest = accept->guest;
    as_mem_free(accept);
    ucx_conn_t *conn;
    if (ucx_conn_make(net, &conn) != AS_OK) {
        ucp_listener_reject(net->ucx_listener, params.conn_request);
        ucx_guest_leave(net, &guest);
        return;
    }
    conn->guest = guest;
    if (ucx_conn_begin(conn, &params) != AS_OK) { // UCX has rejected it
        ucx_conn_drop(conn);
        return;
    }
    conn->state = UCX_OPEN;
    as_status_t status = ucx_msg_greet(conn);
    net->head.handlers.on_accept(net->head.handlers.ctx, &conn->head);
    if (status != AS_OK) {
        ucx_conn_fail(conn, AS_ERR_PEER_LOST);
    }
}

static void listener_end(ucx_net_t *net)
{
    while (!ucx_list_is_empty(&net->accepts)) {
        ucx_accept_t *accept = UCX_LIST_OF(net->accepts.next, ucx_accept_t);
        ucx_list_remove(&accept->link);
        ucp_listener_reject(net->ucx_listener, accept->request);
        as_mem_free(accept);
    }
    ucp_listener_destroy(net->ucx_listener);
    net->ucx_listener = NULL;
}

// ---- progress

// Calls back what UCX has finished. True if there was anything.
static bool deliver(ucx_net_t *net)
{
    bool any = false;
    while (!ucx_list_is_empty(&net->accepts)) {
        accept_one(net);
        any = true;
    }
    // One turn over the finished, too: an owner that starts the next when one is done would go on for as
    // long as UCX takes them, and hear nothing meanwhile.
    ucx_list_t turn;
    ucx_list_move(&net->finished, &turn);
    while (!ucx_list_is_empty(&turn)) {
        ucx_op_report(UCX_LIST_OF(turn.next, ucx_op_t));
        any = true;
    }
    // One turn over the dying; callbacks may append to the list, which then waits for the next
    // turn.
    ucx_list_t *last = net->dying.prev;
    for (ucx_list_t *at = net->dying.next, *next; at != &net->dying; at = next) {
        bool is_last = at == last;
        next = at->next;
        any |= ucx_conn_bury(UCX_LIST_OF(at, ucx_conn_t));
        if (is_last) {
            break;
        }
    }
    return any;
}

// An endpoint was slow to close: connections may end without it.
static void on_grace(void *ctx)
{
    ucx_net_t *net = ctx;
    net->grace_runs = false;
    ucx_net_kick(net);
}

// Shared memory cannot be armed while something waits for room in a peer's queue; a peer that takes
// nothing must not cost a core.
static void on_nap(void *ctx)
{
    ucx_net_t *net = ctx;
    ucx_loop_glue_t *glue = net->glue;
    if (!glue->spinning) {
        glue->spinning = true;
        uv_idle_start(&glue->idle, on_idle);
    }
}

static void tick(ucx_net_t *net)
{
    ucx_loop_glue_t *glue = net->glue;
    bool any = false;
    net->ticking = true;
    ucx_batches_send(net);
    // What has ended is reported after each call: a peer that has its bytes asks for more at once,
    // and owners count what is under way.
    for (unsigned i = 0; i < PROGRESS_MAX && ucx_progress(net->worker) > 0; i++) {
        deliver(net);
        ucx_batches_send(net);
        any = true;
    }
    any |= deliver(net);
    ucx_batches_send(net);
    ucx_port_admit(net);
    net->ticking = false;
    if (any) {
        glue->empty_turns = 0;
        return;
    }
    bool busy = !ucx_list_is_empty(&net->inflight) || !ucx_list_is_empty(&net->dying);
    if (++glue->empty_turns < (busy ? SPIN_TURNS_BUSY : SPIN_TURNS)) {
        return;
    }
    bool armed = ucp_worker_arm(net->worker) == UCS_OK;
    if (armed || glue->empty_turns >= SPIN_TURNS_STUCK) {
        glue->spinning = false;
        uv_idle_stop(&glue->idle);
    }
    if (!armed && !glue->spinning) {
        as_timer_start(net->nap, NAP_US);
    }
}

// ---- nets

static as_status_t net_start_worker(ucx_net_t *net)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucx_before_t *before;
    as_status_t status = ucx_doors_before(&before);
    if (status != AS_OK) {
        return status;
    }
    ucs_status_t ucs = ucp_worker_create(net->context, &params, &net->worker);
    if (ucs != UCS_OK) {
        as_mem_free(before);
        AS_ERROR("net", "cannot make a worker: %s", ucs_status_string(ucs));
        return ucx_status(ucs);
    }
    ucx_doors_find(net, before);
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs = ucp_worker_query(net->worker, &attr);
    status = ucs == UCS_OK ? ucx_msg_register(net) : ucx_status(ucs);
    if (status == AS_OK && attr.max_am_header < AS_NET_HEADER_BYTES_MAX) {
        AS_ERROR("net", "a transport takes headers of %zu bytes only, %u are needed",
                 attr.max_am_header, AS_NET_HEADER_BYTES_MAX);
        status = AS_ERR_UNSUPPORTED;
    }
    if (status == AS_OK) {
        status = glue_make(net);
    }
    if (status != AS_OK) {
        ucp_worker_destroy(net->worker);
    }
    return status;
}

as_status_t as_net_alloc_ucx(as_loop_t *loop, const as_net_handlers_t *handlers, as_net_t **net_p)
{
    AS_ASSERT(handlers->on_accept && handlers->on_message && handlers->on_lost);
    ucx_net_t *net = as_mem_zalloc(1, sizeof(*net));
    if (!net) {
        return AS_ERR_NO_MEMORY;
    }
    net->head =
        (as_net_t){.magic = AS_NET_MAGIC, .ops = &ucx_ops, .loop = loop, .handlers = *handlers};
    ucx_list_init(&net->living);
    ucx_list_init(&net->dying);
    ucx_list_init(&net->inflight);
    ucx_list_init(&net->batches);
    ucx_list_init(&net->finished);
    ucx_list_init(&net->orphans);
    ucx_list_init(&net->free_ops);
    ucx_list_init(&net->accepts);
    ucx_list_init(&net->sockets);
    ucx_list_init(&net->half_open);
    as_status_t status = as_timer_alloc(loop, on_grace, net, &net->grace);
    if (status != AS_OK) {
        goto fail_net;
    }
    status = as_timer_alloc(loop, on_nap, net, &net->nap);
    if (status != AS_OK) {
        goto fail_grace;
    }
    status = ucx_context_get(&net->context);
    if (status != AS_OK) {
        goto fail_nap;
    }
    status = net_start_worker(net);
    if (status != AS_OK) {
        goto fail_context;
    }
    *net_p = &net->head;
    return AS_OK;

fail_context:
    ucx_context_put();
fail_nap:
    as_timer_free(net->nap);
fail_grace:
    as_timer_free(net->grace);
fail_net:
    as_mem_free(net);
    return status;
}

// Lets UCX end what was cancelled; then whatever it has not ended is called back by ourselves.
static void net_reap(ucx_net_t *net)
{
    net->reaping = true;
    while (!ucx_list_is_empty(&net->living)) {
        ucx_close(&UCX_LIST_OF(net->living.next, ucx_conn_t)->head);
    }
    uint64_t end_ms = now_ms() + REAP_MS;
    net->ticking = true;
    while (!ucx_list_is_empty(&net->dying) && now_ms() < end_ms) {
        for (ucx_list_t *at = net->dying.next; at != &net->dying; at = at->next) {
            UCX_LIST_OF(at, ucx_conn_t)->user_closed = true; // lost, and not closed by its owner
        }
        while (ucx_progress(net->worker) > 0 && now_ms() < end_ms) {
        }
        deliver(net);
    }
    net->abandoned = true;
    while (!ucx_list_is_empty(&net->finished)) {
        ucx_op_report(UCX_LIST_OF(net->finished.next, ucx_op_t));
    }
    while (!ucx_list_is_empty(&net->inflight)) {
        ucx_op_report(UCX_LIST_OF(net->inflight.next, ucx_op_t));
    }
}

static void ucx_free(as_net_t *head)
{
    ucx_net_t *net = net_of(head);
    AS_ASSERT(!net->ticking && net->mem_count == 0);
    ucx_port_close(net);
    if (net->ucx_listener) {
        listener_end(net);
    }
    net_reap(net);
    glue_close(net->glue);
    net->glue = NULL;
    as_timer_free(net->grace);
    as_timer_free(net->nap);
    ucp_worker_destroy(net->worker);
    while (!ucx_list_is_empty(&net->dying)) { // UCX did not end them in time
        ucx_conn_t *conn = UCX_LIST_OF(net->dying.next, ucx_conn_t);
        ucx_list_remove(&conn->link);
        as_mem_free(conn);
    }
    ucx_mems_unmap(net);
    ucx_context_put();
    for (uint32_t i = 0; i < net->slab_count; i++) {
        as_mem_free(net->slabs[i]);
    }
    net->head.magic = 0;
    as_mem_free(net);
}

// The ports that UCX may use, by the setting of its own; 0, 0: any.
static void port_range(unsigned *first, unsigned *last)
{
    const char *range = getenv("UCX_TCP_PORT_RANGE");
    if (!range || sscanf(range, "%u-%u", first, last) != 2 || *last > UINT16_MAX ||
        *first > *last) {
        *first = *last = 0;
    }
}

// UCX's listener on a port of its own, behind the gate, which is shut.
static as_status_t ucx_listener_start(ucx_net_t *net, struct sockaddr_storage *local, size_t bytes)
{
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)local, .addrlen = (socklen_t)bytes},
        .conn_handler = {.cb = on_connection_request, .arg = net},
    };
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t ucs = UCS_ERR_BUSY;
    unsigned first, last;
    port_range(&first, &last);
    for (unsigned port = first; port <= last && ucs != UCS_OK; port++) {
        ucx_sockaddr_set_port(local, (uint16_t)port);
        ucs = ucp_listener_create(net->worker, &params, &net->ucx_listener);
    }
    if (ucs != UCS_OK) {
        net->ucx_listener = NULL;
        AS_ERROR("net", "UCX cannot listen: %s", ucs_status_string(ucs));
        return ucs == UCS_ERR_BUSY ? AS_ERR_EXISTS : ucx_status(ucs);
    }
    ucs = ucp_listener_query(net->ucx_listener, &attr);
    net->gate = ucs == UCS_OK ? ucx_gate_find(&attr.sockaddr) : -1;
    net->ucx_port = ucx_sockaddr_port(&attr.sockaddr);
    as_status_t status = net->gate >= 0 ? ucx_gate_set(net->gate, NULL, 0) : AS_ERR_UNSUPPORTED;
    if (status != AS_OK) {
        listener_end(net);
    }
    return status;
}

static as_status_t ucx_listen(as_net_t *head, const char *address)
{
    ucx_net_t *net = net_of(head);
    struct sockaddr_storage storage;
    size_t bytes;
    as_status_t status = ucx_resolve(address, true, &storage, &bytes);
    if (status != AS_OK) {
        return status;
    }
    status = ucx_doors_take(net, &storage);
    if (status == AS_OK) {
        status = ucx_listener_make(net, &storage);
    }
    if (status == AS_OK) {
        status = ucx_listener_start(net, &storage, bytes);
        if (status != AS_OK) {
            ucx_port_close(net);
        }
    }
    if (status != AS_OK) {
        AS_ERROR("net", "cannot listen on %s", address);
        return status;
    }
    int host_bytes = (int)(strrchr(address, ':') - address);
    snprintf(net->address, sizeof(net->address), "%.*s:%u", host_bytes, address,
             ucx_sockaddr_port(&net->bound));
    ucx_net_kick(net);
    return AS_OK;
}

static const char *ucx_address(const as_net_t *head)
{
    const ucx_net_t *net = (const ucx_net_t *)head;
    return net->address[0] ? net->address : NULL;
}

static const as_net_ops_t ucx_ops = {
    .free = ucx_free,
    .listen = ucx_listen,
    .address = ucx_address,
    .connect = ucx_connect,
    .close = ucx_close,
    .transport = ucx_transport,
    .piece_bytes = ucx_piece_bytes,
    .send = ucx_send,
    .sendv = ucx_sendv,
    .msg_recv = ucx_msg_recv,
    .mem_alloc = ucx_mem_alloc,
    .mem_free = ucx_mem_free,
    .mem_pack = ucx_mem_pack,
    .rkey_unpack = ucx_rkey_unpack,
    .rkey_free = ucx_rkey_free,
    .rkey_ptr = ucx_rkey_ptr,
    .get = ucx_get,
};
