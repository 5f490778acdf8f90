// SPDX-License-Identifier: Apache-2.0
// Of each block some tokens, chosen by a selector that looks at keys and values only, held by
// params.codec (gpw_codec_exact, KIVI's, ...).
//
// Each KV head keeps ceil(block_tokens * keep_percent / 100) tokens of each block; of the chain's
// first sink_tokens as many as that allows. To the codec that is a block of so many tokens: it seals
// and attends to shorter blocks, and needs to know nothing of positions.
//
// A block's choice depends on that block alone: equal chains give equal bytes, whoever seals them,
// so sealed blocks are shared and stored as the codec's own are. The price is that every block keeps
// the same number of tokens, whatever is in it; the published forms of these selectors compare all of
// a prompt, which no two sessions with different ends would do alike.
#ifndef GPW_KEPT_BLOCKS_H
#define GPW_KEPT_BLOCKS_H

#include "gpuworker/resident/compressor.h"

as_status_t gpw_kept_blocks_open(const gpw_segment_options_t *options,
                                 gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_kept_blocks_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_kept_blocks_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block,
                          const void *extent);
void gpw_kept_blocks_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_kept_blocks_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_kept_blocks_bytes(const gpw_segment_t *segment);
uint64_t gpw_kept_blocks_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
uint8_t **gpw_kept_blocks_slot(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
void gpw_kept_blocks_adopt(gpw_segment_t *segment, uint32_t blocks);
void gpw_kept_blocks_close(gpw_segment_t *segment);

#define GPW_KEPT_BLOCKS_FUNCTIONS                                                                  \
    .holder = "some of each block", .open = gpw_kept_blocks_open,                                  \
    .reserve = gpw_kept_blocks_reserve, .seal = gpw_kept_blocks_seal,                              \
    .attend = gpw_kept_blocks_attend, .extent = gpw_kept_blocks_extent,                            \
    .bytes = gpw_kept_blocks_bytes, .bytes_max = gpw_kept_blocks_bytes_max,                        \
    .slot = gpw_kept_blocks_slot, .adopt = gpw_kept_blocks_adopt, .close = gpw_kept_blocks_close

// Tokens of the block that was sealed last, counted from its first, which a KV head kept: ascending.
const uint32_t *gpw_kept_blocks_chosen(const gpw_segment_t *segment, uint32_t kv_head,
                                       uint32_t *count_p);

#endif
