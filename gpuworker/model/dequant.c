// SPDX-License-Identifier: Apache-2.0
// Dequantisation of GGUF's tensor types, one function a format.
//
// Field offsets within a block stand above each function. Loops are over plain arrays with constant
// counts, which the compiler turns into vector code; a load is then bound by reading the file.
#include "gpuworker/model/dequant.h"

#include <string.h>

#include "common/assert.h"

#define BLOCK_SMALL 32u
#define BLOCK_K     256u

typedef struct format {
    const char *name;
    uint32_t elements;
    size_t bytes;
    // One of them for a supported type: one block, or `count` elements of a type without blocks.
    void (*block)(const uint8_t *block, float *out);
    void (*run)(const uint8_t *source, size_t count, float *out);
} format_t;

static void run_f32(const uint8_t *source, size_t count, float *out);
static void run_f16(const uint8_t *source, size_t count, float *out);
static void run_bf16(const uint8_t *source, size_t count, float *out);
static void block_q4_0(const uint8_t *block, float *out);
static void block_q4_1(const uint8_t *block, float *out);
static void block_q5_0(const uint8_t *block, float *out);
static void block_q5_1(const uint8_t *block, float *out);
static void block_q8_0(const uint8_t *block, float *out);
static void block_q4_k(const uint8_t *block, float *out);
static void block_q5_k(const uint8_t *block, float *out);
static void block_q6_k(const uint8_t *block, float *out);

static const format_t formats[] = {
    [GPW_TENSOR_F32] = {"F32", 1, 4, NULL, run_f32},
    [GPW_TENSOR_F16] = {"F16", 1, 2, NULL, run_f16},
    [GPW_TENSOR_Q4_0] = {"Q4_0", BLOCK_SMALL, 18, block_q4_0, NULL},
    [GPW_TENSOR_Q4_1] = {"Q4_1", BLOCK_SMALL, 20, block_q4_1, NULL},
    [GPW_TENSOR_Q5_0] = {"Q5_0", BLOCK_SMALL, 22, block_q5_0, NULL},
    [GPW_TENSOR_Q5_1] = {"Q5_1", BLOCK_SMALL, 24, block_q5_1, NULL},
    [GPW_TENSOR_Q8_0] = {"Q8_0", BLOCK_SMALL, 34, block_q8_0, NULL},
    [GPW_TENSOR_Q4_K] = {"Q4_K", BLOCK_K, 144, block_q4_k, NULL},
    [GPW_TENSOR_Q5_K] = {"Q5_K", BLOCK_K, 176, block_q5_k, NULL},
    [GPW_TENSOR_Q6_K] = {"Q6_K", BLOCK_K, 210, block_q6_k, NULL},
    [GPW_TENSOR_BF16] = {"BF16", 1, 2, NULL, run_bf16},
    [9] = {"Q8_1", 0, 0, NULL, NULL},
    [10] = {"Q2_K", 0, 0, NULL, NULL},
    [11] = {"Q3_K", 0, 0, NULL, NULL},
    [15] = {"Q8_K", 0, 0, NULL, NULL},
    [16] = {"IQ2_XXS", 0, 0, NULL, NULL},
    [17] = {"IQ2_XS", 0, 0, NULL, NULL},
    [18] = {"IQ3_XXS", 0, 0, NULL, NULL},
    [19] = {"IQ1_S", 0, 0, NULL, NULL},
    [20] = {"IQ4_NL", 0, 0, NULL, NULL},
    [21] = {"IQ3_S", 0, 0, NULL, NULL},
    [22] = {"IQ2_S", 0, 0, NULL, NULL},
    [23] = {"IQ4_XS", 0, 0, NULL, NULL},
    [29] = {"IQ1_M", 0, 0, NULL, NULL},
    [34] = {"TQ1_0", 0, 0, NULL, NULL},
    [35] = {"TQ2_0", 0, 0, NULL, NULL},
    [39] = {"MXFP4", 0, 0, NULL, NULL},
};
#define FORMAT_COUNT (sizeof(formats) / sizeof(formats[0]))

uint32_t gpw_dequant_block_elements(uint32_t type)
{
    return type < FORMAT_COUNT ? formats[type].elements : 0;
}

size_t gpw_dequant_block_bytes(uint32_t type)
{
    return type < FORMAT_COUNT ? formats[type].bytes : 0;
}

const char *gpw_dequant_type_name(uint32_t type)
{
    return type < FORMAT_COUNT && formats[type].name ? formats[type].name : "unknown";
}

void gpw_dequant(uint32_t type, const void *source, size_t count, float *out)
{
    AS_ASSERT(gpw_dequant_block_elements(type) > 0);
    const format_t *format = &formats[type];
    AS_ASSERT(count % format->elements == 0);
    if (format->run) {
        format->run(source, count, out);
        return;
    }
    const uint8_t *block = source;
    for (size_t at = 0; at < count; at += format->elements) {
        format->block(block, out + at);
        block += format->bytes;
    }
}

static uint16_t load_u16(const uint8_t *data)
{
    uint16_t value;
    memcpy(&value, data, sizeof(value));
    return value;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// IEEE binary16 to binary32, exactly.
static float load_f16(const uint8_t *data)
{
    uint32_t half = load_u16(data);
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude < 0x400u) { // subnormal or zero: mantissa times 2^-24
        float value = (float)magnitude * 0x1p-24f;
        return sign ? -value : value;
    }
    if (magnitude >= 0x7c00u) { // infinity or NaN
        return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    return float_of_bits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

static void run_f32(const uint8_t *source, size_t count, float *out)
{
    memcpy(out, source, count * sizeof(*out));
}

static void run_f16(const uint8_t *source, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = load_f16(source + 2 * i);
    }
}

static void run_bf16(const uint8_t *source, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = float_of_bits((uint32_t)load_u16(source + 2 * i) << 16);
    }
}

