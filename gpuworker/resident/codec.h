// SPDX-License-Identifier: Apache-2.0
// A codec: how one block's keys and values become codes, and attention straight from the codes.
//
// A block's codes are made of that block alone. So equal chains give equal codes, and a block may be
// shared and stored by itself; coded.h makes segments of such blocks, whatever the codec. A new codec is
// its functions below, and a row in the table of compressor.c.
#ifndef GPW_CODEC_H
#define GPW_CODEC_H

#include "gpuworker/resident/compressor.h"

#define GPW_CODES_UNIT_BYTES                                                                       \
    64u // a vector of codes: sixteen lanes of four bytes; what is aligned to
// Blocks of one part: 512 tokens keep two threads busy from 1,000 tokens on.
#define GPW_CODEC_PART_BLOCKS 8u

// Where the codes of one layer and KV head of a block lie: those of the keys first, offsets in bytes.
// Units of codes hold sixteen tokens of K, or sixteen channels of V.
typedef struct gpw_codes_layout {
    uint32_t bits, tokens, dim, kv_heads;
    uint32_t tokens_padded;                       // to a multiple of 16
    uint32_t group;                               // KIVI: tokens (K) or channels (V) of one scale
    uint32_t token_groups, channel_groups;        // KIVI
    size_t k_row_bytes, v_row_bytes;              // units of sixteen tokens; of sixteen channels
    size_t k_scales, k_centre, v_codes, v_scales; // k_centre: turbo
    size_t head_bytes, layer_bytes;
} gpw_codes_layout_t;

// A piece of attention that one thread computes: one KV head over some blocks of one layer.
typedef struct gpw_codec_part {
    const gpw_codes_layout_t *layout;
    const uint8_t *const
        *blocks;          // [block_count]: codes of a block, at `layer_offset` those of the layer
    uint32_t block_count; // 1 .. GPW_CODEC_PART_BLOCKS
    size_t layer_offset;
    uint32_t kv_head, rows, group_heads; // group_heads: query heads of one KV head
    uint32_t q_heads;
    float scale;
    const float *q;     // [rows][q_heads][dim]; rotated, where the codec rotates
    krn_partials_t out; // [rows][q_heads]; only this KV head's query heads are written
    // NULL, or shown the logits of each pair ([row][head of the group]) before they are scaled:
    // [block_count][tokens padded to 16], -inf where nothing is. What it sets to -inf is not attended
    // to.
    void (*look)(void *ctx, uint32_t pair, float *logits);
    void *look_ctx;
} gpw_codec_part_t;

typedef void gpw_codec_attend_fn(const gpw_codec_part_t *part);

typedef struct gpw_codec {
    // Fills all but layer_bytes. AS_ERR_UNSUPPORTED when the shape does not fit.
    as_status_t (*layout)(const gpw_segment_options_t *options,
                          gpw_codes_layout_t *layout_p) AS_MUST_USE;
    // Packs one head of a block's layer: k and v are f32 [tokens][dim], scratch afterwards; `head` was
    // zeroed when it was allocated.
    void (*pack)(const gpw_codes_layout_t *layout, float *k, float *v, uint8_t *head);
    // The same code for each instruction set, to the same bits: those that this processor can run, the
    // fastest first, then NULL.
    void (*attends)(gpw_codec_attend_fn *fns_p[4]);
    // Queries to the basis of the keys' codes, and attention's output from that of the values' codes
    // back, in place: [count][dim]. NULL where codes are in the basis of the model.
    void (*rotate)(float *x, uint32_t count, uint32_t dim);
    void (*rotate_back)(float *x, uint32_t count, uint32_t dim);
} gpw_codec_t;

// Bytes up to the next whole unit.
static inline size_t gpw_codes_whole_units(size_t bytes)
{
    return (bytes + GPW_CODES_UNIT_BYTES - 1) / GPW_CODES_UNIT_BYTES * GPW_CODES_UNIT_BYTES;
}

#endif
