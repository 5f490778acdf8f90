// SPDX-License-Identifier: Apache-2.0
// The first and newest blocks as they are (exact.h), and of what leaves them a low-rank summary: LESS
// (Dong et al. 2024).
//
// For each KV head, of the tokens (k, v) that were dropped, with F = 8 features:
//   H = sum phi(k)^T v   [F][dim]        z = sum phi(k)   [F]
// A query attends to the exact tokens and to that, under one sum:
//   out = (sum exp(s) v + psi(q) H) / (sum exp(s) + psi(q) z)
// psi(q) phi(k)^T stands for exp(q k / sqrt(dim)). The maps are learnt beforehand, phi for each KV head and
// psi for each query head of a layer, on keys and queries after RoPE, and lie in a calibration of the model
// (calibration.h); without them no segment opens. Both are
//   map(x)[f] = exp(clamp(a[f] x + b[f], -30, 30))
// The authors' maps have two layers, 512 wide, and the size of a gelu at the end. One layer and an exponential
// (as in Hedgehog, Zhang et al. 2024) are a fiftieth of the weights, and positive: what is added is always a
// mean of dropped values.
//
// A segment depends on keys and values and on the calibration alone. But H is a sum over all that was dropped:
// blocks do not stand alone, so none are shared or stored.
#ifndef GPW_SUMMARY_H
#define GPW_SUMMARY_H

#include "gpuworker/resident/compressor.h"

#define GPW_SUMMARY_FEATURES 8u

// Floats of a map (a [F][dim], b [F]), and of a state (H [F][dim], z [F]).
static inline size_t gpw_summary_floats(uint32_t dim)
{
    return GPW_SUMMARY_FEATURES * ((size_t)dim + 1);
}

// The map of x [dim], a multiple of 16.
void gpw_summary_features(const float *map, const float *x, uint32_t dim,
                          float features[GPW_SUMMARY_FEATURES]);
// Adds a token with these features and this value to a state.
void gpw_summary_fold(float *state, const float features[GPW_SUMMARY_FEATURES], const float *value,
                      uint32_t dim);
// features H to out [dim]; returns features z.
float gpw_summary_read(const float *state, const float features[GPW_SUMMARY_FEATURES], uint32_t dim,
                       float *out);

as_status_t gpw_summary_open(const gpw_segment_options_t *options,
                             gpw_segment_t **segment_p) AS_MUST_USE;
as_status_t gpw_summary_reserve(gpw_segment_t *segment, uint32_t blocks) AS_MUST_USE;
void gpw_summary_seal(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent);
void gpw_summary_attend(const gpw_segment_t *segment, const gpw_segment_attend_t *args);
const void *gpw_summary_extent(const gpw_segment_t *segment, uint32_t layer, uint32_t block);
uint64_t gpw_summary_bytes(const gpw_segment_t *segment);
uint64_t gpw_summary_bytes_max(const gpw_segment_options_t *options, uint32_t blocks);
void gpw_summary_close(gpw_segment_t *segment);

// Without slots: a sum over blocks cannot be taken apart.
#define GPW_SUMMARY_FUNCTIONS                                                                      \
    .holder = "blocks and a summary", .form = "f16", .open = gpw_summary_open,                     \
    .reserve = gpw_summary_reserve, .seal = gpw_summary_seal, .attend = gpw_summary_attend,        \
    .extent = gpw_summary_extent, .bytes = gpw_summary_bytes, .bytes_max = gpw_summary_bytes_max,  \
    .close = gpw_summary_close

#endif
