// SPDX-License-Identifier: Apache-2.0
// How much attention each token of a prompt gets from the prompt's last queries (the observation
// window): what query-aware selectors rank tokens by.
//
//   score[t] = sum over the window's rows r and the query heads g of one KV head of
//              softmax_r,g(t) = exp(q[r][g] . k[t] * scale - lse[r][g])
//
// The softmax is over all tokens that a row sees; its log-sum-exp comes from the attention that has
// computed it anyway. Only tokens before the window are scored, which every row of it sees. Summing
// over the heads of a group, and never over KV heads, is what makes the choice one of the KV head.
#ifndef GPW_WINDOW_SCORES_H
#define GPW_WINDOW_SCORES_H

#include "gpuworker/resident/compressor.h"

// Memory for the scores of up to tokens_max tokens, and for choosing among them.
typedef struct gpw_window_scratch {
    krn_f16 *keys;   // one chunk's, in panels
    float *q;        // [rows][group heads][dim]: those of one KV head
    float *lse;      // [rows][group heads]
    float *logits;   // [rows][group heads][chunk]
    float *scores;   // [tokens_max], rounded up
    float *smoothed; // the same
} gpw_window_scratch_t;

// Where that lies in `memory` (NULL: only counts); returns its bytes.
size_t gpw_window_carve(const as_shape_t *shape, uint32_t tokens_max, void *memory,
                        gpw_window_scratch_t *scratch_p);
// Fills scratch->scores of the tokens [0, args->tokens - args->rows) for one KV head.
void gpw_window_scores(const krn_ops_t *ops, const as_shape_t *shape,
                       const gpw_segment_observe_t *args, uint32_t kv_head,
                       const gpw_window_scratch_t *scratch);

#endif
