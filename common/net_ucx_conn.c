// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: connections and the operations on them, from start to burial.
#include "common/net_ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

// ---- operations

static void on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status);

static bool ops_grow(ucx_net_t *net)
{
    if (net->slab_count == UCX_SLABS_MAX) {
        return false;
    }
    ucx_op_t *slab = as_mem_aligned(64, UCX_OPS_PER_SLAB * sizeof(*slab));
    if (!slab) {
        return false;
    }
    net->slabs[net->slab_count++] = slab;
    for (unsigned i = 0; i < UCX_OPS_PER_SLAB; i++) {
        ucx_list_append(&net->free_ops, &slab[i].link);
    }
    return true;
}

as_status_t ucx_op_take(ucx_conn_t *conn, as_net_done_fn done, void *ctx, ucx_op_t **op_p)
{
    ucx_net_t *net = ucx_conn_net(conn);
    if (!ucx_conn_alive(conn)) {
        return conn->user_closed ? AS_ERR_CANCELLED : conn->lost_status;
    }
    if (conn->ops == UCX_CONN_OPS_MAX || (ucx_list_is_empty(&net->free_ops) && !ops_grow(net))) {
        return AS_ERR_BUSY;
    }
    ucx_op_t *op = UCX_LIST_OF(net->free_ops.prev, ucx_op_t); // the warmest
    ucx_list_remove(&op->link);
    ucx_list_append(&net->inflight, &op->link);
    op->conn = conn;
    op->done = done;
    op->ctx = ctx;
    op->status = AS_OK;
    op->batched = false;
    op->receiving = false;
    op->net = net;
    conn->ops++;
    *op_p = op;
    return AS_OK;
}

void ucx_op_drop(ucx_op_t *op)
{
    op->conn->ops--;
    op->conn->batches -= op->batched;
    ucx_list_remove(&op->link);
    ucx_list_append(&op->net->free_ops, &op->link);
}

void ucx_op_finish(ucx_op_t *op, as_status_t status)
{
    ucx_net_t *net = op->net;
    if (net->abandoned) {
        return;
    }
    if (!op->conn) { // an orphan

        ucx_list_remove(&op->link);
        ucx_list_append(&net->free_ops, &op->link);
        return;
    }
    if (!op->done) {
        ucx_op_drop(op);
        return;
    }
    op->status = status;
    ucx_list_remove(&op->link);
    ucx_list_append(&net->finished, &op->link);
    ucx_net_kick(net);
}

void ucx_op_on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
    ucx_op_finish(user_data, ucx_status(status));
}

as_status_t ucx_op_started(ucx_op_t *op, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_ERR(request)) {
        ucs_status_t status = UCS_PTR_STATUS(request);
        AS_DEBUG("net", "operation not started: %s", ucs_status_string(status));
        ucx_op_drop(op);
        return ucx_status(status);
    }
    if (!request) {
        ucx_op_finish(op, AS_OK);
    } else {
        ucx_net_kick(ucx_conn_net(op->conn)); // UCX wants to be progressed before the loop sleeps
    }
    return AS_OK;
}

static as_status_t op_outcome(const ucx_op_t *op)
{
    const ucx_conn_t *conn = op->conn;
    if (conn->user_closed) {
        return AS_ERR_CANCELLED;
    }
    return op->status != AS_OK && conn->state >= UCX_FAILED ? conn->lost_status : op->status;
}

void ucx_op_report(ucx_op_t *op)
{
    as_net_done_fn done = op->done;
    void *ctx = op->ctx;
    as_status_t status = op_outcome(op);
    ucx_op_drop(op);
    if (done) {
        done(ctx, status);
    }
}

// Calls back what UCX does not end; see the head of net_ucx.h.
static void conn_orphan_ops(ucx_conn_t *conn)
{
    ucx_net_t *net = ucx_conn_net(conn);
    bool peer_is_gone = conn->state >= UCX_FAILED;
    ucx_list_t ending; // callbacks may start operations elsewhere, which changes the list in flight
    ucx_list_init(&ending);
    for (ucx_list_t *at = net->inflight.next, *next; at != &net->inflight; at = next) {
        next = at->next;
        ucx_op_t *op = UCX_LIST_OF(at, ucx_op_t);
        if (op->conn == conn && (!op->receiving || peer_is_gone)) {
            ucx_list_remove(at);
            ucx_list_append(&ending, at);
        }
    }
    while (!ucx_list_is_empty(&ending)) {
        ucx_op_t *op = UCX_LIST_OF(ending.next, ucx_op_t);
        op->status = AS_ERR_CANCELLED;
        as_status_t status = op_outcome(op);
        ucx_list_remove(&op->link);
        ucx_list_append(&net->orphans, &op->link);
        op->conn = NULL;
        conn->ops--;
        if (op->done) {
            op->done(op->ctx, status);
        }
    }
}

