// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for AVX2, FMA and F16C.
#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/simd_avx2.h"

typedef struct dots { // sixteen sums
    __m256i lo, hi;
} dots_t;
typedef dots_t codes_t; // 64 bytes

static inline dots_t dots_zero(void)
{
    dots_t zero = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    return zero;
}
static inline codes_t codes_load(const uint8_t *p)
{
    codes_t codes = {_mm256_loadu_si256((const __m256i *)p),
                     _mm256_loadu_si256((const __m256i *)(p + 32))};
    return codes;
}
static inline codes_t codes_slice(codes_t codes, uint32_t shift, uint32_t mask)
{
    const __m256i bits = _mm256_set1_epi8((char)mask);
    codes_t slice = {_mm256_and_si256(_mm256_srli_epi16(codes.lo, (int)shift), bits),
                     _mm256_and_si256(_mm256_srli_epi16(codes.hi, (int)shift), bits)};
    return slice;
}
// Two products of at most 15 * 127 fit 16 bits, so nothing saturates.
static inline dots_t dots_add(dots_t sums, codes_t codes, const int8_t *weights)
{
    const __m256i ones = _mm256_set1_epi16(1);
    int32_t four;
    memcpy(&four, weights, sizeof(four));
    __m256i wide = _mm256_set1_epi32(four);
    __m256i lo = _mm256_madd_epi16(_mm256_maddubs_epi16(codes.lo, wide), ones);
    __m256i hi = _mm256_madd_epi16(_mm256_maddubs_epi16(codes.hi, wide), ones);
    dots_t more = {_mm256_add_epi32(sums.lo, lo), _mm256_add_epi32(sums.hi, hi)};
    return more;
}
static inline v16 dots_float(dots_t sums)
{
    return v16_of(_mm256_cvtepi32_ps(sums.lo), _mm256_cvtepi32_ps(sums.hi));
}
static inline v16 v16_abs(v16 a)
{
    const __m256 bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return v16_of(_mm256_and_ps(a.lo, bits), _mm256_and_ps(a.hi, bits));
}
// The lowest eight bits of each lane.
static inline void v16_store_low8(int8_t *to, v16 a)
{
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i words = _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(a.lo), byte),
                                        _mm256_and_si256(_mm256_castps_si256(a.hi), byte));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)to, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                     _mm256_extracti128_si256(words, 1)));
}

#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_avx2(const gpw_kivi_part_t *part)
{
    attend(part);
}
#else
typedef int gpw_kivi_attend_avx2_is_empty; // a file may not be
#endif
