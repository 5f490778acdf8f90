// SPDX-License-Identifier: Apache-2.0
// What the requests of libassay do, on the client's thread.
//
//   exists, get:  Route (who holds what), then one locate or fetch
//   put:          one put for each block, at most OP_PUTS_MAX at once
//
// Which stores there are is learned from the scheduler's Stat (assay.c); who holds a block from its
// Route, and where that fails, from placement, or by asking every store.
#include <string.h>

#include "client/assay_internal.h"
#include "common/mem.h"

// ---- taking

bool assay_shape_take(const assay_shape_t *from, as_shape_t *to)
{
    if (!from || (from->element_bytes != 2 && from->element_bytes != 4)) {
        return false;
    }
    *to = (as_shape_t){
        from->layers,       from->q_heads,
        from->kv_heads,     from->head_dim,
        from->block_tokens, from->element_bytes == 2 ? AS_ELEMENT_F16 : AS_ELEMENT_F32};
    return as_shape_check(to) == AS_OK;
}

static bool is_zero(const uint64_t *words, size_t count)
{
    uint64_t any = 0;
    for (size_t i = 0; i < count; i++) {
        any |= words[i];
    }
    return any == 0;
}

static int check_layers(const assay_request_t *request, const char *name)
{
    if (request->kind != ASSAY_KIND_GET && (request->first_layer || request->layer_count)) {
        return assay_fail(ASSAY_INVALID, "%s: a range of layers is of get only", name);
    }
    uint32_t layers = request->shape ? request->shape->layers : 0;
    if (request->kind == ASSAY_KIND_GET &&
        (request->first_layer >= layers || request->layer_count > layers - request->first_layer)) {
        return assay_fail(ASSAY_INVALID,
                          "get: layers %u to %llu are asked for, but the shape has %u",
                          request->first_layer,
                          (unsigned long long)request->first_layer + request->layer_count, layers);
    }
    return ASSAY_OK;
}

static int check_blocks(const assay_request_t *request, const char *name, as_shape_t *shape)
{
    if (request->kind == ASSAY_KIND_EXISTS && !request->shape) {
        return ASSAY_OK;
    }
    if (!assay_shape_take(request->shape, shape)) {
        return assay_fail(ASSAY_INVALID, "%s: the shape is not valid", name);
    }
    if (request->kind == ASSAY_KIND_EXISTS) {
        return ASSAY_OK;
    }
    bool given = request->buffer || request->blocks;
    for (uint32_t i = 0; request->blocks && given && i < request->count - request->first; i++) {
        given = request->blocks[i] != NULL;
    }
    if (!given) {
        return assay_fail(ASSAY_INVALID, "%s: a buffer, or memory for each block, must be given",
                          name);
    }
    if (request->kind == ASSAY_KIND_PUT && !request->namespace_key) {
        return assay_fail(ASSAY_INVALID, "put: the namespace of the keys must be given");
    }
    return ASSAY_OK;
}

static int check(const assay_request_t *request, as_shape_t *shape)
{
    static const char *const names[] = {"", "exists", "get", "put"};
    if (request->kind < ASSAY_KIND_EXISTS || request->kind > ASSAY_KIND_PUT) {
        return assay_fail(ASSAY_INVALID, "there is no request of kind %u", request->kind);
    }
    const char *name = names[request->kind];
    bool put = request->kind == ASSAY_KIND_PUT;
    static const uint32_t flags[] = {0, ASSAY_PREFIX, ASSAY_PREFIX | ASSAY_URGENT, ASSAY_DURABLE};
    uint32_t known = flags[request->kind];
    if ((request->flags & ~known) || !is_zero(request->reserved, 7)) {
        return assay_fail(ASSAY_INVALID,
                          "%s: a flag or a reserved member is set that this version does not know",
                          name);
    }
    if (request->ttl_ms > UINT32_MAX || (request->ttl_ms > 0 && !put)) {
        return assay_fail(ASSAY_INVALID, "%s: ttl_ms is of a put, and at most 2^32 - 1", name);
    }
    if (!request->keys || request->count == 0 || request->count > AS_CHAIN_BLOCKS_MAX) {
        return assay_fail(ASSAY_INVALID, "%s: between 1 and %u keys must be given", name,
                          AS_CHAIN_BLOCKS_MAX);
    }
    if (request->first >= request->count || (request->first > 0 && !put)) {
        return assay_fail(ASSAY_INVALID, "%s: first is an index into the chain of a put", name);
    }
    int result = check_blocks(request, name, shape);
    return result == ASSAY_OK ? check_layers(request, name) : result;
}

