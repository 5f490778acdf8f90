// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: messages.
//
// A message is one UCX active message: the header is its header, the payload its data. Several without
// payload may be one (net_ucx_batch.c). Every message asks for the reply endpoint, by which the receiver finds the connection.
#include "common/net_batch.h"
#include "common/net_ucx.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define EAGER_BYTES_MAX        (256u << 10)
#define RDMA_EAGER_BYTES_MAX   (64u << 10)
#define BATCH_HEADER_BYTES_MAX (AS_NET_HEADER_BYTES_MAX - AS_NET_BATCH_LENGTH_BYTES)
#define GREETING_MAGIC         0x47525341u // "ASRG"
#define GREETING_VERSION       2u

// What the accepting side says first. The connecting side is not OPEN before, and sends nothing
// before.
typedef struct greeting {
    uint32_t magic;
    uint32_t version;
} greeting_t;

_Static_assert(sizeof(greeting_t) == 8, "layout on the wire");

typedef struct ucx_msg {
    as_net_msg_in_t in;
    void *data; // bytes, or UCX's descriptor of a rendezvous
    bool rendezvous;
    bool receiving;      // UCX has the descriptor now
    as_net_done_fn done; // of a receive that was a copy: called when the handler has returned
    void *ctx;
} ucx_msg_t;

// ---- messages out

static ucs_status_ptr_t op_request(ucx_op_t *op, unsigned am_id, uint32_t flags)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = ucx_op_on_sent,
        .user_data = op,
        .flags = UCP_AM_SEND_FLAG_REPLY | flags,
        .datatype = UCP_DATATYPE_IOV,
    };
    if (op->iov_count > 0) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        return ucp_am_send_nbx(op->conn->ep, am_id, op->header, op->header_bytes, op->iov,
                               op->iov_count, &param);
    }
    return ucp_am_send_nbx(op->conn->ep, am_id, op->header, op->header_bytes, op->data,
                           op->data_bytes, &param);
}

// A rendezvous costs a turn of both sides, eager a copy at the receiver. Over TCP that copy is the
// cheaper as long as what was received stays in the cache: it takes the place of a checksum's pass
// over memory, and of the copy that UCX makes of a rendezvous' first bytes. What fits into one
// message of UCX's (UCX_TCP_RX_SEG_SIZE) is in order, too.
static uint32_t message_flags(const ucx_op_t *op)
{
    bool eager = op->data_bytes <= RDMA_EAGER_BYTES_MAX ||
                 (op->data_bytes <= EAGER_BYTES_MAX && !ucx_conn_has_rdma(op->conn));
    return eager && !op->offered ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
}

size_t ucx_piece_bytes(const as_conn_t *head)
{
    return ucx_conn_has_rdma((const ucx_conn_t *)head) ? SIZE_MAX : EAGER_BYTES_MAX;
}

// What UCX queues while it connects may be overtaken by what is sent after: it is held back here.
static as_status_t send_or_hold(ucx_op_t *op)
{
    if (op->conn->state == UCX_CONNECTING) {
        ucx_list_remove(&op->link);
        ucx_list_append(&op->conn->held, &op->link);
        return AS_OK;
    }
    return ucx_op_started(op, op_request(op, UCX_AM_MESSAGE, message_flags(op)));
}

as_status_t ucx_msg_start(ucx_op_t *op, unsigned am_id)
{
    return ucx_op_started(op, op_request(op, am_id, UCP_AM_SEND_FLAG_EAGER));
}

as_status_t ucx_send(as_conn_t *head, const as_net_send_params_t *params)
{
    ucx_conn_t *conn = (ucx_conn_t *)head;
    bool is_small = params->header_bytes > 0 && params->header_bytes <= BATCH_HEADER_BYTES_MAX;
    if (params->data_bytes == 0 && !params->done && is_small && conn->state == UCX_OPEN) {
        return ucx_batch_add(conn, params->header, params->header_bytes);
    }
    ucx_batch_send(conn);
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, params->done, params->ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    if (params->header_bytes > 0) {
        memcpy(op->header, params->header, params->header_bytes);
    }
    op->header_bytes = params->header_bytes;
    op->data = params->data;
    op->data_bytes = params->data_bytes;
    op->offered = params->offered;
    op->iov_count = 0;
    return send_or_hold(op);
}

