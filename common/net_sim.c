// SPDX-License-Identifier: Apache-2.0
// The simulated data plane: nets, and what befalls them. Messages are in net_sim_msg.c, connections
// in net_sim_conn.c, events and chance in net_sim_world.c.
//
// Events concern one or two nets. If one of them is killed, the event vanishes; if one is stopped,
// the event waits at that net until it is resumed.
#include "common/net_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/net_sim_impl.h"

sim_net_t *sim_net_find(as_sim_t *sim, uint64_t id)
{
    sim_net_t *net = sim->nets;
    while (net && net->id != id) {
        net = net->next;
    }
    return net;
}

net_event_t *sim_net_event_make(sim_net_t *from, uint64_t to_net, void (*fire)(sim_event_t *event))
{
    net_event_t *event = sim_event_alloc(from->sim, sizeof(*event), fire);
    event->from_net = from->id;
    event->to_net = to_net;
    return event;
}

sim_net_t *sim_net_event_arrive(net_event_t *event)
{
    as_sim_t *sim = event->base.sim;
    sim_net_t *to = sim_net_find(sim, event->to_net);
    sim_net_t *from = sim_net_find(sim, event->from_net);
    if (!to || to->killed || !from || from->killed) {
        return NULL;
    }
    if (to->stopped || from->stopped) {
        sim_park(to->stopped ? &to->waiting : &from->waiting, &event->base);
        return NULL;
    }
    return to;
}

static void sim_free(as_net_t *head)
{
    sim_net_t *net = (sim_net_t *)head;
    as_sim_t *sim = net->sim;
    while (net->conns) {
        sim_close(&net->conns->head);
    }
    net->freeing = true;
    while (net->ops) {
        sim_op_end(net, net->ops, AS_ERR_CANCELLED);
    }
    AS_ASSERT(!net->mems && net->rkey_count == 0 && !net->conns);
    sim_net_t **at = &sim->nets;
    while (*at != net) {
        at = &(*at)->next;
    }
    *at = net->next;
    sim_parked_free(&net->waiting);
    net->head.magic = 0;
    as_mem_free(net);
}

static bool address_is_taken(const as_sim_t *sim, const char *address)
{
    for (const sim_net_t *net = sim->nets; net; net = net->next) {
        if (net->listening && !net->killed && strcmp(net->address, address) == 0) {
            return true;
        }
    }
    return false;
}

static as_status_t sim_listen(as_net_t *head, const char *address)
{
    sim_net_t *net = (sim_net_t *)head;
    const char *colon = strrchr(address, ':');
    size_t name_bytes = strlen(net->name);
    if (!colon || (size_t)(colon - address) != name_bytes ||
        strncmp(address, net->name, name_bytes) != 0) {
        return AS_ERR_INVALID;
    }
    char *end;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (end == colon + 1 || *end || port > 65535) {
        return AS_ERR_INVALID;
    }
    if (port == 0) {
        port = net->sim->port_next++;
    }
    char bound[SIM_ADDRESS_BYTES_MAX];
    snprintf(bound, sizeof(bound), "%s:%lu", net->name, port);
    if (address_is_taken(net->sim, bound)) {
        return AS_ERR_EXISTS;
    }
    memcpy(net->address, bound, sizeof(bound));
    net->listening = true;
    return AS_OK;
}

static const char *sim_address(const as_net_t *head)
{
    const sim_net_t *net = (const sim_net_t *)head;
    return net->listening ? net->address : NULL;
}

static const as_net_ops_t sim_ops = {
    .free = sim_free,
    .listen = sim_listen,
    .address = sim_address,
    .connect = sim_connect,
    .close = sim_close,
    .transport = sim_transport,
    .piece_bytes = sim_piece_bytes,
    .send = sim_send,
    .msg_recv = sim_msg_recv,
    .mem_alloc = sim_mem_alloc,
    .mem_free = sim_mem_free,
    .mem_pack = sim_mem_pack,
    .rkey_unpack = sim_rkey_unpack,
    .rkey_free = sim_rkey_free,
    .rkey_ptr = sim_rkey_ptr,
    .get = sim_get,
};

as_status_t as_net_alloc_sim(as_sim_t *sim, const char *name, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    AS_ASSERT(handlers->on_accept && handlers->on_message && handlers->on_lost);
    if (strlen(name) == 0 || strlen(name) >= SIM_NAME_BYTES_MAX) {
        return AS_ERR_INVALID;
    }
    sim_net_t *net = as_mem_zalloc(1, sizeof(*net));
    if (!net) {
        return AS_ERR_NO_MEMORY;
    }
    net->head = (as_net_t){
        .magic = AS_NET_MAGIC, .ops = &sim_ops, .loop = sim->loop, .handlers = *handlers};
    net->sim = sim;
    net->id = sim->id_next++;
    snprintf(net->name, sizeof(net->name), "%s", name);
    sim_net_t **last = &sim->nets;
    while (*last) {
        last = &(*last)->next;
    }
    *last = net;
    *net_p = &net->head;
    return AS_OK;
}

void as_sim_kill(as_sim_t *sim, as_net_t *head)
{
    sim_net_t *net = (sim_net_t *)head;
    AS_ASSERT(net->sim == sim);
    if (net->killed) {
        return;
    }
    sim_trace_add(sim, net->id, as_loop_now_us(sim->loop));
    net->killed = true;
    sim_parked_free(&net->waiting);
    for (sim_conn_t *conn = net->conns; conn; conn = conn->next) {
        if (conn->state == SIM_OPEN) {
            sim_conn_tell_lost(sim, conn->peer_id, AS_ERR_PEER_LOST);
        }
    }
}

void as_sim_stop(as_sim_t *sim, as_net_t *head)
{
    sim_net_t *net = (sim_net_t *)head;
    AS_ASSERT(net->sim == sim);
    net->stopped = true;
}

void as_sim_resume(as_sim_t *sim, as_net_t *head)
{
    sim_net_t *net = (sim_net_t *)head;
    AS_ASSERT(net->sim == sim);
    net->stopped = false;
    for (sim_event_t *event; (event = sim_unpark(&net->waiting));) {
        sim_event_schedule(event, 1);
    }
}
