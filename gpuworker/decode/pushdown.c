// SPDX-License-Identifier: Apache-2.0
// Push-down: when, and how a pass goes through its layers.
//
//   SWAP (or a draft's last steps): the blocks are located and leased
//   VERIFY, of each layer: queries computed -> asked -> (waits) -> answered -> folded -> rest of the layer
//
// The session's ring, which a swap would fill with extents, holds queries, attention, the fold and the
// answers instead, so push-down takes no memory besides. What a store cannot or will not do costs the
// verification a beginning anew with a swap, never a token.
#include "gpuworker/decode/pushdown.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/engine.h"

#define NEWEST 0.25 // weight of the newest sample
// As long a measurement of push-down is believed; then a verification tries again.
#define WAIT_FRESH_US 30000000u
// The same of loading, which costs a whole cache to measure by a swap; fetches of prefixes measure it too.
#define LOAD_FRESH_US 300000000u
#define PROBE_US      20000.0 // a swap that is over so soon leaves little to gain for a trial
#define FAR           4.0
// A first token that does not spare the blocks' fetch, which only begins behind it, has to come in such a
// part of that.
#define LESS       4u
#define REFUSED_US 1000000u // a store that refused may have room again
#define RING_ALIGN 64u
// Pieces beyond one for each run and the last one's head: a run or two that are not whole at one store.
#define PIECES_SPARE 8u

// ---- The choice --------------------------------------------------------------------------------

static double mean(double before, double sample)
{
    return before > 0 ? before + NEWEST * (sample - before) : sample;
}

void gpw_push_saw_load(gpw_push_rates_t *rates, uint64_t load_us, uint64_t bytes, uint64_t now_us)
{
    if (load_us > 0 && bytes > 0) { // a running mean already
        rates->load_us_per_byte = (double)load_us / (double)bytes;
        rates->load_seen_us = now_us;
    }
}

void gpw_push_saw_wait(gpw_push_rates_t *rates, uint64_t wait_us, uint64_t units, uint64_t now_us)
{
    bool fresh = now_us - rates->wait_seen_us < WAIT_FRESH_US;
    rates->wait_us_per_unit =
        mean(fresh ? rates->wait_us_per_unit : 0, (double)(wait_us + 1) / (double)units);
    rates->wait_seen_us = now_us;
}

// Both are of like verifications of the same sessions, so they scale well enough with what each mostly is:
// bytes over a link there, (row, token) pairs at a store's rate here.
bool gpw_push_pays(const gpw_push_rates_t *rates, const gpw_push_question_t *question)
{
    uint64_t now_us = question->now_us;
    if (now_us < rates->refused_until_us) {
        return false;
    }
    if (rates->load_us_per_byte <= 0 || now_us - rates->load_seen_us >= LOAD_FRESH_US) {
        return question->bold; // else the swap measures
    }
    double swap_us = (double)question->bytes * rates->load_us_per_byte;
    double push_us = (double)question->units * rates->wait_us_per_unit;
    if (swap_us < PROBE_US) {
        return rates->wait_us_per_unit > 0 && push_us < swap_us;
    }
    // What was far slower is not tried again so soon.
    uint64_t fresh_us = push_us < FAR * swap_us ? WAIT_FRESH_US : LOAD_FRESH_US;
    if (rates->wait_us_per_unit <= 0 || now_us - rates->wait_seen_us >= fresh_us) {
        return true; // so does this
    }
    return push_us < swap_us;
}

static uint64_t units_of(const gpw_request_t *request, uint32_t blocks, uint32_t rows)
{
    const as_shape_t *shape = &request->engine->shape;
    return (uint64_t)shape->layers * rows * blocks * shape->block_tokens;
}

static bool is_wanted(const gpw_request_t *request, const gpw_push_question_t *question)
{
    const gpw_engine_t *engine = request->engine;
    gpw_push_down_t mode = engine->options.push_down;
    if (mode == GPW_PUSH_DOWN_OFF || request->push_failed || request->keep_full ||
        engine->shape.element != AS_ELEMENT_F16) {
        return false;
    }
    return mode == GPW_PUSH_DOWN_ON || gpw_push_pays(&engine->push, question);
}

// ---- The ring ----------------------------------------------------------------------------------

// Where a pushed verification's memory lies in the session's ring.
typedef struct layout {
    size_t q, out, fold, answers; // offsets
    size_t answer_bytes, bytes;
} layout_t;

