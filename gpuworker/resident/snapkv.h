// SPDX-License-Identifier: Apache-2.0
// SnapKV (Li et al. 2024): of a prompt, each KV head keeps the tokens to which the prompt's last
// queries (the observation window) attend most; what comes later stays whole.
//
// For each layer and KV head, over the S tokens of the prompt's sealed blocks:
//   score[t]  = attention of the window's rows and of the group's query heads on t (window_scores.h)
//   pooled[t] = the greatest score within pool_tokens around t, before the window; of the first
//               sink_tokens: infinite
//   kept      = the ceil(S * keep_percent / 100) greatest, the lower position where they are equal
// The window itself is exact in the tail, which is at least as long. Choosing by KV head, not by
// query head, is what keeps a grouped model's cache small.
//
// One layer keeps [kv head][kept] keys and values, exact, packed into pages like blocks: token j of
// a head lies at slot j, whatever its position, since keys are rotated by their own positions
// already and every query sees all of them. Blocks sealed later have pages of their own, as they
// are.
//
// The choice depends on the prompt's own queries: a segment belongs to its session alone, is never
// shared and never stored.
//
// A verification needs the prompt's blocks whole, and the swap brings them whole, also the rows that
// are here: each head keeps others, in rows of dim * 2 bytes, while the smallest piece that a fetch
// moves and a checksum covers is an extent. To leave out a quarter of an extent's bytes would take a
// message for every few hundred bytes, and would leave nothing to check them by. Blocks that are
// here whole are not brought.
#ifndef GPW_SNAPKV_H
#define GPW_SNAPKV_H

#include "gpuworker/resident/compressor.h"

as_status_t gpw_snapkv_open(const gpw_segment_options_t *options,
                            gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_snapkv_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_snapkv_observe(gpw_segment_t *segment, const gpw_segment_observe_t *args);
void gpw_snapkv_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_snapkv_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_snapkv_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_snapkv_bytes(const gpw_segment_t *segment);
uint64_t gpw_snapkv_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
void gpw_snapkv_close(gpw_segment_t *segment);

#define GPW_SNAPKV_FUNCTIONS                                                                       \
    .open = gpw_snapkv_open, .reserve = gpw_snapkv_reserve, .observe = gpw_snapkv_observe,         \
    .seal = gpw_snapkv_seal, .attend = gpw_snapkv_attend, .extent = gpw_snapkv_extent,             \
    .bytes = gpw_snapkv_bytes, .bytes_max = gpw_snapkv_bytes_max, .close = gpw_snapkv_close

// Positions that a KV head keeps of the prompt's sealed blocks, ascending; valid once observed.
const uint32_t *gpw_snapkv_kept(const gpw_segment_t *segment, uint32_t layer, uint32_t kv_head,
                                uint32_t *count_p);

#endif
