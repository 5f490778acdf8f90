// SPDX-License-Identifier: Apache-2.0
// The gRPC server: takes calls for the methods of generated services and hands them to handlers.
//
// A call is WAITING (posted to gRPC for one method) -> OPEN (a handler has it) -> ANSWERED, and is
// released when both its answer and its close have completed. A cancelled call stays OPEN until the
// handler answers, and the answer goes nowhere.
//
// Limits: each method has POSTED_PER_METHOD calls waiting, and each is replaced when taken, so
// gRPC's own queue stays short; a call that comes when CALLS_MAX are open is answered BUSY at once.
// gRPC's buffers have a quota, and so have the streams of one connection.
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/rpc_grpc.h"
#include "common/rpc_message.h"

#define SERVER_MAGIC      0x767265735f637072ull // "rpc_serv"
#define METHODS_MAX       64u                   // of all services of one server
#define POSTED_PER_METHOD 8u
#define CALLS_MAX         1024u
// Room to answer BUSY in: when this is used up too, nothing is posted until a call ends.
#define CALLS_SPARE       64u
#define STREAMS_PER_CONN  256
#define MEMORY_BYTES      (512u << 20)
#define PING_MS_MIN       5000 // clients ask after a silent server every 10 s
#define METHOD_PATH_BYTES 256u

typedef struct rpc_server rpc_server_t;
typedef struct server_call server_call_t;

typedef struct rpc_method {
    rpc_server_t *server;
    ProtobufCService *service; // NULL: calls of methods that nobody registered
    unsigned index;
    void *registered;
    uint32_t posted;
} rpc_method_t;

enum call_state { CALL_WAITING, CALL_OPEN, CALL_ANSWERED };

struct server_call {
    as_rpc_pending_t pending; // first: a handler's closure_data is this
    rpc_method_t *method;
    enum call_state state;
    bool close_done, answer_done;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    gpr_timespec deadline;
    grpc_byte_buffer *payload;
    grpc_byte_buffer *reply;
    ProtobufCMessage *request; // lives until the call is released
    int cancelled;
    rpc_event_t came, closed, answered;
    server_call_t *prev, *next; // of the server's open calls
};

struct rpc_server {
    as_rpc_server_t head;
    uint64_t magic;
    rpc_owner_t owner;
    grpc_server *server;
    as_pool_t *calls;
    server_call_t *open; // OPEN and ANSWERED
    uint32_t open_count;
    uint32_t method_count;
    rpc_method_t methods[METHODS_MAX];
    rpc_method_t unknown;
    bool started, closing;
    rpc_event_t down;
    rpc_credentials_t credentials;
    char address[RPC_ADDRESS_BYTES_MAX + 8];
};

static rpc_server_t *server_of(const as_rpc_server_t *head)
{
    rpc_server_t *server = (rpc_server_t *)head;
    AS_ASSERT(server->magic == SERVER_MAGIC);
    return server;
}

static void event_set(rpc_server_t *server, rpc_event_t *event, void (*fn)(void *, bool), void *ctx)
{
    *event = (rpc_event_t){.fn = fn, .ctx = ctx, .owner = &server->owner};
    rpc_owe(&server->owner);
}

static void call_came(void *ctx, bool ok);

// Keeps POSTED_PER_METHOD calls of the method waiting, as far as the pool allows.
static void method_post(rpc_method_t *method)
{
    rpc_server_t *server = method->server;
    grpc_completion_queue *queue = rpc_hub_queue(server->owner.hub);
    while (!server->closing && method->posted < POSTED_PER_METHOD) {
        server_call_t *call = as_pool_take(server->calls);
        if (!call) {
            return;
        }
        call->method = method;
        grpc_call_details_init(&call->details);
        grpc_metadata_array_init(&call->metadata);
        event_set(server, &call->came, call_came, call);
        grpc_call_error error =
            method->registered
                ? grpc_server_request_registered_call(server->server, method->registered,
                                                      &call->call, &call->deadline, &call->metadata,
                                                      &call->payload, queue, queue, &call->came)
                : grpc_server_request_call(server->server, &call->call, &call->details,
                                           &call->metadata, queue, queue, &call->came);
        AS_ASSERT(error == GRPC_CALL_OK); // fails only on a wrong queue
        method->posted++;
    }
}

