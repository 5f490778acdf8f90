// SPDX-License-Identifier: Apache-2.0
// Continuous batching: who is in a step, and the step.
#include "gpuworker/decode/batch.h"

#include <stdatomic.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/engine.h"

// The passes of a step.
typedef struct step {
    gpw_engine_t *engine;
    gpw_request_t *requests[GPW_REQUESTS_MAX];
    gpw_forward_part_t parts[GPW_REQUESTS_MAX]; // of logits: how many rows
    uint32_t offsets[GPW_REQUESTS_MAX];         // of a part's first row in the step
    double attend_us[GPW_REQUESTS_MAX];         // of all threads' time, the part's attention
    uint32_t count, rows;
} step_t;

// ---- Who is there ------------------------------------------------------------------------------

static gpw_lane_t lane_of(const gpw_request_t *request)
{
    uint32_t few = request->engine->options.batch_rows;
    few = few < GPW_HORIZON_MAX + 1 ? few : GPW_HORIZON_MAX + 1;
    if (request->pass.rows > few) {
        return GPW_LANE_PROMPT;
    }
    return request->pass.streams ? GPW_LANE_STREAM : GPW_LANE_STEP;
}

static uint32_t layer_of(const gpw_request_t *request)
{
    return gpw_forward_next_layer(request->pass.slot->forward);
}

// Those whose present layer may run, longest not served first.
static uint32_t ready_passes(gpw_engine_t *engine, gpw_request_t **ready)
{
    uint32_t count = 0;
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (!r->computing || !gpw_pass_ready(r)) {
            continue;
        }
        uint32_t at = count++;
        AS_ASSERT(count <= GPW_REQUESTS_MAX);
        for (; at > 0 && ready[at - 1]->served > r->served; at--) {
            ready[at] = ready[at - 1];
        }
        ready[at] = r;
    }
    return count;
}

// Without overlap nothing is computed while a swap moves.
static bool must_wait(const gpw_engine_t *engine)
{
    return !engine->options.overlap && engine->streams.moving > 0;
}

bool gpw_batch_busy(const gpw_engine_t *engine)
{
    if (must_wait(engine)) {
        return false;
    }
    if (gpw_draft_model_busy(engine)) {
        return true;
    }
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        if (r->computing) {
            return true;
        }
    }
    return false;
}

static bool is_unbegun(const gpw_request_t *request)
{
    const gpw_forward_t *forward = request->pass.slot->forward;
    return gpw_forward_next_layer(forward) == 0 && gpw_forward_next_row(forward) == 0;
}

// The lane that has had least time of those with work. One that comes back has no claim to the time
// in which it wanted nothing.
static gpw_lane_t next_lane(gpw_engine_t *engine)
{
    gpw_batch_t *batch = &engine->batch;
    gpw_request_t *ready[GPW_REQUESTS_MAX];
    bool active[GPW_LANES] = {[GPW_LANE_PROPOSE] = gpw_draft_model_busy(engine)};
    bool company = gpw_draft_model_is_near(engine);
    uint32_t count = ready_passes(engine, ready);
    for (uint32_t i = 0; i < count; i++) {
        bool waits = company && lane_of(ready[i]) == GPW_LANE_STEP && is_unbegun(ready[i]);
        active[lane_of(ready[i])] |= !waits;
    }
    uint64_t least = UINT64_MAX;
    for (int l = 0; l < GPW_LANES; l++) {
        bool goes_on = active[l] && batch->active[l];
        least = goes_on && batch->spent_us[l] < least ? batch->spent_us[l] : least;
    }
    gpw_lane_t lane = GPW_LANE_NONE;
    for (int l = 0; l < GPW_LANES; l++) {
        if (active[l] && !batch->active[l] && least != UINT64_MAX && batch->spent_us[l] < least) {
            batch->spent_us[l] = least;
        }
        batch->active[l] = active[l];
        if (active[l] && (lane == GPW_LANE_NONE || batch->spent_us[l] < batch->spent_us[lane])) {
            lane = (gpw_lane_t)l;
        }
    }
    return lane;
}

// The layer of the lane's next step: of STEP the foremost, of others that of the longest not
// served. False: nobody is there.
static bool next_layer(gpw_request_t *const *ready, uint32_t count, gpw_lane_t lane,
                       uint32_t *layer_p)
{
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        if (lane_of(ready[i]) != lane) {
            continue;
        }
        if (!found || (lane == GPW_LANE_STEP && layer_of(ready[i]) > *layer_p)) {
            *layer_p = layer_of(ready[i]);
            found = true;
        }
    }
    return found;
}

