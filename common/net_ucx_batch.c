// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX: messages without a payload wait for each other.
//
// A message costs a system call and a wake-up on each side, however small it is. Those that are sent on one
// connection between two looks at the network leave as one, before anything else that is sent on it, so
// their order is kept. Nothing waits longer than to the end of the present turn of the loop.
#include "common/net_batch.h"
#include "common/net_ucx.h"

#include "common/log.h"

as_status_t ucx_batch_add(ucx_conn_t *conn, const void *header, size_t header_bytes)
{
    ucx_net_t *net = ucx_conn_net(conn);
    ucx_op_t *op = conn->batch;
    if (op &&
        as_net_batch_add(op->header, &op->header_bytes, sizeof(op->header), header, header_bytes)) {
        return AS_OK;
    }
    ucx_batch_send(conn);
    if (conn->batches == UCX_CONN_BATCHES_MAX) {
        conn->head.deaf = true;
        return AS_ERR_BUSY;
    }
    as_status_t status = ucx_op_take(conn, NULL, NULL, &op);
    if (status != AS_OK) {
        return status;
    }
    op->batched = true;
    conn->batches++;
    op->header_bytes = 0;
    op->data = NULL;
    op->data_bytes = 0;
    op->offered = false;
    op->iov_count = 0;
    if (!as_net_batch_add(op->header, &op->header_bytes, sizeof(op->header), header,
                          header_bytes)) {
        ucx_op_drop(op);
        return AS_ERR_LIMIT;
    }
    ucx_list_remove(&op->link);
    ucx_list_append(&net->batches, &op->link);
    conn->batch = op;
    ucx_net_kick(net);
    return AS_OK;
}

void ucx_batch_send(ucx_conn_t *conn)
{
    ucx_op_t *op = conn->batch;
    if (!op) {
        return;
    }
    if (!ucx_conn_alive(conn)) {
        ucx_batch_drop(conn);
        return;
    }
    conn->batch = NULL;
    ucx_list_remove(&op->link);
    ucx_list_append(&ucx_conn_net(conn)->inflight, &op->link);
    if (ucx_msg_start(op, UCX_AM_BATCH) != AS_OK) { // their senders were told that they leave
        ucx_conn_fail(conn, AS_ERR_PEER_LOST);
    }
}

void ucx_batch_drop(ucx_conn_t *conn)
{
    if (conn->batch) {
        ucx_op_drop(conn->batch);
        conn->batch = NULL;
    }
}

void ucx_batches_send(ucx_net_t *net)
{
    while (!ucx_list_is_empty(&net->batches)) {
        ucx_batch_send(UCX_LIST_OF(net->batches.next, ucx_op_t)->conn);
    }
}
