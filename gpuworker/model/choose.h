// SPDX-License-Identifier: Apache-2.0
// Choosing the next token: a pure function of logits, position and parameters.
//
// Greedy is the arg max, lowest id on ties. Sampling is the arg max of filtered logits /
// temperature plus Gumbel noise from a counter-based generator keyed by (seed, position, token): so
// a drafted and a verified choice at one position use the same noise, and sampled output is
// reproduced as exactly as greedy output.
#ifndef GPW_CHOOSE_H
#define GPW_CHOOSE_H

#include <stdint.h>

typedef struct gpw_choose_params {
    float temperature; // 0: greedy
    float top_p;       // 1: off
    uint32_t top_k;    // 0: off
    uint64_t seed;
} gpw_choose_params_t;

int32_t gpw_choose(const float *logits, uint32_t vocab, uint32_t position,
                   const gpw_choose_params_t *params,
                   float *scratch); // scratch [2 * vocab]; logits are not changed
// Log-probabilities (of the unfiltered softmax, temperature 1) of `token`, and the `count` most
// likely tokens.
float gpw_logprob(const float *logits, uint32_t vocab, int32_t token);
void gpw_top_logprobs(const float *logits, uint32_t vocab, uint32_t count, int32_t *tokens,
                      float *logprobs);

#endif
