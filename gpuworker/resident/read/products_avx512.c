// SPDX-License-Identifier: Apache-2.0
// Products of f32 with rows of f16 for AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#include "kernels/cpu/simd_avx512.h"

#include "gpuworker/resident/read/products_simd.h"

const gpw_products_t gpw_products_avx512 = {
    .name = "avx512", .dots = dots, .combine = combine, .add_softmax = add_softmax};
#else
typedef int gpw_products_avx512_is_empty; // a file may not be
#endif
