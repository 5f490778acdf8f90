// SPDX-License-Identifier: Apache-2.0
// libassay over the client: a thread with a loop of its own; opening, closing, figures, memory. What
// the requests do is in assay_request.c, their life in assay_op.c.
//
// A job (open, close) lives on its caller's stack. It runs on the loop's thread from `start` until
// job_done, which wakes the caller; every step in between has a deadline, so the caller waits
// without one.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/assay_internal.h"
#include "common/assert.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/tls.h"

#define TIMEOUT_MS_DEFAULT    10000u
#define IN_FLIGHT_MAX_DEFAULT 64u
#define IN_FLIGHT_MAX         1024u
#define REFRESH_US            1000000u

typedef struct job {
    as_task_t task;
    assay_t *assay;
    void (*start)(struct job *job);
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    as_status_t status;
    assay_rate_t *rates; // of assay_stores
    uint32_t rate_count;
} job_t;

// ---- errors

static _Thread_local char last_error[ASSAY_ERROR_BYTES] = "no error";

const char *assay_last_error(void)
{
    return last_error;
}

const char *assay_version(void)
{
    return AS_VERSION;
}

const char *assay_result_name(int result)
{
    static const char *const names[] = {"denied",      "conflict", "cancelled", "failed",
                                        "unreachable", "timeout",  "busy",      "invalid",
                                        "ok",          "miss",     "exists",    "pending"};
    bool known = result >= ASSAY_DENIED && result <= ASSAY_PENDING;
    return known ? names[result - ASSAY_DENIED] : "unknown";
}

int assay_fail(int result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return result;
}

int assay_result_of(as_status_t status)
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
        return ASSAY_INVALID;
    case AS_ERR_BUSY:
        return ASSAY_BUSY;
    case AS_ERR_DEADLINE:
        return ASSAY_TIMEOUT;
    case AS_ERR_UNREACHABLE:
    case AS_ERR_PEER_LOST:
        return ASSAY_UNREACHABLE;
    case AS_ERR_CANCELLED:
        return ASSAY_CANCELLED;
    case AS_ERR_CONFLICT:
        return ASSAY_CONFLICT;
    case AS_ERR_DENIED:
        return ASSAY_DENIED;
    default:
        return ASSAY_FAILED;
    }
}

void assay_describe(as_status_t status, const char *what, char text[ASSAY_ERROR_BYTES])
{
    int result = assay_result_of(status);
    snprintf(text, ASSAY_ERROR_BYTES, "%s: %s", what,
             result == ASSAY_BUSY          ? "the store is full or too much is under way"
             : result == ASSAY_TIMEOUT     ? "not done in time"
             : result == ASSAY_UNREACHABLE ? "no store node answers"
             : result == ASSAY_CONFLICT    ? "the store has other bytes under this key"
             : result == ASSAY_DENIED
                 ? "a store refuses the token, or there is none: give a file of a good one as "
                   "token_file (`assay token show` looks at it; the store's log says what is wrong)"
                 : as_status_str(status));
}

// ---- jobs

static void on_job(void *ctx)
{
    job_t *job = ctx;
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

// ---- stores

// Adds a store that is not known yet; true when there was one to add.
static bool store_add(assay_t *assay, const assay_store_t *from, const char *data_address)
{
    bool fits = from->node_id != 0 && assay->store_count < ASSAY_STORES_MAX &&
                data_address[0] != '\0' && strlen(data_address) < ASSAY_ADDRESS_BYTES_MAX;
    for (uint32_t i = 0; fits && i < assay->store_count; i++) {
        fits = assay->stores[i].node_id != from->node_id;
    }
    if (fits) {
        assay_store_t *store = &assay->stores[assay->store_count++];
        *store = *from;
        memcpy(store->data_address, data_address, strlen(data_address) + 1);
    }
    return fits;
}

static void set_stores(assay_t *assay)
{
    assay_client_set_stores(assay->client, assay->stores, assay->store_count);
    pthread_mutex_lock(&assay->lock);
    assay->stats.stores = assay->store_count;
    pthread_mutex_unlock(&assay->lock);
}

static void take_stat(assay_t *assay, const Assay__StatReply *reply)
{
    assay->store_count = 0;
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Assay__NodeStat *node = reply->nodes[i];
        if (node->role == ASSAY__ROLE__ROLE_STORE &&
            node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE) {
            const assay_store_t store = {.node_id = node->node_id,
                                         .capacity_bytes = node->weight_bytes,
                                         .draining = node->draining};
            store_add(assay, &store, node->data_address);
        }
    }
    set_stores(assay);
    assay_client_set_replicas(assay->client, reply->replicas);
}

