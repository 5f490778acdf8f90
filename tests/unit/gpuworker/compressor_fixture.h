// SPDX-License-Identifier: Apache-2.0
// Made-up blocks and queries, a segment sealed from them, and plain attention to compare it with.
#ifndef COMPRESSOR_FIXTURE_H
#define COMPRESSOR_FIXTURE_H

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "calibration_fixture.h"
#include "common/mem.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/partials.h"
#include "kernels/f16.h"

typedef struct sample {
    as_shape_t shape;
    uint32_t blocks;      // those that are sealed
    uint32_t tail_tokens; // of the prompt behind them
    krn_f16 *extents;     // [block][layer]
    float *q;             // [rows][q_heads][dim]
    uint32_t rows;
    float *window_q; // [GPW_OBSERVED_ROWS_MAX][q_heads][dim]: the prompt's last queries
    const krn_rope_t *rope;
} sample_t;

static inline float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(*state >> 40) / 8388608.0f - 1.0f;
}

static inline uint32_t sample_tokens(const sample_t *s)
{
    return s->blocks * s->shape.block_tokens + s->tail_tokens;
}

// With those of the tail.
static inline uint32_t sample_blocks(const sample_t *s)
{
    return (sample_tokens(s) + s->shape.block_tokens - 1) / s->shape.block_tokens;
}

static inline sample_t sample_make(as_shape_t shape, uint32_t blocks, uint32_t rows)
{
    sample_t s = {.shape = shape, .blocks = blocks, .rows = rows};
    uint64_t state = 99 + shape.head_dim;
    s.tail_tokens = GPW_OBSERVED_ROWS_MAX + shape.block_tokens / 2;
    size_t elements = as_block_bytes(&shape) / sizeof(krn_f16) * sample_blocks(&s);
    s.extents = as_mem_alloc(elements * sizeof(krn_f16));
    for (size_t i = 0; i < elements; i++) {
        float channel = (float)(i % shape.head_dim % 7) - 3.0f; // channels differ, as real keys' do
        s.extents[i] = krn_f16_from_float(noise(&state) + channel);
    }
    size_t queries = (size_t)rows * shape.q_heads * shape.head_dim;
    s.q = as_mem_alloc(queries * sizeof(float));
    for (size_t i = 0; i < queries; i++) {
        s.q[i] = noise(&state);
    }
    queries = (size_t)GPW_OBSERVED_ROWS_MAX * shape.q_heads * shape.head_dim;
    s.window_q = as_mem_alloc(queries * sizeof(float));
    for (size_t i = 0; i < queries; i++) {
        s.window_q[i] = noise(&state);
    }
    return s;
}

static inline void sample_free(sample_t *s)
{
    as_mem_free(s->extents);
    as_mem_free(s->q);
    as_mem_free(s->window_q);
}

static inline krn_f16 *extent_of(const sample_t *s, uint32_t block, uint32_t layer)
{
    return s->extents + (as_block_bytes(&s->shape) * block + as_extent_bytes(&s->shape) * layer) /
                            sizeof(krn_f16);
}

// Value (part 0: K, 1: V) as the compressor is to see it.
typedef double (*value_fn)(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                           uint32_t token, uint32_t channel);

static inline double exact_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                                 uint32_t token, uint32_t channel)
{
    uint32_t size = s->shape.block_tokens;
    size_t at = as_extent_offset(&s->shape, part, head, token % size) + channel;
    return krn_f16_to_float(extent_of(s, token / size, layer)[at]);
}

typedef struct held {
    bool (*holds)(const struct held *held, uint32_t kv_head, uint32_t token); // NULL: all of it
    value_fn value;
    const sample_t *sample;
    const gpw_segment_t *segment;
    uint32_t layer;
} held_t;

