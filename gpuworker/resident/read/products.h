// SPDX-License-Identifier: Apache-2.0
// Products of f32 with rows of f16: how an index is scored. The same bits on every instruction set.
#ifndef GPW_PRODUCTS_H
#define GPW_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"

// Sums of weighed rows, for several heads at once.
typedef struct gpw_combination {
    const krn_f16 *rows;
    const uint32_t *offsets;        // [count]: where each row begins, in elements
    const float *weights;           // [heads][count]
    uint32_t count, columns, heads; // columns: a multiple of 16
    size_t stride;                  // of out
    float *out;                     // [heads][stride]
} gpw_combination_t;

typedef struct gpw_products {
    const char *name; // "avx2"
    // out[i] = x . row i of rows[count][width], as kernels.h defines a dot product. `width` is a
    // multiple of 16.
    void (*dots)(const float *x, const krn_f16 *rows, uint32_t count, uint32_t width, float *out);
    // out[h][i] = a chain of fused multiply-adds of weights[h][r] and row r's element i over r
    // ascending, from +0.
    void (*combine)(const gpw_combination_t *combination);
    // out[i] += exp(x[i] * scale - max) / sum: the softmax of x[count], of which -inf are nothing and
    // one at least is not. `count` is a multiple of 16; x is scratch afterwards.
    void (*add_softmax)(float *x, uint32_t count, float scale, float *out);
} gpw_products_t;

// Those that this processor can run, the fastest first, then NULL.
void gpw_products_all(const gpw_products_t *all_p[4]);

extern const gpw_products_t gpw_products_portable, gpw_products_avx2, gpw_products_avx512;

#endif
