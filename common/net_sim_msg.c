// SPDX-License-Identifier: Apache-2.0
// The simulated data plane: messages, registered memory and one-sided reads.
//
// A message of up to EAGER_BYTES_MAX payload travels with its bytes and is done for its sender at
// once, a piece when it has left. What is larger is offered first; the bytes are copied from the
// sender's live memory when they come to the receiver that took them, and the sender is done after
// that. A message that is lost is
// done for its sender. A one-sided read copies from the live memory of the other node when it is
// delivered, so a store that reuses memory under a reader is found out.
#include <string.h>

#include "common/mem.h"
#include "common/net_sim_impl.h"

#define EAGER_BYTES_MAX 4096u
#define PAGE_BYTES      4096u
#define RKEY_MAGIC      0x4d495341u // "ASIM"

typedef struct sim_rkey_packed {
    uint64_t magic;
    uint64_t mem_id;
    uint64_t address;
    uint64_t bytes;
} sim_rkey_packed_t;

typedef struct sim_msg {
    as_net_msg_in_t in;
    const net_event_t *event;
} sim_msg_t;

static void fire_message(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    sim_net_t *net = sim_net_event_arrive(event);
    sim_conn_t *conn = sim_conn_find(net, event->conn_id);
    if (!conn || conn->state != SIM_OPEN) {
        return;
    }
    sim_trace_add(net->sim, event->header_bytes, event->data_bytes);
    sim_msg_t msg = {.event = event};
    msg.in.conn = &conn->head;
    msg.in.msg =
        (as_net_msg_t){event->header, event->header_bytes, event->base.owned, event->data_bytes};
    sim_corrupt(net->sim, event->base.owned, event->base.owned ? event->data_bytes : 0);
    net->head.handlers.on_message(net->head.handlers.ctx, &conn->head, &msg.in.msg);
    sim_net_t *from = sim_net_find(base->sim, event->from_net);
    sim_op_t *op = msg.in.taken ? NULL : sim_op_find(from, event->other_op_id);
    if (op && !op->ended) { // offered and not taken
        sim_op_end_later(from, op, AS_OK, sim_delay_us(base->sim));
    }
}

as_status_t sim_send(as_conn_t *head, const as_net_send_params_t *params)
{
    sim_conn_t *conn = (sim_conn_t *)head;
    sim_net_t *net = sim_conn_net(conn);
    if (conn->state == SIM_LOST) {
        return conn->lost_status;
    }
    sim_op_t *op = NULL;
    as_status_t status = params->done ? sim_op_make(conn, params->done, params->ctx, &op) : AS_OK;
    if (status != AS_OK) {
        return status;
    }
    net_event_t *event = sim_net_event_make(net, 0, fire_message);
    event->header_bytes = params->header_bytes;
    event->data_bytes = params->data_bytes;
    if (params->header_bytes > 0) {
        memcpy(event->header, params->header, params->header_bytes);
    }
    bool is_piece = params->data_bytes <= net->sim->piece_bytes && net->sim->piece_bytes < SIZE_MAX;
    if (params->offered || (params->data_bytes > EAGER_BYTES_MAX && !is_piece)) {
        op->data = params->data;
        op->bytes = params->data_bytes;
        event->other_op_id = op->id;
    } else {
        if (params->data_bytes > 0) {
            event->base.owned = sim_must_alloc(params->data_bytes);
            memcpy(event->base.owned, params->data, params->data_bytes);
        }
        if (op && conn->state == SIM_CONNECTING) {
            event->other_op_id = op->id;
        } else if (op && params->data_bytes <= EAGER_BYTES_MAX) {
            sim_op_end_later(net, op, AS_OK, 1);
        }
    }
    if (conn->state == SIM_CONNECTING) {
        sim_park(&conn->held, &event->base);
    } else {
        bool leaves = event->base.owned && params->data_bytes > EAGER_BYTES_MAX;
        sim_conn_transmit(conn, event);
        if (leaves) {
            sim_op_end_later(net, op, AS_OK, sim_link_busy_us(conn) + 1);
        }
    }
    return AS_OK;
}

