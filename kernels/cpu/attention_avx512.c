// SPDX-License-Identifier: Apache-2.0
// Attention for AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/attention_simd.h"
#else
typedef int krn_attention_avx512_is_empty; // a file may not be
#endif
