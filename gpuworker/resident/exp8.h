// SPDX-License-Identifier: Apache-2.0
// Vectors of eight floats, for whatever instruction set the file is compiled for, and their exp.
//
// Vectors pass by pointer: without AVX a 32-byte vector has no calling convention.
#ifndef GPW_EXP8_H
#define GPW_EXP8_H

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

typedef float v8f __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

// exp for x <= 0 (or above it by no more than rounding), relative error below 1e-6; 0 below -87.
// The polynomial is Cephes'.
INLINE void exp8(v8f *x_p)
{
    v8f x = *x_p;
    v8i tiny = x < -87.0f;
    x = (v8f)((v8i)x & ~tiny);
    v8f shifted = x * 1.44269504088896341f + 12582912.0f;
    v8f n = shifted - 12582912.0f;
    v8f r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    v8f p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    v8f y = p * (r * r) + r + 1.0f;
    v8u bits = (v8u)y + ((v8u)shifted << 23);
    *x_p = (v8f)((v8i)bits & ~tiny);
}

#endif
