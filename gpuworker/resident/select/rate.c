// SPDX-License-Identifier: Apache-2.0
// The allocation of bits, by weights and a multiplier.
#include "gpuworker/resident/select/rate.h"

#include <string.h>

#include "common/assert.h"
#include "gpuworker/resident/mixed.h"
#include "gpuworker/resident/select/top.h"
#include "gpuworker/resident/select/window_scores.h"

#define FOUR          4u          // channels that are chosen for together
#define KEY_RATES     4u          // keys have no 16 bits
#define INFINITY_BITS 0x7f800000u // as a number: greater than those of all finite floats

const uint32_t gpw_rate_bits[GPW_RATES] = {0, 2, 4, 8, 16};

// The authors' own, measured on Llama-3.1-8B: mean square error over variance.
static const float value_loss[GPW_RATES] = {1, 0.312f, 0.0138f, 4.8e-5f, 0};
static const float key_loss[KEY_RATES] = {1, 0.277f, 0.011f, 6.1e-5f};

typedef struct problem {
    const float *weights;
    uint32_t count, rates;
    float
        steps[GPW_RATES]; // bytes over what they spare of the loss, from the rate below; ascending
    size_t bytes_max;
    // What a choice takes, and what that depends on besides.
    size_t (*bytes)(const struct problem *problem, const uint32_t counts[GPW_RATES]);
    uint32_t dim, tokens;
} problem_t;

static uint32_t rate_of(const problem_t *p, float weight, float lambda)
{
    uint32_t rate = 0;
    while (rate + 1 < p->rates && weight > lambda * p->steps[rate + 1]) {
        rate++;
    }
    return rate;
}

static void count_rates(const problem_t *p, float lambda, uint32_t counts[GPW_RATES])
{
    uint32_t above[GPW_RATES + 1] = {p->count};
    for (uint32_t r = 1; r < p->rates; r++) {
        float least = lambda * p->steps[r];
        for (uint32_t i = 0; i < p->count; i++) {
            above[r] += p->weights[i] > least;
        }
    }
    for (uint32_t r = 0; r < GPW_RATES; r++) {
        counts[r] = above[r] - above[r + 1];
    }
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// The least that fits, as a number; at infinity nothing has any bits.
static uint32_t solve_lambda(const problem_t *p)
{
    uint32_t low = 0, high = INFINITY_BITS;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, counts[GPW_RATES];
        count_rates(p, float_of(middle), counts);
        if (p->bytes(p, counts) <= p->bytes_max) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return high;
}

static void move(uint32_t counts[GPW_RATES], uint32_t from, uint32_t to)
{
    counts[from]--;
    counts[to]++;
}

// rates[i] of each item, and how many have each.
static void solve(const problem_t *p, uint8_t *rates, uint32_t counts[GPW_RATES])
{
    uint32_t bits = solve_lambda(p);
    float lambda = float_of(bits), next = float_of(bits ? bits - 1 : 0);
    bool fits = true;
    count_rates(p, lambda, counts);
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t rate = rate_of(p, p->weights[i], lambda);
        uint32_t more = rate_of(p, p->weights[i], next);
        if (fits && more > rate) {
            move(counts, rate, more);
            fits = p->bytes(p, counts) <= p->bytes_max;
            if (!fits) {
                move(counts, more, rate);
            }
            rate = fits ? more : rate;
        }
        rates[i] = (uint8_t)rate;
    }
}

// ---- Values ------------------------------------------------------------------------------------

static size_t value_bytes(const problem_t *p, const uint32_t counts[GPW_RATES])
{
    return gpw_mixed_value_bytes(p->dim, counts);
}

// To the scores of this head.
static void weigh_tokens(const gpw_selection_t *choice, uint32_t kv_head)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    const gpw_segment_observe_t *seen = choice->seen;
    uint32_t group = choice->shape->q_heads / choice->shape->kv_heads;
    gpw_window_t window = {.rows = seen->rows,
                           .head = kv_head * group,
                           .heads = group,
                           .tokens = seen->tokens - seen->rows};
    gpw_window_scores(choice, &window, scratch->spare);
    gpw_select_pool_mean(scratch->spare, window.tokens, choice->params->pool_tokens,
                         scratch->scores + (size_t)kv_head * scratch->stride);
}

static void list_tokens(const uint8_t *rates, uint32_t count, uint32_t *tokens)
{
    for (uint32_t rate = GPW_RATES - 1; rate > 0; rate--) {
        for (uint32_t t = 0; t < count; t++) {
            if (rates[t] == rate) {
                *tokens++ = t;
            }
        }
    }
}