as_status_t ucx_sendv(as_conn_t *head, const as_net_sendv_params_t *params)
{
    ucx_conn_t *conn = (ucx_conn_t *)head;
    ucx_op_t *op;
    ucx_batch_send(conn);
    as_status_t status = ucx_op_take(conn, params->done, params->ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    if (params->header_bytes > 0) {
        memcpy(op->header, params->header, params->header_bytes);
    }
    op->header_bytes = params->header_bytes;
    op->data = NULL;
    op->data_bytes = 0;
    op->offered = false;
    op->iov_count = params->iov_count;
    for (size_t i = 0; i < params->iov_count; i++) {
        op->data_bytes += params->iov[i].bytes;
        op->iov[i] = (ucp_dt_iov_t){(void *)(uintptr_t)params->iov[i].data, params->iov[i].bytes};
    }
    return send_or_hold(op);
}

as_status_t ucx_msg_greet(ucx_conn_t *conn)
{
    const greeting_t greeting = {GREETING_MAGIC, GREETING_VERSION};
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, NULL, NULL, &op);
    if (status != AS_OK) {
        return status;
    }
    memcpy(op->header, &greeting, sizeof(greeting));
    op->header_bytes = sizeof(greeting);
    op->data = NULL;
    op->data_bytes = 0;
    op->offered = false;
    op->iov_count = 0;
    return ucx_msg_start(op, UCX_AM_GREETING);
}

static void conn_opened(ucx_conn_t *conn)
{
    ucx_net_t *net = ucx_conn_net(conn);
    conn->state = UCX_OPEN;
    if (conn->socket) {
        ucx_socket_close(conn->socket);
    }
    while (!ucx_list_is_empty(&conn->held)) {
        ucx_op_t *op = UCX_LIST_OF(conn->held.next, ucx_op_t);
        ucx_list_remove(&op->link);
        ucx_list_append(&net->inflight, &op->link);
        ucs_status_ptr_t request = op_request(op, UCX_AM_MESSAGE, message_flags(op));
        if (UCS_PTR_IS_ERR(request)) {
            ucx_op_finish(op, ucx_status(UCS_PTR_STATUS(request)));
        } else if (!request) {
            ucx_op_finish(op, AS_OK);
        }
    }
}

// ---- messages in

// The living connection that a message came on; NULL: none.
static ucx_conn_t *conn_of(ucx_net_t *net, const ucp_am_recv_param_t *param)
{
    ucx_conn_t *conn = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP
                           ? ucx_conn_find(net, param->reply_ep)
                           : NULL;
    return conn && ucx_conn_alive(conn) ? conn : NULL;
}

