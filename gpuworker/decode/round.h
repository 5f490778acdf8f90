// SPDX-License-Identifier: Apache-2.0
// A round of one session: a draft, the swap that comes under it, and the verification.
//
// The horizon (decode/horizon.h) says how long the draft should be, its target. The swap may begin a
// few steps before that. Where the link has no turn yet, the session drafts on, up to its limit (the
// horizon's `max` or what is left of the answer; the target where the request fixes it): time that
// would be spent waiting costs nothing. The draft is complete once it is as long as its target and the
// first layer is here, or at its limit, or at an end token.
#ifndef GPW_ROUND_H
#define GPW_ROUND_H

#include <stdbool.h>
#include <stdint.h>

struct gpw_engine;
struct gpw_request;

typedef struct gpw_round {
    uint64_t begin_us, verify_us; // of the draft; of its verification
    uint32_t wanted;              // tokens to draft, as the horizon says
    uint32_t target, limit;       // in step with others on its chain; most tokens
    double draft_us;              // device time of the draft so far
    double draft_attend_us;       // of this, attention
    double
        step_us; // wall time of a draft step, all that came between included (decayed); 0: not known
    double expected_us, expected_tokens; // of the round; 0: not known
} gpw_round_t;

// Share of a swap's time that no draft can hide (decode/horizon.h).
double gpw_round_exposed(const struct gpw_engine *engine);
void gpw_round_begin(struct gpw_request *request);
bool gpw_round_wants_swap(const struct gpw_request *request);
bool gpw_round_is_drafted(const struct gpw_request *request);
void gpw_round_drafted(struct gpw_request *request);
void gpw_round_end(struct gpw_request *request, uint32_t tokens); // that left

#endif
