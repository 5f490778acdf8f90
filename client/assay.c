// SPDX-License-Identifier: Apache-2.0
// libassay over the client: a thread with a loop of its own, and blocking calls that post a job to
// it.
//
// A job lives on its caller's stack. It runs on the loop's thread from `start` until job_done,
// which wakes the caller; every step in between has a deadline, so the caller waits without one.
// Which stores there are is learned from the scheduler's Stat, at first and then once a second; who
// holds a block from its Route, and where that fails, from placement.
#include "client/assay.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"
#include "common/assert.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/rpc.h"
#include "proto/scheduler.pb-c.h"

#define TIMEOUT_MS_DEFAULT 10000u
#define REFRESH_US         1000000u

struct assay {
    as_loop_t *loop;
    pthread_t thread;
    as_rpc_client_t *scheduler;
    assay_client_t *client;
    as_timer_t *refresh;
    bool asking; // Stat is under way
    uint64_t timeout_us;
    const char *target; // of the scheduler, while opening
    assay_store_t stores[ASSAY_STORES_MAX];
    uint32_t store_count;
};

typedef struct job {
    as_task_t task;
    assay_t *assay;
    void (*start)(struct job *job);
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    as_status_t status;
    uint64_t began_us;
    // of exists and get
    const as_key_t *keys;
    uint32_t count;
    uint64_t *node_ids;
    uint32_t hit;
    bool locate_only;
    as_shape_t shape;
    void *buffer;
    // of put
    assay_put_args_t put;
} job_t;

// ---- errors

static _Thread_local char last_error[192] = "no error";

const char *assay_last_error(void)
{
    return last_error;
}

const char *assay_version(void)
{
    return AS_VERSION;
}

__attribute__((format(printf, 2, 3))) static int fail(int result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return result;
}

static int result_of(as_status_t status, const char *what)
{
    switch (status) {
    case AS_OK:
        return ASSAY_OK;
    case AS_ERR_EXISTS:
        return ASSAY_EXISTS;
    case AS_ERR_NOT_FOUND:
    case AS_ERR_CHECKSUM:
    case AS_ERR_LEASE:
        return ASSAY_MISS;
    case AS_ERR_INVALID:
    case AS_ERR_LIMIT:
    case AS_ERR_UNSUPPORTED:
        return fail(ASSAY_INVALID, "%s: %s", what, as_status_str(status));
    case AS_ERR_BUSY:
        return fail(ASSAY_BUSY, "%s: the store is full or too much is under way", what);
    case AS_ERR_DEADLINE:
        return fail(ASSAY_TIMEOUT, "%s: not done in time", what);
    case AS_ERR_UNREACHABLE:
    case AS_ERR_PEER_LOST:
        return fail(ASSAY_UNREACHABLE, "%s: no store node answers", what);
    default:
        return fail(ASSAY_FAILED, "%s: %s", what, as_status_str(status));
    }
}

// ---- jobs

static void on_job(void *ctx)
{
    job_t *job = ctx;
    job->began_us = as_loop_now_us(job->assay->loop);
    job->start(job);
}

// On the loop's thread, once. The job may be gone right after.
static void job_done(job_t *job, as_status_t status)
{
    pthread_mutex_lock(&job->lock);
    job->status = status;
    job->done = true;
    pthread_cond_signal(&job->ended);
    pthread_mutex_unlock(&job->lock);
}

