// SPDX-License-Identifier: Apache-2.0
// Segments that hold every token as codes: one allocation a block, [layer][kv head] what the codec packs.
//
// All of the compressor table but `open` and `bytes_max`, in which a codec names itself.
#ifndef GPW_CODED_H
#define GPW_CODED_H

#include "gpuworker/resident/codec.h"

as_status_t gpw_coded_open(const gpw_codec_t *codec, const gpw_segment_options_t *options,
                           gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_coded_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_coded_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_coded_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_coded_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_coded_bytes(const gpw_segment_t *segment);
uint64_t gpw_coded_bytes_max(const gpw_codec_t *codec, const gpw_segment_options_t *options,
                             uint32_t blocks);
uint8_t **gpw_coded_slot(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
void gpw_coded_adopt(gpw_segment_t *segment, uint32_t blocks);
void gpw_coded_close(gpw_segment_t *segment);

#define GPW_CODED_FUNCTIONS                                                                        \
    .holder = "blocks", .reserve = gpw_coded_reserve, .seal = gpw_coded_seal,                      \
    .attend = gpw_coded_attend, .extent = gpw_coded_extent, .bytes = gpw_coded_bytes,              \
    .slot = gpw_coded_slot, .adopt = gpw_coded_adopt, .close = gpw_coded_close

#endif
