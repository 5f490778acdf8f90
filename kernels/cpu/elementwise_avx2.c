// SPDX-License-Identifier: Apache-2.0
// Norm, rotation, activation, conversions and merge for AVX2, FMA and F16C.
#if defined(__x86_64__)
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/elementwise_simd.h"
#else
typedef int krn_elementwise_avx2_is_empty; // a file may not be
#endif