// A pass that wants no logits joins with no rows: to be completed.
static void join(step_t *step, gpw_request_t *request, uint32_t wanted, uint32_t room)
{
    uint32_t left = room - step->rows;
    uint32_t rows = wanted < left ? wanted : left;
    if (rows == 0 && wanted > 0) {
        return;
    }
    request->served = ++step->engine->batch.served;
    step->requests[step->count] = request;
    step->offsets[step->count] = step->rows;
    step->parts[step->count++] = (gpw_forward_part_t){request->pass.slot->forward, rows};
    step->rows += rows;
}

// ---- A layer -----------------------------------------------------------------------------------

typedef struct attention {
    step_t *step;
    gpw_pass_rows_t rows; // of all parts
    uint32_t share;       // of the pool's threads one for each part; 1: all of them
    atomic_uint next;     // part that no thread has taken yet
} attention_t;

static void attend_part(const attention_t *attention, uint32_t i,
                        const gpw_attend_scratch_t *scratch)
{
    step_t *step = attention->step;
    const as_loop_t *loop = step->engine->loop;
    const as_shape_t *shape = &step->engine->shape;
    size_t q_width = (size_t)shape->q_heads * shape->head_dim;
    size_t kv_width = (size_t)shape->kv_heads * shape->head_dim;
    size_t at = step->offsets[i];
    gpw_request_t *request = step->requests[i];
    gpw_pass_rows_t rows = attention->rows;
    rows.row0 = gpw_forward_next_row(step->parts[i].forward);
    rows.rows = step->parts[i].rows;
    rows.q += at * q_width;
    rows.k += at * kv_width;
    rows.v += at * kv_width;
    rows.out += at * q_width;
    rows.scratch = scratch;
    uint64_t start_us = as_loop_now_us(loop);
    request->pass.kind->attend(request, &rows);
    step->attend_us[i] = (double)(as_loop_now_us(loop) - start_us) / attention->share;
}

static void attend_alone(void *ctx, uint32_t index)
{
    attention_t *attention = ctx;
    const step_t *step = attention->step;
    for (uint32_t i; (i = atomic_fetch_add(&attention->next, 1)) < step->count;) {
        attend_part(attention, i, &step->engine->batch.thread[index]);
    }
}

// Many sessions: each thread takes whole ones, which saves waking the others for every one of them.
// Else all threads work on one session at a time. Same bits.
static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    step_t *step = ctx;
    gpw_engine_t *engine = step->engine;
    uint32_t threads = krn_pool_threads(engine->pool);
    attention_t attention = {
        .step = step, .rows = {.layer = layer, .q = q, .k = k, .v = v, .out = out}, .share = 1};
    (void)row0;
    AS_ASSERT(rows == step->rows);
    if (threads > 1 && step->count >= 2 * threads) {
        attention.share = threads;
        krn_pool_run(engine->pool, threads, attend_alone, &attention);
        return;
    }
    for (uint32_t i = 0; i < step->count; i++) {
        attend_part(&attention, i, &engine->batch.scratch);
    }
}

// Of the step's time since then attention is that of who attended, the rest that of all rows, each as much.
static void share_time(const step_t *step, uint64_t since_us)
{
    const gpw_engine_t *engine = step->engine;
    double rest_us = (double)(engine->options.tick_us + as_loop_now_us(engine->loop) - since_us);
    for (uint32_t i = 0; i < step->count; i++) {
        rest_us -= step->attend_us[i];
    }
    rest_us = rest_us > 0 ? rest_us : 0; // clocks of several threads
    for (uint32_t i = 0; i < step->count && step->rows > 0; i++) {
        gpw_pass_t *pass = &step->requests[i]->pass;
        pass->attend_us += step->attend_us[i];
        pass->busy_us += step->attend_us[i] + rest_us * step->parts[i].rows / step->rows;
    }
}

static void run_layer(step_t *step, uint32_t layer)
{
    gpw_engine_t *engine = step->engine;
    uint64_t start_us = as_loop_now_us(engine->loop);
    gpw_forward_step(engine->batch.workspace, step->parts, step->count, attend, step);
    share_time(step, start_us);
    gpw_metric_add(GPW_METRIC_BATCH_LAYERS_TOTAL, 1);
    gpw_metric_add(GPW_METRIC_BATCH_ROWS_TOTAL, step->rows);
    gpw_metric_add(GPW_METRIC_BATCH_PASSES_TOTAL, step->count);
    for (uint32_t i = 0; i < step->count; i++) {
        if (layer_of(step->requests[i]) > layer) {
            gpw_pass_layer_done(step->requests[i], layer);
        }
    }
}