static bool copy(assay_op_t *op, const assay_request_t *request)
{
    size_t count = op->count, total = op->count - op->first;
    bool each = op->kind == ASSAY_KIND_PUT || !(op->flags & ASSAY_PREFIX);
    op->arena = as_mem_zalloc(1, count * (sizeof(uint64_t) + sizeof(as_key_t)) +
                                     total * (sizeof(void *) + sizeof(as_status_t)));
    if (!op->arena) {
        return false;
    }
    op->node_ids = op->arena;
    void **blocks = (void **)(void *)(op->node_ids + count);
    op->keys = (as_key_t *)(void *)(blocks + total);
    memcpy(op->keys, request->keys, count * sizeof(as_key_t));
    if (request->blocks) {
        op->blocks = blocks;
        memcpy(blocks, request->blocks, total * sizeof(void *));
    }
    op->statuses = each ? (as_status_t *)(void *)(op->keys + count) : NULL;
    return true;
}

int assay_request_take(assay_t *assay, const assay_request_t *request, assay_op_t *op)
{
    int result = check(request, &op->shape);
    if (result != ASSAY_OK) {
        return result;
    }
    op->kind = request->kind;
    op->flags = request->flags;
    op->ttl_ms = (uint32_t)request->ttl_ms;
    op->count = request->count;
    op->first = request->first;
    op->next = request->first;
    op->buffer = request->buffer;
    op->first_layer = request->first_layer;
    op->layer_count =
        request->layer_count ? request->layer_count : op->shape.layers - op->first_layer;
    op->results = request->results;
    op->on_done = request->on_done;
    op->ctx = request->ctx;
    op->deadline_us =
        as_loop_now_us(assay->loop) +
        (request->timeout_ms ? (uint64_t)request->timeout_ms * 1000 : assay->timeout_us);
    if (op->kind == ASSAY_KIND_PUT) {
        memcpy(&op->namespace_key, request->namespace_key, sizeof(as_key_t));
    }
    return copy(op, request) ? ASSAY_OK : assay_fail(ASSAY_FAILED, "out of memory");
}

// ---- exists and get

static void on_located(void *ctx, uint32_t block_count)
{
    assay_op_t *op = ctx;
    op->hit = block_count;
    op->busy = !op->statuses && assay_fetch_is_busy(op->fetch);
    if (op->kind != ASSAY_KIND_EXISTS || op->shape.layers == 0) {
        return;
    }
    assay_fetch_nodes(op->fetch, op->node_ids, op->count);
    uint32_t found = 0;
    for (uint32_t b = 0; b < (op->statuses ? op->count : block_count); b++) {
        if (op->node_ids[b] != 0) {
            op->node_ids[found++] = op->node_ids[b];
        }
    }
    op->load_us =
        assay_client_load_us(op->assay->client, op->node_ids, found, as_block_bytes(&op->shape));
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
}

// Whether every block was found.
static bool is_whole(const assay_op_t *op)
{
    uint32_t found = op->statuses ? 0 : op->hit;
    for (uint32_t i = 0; op->statuses && i < op->count; i++) {
        found += op->statuses[i] == AS_OK;
    }
    return found == op->count;
}

static void on_fetched(void *ctx, as_status_t status, uint32_t hole)
{
    assay_op_t *op = ctx;
    op->fetch = NULL;
    if (status != AS_OK) {
        op->hit = hole;
    } else if (op->busy) { // the rest is there, and was not to be had now
        status = AS_ERR_BUSY;
    }
    // What a store that refuses us has is no miss: it was not looked for.
    bool missed = status == AS_OK || status == AS_ERR_NOT_FOUND || status == AS_ERR_UNREACHABLE;
    if (missed && !is_whole(op) && assay_client_is_denied(op->assay->client)) {
        status = AS_ERR_DENIED;
    }
    assay_op_end(op, status);
}

