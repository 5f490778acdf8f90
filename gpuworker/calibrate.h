// SPDX-License-Identifier: Apache-2.0
// Makes a calibration of a model: which layers may attend to what another one has sealed.
//
// KVSharer (Yang et al. 2024), over passages of a text. K[l] and V[l] are a layer's keys and values in
// the mean over the passages. Of all pairs of layers j < l, by falling
//   distance(l, j) = sqrt(|K[l] - K[j]|^2 + |V[l] - V[j]|^2)
// (the least alike first, as the authors found to be better), l shares with j if the model then still
// computes much the same: if the hidden states behind the last norm have, in the mean over all tokens, a
// cosine above cosine_min with those of the model as it is. Where j shares itself l shares with its
// source, and so do layers that shared with l. It ends when as many layers share as are wanted.
//
// The authors take sentences of up to 64 tokens, and leave out those of other lengths when they add;
// here all have 64.
#ifndef GPW_CALIBRATE_H
#define GPW_CALIBRATE_H

#include "gpuworker/model/model.h"
#include "gpuworker/resident/calibration.h"

#define GPW_CALIBRATE_PASSAGES_MAX   30u
#define GPW_CALIBRATE_PASSAGE_TOKENS 64u

// A pair of layers that was tried.
typedef struct gpw_calibrate_trial {
    uint32_t layer, source;
    double cosine;
    bool shares;
    uint32_t shared, wanted; // layers that share so far, and are to
} gpw_calibrate_trial_t;

typedef struct gpw_calibrate_options {
    const gpw_model_t *model;
    const krn_ops_t *ops;
    uint32_t threads;
    const int32_t *tokens;  // of a text: the first passages of it are taken
    size_t token_count;     // at least one passage
    uint32_t shared_layers; // at most so many
    double cosine_min;
    void (*on_trial)(void *ctx, const gpw_calibrate_trial_t *trial); // NULL: nobody looks
    void *ctx;
} gpw_calibrate_options_t;

// AS_ERR_INVALID: the text is too short; AS_ERR_NO_MEMORY. Where no layer may share the calibration says
// so: all hold their own. Does not set the id.
as_status_t gpw_calibrate(const gpw_calibrate_options_t *options,
                          gpw_calibration_t *calibration_p) AS_MUST_USE;

// `assay-gpuworker calibrate`: reads model and text, writes the file. Returns the exit code.
int gpw_calibrate_command(int argc, char **argv);

#endif
