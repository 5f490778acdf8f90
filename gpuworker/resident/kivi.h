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

#include "gpuworker/resident/coded.h"

as_status_t gpw_kivi_open(const gpw_segment_options_t *options,
                          gpw_segment_t **segment_p) AS_MUST_USE;
uint64_t gpw_kivi_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);

#define GPW_KIVI_FUNCTIONS                                                                         \
    .form = "kivi", .open = gpw_kivi_open, .bytes_max = gpw_kivi_bytes_max, GPW_CODED_FUNCTIONS

// What follows is what the codec is made of.
as_status_t gpw_kivi_layout(const gpw_segment_options_t *options,
                            gpw_codes_layout_t *layout_p) AS_MUST_USE;
void gpw_kivi_pack(const gpw_codes_layout_t *layout, float *k, float *v, uint8_t *head);
void gpw_kivi_attends(gpw_codec_attend_fn *fns_p[4]);
gpw_codec_attend_fn gpw_kivi_attend_portable, gpw_kivi_attend_avx2, gpw_kivi_attend_avx512;

#endif
