// SPDX-License-Identifier: Apache-2.0
// Dot products of packed codes with small integers, for AVX2: dots_portable.h says what each does.
#ifndef GPW_DOTS_AVX2_H
#define GPW_DOTS_AVX2_H

#include <string.h>

#include "kernels/cpu/simd_avx2.h"

typedef struct dots { // sixteen sums
    __m256i lo, hi;
} dots_t;
typedef dots_t codes_t; // 64 bytes

typedef __m256i table_t; // of at most 16 codes, in each half

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
static inline codes_t codes_load_halves(const uint8_t *p)
{
    __m256i both = _mm256_loadu_si256((const __m256i *)p);
    codes_t codes = {both, _mm256_srli_epi16(both, 4)};
    return codes;
}
static inline __m256i codes_bit_as_4_of(__m256i codes, uint32_t bit)
{
    codes = bit < 2 ? _mm256_slli_epi16(codes, (int)(2 - bit))
                    : _mm256_srli_epi16(codes, (int)(bit - 2));
    return _mm256_and_si256(codes, _mm256_set1_epi8(4));
}
static inline codes_t codes_bit_as_4(codes_t codes, uint32_t bit)
{
    codes_t bits = {codes_bit_as_4_of(codes.lo, bit), codes_bit_as_4_of(codes.hi, bit)};
    return bits;
}
static inline codes_t codes_or(codes_t a, codes_t b)
{
    codes_t both = {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
    return both;
}
static inline table_t table_of(const int8_t *levels, uint32_t count, int32_t bias)
{
    uint8_t bytes[16] = {0};
    for (uint32_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(levels[i] + bias);
    }
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}
static inline codes_t codes_lookup(table_t table, codes_t codes)
{
    codes_t levels = {_mm256_shuffle_epi8(table, codes.lo), _mm256_shuffle_epi8(table, codes.hi)};
    return levels;
}
// Two products of at most 127 * 127 fit 16 bits, so nothing saturates.
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
// 255 * 63 twice fits 16 bits as well.
static inline dots_t dots_add_unsigned(dots_t sums, codes_t codes, const int8_t *weights)
{
    const __m256i ones = _mm256_set1_epi16(1);
    int32_t four;
    memcpy(&four, weights, sizeof(four));
    __m256i wide = _mm256_set1_epi32(four);
    __m256i lo = _mm256_madd_epi16(_mm256_maddubs_epi16(wide, codes.lo), ones);
    __m256i hi = _mm256_madd_epi16(_mm256_maddubs_epi16(wide, codes.hi), ones);
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

#endif