// d f16 | 16 bytes: low nibbles are elements 0..15, high nibbles 16..31. Value d * (q - 8).
static void block_q4_0(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    const uint8_t *q = block + 2;
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = d * (float)((q[i] & 15) - 8);
        out[i + 16] = d * (float)((q[i] >> 4) - 8);
    }
}

// d f16 | m f16 | 16 bytes of nibbles. Value d * q + m.
static void block_q4_1(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    float m = load_f16(block + 2);
    const uint8_t *q = block + 4;
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = d * (float)(q[i] & 15) + m;
        out[i + 16] = d * (float)(q[i] >> 4) + m;
    }
}

// d f16 | 32 fifth bits | 16 bytes of nibbles. Value d * (q - 16).
static void block_q5_0(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    uint32_t high;
    memcpy(&high, block + 2, sizeof(high));
    const uint8_t *q = block + 6;
    for (uint32_t i = 0; i < 16; i++) {
        int32_t low_bit = (int32_t)(high >> i & 1) << 4;
        int32_t high_bit = (int32_t)(high >> (i + 16) & 1) << 4;
        out[i] = d * (float)(((q[i] & 15) | low_bit) - 16);
        out[i + 16] = d * (float)(((q[i] >> 4) | high_bit) - 16);
    }
}

// d f16 | m f16 | 32 fifth bits | 16 bytes of nibbles. Value d * q + m.
static void block_q5_1(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    float m = load_f16(block + 2);
    uint32_t high;
    memcpy(&high, block + 4, sizeof(high));
    const uint8_t *q = block + 8;
    for (uint32_t i = 0; i < 16; i++) {
        int32_t low_bit = (int32_t)(high >> i & 1) << 4;
        int32_t high_bit = (int32_t)(high >> (i + 16) & 1) << 4;
        out[i] = d * (float)((q[i] & 15) | low_bit) + m;
        out[i + 16] = d * (float)((q[i] >> 4) | high_bit) + m;
    }
}

// d f16 | 32 signed bytes. Value d * q.
static void block_q8_0(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    for (uint32_t i = 0; i < 32; i++) {
        out[i] = d * (float)(int8_t)block[2 + i];
    }
}

// The 6-bit scale and minimum of sub-block j (of 8) from 12 packed bytes: those of 0..3 fill the
// low 6 bits of bytes j and j + 4; those of 4..7 have their low nibbles in byte j + 4 and their top
// two bits above the former.
static void load_scale_min(const uint8_t *packed, uint32_t j, float *scale_p, float *min_p)
{
    if (j < 4) {
        *scale_p = (float)(packed[j] & 63);
        *min_p = (float)(packed[j + 4] & 63);
        return;
    }
    *scale_p = (float)((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
    *min_p = (float)((packed[j + 4] >> 4) | (packed[j] >> 6) << 4);
}

// d f16 | dmin f16 | 12 bytes of scales | 128 bytes: 4 groups of 32, low nibbles sub-block 2g, high
// 2g + 1. Value d * scale * q - dmin * min.
static void block_q4_k(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    float dmin = load_f16(block + 2);
    for (uint32_t j = 0; j < 8; j++) {
        float scale, min;
        load_scale_min(block + 4, j, &scale, &min);
        float d_scaled = d * scale;
        float m_scaled = dmin * min;
        const uint8_t *q = block + 16 + (j / 2) * 32;
        uint32_t shift = (j & 1) * 4;
        for (uint32_t i = 0; i < 32; i++) {
            out[j * 32 + i] = d_scaled * (float)(q[i] >> shift & 15) - m_scaled;
        }
    }
}

// d f16 | dmin f16 | 12 bytes of scales | 32 bytes: bit j is the fifth bit of sub-block j | 128
// bytes as in Q4_K.
static void block_q5_k(const uint8_t *block, float *out)
{
    float d = load_f16(block);
    float dmin = load_f16(block + 2);
    const uint8_t *high = block + 16;
    for (uint32_t j = 0; j < 8; j++) {
        float scale, min;
        load_scale_min(block + 4, j, &scale, &min);
        float d_scaled = d * scale;
        float m_scaled = dmin * min;
        const uint8_t *q = block + 48 + (j / 2) * 32;
        uint32_t shift = (j & 1) * 4;
        for (uint32_t i = 0; i < 32; i++) {
            int32_t value = (q[i] >> shift & 15) | (high[i] >> j & 1) << 4;
            out[j * 32 + i] = d_scaled * (float)value - m_scaled;
        }
    }
}

// 128 bytes of low nibbles | 64 bytes of top bit pairs | 16 signed scales, one for 16 elements | d
// f16. Each half of the block: elements 0..31 and 64..95 are the low and high nibbles of bytes
// 0..31, 32..63 and 96..127 of bytes 32..63; the pair of bits 2p of byte i tops element 32p + i.
// Value d * scale * (q - 32).
static void block_q6_k(const uint8_t *block, float *out)
{
    const uint8_t *scales = block + 192;
    float d = load_f16(block + 208);
    for (uint32_t half = 0; half < 2; half++) {
        const uint8_t *low = block + half * 64;
        const uint8_t *high = block + 128 + half * 32;
        for (uint32_t p = 0; p < 4; p++) {
            for (uint32_t i = 0; i < 32; i++) {
                uint32_t element = half * 128 + p * 32 + i;
                int32_t nibble = low[(p & 1) * 32 + i] >> (p / 2) * 4 & 15;
                int32_t value = (nibble | (high[i] >> 2 * p & 3) << 4) - 32;
                out[element] = d * (float)(int8_t)scales[element / 16] * (float)value;
            }
        }
    }
}
