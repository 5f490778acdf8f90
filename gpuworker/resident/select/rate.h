// SPDX-License-Identifier: Apache-2.0
// How many bits each token's value and each channel of the keys get of a budget in bytes: RDKV
// (rate-distortion allocation, arXiv 2605.08317).
//
// For one KV head, with a[r][t] the attention of the prompt's last queries (window_scores.h):
//   w[t] = mean over pool_tokens around t of sum over rows r and query heads of a[r][t]
//   u[c] = mean over rows and query heads of q[c]^2, times the variance of k[c] over the tokens
// Values: b[t] of {0, 2, 4, 8, 16} bits minimise sum of w[t] * loss(b[t]) for half of the bytes; a
// token of 0 bits is dropped. Keys: of what is left, b[c] of {0, 2, 4, 8} minimise sum of u[c] *
// loss(b[c]), for all tokens that are not dropped.
//
// loss(b) is what b bits lose of the variance. It falls ever more slowly with the bytes, so for a
// Lagrange multiplier lambda each item takes the most bits whose last step w * (loss - loss') is
// worth more than lambda * (bytes' - bytes): those of enough weight. The least lambda whose choice
// fits is found by bisection over the floats, in 31 passes whatever the weights are; then items that
// would have more for the next lower one (equal weights) have it, in order, as long as that fits.
//
// Channels are chosen for by fours, those of like weight together: that is how their codes lie.
// Scores are pooled as by the authors, with the ends reflected. These take the mean of k[c]^2 where
// here is the variance: their channels of 0 bits are 0, these are the mean.
#ifndef GPW_RATE_H
#define GPW_RATE_H

#include "gpuworker/resident/select/selector.h"

#define GPW_RATES 5u
extern const uint32_t gpw_rate_bits[GPW_RATES]; // 0, 2, 4, 8, 16

// How many tokens and channels have each width; sixteen is no channel's.
typedef struct gpw_rates {
    uint32_t tokens[GPW_RATES], channels[GPW_RATES];
} gpw_rates_t;

// What is to be chosen, and where it goes.
typedef struct gpw_rate_request {
    uint32_t kv_head;
    size_t bytes;       // all that the head may take, as mixed.h lays it out
    gpw_rates_t *rates; // what was chosen
    uint32_t
        *tokens; // positions of those that are held: of most bits first, then ascending; room for
                 // choice->tokens, which may be the scratch's scores of this head
    uint8_t *channels; // [dim]: those of most weight first
} gpw_rate_request_t;

// choice->budget and sinks are not looked at.
void gpw_rate_choose(const gpw_selection_t *choice, const gpw_rate_request_t *request);

#endif
