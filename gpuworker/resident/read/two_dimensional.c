// SPDX-License-Identifier: Apache-2.0
// The second stage of RocketKV (Behnam et al. 2025): few channels of small pages say which tokens to read.
//
// Of the group's query heads q, with R the r channels of largest sum over q of |q[c]|, r = ceil(dim *
// channel_percent / 100), of equal ones the lower:
//
//   estimate[q][page] = sum over c in R of q[c] * (sum over q of q[c] > 0 ? most : least)[page][c]
//   score[page]       = sum over q of softmax over pages of
//                       estimate[q][page] / sqrt(dim * sum over R of |q[c]| / sum over c of |q[c]|)
//
// and the budget's greatest tokens are read, where a token has its page's score, of equal ones the
// lower position. The divisor is that of SparQ (Ribar et al. 2024): a logit of fewer channels is
// smaller. A page's bound here is one of `most` and `least` for all heads, so that each channel of a
// page is one number to read.
//
// Index of a piece: [dim][most, least][pages, padded to 16] f16: what one channel takes lies together.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/read/reader.h"
#include "gpuworker/resident/select/top.h"

#define HEADS_ONCE 4u // whose weights are gathered at a time

static as_status_t prepare(gpw_read_plan_t *plan)
{
    const gpw_compressor_params_t *params = plan->params;
    return params->page_tokens > 0 && params->channel_percent > 0 && params->channel_percent <= 100
               ? AS_OK
               : AS_ERR_UNSUPPORTED;
}

static uint32_t padded_pages(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return (gpw_read_page_count(plan, tokens) + 15) / 16 * 16;
}

static size_t index_bytes(const gpw_read_plan_t *plan, uint32_t tokens)
{
    return (size_t)plan->shape.head_dim * 2 * padded_pages(plan, tokens) * sizeof(krn_f16);
}

static void index_piece(const gpw_read_plan_t *plan, const gpw_read_rows_t *rows, uint8_t *index)
{
    uint32_t dim = plan->shape.head_dim, size = plan->params->page_tokens;
    uint32_t padded = padded_pages(plan, rows->tokens);
    krn_f16 most[KRN_HEAD_DIM_MAX], least[KRN_HEAD_DIM_MAX];
    krn_f16 *to = (krn_f16 *)(void *)index;
    for (uint32_t t = 0; t < rows->tokens; t += size, to++) {
        uint32_t left = rows->tokens - t;
        gpw_read_page_bounds_of(rows->k + (size_t)t * dim, left < size ? left : size, dim, most,
                                least);
        for (uint32_t c = 0; c < dim; c++) {
            to[(size_t)(2 * c) * padded] = most[c];
            to[(size_t)(2 * c + 1) * padded] = least[c];
        }
    }
}

// The channels that are looked at.
typedef struct channels {
    uint32_t count;
    uint32_t channel[KRN_HEAD_DIM_MAX];
    bool positive[KRN_HEAD_DIM_MAX]; // of each: what the heads have together
} channels_t;

static void choose_channels(const gpw_reading_t *reading, channels_t *chosen)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t dim = plan->shape.head_dim;
    float sizes[KRN_HEAD_DIM_MAX] = {0}, sums[KRN_HEAD_DIM_MAX] = {0};
    for (uint32_t i = 0; i < gpw_read_group(plan) * dim; i++) {
        sizes[i % dim] += fabsf(reading->q[i]);
        sums[i % dim] += reading->q[i];
    }
    chosen->count = (dim * plan->params->channel_percent + 99) / 100;
    gpw_select_top(sizes, dim, chosen->count, chosen->channel);
    for (uint32_t r = 0; r < chosen->count; r++) {
        chosen->positive[r] = sums[chosen->channel[r]] > 0;
    }
}

// By what the estimates of query head `q` are multiplied.
static float scale_of(const gpw_reading_t *reading, const channels_t *chosen, const float *q)
{
    float all = 0, some = 0;
    for (uint32_t c = 0; c < reading->plan->shape.head_dim; c++) {
        all += fabsf(q[c]);
    }
    for (uint32_t r = 0; r < chosen->count; r++) {
        some += fabsf(q[chosen->channel[r]]);
    }
    return some > 0 ? reading->scale * sqrtf(all / some) : reading->scale;
}

// Estimates of one piece, in its places; -inf where there is no page.
static void estimate_piece(const gpw_reading_t *reading, const channels_t *chosen, uint32_t piece,
                           uint32_t stride)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t group = gpw_read_group(plan), dim = plan->shape.head_dim;
    uint32_t size = gpw_read_piece_size(reading, piece), padded = padded_pages(plan, size);
    uint32_t offsets[KRN_HEAD_DIM_MAX];
    float weights[HEADS_ONCE * KRN_HEAD_DIM_MAX];
    for (uint32_t r = 0; r < chosen->count; r++) {
        offsets[r] = (2 * chosen->channel[r] + !chosen->positive[r]) * padded;
    }
    for (uint32_t g = 0; g < group; g += HEADS_ONCE) {
        uint32_t heads = group - g < HEADS_ONCE ? group - g : HEADS_ONCE;
        for (uint32_t i = 0; i < heads * chosen->count; i++) {
            weights[i] =
                reading->q[(g + i / chosen->count) * dim + chosen->channel[i % chosen->count]];
        }
        float *out = reading->apart + g * reading->apart_stride + (size_t)piece * stride;
        gpw_combination_t combination = {
            .rows = (const krn_f16 *)(const void *)reading->pieces[piece].index,
            .offsets = offsets,
            .weights = weights,
            .count = chosen->count,
            .columns = padded,
            .heads = heads,
            .stride = reading->apart_stride,
            .out = out};
        plan->products->combine(&combination);
        for (uint32_t h = 0; h < heads; h++) {
            for (uint32_t u = gpw_read_page_count(plan, size); u < stride; u++) {
                out[h * reading->apart_stride + u] = -INFINITY;
            }
        }
    }
}

static uint32_t choose(const gpw_reading_t *reading, uint32_t *tokens)
{
    const gpw_read_plan_t *plan = reading->plan;
    uint32_t stride = padded_pages(plan, plan->piece_tokens), dim = plan->shape.head_dim;
    channels_t chosen;
    choose_channels(reading, &chosen);
    for (uint32_t p = 0; p < gpw_read_piece_count(plan, reading->tokens); p++) {
        estimate_piece(reading, &chosen, p, stride);
    }
    uint32_t places = gpw_read_page_sizes(reading, stride);
    memset(reading->scores, 0, places * sizeof(*reading->scores));
    for (uint32_t g = 0; g < gpw_read_group(plan); g++) {
        plan->products->add_softmax(reading->apart + g * reading->apart_stride, places,
                                    scale_of(reading, &chosen, reading->q + (size_t)g * dim),
                                    reading->scores);
    }
    gpw_select_top_units(reading->scores, reading->sizes, places, reading->budget, reading->taken);
    return gpw_read_page_tokens(reading, stride, tokens);
}

const gpw_reader_t gpw_read_two_dimensional = {.name = "two-dimensional",
                                               .heads_apart = true,
                                               .prepare = prepare,
                                               .index_bytes = index_bytes,
                                               .units = padded_pages,
                                               .index = index_piece,
                                               .choose = choose};
