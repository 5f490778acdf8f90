// SPDX-License-Identifier: Apache-2.0
// A session whose compressor has dropped tokens goes on at the positions of its tokens, not behind as many as it holds.
//
// Its logits are those of a forward pass over the whole cache in which what was dropped is not seen: every row at
// its own position. Were rows counted by what is held, keys would be rotated by less, and the logits be others.
#include <math.h>

#include "gpuworker/model/forward.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/worker_internal.h"
#include "kernels/f16.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, PROMPT = 230, MORE = 5, ROWS = PROMPT + MORE, SINKS = 4, WINDOW = 32 };

static gpw_model_t *model;
static int32_t tokens[ROWS];

typedef struct told {
    answer_t answer;
    double logprobs[MORE];
} told_t;

static void on_tokens(void *ctx, const gpw_token_event_t *events, uint32_t count)
{
    told_t *told = ctx;
    for (uint32_t i = 0; i < count; i++) {
        told->logprobs[told->answer.count + i] = (double)events[i].logprob;
    }
    answer_on_tokens(&told->answer, events, count);
}

static void on_finish(void *ctx, gpw_finish_t finish, as_status_t status, const char *error,
                      const gpw_usage_t *usage)
{
    told_t *told = ctx;
    answer_on_finish(&told->answer, finish, status, error, usage);
}

static gpw_compressor_t short_window(void)
{
    gpw_compressor_t compressor = *gpw_compressor_find("streaming");
    compressor.params.sink_tokens = SINKS;
    compressor.params.window_tokens = WINDOW;
    return compressor;
}

// The given tokens behind the prompt, over what the compressor keeps.
static void run_dropped(told_t *told)
{
    char error[256] = "";
    gpw_compressor_t compressor = short_window();
    gpw_request_params_t params = request_params(tokens, PROMPT, MORE);
    gpw_request_events_t events = {told, on_tokens, on_finish, NULL};
    params.compressor = "streaming";
    params.continuation = tokens + PROMPT;
    params.want_logprobs = true;
    params.verify = GPW_VERIFY_OFF;
    rig_t rig = rig_open(rig_options(model, BLOCK_TOKENS));
    assert_int_equal(
        gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &told->answer.id),
        AS_OK);
    for (uint32_t slot = 0; slot < rig.worker->active_max; slot++) {
        if (rig.worker->active[slot]) {
            rig.worker->active[slot]->compressor = &compressor; // the engine has not seen it yet
        }
    }
    rig_run(&rig);
    rig_close(&rig);
    assert_int_equal(told->answer.status, AS_OK);
    assert_int_equal(told->answer.count, MORE);
}

// ---- The forward pass --------------------------------------------------------------------------

// Keys and values of one layer, [row][kv head][dim]; the next layer's take their place.
typedef struct pass {
    krn_f16 *k, *v;
} pass_t;

static bool is_held(uint32_t position)
{
    as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS);
    uint32_t sealed = gpw_sealed_target(&shape, PROMPT) * BLOCK_TOKENS;
    return position < BLOCK_TOKENS || position >= sealed - WINDOW;
}

static bool is_seen(uint32_t row, uint32_t position)
{
    return position <= row && (row < PROMPT || is_held(position));
}

static double dot(const float *q, const krn_f16 *k)
{
    double sum = 0;
    for (uint32_t c = 0; c < model->head_dim; c++) {
        sum += (double)q[c] * (double)krn_f16_to_float(k[c]);
    }
    return sum;
}

static void attend_row(const pass_t *pass, uint32_t row, const float *q, float *out)
{
    uint32_t dim = model->head_dim, stride = model->kv_heads * dim;
    for (uint32_t head = 0; head < model->q_heads; head++) {
        size_t at = (size_t)(head / (model->q_heads / model->kv_heads)) * dim;
        double sums[256] = {0}, total = 0;
        for (uint32_t position = 0; position <= row; position++) {
            if (!is_seen(row, position)) {
                continue;
            }
            double weight = exp(dot(q + head * dim, pass->k + position * stride + at) / sqrt(dim));
            total += weight;
            for (uint32_t c = 0; c < dim; c++) {
                sums[c] += weight * (double)krn_f16_to_float(pass->v[position * stride + at + c]);
            }
        }
        for (uint32_t c = 0; c < dim; c++) {
            out[head * dim + c] = (float)(sums[c] / total);
        }
    }
}