// Hands it to the owner. UCX gives no alignment; handlers read structs.
static void hand_over(ucx_msg_t *msg, const void *header, size_t header_bytes, size_t data_bytes)
{
    as_conn_t *conn = msg->in.conn;
    _Alignas(16) unsigned char aligned[AS_NET_HEADER_BYTES_MAX];
    if (header_bytes > 0) {
        memcpy(aligned, header, header_bytes);
    }
    msg->in.msg = (as_net_msg_t){aligned, header_bytes,
                                 msg->rendezvous || data_bytes == 0 ? NULL : msg->data, data_bytes};
    conn->net->handlers.on_message(conn->net->handlers.ctx, conn, &msg->in.msg);
    if (msg->done) {
        msg->done(msg->ctx, ((ucx_conn_t *)conn)->user_closed ? AS_ERR_CANCELLED : AS_OK);
    }
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_bytes, void *data,
                               size_t data_bytes, const ucp_am_recv_param_t *param)
{
    ucx_conn_t *conn = conn_of(arg, param);
    if (!conn) {
        return UCS_OK;
    }
    if (conn->state == UCX_CONNECTING) {
        conn_opened(conn); // the message has overtaken the greeting
    }
    if (header_bytes > AS_NET_HEADER_BYTES_MAX) {
        AS_WARN("net", "message with a header of %zu bytes, limit %u", header_bytes,
                AS_NET_HEADER_BYTES_MAX);
        ucx_conn_fail(conn, AS_ERR_PROTOCOL);
        return UCS_OK;
    }
    ucx_msg_t msg = {.data = data,
                     .rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
    msg.in.conn = &conn->head;
    hand_over(&msg, header, header_bytes, data_bytes);
    return msg.receiving ? UCS_INPROGRESS : UCS_OK;
}

static ucs_status_t on_batch(void *arg, const void *batch, size_t bytes, void *data,
                             size_t data_bytes, const ucp_am_recv_param_t *param)
{
    (void)data;
    (void)data_bytes;
    ucx_conn_t *conn = conn_of(arg, param);
    if (conn && conn->state == UCX_CONNECTING) {
        conn_opened(conn);
    }
    size_t done = 0;
    while (conn && ucx_conn_alive(conn) && done < bytes) {
        ucx_msg_t msg = {.in.conn = &conn->head};
        size_t header_bytes;
        const void *header = as_net_batch_next(batch, bytes, &done, &header_bytes);
        if (!header || header_bytes > AS_NET_HEADER_BYTES_MAX) {
            AS_WARN("net", "malformed batch of messages");
            ucx_conn_fail(conn, AS_ERR_PROTOCOL);
            return UCS_OK;
        }
        hand_over(&msg, header, header_bytes, 0);
    }
    return UCS_OK;
}

static ucs_status_t on_greeting(void *arg, const void *header, size_t header_bytes, void *data,
                                size_t data_bytes, const ucp_am_recv_param_t *param)
{
    (void)data;
    (void)data_bytes;
    ucx_conn_t *conn = conn_of(arg, param);
    if (!conn) {
        return UCS_OK;
    }
    greeting_t greeting = {0, 0};
    memcpy(&greeting, header, header_bytes < sizeof(greeting) ? header_bytes : sizeof(greeting));
    bool connecting = conn->state == UCX_CONNECTING;
    if (greeting.magic != GREETING_MAGIC || greeting.version != GREETING_VERSION) {
        AS_WARN("net", "peer frames its messages by version %u, this is %u: update both together",
                greeting.version, GREETING_VERSION);
        conn->state = UCX_OPEN; // it was reached, and is not of our kind
        ucx_conn_fail(conn, AS_ERR_PROTOCOL);
    } else if (connecting) {
        conn_opened(conn);
    }
    return UCS_OK;
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *user_data)
{
    (void)bytes;
    ucp_request_free(request);
    ucx_op_finish(user_data, ucx_status(status));
}

as_status_t ucx_msg_recv(as_net_msg_t *head, void *buffer, as_net_done_fn done, void *ctx)
{
    ucx_msg_t *msg = (ucx_msg_t *)head;
    ucx_conn_t *conn = (ucx_conn_t *)msg->in.conn;
    if (!msg->rendezvous) {
        if (head->data_bytes > 0) {
            memcpy(buffer, head->data, head->data_bytes);
        }
        msg->done = done;
        msg->ctx = ctx;
        return AS_OK;
    }
    ucx_op_t *op;
    as_status_t status = ucx_op_take(conn, done, ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    op->receiving = true;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = op,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(ucx_conn_net(conn)->worker, msg->data, buffer,
                                                    head->data_bytes, &param);
    msg->receiving = !UCS_PTR_IS_ERR(request);
    return ucx_op_started(op, request);
}

as_status_t ucx_msg_register(ucx_net_t *net)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_AM_MESSAGE,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = net,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(net->worker, &param);
    if (status == UCS_OK) {
        param.id = UCX_AM_GREETING;
        param.cb = on_greeting;
        status = ucp_worker_set_am_recv_handler(net->worker, &param);
    }
    if (status == UCS_OK) {
        param.id = UCX_AM_BATCH;
        param.cb = on_batch;
        status = ucp_worker_set_am_recv_handler(net->worker, &param);
    }
    return ucx_status(status);
}
