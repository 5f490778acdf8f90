// SPDX-License-Identifier: Apache-2.0
// KIVI (Liu et al. 2024): keys quantized by channel over groups of tokens, values by token over
// groups of channels.
//
// x is stored as code * scale + min with scale = (max - min) / (2^bits - 1), scale and min in f16.
// A constant group has scale 0 and decodes to min. Groups never cross a block, so a block's codes
// depend on that block alone.
//
// One layer of one block, for each KV head:
//   k codes   [dim][tokens]    `bits` each, tokens padded to a multiple of 8
//   k scales  [dim][token groups]{scale, min}  f16
//   v codes   [tokens][dim]    `bits` each
//   v scales  [tokens][channel groups]{scale, min}  f16
// Eight codes lie in one little-endian word, the first in its lowest bits. A last group may be
// shorter.
#ifndef GPW_KIVI_H
#define GPW_KIVI_H

#include "gpuworker/resident/compressor.h"

typedef struct gpw_kivi_layout {
    uint32_t bits, group, tokens, dim, kv_heads;
    uint32_t tokens_padded; // to a multiple of 8
    uint32_t token_groups, channel_groups;
    uint32_t k_row_bytes, v_row_bytes;  // codes of one channel; of one token
    size_t k_scales, v_codes, v_scales; // byte offsets in one head (k codes are first)
    size_t head_bytes, layer_bytes;
} gpw_kivi_layout_t;

// A piece of attention that one thread computes: one KV head over some blocks of one layer.
typedef struct gpw_kivi_part {
    const gpw_kivi_layout_t *layout;
    const krn_ops_t *ops;
    const uint8_t *const
        *blocks; // [block_count]: codes of a block, at `layer_offset` those of the layer
    uint32_t block_count;
    size_t layer_offset;
    uint32_t kv_head, rows, group_heads; // group_heads: query heads of one KV head
    uint32_t q_heads;
    float scale;
    const float *q;     // [rows][q_heads][dim]
    krn_partials_t out; // [rows][q_heads]; only this KV head's query heads are touched
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
void gpw_kivi_close(gpw_segment_t *segment);

#define GPW_KIVI_FUNCTIONS                                                                         \
    .open = gpw_kivi_open, .reserve = gpw_kivi_reserve, .seal = gpw_kivi_seal,                     \
    .attend = gpw_kivi_attend, .extent = gpw_kivi_extent, .bytes = gpw_kivi_bytes,                 \
    .bytes_max = gpw_kivi_bytes_max, .slot = gpw_kivi_slot, .close = gpw_kivi_close

as_status_t gpw_kivi_layout(const gpw_segment_options_t *options,
                            gpw_kivi_layout_t *layout_p) AS_MUST_USE;
// Packs one head of a block's layer: k and v are f32 [tokens][dim].
void gpw_kivi_pack(const gpw_kivi_layout_t *layout, const float *k, const float *v, uint8_t *head);

// The same code compiled twice; the bits are equal, since neither fuses multiplications and
// additions.
void gpw_kivi_attend_portable(const gpw_kivi_part_t *part);
void gpw_kivi_attend_avx2(const gpw_kivi_part_t *part); // only where the processor has it

#endif