// ---- Logits ------------------------------------------------------------------------------------

static void finish_pass(gpw_request_t *request, const float *logits, uint32_t count)
{
    request->computing = false;
    gpw_turn_t turn = request->pass.kind->complete(request, logits, count);
    request->computing = turn == GPW_TURN_COMPUTE;
    request->runnable |= turn == GPW_TURN_AGAIN;
}

static void run_logits(step_t *step)
{
    gpw_engine_t *engine = step->engine;
    gpw_batch_t *batch = &engine->batch;
    gpw_forward_row_t rows[GPW_LOGITS_ROWS];
    for (uint32_t i = 0, at = 0; i < step->count; i++) {
        for (uint32_t r = 0; r < step->parts[i].rows; r++) {
            rows[at++] =
                (gpw_forward_row_t){step->parts[i].forward, step->requests[i]->pass.logits_row + r};
        }
    }
    uint64_t start_us = as_loop_now_us(engine->loop);
    if (step->rows > 0) {
        gpw_forward_logits(batch->workspace, rows, step->rows, batch->logits);
    }
    share_time(step, start_us);
    for (uint32_t i = 0; i < step->count; i++) {
        const float *logits =
            batch->logits + (size_t)step->offsets[i] * engine->options.model->vocab;
        finish_pass(step->requests[i], logits, step->parts[i].rows);
    }
}

// ---- A unit ------------------------------------------------------------------------------------

// Where a step is: who may ride is decided by it.
typedef struct stop {
    gpw_lane_t lane;
    uint32_t layer;
    bool logits;       // behind the last layer
    uint32_t foremost; // layer of STEP's foremost: the others of the lane wait for these
} stop_t;

// Whether a pass rides in a step of another lane.
static bool rides(const stop_t *stop, const gpw_request_t *request)
{
    switch (lane_of(request)) {
    case GPW_LANE_STEP:
        return stop->layer == stop->foremost;
    case GPW_LANE_PROMPT:
        return stop->logits;
    default:
        return true;
    }
}

static void gather(step_t *step, const stop_t *stop, gpw_request_t *const *ready, uint32_t count)
{
    uint32_t room = stop->logits ? GPW_LOGITS_ROWS : step->engine->options.batch_rows;
    for (int others = 0; others < 2; others++) {
        for (uint32_t i = 0; i < count; i++) {
            gpw_request_t *request = ready[i];
            bool own = lane_of(request) == stop->lane;
            if (own == others || layer_of(request) != stop->layer ||
                (others && !rides(stop, request))) {
                continue;
            }
            uint32_t left = gpw_forward_rows_left(request->pass.slot->forward);
            join(step, request, stop->logits ? request->pass.logits_wanted : left, room);
        }
    }
}

// One step of the lane. Returns how many (row, layer) pairs it was; 0: nobody was there.
static uint32_t run_step(gpw_engine_t *engine, gpw_lane_t lane)
{
    gpw_request_t *ready[GPW_REQUESTS_MAX];
    step_t step = {.engine = engine};
    stop_t stop = {.lane = lane};
    uint32_t count = ready_passes(engine, ready);
    if (!next_layer(ready, count, lane, &stop.layer)) {
        return 0;
    }
    stop.logits = stop.layer == engine->shape.layers;
    if (!next_layer(ready, count, GPW_LANE_STEP, &stop.foremost)) {
        stop.foremost = engine->shape.layers;
    }
    gather(&step, &stop, ready, count);
    if (stop.logits) {
        run_logits(&step);
        return GPW_UNIT_ROWS; // as much work as many layers
    }
    uint64_t start_us = as_loop_now_us(engine->loop);
    run_layer(&step, stop.layer);
    if (lane == GPW_LANE_STEP) {
        gpw_row_price_learn(&engine->batch.price, step.rows,
                            as_loop_now_us(engine->loop) - start_us);
    }
    return step.rows;
}

