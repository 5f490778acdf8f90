// SPDX-License-Identifier: Apache-2.0
// Norm, rotation, activation, conversions and merge for AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/elementwise_simd.h"
#else
typedef int krn_elementwise_avx512_is_empty; // a file may not be
#endif
