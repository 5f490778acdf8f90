// SPDX-License-Identifier: Apache-2.0
// The public calls of rpc.h: what both implementations share is checked here, the rest is theirs.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/rpc_internal.h"
#include "common/rpc_message.h"

// What protobuf-c may allocate for a message: a struct and its strings are within 32 times their
// bytes on the wire for every message that carries something; small ones have a floor.
#define UNPACK_FACTOR      32u
#define UNPACK_FLOOR_BYTES (64u << 10)
#define UNPACK_MAX_BYTES   (256u << 20)

as_status_t as_rpc_server_add(as_rpc_server_t *server, ProtobufCService *service)
{
    return server->ops->add(server, service);
}

as_status_t as_rpc_server_start(as_rpc_server_t *server)
{
    return server->ops->start(server);
}

const char *as_rpc_server_address(const as_rpc_server_t *server)
{
    return server->ops->address(server);
}

void as_rpc_server_free(as_rpc_server_t *server)
{
    if (server) {
        server->ops->free(server);
    }
}

void as_rpc_fail(ProtobufCClosure closure, void *closure_data, as_status_t status, const char *text)
{
    (void)closure; // the closure data alone names the call
    AS_ASSERT(status != AS_OK);
    as_rpc_pending_t *pending = closure_data;
    pending->fail(pending, status, text);
}

static const char *const *operators;

void as_rpc_set_operators(const char *const *names)
{
    operators = names;
}

bool as_rpc_is_operator(void *closure_data)
{
    as_rpc_pending_t *pending = closure_data;
    bool found = !operators;
    for (const char *const *name = operators; !found && *name; name++) {
        found = pending->is_named && pending->is_named(pending, *name);
    }
    return found;
}

void as_rpc_client_free(as_rpc_client_t *client)
{
    if (client) {
        client->ops->free(client);
    }
}

as_status_t as_rpc_call(as_rpc_client_t *client, const char *method,
                        const ProtobufCMessage *request, uint64_t deadline_us, as_rpc_done_fn done,
                        void *ctx, uint64_t *call_id_p)
{
    const ProtobufCMethodDescriptor *found =
        protobuf_c_service_descriptor_get_method_by_name(client->service, method);
    if (!found || deadline_us == 0 || request->descriptor != found->input) {
        return AS_ERR_INVALID;
    }
    as_rpc_call_params_t params = {
        .method_index = (unsigned)(found - client->service->methods),
        .method = found,
        .request = request,
        .deadline_us = deadline_us,
        .done = done,
        .ctx = ctx,
    };
    uint64_t call_id;
    return client->ops->call(client, &params, call_id_p ? call_id_p : &call_id);
}

void as_rpc_cancel(as_rpc_client_t *client, uint64_t call_id)
{
    client->ops->cancel(client, call_id);
}

static void *budget_alloc(void *ctx, size_t bytes)
{
    size_t *budget = ctx;
    if (bytes > *budget) {
        return NULL;
    }
    *budget -= bytes;
    return as_mem_alloc(bytes);
}

static void budget_free(void *ctx, void *memory)
{
    (void)ctx; // memory that unpacking gives back meanwhile still counts: the bound is on the total
    as_mem_free(memory);
}

as_status_t as_rpc_message_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                  size_t bytes, ProtobufCMessage **message_p)
{
    if (bytes > AS_RPC_MESSAGE_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    size_t budget = UNPACK_FLOOR_BYTES + bytes * UNPACK_FACTOR;
    if (budget > UNPACK_MAX_BYTES) {
        budget = UNPACK_MAX_BYTES;
    }
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &allocator, bytes, data);
    if (!message) {
        return AS_ERR_INVALID;
    }
    *message_p = message;
    return AS_OK;
}

void as_rpc_message_free(ProtobufCMessage *message)
{
    size_t budget = 0;
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    if (message) {
        protobuf_c_message_free_unpacked(message, &allocator);
    }
}
