// SPDX-License-Identifier: Apache-2.0
// The worker: hands requests to the engine, and what comes back to whoever
// asked.
//
// Runs on the io loop. A request is posted to the engine once, may be cancelled once, and comes
// back as batches of tokens and one finish; then the io loop says goodbye, and the engine frees it.
// All of this travels in tasks that are part of the request.
#include "gpuworker/worker.h"

#include <string.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/worker_internal.h"

#define NUMERICS_F16 KRN_NUMERICS_VERSION "/f16"
#define NUMERICS_F32 KRN_NUMERICS_VERSION "/f32"

void gpw_worker_post_io(gpw_worker_t *worker, as_task_t *task)
{
    as_loop_post(worker->options.io_loop, task);
}

void gpw_worker_request_gone(gpw_worker_t *worker)
{
    atomic_fetch_sub(&worker->alive, 1);
}

// ---- From the engine, on the io loop -----------------------------------------------------------

static void on_tokens(void *ctx)
{
    gpw_request_t *request = ctx;
    gpw_token_batch_t *batch = atomic_exchange(&request->handed, NULL);
    gpw_token_batch_t *oldest = NULL;
    while (batch) {
        gpw_token_batch_t *next = batch->next;
        batch->next = oldest;
        oldest = batch;
        batch = next;
    }
    while (oldest) {
        gpw_token_batch_t *next = oldest->next;
        request->io_events.on_tokens(request->io_events.ctx, oldest->tokens, oldest->count);
        as_mem_free(oldest);
        oldest = next;
    }
}

static void on_place(void *ctx)
{
    gpw_request_t *request = ctx;
    request->io_events.on_place(request->io_events.ctx, atomic_load(&request->place_told));
}

static void on_finish(void *ctx)
{
    gpw_request_t *request = ctx;
    gpw_worker_t *worker = request->worker;
    on_tokens(request);
    worker->active[request->io_slot] = NULL;
    worker->active_count--;
    request->io_events.on_finish(request->io_events.ctx, request->finish, request->finish_status,
                                 request->finish_text, &request->finish_usage);
    as_loop_post(worker->options.engine_loop, &request->goodbye_task);
}

// ---- From the io loop, on the engine's
// -----------------------------------------------------------

static void on_submit(void *ctx)
{
    gpw_request_t *request = ctx;
    request->in_engine = true;
    gpw_engine_add(request->engine, request);
}

static void on_cancel(void *ctx)
{
    gpw_request_t *request = ctx;
    if (!request->finished) {
        gpw_request_finish(request, GPW_FINISH_CANCELLED, AS_ERR_CANCELLED,
                           "the request was cancelled");
        gpw_engine_kick(request->engine);
    }
}

static void on_stop(void *ctx)
{
    gpw_request_t *request = ctx;
    if (!request->finished) {
        gpw_request_finish(request, GPW_FINISH_STOP, AS_OK, NULL);
        gpw_engine_kick(request->engine);
    }
}

static void on_goodbye(void *ctx)
{
    gpw_request_t *request = ctx;
    gpw_engine_farewell(request->engine, request);
}

// ---- Submit ------------------------------------------------------------------------------------

static const char *name_of(const gpw_worker_t *worker, const gpw_request_params_t *p)
{
    return p->compressor ? p->compressor : worker->options.compressor;
}

static bool is_auto(const gpw_worker_t *worker, const gpw_request_params_t *p)
{
    return strcmp(name_of(worker, p), GPW_COMPRESSOR_AUTO) == 0;
}

static const char *numerics_id(const gpw_model_t *model)
{
    return model->output.type == KRN_WEIGHT_F32 ? NUMERICS_F32 : NUMERICS_F16;
}