static void fetch(assay_op_t *op)
{
    bool get = op->kind == ASSAY_KIND_GET;
    size_t extent_bytes = get ? as_extent_bytes(&op->shape) : 0;
    const assay_fetch_args_t args = {
        .shape = op->shape,
        .keys = op->keys,
        .node_ids = op->node_ids,
        .block_count = op->count,
        .deadline_us = assay_op_left_us(op),
        .urgency = op->flags & ASSAY_URGENT ? ASSAY_URGENCY_KVFETCH : ASSAY_URGENCY_PREFIX,
        .buffer = op->buffer,
        .buffers = op->blocks,
        .layer_stride = extent_bytes,
        .block_stride = op->layer_count * extent_bytes,
        .layer_slots = op->layer_count,
        .first_layer = op->first_layer,
        .layer_count = op->layer_count,
        .statuses = op->statuses,
        .on_located = on_located,
        .on_layer = on_layer,
        .on_done = on_fetched,
        .ctx = op,
    };
    assay_client_t *client = op->assay->client;
    as_status_t status = get ? assay_fetch_start(client, &args, &op->fetch)
                             : assay_locate(client, &args, &op->fetch);
    if (status != AS_OK) {
        op->fetch = NULL;
        for (uint32_t i = 0; op->statuses && i < op->count; i++) {
            op->statuses[i] = status;
        }
        assay_op_end(op, status);
    }
}

// Notes for each block the first live store that the route names.
static void take_route(assay_op_t *op, const Assay__RouteReply *reply)
{
    assay_take_nodes(op->assay, reply);
    for (size_t i = 0; i < reply->n_runs; i++) {
        const Assay__RouteRun *run = reply->runs[i];
        for (uint32_t b = 0; run->n_node_ids > 0 && b < run->block_count; b++) {
            if ((uint64_t)run->first_block + b < op->count) {
                op->node_ids[run->first_block + b] = run->node_ids[0];
            }
        }
    }
}

static void on_routed(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    assay_op_t *op = ctx;
    op->route_call = 0;
    if (status == AS_OK) {
        take_route(op, (const Assay__RouteReply *)reply);
    }
    if (status == AS_ERR_CANCELLED || op->cancelled) {
        for (uint32_t i = 0; op->statuses && i < op->count; i++) {
            op->statuses[i] = AS_ERR_CANCELLED;
        }
        assay_op_end(op, AS_ERR_CANCELLED);
        return;
    }
    fetch(op);
}

static void route(assay_op_t *op)
{
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    as_key_t *names = as_mem_alloc(op->count * sizeof(*names));
    if (!names) {
        fetch(op); // placement does without
        return;
    }
    assay_client_names(op->assay->client, op->keys, op->count, names);
    request.keys = (ProtobufCBinaryData){op->count * sizeof(as_key_t), names->bytes};
    as_token_sealed_t token;
    if (assay_client_token(op->assay->client, &token)) {
        request.token = (ProtobufCBinaryData){sizeof(token.bytes), token.bytes};
    }
    // Half of the time at most: placement still finds most blocks when the scheduler is away.
    as_status_t status = as_rpc_call(op->assay->scheduler, "Route", &request.base,
                                     assay_op_left_us(op) / 2 + 1, on_routed, op, &op->route_call);
    as_mem_free(names);
    if (status != AS_OK) {
        op->route_call = 0;
        fetch(op);
    }
}

// ---- put

static void put_more(assay_op_t *op);

// The first block that is not stored tells.
static as_status_t put_status(const assay_op_t *op)
{
    bool existed = true;
    for (uint32_t i = 0; i < op->count - op->first; i++) {
        if (op->statuses[i] != AS_OK && op->statuses[i] != AS_ERR_EXISTS) {
            return op->statuses[i];
        }
        existed &= op->statuses[i] == AS_ERR_EXISTS;
    }
    return existed ? AS_ERR_EXISTS : AS_OK;
}

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)node_id;
    op_put_t *slot = ctx;
    assay_op_t *op = slot->op;
    op->statuses[slot->index - op->first] = status;
    op->assay->puts_shared -= slot->shared;
    op->open--;
    slot->put = NULL;
    put_more(op);
}

