// SPDX-License-Identifier: Apache-2.0
// The gRPC client: a channel to one target, any number of calls up to CALLS_MAX in flight. When its
// certificates have been replaced, new calls go by a new channel, and the old one ends with its last
// call.
//
// Calls do not wait for a connection: while none can be made they fail at once, and the caller
// decides when to try again. A call id is a slot number and the count of calls so far, so an id is
// never reused, and cancelling a call that has ended finds another id in its slot.
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/rpc_grpc.h"
#include "common/rpc_message.h"

#define CLIENT_MAGIC 0x6e696c635f637072ull // "rpc_clin"
#define METHODS_MAX  64u
#define CALLS_MAX    1024u // a power of two: the low bits of an id are the slot
#define PATH_BYTES   256u
// A daemon that starts again is found within a second, not within gRPC's two minutes.
#define RECONNECT_MS_MIN 100
#define RECONNECT_MS_MAX 1000
#define CONNECT_MS_MAX   5000
// A connection whose peer has vanished without a word is given up after 15 s.
#define KEEPALIVE_MS         10000
#define KEEPALIVE_TIMEOUT_MS 5000

typedef struct rpc_client rpc_client_t;

typedef struct rpc_channel {
    grpc_channel *channel;
    uint32_t refs; // its calls, and the client while it is the present one
    void *registered[METHODS_MAX];
} rpc_channel_t;

typedef struct client_call {
    rpc_client_t *client;
    rpc_channel_t *channel;
    uint64_t id;
    const ProtobufCMethodDescriptor *method;
    as_rpc_done_fn done;
    void *ctx;
    grpc_call *call;
    grpc_byte_buffer *request, *reply;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice text;
    bool cancelled;     // by us
    bool was_connected; // when it started
    rpc_event_t ended;
} client_call_t;

struct rpc_client {
    as_rpc_client_t head;
    uint64_t magic;
    rpc_owner_t owner;
    rpc_channel_t *channel; // for new calls
    rpc_credentials_t credentials;
    uint64_t calls_started;
    uint32_t free_count;
    bool closing;
    bool told; // that it cannot connect over TLS; until a call succeeds
    uint32_t free_slots[CALLS_MAX];
    client_call_t calls[CALLS_MAX]; // id 0: free
    char target[RPC_ADDRESS_BYTES_MAX];
};

static rpc_client_t *client_of(as_rpc_client_t *head)
{
    rpc_client_t *client = (rpc_client_t *)head;
    AS_ASSERT(client->magic == CLIENT_MAGIC);
    return client;
}

static void channel_put(rpc_channel_t *channel)
{
    if (--channel->refs == 0) {
        grpc_channel_destroy(channel->channel);
        as_mem_free(channel);
    }
}

// AS_ERR_NOT_FOUND: the peer sent no status of ours.
static as_status_t status_in(const grpc_metadata_array *trailing, as_status_t *status_p)
{
    for (size_t i = 0; i < trailing->count; i++) {
        const grpc_metadata *item = &trailing->metadata[i];
        if (grpc_slice_str_cmp(item->key, RPC_STATUS_KEY) != 0) {
            continue;
        }
        char text[4] = {0};
        size_t bytes = GRPC_SLICE_LENGTH(item->value);
        if (bytes >= sizeof(text)) {
            return AS_ERR_PROTOCOL;
        }
        memcpy(text, GRPC_SLICE_START_PTR(item->value), bytes);
        unsigned long value = strtoul(text, NULL, 10);
        if (value == AS_OK || value >= AS_STATUS_COUNT) {
            return AS_ERR_PROTOCOL;
        }
        *status_p = (as_status_t)value;
        return AS_OK;
    }
    return AS_ERR_NOT_FOUND;
}

static as_status_t call_status(client_call_t *call)
{
    if (call->cancelled) {
        return AS_ERR_CANCELLED;
    }
    if (call->code == GRPC_STATUS_OK) {
        return call->reply ? AS_OK : AS_ERR_PROTOCOL;
    }
    as_status_t sent;
    as_status_t status = status_in(&call->trailing, &sent);
    if (status == AS_ERR_NOT_FOUND) {
        return rpc_status_of(call->code, call->was_connected);
    }
    return status == AS_OK ? sent : status;
}

