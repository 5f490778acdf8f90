// SPDX-License-Identifier: Apache-2.0
// Products of f32 with rows of f16, with the v16 of the simd_<isa>.h included before.
#include "gpuworker/resident/read/products.h"
#include "kernels/cpu/simd_math.h"

#define INLINE static inline __attribute__((always_inline))

#define ROWS_ONCE  4u // dot products at a time: each waits for its own sums alone
#define HEADS_ONCE 4u // heads that share one conversion of a row

INLINE void dot_rows(const float *x, const krn_f16 *rows, uint32_t width, float *out,
                     const uint32_t count)
{
    v16 sums[ROWS_ONCE];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < count; r++) {
        sums[r] = v16_set1(0.0f);
    }
    for (uint32_t i = 0; i < width; i += 16) {
        v16 wide = v16_load(x + i);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < count; r++) {
            sums[r] = v16_fma(wide, v16_load_f16(rows + (size_t)r * width + i), sums[r]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < count; r++) {
        out[r] = v16_tree(sums[r]);
    }
}

static void dots(const float *x, const krn_f16 *rows, uint32_t count, uint32_t width, float *out)
{
    uint32_t i = 0;
    for (; i + ROWS_ONCE <= count; i += ROWS_ONCE) {
        dot_rows(x, rows + (size_t)i * width, width, out + i, ROWS_ONCE);
    }
    for (; i < count; i++) {
        dot_rows(x, rows + (size_t)i * width, width, out + i, 1);
    }
}

INLINE void combine_heads(const gpw_combination_t *c, uint32_t first, const uint32_t heads)
{
    const uint32_t *offsets = c->offsets;
    const float *weights = c->weights + (size_t)first * c->count;
    for (uint32_t i = 0; i < c->columns; i += 16) {
        v16 sums[HEADS_ONCE];
#pragma GCC unroll 4
        for (uint32_t h = 0; h < heads; h++) {
            sums[h] = v16_set1(0.0f);
        }
        for (uint32_t r = 0; r < c->count; r++) {
            v16 row = v16_load_f16(c->rows + offsets[r] + i);
#pragma GCC unroll 4
            for (uint32_t h = 0; h < heads; h++) {
                sums[h] = v16_fma(v16_set1(weights[(size_t)h * c->count + r]), row, sums[h]);
            }
        }
#pragma GCC unroll 4
        for (uint32_t h = 0; h < heads; h++) {
            v16_store(c->out + (first + h) * c->stride + i, sums[h]);
        }
    }
}

static void combine(const gpw_combination_t *c)
{
    uint32_t h = 0;
    for (; h + HEADS_ONCE <= c->heads; h += HEADS_ONCE) {
        combine_heads(c, h, HEADS_ONCE);
    }
    for (; h < c->heads; h++) {
        combine_heads(c, h, 1);
    }
}

static void add_softmax(float *x, uint32_t count, float scale, float *out)
{
    v16 max = v16_set1(-INFINITY), sum = v16_set1(0.0f), wide = v16_set1(scale);
    for (uint32_t i = 0; i < count; i += 16) {
        v16 logits = v16_mul(v16_load(x + i), wide);
        max = v16_max(max, logits);
        v16_store(x + i, logits);
    }
    max = v16_set1(v16_max_all(max) + 0.0f);
    for (uint32_t i = 0; i < count; i += 16) {
        v16 p = v16_exp(v16_sub(v16_load(x + i), max));
        sum = v16_add(sum, p);
        v16_store(x + i, p);
    }
    v16 inverse = v16_set1(1.0f / v16_tree(sum));
    for (uint32_t i = 0; i < count; i += 16) {
        v16_store(out + i, v16_fma(v16_load(x + i), inverse, v16_load(out + i)));
    }
}