static as_status_t put_one(assay_op_t *op, op_put_t *slot, uint32_t index)
{
    uint32_t at = index - op->first;
    const assay_put_args_t args = {
        .shape = op->shape,
        .namespace_key = op->namespace_key,
        .key = op->keys[index],
        .parent = index > 0 ? op->keys[index - 1] : op->namespace_key,
        .run_key = op->keys[index / AS_RUN_BLOCKS * AS_RUN_BLOCKS],
        .token_count = op->shape.block_tokens,
        .block = op->blocks ? op->blocks[at] : op->buffer + at * as_block_bytes(&op->shape),
        .ttl_ms = op->ttl_ms,
        .durable = op->flags & ASSAY_DURABLE,
        .deadline_us = assay_op_left_us(op),
        .on_done = on_put,
        .ctx = slot,
    };
    *slot = (op_put_t){.op = op, .index = index, .shared = op->open > 0};
    as_status_t status = assay_put_start(op->assay->client, &args, &slot->put);
    if (status != AS_OK) {
        slot->put = NULL;
        return status;
    }
    op->assay->puts_shared += slot->shared;
    op->open++;
    return AS_OK;
}

static op_put_t *free_slot(assay_op_t *op)
{
    if (op->open > 0 && op->assay->puts_shared == PUTS_SHARED) {
        return NULL; // every operation may have one, which keeps its deadline
    }
    for (uint32_t i = 0; i < OP_PUTS_MAX; i++) {
        if (!op->puts[i].put) {
            return &op->puts[i];
        }
    }
    return NULL;
}

// Starts what there is room for; at the end of all, ends the operation.
static void put_more(assay_op_t *op)
{
    while (op->next < op->count) {
        as_status_t status = op->cancelled ? AS_ERR_CANCELLED : AS_OK;
        if (status == AS_OK && as_loop_now_us(op->assay->loop) >= op->deadline_us) {
            status = AS_ERR_DEADLINE;
        }
        if (status == AS_OK) {
            op_put_t *slot = free_slot(op);
            if (!slot) {
                return;
            }
            status = put_one(op, slot, op->next);
        }
        if (status != AS_OK) {
            op->statuses[op->next - op->first] = status;
        }
        op->next++;
    }
    if (op->open == 0) {
        assay_op_end(op, put_status(op));
    }
}

// ---- the whole

void assay_request_begin(assay_op_t *op)
{
    if (op->kind == ASSAY_KIND_PUT) {
        put_more(op);
    } else {
        route(op);
    }
}

void assay_request_cancel(assay_op_t *op)
{
    op->cancelled = true;
    if (op->route_call != 0) {
        as_rpc_cancel(op->assay->scheduler, op->route_call);
    } else if (op->fetch) {
        assay_fetch_cancel(op->fetch);
    }
    for (uint32_t i = 0; op->kind == ASSAY_KIND_PUT && i < OP_PUTS_MAX; i++) {
        if (op->puts[i].put) {
            assay_put_cancel(op->puts[i].put);
        }
    }
}

// ---- load or recompute

int assay_predict(assay_t *assay, const assay_shape_t *shape, const uint8_t *keys, uint32_t count,
                  double tokens_per_second, assay_prediction_t *prediction_p)
{
    if (!shape || !prediction_p || !(tokens_per_second > 0)) {
        return assay_fail(ASSAY_INVALID, "predict: a shape, tokens per second of computing and a "
                                         "place for the prediction must be given");
    }
    const assay_request_t request = {.kind = ASSAY_KIND_EXISTS,
                                     .flags = ASSAY_PREFIX,
                                     .keys = keys,
                                     .count = count,
                                     .shape = shape};
    assay_op_t *op = NULL;
    int result = assay_op_run(assay, &request, &op);
    if (op) {
        double recompute_us = (double)op->hit * shape->block_tokens * 1e6 / tokens_per_second;
        *prediction_p =
            (assay_prediction_t){.hit = op->hit,
                                 .load = op->load_us == 0 || (double)op->load_us <= recompute_us,
                                 .load_us = op->load_us,
                                 .recompute_us = (uint64_t)recompute_us};
        assay_op_free(op);
    }
    return result;
}