static void call_clear(client_call_t *call)
{
    grpc_byte_buffer_destroy(call->request);
    if (call->reply) {
        grpc_byte_buffer_destroy(call->reply);
    }
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->text);
    grpc_call_unref(call->call);
    channel_put(call->channel);
    rpc_client_t *client = call->client;
    memset(call, 0, sizeof(*call));
    client->free_slots[client->free_count++] = (uint32_t)(call - client->calls);
    rpc_hub_busy(client->owner.hub, -1);
}

// A refused certificate looks like a peer that is not there, and does not heal: say once what gRPC
// knows.
static void tell_tls(const client_call_t *call, as_status_t status)
{
    rpc_client_t *client = call->client;
    bool lost = status == AS_ERR_UNREACHABLE || status == AS_ERR_PEER_LOST;
    if (status == AS_OK || !client->credentials.identity || !lost || client->told) {
        client->told = client->told && status != AS_OK;
        return;
    }
    client->told = true;
    AS_ERROR("rpc", "no connection over tls to %s (is it there, with tls and the same ca?): %.*s",
             client->target, (int)GRPC_SLICE_LENGTH(call->text),
             (const char *)GRPC_SLICE_START_PTR(call->text));
}

static void call_ended(void *ctx, bool ok)
{
    (void)ok; // a batch that receives the status always succeeds
    client_call_t *call = ctx;
    ProtobufCMessage *reply = NULL;
    as_status_t status = call_status(call);
    if (status == AS_OK && rpc_unpack(call->method->output, call->reply, &reply) != AS_OK) {
        AS_WARN("rpc", "malformed reply from %s to %s", call->client->target, call->method->name);
        status = AS_ERR_PROTOCOL;
    }
    if (status != AS_OK) {
        AS_DEBUG("rpc", "%s to %s: %s: code %d: %.*s", call->method->name, call->client->target,
                 as_status_str(status), (int)call->code, (int)GRPC_SLICE_LENGTH(call->text),
                 (const char *)GRPC_SLICE_START_PTR(call->text));
    }
    tell_tls(call, status);
    as_rpc_done_fn done = call->done;
    void *done_ctx = call->ctx;
    call_clear(call); // before done, which may free the client
    done(done_ctx, status, reply);
    as_rpc_message_free(reply);
}

static void call_batch(client_call_t *call)
{
    grpc_op ops[6];
    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = call->request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &call->reply;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[5].data.recv_status_on_client.status = &call->code;
    ops[5].data.recv_status_on_client.status_details = &call->text;
    rpc_owe(&call->client->owner);
    grpc_call_error error = grpc_call_start_batch(call->call, ops, 6, &call->ended, NULL);
    AS_ASSERT(error == GRPC_CALL_OK); // fails only on a malformed batch
}

static grpc_channel *channel_make(const rpc_client_t *client, grpc_channel_credentials *creds)
{
    grpc_arg args[] = {
        rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, AS_RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, AS_RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, RECONNECT_MS_MIN),
        rpc_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_MS_MAX),
        rpc_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, RECONNECT_MS_MAX),
        rpc_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        rpc_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        rpc_arg(GRPC_ARG_ENABLE_RETRIES, 0), // retrying is for those who know what is idempotent
        rpc_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        rpc_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
    };
    grpc_channel_args channel_args = {.num_args = sizeof(args) / sizeof(args[0]), .args = args};
    return grpc_channel_create(client->target, creds, &channel_args);
}

// On an error the channel is the one that it was.
static as_status_t client_connect(rpc_client_t *client)
{
    grpc_channel_credentials *creds;
    rpc_channel_t *channel = as_mem_zalloc(1, sizeof(*channel));
    if (!channel) {
        return AS_ERR_NO_MEMORY;
    }
    as_status_t status = rpc_credentials_of_channel(&client->credentials, &creds);
    if (status != AS_OK) {
        as_mem_free(channel);
        return status;
    }
    channel->refs = 1;
    channel->channel = channel_make(client, creds);
    grpc_channel_credentials_release(creds);
    const ProtobufCServiceDescriptor *service = client->head.service;
    for (unsigned i = 0; i < service->n_methods; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof(path), "/%s/%s", service->name, service->methods[i].name);
        channel->registered[i] = grpc_channel_register_call(channel->channel, path, NULL, NULL);
    }
    if (client->channel) {
        channel_put(client->channel);
    }
    client->channel = channel;
    return AS_OK;
}

static void client_connect_again(rpc_client_t *client)
{
    if (client_connect(client) != AS_OK) {
        AS_WARN("rpc", "no new channel to %s: calls go on with the certificate before",
                client->target);
    }
}