static void init_request(gpw_worker_t *worker, gpw_request_t *r, const gpw_request_params_t *p,
                         const gpw_compressor_t *compressor)
{
    const gpw_worker_options_t *o = &worker->options;
    uint64_t now_us = as_loop_now_us(o->io_loop);
    as_namespace_t ns = {.model_fingerprint = o->model->fingerprint,
                         .shape = worker->engine->shape,
                         .numerics_id = numerics_id(o->model),
                         .tensor_parallel_size = 1,
                         .tenant_salt = p->cache_salt};
    uint32_t horizon = p->horizon_set ? p->horizon : o->horizon;
    bool chooses = horizon > 0 && is_auto(worker, p);
    as_namespace_key(&ns, &r->namespace_key);
    r->worker = worker;
    r->engine = worker->engine;
    r->params = *p;
    r->params.ignore_end |= p->continuation != NULL;
    r->compressor = horizon > 0 ? compressor : NULL;
    r->chosen.wanted = chooses;
    r->keep_full = !r->compressor && !chooses && !o->swap_full_cache;
    r->verify = p->verify == GPW_VERIFY_FULL || !r->compressor; // without one every token is exact
    gpw_horizon_init(&r->horizon, horizon, horizon, !p->horizon_set);
    // Plain decoding is to be plain, and so is what swaps for each token. What is known needs no
    // proposals.
    bool drafts =
        horizon > 0 && r->verify && (r->compressor || chooses || r->keep_full) && !p->continuation;
    uint32_t lookup = p->prompt_lookup_set ? p->prompt_lookup : o->prompt_lookup;
    gpw_lookup_init(&r->lookup, drafts ? lookup : 0);
    gpw_draft_window_init(&r->draft_window, drafts && o->draft_model ? o->draft_tokens : 0);
    r->submitted_us = now_us;
    r->deadline_us = now_us + (p->deadline_us ? p->deadline_us : o->request_deadline_us);
    r->token_count = r->prompt_count = p->token_count;
    r->tokens_max = p->token_count + p->max_tokens;
    r->usage.prompt_tokens = p->token_count;
    r->usage.compressor = chooses ? NULL : r->compressor ? r->compressor->name : "none";
    r->submit_task = (as_task_t){.fn = on_submit, .ctx = r};
    r->cancel_task = (as_task_t){.fn = on_cancel, .ctx = r};
    r->stop_task = (as_task_t){.fn = on_stop, .ctx = r};
    r->goodbye_task = (as_task_t){.fn = on_goodbye, .ctx = r};
    r->tokens_task = (as_task_t){.fn = on_tokens, .ctx = r};
    r->place_task = (as_task_t){.fn = on_place, .ctx = r};
    r->finish_task = (as_task_t){.fn = on_finish, .ctx = r};
}

static bool copy_tokens(gpw_request_t *request, const gpw_request_params_t *params)
{
    size_t continued = params->continuation ? params->max_tokens * sizeof(int32_t) : 0;
    request->tokens = as_mem_alloc((size_t)request->tokens_max * sizeof(int32_t));
    request->continuation = continued ? as_mem_alloc(continued) : NULL;
    if (!request->tokens || (continued && !request->continuation)) {
        return false;
    }
    memcpy(request->tokens, params->tokens, params->token_count * sizeof(int32_t));
    if (continued) {
        memcpy(request->continuation, params->continuation, continued);
    }
    return true;
}

static as_status_t make_request(gpw_worker_t *worker, const gpw_request_params_t *params,
                                const gpw_refusal_t *refusal, gpw_request_t **request_p)
{
    const char *name = name_of(worker, params);
    const gpw_compressor_t *compressor;
    as_status_t status = gpw_params_compressor(worker, name, refusal, &compressor);
    if (status != AS_OK) {
        return status;
    }
    if (is_auto(worker, params) && params->verify != GPW_VERIFY_FULL) {
        return gpw_refuse(
            refusal, AS_ERR_INVALID,
            "with verify \"off\" the answer depends on the compressor, so \"auto\" cannot "
            "choose it: name one, such as \"%s\", or have the answer verified",
            gpw_compressors()->name);
    }
    gpw_request_t *request = as_mem_zalloc(1, sizeof(*request));
    if (!request) {
        return gpw_refuse(refusal, AS_ERR_NO_MEMORY, "the worker is out of memory");
    }
    init_request(worker, request, params, compressor);
    uint64_t bytes = gpw_candidates_bytes_min(request);
    if (bytes > worker->options.cache_bytes_max) {
        as_mem_free(request);
        return gpw_refuse(
            refusal, AS_ERR_LIMIT,
            "prompt and max_tokens may need %llu bytes of cache, the worker has %llu: "
            "shorten them, or start the worker with more --device-memory",
            (unsigned long long)bytes, (unsigned long long)worker->options.cache_bytes_max);
    }
    if (!copy_tokens(request, params)) {
        as_mem_free(request->tokens);
        as_mem_free(request->continuation);
        as_mem_free(request);
        return gpw_refuse(refusal, AS_ERR_NO_MEMORY, "the worker is out of memory");
    }
    *request_p = request;
    return AS_OK;
}