// ---- connections

static ucx_conn_t **bucket_of(ucx_net_t *net, ucp_ep_h ep)
{
    uint64_t mixed = (uint64_t)(uintptr_t)ep * 0x9e3779b97f4a7c15ull;
    return &net->buckets[(mixed >> 32) & (UCX_EP_BUCKETS - 1)];
}

ucx_conn_t *ucx_conn_find(ucx_net_t *net, ucp_ep_h ep)
{
    ucx_conn_t *conn = *bucket_of(net, ep);
    while (conn && conn->ep != ep) {
        conn = conn->bucket_next;
    }
    return conn;
}

static void conn_unhash(ucx_conn_t *conn)
{
    ucx_conn_t **at = bucket_of(ucx_conn_net(conn), conn->ep);
    while (*at != conn) {
        at = &(*at)->bucket_next;
    }
    *at = conn->bucket_next;
}

static void conn_set_dying(ucx_conn_t *conn, bool dying)
{
    ucx_net_t *net = ucx_conn_net(conn);
    ucx_list_remove(&conn->link);
    ucx_list_append(dying ? &net->dying : &net->living, &conn->link);
    conn->dying = dying;
}

as_status_t ucx_conn_make(ucx_net_t *net, ucx_conn_t **conn_p)
{
    if (net->conn_count == UCX_CONNS_MAX) {
        AS_WARN("net", "connection refused: %u are open", net->conn_count);
        return AS_ERR_BUSY;
    }
    ucx_conn_t *conn = as_mem_zalloc(1, sizeof(*conn));
    if (!conn) {
        return AS_ERR_NO_MEMORY;
    }
    conn->head.magic = AS_CONN_MAGIC;
    conn->head.net = &net->head;
    ucx_list_init(&conn->held);
    ucx_list_append(&net->living, &conn->link);
    net->conn_count++;
    *conn_p = conn;
    return AS_OK;
}

void ucx_conn_drop(ucx_conn_t *conn)
{
    ucx_list_remove(&conn->link);
    ucx_conn_net(conn)->conn_count--;
    ucx_guest_leave(ucx_conn_net(conn), &conn->guest);
    conn->head.magic = 0;
    as_mem_free(conn);
}

as_status_t ucx_conn_begin(ucx_conn_t *conn, ucp_ep_params_t *params)
{
    ucx_net_t *net = ucx_conn_net(conn);
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_endpoint_error;
    params->err_handler.arg = conn;
    ucs_status_t status = ucp_ep_create(net->worker, params, &conn->ep);
    if (status != UCS_OK) {
        AS_INFO("net", "cannot make an endpoint: %s", ucs_status_string(status));
        conn->ep = NULL;
        return ucx_status(status);
    }
    ucx_conn_t **bucket = bucket_of(net, conn->ep);
    conn->bucket_next = *bucket;
    *bucket = conn;
    ucx_net_kick(net);
    return AS_OK;
}

as_status_t ucx_conn_join(ucx_conn_t *conn, const struct sockaddr_storage *to,
                          const struct sockaddr_storage *from)
{
    socklen_t bytes =
        to->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (const struct sockaddr *)to, .addrlen = bytes},
        .local_sockaddr = {.addr = (const struct sockaddr *)from, .addrlen = bytes},
    };
    return ucx_conn_begin(conn, &params);
}

void ucx_conn_fail(ucx_conn_t *conn, as_status_t status)
{
    if (conn->state >= UCX_FAILED) {
        return;
    }
    conn->lost_status = conn->state == UCX_CONNECTING ? AS_ERR_UNREACHABLE : status;
    conn->state = UCX_FAILED;
    if (!conn->dying) {
        conn_set_dying(conn, true);
    }
    ucx_net_kick(ucx_conn_net(conn));
}

static void on_endpoint_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    ucx_conn_t *conn = arg;
    AS_DEBUG("net", "connection failed: %s", ucs_status_string(status));
    ucx_conn_fail(conn, AS_ERR_PEER_LOST);
}

void ucx_close(as_conn_t *head)
{
    ucx_conn_t *conn = (ucx_conn_t *)head;
    AS_ASSERT(!conn->user_closed);
    if (ucx_conn_alive(conn)) {
        ucx_batch_send(conn);
    }
    conn->user_closed = true;
    if (!conn->dying) {
        conn_set_dying(conn, true);
    }
    ucx_net_kick(ucx_conn_net(conn));
}

