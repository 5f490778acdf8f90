// SPDX-License-Identifier: Apache-2.0
// krn_expf on vectors: the same operations in the same order as in reference.c. Included after a
// simd_<isa>.h.
#ifndef KRN_SIMD_MATH_H
#define KRN_SIMD_MATH_H

static inline v16 v16_exp(v16 x)
{
    const v16 magic = v16_set1(12582912.0f);
    v16 shifted = v16_fma(x, v16_set1(1.44269504088896341f), magic);
    v16 n = v16_sub(shifted, magic);
    v16 r = v16_fma(n, v16_set1(-0.693359375f), x);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 p = v16_set1(1.9875691500e-4f);
    p = v16_fma(p, r, v16_set1(1.3981999507e-3f));
    p = v16_fma(p, r, v16_set1(8.3334519073e-3f));
    p = v16_fma(p, r, v16_set1(4.1665795894e-2f));
    p = v16_fma(p, r, v16_set1(1.6666665459e-1f));
    p = v16_fma(p, r, v16_set1(5.0000001201e-1f));
    v16 y = v16_add(v16_fma(p, v16_mul(r, r), r), v16_set1(1.0f));
    y = v16_add_exponent(y, shifted);
    y = v16_if_less(x, v16_set1(-87.3f), v16_set1(0.0f), y);
    return v16_if_less(v16_set1(88.72283f), x, v16_set1(INFINITY), y);
}

#endif