as_status_t gpw_worker_submit(gpw_worker_t *worker, const gpw_request_params_t *params,
                              const gpw_request_events_t *events, char *error, size_t error_bytes,
                              uint64_t *request_id_p)
{
    gpw_refusal_t refusal = {error, error_bytes};
    as_status_t status = gpw_params_check(worker, params, &refusal);
    if (status != AS_OK) {
        return status;
    }
    if (worker->active_count == worker->active_max) {
        return gpw_refuse(
            &refusal, AS_ERR_BUSY,
            "the worker has %u requests running or waiting, its limit: try again later",
            worker->active_count);
    }
    gpw_request_t *request = NULL;
    status = make_request(worker, params, &refusal, &request);
    if (status != AS_OK) {
        return status;
    }
    uint32_t slot = 0;
    while (worker->active[slot]) {
        slot++;
    }
    request->id = ++worker->next_id;
    request->io_events = *events;
    request->io_slot = slot;
    worker->active[slot] = request;
    worker->active_count++;
    atomic_fetch_add(&worker->alive, 1);
    gpw_metric_add(GPW_METRIC_REQUESTS_TOTAL, 1);
    *request_id_p = request->id;
    as_loop_post(worker->options.engine_loop, &request->submit_task);
    return AS_OK;
}

static gpw_request_t *request_of(const gpw_worker_t *worker, uint64_t request_id)
{
    for (uint32_t slot = 0; slot < worker->active_max; slot++) {
        if (worker->active[slot] && worker->active[slot]->id == request_id) {
            return worker->active[slot];
        }
    }
    return NULL;
}

void gpw_worker_cancel(gpw_worker_t *worker, uint64_t request_id)
{
    gpw_request_t *request = request_of(worker, request_id);
    if (request) {
        as_loop_post(worker->options.engine_loop, &request->cancel_task);
    }
}

void gpw_worker_stop(gpw_worker_t *worker, uint64_t request_id)
{
    gpw_request_t *request = request_of(worker, request_id);
    if (request) {
        as_loop_post(worker->options.engine_loop, &request->stop_task);
    }
}

// ---- Life --------------------------------------------------------------------------------------

void gpw_worker_options_init(gpw_worker_options_t *options)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *options = (gpw_worker_options_t){
        .threads = cores > 0 ? (uint32_t)cores : 1,
        .block_tokens = AS_BLOCK_TOKENS_DEFAULT,
        .sessions_max = 4,
        .queue_max = 32,
        .compressor = "kivi4",
        .horizon = GPW_HORIZON_MAX,
        .prompt_lookup = 8,
        .draft_tokens = 4,
        .draft_window = 512,
        .batch_rows = GPW_FORWARD_STEP_ROWS,
        .overlap = true,
        .shared_verification = true,
        .swap_ring_layers = 4,
        .cache_bytes_max = (uint64_t)2 << 30,
        .request_deadline_us = 600000000,
        .route_deadline_us = 1000000,
        .fetch_deadline_us = 5000000,
        .put_deadline_us = 5000000,
        .recompute_tokens_per_s = -1,
        .name = "worker",
        .http_address = "",
    };
}

static void report_load(void *ctx, uint64_t *used_bytes, uint64_t *sessions,
                        uint64_t *queued_tokens)
{
    gpw_worker_t *worker = ctx;
    *used_bytes = atomic_load(&worker->engine->load_used_bytes);
    *sessions = atomic_load(&worker->engine->load_sessions);
    *queued_tokens = atomic_load(&worker->engine->load_queued_tokens);
}

