// SPDX-License-Identifier: Apache-2.0
// Attention over rotated Lloyd-Max codes, straight from the codes (codec_attend.h): included by turbo_attend_*.c, each
// after the integer dot products of its instruction set.
//
// The query comes rotated. It is rounded to whole steps, of which its largest channel has 127, so that with the
// codebook's whole numbers the sum over channels is one of small integers, exact in whatever order and on any processor:
//   logit = step * sum(steps * level) * scale + sum(q * centre)
// with the second sum, one for a block, in f32. Bytes hold level + 64, which takes 64 * sum(steps) off.
// A token's value weighs w = exp(logit - max) * scale, never negative: rounded to steps of which the block's largest has
// 255. Rounding costs either sum some hundredth of what the codes have cost already.
#include "gpuworker/resident/codec_attend.h"
#include "gpuworker/resident/turbo.h"

#define KEY_BIAS    64
#define VALUE_STEPS 255.0f
#define UNSTORED    0.125f // stored scales are eight times what they stand for

struct weights {
    _Alignas(64) int8_t q_steps[QUERIES][WIDTH_MAX]; // of channels
    _Alignas(64) int8_t p_steps[QUERIES][WIDTH_MAX]; // of a block's tokens; unsigned
    float q_step[QUERIES], q_bias[QUERIES], p_step[QUERIES];
    table_t key_levels, value_levels;
};

// ---- Weights ------------------------------------------------------------------------

static void queries_begin(const gpw_codec_part_t *part, work_t *w)
{
    const v16 magic = v16_set1(ROUND_BITS);
    const uint32_t dim = part->layout->dim;
    for (uint32_t q = 0; q < w->queries; q++) {
        v16 largest = v16_set1(TINY), sum = v16_set1(0.0f);
        for (uint32_t i = 0; i < dim; i += 16) {
            largest = v16_max(largest, v16_abs(v16_load(w->q[q] + i)));
        }
        float step = v16_max_all(largest) * (1.0f / STEPS);
        v16 inverse = v16_set1(1.0f / step);
        for (uint32_t i = 0; i < dim; i += 16) {
            v16 steps = v16_fma(v16_load(w->q[q] + i), inverse, magic);
            v16_store_low8(w->weights->q_steps[q] + i, steps);
            sum = v16_add(sum, v16_sub(steps, magic));
        }
        w->weights->q_step[q] = step * UNSTORED;
        w->weights->q_bias[q] = v16_tree(sum) * -KEY_BIAS;
    }
}

// p = p * scale, and its steps.
INLINE void weigh_queries(const krn_f16 *scales, uint32_t count, float *p, weights_t *w,
                          const uint32_t queries)
{
    const v16 magic = v16_set1(ROUND_BITS);
    v16 largest[QUERIES], inverse[QUERIES];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        largest[q] = v16_set1(TINY);
    }
    for (uint32_t t = 0; t < count; t += 16) {
        v16 scale = v16_load_f16(scales + t);
#pragma GCC unroll 4
        for (uint32_t q = 0; q < queries; q++) {
            v16 weight = v16_mul(v16_load(p + (size_t)q * TOKENS_MAX + t), scale);
            largest[q] = v16_max(largest[q], weight);
            v16_store(p + (size_t)q * TOKENS_MAX + t, weight);
        }
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        float step = v16_max_all(largest[q]) * (1.0f / VALUE_STEPS);
        inverse[q] = v16_set1(1.0f / step);
        w->p_step[q] = step * UNSTORED;
    }
    for (uint32_t t = 0; t < count; t += 16) {
#pragma GCC unroll 4
        for (uint32_t q = 0; q < queries; q++) {
            v16 weight = v16_load(p + (size_t)q * TOKENS_MAX + t);
            v16_store_low8(w->p_steps[q] + t, v16_fma(weight, inverse[q], magic));
        }
    }
}

// ---- Codes --------------------------------------------------------------------------

// Sixteen lanes of codes, and what each lane is multiplied with.
typedef struct row {
    const uint8_t *codes;
    uint32_t count; // what is summed over: a multiple of 16
    ptrdiff_t ahead;
    const int8_t *steps; // [queries][WIDTH_MAX]
    table_t levels;
    v16 sums[QUERIES]; // what comes out
} row_t;

