// SPDX-License-Identifier: Apache-2.0
// How much attention tokens of a prompt get from its last queries (the observation window): what
// query-aware selectors rank tokens by.
//
//   score[t] = sum over the window's rows r and query heads g of one KV head of
//              softmax_r,g(t) = exp(q[r][g] . k[t] * scale - lse[r][g])
//
// The softmax is over all tokens that a row sees; its log-sum-exp comes from the attention that has
// computed it anyway. Only tokens that every row sees may be scored. Summing over the heads of a
// group, and never over KV heads, is what makes the choice one of the KV head.
#ifndef GPW_WINDOW_SCORES_H
#define GPW_WINDOW_SCORES_H

#include "gpuworker/resident/select/selector.h"

#define GPW_PRODUCT_TOKENS 512u // keys of one product: 64 KiB at head size 64, their logits 200 KiB

// Whose attention is summed up.
typedef struct gpw_window {
    uint32_t row, rows;   // of the observed ones
    uint32_t head, heads; // query heads, all of one KV head
    uint32_t tokens;      // scored: the first ones
} gpw_window_t;

// scores[i] of the tokens i < window->tokens; there is room for scratch->stride of them.
void gpw_window_scores(const gpw_selection_t *choice, const gpw_window_t *window, float *scores);

// scratch->logits[row][t] = scratch->q[row] . key of token first + t of a KV head, for up to
// GPW_PRODUCT_TOKENS tokens before `end`; returns how many columns a row of logits has, a multiple
// of 16: those beyond `end` have no meaning.
uint32_t gpw_window_products(const gpw_selection_t *choice, uint32_t kv_head, uint32_t rows,
                             uint32_t first, uint32_t end);

#endif
