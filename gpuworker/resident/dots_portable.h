// SPDX-License-Identifier: Apache-2.0
// Dot products of packed codes with small integers, as plain C: exact, so the same on any processor.
//
// Sixteen lanes of four bytes; a byte holds the codes of several slices.
#ifndef GPW_DOTS_PORTABLE_H
#define GPW_DOTS_PORTABLE_H

#include <string.h>

#include "kernels/cpu/simd_portable.h"

typedef struct dots {
    int32_t lane[16];
} dots_t;

typedef struct codes {
    uint8_t byte[64];
} codes_t;

typedef struct table { // of at most 16 codes
    uint8_t level[16];
} table_t;

static inline dots_t dots_zero(void)
{
    dots_t zero = {{0}};
    return zero;
}
static inline codes_t codes_load(const uint8_t *p)
{
    codes_t codes;
    memcpy(codes.byte, p, sizeof(codes.byte));
    return codes;
}
static inline codes_t codes_slice(codes_t codes, uint32_t shift, uint32_t mask)
{
    for (int i = 0; i < 64; i++) {
        codes.byte[i] = (uint8_t)(codes.byte[i] >> shift & mask);
    }
    return codes;
}
// Eight lanes in the lower halves of 32 bytes, eight more in the upper: bits 0 to 3 of each byte.
static inline codes_t codes_load_halves(const uint8_t *p)
{
    codes_t codes;
    for (int i = 0; i < 32; i++) {
        codes.byte[i] = p[i];
        codes.byte[32 + i] = (uint8_t)(p[i] >> 4);
    }
    return codes;
}
// One bit of each byte, as 0 or 4.
static inline codes_t codes_bit_as_4(codes_t codes, uint32_t bit)
{
    for (int i = 0; i < 64; i++) {
        codes.byte[i] = (uint8_t)((codes.byte[i] >> bit & 1) << 2);
    }
    return codes;
}
static inline codes_t codes_or(codes_t a, codes_t b)
{
    for (int i = 0; i < 64; i++) {
        a.byte[i] |= b.byte[i];
    }
    return a;
}
// What codes stand for, plus a bias.
static inline table_t table_of(const int8_t *levels, uint32_t count, int32_t bias)
{
    table_t table = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        table.level[i] = (uint8_t)(levels[i] + bias);
    }
    return table;
}
static inline codes_t codes_lookup(table_t table, codes_t codes)
{
    for (int i = 0; i < 64; i++) {
        codes.byte[i] = table.level[codes.byte[i]];
    }
    return codes;
}
// Codes of no sign, weights that have one. Pairs of products are to fit 16 bits.
static inline dots_t dots_add(dots_t sums, codes_t codes, const int8_t *weights)
{
    for (int i = 0; i < 64; i++) {
        sums.lane[i / 4] += codes.byte[i] * weights[i % 4];
    }
    return sums;
}
// Weights of no sign, codes that have one.
static inline dots_t dots_add_unsigned(dots_t sums, codes_t codes, const int8_t *weights)
{
    for (int i = 0; i < 64; i++) {
        sums.lane[i / 4] += (int8_t)codes.byte[i] * (uint8_t)weights[i % 4];
    }
    return sums;
}
static inline v16 dots_float(dots_t sums)
{
    V16_EACH((float)sums.lane[i]);
}
static inline v16 v16_abs(v16 a)
{
    V16_EACH(fabsf(a.lane[i]));
}
// The lowest eight bits of each lane.
static inline void v16_store_low8(int8_t *to, v16 a)
{
    for (int i = 0; i < 16; i++) {
        int32_t bits;
        memcpy(&bits, &a.lane[i], sizeof(bits));
        to[i] = (int8_t)(bits & 0xff);
    }
}

#endif
