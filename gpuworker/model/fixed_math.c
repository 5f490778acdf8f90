// SPDX-License-Identifier: Apache-2.0
// Logarithm by the series of atanh, exponential by the series of exp, each after exact range
// reduction.
//
// The term counts are those after which a further term is below 2^-54 of the result.
#include "gpuworker/model/fixed_math.h"

#include <stdint.h>
#include <string.h>

#include "common/assert.h"

#define LN2_HIGH      0x1.62e42fee00000p-1 // the first 33 bits of ln 2: exact times any exponent
#define LN2_LOW       0x1.a39ef35793c76p-33
#define INVERSE_LN2   0x1.71547652b82fep+0
#define SQRT_HALF     0x1.6a09e667f3bcdp-1
#define ATANH_TERMS   12
#define EXP_TERMS     14
#define MANTISSA_BITS 52

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

double gpw_ln(double x)
{
    uint64_t bits = bits_of(x);
    int64_t exponent = (int64_t)(bits >> MANTISSA_BITS) - 1022;
    AS_ASSERT(exponent > -1022 && exponent <= 1024); // positive, normal, finite
    double mantissa =
        double_of((bits & ((UINT64_C(1) << MANTISSA_BITS) - 1)) | UINT64_C(1022) << MANTISSA_BITS);
    if (mantissa < SQRT_HALF) {
        mantissa *= 2;
        exponent--;
    }
    double s = (mantissa - 1) / (mantissa + 1);
    double square = s * s;
    double tail = 0;
    for (int term = ATANH_TERMS; term >= 1; term--) {
        tail = square * (tail + 1.0 / (2 * term + 1));
    }
    double low = 2 * s * tail + (double)exponent * LN2_LOW;
    return (double)exponent * LN2_HIGH + (2 * s + low);
}

double gpw_exp(double x)
{
    AS_ASSERT(x >= -700 && x <= 700);
    double scaled = x * INVERSE_LN2;
    int64_t power = (int64_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    double r = (x - (double)power * LN2_HIGH) - (double)power * LN2_LOW;
    double sum = 1;
    for (int term = EXP_TERMS; term >= 1; term--) {
        sum = 1 + r / term * sum;
    }
    return sum * double_of((uint64_t)(power + 1023) << MANTISSA_BITS);
}
