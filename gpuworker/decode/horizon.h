// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft before a verification.
//
// A request may fix it. Else it follows the drafts' acceptance: with the chance a that the next
// draft is accepted (estimated with decay over verifications), a draft of k yields (1 - a^(k + 1))
// / (1 - a) tokens for k draft steps and one verification that costs `verify_steps` draft steps;
// the k that yields most for its cost is taken.
#ifndef GPW_HORIZON_H
#define GPW_HORIZON_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpw_horizon {
    uint32_t fixed; // when `adaptive` is false
    uint32_t max;
    bool adaptive;
    float acceptance;   // estimate of a
    float verify_steps; // cost of a verification in draft steps
} gpw_horizon_t;

void gpw_horizon_init(gpw_horizon_t *horizon, uint32_t start, uint32_t max, bool adaptive);
uint32_t gpw_horizon_get(const gpw_horizon_t *horizon);
// A verification of `drafted` tokens confirmed `accepted`, after draft_us in all, and took
// verify_us.
typedef struct gpw_horizon_outcome {
    uint32_t drafted, accepted;
    uint64_t draft_us, verify_us;
} gpw_horizon_outcome_t;
void gpw_horizon_learn(gpw_horizon_t *horizon, const gpw_horizon_outcome_t *outcome);

#endif