static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    (void)layer;
    const pass_t *pass = ctx;
    size_t stride = (size_t)model->kv_heads * model->head_dim;
    size_t width = (size_t)model->q_heads * model->head_dim;
    memcpy(pass->k + row0 * stride, k, rows * stride * sizeof(*k));
    memcpy(pass->v + row0 * stride, v, rows * stride * sizeof(*v));
    for (uint32_t r = 0; r < rows; r++) {
        attend_row(pass, row0 + r, q + r * width, out + r * width);
    }
}

// Of the rows before the given tokens the logarithm of their probability.
static void run_forward(bool by_held_tokens, double logprobs[MORE])
{
    int32_t positions[ROWS];
    uint32_t held = 0;
    size_t stride = (size_t)model->kv_heads * model->head_dim;
    krn_pool_t *pool;
    gpw_workspace_t *workspace;
    gpw_forward_t *forward;
    pass_t pass = {calloc(ROWS * stride, sizeof(krn_f16)), calloc(ROWS * stride, sizeof(krn_f16))};
    float *logits = calloc(model->vocab, sizeof(*logits));
    assert_true(pass.k && pass.v && logits);
    for (uint32_t i = 0; i < ROWS; i++) {
        held += i >= PROMPT || is_held(i);
        positions[i] = (int32_t)(i >= PROMPT && by_held_tokens ? held - 1 : i);
    }
    assert_true(held < ROWS / 2);
    assert_int_equal(krn_pool_alloc(1, &pool), AS_OK);
    assert_int_equal(gpw_workspace_alloc(model, krn_cpu(), pool, ROWS, &workspace), AS_OK);
    assert_int_equal(gpw_forward_alloc(workspace, ROWS, &forward), AS_OK);
    gpw_forward_begin(forward, tokens, positions, ROWS);
    while (gpw_forward_next_layer(forward) < model->layers) {
        gpw_forward_layer(forward, attend, &pass);
    }
    for (uint32_t i = 0; i < MORE; i++) {
        gpw_forward_row_t row = {forward, PROMPT - 1 + i};
        gpw_forward_logits(workspace, &row, 1, logits);
        double sum = 0;
        for (uint32_t t = 0; t < model->vocab; t++) {
            sum += exp((double)logits[t] - (double)logits[tokens[PROMPT + i]]);
        }
        logprobs[i] = -log(sum);
    }
    gpw_forward_free(forward);
    gpw_workspace_free(workspace);
    krn_pool_free(pool);
    free(pass.k);
    free(pass.v);
    free(logits);
}

static void tokens_behind_dropped_ones_keep_their_positions(void **state)
{
    (void)state;
    static told_t told;
    double right[MORE], wrong[MORE], off = 0, other = 0;
    run_dropped(&told);
    run_forward(false, right);
    run_forward(true, wrong);
    for (uint32_t i = 1; i < MORE; i++) { // the first is prefill's, over the whole cache
        off = fmax(off, fabs(told.logprobs[i] - right[i]));
        other = fmax(other, fabs(wrong[i] - right[i]));
    }
    print_message("%.6f nats off, %.3f at the positions of what is held\n", off, other);
    assert_true(fabs(told.logprobs[0] - right[0]) < 1e-3);
    assert_true(off < 1e-3 && other > 0.1);
}

static int begin(void **state)
{
    (void)state;
    model = tiny_load(3);
    prompt_make(tokens, ROWS, 0, 9);
    return 0;
}

static int end(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_behind_dropped_ones_keep_their_positions),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
