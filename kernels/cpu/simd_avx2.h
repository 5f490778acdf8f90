// SPDX-License-Identifier: Apache-2.0
// Sixteen floats in two ymm registers: the vector type of the AVX2 kernels. simd_portable.h says
// what each does.
#ifndef KRN_SIMD_AVX2_H
#define KRN_SIMD_AVX2_H

#include <immintrin.h>
#include <math.h>

#include "kernels/internal.h"

// 6 x 1 panel: 12 of the 16 registers are accumulators.
#define KRN_ISA(name)    krn_##name##_avx2
#define KRN_ACCUMULATORS 6
#define KRN_TILE_PANELS  1
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KRN_STREAM_ROWS 4
#define KRN_TILE_ROWS   4 // checked code of larger tiles takes minutes to compile
#define KRN_PV_PAIRS    2
#else
#define KRN_STREAM_ROWS 6
#define KRN_TILE_ROWS   6
#define KRN_PV_PAIRS    6
#endif
#define KRN_PV_VECTORS 1
#define KRN_QK_PAIRS   1
#define KRN_QK_VECTORS 1

typedef struct v16 {
    __m256 lo, hi;
} v16;

static inline v16 v16_of(__m256 lo, __m256 hi)
{
    v16 a = {lo, hi};
    return a;
}
// Masks of lanes [0, n) of eight; n may be below 0 or above 8.
static inline __m256i v16_mask8(int32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline v16 v16_pin(v16 a)
{
    __asm__("" : "+x"(a.lo), "+x"(a.hi));
    return a;
}
static inline v16 v16_set1(float x)
{
    return v16_of(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
static inline v16 v16_load(const float *p)
{
    return v16_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    return v16_of(_mm256_maskload_ps(p, v16_mask8((int32_t)n)),
                  _mm256_maskload_ps(p + 8, v16_mask8((int32_t)n - 8)));
}
static inline void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline void v16_store_n(float *p, v16 a, uint32_t n)
{
    _mm256_maskstore_ps(p, v16_mask8((int32_t)n), a.lo);
    _mm256_maskstore_ps(p + 8, v16_mask8((int32_t)n - 8), a.hi);
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    return v16_of(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline void v16_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
static inline v16 v16_add(v16 a, v16 b)
{
    return v16_of(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
static inline v16 v16_sub(v16 a, v16 b)
{
    return v16_of(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
static inline v16 v16_mul(v16 a, v16 b)
{
    return v16_of(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
static inline v16 v16_div(v16 a, v16 b)
{
    return v16_of(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
static inline v16 v16_max(v16 a, v16 b)
{
    return v16_of(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return v16_of(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
static inline v16 v16_fmaddsub(v16 a, v16 b, v16 c)
{
    return v16_of(_mm256_fmaddsub_ps(a.lo, b.lo, c.lo), _mm256_fmaddsub_ps(a.hi, b.hi, c.hi));
}
static inline v16 v16_if_less(v16 x, v16 bound, v16 value, v16 otherwise)
{
    return v16_of(
        _mm256_blendv_ps(otherwise.lo, value.lo, _mm256_cmp_ps(x.lo, bound.lo, _CMP_LT_OQ)),
        _mm256_blendv_ps(otherwise.hi, value.hi, _mm256_cmp_ps(x.hi, bound.hi, _CMP_LT_OQ)));
}
static inline __m256 v16_add_exponent8(__m256 a, __m256 n)
{
    __m256i shift = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
}
static inline v16 v16_add_exponent(v16 a, v16 n)
{
    return v16_of(v16_add_exponent8(a.lo, n.lo), v16_add_exponent8(a.hi, n.hi));
}
static inline v16 v16_dup_even(v16 a)
{
    return v16_of(_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi));
}
static inline v16 v16_dup_odd(v16 a)
{
    return v16_of(_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi));
}
static inline v16 v16_swap_pairs(v16 a)
{
    return v16_of(_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1));
}
static inline __m256 v16_pick8(__m256 a, __m256 b, int odd)
{
    __m256 mixed = odd ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
static inline v16 v16_even(v16 a, v16 b)
{
    return v16_of(v16_pick8(a.lo, a.hi, 0), v16_pick8(b.lo, b.hi, 0));
}
static inline v16 v16_odd(v16 a, v16 b)
{
    return v16_of(v16_pick8(a.lo, a.hi, 1), v16_pick8(b.lo, b.hi, 1));
}
static inline float v16_tree(v16 a)
{
    __m256 x = _mm256_add_ps(a.lo, a.hi);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
static inline float v16_max_all(v16 a)
{
    __m256 x = _mm256_max_ps(a.lo, a.hi);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
// The tree over each of eight rows.
static inline __m256 v16_tree8(const float rows[8][16])
{
    __m256 a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_add_ps(_mm256_loadu_ps(rows[i]), _mm256_loadu_ps(rows[i] + 8));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) // halves of 128 bits: rows i and i + 4
        b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20),
                             _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        c[i] = _mm256_add_ps(_mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
}
static inline v16 v16_tree16(const float rows[16][16])
{
    return v16_of(v16_tree8(rows), v16_tree8(rows + 8));
}
static inline v16 v16_max16(const float rows[16][16])
{
    float max[16];
    for (int i = 0; i < 16; i++)
        max[i] = v16_max_all(v16_load(rows[i]));
    return v16_load(max);
}
static inline void v16_transpose8(__m256 r[8])
{
    __m256 t[8];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256 ab_lo = _mm256_unpacklo_ps(r[4 * i], r[4 * i + 1]);
        __m256 ab_hi = _mm256_unpackhi_ps(r[4 * i], r[4 * i + 1]);
        __m256 cd_lo = _mm256_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]);
        __m256 cd_hi = _mm256_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]);
        t[4 * i] = _mm256_shuffle_ps(ab_lo, cd_lo, 0x44);
        t[4 * i + 1] = _mm256_shuffle_ps(ab_lo, cd_lo, 0xee);
        t[4 * i + 2] = _mm256_shuffle_ps(ab_hi, cd_hi, 0x44);
        t[4 * i + 3] = _mm256_shuffle_ps(ab_hi, cd_hi, 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        r[j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x20);
        r[4 + j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x31);
    }
}
static inline void v16_transpose(v16 r[16])
{
    __m256 block[2][2][8]; // [rows 0-7 or 8-15][columns 0-7 or 8-15]
    for (int i = 0; i < 16; i++) {
        block[i / 8][0][i % 8] = r[i].lo;
        block[i / 8][1][i % 8] = r[i].hi;
    }
    for (int i = 0; i < 4; i++)
        v16_transpose8(block[i / 2][i % 2]);
    for (int i = 0; i < 16; i++)
        r[i] = v16_of(block[0][i / 8][i % 8], block[1][i / 8][i % 8]);
}
#define v16_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#endif