// Plain softmax attention in double precision; returns the largest error of out against `partials`,
// relative to the largest output.
static inline double attention_error(const sample_t *s, const held_t *held, uint32_t layer,
                                     const krn_partials_t *partials)
{
    uint32_t dim = s->shape.head_dim, tokens = s->blocks * s->shape.block_tokens;
    uint32_t group = s->shape.q_heads / s->shape.kv_heads;
    double worst = 0, largest = 0;
    double *weights = malloc(tokens * sizeof(double));
    for (uint32_t pair = 0; pair < s->rows * s->shape.q_heads; pair++) {
        uint32_t head = pair % s->shape.q_heads / group;
        double max = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < tokens; t++) {
            weights[t] = -INFINITY;
            if (!held->holds || held->holds(held, head, t)) {
                double dot = 0;
                for (uint32_t c = 0; c < dim; c++) {
                    dot += s->q[(size_t)pair * dim + c] * held->value(s, layer, 0, head, t, c);
                }
                weights[t] = dot / sqrt(dim);
            }
            max = weights[t] > max ? weights[t] : max;
        }
        for (uint32_t t = 0; t < tokens; t++) {
            weights[t] = exp(weights[t] - max);
            sum += weights[t];
        }
        for (uint32_t c = 0; c < dim; c++) {
            double out = 0;
            for (uint32_t t = 0; t < tokens; t++) {
                out += weights[t] > 0 ? weights[t] * held->value(s, layer, 1, head, t, c) : 0;
            }
            out /= sum;
            double got = partials->out[(size_t)pair * dim + c] / partials->sum[pair];
            worst = fabs(got - out) > worst ? fabs(got - out) : worst;
            largest = fabs(out) > largest ? fabs(out) : largest;
        }
    }
    free(weights);
    return worst / largest;
}

// The table for segments of a shape: rows that need a calibration have one of it. Until the next call.
static inline const gpw_compressor_t *compressors_for(const as_shape_t *shape)
{
    static gpw_compressor_t rows[64];
    static gpw_calibration_t calibration;
    const gpw_compressor_t *table = gpw_compressors();
    calibration = calibration_of(&(as_key_t){{7}}, shape);
    for (uint32_t i = 0; i == 0 || table[i - 1].name; i++) {
        assert_true(i < 64);
        rows[i] = table[i];
        if (rows[i].flags & GPW_COMPRESSOR_CALIBRATED) {
            rows[i].params.calibration = &calibration;
        }
    }
    return rows;
}

static inline gpw_segment_options_t options_for(const sample_t *s,
                                                const gpw_compressor_params_t *params)
{
    gpw_segment_options_t options = {.params = params,
                                     .shape = s->shape,
                                     .ops = krn_cpu(),
                                     .blocks_max = s->blocks,
                                     .prompt_blocks = s->blocks};
    return options;
}

// Shows the sample's last queries of a layer to a compressor that looks at them.
static inline void observe(const sample_t *s, const gpw_compressor_t *compressor,
                           const gpw_compressor_params_t *params, gpw_segment_t *segment,
                           uint32_t layer, uint32_t threads)
{
    const as_shape_t *shape = &s->shape;
    uint32_t tokens = sample_tokens(s), blocks = sample_blocks(s);
    gpw_segment_observe_t args = {.layer = layer,
                                  .tokens = tokens,
                                  .rows = params->window_tokens < tokens ? params->window_tokens
                                                                         : tokens,
                                  .scale = 1.0f / sqrtf((float)shape->head_dim),
                                  .q = s->window_q};
    assert_int_equal(krn_pool_alloc(threads, &args.pool), AS_OK);
    krn_page_t *pages = malloc(blocks * sizeof(*pages));
    for (uint32_t b = 0; b < blocks; b++) {
        pages[b] = gpw_page(shape, extent_of(s, b, layer), b);
    }
    int32_t positions[GPW_OBSERVED_ROWS_MAX];
    for (uint32_t r = 0; r < args.rows; r++) {
        positions[r] = (int32_t)(tokens - args.rows + r);
    }
    krn_attention_args_t attention = {.rows = args.rows,
                                      .q_heads = shape->q_heads,
                                      .kv_heads = shape->kv_heads,
                                      .dim = shape->head_dim,
                                      .capacity = shape->block_tokens,
                                      .scale = args.scale,
                                      .q = s->window_q,
                                      .positions = positions,
                                      .pages = pages,
                                      .page_count = blocks};
    size_t heads = (size_t)args.rows * shape->q_heads;
    float *out = as_mem_aligned(64, heads * shape->head_dim * sizeof(float));
    float *lse = as_mem_aligned(64, heads * sizeof(float));
    void *scratch =
        as_mem_aligned(64, krn_attention_scratch_bytes(args.rows, shape->q_heads, shape->head_dim));
    krn_attention(krn_cpu(), args.pool, &attention, out, lse, scratch);
    args.lse = lse;
    args.pages = pages;
    args.rope = s->rope;
    args.scratch = as_mem_aligned(64, gpw_segment_observe_bytes(shape, tokens));
    compressor->observe(segment, &args);
    as_mem_free(args.scratch);
    as_mem_free(scratch);
    as_mem_free(out);
    as_mem_free(lse);
    free(pages);
    krn_pool_free(args.pool);
}

