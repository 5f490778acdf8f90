// SPDX-License-Identifier: Apache-2.0
// Blocks as they are, in f16: all of them, or some by their positions.
//
// All: the codec of those who hold blocks exactly (gpw_codec_exact). Blocks stand alone.
//
// By positions (params.selector is gpw_select_positions): StreamingLLM (Xiao et al. 2023), the first
// tokens (attention sinks) and the newest ones stay; the rest is dropped. Block by block: the sinks'
// blocks and a ring of the newest sealed blocks. Keys keep their absolute positions, which is right
// as long as the context stays within the length that the model was trained for.
#ifndef GPW_EXACT_H
#define GPW_EXACT_H

#include "gpuworker/resident/compressor.h"

as_status_t gpw_exact_open(const gpw_segment_options_t *options,
                           gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_exact_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_exact_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
// The extent that the next seal of this layer overwrites; NULL: none.
const void *gpw_exact_leaving(const gpw_segment_t *segment, uint32_t layer);
void gpw_exact_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_exact_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_exact_bytes(const gpw_segment_t *segment);
uint64_t gpw_exact_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
uint8_t **gpw_exact_slot(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
void gpw_exact_adopt(gpw_segment_t *segment, uint32_t blocks);
void gpw_exact_close(gpw_segment_t *segment);

// Without slots: in a ring blocks do not stand alone.
#define GPW_EXACT_FUNCTIONS                                                                        \
    .holder = "blocks", .form = "f16", .open = gpw_exact_open, .reserve = gpw_exact_reserve,       \
    .seal = gpw_exact_seal, .attend = gpw_exact_attend, .extent = gpw_exact_extent,                \
    .bytes = gpw_exact_bytes, .bytes_max = gpw_exact_bytes_max, .close = gpw_exact_close

extern const gpw_compressor_t gpw_codec_exact; // "f16"

#endif
