// SPDX-License-Identifier: Apache-2.0
// Matrix products for AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/matmul_simd.h"
#else
typedef int krn_matmul_avx512_is_empty; // a file may not be
#endif
