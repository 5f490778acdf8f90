// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft before a verification.
#include "gpuworker/decode/horizon.h"

#define HORIZON_MIN 4u    // below, a verification yields hardly more than plain decoding
#define DECAY       0.8f  // weight of the past: about the last five verifications
#define START       0.85f // acceptance before anything is known
#define COST_START  4.0f  // of a verification, in draft steps
#define COST_MAX    1000.0f

void gpw_horizon_init(gpw_horizon_t *horizon, uint32_t start, uint32_t max, bool adaptive)
{
    *horizon = (gpw_horizon_t){.fixed = start,
                               .max = max,
                               .adaptive = adaptive,
                               .acceptance = START,
                               .verify_steps = COST_START};
}

uint32_t gpw_horizon_get(const gpw_horizon_t *horizon)
{
    if (!horizon->adaptive || horizon->max <= HORIZON_MIN) {
        return horizon->adaptive ? horizon->max : horizon->fixed;
    }
    float best = 0.0f, yield = 1.0f, chance = 1.0f;
    uint32_t best_k = HORIZON_MIN;
    for (uint32_t k = 1; k <= horizon->max; k++) {
        chance *= horizon->acceptance;
        yield += chance;
        float rate = yield / ((float)k + horizon->verify_steps);
        if (k >= HORIZON_MIN && rate > best) {
            best = rate;
            best_k = k;
        }
    }
    return best_k;
}

void gpw_horizon_learn(gpw_horizon_t *horizon, const gpw_horizon_outcome_t *outcome)
{
    if (outcome->drafted == 0) {
        return;
    }
    // Of a run that stopped early, accepted + 1 drafts were tried and one failed.
    uint32_t tried = outcome->accepted + (outcome->accepted < outcome->drafted);
    float seen = (float)outcome->accepted / (float)tried;
    horizon->acceptance = DECAY * horizon->acceptance + (1.0f - DECAY) * seen;
    if (outcome->draft_us > 0 && outcome->verify_us > 0) {
        float step_us = (float)outcome->draft_us / (float)outcome->drafted;
        float cost = (float)outcome->verify_us / step_us;
        cost = cost < COST_MAX ? cost : COST_MAX;
        horizon->verify_steps = DECAY * horizon->verify_steps + (1.0f - DECAY) * cost;
    }
}