void gpw_batch_run(gpw_engine_t *engine)
{
    gpw_batch_t *batch = &engine->batch;
    gpw_lane_t lane = must_wait(engine) ? GPW_LANE_NONE : next_lane(engine);
    if (lane == GPW_LANE_NONE) {
        return;
    }
    gpw_streams_count(engine, engine->options.tick_us); // a simulated unit took that before
    uint64_t start_us = as_loop_now_us(engine->loop);
    // A simulated unit is one step: so that more can happen in between.
    uint32_t most = engine->options.tick_us ? 1 : GPW_UNIT_ROWS;
    if (lane == GPW_LANE_PROPOSE) {
        gpw_draft_model_run(engine);
        most = 0;
    }
    for (uint32_t pairs = 0, rows = 1; rows > 0 && pairs < most; pairs += rows) {
        rows = run_step(engine, lane);
    }
    uint64_t us = as_loop_now_us(engine->loop) - start_us;
    batch->spent_us[lane] += engine->options.tick_us + us;
    gpw_streams_count(engine, us);
    gpw_trace_busy(engine->trace, start_us - engine->options.tick_us, start_us + us);
}

// ---- Life --------------------------------------------------------------------------------------

static size_t attention_scratch_bytes(const as_shape_t *shape, uint32_t rows_max)
{
    size_t most = 0;
    for (uint32_t rows = 1; rows <= rows_max; rows++) {
        size_t bytes = krn_attention_scratch_bytes(rows, shape->q_heads, shape->head_dim);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static as_status_t scratch_init(const gpw_engine_t *engine, gpw_attend_scratch_t *scratch)
{
    const as_shape_t *shape = &engine->shape;
    size_t blocks = engine->options.context_max / shape->block_tokens + 2;
    size_t partials =
        (size_t)GPW_DRAFT_ROWS_MAX * shape->q_heads * (shape->head_dim + 2) * sizeof(float);
    scratch->attention =
        as_mem_aligned(64, attention_scratch_bytes(shape, engine->options.batch_rows));
    scratch->segment = as_mem_aligned(64, gpw_segment_scratch_bytes(shape, GPW_DRAFT_ROWS_MAX));
    scratch->lse =
        as_mem_zalloc((size_t)engine->options.batch_rows * shape->q_heads, sizeof(float));
    scratch->partials[0] = as_mem_aligned(64, partials);
    scratch->partials[1] = as_mem_aligned(64, partials);
    scratch->pages = as_mem_zalloc(blocks, sizeof(*scratch->pages));
    bool complete = scratch->attention && scratch->segment && scratch->lse &&
                    scratch->partials[0] && scratch->partials[1] && scratch->pages;
    return complete ? AS_OK : AS_ERR_NO_MEMORY;
}

static void scratch_fini(gpw_attend_scratch_t *scratch)
{
    as_mem_free(scratch->attention);
    as_mem_free(scratch->segment);
    as_mem_free(scratch->lse);
    as_mem_free(scratch->partials[0]);
    as_mem_free(scratch->partials[1]);
    as_mem_free(scratch->pages);
}

static as_status_t threads_init(gpw_engine_t *engine)
{
    uint32_t threads = krn_pool_threads(engine->pool);
    engine->batch.thread = as_mem_zalloc(threads, sizeof(*engine->batch.thread));
    as_status_t status = engine->batch.thread ? AS_OK : AS_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < threads && status == AS_OK; t++) {
        gpw_attend_scratch_t *scratch = &engine->batch.thread[t];
        status = krn_pool_alloc(1, &scratch->pool);
        if (status == AS_OK) {
            status = scratch_init(engine, scratch);
        }
    }
    return status;
}

as_status_t gpw_batch_init(gpw_engine_t *engine)
{
    gpw_batch_t *batch = &engine->batch;
    const gpw_worker_options_t *options = &engine->options;
    as_status_t status = gpw_workspace_alloc(options->model, options->ops, engine->pool,
                                             options->batch_rows, &batch->workspace);
    if (status == AS_OK) {
        batch->scratch.pool = engine->pool;
        status = scratch_init(engine, &batch->scratch);
    }
    if (status == AS_OK) {
        status = threads_init(engine);
    }
    if (status == AS_OK) {
        batch->logits =
            as_mem_aligned(64, (size_t)GPW_LOGITS_ROWS * options->model->vocab * sizeof(float));
        status = batch->logits ? AS_OK : AS_ERR_NO_MEMORY;
    }
    return status;
}

void gpw_batch_fini(gpw_engine_t *engine)
{
    gpw_batch_t *batch = &engine->batch;
    uint32_t threads = batch->thread ? krn_pool_threads(engine->pool) : 0;
    for (uint32_t t = 0; t < threads; t++) {
        scratch_fini(&batch->thread[t]);
        krn_pool_free(batch->thread[t].pool);
    }
    as_mem_free(batch->thread);
    scratch_fini(&batch->scratch);
    as_mem_free(batch->logits);
    gpw_workspace_free(batch->workspace);
}
