// SPDX-License-Identifier: Apache-2.0
// Dot products of packed codes with small integers, for AVX-512 F, BW, VL, DQ and VNNI:
// dots_portable.h says what each does.
#ifndef GPW_DOTS_AVX512_H
#define GPW_DOTS_AVX512_H

#include <string.h>

#include "kernels/cpu/simd_avx512.h"

typedef __m512i dots_t;  // sixteen sums
typedef __m512i codes_t; // 64 bytes

typedef __m512i table_t; // of at most 16 codes, in each quarter

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
static inline codes_t codes_load_halves(const uint8_t *p)
{
    __m256i both = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
}
static inline codes_t codes_bit_as_4(codes_t codes, uint32_t bit)
{
    codes = bit < 2 ? _mm512_slli_epi16(codes, 2 - bit) : _mm512_srli_epi16(codes, bit - 2);
    return _mm512_and_si512(codes, _mm512_set1_epi8(4));
}
static inline codes_t codes_or(codes_t a, codes_t b)
{
    return _mm512_or_si512(a, b);
}
static inline table_t table_of(const int8_t *levels, uint32_t count, int32_t bias)
{
    uint8_t bytes[16] = {0};
    for (uint32_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(levels[i] + bias);
    }
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}
static inline codes_t codes_lookup(table_t table, codes_t codes)
{
    return _mm512_shuffle_epi8(table, codes);
}
static inline dots_t dots_add(dots_t sums, codes_t codes, const int8_t *weights)
{
    int32_t four;
    memcpy(&four, weights, sizeof(four));
    return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}
static inline dots_t dots_add_unsigned(dots_t sums, codes_t codes, const int8_t *weights)
{
    int32_t four;
    memcpy(&four, weights, sizeof(four));
    return _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(four), codes);
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

#endif
