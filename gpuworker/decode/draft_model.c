// SPDX-License-Identifier: Apache-2.0
// Proposals by a draft model: when they pay, the window of a session, and the steps that sessions share.
#include "gpuworker/decode/draft_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/engine.h"

#define ACCEPTANCE_START 0.6f // of a model a tenth as large, of prose
#define DECAY            0.9f // weight of the past: about the last ten proposals
#define NEWEST           0.05 // weight of the newest measurement
#define PAUSE_START      16u  // steps without proposals before they are tried again
#define PAUSE_MAX        1024u // a trial computes what the window lacks: then a row or so for each step
#define FEW_ROWS         8u // more of one session is filling its window
#define FILL_WORTH       8u // rows filled for each token still to come: many at once cost little each

// ---- Whether it may ----------------------------------------------------------------------------

static bool differ(char *error, size_t error_bytes, const gpw_model_t *model,
                   const gpw_model_t *draft)
{
    char text[2][64];
    for (int32_t token = 0; (uint32_t)token < model->vocab; token++) {
        const gpw_model_t *of[] = {model, draft};
        size_t bytes[2], said[2];
        for (int i = 0; i < 2; i++) {
            bytes[i] =
                gpw_tokenizer_decode(of[i]->tokenizer, token, true, text[i], sizeof(text[i]));
            said[i] = gpw_tokenizer_decode(of[i]->tokenizer, token, false, text[i], 0);
        }
        size_t compared = bytes[0] < sizeof(text[0]) ? bytes[0] : sizeof(text[0]);
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], compared) != 0) {
            snprintf(error, error_bytes, "its token %d is \"%.*s\", that of the model \"%.*s\"",
                     token, (int)(bytes[1] < sizeof(text[1]) ? bytes[1] : sizeof(text[1])), text[1],
                     (int)compared, text[0]);
            return true;
        }
        if (said[0] != said[1] || gpw_tokenizer_is_end(model->tokenizer, token) !=
                                      gpw_tokenizer_is_end(draft->tokenizer, token)) {
            snprintf(error, error_bytes,
                     "its token %d (\"%.*s\") is of another kind than the model's", token,
                     (int)compared, text[0]);
            return true;
        }
    }
    return false;
}

bool gpw_draft_model_fits(const gpw_model_t *model, const gpw_model_t *draft, char *error,
                          size_t error_bytes)
{
    if (model->vocab != draft->vocab) {
        snprintf(error, error_bytes, "its vocabulary has %u tokens, that of the model %u",
                 draft->vocab, model->vocab);
        return false;
    }
    return !differ(error, error_bytes, model, draft);
}

// ---- A session's window ------------------------------------------------------------------------

void gpw_draft_window_init(gpw_draft_window_t *window, uint32_t most)
{
    *window =
        (gpw_draft_window_t){.most = most, .acceptance = ACCEPTANCE_START, .pause = PAUSE_START};
}

// Of a short request it needs no more than that is long.
static uint32_t tokens_of(const gpw_request_t *request)
{
    uint32_t most = request->engine->draft_model.window_tokens;
    return request->tokens_max < most ? request->tokens_max : most;
}

uint64_t gpw_draft_window_bytes(const gpw_request_t *request)
{
    const as_shape_t *shape = &request->engine->draft_model.shape;
    if (request->draft_window.most == 0) {
        return 0;
    }
    uint32_t pages = (tokens_of(request) + shape->block_tokens - 1) / shape->block_tokens;
    return pages * (uint64_t)as_block_bytes(shape);
}

as_status_t gpw_draft_window_open(gpw_request_t *request)
{
    gpw_draft_window_t *window = &request->draft_window;
    AS_ASSERT(!window->budget);
    if (window->most == 0) {
        return AS_OK;
    }
    size_t bytes = gpw_draft_window_bytes(request);
    int32_t *seen = as_mem_alloc(tokens_of(request) * sizeof(*seen));
    uint8_t *memory = seen ? gpw_budget_alloc(&request->budget, bytes) : NULL;
    if (!memory) {
        as_mem_free(seen);
        return AS_ERR_NO_MEMORY;
    }
    window->seen = seen;
    window->memory = memory;
    window->bytes = bytes;
    window->budget = &request->budget;
    window->first = window->count = 0;
    return AS_OK;
}

void gpw_draft_window_close(gpw_request_t *request)
{
    gpw_draft_window_t *window = &request->draft_window;
    if (window->budget) {
        gpw_draft_model_stop(request);
        gpw_budget_free(window->budget, window->memory, window->bytes);
        as_mem_free(window->seen);
        window->memory = NULL;
        window->seen = NULL;
        window->budget = NULL;
    }
}

