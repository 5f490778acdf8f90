// SPDX-License-Identifier: Apache-2.0
// Learns the maps of a model's summaries (resident/summary.h), after LESS (Dong et al. 2024).
//
// Layer by layer and alone for each KV head: over passages of a text, queries attend to the first 64 tokens, the
// newest 64 to 127 and the summary of all between; what is minimised is the squared difference of the
// output from that of attention to all. By Adam, a passage a step, with its gradient through the sums of the
// state; in single precision, always in the same order, so a text gives one result whatever the threads.
//
// The text's last passage is held out: on_layer tells the error there, relative to the output, of the tokens
// that are kept alone and with the summary. Maps whose summary does not help there are made silent.
#ifndef GPW_CALIBRATE_SUMMARY_H
#define GPW_CALIBRATE_SUMMARY_H

#include "gpuworker/model/model.h"
#include "gpuworker/resident/calibration.h"

#define GPW_SUMMARY_PASSAGE_TOKENS 512u
#define GPW_SUMMARY_PASSAGES_MAX   8u // with the one that is held out; each begins 256 behind another
// At least two passages, at most all.
#define GPW_SUMMARY_TOKENS_MIN (2 * GPW_SUMMARY_PASSAGE_TOKENS)
#define GPW_SUMMARY_TOKENS_MAX (GPW_SUMMARY_TOKENS_MIN + 6 * GPW_SUMMARY_PASSAGE_TOKENS / 2)

typedef struct gpw_summary_layer {
    uint32_t layer, layers;
    double without, with; // error on the passage that was held out: |difference| / |output|
} gpw_summary_layer_t;

typedef struct gpw_summary_options {
    const gpw_model_t *model;
    const krn_ops_t *ops;
    uint32_t threads;
    const int32_t *tokens;
    size_t token_count;
    uint32_t epochs;
    void (*on_layer)(void *ctx, const gpw_summary_layer_t *layer); // NULL: nobody looks
    void *ctx;
} gpw_summary_options_t;

// Fills in calibration->maps, which was NULL. AS_ERR_INVALID: the text or the model's context is too short;
// AS_ERR_NO_MEMORY.
as_status_t gpw_calibrate_summary(const gpw_summary_options_t *options,
                                  gpw_calibration_t *calibration) AS_MUST_USE;

#endif