static void choose_tokens(const gpw_selection_t *choice, const gpw_rate_request_t *request)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t dim = choice->shape->head_dim;
    size_t half = request->bytes / 2,
           channels = gpw_mixed_key_bytes(dim, 0, (uint32_t[GPW_RATES]){0});
    size_t most = request->bytes > channels ? request->bytes - channels : 0;
    problem_t problem = {.weights = scratch->scores + (size_t)request->kv_head * scratch->stride,
                         .count = choice->tokens,
                         .rates = GPW_RATES,
                         .bytes_max = half < most ? half : most,
                         .bytes = value_bytes,
                         .dim = dim};
    for (uint32_t r = 1; r < GPW_RATES; r++) {
        // Of one token, padding aside: its codes, and a scale and a minimum but for f16.
        float bytes = (float)(gpw_rate_bits[r] - gpw_rate_bits[r - 1]) * (float)dim / 8;
        bytes += r == 1 ? 4 : r == GPW_RATES - 1 ? -4 : 0;
        problem.steps[r] = bytes / (value_loss[r - 1] - value_loss[r]);
    }
    uint8_t *rates = (uint8_t *)(void *)scratch->spare;
    weigh_tokens(choice, request->kv_head);
    solve(&problem, rates, request->rates->tokens);
    list_tokens(rates, choice->tokens, request->tokens);
}

// ---- Keys --------------------------------------------------------------------------------------

static size_t key_bytes(const problem_t *p, const uint32_t counts[GPW_RATES])
{
    uint32_t channels[GPW_RATES];
    for (uint32_t r = 0; r < GPW_RATES; r++) {
        channels[r] = FOUR * counts[r];
    }
    return gpw_mixed_key_bytes(p->dim, p->tokens, channels);
}

static void variance_of_keys(const gpw_selection_t *choice, uint32_t kv_head, double *variance)
{
    double sums[KRN_HEAD_DIM_MAX] = {0};
    uint32_t size = choice->shape->block_tokens, dim = choice->shape->head_dim;
    memset(variance, 0, dim * sizeof(*variance));
    for (uint32_t t = 0; t < choice->tokens; t++) {
        if (t % size == 0) {
            gpw_select_unpack(choice, 0, kv_head, t / size);
        }
        const float *k = choice->scratch->unpacked + (size_t)(t % size) * dim;
        for (uint32_t c = 0; c < dim; c++) {
            sums[c] += k[c];
            variance[c] += (double)k[c] * k[c];
        }
    }
    for (uint32_t c = 0; c < dim; c++) {
        double mean = sums[c] / choice->tokens;
        variance[c] = variance[c] / choice->tokens - mean * mean;
        variance[c] = variance[c] > 0 ? variance[c] : 0;
    }
}

static void weigh_channels(const gpw_selection_t *choice, uint32_t kv_head, float *weights)
{
    const gpw_segment_observe_t *seen = choice->seen;
    const as_shape_t *shape = choice->shape;
    uint32_t group = shape->q_heads / shape->kv_heads, dim = shape->head_dim;
    double variance[KRN_HEAD_DIM_MAX], squares[KRN_HEAD_DIM_MAX] = {0};
    variance_of_keys(choice, kv_head, variance);
    for (uint32_t i = 0; i < seen->rows * group; i++) {
        size_t pair = (size_t)(i / group) * shape->q_heads + kv_head * group + i % group;
        const float *q = seen->q + pair * dim;
        for (uint32_t c = 0; c < dim; c++) {
            squares[c] += (double)q[c] * q[c];
        }
    }
    for (uint32_t c = 0; c < dim; c++) {
        weights[c] = (float)(squares[c] / (seen->rows * group) * variance[c]);
    }
}

// The heaviest first, of equal ones the lower.
static void order_channels(const float *weights, uint32_t dim, uint8_t *channels)
{
    for (uint32_t c = 0; c < dim; c++) {
        uint32_t at = c;
        for (; at > 0 && weights[channels[at - 1]] < weights[c]; at--) {
            channels[at] = channels[at - 1];
        }
        channels[at] = (uint8_t)c;
    }
}

static void choose_channels(const gpw_selection_t *choice, const gpw_rate_request_t *request)
{
    float weights[KRN_HEAD_DIM_MAX], fours[KRN_HEAD_DIM_MAX / FOUR] = {0};
    uint32_t dim = choice->shape->head_dim, counts[GPW_RATES];
    uint8_t unused[KRN_HEAD_DIM_MAX / FOUR];
    size_t values = gpw_mixed_value_bytes(dim, request->rates->tokens);
    problem_t problem = {.weights = fours,
                         .count = dim / FOUR,
                         .rates = KEY_RATES,
                         .bytes_max = request->bytes > values ? request->bytes - values : 0,
                         .bytes = key_bytes,
                         .dim = dim,
                         .tokens = choice->tokens - request->rates->tokens[0]};
    for (uint32_t r = 1; r < KEY_RATES; r++) {
        float bits = (float)(gpw_rate_bits[r] - gpw_rate_bits[r - 1]);
        problem.steps[r] = bits / (key_loss[r - 1] - key_loss[r]);
    }
    weigh_channels(choice, request->kv_head, weights);
    order_channels(weights, dim, request->channels);
    for (uint32_t i = 0; i < dim; i++) {
        fours[i / FOUR] += weights[request->channels[i]];
    }
    solve(&problem, unused, counts);
    for (uint32_t r = 0; r < GPW_RATES; r++) {
        request->rates->channels[r] = FOUR * counts[r];
    }
}

void gpw_rate_choose(const gpw_selection_t *choice, const gpw_rate_request_t *request)
{
    AS_ASSERT(choice->tokens <= choice->seen->tokens - choice->seen->rows);
    choose_tokens(choice, request);
    choose_channels(choice, request);
}