// Lets go of what was computed from other tokens than are there now, and of all but the newest half when
// there is no room for tokens[0, end) and `more`.
static void move_window(gpw_request_t *request, uint32_t end, uint32_t more)
{
    gpw_draft_window_t *window = &request->draft_window;
    uint32_t size = request->engine->draft_model.window_tokens;
    uint32_t same = 0;
    while (same < window->count &&
           window->first + same + 1 < end && // one row at least says what follows
           window->seen[same] == request->tokens[window->first + same]) {
        same++;
    }
    window->count = same;
    bool is_far = same == 0 && window->first + size / 2 < end; // nothing is lost by moving on
    if (end - window->first + more > size || is_far) {
        bool whole = end + size / 4 <= size;
        window->first = whole ? 0 : end - size / 2;
        window->count = 0;
    }
}

// Tokens without K and V up to the last one known.
static uint32_t rows_left(const gpw_draft_window_t *window)
{
    return window->end + window->made - window->first - window->count;
}

// ---- When it pays ------------------------------------------------------------------------------

static double mean(double before, double sample)
{
    return before > 0 ? before + NEWEST * (sample - before) : sample;
}

// What a proposal costs, in rows of the model itself.
static float cost(const gpw_engine_t *engine)
{
    const gpw_draft_model_t *draft = &engine->draft_model;
    double step = draft->step_us > 0 && draft->row_us > 0
                      ? draft->step_us / draft->row_us
                      : (double)draft->model->weight_bytes / engine->options.model->weight_bytes;
    return gpw_row_price_get(&engine->batch.price) + (float)step;
}

// How many are worth it, at most `most`.
static uint32_t worth(gpw_request_t *request, uint32_t most)
{
    gpw_draft_window_t *window = &request->draft_window;
    float price = cost(request->engine), chance = window->acceptance;
    uint32_t count = 0;
    for (; count < most && chance > price; chance *= window->acceptance) {
        count++;
    }
    if (count > 0) {
        return count;
    }
    if (++window->waited < window->pause) {
        return 0;
    }
    window->waited = 0;
    window->pause = window->pause < PAUSE_MAX ? 2 * window->pause : PAUSE_MAX;
    return most;
}

bool gpw_draft_model_ask(gpw_request_t *request, uint32_t room)
{
    gpw_draft_window_t *window = &request->draft_window;
    if (!window->budget) {
        return false;
    }
    uint32_t count = worth(request, room < window->most ? room : window->most);
    if (count == 0) {
        return false;
    }
    window->end = request->token_count + request->draft_count;
    window->made = 0;
    move_window(request, window->end, count);
    if (rows_left(window) > FEW_ROWS &&
        rows_left(window) > FILL_WORTH * gpw_request_drafts_left(request)) {
        return false;
    }
    window->wanted = count;
    gpw_engine_kick(request->engine);
    return true;
}

bool gpw_draft_model_is_asked(const gpw_request_t *request)
{
    return request->draft_window.wanted > 0;
}

bool gpw_draft_model_take(gpw_request_t *request, uint32_t room, uint32_t *count_p)
{
    gpw_draft_window_t *window = &request->draft_window;
    if (window->made < window->wanted) {
        return false;
    }
    window->taken = window->made < room ? window->made : room;
    window->wanted = 0;
    *count_p = window->taken;
    return true;
}

uint32_t gpw_draft_model_learn(gpw_request_t *request, uint32_t accepted, double row_us)
{
    gpw_draft_model_t *draft = &request->engine->draft_model;
    gpw_draft_window_t *window = &request->draft_window;
    if (row_us > 0) {
        draft->row_us = mean(draft->row_us, row_us);
    }
    uint32_t taken = window->taken;
    for (uint32_t i = 0; i < taken && i <= accepted;
         i++) { // the first wrong one is the last that tells
        window->acceptance = DECAY * window->acceptance + (i < accepted ? 1.0f - DECAY : 0.0f);
    }
    if (taken > 0 && accepted >= taken) {
        window->pause = PAUSE_START;
    }
    window->taken = 0;
    return taken;
}

void gpw_draft_model_stop(gpw_request_t *request)
{
    gpw_draft_model_t *draft = &request->engine->draft_model;
    for (uint32_t i = 0; i < draft->part_count; i++) {
        if (draft->parts[i].request == request) {
            draft->parts[i].request = NULL;
        }
    }
    request->draft_window.wanted = request->draft_window.made = request->draft_window.taken = 0;
}

// ---- Steps -------------------------------------------------------------------------------------

static bool is_asking(const gpw_request_t *request)
{
    return request->draft_window.made < request->draft_window.wanted;
}

bool gpw_draft_model_busy(const gpw_engine_t *engine)
{
    bool busy = engine->draft_model.part_count > 0;
    for (const gpw_request_t *r = engine->first; engine->draft_model.model && r && !busy;
         r = r->next) {
        busy = is_asking(r);
    }
    return busy;
}