static void fire_data(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    sim_net_t *net = sim_net_event_arrive(event);
    sim_net_t *from = sim_net_find(base->sim, event->from_net);
    sim_op_t *receive = sim_op_find(net, event->op_id);
    sim_op_t *send = sim_op_find(from, event->other_op_id);
    if (!receive || receive->ended || !send || send->ended) {
        return; // one side has closed; the other is told
    }
    memcpy(receive->buffer, send->data, receive->bytes);
    sim_corrupt(base->sim, receive->buffer, receive->bytes);
    sim_op_end_later(from, send, AS_OK, sim_delay_us(base->sim));
    sim_op_end(net, receive, AS_OK);
}

as_status_t sim_msg_recv(as_net_msg_t *head, void *buffer, as_net_done_fn done, void *ctx)
{
    sim_msg_t *msg = (sim_msg_t *)head;
    sim_conn_t *conn = (sim_conn_t *)msg->in.conn;
    sim_net_t *net = sim_conn_net(conn);
    sim_op_t *op;
    as_status_t status = sim_op_make(conn, done, ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    op->buffer = buffer;
    op->bytes = head->data_bytes;
    if (head->data || head->data_bytes == 0) {
        if (head->data_bytes > 0) {
            memcpy(buffer, head->data, head->data_bytes);
        }
        sim_op_end_later(net, op, AS_OK, 0);
        return AS_OK;
    }
    sim_net_t *from = sim_net_find(net->sim, msg->event->from_net);
    sim_conn_t *sender = sim_conn_find(from, conn->peer_id);
    if (sender) { // else the sender has closed, and the loss of the connection ends the operation
        net_event_t *event = sim_net_event_make(from, net->id, fire_data);
        event->op_id = op->id;
        event->other_op_id = msg->event->other_op_id;
        sim_event_schedule(&event->base,
                           sim_delay_us(net->sim) + sim_link_delay_us(sender, op->bytes));
    }
    return AS_OK;
}

// ---- memory

as_status_t sim_mem_alloc(as_net_t *head, size_t bytes, void **memory_p, as_net_mem_t **mem_p)
{
    sim_net_t *net = (sim_net_t *)head;
    sim_mem_t *mem = as_mem_zalloc(1, sizeof(*mem));
    if (!mem) {
        return AS_ERR_NO_MEMORY;
    }
    mem->memory = as_mem_aligned(PAGE_BYTES, (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    if (!mem->memory) {
        as_mem_free(mem);
        return AS_ERR_NO_MEMORY;
    }
    memset(mem->memory, 0, bytes);
    mem->head.ops = head->ops;
    mem->net = net;
    mem->id = net->sim->id_next++;
    mem->bytes = bytes;
    mem->next = net->mems;
    net->mems = mem;
    *memory_p = mem->memory;
    *mem_p = &mem->head;
    return AS_OK;
}

void sim_mem_free(as_net_mem_t *head)
{
    sim_mem_t *mem = (sim_mem_t *)head;
    sim_mem_t **at = &mem->net->mems;
    while (*at != mem) {
        at = &(*at)->next;
    }
    *at = mem->next;
    as_mem_free(mem->memory);
    as_mem_free(mem);
}

as_status_t sim_mem_pack(const as_net_mem_t *head, void *rkey, size_t *rkey_bytes_p)
{
    const sim_mem_t *mem = (const sim_mem_t *)head;
    const sim_rkey_packed_t packed = {RKEY_MAGIC, mem->id, (uint64_t)(uintptr_t)mem->memory,
                                      mem->bytes};
    memcpy(rkey, &packed, sizeof(packed));
    *rkey_bytes_p = sizeof(packed);
    return AS_OK;
}

as_status_t sim_rkey_unpack(as_conn_t *head, const void *rkey_bytes, size_t byte_count,
                            as_net_rkey_t **rkey_p)
{
    sim_conn_t *conn = (sim_conn_t *)head;
    sim_rkey_packed_t packed;
    if (byte_count != sizeof(packed)) {
        return AS_ERR_PROTOCOL;
    }
    memcpy(&packed, rkey_bytes, sizeof(packed));
    if (packed.magic != RKEY_MAGIC) {
        return AS_ERR_PROTOCOL;
    }
    if (conn->state != SIM_OPEN) {
        return AS_ERR_PEER_LOST;
    }
    sim_rkey_t *rkey = as_mem_zalloc(1, sizeof(*rkey));
    if (!rkey) {
        return AS_ERR_NO_MEMORY;
    }
    rkey->head.ops = head->net->ops;
    rkey->net = sim_conn_net(conn);
    rkey->mem_id = packed.mem_id;
    rkey->address = packed.address;
    rkey->bytes = packed.bytes;
    rkey->net->rkey_count++;
    if (rkey->net->sim->onesided) {
        head->caps |= AS_NET_CAP_ONESIDED;
    }
    *rkey_p = &rkey->head;
    return AS_OK;
}

void sim_rkey_free(as_net_rkey_t *head)
{
    sim_rkey_t *rkey = (sim_rkey_t *)head;
    rkey->net->rkey_count--;
    as_mem_free(rkey);
}

as_status_t sim_rkey_ptr(as_net_rkey_t *head, uint64_t remote_address, const void **pointer_p)
{
    (void)head;
    (void)remote_address;
    (void)pointer_p;
    return AS_ERR_UNSUPPORTED;
}

static void fire_get(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    sim_net_t *net = sim_net_event_arrive(event);
    sim_op_t *op = sim_op_find(net, event->op_id);
    if (!op || op->ended) {
        return;
    }
    sim_net_t *from = sim_net_find(base->sim, event->from_net);
    const sim_mem_t *mem = from->mems;
    while (mem && mem->id != event->mem_id) {
        mem = mem->next;
    }
    if (!mem) {
        sim_op_end(net, op, AS_ERR_PEER_LOST);
        return;
    }
    memcpy(op->buffer, mem->memory + (event->address - (uint64_t)(uintptr_t)mem->memory),
           op->bytes);
    sim_corrupt(base->sim, op->buffer, op->bytes);
    sim_op_end(net, op, AS_OK);
}

as_status_t sim_get(as_conn_t *head, const as_net_get_params_t *params)
{
    sim_conn_t *conn = (sim_conn_t *)head;
    sim_net_t *net = sim_conn_net(conn);
    const sim_rkey_t *rkey = (const sim_rkey_t *)params->rkey;
    uint64_t offset = params->remote_address - rkey->address;
    if (params->remote_address < rkey->address || params->bytes > rkey->bytes ||
        offset > rkey->bytes - params->bytes) {
        return AS_ERR_INVALID;
    }
    if (!net->sim->onesided) {
        return AS_ERR_UNSUPPORTED;
    }
    sim_op_t *op;
    as_status_t status = sim_op_make(conn, params->done, params->ctx, &op);
    if (status != AS_OK) {
        return status;
    }
    op->buffer = params->buffer;
    op->bytes = params->bytes;
    sim_conn_t *peer = sim_conn_find_anywhere(net->sim, conn->peer_id);
    if (peer) { // else the loss of the connection, which is on its way, ends the read
        net_event_t *event = sim_net_event_make(sim_conn_net(peer), net->id, fire_get);
        event->op_id = op->id;
        event->mem_id = rkey->mem_id;
        event->address = params->remote_address;
        sim_event_schedule(&event->base,
                           sim_delay_us(net->sim) + sim_link_delay_us(peer, op->bytes));
    }
    return AS_OK;
}
