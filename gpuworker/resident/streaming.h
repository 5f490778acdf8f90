// SPDX-License-Identifier: Apache-2.0
// StreamingLLM (Xiao et al. 2023): the first tokens (attention sinks) and the newest ones stay,
// exact; the rest is dropped. Block by block: the sinks' blocks and a ring of the newest sealed
// blocks. Keys keep their absolute positions, which is right as long as the context stays within
// the length that the model was trained for.
#ifndef GPW_STREAMING_H
#define GPW_STREAMING_H

#include "gpuworker/resident/compressor.h"

as_status_t gpw_streaming_open(const gpw_segment_options_t *options,
                               gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_streaming_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_streaming_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_streaming_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_streaming_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_streaming_bytes(const gpw_segment_t *segment);
uint64_t gpw_streaming_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
void gpw_streaming_close(gpw_segment_t *segment);

#define GPW_STREAMING_FUNCTIONS                                                                    \
    .open = gpw_streaming_open, .reserve = gpw_streaming_reserve, .seal = gpw_streaming_seal,      \
    .attend = gpw_streaming_attend, .extent = gpw_streaming_extent, .bytes = gpw_streaming_bytes,  \
    .bytes_max = gpw_streaming_bytes_max, .close = gpw_streaming_close

#endif