static void call_free(server_call_t *call)
{
    as_rpc_message_free(call->request);
    if (call->payload) {
        grpc_byte_buffer_destroy(call->payload);
    }
    if (call->reply) {
        grpc_byte_buffer_destroy(call->reply);
    }
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    if (call->call) {
        grpc_call_unref(call->call);
    }
    as_pool_give(call->method->server->calls, call);
}

static void call_release(server_call_t *call)
{
    rpc_server_t *server = call->method->server;
    *(call->prev ? &call->prev->next : &server->open) = call->next;
    if (call->next) {
        call->next->prev = call->prev;
    }
    server->open_count--;
    call_free(call);
    // A method may have gone short of waiting calls when the pool was empty.
    for (uint32_t i = 0; i < server->method_count; i++) {
        method_post(&server->methods[i]);
    }
    method_post(&server->unknown);
}

static void call_closed(void *ctx, bool ok)
{
    (void)ok;
    server_call_t *call = ctx;
    call->close_done = true;
    // A freed server's handlers do not answer any more.
    if (call->answer_done || (call->state == CALL_OPEN && call->method->server->closing)) {
        call_release(call);
    }
}

static void call_answered(void *ctx, bool ok)
{
    (void)ok; // not ok: the call was cancelled meanwhile, or its connection lost
    server_call_t *call = ctx;
    call->answer_done = true;
    if (call->close_done) {
        call_release(call);
    }
}

static void call_answer(server_call_t *call, as_status_t status, const char *text)
{
    AS_ASSERT(call->state == CALL_OPEN); // answered twice, or after the server was freed
    call->state = CALL_ANSWERED;
    char number[12];
    snprintf(number, sizeof(number), "%d", (int)status);
    grpc_metadata trailing = {.key = grpc_slice_from_static_string(RPC_STATUS_KEY),
                              .value = grpc_slice_from_copied_string(number)};
    char bounded[RPC_TEXT_BYTES_MAX];
    snprintf(bounded, sizeof(bounded), "%s", text ? text : as_status_str(status));
    grpc_slice details = grpc_slice_from_copied_string(bounded);

    grpc_op ops[3];
    memset(ops, 0, sizeof(ops));
    size_t count = 0;
    ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (status == AS_OK) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = call->reply;
    }
    grpc_op *last = &ops[count++];
    last->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    last->data.send_status_from_server.status =
        status == AS_OK ? GRPC_STATUS_OK : rpc_code_of(status);
    if (status != AS_OK) {
        last->data.send_status_from_server.status_details = &details;
        last->data.send_status_from_server.trailing_metadata = &trailing;
        last->data.send_status_from_server.trailing_metadata_count = 1;
    }
    event_set(call->method->server, &call->answered, call_answered, call);
    grpc_call_error error = grpc_call_start_batch(call->call, ops, count, &call->answered, NULL);
    AS_ASSERT(error == GRPC_CALL_OK); // fails only on a malformed batch
    grpc_slice_unref(details);
    grpc_slice_unref(trailing.value);
}

static void call_fail(as_rpc_pending_t *pending, as_status_t status, const char *text)
{
    server_call_t *call = (server_call_t *)pending;
    AS_DEBUG("rpc", "call fails: %s: %s", as_status_str(status), text ? text : "");
    call_answer(call, status, text);
}

static bool call_is_named(as_rpc_pending_t *pending, const char *name)
{
    bool found = false;
    size_t bytes = strlen(name);
    grpc_auth_context *peer = grpc_call_auth_context(((server_call_t *)pending)->call);
    grpc_auth_property_iterator names =
        grpc_auth_context_find_properties_by_name(peer, GRPC_X509_CN_PROPERTY_NAME);
    const grpc_auth_property *one;
    while (!found && (one = grpc_auth_property_iterator_next(&names)) != NULL) {
        found = one->value_length == bytes && memcmp(one->value, name, bytes) == 0;
    }
    grpc_auth_context_release(peer);
    return found;
}

