// SPDX-License-Identifier: Apache-2.0
// The simulated data plane: connections and the operations on them.
//
// A connection's other end is named by id. CONNECTING holds back what is sent. The news that the
// other end has gone takes a few milliseconds, as the real one does; it is the network's news, so
// it reaches the owner whatever became of the other node.
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/net_sim_impl.h"

#define CONN_OPS_MAX 1024u // as the real one: its callers must meet BUSY
#define LOST_US_MIN  1000u // from the end of a node to its peers' notice; measured with UCX: 1-7 ms
#define LOST_US_MAX  7000u

sim_conn_t *sim_conn_find(sim_net_t *net, uint64_t id)
{
    sim_conn_t *conn = net ? net->conns : NULL;
    while (conn && conn->id != id) {
        conn = conn->next;
    }
    return conn;
}

sim_conn_t *sim_conn_find_anywhere(as_sim_t *sim, uint64_t id)
{
    sim_conn_t *conn = NULL;
    for (sim_net_t *net = sim->nets; net && !conn; net = net->next) {
        conn = sim_conn_find(net, id);
    }
    return conn;
}

sim_op_t *sim_op_find(sim_net_t *net, uint64_t id)
{
    sim_op_t *op = net ? net->ops : NULL;
    while (op && op->id != id) {
        op = op->next;
    }
    return op;
}

uint64_t sim_link_delay_us(sim_conn_t *conn, size_t bytes)
{
    as_sim_t *sim = sim_conn_net(conn)->sim;
    uint64_t delay_us = sim_delay_us(sim);
    uint64_t rate = sim->faults.bandwidth_bytes_per_s;
    if (rate == 0) {
        return delay_us;
    }
    uint64_t now_us = as_loop_now_us(sim->loop);
    uint64_t begin_us = conn->link_free_us > now_us ? conn->link_free_us : now_us;
    conn->link_free_us = begin_us + (uint64_t)((double)bytes * 1e6 / (double)rate);
    return conn->link_free_us - now_us + delay_us;
}

uint64_t sim_link_busy_us(const sim_conn_t *conn)
{
    uint64_t now_us = as_loop_now_us(sim_conn_net(conn)->sim->loop);
    return conn->link_free_us > now_us ? conn->link_free_us - now_us : 0;
}

// ---- operations

as_status_t sim_op_make(sim_conn_t *conn, as_net_done_fn done, void *ctx, sim_op_t **op_p)
{
    sim_net_t *net = sim_conn_net(conn);
    if (conn->state == SIM_LOST) {
        return conn->lost_status;
    }
    if (conn->ops == CONN_OPS_MAX) {
        return AS_ERR_BUSY;
    }
    sim_op_t *op = as_mem_zalloc(1, sizeof(*op));
    if (!op) {
        return AS_ERR_NO_MEMORY;
    }
    op->id = net->sim->id_next++;
    op->conn_id = conn->id;
    op->done = done;
    op->ctx = ctx;
    sim_op_t **last = &net->ops;
    while (*last) {
        last = &(*last)->next;
    }
    *last = op; // in order of start: operations that end together end in that order
    conn->ops++;
    *op_p = op;
    return AS_OK;
}

void sim_op_end(sim_net_t *net, sim_op_t *op, as_status_t status)
{
    sim_op_t **at = &net->ops;
    while (*at != op) {
        at = &(*at)->next;
    }
    *at = op->next;
    sim_conn_t *conn = sim_conn_find(net, op->conn_id);
    if (conn) {
        conn->ops--;
    }
    as_net_done_fn done = op->done;
    void *ctx = op->ctx;
    as_mem_free(op);
    if (done && (!net->killed || net->freeing)) {
        done(ctx, status);
    }
}

static void fire_end(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    sim_net_t *net = sim_net_event_arrive(event);
    sim_op_t *op = sim_op_find(net, event->op_id);
    if (op) {
        sim_op_end(net, op, op->status);
    }
}

void sim_op_end_later(sim_net_t *net, sim_op_t *op, as_status_t status, uint64_t delay_us)
{
    op->status = status;
    op->ended = true;
    net_event_t *event = sim_net_event_make(net, net->id, fire_end);
    event->op_id = op->id;
    sim_event_schedule(&event->base, delay_us);
}

// ---- connections

static sim_conn_t *conn_make(sim_net_t *net)
{
    sim_conn_t *conn = sim_must_alloc(sizeof(*conn));
    conn->head.magic = AS_CONN_MAGIC;
    conn->head.net = &net->head;
    conn->id = net->sim->id_next++;
    sim_conn_t **last = &net->conns;
    while (*last) {
        last = &(*last)->next;
    }
    *last = conn;
    return conn;
}

static void fire_lost(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    sim_net_t *net = sim_net_event_arrive(event);
    sim_conn_t *conn = sim_conn_find(net, event->conn_id);
    if (!conn || conn->state == SIM_LOST) {
        return;
    }
    as_status_t status = conn->state == SIM_CONNECTING ? AS_ERR_UNREACHABLE : event->status;
    uint64_t id = conn->id;
    conn->state = SIM_LOST;
    conn->lost_status = status;
    sim_parked_free(&conn->held);
    for (sim_op_t *op = net->ops; op;) {
        if (op->conn_id == id) {
            sim_op_end(net, op, op->ended ? op->status : status);
            op = net->ops; // the callback may have changed the list
        } else {
            op = op->next;
        }
    }
    conn = sim_conn_find(net, id); // a callback may have closed it
    if (conn) {
        net->head.handlers.on_lost(net->head.handlers.ctx, &conn->head, status);
    }
}