static as_status_t job_run(job_t *job, assay_t *assay, void (*start)(job_t *job))
{
    job->assay = assay;
    job->start = start;
    job->task = (as_task_t){.fn = on_job, .ctx = job};
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->ended, NULL);
    as_loop_post(assay->loop, &job->task);
    pthread_mutex_lock(&job->lock);
    while (!job->done) {
        pthread_cond_wait(&job->ended, &job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    pthread_cond_destroy(&job->ended);
    pthread_mutex_destroy(&job->lock);
    return job->status;
}

// What is left of the job's time, at least 1 ms.
static uint64_t job_left_us(const job_t *job)
{
    uint64_t spent_us = as_loop_now_us(job->assay->loop) - job->began_us;
    return spent_us + 1000 < job->assay->timeout_us ? job->assay->timeout_us - spent_us : 1000;
}

// ---- stores

// Adds a store that is not known yet; true when there was one to add.
static bool store_add(assay_t *assay, uint64_t node_id, const char *data_address,
                      uint64_t capacity_bytes)
{
    bool fits = node_id != 0 && assay->store_count < ASSAY_STORES_MAX && data_address[0] != '\0' &&
                strlen(data_address) < ASSAY_ADDRESS_BYTES_MAX;
    for (uint32_t i = 0; fits && i < assay->store_count; i++) {
        fits = assay->stores[i].node_id != node_id;
    }
    if (fits) {
        assay_store_t *store = &assay->stores[assay->store_count++];
        *store = (assay_store_t){.node_id = node_id, .capacity_bytes = capacity_bytes};
        memcpy(store->data_address, data_address, strlen(data_address) + 1);
    }
    return fits;
}

static void take_stat(assay_t *assay, const Assay__StatReply *reply)
{
    assay->store_count = 0;
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Assay__NodeStat *node = reply->nodes[i];
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE) {
            store_add(assay, node->node_id, node->data_address,
                      node->load ? node->load->capacity_bytes : 0);
        }
    }
    assay_client_set_stores(assay->client, assay->stores, assay->store_count);
}

static void on_stat(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    assay_t *assay = ctx;
    assay->asking = false;
    if (status == AS_OK) {
        take_stat(assay, (const Assay__StatReply *)reply);
    }
}

static void on_refresh(void *ctx)
{
    assay_t *assay = ctx;
    as_timer_start(assay->refresh, REFRESH_US);
    if (!assay->asking) {
        const Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
        assay->asking = as_rpc_call(assay->scheduler, "Stat", &request.base, assay->timeout_us,
                                    on_stat, assay, NULL) == AS_OK;
    }
}

// ---- opening and closing

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static void on_first_stat(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    job_t *job = ctx;
    if (status == AS_OK) {
        take_stat(job->assay, (const Assay__StatReply *)reply);
        as_timer_start(job->assay->refresh, REFRESH_US);
    }
    job_done(job, status);
}

static void start_open(job_t *job)
{
    assay_t *assay = job->assay;
    assay_client_options_t options;
    assay_client_options_init(&options);
    options.loop = assay->loop;
    options.net_alloc = net_alloc;
    as_status_t status = assay_client_alloc(&options, &assay->client);
    if (status == AS_OK) {
        status = as_rpc_client_alloc(assay->loop, assay->target, &assay__scheduler__descriptor,
                                     NULL, &assay->scheduler);
    }
    if (status == AS_OK) {
        status = as_timer_alloc(assay->loop, on_refresh, assay, &assay->refresh);
    }
    if (status == AS_OK) {
        const Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
        status = as_rpc_call(assay->scheduler, "Stat", &request.base, assay->timeout_us,
                             on_first_stat, job, NULL);
    }
    if (status != AS_OK) {
        job_done(job, status);
    }
}

static void start_close(job_t *job)
{
    assay_t *assay = job->assay;
    if (assay->scheduler) {
        as_rpc_client_free(assay->scheduler);
    }
    assay_client_free(assay->client);
    as_timer_free(assay->refresh);
    as_loop_stop(assay->loop);
    job_done(job, AS_OK);
}

static void *run_loop(void *ctx)
{
    as_loop_run(((assay_t *)ctx)->loop);
    return NULL;
}

void assay_close(assay_t *assay)
{
    if (!assay) {
        return;
    }
    job_t job = {0};
    as_status_t status = job_run(&job, assay, start_close);
    AS_ASSERT(status == AS_OK);
    pthread_join(assay->thread, NULL);
    as_loop_free(assay->loop);
    as_mem_free(assay);
}