void assay_take_nodes(assay_t *assay, const Assay__RouteReply *reply)
{
    bool is_news = false;
    for (size_t i = 0; i < reply->n_nodes; i++) {
        const Assay__StoreNode *node = reply->nodes[i];
        const assay_store_t store = {.node_id = node->node_id,
                                     .capacity_bytes = node->capacity_bytes,
                                     .draining = node->draining};
        is_news |= store_add(assay, &store, node->data_address);
    }
    if (is_news) {
        set_stores(assay);
    }
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
    as_rpc_tls_refresh();
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
    options.fetches_max = assay->stats.in_flight_max;
    options.puts_max = assay->stats.in_flight_max + PUTS_SHARED;
    as_status_t status = assay_client_alloc(&options, &assay->client);
    if (status == AS_OK) {
        assay_client_take_cipher(assay->client, assay->cipher);
        assay->cipher = NULL;
    }
    if (status == AS_OK && assay->token_file) {
        status = assay_client_use_token_file(assay->client, assay->token_file);
    }
    if (status == AS_OK) {
        status = as_rpc_client_alloc(assay->loop, assay->target, &assay__scheduler__descriptor,
                                     assay->tls.ca_file ? &assay->tls : NULL, &assay->scheduler);
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
    assay_client_free(assay->client); // every operation is over
    AS_ASSERT(assay->stats.in_flight == 0);
    as_timer_free(assay->refresh);
    as_loop_stop(assay->loop);
    job_done(job, AS_OK);
}

static void *run_loop(void *ctx)
{
    as_loop_run(((assay_t *)ctx)->loop);
    return NULL;
}

// Of a client whose thread has ended, or was never there.
static void assay_free(assay_t *assay)
{
    as_loop_free(assay->loop);
    for (region_t *region = assay->regions, *next; region; region = next) {
        next = region->next;
        as_mem_free(region);
    }
    pthread_mutex_destroy(&assay->lock);
    as_cipher_free(assay->cipher);
    as_mem_free(assay->token_file);
    as_mem_free(assay);
}

void assay_close(assay_t *assay)
{
    if (!assay) {
        return;
    }
    AS_ASSERT(!pthread_equal(pthread_self(), assay->thread)); // a callback cannot close its client
    pthread_mutex_lock(&assay->lock);
    assay->closing = true;
    pthread_mutex_unlock(&assay->lock);
    job_t job = {0};
    as_status_t status = job_run(&job, assay, start_close);
    AS_ASSERT(status == AS_OK);
    pthread_join(assay->thread, NULL);
    assay_free(assay);
}

static int check_config(const assay_config_t *config)
{
    if (!config || !config->scheduler) {
        return assay_fail(ASSAY_INVALID,
                          "open: the scheduler's address \"host:port\" must be given");
    }
    if (config->in_flight_max > IN_FLIGHT_MAX) {
        return assay_fail(ASSAY_INVALID, "open: in_flight_max is %u, %u at most",
                          config->in_flight_max, IN_FLIGHT_MAX);
    }
    for (size_t i = 0; i < sizeof(config->reserved) / sizeof(config->reserved[0]); i++) {
        if (config->reserved[i] != 0) {
            return assay_fail(ASSAY_INVALID, "open: a member is set that this version does not "
                                             "know: initialize the struct with = {0}");
        }
    }
    return ASSAY_OK;
}

// The files that the configuration names.
static int check_files(const assay_config_t *config)
{
    char text[AS_TLS_TEXT_BYTES];
    const as_rpc_tls_t tls = {config->tls_ca, config->tls_cert, config->tls_key};
    if (as_tls_look(&tls, text) != AS_OK) {
        return assay_fail(ASSAY_INVALID, "open: %s", text);
    }
    as_token_sealed_t token;
    if (config->token_file && as_token_file(config->token_file, &token) != AS_OK) {
        return assay_fail(ASSAY_INVALID, "open: token %s: %s", config->token_file,
                          errno == EINVAL
                              ? "holds no token: 96 characters that `assay token issue` printed"
                              : strerror(errno));
    }
    return ASSAY_OK;
}

static assay_t *assay_new(const assay_config_t *config)
{
    assay_t *assay = as_mem_zalloc(1, sizeof(*assay));
    if (!assay) {
        return NULL;
    }
    pthread_mutex_init(&assay->lock, NULL);
    assay->timeout_us =
        (uint64_t)(config->timeout_ms ? config->timeout_ms : TIMEOUT_MS_DEFAULT) * 1000;
    assay->stats.in_flight_max =
        config->in_flight_max ? config->in_flight_max : IN_FLIGHT_MAX_DEFAULT;
    assay->target = config->scheduler;
    assay->tls = (as_rpc_tls_t){config->tls_ca, config->tls_cert, config->tls_key};
    assay->token_file = config->token_file ? as_mem_strdup(config->token_file) : NULL;
    bool has_token = assay->token_file || !config->token_file;
    if (!has_token || as_loop_alloc_uv(&assay->loop) != AS_OK) {
        assay_free(assay);
        return NULL;
    }
    return assay;
}

int assay_open(const assay_config_t *config, assay_t **assay_p)
{
    int result = check_config(config);
    result = result == ASSAY_OK ? check_files(config) : result;
    if (result != ASSAY_OK || !assay_p) {
        return result != ASSAY_OK ? result
                                  : assay_fail(ASSAY_INVALID, "open: a place for the client must "
                                                              "be given");
    }
    as_cipher_t *cipher = NULL;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    if (config->encrypt_key_file &&
        as_cipher_alloc_file(config->encrypt_key_file, &cipher, why) != AS_OK) {
        return assay_fail(ASSAY_INVALID, "open: encrypt_key_file %s: %s", config->encrypt_key_file,
                          why);
    }
    assay_t *assay = assay_new(config);
    if (!assay) {
        as_cipher_free(cipher);
        return assay_fail(ASSAY_FAILED, "open: out of memory");
    }
    assay->cipher = cipher;
    if (pthread_create(&assay->thread, NULL, run_loop, assay) != 0) {
        assay_free(assay);
        return assay_fail(ASSAY_FAILED, "open: no thread can be started");
    }
    job_t job = {0};
    as_status_t status = job_run(&job, assay, start_open);
    if (status != AS_OK) {
        assay_close(assay);
        // A server that wants TLS and a client that does not, or the reverse, see each other hang up.
        return assay_fail(ASSAY_UNREACHABLE, "open: the scheduler at %s does not answer: %s%s",
                          config->scheduler, as_status_str(status),
                          config->tls_ca ? "; it needs a certificate that tls_ca signed"
                                         : "; if it has TLS, give tls_ca, tls_cert and tls_key");
    }
    *assay_p = assay;
    return ASSAY_OK;
}

// ---- the short forms

int assay_exists(assay_t *assay, const uint8_t *keys, uint32_t count, uint32_t *hit_p)
{
    if (!hit_p) {
        return assay_fail(ASSAY_INVALID, "exists: a place for the number of hits must be given");
    }
    const assay_request_t request = {
        .kind = ASSAY_KIND_EXISTS, .flags = ASSAY_PREFIX, .keys = keys, .count = count};
    return assay_run(assay, &request, hit_p);
}

int assay_get(assay_t *assay, const assay_shape_t *shape, const uint8_t *keys, uint32_t count,
              void *buffer, uint32_t *hit_p)
{
    if (!hit_p) {
        return assay_fail(ASSAY_INVALID, "get: a place for the number of hits must be given");
    }
    const assay_request_t request = {.kind = ASSAY_KIND_GET,
                                     .flags = ASSAY_PREFIX,
                                     .keys = keys,
                                     .count = count,
                                     .shape = shape,
                                     .buffer = buffer};
    return assay_run(assay, &request, hit_p);
}

int assay_put(assay_t *assay, const assay_shape_t *shape, const uint8_t *namespace_key,
              const uint8_t *keys, uint32_t index, const void *block)
{
    if (index >= AS_CHAIN_BLOCKS_MAX) {
        return assay_fail(ASSAY_INVALID, "put: the chain has at most %u blocks",
                          AS_CHAIN_BLOCKS_MAX);
    }
    const assay_request_t request = {.kind = ASSAY_KIND_PUT,
                                     .keys = keys,
                                     .count = index + 1,
                                     .first = index,
                                     .shape = shape,
                                     .namespace_key = namespace_key,
                                     .buffer = (void *)(uintptr_t)block};
    return assay_run(assay, &request, NULL);
}

// ---- figures

static void start_rates(job_t *job)
{
    job->rate_count = assay_client_rates(job->assay->client, job->rates, ASSAY_STORES_MAX);
    job_done(job, AS_OK);
}

int assay_stores(assay_t *assay, assay_store_info_t *stores_p, size_t store_bytes, uint32_t max,
                 uint32_t *count_p)
{
    if (!assay || !count_p || (!stores_p && max > 0)) {
        return assay_fail(ASSAY_INVALID, "stores: a client and places for them must be given");
    }
    if (pthread_equal(pthread_self(), assay->thread)) {
        return assay_fail(ASSAY_INVALID, "a callback must not wait: ask for the stores elsewhere");
    }
    assay_rate_t rates[ASSAY_STORES_MAX];
    job_t job = {.rates = rates};
    as_status_t status = job_run(&job, assay, start_rates);
    AS_ASSERT(status == AS_OK);
    *count_p = job.rate_count < max ? job.rate_count : max;
    for (uint32_t i = 0; i < *count_p; i++) {
        assay_store_info_t info = {.node_id = rates[i].store.node_id,
                                   .locate_us = rates[i].locate_us,
                                   .bytes_per_s = rates[i].bytes_per_s,
                                   .connected = rates[i].is_connected};
        memcpy(info.address, rates[i].store.data_address, sizeof(info.address));
        size_t known = store_bytes < sizeof(info) ? store_bytes : sizeof(info);
        uint8_t *to = (uint8_t *)stores_p + i * store_bytes;
        memcpy(to, &info, known);
        memset(to + known, 0, store_bytes - known);
    }
    return ASSAY_OK;
}

// ---- keys

int assay_namespace(const uint8_t model_fingerprint[32], const assay_shape_t *shape,
                    const char *numerics_id, const char *tenant_salt, uint8_t namespace_key[32])
{
    as_namespace_t ns = {
        .numerics_id = numerics_id, .tenant_salt = tenant_salt, .tensor_parallel_size = 1};
    if (!model_fingerprint || !namespace_key || !assay_shape_take(shape, &ns.shape)) {
        return assay_fail(ASSAY_INVALID,
                          "namespace: a fingerprint and a valid shape must be given");
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
    if (!namespace_key || (!tokens && token_count > 0) || !keys || block_tokens == 0 ||
        block_tokens > AS_BLOCK_TOKENS_MAX) {
        return 0;
    }
    as_key_t parent;
    memcpy(&parent, namespace_key, sizeof(parent));
    return as_chain_keys(&parent, tokens, token_count, block_tokens, (as_key_t *)(void *)keys,
                         count_max);
}

size_t assay_block_bytes(const assay_shape_t *shape)
{
    as_shape_t checked;
    return assay_shape_take(shape, &checked) ? as_block_bytes(&checked) : 0;
}
