// SPDX-License-Identifier: Apache-2.0
// The hardware's conversions of binary16, by those of kernels/f16.h.
#ifndef TESTS_EMULATED_CUDA_FP16_H
#define TESTS_EMULATED_CUDA_FP16_H

#include "kernels/f16.h"

struct __half {
    unsigned short bits;
};
inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}
inline unsigned short __half_as_ushort(__half half)
{
    return half.bits;
}
inline float __half2float(__half half)
{
    return krn_f16_to_float(half.bits);
}
inline __half __float2half_rn(float value)
{
    return {krn_f16_from_float(value)};
}

#endif
