// SPDX-License-Identifier: Apache-2.0
// KIVI's attention for any processor.
#include "kernels/cpu/simd_portable.h"

typedef struct dots {
    int32_t lane[16];
} dots_t;

typedef struct codes {
    uint8_t byte[64];
} codes_t;

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
static inline dots_t dots_add(dots_t sums, codes_t codes, const int8_t *weights)
{
    for (int i = 0; i < 64; i++) {
        sums.lane[i / 4] += codes.byte[i] * weights[i % 4];
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

#include "gpuworker/resident/kivi_attend.h"

void gpw_kivi_attend_portable(const gpw_kivi_part_t *part)
{
    attend(part);
}