bool gpw_draft_model_is_near(const gpw_engine_t *engine)
{
    bool near = false;
    for (const gpw_request_t *r = engine->first; engine->draft_model.model && r && !near;
         r = r->next) {
        near = is_asking(r) && rows_left(&r->draft_window) <= FEW_ROWS;
    }
    return near;
}

// The session's next rows, at most `room`, join the step.
static uint32_t join(gpw_draft_model_t *draft, gpw_request_t *request, uint32_t room)
{
    gpw_draft_window_t *window = &request->draft_window;
    uint32_t left = rows_left(window), rows = left < room ? left : room;
    if (rows == 0) {
        return 0;
    }
    draft->parts[draft->part_count++] = (gpw_draft_part_t){
        .request = request, .row0 = draft->rows, .rows = rows, .logits = rows == left};
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t position = window->count + i;
        window->seen[position] = request->tokens[window->first + position];
        draft->tokens[draft->rows] = window->seen[position];
        draft->positions[draft->rows++] = (int32_t)position;
    }
    return rows;
}

// Whoever asks, the first to come first; each leaves after a few steps, so nobody waits for ever.
static void begin_step(gpw_engine_t *engine)
{
    gpw_draft_model_t *draft = &engine->draft_model;
    uint32_t few = GPW_DRAFT_FEW_ROWS, fill = GPW_DRAFT_FILL_ROWS;
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (!is_asking(r)) {
            continue;
        }
        uint32_t *room = rows_left(&r->draft_window) <= FEW_ROWS ? &few : &fill;
        *room -= join(draft, r, *room);
    }
    draft->busy_us = 0;
    if (draft->rows > 0) {
        gpw_forward_begin(draft->forward, draft->tokens, draft->positions, draft->rows);
    }
}

static uint8_t *extent_of(const gpw_draft_model_t *draft, const gpw_draft_window_t *window,
                          uint32_t page, uint32_t layer)
{
    return window->memory + page * as_block_bytes(&draft->shape) +
           layer * as_extent_bytes(&draft->shape);
}

// Rows of one session: the pointers are to its first.
static void attend_part(const gpw_engine_t *engine, const gpw_draft_part_t *part,
                        const gpw_pass_rows_t *rows)
{
    const gpw_draft_model_t *draft = &engine->draft_model;
    const as_shape_t *shape = &draft->shape;
    const gpw_draft_window_t *window = &part->request->draft_window;
    size_t width = (size_t)shape->kv_heads * shape->head_dim;
    const int32_t *positions = draft->positions + part->row0;
    for (uint32_t r = 0; r < rows->rows; r++) {
        uint32_t position = (uint32_t)positions[r];
        uint8_t *extent = extent_of(draft, window, position / shape->block_tokens, rows->layer);
        gpw_extent_store(shape, extent, position, rows->k + r * width, rows->v + r * width);
    }
    uint32_t pages = (uint32_t)positions[rows->rows - 1] / shape->block_tokens + 1;
    for (uint32_t p = 0; p < pages; p++) {
        draft->pages[p] = gpw_page(shape, extent_of(draft, window, p, rows->layer), p);
    }
    krn_attention_args_t args =
        gpw_page_attention(shape, rows->rows, 1.0f / sqrtf((float)shape->head_dim), rows->q);
    args.positions = positions;
    args.pages = draft->pages;
    args.page_count = pages;
    krn_attention(engine->options.ops, engine->pool, &args, rows->out, NULL, draft->attention);
}

static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    const gpw_engine_t *engine = ctx;
    const gpw_draft_model_t *draft = &engine->draft_model;
    size_t q_width = (size_t)draft->shape.q_heads * draft->shape.head_dim;
    size_t kv_width = (size_t)draft->shape.kv_heads * draft->shape.head_dim;
    AS_ASSERT(row0 == 0 && rows == draft->rows);
    for (uint32_t i = 0; i < draft->part_count; i++) {
        const gpw_draft_part_t *part = &draft->parts[i];
        const gpw_pass_rows_t own = {.layer = layer,
                                     .rows = part->rows,
                                     .q = q + part->row0 * q_width,
                                     .k = k + part->row0 * kv_width,
                                     .v = v + part->row0 * kv_width,
                                     .out = out + part->row0 * q_width};
        if (part->request) {
            attend_part(engine, part, &own);
        } else { // nobody reads what comes of these rows
            memset(own.out, 0, part->rows * q_width * sizeof(*out));
        }
    }
}

// The next proposal, from the logits of the last token known.
static void propose(gpw_request_t *request, const float *logits)
{
    gpw_draft_window_t *window = &request->draft_window;
    uint32_t position = window->end + window->made;
    request->tokens[position] = gpw_reply_choose(request, logits, position);
    if (++window->made == window->wanted) {
        gpw_request_wake(request);
    }
}