int assay_open(const assay_config_t *config, assay_t **assay_p)
{
    if (!config || !config->scheduler || !assay_p) {
        return fail(ASSAY_INVALID, "open: the scheduler's address \"host:port\" must be given");
    }
    assay_t *assay = as_mem_zalloc(1, sizeof(*assay));
    if (!assay) {
        return fail(ASSAY_FAILED, "open: out of memory");
    }
    assay->timeout_us =
        (uint64_t)(config->timeout_ms ? config->timeout_ms : TIMEOUT_MS_DEFAULT) * 1000;
    assay->target = config->scheduler;
    as_status_t status = as_loop_alloc_uv(&assay->loop);
    if (status != AS_OK) {
        as_mem_free(assay);
        return result_of(status, "open");
    }
    if (pthread_create(&assay->thread, NULL, run_loop, assay) != 0) {
        as_loop_free(assay->loop);
        as_mem_free(assay);
        return fail(ASSAY_FAILED, "open: no thread can be started");
    }
    job_t job = {0};
    status = job_run(&job, assay, start_open);
    if (status != AS_OK) {
        assay_close(assay);
        return fail(ASSAY_UNREACHABLE, "open: the scheduler at %s does not answer: %s",
                    config->scheduler, as_status_str(status));
    }
    *assay_p = assay;
    return ASSAY_OK;
}

// ---- exists and get

static void on_located(void *ctx, uint32_t block_count)
{
    ((job_t *)ctx)->hit = block_count;
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
}

static void on_fetched(void *ctx, as_status_t status, uint32_t hole)
{
    job_t *job = ctx;
    if (status != AS_OK) {
        job->hit = hole;
    }
    job_done(job, status);
}

static void fetch(job_t *job)
{
    const assay_fetch_args_t args = {
        .shape = job->shape,
        .keys = job->keys,
        .node_ids = job->node_ids,
        .block_count = job->count,
        .deadline_us = job_left_us(job),
        .buffer = job->buffer,
        .layer_stride = job->locate_only ? 0 : as_extent_bytes(&job->shape),
        .block_stride = job->locate_only ? 0 : as_block_bytes(&job->shape),
        .layer_slots = job->shape.layers,
        .on_located = on_located,
        .on_layer = on_layer,
        .on_done = on_fetched,
        .ctx = job,
    };
    assay_fetch_t *fetch_handle;
    as_status_t status = job->locate_only
                             ? assay_locate(job->assay->client, &args, &fetch_handle)
                             : assay_fetch_start(job->assay->client, &args, &fetch_handle);
    if (status != AS_OK) {
        job_done(job, status);
    }
}

// Notes for each block the first live store that the route names.
static void take_route(job_t *job, const Assay__RouteReply *reply)
{
    bool is_news = false;
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Assay__StoreNode *node = reply->nodes[i];
        is_news |= store_add(job->assay, node->node_id, node->data_address, node->capacity_bytes);
    }
    if (is_news) {
        assay_client_set_stores(job->assay->client, job->assay->stores, job->assay->store_count);
    }
    for (size_t i = 0; i < reply->n_runs; i++) {
        const Assay__RouteRun *run = reply->runs[i];
        for (uint32_t b = 0; run->n_node_ids > 0 && b < run->block_count; b++) {
            if ((uint64_t)run->first_block + b < job->count) {
                job->node_ids[run->first_block + b] = run->node_ids[0];
            }
        }
    }
}

static void on_routed(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    job_t *job = ctx;
    if (status == AS_OK) {
        take_route(job, (const Assay__RouteReply *)reply);
    }
    if (status == AS_ERR_CANCELLED) {
        job_done(job, status);
        return;
    }
    fetch(job);
}

static void start_route(job_t *job)
{
    Assay__RouteRequest request = ASSAY__ROUTE_REQUEST__INIT;
    request.keys =
        (ProtobufCBinaryData){job->count * sizeof(as_key_t), (uint8_t *)(uintptr_t)job->keys};
    // Half of the time at most: placement still finds most blocks when the scheduler is away.
    as_status_t status = as_rpc_call(job->assay->scheduler, "Route", &request.base,
                                     job->assay->timeout_us / 2 + 1, on_routed, job, NULL);
    if (status != AS_OK) {
        fetch(job);
    }
}

static as_status_t look_up(assay_t *assay, job_t *job, const uint8_t *keys, uint32_t count)
{
    job->node_ids = as_mem_zalloc(count, sizeof(uint64_t));
    if (!job->node_ids) {
        return AS_ERR_NO_MEMORY;
    }
    job->keys = (const as_key_t *)(const void *)keys;
    job->count = count;
    as_status_t status = job_run(job, assay, start_route);
    as_mem_free(job->node_ids);
    return status;
}

