// SPDX-License-Identifier: Apache-2.0
// Of a prompt some tokens, exact, chosen by a selector that looks at its last queries; what comes
// later is held by blocks, by params.codec.
//
// SnapKV, PyramidKV, AdaKV, TOVA, H2O, Expected Attention and DBudgetKV are this with one selector and
// its parameters each; RocketKV with a reader besides (params.reader), by which a step reads a part
// of what is kept of the prompt. The prompt's newest tokens, the observed ones among them, are exact in the
// tail, which is at least as long.
//
// Memory: for each layer, one KV head after the other, keys [kept][dim] and values [kept][dim] of the
// tokens that it keeps, behind all heads their positions, and behind these the reader's indices.
// Heads and layers may keep different numbers; with a reader the heads of a layer keep the same. Token j of a head lies at row j, whatever its position: keys are rotated by their own
// positions already, and every query sees all of them.
//
// The choice depends on the prompt's own queries: a segment belongs to its session alone, is never
// shared and never stored.
//
// A verification needs the prompt's blocks whole, and the swap brings them whole, also the rows that
// are here: each head keeps others, in rows of dim * 2 bytes, while the smallest piece that a fetch
// moves and a checksum covers is an extent. To leave out a quarter of an extent's bytes would take a
// message for every few hundred bytes, and would leave nothing to check them by. Later blocks that
// the codec holds exactly are not brought.
#ifndef GPW_KEPT_PROMPT_H
#define GPW_KEPT_PROMPT_H

#include "gpuworker/resident/read/reader.h"

as_status_t gpw_kept_prompt_open(const gpw_segment_options_t *options,
                                 gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_kept_prompt_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_kept_prompt_observe(gpw_segment_t *segment, const gpw_segment_observe_t *args);
void gpw_kept_prompt_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block,
                          const void *extent);
void gpw_kept_prompt_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_kept_prompt_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_kept_prompt_bytes(const gpw_segment_t *segment);
uint64_t gpw_kept_prompt_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
void gpw_kept_prompt_close(gpw_segment_t *segment);

#define GPW_KEPT_PROMPT_FUNCTIONS                                                                  \
    .holder = "some of the prompt", .open = gpw_kept_prompt_open,                                  \
    .reserve = gpw_kept_prompt_reserve, .observe = gpw_kept_prompt_observe,                        \
    .seal = gpw_kept_prompt_seal, .attend = gpw_kept_prompt_attend,                                \
    .extent = gpw_kept_prompt_extent, .bytes = gpw_kept_prompt_bytes,                              \
    .bytes_max = gpw_kept_prompt_bytes_max, .close = gpw_kept_prompt_close

// Positions that a KV head keeps of the prompt's sealed blocks, ascending; valid once observed.
const uint32_t *gpw_kept_prompt_positions(const gpw_segment_t *segment, uint32_t layer,
                                          uint32_t kv_head, uint32_t *count_p);
// What its steps have read of these; NULL where there is no reader.
const gpw_read_t *gpw_kept_prompt_read(const gpw_segment_t *segment);

#endif
