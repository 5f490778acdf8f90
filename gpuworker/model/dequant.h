// SPDX-License-Identifier: Apache-2.0
// Tensor types of GGUF files and how their blocks become f32.
//
// The values are those of the `gguf` Python package, bit for bit: each is one or two single f32
// operations on exactly converted f16 scales. Blocks of the K types hold 256 elements, of the
// others 32; a row is a whole number of blocks.
#ifndef GPW_DEQUANT_H
#define GPW_DEQUANT_H

#include <stddef.h>
#include <stdint.h>

// The numbers are the file format's.
typedef enum gpw_tensor_type {
    GPW_TENSOR_F32 = 0,
    GPW_TENSOR_F16 = 1,
    GPW_TENSOR_Q4_0 = 2,
    GPW_TENSOR_Q4_1 = 3,
    GPW_TENSOR_Q5_0 = 6,
    GPW_TENSOR_Q5_1 = 7,
    GPW_TENSOR_Q8_0 = 8,
    GPW_TENSOR_Q4_K = 12,
    GPW_TENSOR_Q5_K = 13,
    GPW_TENSOR_Q6_K = 14,
    GPW_TENSOR_BF16 = 30
} gpw_tensor_type_t;

// Elements and bytes of one block; 0 for a type that this build does not know.
uint32_t gpw_dequant_block_elements(uint32_t type);
size_t gpw_dequant_block_bytes(uint32_t type);
// "Q4_K"; "Q2_K" and other names of unsupported types too; "unknown" beyond those. Never NULL.
const char *gpw_dequant_type_name(uint32_t type);
// `count` elements (a multiple of the block's) from `source`, which need not be aligned.
void gpw_dequant(uint32_t type, const void *source, size_t count, float *out);

#endif