static as_status_t check_draft_model(const gpw_worker_options_t *o)
{
    char error[256] = "";
    const gpw_model_t *draft = o->draft_model;
    as_shape_t shape = gpw_model_shape(draft, o->block_tokens);
    if (!gpw_draft_model_fits(o->model, draft, error, sizeof(error))) {
        AS_ERROR("worker", "the draft model does not fit: %s", error);
        return AS_ERR_CONFIG;
    }
    if (o->draft_tokens > GPW_LOOKUP_MAX || o->draft_window < GPW_DRAFT_WINDOW_MIN ||
        o->draft_window > draft->rope.position_count || o->draft_window > draft->context_max) {
        AS_ERROR("worker", "draft tokens %u or window %u (of %u tokens of context) out of range",
                 o->draft_tokens, o->draft_window, draft->context_max);
        return AS_ERR_CONFIG;
    }
    return as_shape_check(&shape);
}

// Whether the default can be what a request asks for.
static bool is_usable(const gpw_worker_options_t *o)
{
    const gpw_compressor_t *compressor = gpw_compressor_find(o->compressor);
    return compressor
               ? (o->calibration || !(compressor->flags & GPW_COMPRESSOR_CALIBRATED)) &&
                     (!(compressor->flags & GPW_COMPRESSOR_SUMMARIZES) || o->calibration->maps)
               : strcmp(o->compressor, "none") == 0 ||
                     strcmp(o->compressor, GPW_COMPRESSOR_AUTO) == 0;
}

static as_status_t check_options(gpw_worker_options_t *o)
{
    const gpw_model_t *model = o->model;
    uint32_t limit = model->rope.position_count < model->context_max ? model->rope.position_count
                                                                     : model->context_max;
    o->context_max = o->context_max && o->context_max < limit ? o->context_max : limit;
    o->swap_ring_layers = o->swap_ring_layers < model->layers ? o->swap_ring_layers : model->layers;
    bool counts = o->threads > 0 && o->sessions_max > 0 && o->sessions_max <= GPW_REQUESTS_MAX &&
                  o->queue_max <= GPW_REQUESTS_MAX && o->horizon <= GPW_HORIZON_MAX &&
                  o->prompt_lookup <= GPW_LOOKUP_MAX && o->batch_rows > 0 &&
                  o->batch_rows <= GPW_FORWARD_STEP_ROWS && o->swap_ring_layers > 0 &&
                  o->block_tokens > 0 && o->block_tokens <= AS_BLOCK_TOKENS_MAX &&
                  o->context_max > 1;
    if (!counts || !o->compressor || !is_usable(o)) {
        AS_ERROR("worker",
                 "options out of range: sessions %u queue %u horizon %u lookup %u batch %u ring %u "
                 "block %u "
                 "compressor %s",
                 o->sessions_max, o->queue_max, o->horizon, o->prompt_lookup, o->batch_rows,
                 o->swap_ring_layers, o->block_tokens, o->compressor ? o->compressor : "");
        return AS_ERR_CONFIG;
    }
    as_shape_t shape = gpw_model_shape(model, o->block_tokens);
    as_status_t status = as_shape_check(&shape);
    if (status == AS_OK && o->calibration &&
        !gpw_calibration_fits(o->calibration, &model->fingerprint, &shape)) {
        AS_ERROR("worker", "the calibration is of another model");
        status = AS_ERR_CONFIG;
    }
    return status == AS_OK && o->draft_model ? check_draft_model(o) : status;
}

static as_status_t join_cluster(gpw_worker_t *worker)
{
    const gpw_worker_options_t *o = &worker->options;
    gpw_cluster_options_t options = {.loop = o->io_loop,
                                     .scheduler = o->scheduler,
                                     .client = o->client,
                                     .name = o->name,
                                     .http_address = o->http_address,
                                     .cluster_id = o->cluster_id,
                                     .model_fingerprint = o->model->fingerprint,
                                     .numerics_id = numerics_id(o->model),
                                     .capacity_bytes = o->device_bytes_max ? o->device_bytes_max
                                                                           : o->cache_bytes_max,
                                     .incarnation = o->incarnation,
                                     .load = report_load,
                                     .ctx = worker};
    memcpy(options.instance_id, o->instance_id, sizeof(options.instance_id));
    return gpw_cluster_alloc(&options, &worker->cluster);
}

