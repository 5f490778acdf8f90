// SPDX-License-Identifier: Apache-2.0
// What attention straight from codes rounds its weights to, and its softmax.
//
// Included after the v16 of an instruction set (dots_*.h), by codec_attend.h and mixed_attend.h.
#include "kernels/cpu/simd_math.h"

#define INLINE static inline __attribute__((always_inline))

#define QUERIES    4u          // query heads (of all rows) that share one unpacking
#define WIDTH_MAX  256u        // channels, or tokens of a block
#define STEPS      127.0f      // of a signed weight, either way
#define TINY       1e-30f      // of which 255 / x is still finite; weights below are nothing
#define ROUND_BITS 12582912.0f // 1.5 * 2^23: adding it rounds to a whole number in the lowest bits

// p = exp(p * scale - max), with its max and sum; of nothing but -inf zeros, as an empty partial has them.
static void softmax(float *p, uint32_t count, float scale, float *max_p, float *sum_p)
{
    v16 max = v16_set1(-INFINITY), sum = v16_set1(0.0f), wide = v16_set1(scale);
    for (uint32_t t = 0; t < count; t += 16) {
        v16 x = v16_mul(v16_load(p + t), wide);
        max = v16_max(max, x);
        v16_store(p + t, x);
    }
    *max_p = v16_max_all(max) + 0.0f; // never -0: else the order of comparing would show
    max = v16_set1(*max_p == -INFINITY ? 0.0f : *max_p);
    for (uint32_t t = 0; t < count; t += 16) {
        v16 x = v16_exp(v16_sub(v16_load(p + t), max));
        sum = v16_add(sum, x);
        v16_store(p + t, x);
    }
    *sum_p = v16_tree(sum);
}
