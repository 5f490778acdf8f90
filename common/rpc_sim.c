// SPDX-License-Identifier: Apache-2.0
// Remote calls over the simulated network: any protobuf-c service, in one process, in virtual time.
//
// Requests and replies cross as packed bytes, with the delay and loss of messages. A lost one
// leaves the call to its deadline, and so does a host that is down: it neither sends nor receives.
// A host that is up without a server at the address refuses (AS_ERR_UNREACHABLE).
//
// A call lives at its client until its callback; a pending call lives at its server until its
// handler has answered. They know each other by id only, so each may go first.
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/net_sim_world.h"
#include "common/rpc_internal.h"
#include "common/rpc_message.h"

#define SERVICES_MAX      16u
#define CALLS_MAX         1024u // of one client; BUSY beyond
#define NAME_BYTES_MAX    64u
#define ADDRESS_BYTES_MAX (NAME_BYTES_MAX + 16u)

typedef struct sim_server sim_server_t;
typedef struct sim_client sim_client_t;

typedef struct sim_pending {
    as_rpc_pending_t head; // first: a handler's closure_data is this
    struct sim_pending *next;
    sim_server_t *server;
    uint64_t client_id;
    uint64_t call_id;
    ProtobufCMessage *request;
} sim_pending_t;

struct sim_server {
    as_rpc_server_t head;
    sim_server_t *next;
    as_sim_t *sim;
    char name[NAME_BYTES_MAX];
    char address[ADDRESS_BYTES_MAX];
    bool started;
    ProtobufCService *services[SERVICES_MAX];
    uint32_t service_count;
    sim_pending_t *pending;
};

typedef struct sim_call {
    struct sim_call *next;
    sim_client_t *client;
    uint64_t id;
    const ProtobufCMethodDescriptor *method;
    as_timer_t *deadline;
    as_rpc_done_fn done;
    void *ctx;
} sim_call_t;

struct sim_client {
    as_rpc_client_t head;
    sim_client_t *next;
    as_sim_t *sim;
    uint64_t id;
    char name[NAME_BYTES_MAX];
    char target[ADDRESS_BYTES_MAX];
    sim_call_t *calls;
    uint32_t call_count;
};

typedef struct sim_down {
    struct sim_down *next;
    char name[NAME_BYTES_MAX];
} sim_down_t;

struct sim_rpc {
    sim_server_t *servers;
    sim_client_t *clients;
    sim_down_t *downs;
};

// A request, a reply, or the end of a call by its own client.
typedef struct rpc_event {
    sim_event_t base; // owned: the packed message
    char from[NAME_BYTES_MAX];
    char to[NAME_BYTES_MAX];
    uint64_t client_id;
    uint64_t call_id;
    char target[ADDRESS_BYTES_MAX];            // of a request
    const ProtobufCServiceDescriptor *service; // of a request
    unsigned method_index;                     // of a request
    as_status_t status;                        // of a reply
    size_t bytes;
} rpc_event_t;

// ---- hosts

static sim_rpc_t *rpc_of(as_sim_t *sim)
{
    if (!sim->rpc) {
        sim->rpc = sim_must_alloc(sizeof(*sim->rpc));
    }
    return sim->rpc;
}

void sim_rpc_free(sim_rpc_t *rpc)
{
    if (!rpc) {
        return;
    }
    AS_ASSERT(!rpc->servers && !rpc->clients); // free them first
    for (sim_down_t *down; (down = rpc->downs);) {
        rpc->downs = down->next;
        as_mem_free(down);
    }
    as_mem_free(rpc);
}

static sim_down_t **down_find(sim_rpc_t *rpc, const char *name)
{
    sim_down_t **at = &rpc->downs;
    while (*at && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
    }
    return at;
}

void as_sim_rpc_set_down(as_sim_t *sim, const char *name, bool down)
{
    sim_down_t **at = down_find(rpc_of(sim), name);
    if (down && !*at) {
        *at = sim_must_alloc(sizeof(sim_down_t));
        snprintf((*at)->name, sizeof((*at)->name), "%s", name);
    } else if (!down && *at) {
        sim_down_t *gone = *at;
        *at = gone->next;
        as_mem_free(gone);
    }
}

static bool host_is_down(as_sim_t *sim, const char *name)
{
    return *down_find(rpc_of(sim), name) != NULL;
}

