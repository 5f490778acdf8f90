// SPDX-License-Identifier: Apache-2.0
// KIVI (Liu et al. 2024): keys quantized by channel over groups of tokens, values by token over
// groups of channels.
//
// x is stored as code * scale + min with scale = (max - min) / (2^bits - 1), scale and min in f16.
// A constant group has scale 0 and decodes to min. Groups never cross a block, so a block's codes
// depend on that block alone.
//
// One layer of one block, for each KV head; each of the four begins at a multiple of 64 bytes:
//   k codes   [tokens / 16][dim / unit]         units, which attention multiplies as they lie
//   k scales  [token groups][scale, min][dim]   f16
//   v codes   [dim / 16][tokens / unit]         units
//   v scales  [channel groups][scale, min][tokens]   f16
// with tokens padded to a multiple of 16. A unit is 64 bytes: sixteen lanes of four bytes. A lane is a
// token (of K) or a channel (of V); what is summed over, channels or tokens, lies along the lane: slice i
// (bits i * `bits` and up of each byte) holds the four beginning with unit's first + 4 * i. So `unit`
// is 8 for codes of 4 bits and 16 for 2. A last group may be shorter.
#ifndef GPW_KIVI_H
#define GPW_KIVI_H

#include "gpuworker/resident/compressor.h"

#define GPW_KIVI_UNIT_BYTES 64u
// Blocks of one part: 512 tokens keep two threads busy from 1,000 tokens on.
#define GPW_KIVI_PART_BLOCKS 8u

typedef struct gpw_kivi_layout {
    uint32_t bits, group, tokens, dim, kv_heads;
    uint32_t tokens_padded; // to a multiple of 16
    uint32_t token_groups, channel_groups;
    uint32_t k_units, v_units;          // of 16 tokens; of 16 channels
    float mid;                          // (2^bits - 1) / 2
    size_t k_scales, v_codes, v_scales; // byte offsets in one head (k codes are first)
    size_t head_bytes, layer_bytes;
} gpw_kivi_layout_t;

// A piece of attention that one thread computes: one KV head over some blocks of one layer.
typedef struct gpw_kivi_part {
    const gpw_kivi_layout_t *layout;
    const uint8_t *const
        *blocks;          // [block_count]: codes of a block, at `layer_offset` those of the layer
    uint32_t block_count; // 1 .. GPW_KIVI_PART_BLOCKS
    size_t layer_offset;
    uint32_t kv_head, rows, group_heads; // group_heads: query heads of one KV head
    uint32_t q_heads;
    float scale;
    const float *q;     // [rows][q_heads][dim]
    krn_partials_t out; // [rows][q_heads]; only this KV head's query heads are written
} gpw_kivi_part_t;

as_status_t gpw_kivi_open(const gpw_segment_options_t *options,
                          gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_kivi_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_kivi_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_kivi_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_kivi_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_kivi_bytes(const gpw_segment_t *segment);
uint64_t gpw_kivi_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
uint8_t **gpw_kivi_slot(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
void gpw_kivi_adopt(gpw_segment_t *segment, uint32_t blocks);
void gpw_kivi_close(gpw_segment_t *segment);

#define GPW_KIVI_FUNCTIONS                                                                         \
    .open = gpw_kivi_open, .reserve = gpw_kivi_reserve, .seal = gpw_kivi_seal,                     \
    .attend = gpw_kivi_attend, .extent = gpw_kivi_extent, .bytes = gpw_kivi_bytes,                 \
    .bytes_max = gpw_kivi_bytes_max, .slot = gpw_kivi_slot, .adopt = gpw_kivi_adopt,               \
    .close = gpw_kivi_close

as_status_t gpw_kivi_layout(const gpw_segment_options_t *options,
                            gpw_kivi_layout_t *layout_p) AS_MUST_USE;
// Packs one head of a block's layer: k and v are f32 [tokens][dim].
void gpw_kivi_pack(const gpw_kivi_layout_t *layout, const float *k, const float *v, uint8_t *head);

// The same code compiled for each instruction set, to the same bits: use what gpw_kivi_attends gives.
typedef void gpw_kivi_attend_fn(const gpw_kivi_part_t *part);
gpw_kivi_attend_fn gpw_kivi_attend_portable, gpw_kivi_attend_avx2, gpw_kivi_attend_avx512;

// Those that this processor can run, the fastest first, then NULL.
void gpw_kivi_attends(gpw_kivi_attend_fn *fns_p[4]);

#endif