// The peer of a connection that has ended learns of it. The news is the network's, not the ended
// node's.
void sim_conn_tell_lost(as_sim_t *sim, uint64_t conn_id, as_status_t status)
{
    sim_conn_t *conn = sim_conn_find_anywhere(sim, conn_id);
    if (!conn) {
        return;
    }
    sim_net_t *net = sim_conn_net(conn);
    net_event_t *event = sim_net_event_make(net, net->id, fire_lost);
    event->conn_id = conn_id;
    event->status = status;
    sim_event_schedule(&event->base,
                       LOST_US_MIN + as_sim_random(sim) % (LOST_US_MAX - LOST_US_MIN));
}

void sim_conn_transmit(sim_conn_t *conn, net_event_t *event)
{
    sim_net_t *net = sim_conn_net(conn);
    sim_conn_t *peer = sim_conn_find_anywhere(net->sim, conn->peer_id);
    uint64_t delay_us =
        sim_link_delay_us(conn, event->header_bytes + (event->base.owned ? event->data_bytes : 0));
    bool lost = sim_chance(net->sim, net->sim->faults.loss_ppm);
    if (!peer || lost) {
        sim_op_t *op = lost ? sim_op_find(net, event->other_op_id) : NULL;
        if (op && !op->ended) {
            sim_op_end_later(net, op, AS_OK, delay_us);
        }
        sim_event_free(&event->base);
        return;
    }
    event->to_net = sim_conn_net(peer)->id;
    event->conn_id = peer->id;
    sim_event_schedule(&event->base, delay_us);
}

static void fire_accepted(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    sim_net_t *net = sim_net_event_arrive(event);
    if (event->base.kept) {
        return;
    }
    sim_conn_t *conn = sim_conn_find(net, event->conn_id);
    if (!conn || conn->state != SIM_CONNECTING) {
        sim_conn_tell_lost(event->base.sim, event->other_op_id, AS_ERR_PEER_LOST);
        return;
    }
    conn->state = SIM_OPEN;
    conn->peer_id = event->other_op_id;
    for (net_event_t *held; (held = (net_event_t *)sim_unpark(&conn->held));) {
        sim_op_t *op = held->base.owned ? sim_op_find(net, held->other_op_id) : NULL;
        if (op) { // its bytes travel with it
            sim_op_end_later(net, op, AS_OK, 1);
        }
        sim_conn_transmit(conn, held);
    }
}

static void fire_connect(sim_event_t *base)
{
    net_event_t *event = (net_event_t *)base;
    as_sim_t *sim = event->base.sim;
    sim_net_t *server = sim->nets;
    while (server &&
           (server->killed || !server->listening || strcmp(server->address, event->target) != 0)) {
        server = server->next;
    }
    if (!server) {
        sim_conn_tell_lost(sim, event->conn_id, AS_ERR_UNREACHABLE);
        return;
    }
    event->to_net = server->id;
    if (!sim_net_event_arrive(event)) {
        return;
    }
    sim_conn_t *client = sim_conn_find_anywhere(sim, event->conn_id);
    if (!client) {
        return;
    }
    sim_conn_t *conn = conn_make(server);
    conn->state = SIM_OPEN;
    conn->peer_id = client->id;
    net_event_t *accepted = sim_net_event_make(server, sim_conn_net(client)->id, fire_accepted);
    accepted->conn_id = client->id;
    accepted->other_op_id = conn->id;
    sim_event_schedule(&accepted->base, sim_delay_us(sim));
    server->head.handlers.on_accept(server->head.handlers.ctx, &conn->head);
}

as_status_t sim_connect(as_net_t *head, const char *address, as_conn_t **conn_p)
{
    sim_net_t *net = (sim_net_t *)head;
    if (strlen(address) >= SIM_ADDRESS_BYTES_MAX || !strchr(address, ':')) {
        return AS_ERR_INVALID;
    }
    sim_conn_t *conn = conn_make(net);
    net_event_t *event = sim_net_event_make(net, net->id, fire_connect);
    event->conn_id = conn->id;
    snprintf(event->target, sizeof(event->target), "%s", address);
    sim_event_schedule(&event->base, sim_delay_us(net->sim));
    *conn_p = &conn->head;
    return AS_OK;
}

void sim_close(as_conn_t *head)
{
    sim_conn_t *conn = (sim_conn_t *)head;
    sim_net_t *net = sim_conn_net(conn);
    for (sim_op_t *op = net->ops; op; op = op->next) {
        if (op->conn_id == conn->id) {
            sim_op_end_later(net, op, AS_ERR_CANCELLED, 0);
        }
    }
    if (conn->state == SIM_OPEN && !net->killed) {
        sim_conn_tell_lost(net->sim, conn->peer_id, AS_ERR_PEER_LOST);
    }
    sim_conn_t **at = &net->conns;
    while (*at != conn) {
        at = &(*at)->next;
    }
    *at = conn->next;
    sim_parked_free(&conn->held);
    conn->head.magic = 0;
    as_mem_free(conn);
}

const char *sim_transport(const as_conn_t *head)
{
    return ((const sim_conn_t *)head)->state == SIM_OPEN ? "sim" : "";
}

size_t sim_piece_bytes(const as_conn_t *head)
{
    return sim_conn_net((const sim_conn_t *)head)->sim->piece_bytes;
}