static as_status_t client_call(as_rpc_client_t *head, const as_rpc_call_params_t *params,
                               uint64_t *call_id_p)
{
    rpc_client_t *client = client_of(head);
    if (client->free_count == 0) {
        return AS_ERR_BUSY;
    }
    if (client->closing) { // asked by a callback of a call that free cancels
        return AS_ERR_CANCELLED;
    }
    grpc_byte_buffer *request;
    as_status_t status = rpc_pack(params->request, &request);
    if (status != AS_OK) {
        return status;
    }
    if (rpc_credentials_changed(&client->credentials)) {
        client_connect_again(client);
    }
    uint32_t slot = client->free_slots[--client->free_count];
    client_call_t *call = &client->calls[slot];
    call->client = client;
    call->id = ++client->calls_started * CALLS_MAX + slot;
    call->method = params->method;
    call->done = params->done;
    call->ctx = params->ctx;
    call->request = request;
    call->text = grpc_empty_slice();
    call->ended = (rpc_event_t){.fn = call_ended, .ctx = call, .owner = &client->owner};
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    rpc_channel_t *channel = call->channel = client->channel;
    channel->refs++;
    call->was_connected =
        grpc_channel_check_connectivity_state(channel->channel, 0) == GRPC_CHANNEL_READY;
    call->call = grpc_channel_create_registered_call(
        channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS, rpc_hub_queue(client->owner.hub),
        channel->registered[params->method_index], rpc_deadline(params->deadline_us), NULL);
    rpc_hub_busy(client->owner.hub, 1);
    *call_id_p = call->id;
    call_batch(call);
    return AS_OK;
}

static void client_cancel(as_rpc_client_t *head, uint64_t call_id)
{
    rpc_client_t *client = client_of(head);
    client_call_t *call = &client->calls[call_id % CALLS_MAX];
    if (call_id != 0 && call->id == call_id) {
        call->cancelled = true;
        grpc_call_cancel(call->call, NULL);
    }
}

static void client_free(as_rpc_client_t *head)
{
    rpc_client_t *client = client_of(head);
    AS_ASSERT(!client->closing); // freed twice, perhaps by a callback that free runs
    client->closing = true;
    for (uint32_t slot = 0; slot < CALLS_MAX; slot++) {
        client_cancel(head, client->calls[slot].id);
    }
    rpc_hub_drain(client->owner.hub, &client->owner);
    AS_ASSERT(client->free_count == CALLS_MAX);
    channel_put(client->channel);
    rpc_credentials_give(&client->credentials);
    rpc_hub_put(client->owner.hub);
    client->magic = 0;
    as_mem_free(client);
}

static const as_rpc_client_ops_t client_ops = {
    .free = client_free,
    .call = client_call,
    .cancel = client_cancel,
};

as_status_t as_rpc_client_alloc(as_loop_t *loop, const char *target,
                                const ProtobufCServiceDescriptor *service, const as_rpc_tls_t *tls,
                                as_rpc_client_t **client_p)
{
    AS_ASSERT(as_loop_uv(loop)); // the simulated loop has as_rpc_client_alloc_sim
    if (!rpc_address_valid(target) || service->n_methods > METHODS_MAX) {
        AS_ERROR("rpc", "target %.64s is not host:port", target);
        return AS_ERR_INVALID;
    }
    rpc_client_t *client = as_mem_zalloc(1, sizeof(*client));
    if (!client) {
        return AS_ERR_NO_MEMORY;
    }
    client->head = (as_rpc_client_t){.ops = &client_ops, .service = service};
    client->magic = CLIENT_MAGIC;
    snprintf(client->target, sizeof(client->target), "%s", target);
    while (client->free_count < CALLS_MAX) {
        client->free_slots[client->free_count] = CALLS_MAX - 1 - client->free_count;
        client->free_count++;
    }
    as_status_t status = rpc_hub_get(loop, &client->owner.hub);
    if (status != AS_OK) {
        goto fail_client;
    }
    status = rpc_credentials_take(tls, &client->credentials);
    if (status != AS_OK) {
        goto fail_hub;
    }
    status = client_connect(client);
    if (status != AS_OK) {
        goto fail_credentials;
    }
    *client_p = &client->head;
    return AS_OK;

fail_credentials:
    rpc_credentials_give(&client->credentials);
fail_hub:
    rpc_hub_put(client->owner.hub);
fail_client:
    as_mem_free(client);
    return status;
}
