// SPDX-License-Identifier: Apache-2.0
// Sixteen floats as plain C: the vector type of the portable kernels, for any processor.
//
// Without a fused multiply-add in the instruction set, fmaf is a call (and slow); the bits are the
// same.
#ifndef KRN_SIMD_PORTABLE_H
#define KRN_SIMD_PORTABLE_H

#include <math.h>
#include <string.h>

#include "kernels/f16.h"
#include "kernels/internal.h"

#define KRN_ISA(name)    krn_##name##_portable
#define KRN_ACCUMULATORS 4
#define KRN_TILE_ROWS    4
#define KRN_STREAM_ROWS  4
#define KRN_TILE_PANELS  1
#define KRN_PV_PAIRS     2
#define KRN_PV_VECTORS   2
#define KRN_QK_PAIRS     1
#define KRN_QK_VECTORS   1

typedef struct v16 {
    float lane[16];
} v16;

#define V16_EACH(expression)                                                                       \
    v16 result;                                                                                    \
    for (int i = 0; i < 16; i++)                                                                   \
        result.lane[i] = (expression);                                                             \
    return result

// Keeps the value in a register where it is used twice: compilers like to load it twice instead,
// and loads bind before multiply-adds do.
static inline v16 v16_pin(v16 a)
{
    return a;
}
static inline v16 v16_set1(float x)
{
    V16_EACH(x);
}
static inline v16 v16_load(const float *p)
{
    V16_EACH(p[i]);
}
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    V16_EACH((uint32_t)i < n ? p[i] : 0.0f);
}
static inline void v16_store(float *p, v16 a)
{
    memcpy(p, a.lane, sizeof a.lane);
}
static inline void v16_store_n(float *p, v16 a, uint32_t n)
{
    memcpy(p, a.lane, n * sizeof(float));
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    V16_EACH(krn_f16_to_float(p[i]));
}
static inline void v16_store_f16(uint16_t *p, v16 a)
{
    for (int i = 0; i < 16; i++)
        p[i] = krn_f16_from_float(a.lane[i]);
}
static inline v16 v16_add(v16 a, v16 b)
{
    V16_EACH(a.lane[i] + b.lane[i]);
}
static inline v16 v16_sub(v16 a, v16 b)
{
    V16_EACH(a.lane[i] - b.lane[i]);
}
static inline v16 v16_mul(v16 a, v16 b)
{
    V16_EACH(a.lane[i] * b.lane[i]);
}
static inline v16 v16_div(v16 a, v16 b)
{
    V16_EACH(a.lane[i] / b.lane[i]);
}
static inline v16 v16_max(v16 a, v16 b)
{
    V16_EACH(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
// Even lanes a * b - c, odd lanes a * b + c.
static inline v16 v16_fmaddsub(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(a.lane[i], b.lane[i], i % 2 ? c.lane[i] : -c.lane[i]));
}
// x < bound ? value : otherwise
static inline v16 v16_if_less(v16 x, v16 bound, v16 value, v16 otherwise)
{
    V16_EACH(x.lane[i] < bound.lane[i] ? value.lane[i] : otherwise.lane[i]);
}
// Adds the integer in the low bits of n to the exponent of a: a * 2^n.
static inline v16 v16_add_exponent(v16 a, v16 n)
{
    uint32_t bits[16], shift[16];
    memcpy(bits, a.lane, sizeof bits);
    memcpy(shift, n.lane, sizeof shift);
    for (int i = 0; i < 16; i++)
        bits[i] += shift[i] << 23;
    memcpy(a.lane, bits, sizeof bits);
    return a;
}
static inline v16 v16_dup_even(v16 a)
{
    V16_EACH(a.lane[i & ~1]);
}
static inline v16 v16_dup_odd(v16 a)
{
    V16_EACH(a.lane[i | 1]);
}
static inline v16 v16_swap_pairs(v16 a)
{
    V16_EACH(a.lane[i ^ 1]);
}
// Even (odd) elements of the 32 floats a, b.
static inline v16 v16_even(v16 a, v16 b)
{
    V16_EACH(i < 8 ? a.lane[2 * i] : b.lane[2 * i - 16]);
}
static inline v16 v16_odd(v16 a, v16 b)
{
    V16_EACH(i < 8 ? a.lane[2 * i + 1] : b.lane[2 * i - 15]);
}
// The tree of kernels.h over the lanes.
static inline float v16_tree(v16 a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.lane[i] += a.lane[i + half];
    return a.lane[0];
}
static inline float v16_max_all(v16 a)
{
    float max = a.lane[0];
    for (int i = 1; i < 16; i++)
        max = a.lane[i] > max ? a.lane[i] : max;
    return max;
}
// Lane t of the result is the tree over rows[t].
static inline v16 v16_tree16(const float rows[16][16])
{
    V16_EACH(v16_tree(v16_load(rows[i])));
}
// Lane i: the greatest of rows[i].
static inline v16 v16_max16(const float rows[16][16])
{
    V16_EACH(v16_max_all(v16_load(rows[i])));
}
static inline void v16_transpose(v16 rows[16])
{
    v16 copy[16];
    memcpy(copy, rows, sizeof copy);
    for (int r = 0; r < 16; r++)
        for (int i = 0; i < 16; i++)
            rows[r].lane[i] = copy[i].lane[r];
}
// A macro: gcc takes a function that only prefetches for one without effect, and drops its calls.
#define v16_prefetch(p) __builtin_prefetch(p)

#endif