static inline gpw_segment_t *seal_all(const sample_t *s, const gpw_compressor_t *compressor,
                                      const gpw_compressor_params_t *params)
{
    gpw_segment_options_t options = options_for(s, params);
    gpw_segment_t *segment;
    assert_int_equal(compressor->open(&options, &segment), AS_OK);
    assert_int_equal(compressor->reserve(segment, s->blocks), AS_OK);
    for (uint32_t layer = 0; layer < s->shape.layers; layer++) {
        if (compressor->observe) {
            observe(s, compressor, params, segment, layer, 1);
        }
        for (uint32_t b = 0; b < s->blocks; b++) {
            compressor->seal(segment, layer, b, extent_of(s, b, layer));
        }
    }
    return segment;
}

typedef struct attended {
    float *memory, *scratch;
    size_t floats;
    krn_partials_t partials;
} attended_t;

static inline attended_t attend(const sample_t *s, const gpw_compressor_t *compressor,
                                const gpw_segment_t *segment, uint32_t layer, uint32_t threads)
{
    attended_t a = {0};
    krn_pool_t *pool;
    size_t pairs = (size_t)s->rows * s->shape.q_heads;
    assert_int_equal(krn_pool_alloc(threads, &pool), AS_OK);
    a.floats = pairs * (s->shape.head_dim + 2);
    a.memory = as_mem_alloc(a.floats * sizeof(float));
    a.scratch = as_mem_alloc(gpw_segment_scratch_bytes(&s->shape, s->rows));
    a.partials = gpw_partials_carve(a.memory, pairs, s->shape.head_dim);
    gpw_segment_attend_t args = {.pool = pool,
                                 .layer = layer,
                                 .rows = s->rows,
                                 .scale = 1.0f / sqrtf((float)s->shape.head_dim),
                                 .q = s->q,
                                 .out = &a.partials,
                                 .scratch = a.scratch};
    compressor->attend(segment, &args);
    krn_pool_free(pool);
    as_mem_free(a.scratch);
    return a;
}

static const as_shape_t shapes[] = {
    {2, 4, 2, 16, 16, AS_ELEMENT_F16},  // blocks shorter than a group
    {2, 9, 3, 64, 64, AS_ELEMENT_F16},  // SmolLM2's heads
    {1, 6, 1, 48, 64, AS_ELEMENT_F16},  // a last channel group of 16
    {1, 5, 1, 80, 50, AS_ELEMENT_F16},  // odd block, one head for five
    {1, 2, 2, 256, 32, AS_ELEMENT_F16}, // the widest head
    {2, 8, 8, 32, 256, AS_ELEMENT_F16}, // no grouping, the longest block
};

#endif