// Adds four of what is summed over: into one of two sums a query, since one alone would wait for each product.
INLINE void add_slice(dots_t dots[QUERIES][2], uint32_t i, codes_t levels, const int8_t *steps,
                      const uint32_t queries, const bool keys)
{
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        const int8_t *four = steps + (size_t)q * WIDTH_MAX + 4 * (size_t)i;
        dots[q][i % 2] = keys ? dots_add(dots[q][i % 2], levels, four)
                              : dots_add_unsigned(dots[q][i % 2], levels, four);
    }
}

INLINE void accumulate_4(const row_t *row, dots_t dots[QUERIES][2], const uint32_t queries,
                         const bool keys)
{
    const uint8_t *codes = row->codes;
    const int8_t *steps = row->steps, *end = steps + row->count;
    const table_t levels = row->levels;
    for (; steps < end; steps += 16, codes += 2 * GPW_CODES_UNIT_BYTES) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++) {
            codes_t packed = codes_load(codes + i / 2 * GPW_CODES_UNIT_BYTES);
            codes_t slice = codes_lookup(levels, codes_slice(packed, i % 2 * 4, 15));
            add_slice(dots, i, slice, steps, queries, keys);
        }
        v16_prefetch((const char *)codes + row->ahead);
        v16_prefetch((const char *)codes + GPW_CODES_UNIT_BYTES + row->ahead);
    }
}

// Four slices of sixteen: their two lower bits, and their highest from bit `first` of `high` on.
INLINE void accumulate_sixteen(const row_t *row, codes_t low, codes_t high, const uint32_t first,
                               const int8_t *steps, dots_t dots[QUERIES][2], const uint32_t queries,
                               const bool keys)
{
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        codes_t code = codes_or(codes_slice(low, 2 * i, 3), codes_bit_as_4(high, first + i));
        add_slice(dots, i, codes_lookup(row->levels, code), steps, queries, keys);
    }
}

INLINE void accumulate_3(const row_t *row, dots_t dots[QUERIES][2], const uint32_t queries,
                         const bool keys)
{
    const uint8_t *codes = row->codes;
    const int8_t *steps = row->steps, *end = steps + row->count;
    for (; end - steps >= 32; steps += 32, codes += 3 * GPW_CODES_UNIT_BYTES) {
        codes_t high = codes_load(codes + 2 * GPW_CODES_UNIT_BYTES);
#pragma GCC unroll 3
        for (uint32_t i = 0; i < 3; i++) {
            v16_prefetch((const char *)codes + i * GPW_CODES_UNIT_BYTES + row->ahead);
        }
#pragma GCC unroll 2
        for (uint32_t half = 0; half < 2; half++) {
            codes_t low = codes_load(codes + half * GPW_CODES_UNIT_BYTES);
            accumulate_sixteen(row, low, high, 4 * half, steps + 16 * half, dots, queries, keys);
        }
    }
    if (steps < end) {
        codes_t low = codes_load(codes), high = codes_load_halves(codes + GPW_CODES_UNIT_BYTES);
        accumulate_sixteen(row, low, high, 0, steps, dots, queries, keys);
    }
}

INLINE void accumulate_queries(row_t *row, const uint32_t bits, const uint32_t queries,
                               const bool keys)
{
    dots_t dots[QUERIES][2];
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        dots[q][0] = dots[q][1] = dots_zero();
    }
    if (bits == 4) {
        accumulate_4(row, dots, queries, keys);
    } else {
        accumulate_3(row, dots, queries, keys);
    }
#pragma GCC unroll 4
    for (uint32_t q = 0; q < queries; q++) {
        row->sums[q] = v16_add(dots_float(dots[q][0]), dots_float(dots[q][1]));
    }
}

// With constants the compiler keeps the sums in registers.
#define ACCUMULATE(BITS, QUERIES_)                                                                 \
    static void keys_##BITS##_##QUERIES_(row_t *row)                                               \
    {                                                                                              \
        accumulate_queries(row, BITS, QUERIES_, true);                                             \
    }                                                                                              \
    static void values_##BITS##_##QUERIES_(row_t *row)                                             \
    {                                                                                              \
        accumulate_queries(row, BITS, QUERIES_, false);                                            \
    }
#define EACH_QUERIES(QUERIES_)                                                                     \
    static void weigh_##QUERIES_(const krn_f16 *scales, uint32_t count, float *p, weights_t *w)    \
    {                                                                                              \
        weigh_queries(scales, count, p, w, QUERIES_);                                              \
    }                                                                                              \
    ACCUMULATE(3, QUERIES_) ACCUMULATE(4, QUERIES_)

