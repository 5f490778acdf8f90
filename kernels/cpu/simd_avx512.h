// SPDX-License-Identifier: Apache-2.0
// Sixteen floats in one zmm register: the vector type of the AVX-512 kernels. simd_portable.h says
// what each does.
#ifndef KRN_SIMD_AVX512_H
#define KRN_SIMD_AVX512_H

#include <immintrin.h>
#include <math.h>

#include "kernels/internal.h"

// 8 x 3 accumulators: 24 of the 32 registers, so that both multiply-add ports (4 cycles deep) are
// full, with 11 loads for 24 multiply-adds. Streams are up to 12 high, of two panels: what a panel
// costs to convert is shared by more rows.
#define KRN_ISA(name)    krn_##name##_avx512
#define KRN_ACCUMULATORS 24
#define KRN_TILE_PANELS  3
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KRN_TILE_ROWS   4 // checked code of larger tiles takes minutes to compile
#define KRN_STREAM_ROWS 4
#define KRN_PV_PAIRS    2
#define KRN_PV_VECTORS  2
#define KRN_QK_PAIRS    2
#define KRN_QK_VECTORS  1
#else
#define KRN_TILE_ROWS   8
#define KRN_STREAM_ROWS 12
#define KRN_PV_PAIRS    6
#define KRN_PV_VECTORS  4
#define KRN_QK_PAIRS    4
#define KRN_QK_VECTORS  2
#endif

typedef __m512 v16;

static inline __mmask16 v16_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}
static inline v16 v16_pin(v16 a)
{
    __asm__("" : "+v"(a));
    return a;
}
static inline v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}
static inline void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
static inline void v16_store_n(float *p, v16 a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}
static inline v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void v16_store_f16(uint16_t *p, v16 a)
{
    __m256i halves = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)p, halves);
}
static inline v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
static inline v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
static inline v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
static inline v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
static inline v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline v16 v16_fmaddsub(v16 a, v16 b, v16 c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}
static inline v16 v16_if_less(v16 x, v16 bound, v16 value, v16 otherwise)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ), otherwise, value);
}
static inline v16 v16_add_exponent(v16 a, v16 n)
{
    __m512i shift = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), shift));
}
static inline v16 v16_dup_even(v16 a)
{
    return _mm512_moveldup_ps(a);
}
static inline v16 v16_dup_odd(v16 a)
{
    return _mm512_movehdup_ps(a);
}
static inline v16 v16_swap_pairs(v16 a)
{
    return _mm512_permute_ps(a, 0xb1);
}
static inline v16 v16_even(v16 a, v16 b)
{
    const __m512i pick =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, pick, b);
}
static inline v16 v16_odd(v16 a, v16 b)
{
    const __m512i pick =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, pick, b);
}
static inline float v16_tree(v16 a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
static inline float v16_max_all(v16 a)
{
    __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
static inline v16 v16_join(v16 a, v16 b, const int max)
{
    return max ? _mm512_max_ps(a, b) : _mm512_add_ps(a, b);
}
// Each step halves the values of a row and doubles the rows of a register.
static inline __attribute__((always_inline)) v16 v16_join16(const float rows[16][16], const int max)
{
    __m512 a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512 x = _mm512_loadu_ps(rows[2 * i]), y = _mm512_loadu_ps(rows[2 * i + 1]);
        a[i] = v16_join(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee), max);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) // 128-bit quarters: rows 4i .. 4i + 3
        b[i] = v16_join(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                        _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd), max);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        c[i] = v16_join(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                        _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee), max);
    // Quarter q of c[i] holds rows 8i + q and 8i + 4 + q, two values each.
    __m512 d =
        v16_join(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd), max);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, d);
}
static inline v16 v16_tree16(const float rows[16][16])
{
    return v16_join16(rows, 0);
}
static inline v16 v16_max16(const float rows[16][16])
{
    return v16_join16(rows, 1);
}
static inline void v16_transpose(v16 r[16])
{
    __m512 t[16];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { // 4 x 4 blocks within the 128-bit quarters
        __m512 ab_lo = _mm512_unpacklo_ps(r[4 * i], r[4 * i + 1]);
        __m512 ab_hi = _mm512_unpackhi_ps(r[4 * i], r[4 * i + 1]);
        __m512 cd_lo = _mm512_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]);
        __m512 cd_hi = _mm512_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]);
        t[4 * i] = _mm512_shuffle_ps(ab_lo, cd_lo, 0x44);
        t[4 * i + 1] = _mm512_shuffle_ps(ab_lo, cd_lo, 0xee);
        t[4 * i + 2] = _mm512_shuffle_ps(ab_hi, cd_hi, 0x44);
        t[4 * i + 3] = _mm512_shuffle_ps(ab_hi, cd_hi, 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) { // then a 4 x 4 transposition of the quarters
        __m512 lo0 = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x44);
        __m512 hi0 = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xee);
        __m512 lo1 = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x44);
        __m512 hi1 = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xee);
        r[j] = _mm512_shuffle_f32x4(lo0, lo1, 0x88);
        r[4 + j] = _mm512_shuffle_f32x4(lo0, lo1, 0xdd);
        r[8 + j] = _mm512_shuffle_f32x4(hi0, hi1, 0x88);
        r[12 + j] = _mm512_shuffle_f32x4(hi0, hi1, 0xdd);
    }
}
#define v16_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#endif
