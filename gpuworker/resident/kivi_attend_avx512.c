// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for AVX-512 F, BW, VL, DQ and VNNI.
#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/simd_avx512.h"

typedef __m512i dots_t;  // sixteen sums
typedef __m512i codes_t; // 64 bytes

static inline dots_t dots_zero(void)
{
    return _mm512_setzero_si512();
}
static inline codes_t codes_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
static inline codes_t codes_slice(codes_t codes, uint32_t shift, uint32_t mask)
{
    return _mm512_and_si512(_mm512_srli_epi16(codes, shift), _mm512_set1_epi8((char)mask));
}
static inline dots_t dots_add(dots_t sums, codes_t codes, const int8_t *weights)
{
    int32_t four;
    memcpy(&four, weights, sizeof(four));
    return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}
static inline v16 dots_float(dots_t sums)
{
    return _mm512_cvtepi32_ps(sums);
}
static inline v16 v16_abs(v16 a)
{
    return _mm512_abs_ps(a);
}
// The lowest eight bits of each lane.
static inline void v16_store_low8(int8_t *to, v16 a)
{
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_castps_si512(a)));
}

#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_avx512(const gpw_kivi_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_kivi_attend_avx512_is_empty; // a file may not be
#endif