// "host:port" into the host; false if it is not of that form.
static bool host_of(const char *address, char host[NAME_BYTES_MAX])
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || (size_t)(colon - address) >= NAME_BYTES_MAX ||
        strlen(address) >= ADDRESS_BYTES_MAX) {
        return false;
    }
    memset(host, 0, NAME_BYTES_MAX);
    memcpy(host, address, (size_t)(colon - address));
    return true;
}

// Sends the event over the network, which may lose it.
static void rpc_send(rpc_event_t *event)
{
    as_sim_t *sim = event->base.sim;
    uint64_t delay_us = sim_delay_us(sim);
    if (sim_chance(sim, sim->faults.loss_ppm) || host_is_down(sim, event->from)) {
        sim_event_free(&event->base);
        return;
    }
    sim_event_schedule(&event->base, delay_us);
}

static bool rpc_arrives(const rpc_event_t *event)
{
    as_sim_t *sim = event->base.sim;
    return !host_is_down(sim, event->from) && !host_is_down(sim, event->to);
}

static void *message_pack(const ProtobufCMessage *message, size_t *bytes_p)
{
    *bytes_p = protobuf_c_message_get_packed_size(message);
    void *bytes = sim_must_alloc(*bytes_p + 1);
    protobuf_c_message_pack(message, bytes);
    return bytes;
}

// ---- clients

static sim_call_t *call_find(as_sim_t *sim, uint64_t client_id, uint64_t call_id)
{
    sim_client_t *client = rpc_of(sim)->clients;
    while (client && client->id != client_id) {
        client = client->next;
    }
    sim_call_t *call = client ? client->calls : NULL;
    while (call && call->id != call_id) {
        call = call->next;
    }
    return call;
}

static void call_end(sim_call_t *call, as_status_t status, const ProtobufCMessage *reply)
{
    sim_client_t *client = call->client;
    sim_call_t **at = &client->calls;
    while (*at != call) {
        at = &(*at)->next;
    }
    *at = call->next;
    client->call_count--;
    as_rpc_done_fn done = call->done;
    void *ctx = call->ctx;
    as_timer_free(call->deadline);
    as_mem_free(call);
    done(ctx, status, status == AS_OK ? reply : NULL);
}

static void on_deadline(void *ctx)
{
    call_end(ctx, AS_ERR_DEADLINE, NULL);
}

static void fire_reply(sim_event_t *base)
{
    rpc_event_t *event = (rpc_event_t *)base;
    sim_call_t *call = call_find(base->sim, event->client_id, event->call_id);
    if (!call || !rpc_arrives(event)) {
        return;
    }
    sim_trace_add(base->sim, event->status, event->bytes);
    as_status_t status = event->status;
    ProtobufCMessage *reply = NULL;
    if (status == AS_OK) {
        status = as_rpc_message_unpack(call->method->output, base->owned, event->bytes, &reply);
    }
    call_end(call, status, reply);
    as_rpc_message_free(reply);
}

// An event for one call, from `from` to the client's host or back.
static rpc_event_t *event_make(as_sim_t *sim, void (*fire)(sim_event_t *event), uint64_t client_id,
                               uint64_t call_id)
{
    rpc_event_t *event = sim_event_alloc(sim, sizeof(*event), fire);
    event->client_id = client_id;
    event->call_id = call_id;
    return event;
}

static void answer(as_sim_t *sim, const rpc_event_t *request, as_status_t status)
{
    rpc_event_t *event = event_make(sim, fire_reply, request->client_id, request->call_id);
    memcpy(event->from, request->to, sizeof(event->from));
    memcpy(event->to, request->from, sizeof(event->to));
    event->status = status;
    rpc_send(event);
}

static void fire_request(sim_event_t *base);

