// SPDX-License-Identifier: Apache-2.0
// Products of f32 with rows of f16 for any processor.
#include "kernels/cpu/simd_portable.h"

#include "gpuworker/resident/read/products_simd.h"

const gpw_products_t gpw_products_portable = {
    .name = "portable", .dots = dots, .combine = combine, .add_softmax = add_softmax};