// Rows of the table are the same for all workers: those that need a calibration get it in a copy.
static as_status_t take_calibration(gpw_worker_t *worker, const gpw_calibration_t *calibration)
{
    const gpw_compressor_t *table = gpw_compressors();
    size_t count = 0;
    while (table[count].name) {
        count++;
    }
    worker->calibrated = as_mem_zalloc(count + 1, sizeof(*worker->calibrated));
    if (!worker->calibrated) {
        return AS_ERR_NO_MEMORY;
    }
    worker->calibration = *calibration;
    for (size_t i = 0; i < count; i++) {
        worker->calibrated[i] = table[i];
        if (table[i].flags & GPW_COMPRESSOR_CALIBRATED) {
            worker->calibrated[i].params.calibration = &worker->calibration;
        }
    }
    return AS_OK;
}

as_status_t gpw_worker_alloc(const gpw_worker_options_t *options, gpw_worker_t **worker_p)
{
    gpw_worker_options_t checked = *options;
    as_status_t status = check_options(&checked);
    if (status != AS_OK) {
        return status;
    }
    gpw_worker_t *worker = as_mem_zalloc(1, sizeof(*worker));
    if (!worker) {
        return AS_ERR_NO_MEMORY;
    }
    worker->options = checked;
    worker->active_max = checked.sessions_max + checked.queue_max;
    worker->active = as_mem_zalloc(worker->active_max, sizeof(*worker->active));
    status = worker->active ? AS_OK : AS_ERR_NO_MEMORY;
    if (status == AS_OK && checked.calibration) {
        status = take_calibration(worker, checked.calibration);
    }
    if (status == AS_OK && checked.scheduler) {
        status = join_cluster(worker);
    }
    if (status == AS_OK) {
        status = gpw_link_alloc(checked.engine_loop, checked.io_loop, checked.client,
                                worker->cluster, &worker->link);
    }
    if (status == AS_OK) {
        status = gpw_engine_alloc(&checked, worker->link, gpw_worker_compressor_table(worker),
                                  &worker->engine);
    }
    if (status != AS_OK) {
        gpw_worker_free(worker);
        return status;
    }
    worker->options.cache_bytes_max = worker->engine->options.cache_bytes_max;
    *worker_p = worker;
    return AS_OK;
}

// Requests that the engine never saw, and the last words of all.
static void end_requests(gpw_worker_t *worker)
{
    gpw_usage_t nothing = {0};
    for (uint32_t slot = 0; worker->active && slot < worker->active_max; slot++) {
        gpw_request_t *r = worker->active[slot];
        if (!r) {
            continue;
        }
        on_tokens(r);
        r->io_events.on_finish(r->io_events.ctx, r->finished ? r->finish : GPW_FINISH_CANCELLED,
                               r->finished ? r->finish_status : AS_ERR_CANCELLED,
                               r->finished ? r->finish_text : "the worker is shutting down",
                               r->finished ? &r->finish_usage : &nothing);
        if (!r->in_engine) {
            gpw_request_unpost(r);
            gpw_request_free(r);
        }
    }
}

void gpw_worker_free(gpw_worker_t *worker)
{
    if (!worker) {
        return;
    }
    end_requests(worker);
    gpw_engine_free(worker->engine);
    gpw_link_free(worker->link);
    gpw_cluster_free(worker->cluster);
    as_mem_free(worker->calibrated);
    as_mem_free(worker->active);
    as_mem_free(worker);
}

const gpw_compressor_t *gpw_worker_compressor_table(const gpw_worker_t *worker)
{
    return worker->calibrated ? worker->calibrated : gpw_compressors();
}

const char *const *gpw_worker_compressors(uint32_t without)
{
    return gpw_compressor_names(without);
}

bool gpw_push_down_find(const char *name, gpw_push_down_t *mode_p)
{
    static const char *const names[] = {"off", "on", "auto"};
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *mode_p = (gpw_push_down_t)i;
            return true;
        }
    }
    return false;
}

const gpw_model_t *gpw_worker_model(const gpw_worker_t *worker)
{
    return worker->options.model;
}

const as_shape_t *gpw_worker_shape(const gpw_worker_t *worker)
{
    return &worker->engine->shape;
}

bool gpw_worker_idle(const gpw_worker_t *worker)
{
    return atomic_load(&worker->alive) == 0;
}