static as_status_t client_call(as_rpc_client_t *head, const as_rpc_call_params_t *params,
                               uint64_t *call_id_p)
{
    sim_client_t *client = (sim_client_t *)head;
    if (client->call_count == CALLS_MAX) {
        return AS_ERR_BUSY;
    }
    if (protobuf_c_message_get_packed_size(params->request) > AS_RPC_MESSAGE_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    sim_call_t *call = as_mem_zalloc(1, sizeof(*call));
    if (!call) {
        return AS_ERR_NO_MEMORY;
    }
    as_status_t status = as_timer_alloc(client->sim->loop, on_deadline, call, &call->deadline);
    if (status != AS_OK) {
        as_mem_free(call);
        return status;
    }
    call->client = client;
    call->id = client->sim->id_next++;
    call->method = params->method;
    call->done = params->done;
    call->ctx = params->ctx;
    call->next = client->calls;
    client->calls = call;
    client->call_count++;
    as_timer_start(call->deadline, params->deadline_us);
    *call_id_p = call->id;

    rpc_event_t *event = event_make(client->sim, fire_request, client->id, call->id);
    memcpy(event->from, client->name, sizeof(event->from));
    host_of(client->target, event->to);
    memcpy(event->target, client->target, sizeof(event->target));
    event->service = client->head.service;
    event->method_index = params->method_index;
    event->base.owned = message_pack(params->request, &event->bytes);
    rpc_send(event);
    return AS_OK;
}

static void fire_cancel(sim_event_t *base)
{
    rpc_event_t *event = (rpc_event_t *)base;
    sim_call_t *call = call_find(base->sim, event->client_id, event->call_id);
    if (call) {
        call_end(call, AS_ERR_CANCELLED, NULL);
    }
}

static void client_cancel(as_rpc_client_t *head, uint64_t call_id)
{
    sim_client_t *client = (sim_client_t *)head;
    if (call_find(client->sim, client->id, call_id)) {
        rpc_event_t *event = event_make(client->sim, fire_cancel, client->id, call_id);
        sim_event_schedule(&event->base, 0);
    }
}

static void client_free(as_rpc_client_t *head)
{
    sim_client_t *client = (sim_client_t *)head;
    while (client->calls) {
        call_end(client->calls, AS_ERR_CANCELLED, NULL);
    }
    sim_client_t **at = &rpc_of(client->sim)->clients;
    while (*at != client) {
        at = &(*at)->next;
    }
    *at = client->next;
    as_mem_free(client);
}

static const as_rpc_client_ops_t client_ops = {client_free, client_call, client_cancel};

as_status_t as_rpc_client_alloc_sim(as_sim_t *sim, const char *own_name, const char *target,
                                    const ProtobufCServiceDescriptor *service,
                                    as_rpc_client_t **client_p)
{
    char host[NAME_BYTES_MAX];
    if (strlen(own_name) >= NAME_BYTES_MAX || !host_of(target, host)) {
        return AS_ERR_INVALID;
    }
    sim_client_t *client = as_mem_zalloc(1, sizeof(*client));
    if (!client) {
        return AS_ERR_NO_MEMORY;
    }
    client->head.ops = &client_ops;
    client->head.service = service;
    client->sim = sim;
    client->id = sim->id_next++;
    snprintf(client->name, sizeof(client->name), "%s", own_name);
    snprintf(client->target, sizeof(client->target), "%s", target);
    sim_rpc_t *rpc = rpc_of(sim);
    client->next = rpc->clients;
    rpc->clients = client;
    *client_p = &client->head;
    return AS_OK;
}

// ---- servers

static void pending_answer(sim_pending_t *pending, as_status_t status,
                           const ProtobufCMessage *reply)
{
    sim_server_t *server = pending->server;
    sim_pending_t **at = &server->pending;
    while (*at && *at != pending) {
        at = &(*at)->next;
    }
    AS_ASSERT(*at); // answered twice, or after the server was freed
    *at = pending->next;
    sim_client_t *client = rpc_of(server->sim)->clients;
    while (client && client->id != pending->client_id) {
        client = client->next;
    }
    if (client) {
        rpc_event_t *event =
            event_make(server->sim, fire_reply, pending->client_id, pending->call_id);
        memcpy(event->from, server->name, sizeof(event->from));
        memcpy(event->to, client->name, sizeof(event->to));
        event->status = status;
        if (reply) {
            event->base.owned = message_pack(reply, &event->bytes);
        }
        rpc_send(event);
    }
    as_rpc_message_free(pending->request);
    as_mem_free(pending);
}

static void pending_fail(as_rpc_pending_t *pending, as_status_t status, const char *text)
{
    (void)text;
    pending_answer((sim_pending_t *)pending, status, NULL);
}

static void on_closure(const ProtobufCMessage *reply, void *closure_data)
{
    sim_pending_t *pending = closure_data; // statuses as over gRPC
    if (!reply) {
        pending_answer(pending, AS_ERR_NO_MEMORY, NULL);
    } else if (protobuf_c_message_get_packed_size(reply) > AS_RPC_MESSAGE_BYTES_MAX) {
        pending_answer(pending, AS_ERR_LIMIT, NULL);
    } else {
        pending_answer(pending, AS_OK, reply);
    }
}

static ProtobufCService *service_find(sim_server_t *server,
                                      const ProtobufCServiceDescriptor *wanted)
{
    for (uint32_t i = 0; i < server->service_count; i++) {
        if (strcmp(server->services[i]->descriptor->name, wanted->name) == 0) {
            return server->services[i];
        }
    }
    return NULL;
}

static void fire_request(sim_event_t *base)
{
    rpc_event_t *event = (rpc_event_t *)base;
    as_sim_t *sim = base->sim;
    if (!rpc_arrives(event)) {
        return;
    }
    sim_trace_add(sim, event->method_index, event->bytes);
    sim_server_t *server = rpc_of(sim)->servers;
    while (server && (!server->started || strcmp(server->address, event->target) != 0)) {
        server = server->next;
    }
    if (!server) {
        answer(sim, event, AS_ERR_UNREACHABLE);
        return;
    }
    ProtobufCService *service = service_find(server, event->service);
    if (!service || event->method_index >= service->descriptor->n_methods) {
        answer(sim, event, AS_ERR_UNSUPPORTED);
        return;
    }
    const ProtobufCMethodDescriptor *method = &service->descriptor->methods[event->method_index];
    ProtobufCMessage *request;
    as_status_t status = as_rpc_message_unpack(method->input, base->owned, event->bytes, &request);
    if (status != AS_OK) {
        answer(sim, event, status);
        return;
    }
    sim_pending_t *pending = sim_must_alloc(sizeof(*pending));
    pending->head.fail = pending_fail;
    pending->server = server;
    pending->client_id = event->client_id;
    pending->call_id = event->call_id;
    pending->request = request;
    pending->next = server->pending;
    server->pending = pending;
    service->invoke(service, event->method_index, request, on_closure, pending);
}

static as_status_t server_add(as_rpc_server_t *head, ProtobufCService *service)
{
    sim_server_t *server = (sim_server_t *)head;
    if (server->started || service_find(server, service->descriptor)) {
        return AS_ERR_INVALID;
    }
    if (server->service_count == SERVICES_MAX) {
        return AS_ERR_LIMIT;
    }
    server->services[server->service_count++] = service;
    return AS_OK;
}

static as_status_t server_start(as_rpc_server_t *head)
{
    sim_server_t *server = (sim_server_t *)head;
    if (server->started) {
        return AS_ERR_INVALID;
    }
    const sim_server_t *other = rpc_of(server->sim)->servers;
    for (; other; other = other->next) {
        if (other->started && strcmp(other->address, server->address) == 0) {
            return AS_ERR_EXISTS;
        }
    }
    server->started = true;
    return AS_OK;
}

static const char *server_address(const as_rpc_server_t *head)
{
    return ((const sim_server_t *)head)->address;
}

static void server_free(as_rpc_server_t *head)
{
    sim_server_t *server = (sim_server_t *)head;
    while (server->pending) {
        pending_answer(server->pending, AS_ERR_PEER_LOST, NULL);
    }
    sim_server_t **at = &rpc_of(server->sim)->servers;
    while (*at != server) {
        at = &(*at)->next;
    }
    *at = server->next;
    as_mem_free(server);
}

static const as_rpc_server_ops_t server_ops = {server_free, server_add, server_start,
                                               server_address};

as_status_t as_rpc_server_alloc_sim(as_sim_t *sim, const char *address, as_rpc_server_t **server_p)
{
    char host[NAME_BYTES_MAX];
    if (!host_of(address, host)) {
        return AS_ERR_INVALID;
    }
    sim_server_t *server = as_mem_zalloc(1, sizeof(*server));
    if (!server) {
        return AS_ERR_NO_MEMORY;
    }
    server->head.ops = &server_ops;
    server->sim = sim;
    memcpy(server->name, host, sizeof(host));
    if (strcmp(strrchr(address, ':'), ":0") == 0) {
        snprintf(server->address, sizeof(server->address), "%s:%u", host, sim->port_next++);
    } else {
        snprintf(server->address, sizeof(server->address), "%s", address);
    }
    sim_rpc_t *rpc = rpc_of(sim);
    server->next = rpc->servers;
    rpc->servers = server;
    *server_p = &server->head;
    return AS_OK;
}
