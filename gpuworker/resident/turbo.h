// SPDX-License-Identifier: Apache-2.0
// Rotated Lloyd-Max codes, after TurboQuant (Zandieh et al. 2025) in its mean-square form, for keys and values:
// 4 or 3 bits of a channel, and one scale for all channels of a token.
//
// A vector x is rotated by a fixed orthogonal matrix: its channels are then nearly Gaussian, whatever they were
// before, so one codebook serves all. With z = R x / rms(x) (keys: of x less the block's mean key, in f16, whose
// part of a logit is the same for all of the block's tokens) a channel becomes the nearest of the levels of
// Lloyd and Max for N(0, 1), and the vector
//   x' = R^T (scale * levels),  scale = |x| / |levels|, so that x' is as long as x; in f16.
// A query is rotated once (q . R^T y = R q . y), the output back once. The paper's second stage, a sign of the residue's
// random projections, is left out: its variance costs softmax more than its bias saves.
//
// The levels are whole numbers, so that attention is integer dot products (turbo_attend.h):
//   4 bits: +-{3 9 15 22 29 37 48 63} / 23.08, mean square error 0.00954 (of Lloyd and Max's own: 0.00950)
//   3 bits: +-{7 22 39 63} / 29.21,            mean square error 0.03456 (0.03455)
//
// R: signs from a fixed seed, then a Hadamard transform over the channels, divided by the root of their number. Where the
// number of channels is no power of two, that of the first P, of the last P and again of the first P, with P the greatest
// power of two below it and other signs before each: that mixes all of them, too, and is as orthogonal.
//
// One layer of one block, for each KV head; each of the five begins at a multiple of 64 bytes:
//   k codes   [tokens / 16][row of dim]      see below
//   k scales  [tokens]                       f16, an eighth of which times a level is a channel
//   k centre  [dim]                          f16, rotated
//   v codes   [dim / 16][row of tokens]
//   v scales  [tokens]                       f16
// with tokens padded to a multiple of 16: dim * bits / 8 + 2 bytes for a token's value, 2 * dim / tokens more for its key.
//
// A row is sixteen lanes: tokens of K, channels of V. What is summed over lies along the lane, four bytes of it in a unit of
// 64 bytes, slice i of which (the bits from i * width of each byte) holds four, beginning with the unit's first + 4 * i.
// 4 bits: units of eight, 4 bits wide. 3 bits: for each 32 two units of the lower two bits, of sixteen, then one of the
// highest, 1 bit wide; for sixteen that are left one, and half a unit: lanes 0 to 7 in the lower half of its 32 bytes,
// lanes 8 to 15 in the upper.
#ifndef GPW_TURBO_H
#define GPW_TURBO_H

#include "gpuworker/resident/coded.h"

#define GPW_TURBO_LEVELS_MAX 16u

// Of 2^bits codes, ascending; 127 at most from the first to the last. NULL: no such codebook.
const int8_t *gpw_turbo_levels(uint32_t bits);

as_status_t gpw_turbo_open(const gpw_segment_options_t *options,
                           gpw_segment_t **segment_p) AS_MUST_USE;
uint64_t gpw_turbo_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);

#define GPW_TURBO_FUNCTIONS                                                                        \
    .form = "turbo", .open = gpw_turbo_open, .bytes_max = gpw_turbo_bytes_max, GPW_CODED_FUNCTIONS

// What follows is what the codec is made of.
as_status_t gpw_turbo_layout(const gpw_segment_options_t *options,
                             gpw_codes_layout_t *layout_p) AS_MUST_USE;
void gpw_turbo_pack(const gpw_codes_layout_t *layout, float *k, float *v, uint8_t *head);
void gpw_turbo_rotate(float *x, uint32_t count, uint32_t dim); // x: [count][dim], in place
void gpw_turbo_rotate_back(float *x, uint32_t count, uint32_t dim);
void gpw_turbo_attends(gpw_codec_attend_fn *fns_p[4]);
gpw_codec_attend_fn gpw_turbo_attend_portable, gpw_turbo_attend_avx2, gpw_turbo_attend_avx512;

#endif
