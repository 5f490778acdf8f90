// SPDX-License-Identifier: Apache-2.0
// Norm, rotation, activation, conversions, merge and normalise over the v16 of the simd_<isa>.h
// included before.
//
// Each function does what its namesake in reference.c does, sixteen values at a time. Unused lanes
// of a short last group are loaded as +0: in sums of squares that adds +0 to a value that is never
// -0, so the lane keeps its bits.
#include <string.h>

#include "common/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/f16.h"

void KRN_ISA(rmsnorm)(const float *x, const float *weight, uint32_t rows, uint32_t n, float eps,
                      float *out)
{
    uint32_t whole = n / 16 * 16, rest = n % 16;

    for (uint32_t r = 0; r < rows; r++, x += n, out += n) {
        v16 lanes = v16_set1(0.0f);
        for (uint32_t i = 0; i < whole; i += 16) {
            v16 value = v16_load(x + i);
            lanes = v16_fma(value, value, lanes);
        }
        if (rest) {
            v16 value = v16_load_n(x + whole, rest);
            lanes = v16_fma(value, value, lanes);
        }
        float mean = v16_tree(lanes) / (float)n;
        v16 scale = v16_set1(1.0f / sqrtf(mean + eps));
        for (uint32_t i = 0; i < whole; i += 16)
            v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), scale), v16_load(weight + i)));
        if (rest) {
            v16 value = v16_mul(v16_load_n(x + whole, rest), scale);
            v16_store_n(out + whole, v16_mul(value, v16_load_n(weight + whole, rest)), rest);
        }
    }
}

static void rotate_pair(float *a, float *b, const float *cos_sin)
{
    float x0 = *a, x1 = *b;

    *a = fmaf(x0, cos_sin[0], -(x1 * cos_sin[1]));
    *b = fmaf(x1, cos_sin[0], x0 * cos_sin[1]);
}

static void rotate_halves(float *x, uint32_t half, const float *cos_sin)
{
    uint32_t i = 0;

    for (; i + 16 <= half; i += 16) {
        v16 first = v16_load(cos_sin + 2 * i), second = v16_load(cos_sin + 2 * i + 16);
        v16 c = v16_even(first, second), s = v16_odd(first, second);
        v16 x0 = v16_load(x + i), x1 = v16_load(x + half + i);
        v16 minus = v16_sub(v16_set1(-0.0f), v16_mul(x1, s));
        v16_store(x + i, v16_fma(x0, c, minus));
        v16_store(x + half + i, v16_fma(x1, c, v16_mul(x0, s)));
    }
    for (; i < half; i++)
        rotate_pair(x + i, x + half + i, cos_sin + 2 * i);
}

static void rotate_neighbours(float *x, uint32_t half, const float *cos_sin)
{
    uint32_t i = 0;

    for (; i + 8 <= half; i += 8) {
        v16 table = v16_load(cos_sin + 2 * i), value = v16_load(x + 2 * i);
        v16 crossed = v16_mul(v16_swap_pairs(value), v16_dup_odd(table));
        v16_store(x + 2 * i, v16_fmaddsub(value, v16_dup_even(table), crossed));
    }
    for (; i < half; i++)
        rotate_pair(x + 2 * i, x + 2 * i + 1, cos_sin + 2 * i);
}

void KRN_ISA(rope)(float *x, uint32_t rows, uint32_t heads, uint32_t dim, const krn_rope_t *rope,
                   const int32_t *positions)
{
    for (uint32_t r = 0; r < rows; r++) {
        AS_ASSERT(positions[r] >= 0 && (uint32_t)positions[r] < rope->position_count);
        const float *cos_sin = rope->cos_sin + (size_t)positions[r] * rope->dim;
        for (uint32_t h = 0; h < heads; h++, x += dim) {
            if (rope->neox)
                rotate_halves(x, rope->dim / 2, cos_sin);
            else
                rotate_neighbours(x, rope->dim / 2, cos_sin);
        }
    }
}

static v16 swiglu16(v16 gate, v16 up)
{
    const v16 one = v16_set1(1.0f);
    v16 e = v16_exp(v16_sub(v16_set1(-0.0f), gate));

    return v16_mul(v16_div(gate, v16_add(one, e)), up);
}

void KRN_ISA(swiglu)(const float *gate, const float *up, size_t count, float *out)
{
    size_t i = 0;
    uint32_t rest = (uint32_t)(count % 16);

    for (; i + 16 <= count; i += 16)
        v16_store(out + i, swiglu16(v16_load(gate + i), v16_load(up + i)));
    if (rest)
        v16_store_n(out + i, swiglu16(v16_load_n(gate + i, rest), v16_load_n(up + i, rest)), rest);
}

void KRN_ISA(add)(float *a, const float *b, size_t count)
{
    size_t i = 0;

    for (; i + 16 <= count; i += 16)
        v16_store(a + i, v16_add(v16_load(a + i), v16_load(b + i)));
    for (; i < count; i++)
        a[i] += b[i];
}

void KRN_ISA(f32_to_f16)(const float *in, size_t count, krn_f16 *out)
{
    size_t i = 0;

    for (; i + 16 <= count; i += 16)
        v16_store_f16(out + i, v16_load(in + i));
    for (; i < count; i++)
        out[i] = krn_f16_from_float(in[i]);
}

void KRN_ISA(f16_to_f32)(const krn_f16 *in, size_t count, float *out)
{
    size_t i = 0;

    for (; i + 16 <= count; i += 16)
        v16_store(out + i, v16_load_f16(in + i));
    for (; i < count; i++)
        out[i] = krn_f16_to_float(in[i]);
}

static void merge_one(float *a_out, const float *b_out, float ea, float eb, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 16) {
        v16 scaled = v16_mul(v16_set1(ea), v16_load(a_out + d));
        v16_store(a_out + d, v16_fma(v16_set1(eb), v16_load(b_out + d), scaled));
    }
}

void KRN_ISA(merge)(krn_partials_t *a, const krn_partials_t *b, uint32_t count, uint32_t dim)
{
    AS_ASSERT(dim % 16 == 0);
    for (uint32_t i = 0; i < count; i++) {
        float *a_out = a->out + (size_t)i * dim;
        const float *b_out = b->out + (size_t)i * dim;
        if (b->max[i] == -INFINITY)
            continue;
        if (a->max[i] == -INFINITY) {
            a->max[i] = b->max[i];
            a->sum[i] = b->sum[i];
            memcpy(a_out, b_out, dim * sizeof(float));
            continue;
        }
        float max = a->max[i] > b->max[i] ? a->max[i] : b->max[i];
        float ea = krn_expf(a->max[i] - max), eb = krn_expf(b->max[i] - max);
        merge_one(a_out, b_out, ea, eb, dim);
        a->sum[i] = fmaf(eb, b->sum[i], ea * a->sum[i]);
        a->max[i] = max;
    }
}

void KRN_ISA(normalise)(const krn_partials_t *partials, uint32_t count, uint32_t dim, float *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const float *from = partials->out + (size_t)i * dim;
        float *to = out + (size_t)i * dim;
        v16 sum = v16_set1(partials->sum[i]);
        if (partials->sum[i] == 0.0f) {
            memset(to, 0, dim * sizeof(float));
            continue;
        }
        for (uint32_t d = 0; d < dim; d += 16)
            v16_store(to + d, v16_div(v16_load(from + d), sum));
    }
}
