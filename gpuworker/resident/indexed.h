// SPDX-License-Identifier: Apache-2.0
// All tokens as they are, by blocks, with a reader's index of each: a step reads what params.reader
// chooses.
//
// Quest, ClusterKV and SpeCache are this with one reader and its parameters each. Nothing is dropped
// and nothing is only approximate, so no block of it has to be brought for a verification; what is
// saved is what a draft step reads. It costs more memory than the full cache, by the index, and that is
// what `bytes` says. The authors let the exact rows lie in the host's memory and bring some of
// them in each step; here a worker has one memory (gpuworker/device.h), and beyond it are stores, of
// which a step could not read: so all of it is the session's.
//
// One allocation a block: [layer] its extent, behind it [kv head] the index. Both follow from the
// chain, so sessions on it share them. Stores do not keep them: they are more than the full blocks.
#ifndef GPW_INDEXED_H
#define GPW_INDEXED_H

#include "gpuworker/resident/read/reader.h"

as_status_t gpw_indexed_open(const gpw_segment_options_t *options,
                             gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_indexed_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_indexed_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_indexed_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_indexed_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_indexed_bytes(const gpw_segment_t *segment);
uint64_t gpw_indexed_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
uint8_t **gpw_indexed_slot(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
void gpw_indexed_adopt(gpw_segment_t *segment, uint32_t blocks);
void gpw_indexed_close(gpw_segment_t *segment);

#define GPW_INDEXED_FUNCTIONS                                                                      \
    .holder = "blocks", .form = "f16", .open = gpw_indexed_open, .reserve = gpw_indexed_reserve,   \
    .seal = gpw_indexed_seal, .attend = gpw_indexed_attend, .extent = gpw_indexed_extent,          \
    .bytes = gpw_indexed_bytes, .bytes_max = gpw_indexed_bytes_max, .slot = gpw_indexed_slot,      \
    .adopt = gpw_indexed_adopt, .close = gpw_indexed_close

// What its steps have read.
const gpw_read_t *gpw_indexed_read(const gpw_segment_t *segment);

#endif