static size_t round_up(size_t bytes)
{
    return (bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
}

static layout_t lay_out(const gpw_engine_t *engine, uint32_t blocks, uint32_t rows)
{
    const as_shape_t *shape = &engine->shape;
    size_t floats = (size_t)rows * shape->q_heads * shape->head_dim * sizeof(float);
    size_t pieces = blocks / AS_RUN_BLOCKS + 1 + PIECES_SPARE;
    layout_t l = {.out = round_up(floats)};
    l.fold = l.out + round_up(floats);
    l.answers = l.fold + round_up(krn_fold_bytes(rows * shape->q_heads, shape->head_dim));
    l.answer_bytes = pieces * assay_attend_piece_bytes(shape, rows);
    l.bytes = l.answers + round_up(l.answer_bytes);
    return l;
}

static layout_t layout_of(const gpw_request_t *request)
{
    return lay_out(request->engine, request->swap.stream->block_count, request->horizon.max + 1);
}

uint64_t gpw_push_ring(const gpw_request_t *request, uint64_t ring, uint64_t limit)
{
    const gpw_engine_t *engine = request->engine;
    if (engine->options.push_down != GPW_PUSH_DOWN_ON || !request->compressor) {
        return ring;
    }
    uint32_t size = engine->shape.block_tokens;
    uint32_t blocks = (request->tokens_max + size - 1) / size;
    uint64_t bytes = lay_out(engine, blocks, request->horizon.max + 1).bytes;
    return bytes > ring && bytes <= limit ? bytes : ring;
}

// ---- Beginning ---------------------------------------------------------------------------------

static as_status_t start(gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    uint32_t rows = request->horizon.max + 1;
    layout_t l = lay_out(engine, request->blocks.stored, rows);
    if (l.bytes > gpw_request_ring_bytes(request)) {
        return AS_ERR_LIMIT;
    }
    as_status_t status = gpw_stream_open(request, l.bytes);
    if (status != AS_OK) {
        return status;
    }
    const gpw_transfer_params_t params = {.kind = GPW_TRANSFER_ATTEND,
                                          .buffer = request->swap.stream->ring + l.answers,
                                          .buffer_bytes = l.answer_bytes,
                                          .rows_max = rows,
                                          .scale = 1.0f / sqrtf((float)engine->shape.head_dim)};
    const gpw_stream_range_t range = {.count = request->blocks.stored};
    status = gpw_stream_begin(request, &range, &params);
    if (status == AS_OK) {
        request->swap.asked_layers = 0;
        request->swap.push_wait_us = 0;
    }
    return status;
}

as_status_t gpw_push_or_swap(gpw_request_t *request, uint32_t first, uint32_t count)
{
    const gpw_engine_t *engine = request->engine;
    const gpw_push_question_t question = {
        .bytes = (uint64_t)count * as_block_bytes(&engine->shape),
        .units = units_of(request, request->blocks.stored, request->round.target + 1),
        .now_us = as_loop_now_us(engine->loop)};
    if (is_wanted(request, &question)) {
        as_status_t status = start(request);
        if (status == AS_OK || status == AS_ERR_BUSY) {
            return status;
        }
    }
    return gpw_swap_start(request, first, count, NULL);
}

bool gpw_push_prefix_pays(const gpw_request_t *request, uint32_t blocks, uint32_t rows, bool sealed)
{
    const gpw_engine_t *engine = request->engine;
    uint64_t bytes = (uint64_t)blocks * as_block_bytes(&engine->shape);
    const gpw_push_question_t question = {.bytes = sealed ? bytes : bytes / LESS,
                                          .units = units_of(request, blocks, rows),
                                          .now_us = as_loop_now_us(engine->loop),
                                          .bold = sealed};
    return is_wanted(request, &question);
}

as_status_t gpw_push_prefix(gpw_request_t *request)
{
    return start(request);
}

// ---- A layer -----------------------------------------------------------------------------------

// The rows' K and V become part of the tail, the queries are kept.
static void take_queries(void *ctx, const gpw_forward_rows_t *rows)
{
    gpw_request_t *request = ctx;
    const as_shape_t *shape = &request->engine->shape;
    size_t width = (size_t)shape->q_heads * shape->head_dim;
    float *q = (float *)(void *)(request->swap.stream->ring + layout_of(request).q);
    const gpw_rows_t new_rows = {.position = request->pass.position + rows->row0,
                                 .count = rows->rows,
                                 .k = rows->k,
                                 .v = rows->v};
    gpw_blocks_store(&request->blocks, gpw_forward_next_layer(request->pass.slot->forward),
                     &new_rows);
    memcpy(q + rows->row0 * width, rows->q, rows->rows * width * sizeof(float));
}

static void ask(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    gpw_forward_t *forward = request->pass.slot->forward;
    const float *q = (const float *)(const void *)(swap->stream->ring + layout_of(request).q);
    gpw_forward_layer_begin(forward, take_queries, request);
    swap->asked_layers++;
    swap->asked_us = as_loop_now_us(request->engine->loop);
    gpw_transfer_attend(swap->stream->transfer, gpw_forward_next_layer(forward), request->pass.rows,
                        q);
}

// The pages that no store attended to: the tail, with the rows' own K and V.
static uint32_t own_pages(const gpw_request_t *request, uint32_t layer, krn_page_t *pages)
{
    const as_shape_t *shape = &request->engine->shape;
    uint32_t last = (request->pass.position + request->pass.rows - 1) / shape->block_tokens;
    uint32_t count = 0;
    for (uint32_t b = request->swap.stream->block_count; b <= last; b++) {
        pages[count++] = gpw_page(shape, gpw_pass_extent(request, b, layer), b);
    }
    return count;
}

static void fold(gpw_request_t *request, float *out)
{
    gpw_engine_t *engine = request->engine;
    gpw_swap_t *swap = &request->swap;
    const as_shape_t *shape = &engine->shape;
    const gpw_transfer_news_t *news = gpw_transfer_news(swap->stream->transfer);
    layout_t l = layout_of(request);
    uint32_t pairs = request->pass.rows * shape->q_heads;
    krn_fold_t folded;
    krn_fold_begin(&folded, engine->options.ops, pairs, shape->head_dim,
                   swap->stream->ring + l.fold);
    for (uint32_t p = 0; p < news->piece_count; p++) {
        const assay_attend_piece_t *piece = &news->pieces[p];
        // Merged from, not into.
        krn_partials_t partials = {(float *)piece->out, (float *)piece->max, (float *)piece->sum};
        krn_fold_piece(&folded, (krn_piece_t){piece->first, piece->count}, &partials);
    }
    uint32_t layer = gpw_forward_next_layer(request->pass.slot->forward);
    krn_page_t *pages = engine->batch.scratch.pages;
    krn_attention_args_t args =
        gpw_page_attention(shape, request->pass.rows, 1.0f / sqrtf((float)shape->head_dim),
                           (const float *)(const void *)(swap->stream->ring + l.q));
    args.positions = request->pass.slot->positions;
    args.pages = pages;
    args.page_count = own_pages(request, layer, pages);
    krn_fold_pages(&folded, engine->pool, &args);
    krn_fold_end(&folded, out, NULL);
}

static void finish_layer(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    float *out = (float *)(void *)(swap->stream->ring + layout_of(request).out);
    uint64_t waited_us = as_loop_now_us(request->engine->loop) - swap->asked_us;
    swap->push_wait_us += waited_us;
    gpw_metric_observe(GPW_METRIC_PUSH_WAIT_US, waited_us);
    fold(request, out);
    gpw_forward_layer_end(request->pass.slot->forward, out);
}

// Whether an answer is still to come.
static bool is_waiting(const gpw_request_t *request)
{
    const gpw_transfer_news_t *news = gpw_transfer_news(request->swap.stream->transfer);
    return request->swap.asked_layers > news->layers;
}

static gpw_turn_t push_turn(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    const gpw_transfer_news_t *news = gpw_transfer_news(swap->stream->transfer);
    gpw_forward_t *forward = request->pass.slot->forward;
    uint32_t layers = request->engine->shape.layers;
    if (gpw_forward_next_layer(forward) == layers) {
        return GPW_TURN_COMPUTE; // its logits
    }
    if (is_waiting(request)) {
        return news->done ? request->pass.kind->failed(request, 0) : GPW_TURN_WAIT;
    }
    if (swap->asked_layers > gpw_forward_next_layer(forward)) {
        finish_layer(request);
    }
    if (gpw_forward_next_layer(forward) == layers) {
        return GPW_TURN_COMPUTE;
    }
    if (news->done) {
        return request->pass.kind->failed(request, 0);
    }
    ask(request);
    return GPW_TURN_WAIT;
}

gpw_turn_t gpw_push_turn(gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    uint64_t start_us = as_loop_now_us(engine->loop);
    gpw_turn_t turn = push_turn(request);
    request->pass.busy_us += (double)(as_loop_now_us(engine->loop) - start_us);
    return turn;
}

// ---- Its end -----------------------------------------------------------------------------------

void gpw_push_give_up(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    gpw_metric_add(GPW_METRIC_PUSH_REFUSED_TOTAL, 1);
    request->push_failed = true;
    engine->push.refused_until_us = as_loop_now_us(engine->loop) + REFUSED_US;
    gpw_pass_end(request);
    gpw_swap_end(request);
}

gpw_turn_t gpw_push_failed(gpw_request_t *request)
{
    gpw_push_give_up(request);
    return gpw_request_go(request, GPW_STEP_SWAP);
}

static void learn_wait(const gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    gpw_push_saw_wait(&engine->push, request->swap.push_wait_us,
                      units_of(request, request->blocks.stored, request->pass.rows),
                      as_loop_now_us(engine->loop));
}

void gpw_push_done(gpw_request_t *request)
{
    request->push_failed = false;
    if (!gpw_swap_is_pushed(&request->swap)) {
        return;
    }
    request->usage.pushed_verifications++;
    gpw_metric_add(GPW_METRIC_PUSHED_TOTAL, 1);
    learn_wait(request);
}

void gpw_push_prefix_done(gpw_request_t *request)
{
    gpw_metric_add(GPW_METRIC_PUSHED_PREFIXES_TOTAL, 1);
    learn_wait(request);
}