static void call_reply(const ProtobufCMessage *reply, void *ctx)
{
    server_call_t *call = ctx;
    if (!reply) {
        call_answer(call, AS_ERR_NO_MEMORY, "no reply");
        return;
    }
    AS_ASSERT(reply->descriptor ==
              call->method->service->descriptor->methods[call->method->index].output);
    as_status_t status = rpc_pack(reply, &call->reply);
    call_answer(call, status, "the reply is larger than a message may be");
}

static void call_open(server_call_t *call)
{
    rpc_method_t *method = call->method;
    rpc_server_t *server = method->server;
    call->state = CALL_OPEN;
    call->pending.fail = call_fail;
    call->pending.is_named = call_is_named;
    call->next = server->open;
    if (call->next) {
        call->next->prev = call;
    }
    server->open = call;
    server->open_count++;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    event_set(server, &call->closed, call_closed, call);
    grpc_call_error error = grpc_call_start_batch(call->call, &op, 1, &call->closed, NULL);
    AS_ASSERT(error == GRPC_CALL_OK);
}

static void call_came(void *ctx, bool ok)
{
    server_call_t *call = ctx;
    rpc_method_t *method = call->method;
    method->posted--;
    if (!ok) { // the server is going down
        call_free(call);
        return;
    }
    call_open(call);
    method_post(method);
    if (!method->service) {
        call_answer(call, AS_ERR_UNSUPPORTED, "no such method");
        return;
    }
    if (method->server->open_count > CALLS_MAX) {
        call_answer(call, AS_ERR_BUSY, "too many calls are open");
        return;
    }
    if (!call->payload) { // cancelled before its request had come
        call_answer(call, AS_ERR_CANCELLED, "no request");
        return;
    }
    const ProtobufCMethodDescriptor *what = &method->service->descriptor->methods[method->index];
    as_status_t status = rpc_unpack(what->input, call->payload, &call->request);
    grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
    if (status != AS_OK) {
        call_answer(call, status, "the request is not a message of this method");
        return;
    }
    // The handler may free the server: nothing is touched after it.
    method->service->invoke(method->service, method->index, call->request, call_reply, call);
}

