// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft before a verification.
//
// A request may fix it. Else the horizon is what yields most tokens in the time of a round, of one
// session among n that share the device and the link. With
//
//   a   the chance that the next draft is accepted: accepted by tried (decayed over verifications),
//       at most 0.995; 0.85 before any was tried
//   d   device time of one draft, v of one row of a verification: of this session alone, what a step
//       of the batch costs being shared among its rows (decayed); a draft that prompt lookup proposed
//       is one, too, so d is less than a step where it is often right
//   s   time of the link for one verification's swap (gpw_swap_link_us), e the share of it that no
//       draft can hide, since the swap's ring holds a few layers only: 1 - ring layers / layers
//
// a draft of k yields E(k) = (1 - a^(k + 1)) / (1 - a) tokens, and takes at least
//
//   compute  n (k d + (k + 1) v)               all sessions share the device,
//   link     g s                               and the link, over which they need g swaps;
//   alone    m k d + max(e s, m (k + 1) v)     nobody else's work hides what it waits for.
//
// Sessions on one chain that ride in one swap (decode/riders.h) draft and verify together: m are in this
// one's group, itself too, and a group needs one swap. Where each is verified by itself, m = 1 and g = n.
//
// The round takes the longest of the three; the k of the largest E(k) / round(k) is taken, of 4 (or
// `max`, where that is less) to `max`. Where the link binds, that is a long draft, which costs nothing
// but time that would be spent waiting. Before d and v are known v counts as d / 4, and s as 0. Of
// a group it is the longest k that yields within an eighth of the most: the rate is flat there, those
// that leave their verification late draft less than this, and a longer draft moves fewer bytes.
#ifndef GPW_HORIZON_H
#define GPW_HORIZON_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpw_horizon {
    uint32_t fixed; // the length, when `adaptive` is false
    uint32_t max;   // longest draft
    bool adaptive;
    double accepted, tried;  // a is their quotient
    double draft_us, row_us; // d and v; 0: not known
} gpw_horizon_t;

// What a round's time depends on besides.
typedef struct gpw_horizon_load {
    uint32_t sessions; // n, this one too
    uint32_t swaps;    // g: groups of sessions, each of which is verified in one swap
    uint32_t riders;   // m: in its group, this one too
    double swap_us;    // s; 0: nothing is to be brought
    double exposed;    // e
} gpw_horizon_load_t;

typedef struct gpw_horizon_outcome {
    uint32_t drafted, accepted;
    double draft_us;                          // device time of all draft steps
    double verify_us;                         // of the verification's rows, drafted + 1
    double draft_attend_us, verify_attend_us; // of these, attention
} gpw_horizon_outcome_t;

void gpw_horizon_init(gpw_horizon_t *horizon, uint32_t fixed, uint32_t max, bool adaptive);
// Nothing is known yet: begins with what a session knows that drafts the same way on the same text.
void gpw_horizon_follow(gpw_horizon_t *horizon, const gpw_horizon_t *other);
// Tokens to draft, at most `max`.
uint32_t gpw_horizon_get(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load);
// What is expected of a draft of k: tokens, and the round's time in microseconds (0: not known).
double gpw_horizon_yield(const gpw_horizon_t *horizon, uint32_t k);
double gpw_horizon_round_us(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load,
                            uint32_t k);
// A verification confirmed `accepted` of `drafted` tokens.
void gpw_horizon_learn(gpw_horizon_t *horizon, const gpw_horizon_outcome_t *outcome);

#endif