static void run_logits(gpw_engine_t *engine)
{
    gpw_draft_model_t *draft = &engine->draft_model;
    gpw_forward_row_t rows[GPW_REQUESTS_MAX];
    gpw_request_t *of[GPW_REQUESTS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < draft->part_count; i++) {
        const gpw_draft_part_t *part = &draft->parts[i];
        if (part->request && part->logits) {
            of[count] = part->request;
            rows[count++] = (gpw_forward_row_t){draft->forward, part->row0 + part->rows - 1};
        }
    }
    float *logits = engine->batch.logits; // as many rows, and the same vocabulary
    if (count > 0) {
        gpw_forward_logits(draft->workspace, rows, count, logits);
    }
    for (uint32_t i = 0; i < count; i++) {
        propose(of[i], logits + (size_t)i * draft->model->vocab);
    }
}

// The step's time is that of its rows, each as much.
static void end_step(gpw_engine_t *engine)
{
    gpw_draft_model_t *draft = &engine->draft_model;
    bool fills = false;
    for (uint32_t i = 0; i < draft->part_count; i++) {
        const gpw_draft_part_t *part = &draft->parts[i];
        fills = fills || part->rows > FEW_ROWS;
        if (part->request && part->request->drafting) {
            part->request->round.draft_us += draft->busy_us * part->rows / draft->rows;
        }
    }
    if (!fills && draft->busy_us > 0) {
        draft->step_us = mean(draft->step_us, draft->busy_us / draft->part_count);
    }
    gpw_metric_add(GPW_METRIC_MODEL_ROWS_TOTAL, draft->rows);
    gpw_metric_add(GPW_METRIC_MODEL_US_TOTAL, (int64_t)draft->busy_us);
    draft->part_count = draft->rows = 0;
}

// Layers of the step in progress, and its logits behind the last.
void gpw_draft_model_run(gpw_engine_t *engine)
{
    gpw_draft_model_t *draft = &engine->draft_model;
    uint64_t start_us = as_loop_now_us(engine->loop);
    if (draft->part_count == 0) {
        begin_step(engine);
    }
    if (draft->part_count == 0) {
        return;
    }
    uint32_t layers = draft->model->layers, pairs = 0;
    while (gpw_forward_next_layer(draft->forward) < layers && pairs < GPW_UNIT_ROWS) {
        gpw_forward_layer(draft->forward, attend, engine);
        pairs += draft->rows;
    }
    bool complete = gpw_forward_next_layer(draft->forward) == layers && pairs < GPW_UNIT_ROWS;
    if (complete) {
        for (uint32_t i = 0; i < draft->part_count; i++) {
            const gpw_draft_part_t *part = &draft->parts[i];
            if (part->request) {
                part->request->draft_window.count += part->rows;
            }
        }
        run_logits(engine);
    }
    draft->busy_us += engine->options.tick_us + (double)(as_loop_now_us(engine->loop) - start_us);
    if (complete) {
        end_step(engine);
    }
}

// ---- Life --------------------------------------------------------------------------------------

as_status_t gpw_draft_model_init(gpw_engine_t *engine)
{
    const gpw_worker_options_t *options = &engine->options;
    gpw_draft_model_t *draft = &engine->draft_model;
    const gpw_model_t *model = options->draft_model;
    if (!model) {
        return AS_OK;
    }
    draft->model = model;
    draft->shape = gpw_model_shape(model, options->block_tokens);
    draft->window_tokens = options->draft_window;
    as_status_t status =
        gpw_workspace_alloc(model, options->ops, engine->pool, GPW_DRAFT_ROWS, &draft->workspace);
    if (status == AS_OK) {
        status = gpw_forward_alloc(draft->workspace, GPW_DRAFT_ROWS, &draft->forward);
    }
    if (status != AS_OK) {
        return status;
    }
    size_t bytes = 0;
    for (uint32_t rows = 1; rows <= GPW_DRAFT_ROWS; rows++) {
        size_t one = krn_attention_scratch_bytes(rows, model->q_heads, model->head_dim);
        bytes = one > bytes ? one : bytes;
    }
    draft->attention = as_mem_aligned(64, bytes);
    draft->pages =
        as_mem_zalloc(draft->window_tokens / options->block_tokens + 1, sizeof(*draft->pages));
    return draft->attention && draft->pages ? AS_OK : AS_ERR_NO_MEMORY;
}

void gpw_draft_model_fini(gpw_engine_t *engine)
{
    gpw_draft_model_t *draft = &engine->draft_model;
    gpw_forward_free(draft->forward);
    gpw_workspace_free(draft->workspace);
    as_mem_free(draft->attention);
    as_mem_free(draft->pages);
}