static as_status_t server_add(as_rpc_server_t *head, ProtobufCService *service)
{
    rpc_server_t *server = server_of(head);
    const ProtobufCServiceDescriptor *descriptor = service->descriptor;
    if (server->started || descriptor->n_methods > METHODS_MAX - server->method_count) {
        return AS_ERR_LIMIT;
    }
    for (unsigned i = 0; i < descriptor->n_methods; i++) {
        char path[METHOD_PATH_BYTES];
        snprintf(path, sizeof(path), "/%s/%s", descriptor->name, descriptor->methods[i].name);
        rpc_method_t *method = &server->methods[server->method_count];
        method->registered = grpc_server_register_method(
            server->server, path, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        if (!method->registered) {
            AS_ERROR("rpc", "method %s is there already", path);
            return AS_ERR_EXISTS;
        }
        method->server = server;
        method->service = service;
        method->index = i;
        server->method_count++;
    }
    return AS_OK;
}

static as_status_t server_start(as_rpc_server_t *head)
{
    rpc_server_t *server = server_of(head);
    AS_ASSERT(!server->started);
    server->started = true;
    grpc_server_start(server->server);
    for (uint32_t i = 0; i < server->method_count; i++) {
        method_post(&server->methods[i]);
    }
    method_post(&server->unknown);
    return AS_OK;
}

static const char *server_address(const as_rpc_server_t *head)
{
    return server_of(head)->address;
}

static void server_down(void *ctx, bool ok)
{
    (void)ctx;
    (void)ok; // all that matters is that it is no longer owed
}

static void server_free(as_rpc_server_t *head)
{
    rpc_server_t *server = server_of(head);
    rpc_hub_t *hub = server->owner.hub;
    server->closing = true;
    event_set(server, &server->down, server_down, server);
    grpc_server_shutdown_and_notify(server->server, rpc_hub_queue(hub), &server->down);
    grpc_server_cancel_all_calls(server->server);
    for (server_call_t *call = server->open, *next; call; call = next) {
        next = call->next;
        if (call->state == CALL_OPEN && call->close_done) {
            call_release(call); // cancelled before, and its handler has not answered
        }
    }
    rpc_hub_drain(hub, &server->owner);
    AS_ASSERT(!server->open);
    grpc_server_destroy(server->server);
    rpc_credentials_give(&server->credentials);
    rpc_hub_busy(hub, -1);
    rpc_hub_put(hub);
    as_pool_free(server->calls);
    server->magic = 0;
    as_mem_free(server);
}

static const as_rpc_server_ops_t server_ops = {
    .free = server_free,
    .add = server_add,
    .start = server_start,
    .address = server_address,
};

static grpc_server *server_make(void)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("assay server");
    grpc_resource_quota_resize(quota, MEMORY_BYTES);
    grpc_arg args[] = {
        rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, AS_RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, AS_RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_PER_CONN),
        rpc_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_MS_MIN),
        // A compressed message may stand for more bytes than its length: not taken.
        rpc_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        // By default a second server could listen on the same port, and take half of the calls.
        rpc_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
    };
    grpc_channel_args channel_args = {.num_args = sizeof(args) / sizeof(args[0]), .args = args};
    grpc_server *server = grpc_server_create(&channel_args, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static as_status_t server_listen(rpc_server_t *server, const char *address, const as_rpc_tls_t *tls)
{
    grpc_server_credentials *creds;
    as_status_t status = rpc_credentials_take(tls, &server->credentials);
    if (status == AS_OK) {
        status = rpc_credentials_of_server(&server->credentials, &creds);
    }
    if (status != AS_OK) {
        return status;
    }
    int port = grpc_server_add_http2_port(server->server, address, creds);
    grpc_server_credentials_release(creds);
    if (port == 0) {
        AS_ERROR("rpc", "cannot listen on %s: taken, not of this machine, or bad credentials",
                 address);
        return AS_ERR_IO;
    }
    int host_bytes = (int)(strrchr(address, ':') - address);
    snprintf(server->address, sizeof(server->address), "%.*s:%d", host_bytes, address, port);
    return AS_OK;
}

as_status_t as_rpc_server_alloc(as_loop_t *loop, const char *address, const as_rpc_tls_t *tls,
                                as_rpc_server_t **server_p)
{
    AS_ASSERT(as_loop_uv(loop)); // the simulated loop has as_rpc_server_alloc_sim
    if (!rpc_address_valid(address)) {
        AS_ERROR("rpc", "address %.64s is not host:port", address);
        return AS_ERR_INVALID;
    }
    rpc_server_t *server = as_mem_zalloc(1, sizeof(*server));
    if (!server) {
        return AS_ERR_NO_MEMORY;
    }
    server->head.ops = &server_ops;
    server->magic = SERVER_MAGIC;
    server->unknown.server = server;
    as_status_t status = as_pool_alloc("rpc server calls", sizeof(server_call_t),
                                       CALLS_MAX + CALLS_SPARE, &server->calls);
    if (status != AS_OK) {
        goto fail_server;
    }
    status = rpc_hub_get(loop, &server->owner.hub);
    if (status != AS_OK) {
        goto fail_calls;
    }
    rpc_hub_busy(server->owner.hub, 1);
    server->server = server_make();
    grpc_server_register_completion_queue(server->server, rpc_hub_queue(server->owner.hub), NULL);
    status = server_listen(server, address, tls);
    if (status != AS_OK) {
        server_free(&server->head);
        return status;
    }
    *server_p = &server->head;
    return AS_OK;

fail_calls:
    as_pool_free(server->calls);
fail_server:
    as_mem_free(server);
    return status;
}