// The endpoint goes: at once, or UCX's request is polled in later turns.
static void conn_close_endpoint(ucx_conn_t *conn)
{
    ucx_net_t *net = ucx_conn_net(conn);
    if (!conn->ep_closing) {
        const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                           .flags = UCP_EP_CLOSE_FLAG_FORCE};
        conn_unhash(conn);
        conn->ep_closing_us = as_loop_now_us(net->head.loop);
        conn->ep_closing = ucp_ep_close_nbx(conn->ep, &param);
        if (!UCS_PTR_IS_PTR(conn->ep_closing)) {
            conn->ep_closing = NULL;
            conn->ep = NULL;
        }
    } else if (ucp_request_check_status(conn->ep_closing) != UCS_INPROGRESS) {
        ucp_request_free(conn->ep_closing);
        conn->ep_closing = NULL;
        conn->ep = NULL;
    }
}

// True when UCX has had its time; else sees to it that the loop comes back when it has.
static bool conn_grace_is_over(const ucx_conn_t *conn)
{
    ucx_net_t *net = ucx_conn_net(conn);
    if (as_loop_now_us(net->head.loop) - conn->ep_closing_us >= UCX_GRACE_US) {
        return true;
    }
    if (!net->grace_runs && !net->reaping) {
        net->grace_runs = true;
        as_timer_start(net->grace, UCX_GRACE_US);
    }
    return false;
}

bool ucx_conn_bury(ucx_conn_t *conn)
{
    ucx_net_t *net = ucx_conn_net(conn);
    if (conn->socket) {
        ucx_socket_close(conn->socket);
    }
    ucx_batch_drop(conn);
    while (!ucx_list_is_empty(&conn->held)) {
        ucx_op_finish(UCX_LIST_OF(conn->held.next, ucx_op_t), AS_ERR_CANCELLED);
    }
    if (conn->ep) {
        conn_close_endpoint(conn);
    }
    if (conn->ops > 0 && conn_grace_is_over(conn)) {
        conn_orphan_ops(conn);
    }
    if (conn->ops > 0) {
        return false;
    }
    if (conn->user_closed) {
        if (conn->ep) {
            return false;
        }
        ucx_conn_drop(conn);
        return true;
    }
    if (conn->ep && !conn_grace_is_over(conn)) {
        return false;
    }
    conn->state = UCX_REPORTED;
    conn_set_dying(conn, false);
    net->head.handlers.on_lost(net->head.handlers.ctx, &conn->head, conn->lost_status);
    return true;
}

as_status_t ucx_connect(as_net_t *head, const char *address, as_conn_t **conn_p)
{
    ucx_net_t *net = (ucx_net_t *)head;
    if (net->reaping) {
        return AS_ERR_CANCELLED;
    }
    struct sockaddr_storage storage;
    size_t bytes;
    as_status_t status = ucx_resolve(address, false, &storage, &bytes);
    if (status == AS_OK) {
        status = ucx_doors_take(net, &storage);
    }
    if (status != AS_OK) {
        return status;
    }
    ucx_conn_t *conn;
    ucx_socket_t *socket;
    status = ucx_conn_make(net, &conn);
    if (status != AS_OK) {
        return status;
    }
    status = ucx_socket_make(net, &storage, &socket);
    if (status != AS_OK) {
        ucx_conn_drop(conn);
        return status;
    }
    ucx_socket_dial(socket, conn);
    *conn_p = &conn->head;
    return AS_OK;
}

// UCX 1.13 tells an endpoint's transports only in the text that it prints: lines with "
// <n>:<transport>/<device>".
const char *ucx_transport(const as_conn_t *head)
{
    ucx_conn_t *conn = (ucx_conn_t *)head;
    if (conn->transport[0] || !ucx_conn_alive(conn) || conn->state != UCX_OPEN) {
        return conn->transport;
    }
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *stream = open_memstream(&text, &text_bytes);
    if (!stream) {
        return conn->transport;
    }
    ucp_ep_print_info(conn->ep, stream);
    fclose(stream);
    for (const char *at = text; (at = strstr(at, "lane[")); at++) {
        char name[24];
        if (sscanf(at, "lane[%*u]: %*u:%23[^/\n]/", name) != 1 || strstr(conn->transport, name)) {
            continue;
        }
        size_t used = strlen(conn->transport);
        snprintf(conn->transport + used, sizeof(conn->transport) - used, "%s%s", used ? " " : "",
                 name);
    }
    as_mem_free(text);
    return conn->transport;
}

bool ucx_conn_has_rdma(const ucx_conn_t *conn)
{
    const char *transport = as_conn_transport(&conn->head);
    return strstr(transport, "rc_") || strstr(transport, "dc_");
}