EACH_QUERIES(1)
EACH_QUERIES(2)
EACH_QUERIES(3)
EACH_QUERIES(4)

typedef void accumulate_fn(row_t *row);
static void (*const weigh_of[QUERIES])(const krn_f16 *scales, uint32_t count, float *p,
                                       weights_t *w) = {weigh_1, weigh_2, weigh_3, weigh_4};
static accumulate_fn *const keys_of[2][QUERIES] = {{keys_3_1, keys_3_2, keys_3_3, keys_3_4},
                                                   {keys_4_1, keys_4_2, keys_4_3, keys_4_4}};
static accumulate_fn *const values_of[2][QUERIES] = {
    {values_3_1, values_3_2, values_3_3, values_3_4},
    {values_4_1, values_4_2, values_4_3, values_4_4}};

// ---- Blocks -------------------------------------------------------------------------

// q . centre
static float centre_logit(const krn_f16 *centre, const float *q, uint32_t dim)
{
    v16 sum = v16_set1(0.0f);
    for (uint32_t i = 0; i < dim; i += 16) {
        sum = v16_fma(v16_load(q + i), v16_load_f16(centre + i), sum);
    }
    return v16_tree(sum);
}

static void block_logits(const gpw_codec_part_t *part, const block_t *block, work_t *w)
{
    const gpw_codes_layout_t *l = part->layout;
    const krn_f16 *scales = (const krn_f16 *)(const void *)(block->head + l->k_scales);
    const krn_f16 *centre = (const krn_f16 *)(const void *)(block->head + l->k_centre);
    accumulate_fn *accumulate = keys_of[l->bits == 4][w->queries - 1];
    row_t row = {.codes = block->head,
                 .count = l->dim,
                 .ahead = block->ahead,
                 .steps = w->weights->q_steps[0],
                 .levels = w->weights->key_levels};
    float middle[QUERIES];
    for (uint32_t q = 0; q < w->queries; q++) {
        middle[q] = centre_logit(centre, w->q[q], l->dim);
    }
    v16_prefetch((const char *)centre + block->ahead);
    for (uint32_t t = 0; t < l->tokens_padded; t += 16, row.codes += l->k_row_bytes) {
        accumulate(&row);
        v16 scale = v16_load_f16(scales + t);
        v16_prefetch((const char *)(scales + t) + block->ahead);
        for (uint32_t q = 0; q < w->queries; q++) {
            v16 dot = v16_add(row.sums[q], v16_set1(w->weights->q_bias[q]));
            v16 length = v16_mul(scale, v16_set1(w->weights->q_step[q]));
            v16_store(w->p[q] + block->first + t, v16_fma(dot, length, v16_set1(middle[q])));
        }
    }
    hide_padding(l, block, w);
}

static void block_values(const gpw_codec_part_t *part, const block_t *block, work_t *w)
{
    const gpw_codes_layout_t *l = part->layout;
    const krn_f16 *scales = (const krn_f16 *)(const void *)(block->head + l->v_scales);
    accumulate_fn *accumulate = values_of[l->bits == 4][w->queries - 1];
    row_t row = {.codes = block->head + l->v_codes,
                 .count = l->tokens_padded,
                 .ahead = block->ahead,
                 .steps = w->weights->p_steps[0],
                 .levels = w->weights->value_levels};
    weigh_of[w->queries - 1](scales, l->tokens_padded, w->p[0] + block->first, w->weights);
    v16_prefetch((const char *)scales + block->ahead);
    for (uint32_t c = 0; c < l->dim; c += 16, row.codes += l->v_row_bytes) {
        accumulate(&row);
        for (uint32_t q = 0; q < w->queries; q++) {
            v16 step = v16_set1(w->weights->p_step[q]);
            v16_store(w->out[q] + c, v16_fma(row.sums[q], step, v16_load(w->out[q] + c)));
        }
    }
}

static void attend(const gpw_codec_part_t *part)
{
    weights_t weights;
    work_t w;
    w.weights = &weights;
    weights.key_levels =
        table_of(gpw_turbo_levels(part->layout->bits), 1u << part->layout->bits, KEY_BIAS);
    weights.value_levels =
        table_of(gpw_turbo_levels(part->layout->bits), 1u << part->layout->bits, 0);
    attend_part(part, &w);
}
