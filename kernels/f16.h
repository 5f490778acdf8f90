// SPDX-License-Identifier: Apache-2.0
// Conversion between binary16 and binary32, one value at a time.
//
// The results are those of the F16C instructions bit for bit (nearest even; NaNs become quiet and
// keep the upper payload), so that vector and scalar paths may be mixed freely.
#ifndef KRN_F16_H
#define KRN_F16_H

#include <stdint.h>
#include <string.h>

static inline float krn_f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 0x3ffu;
    uint32_t bits;
    float value;

    if (exponent == 31) {
        bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {
        value = (float)mantissa * 0x1p-24f; // exact: a subnormal half is a normal float
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t krn_f16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) // 65520 and above round to infinity
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { // normal: add half an ulp less one, and one more if odd
        magnitude += 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
    }
    // Subnormal: adding 0.5 aligns the ulp of the sum with the ulp of the result, and the addition
    // rounds.
    float absolute;
    memcpy(&absolute, &magnitude, 4);
    absolute += 0.5f;
    memcpy(&bits, &absolute, 4);
    return (uint16_t)(sign | (bits - 0x3f000000u));
}

#endif
