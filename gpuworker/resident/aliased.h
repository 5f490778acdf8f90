// SPDX-License-Identifier: Apache-2.0
// Some layers attend to what another layer has sealed: KVSharer (Yang et al. 2024).
//
// Which layers those are, and whose they use, is in a calibration of the model (calibration.h); without
// one no segment opens. The other layers are held by params.codec, as if the model had no more. Only the
// segment is shared: a layer's tail is its own, and its queries are.
//
// What a segment holds depends on keys and values and on the calibration alone: sessions share it, and
// stores keep it under a name that has the calibration's id in it. A verification has all layers brought.
#ifndef GPW_ALIASED_H
#define GPW_ALIASED_H

#include "gpuworker/resident/compressor.h"

as_status_t gpw_aliased_open(const gpw_segment_options_t *options,
                             gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_aliased_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_aliased_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_aliased_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_aliased_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_aliased_bytes(const gpw_segment_t *segment);
uint64_t gpw_aliased_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
uint8_t **gpw_aliased_slot(gpw_segment_t *segment, uint32_t block, size_t *bytes_p);
void gpw_aliased_adopt(gpw_segment_t *segment, uint32_t blocks);
void gpw_aliased_close(gpw_segment_t *segment);

#define GPW_ALIASED_FUNCTIONS                                                                      \
    .holder = "blocks of some layers", .open = gpw_aliased_open, .reserve = gpw_aliased_reserve,   \
    .seal = gpw_aliased_seal, .attend = gpw_aliased_attend, .extent = gpw_aliased_extent,          \
    .bytes = gpw_aliased_bytes, .bytes_max = gpw_aliased_bytes_max, .slot = gpw_aliased_slot,      \
    .adopt = gpw_aliased_adopt, .close = gpw_aliased_close

#endif