int assay_exists(assay_t *assay, const uint8_t *keys, uint32_t count, uint32_t *hit_p)
{
    if (!assay || !keys || !hit_p || count == 0 || count > AS_CHAIN_BLOCKS_MAX) {
        return fail(ASSAY_INVALID, "exists: between 1 and %u keys must be given",
                    AS_CHAIN_BLOCKS_MAX);
    }
    job_t job = {.locate_only = true};
    as_status_t status = look_up(assay, &job, keys, count);
    *hit_p = status == AS_OK ? job.hit : 0;
    return result_of(status, "exists");
}

static bool shape_from(const assay_shape_t *from, as_shape_t *to)
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

int assay_get(assay_t *assay, const assay_shape_t *shape, const uint8_t *keys, uint32_t count,
              void *buffer, uint32_t *hit_p)
{
    job_t job = {0};
    if (!assay || !keys || !buffer || !hit_p || count == 0 || count > AS_CHAIN_BLOCKS_MAX) {
        return fail(ASSAY_INVALID, "get: a buffer and between 1 and %u keys must be given",
                    AS_CHAIN_BLOCKS_MAX);
    }
    if (!shape_from(shape, &job.shape)) {
        return fail(ASSAY_INVALID, "get: the shape is not valid");
    }
    job.buffer = buffer;
    as_status_t status = look_up(assay, &job, keys, count);
    *hit_p = job.hit;
    int result = result_of(status, "get");
    return result == ASSAY_OK && job.hit < count ? ASSAY_MISS : result;
}

// ---- put

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)node_id;
    job_done(ctx, status);
}

static void start_put(job_t *job)
{
    assay_put_t *put;
    job->put.deadline_us = job->assay->timeout_us;
    job->put.on_done = on_put;
    job->put.ctx = job;
    as_status_t status = assay_put_start(job->assay->client, &job->put, &put);
    if (status != AS_OK) {
        job_done(job, status);
    }
}

int assay_put(assay_t *assay, const assay_shape_t *shape, const uint8_t *namespace_key,
              const uint8_t *keys, uint32_t index, const void *block)
{
    job_t job = {0};
    if (!assay || !namespace_key || !keys || !block || index >= AS_CHAIN_BLOCKS_MAX) {
        return fail(ASSAY_INVALID, "put: a block, its keys and their namespace must be given");
    }
    if (!shape_from(shape, &job.put.shape)) {
        return fail(ASSAY_INVALID, "put: the shape is not valid");
    }
    const as_key_t *chain = (const as_key_t *)(const void *)keys;
    memcpy(&job.put.namespace_key, namespace_key, sizeof(as_key_t));
    job.put.key = chain[index];
    job.put.parent = index > 0 ? chain[index - 1] : job.put.namespace_key;
    job.put.run_key = chain[index / AS_RUN_BLOCKS * AS_RUN_BLOCKS];
    job.put.token_count = shape->block_tokens;
    job.put.block = block;
    return result_of(job_run(&job, assay, start_put), "put");
}

// ---- keys

int assay_namespace(const uint8_t model_fingerprint[32], const assay_shape_t *shape,
                    const char *numerics_id, const char *tenant_salt, uint8_t namespace_key[32])
{
    as_namespace_t ns = {
        .numerics_id = numerics_id, .tenant_salt = tenant_salt, .tensor_parallel_size = 1};
    if (!model_fingerprint || !namespace_key || !shape_from(shape, &ns.shape)) {
        return fail(ASSAY_INVALID, "namespace: a fingerprint and a valid shape must be given");
    }
    memcpy(&ns.model_fingerprint, model_fingerprint, sizeof(as_key_t));
    as_key_t key;
    as_namespace_key(&ns, &key);
    memcpy(namespace_key, &key, sizeof(key));
    return ASSAY_OK;
}

uint32_t assay_chain(const uint8_t namespace_key[32], const int32_t *tokens, size_t token_count,
                     uint32_t block_tokens, uint8_t *keys, uint32_t count_max)
{
    if (!namespace_key || (!tokens && token_count > 0) || block_tokens == 0 || !keys) {
        return 0;
    }
    as_key_t parent;
    memcpy(&parent, namespace_key, sizeof(parent));
    return as_chain_keys(&parent, tokens, token_count, block_tokens, (as_key_t *)(void *)keys,
                         count_max);
}
