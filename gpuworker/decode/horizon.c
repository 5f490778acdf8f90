// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft before a verification: the formula is in horizon.h.
//
// To try another policy, change gpw_horizon_get: it sees what is known of the session (acceptance,
// device time of a draft and of a row) and of the load, and returns a length. decode/round.c asks it
// when a draft begins, and says there what the load is (load_of); decode/verify.c tells it what came
// of the draft (gpw_horizon_learn).
//
// What it returns is the draft's target. The draft may be shorter: cut by what is left of the answer,
// by an end token, or to be complete with those of sessions on the same chain (decode/riders.c). It is
// longer, up to `max`, for these too, where a quarter more is the rest of the answer, and while the link
// is busy: who wants a bound on that changes `limit` in gpw_round_begin. Memory is reserved for `max`, so
// a policy may return no more.
//
// tests/unit/gpuworker/test_resident.c tests the formula. What was expected stands in the metrics
// assay_worker_round_expected_* beside what came (assay_worker_round_*), so a policy is judged by
// their quotients and by tokens per second (`./dev bench engine`).
#include "gpuworker/decode/horizon.h"

#define HORIZON_MIN    4u    // shorter, a verification yields hardly more than plain decoding
#define NEWEST         0.2   // weight of the newest verification: about the last five count
#define TRIED_START    4.0   // drafts that count as tried before any was
#define ACCEPTED_START 3.4   // and accepted
#define ACCEPTED_MAX   0.995 // a run of nothing but right drafts tells no more than that
#define GROUP_RATE     0.875 // of the best: enough for a longer draft of a shared swap
#define ROW_COST       0.25  // a verified row in draft steps, before anything is known

void gpw_horizon_init(gpw_horizon_t *horizon, uint32_t fixed, uint32_t max, bool adaptive)
{
    *horizon = (gpw_horizon_t){.fixed = fixed,
                               .max = max,
                               .adaptive = adaptive,
                               .accepted = ACCEPTED_START,
                               .tried = TRIED_START};
}

static double acceptance(const gpw_horizon_t *horizon)
{
    double a = horizon->accepted / horizon->tried;
    return a < ACCEPTED_MAX ? a : ACCEPTED_MAX;
}

double gpw_horizon_yield(const gpw_horizon_t *horizon, uint32_t k)
{
    double a = acceptance(horizon), yield = 1, chance = 1;
    for (uint32_t i = 0; i < k; i++) {
        chance *= a;
        yield += chance;
    }
    return yield;
}

static double longer(double a, double b)
{
    return a > b ? a : b;
}

// In any unit of time, as long as all are in the same.
static double round_of(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load, uint32_t k)
{
    double drafts = horizon->draft_us * k, rows = horizon->row_us * (k + 1);
    double group =
        load->riders * drafts + longer(load->exposed * load->swap_us, load->riders * rows);
    return longer(group, longer(load->sessions * (drafts + rows), load->swaps * load->swap_us));
}

static bool is_known(const gpw_horizon_t *horizon)
{
    return horizon->draft_us > 0 && horizon->row_us > 0;
}

double gpw_horizon_round_us(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load,
                            uint32_t k)
{
    return is_known(horizon) ? round_of(horizon, load, k) : 0;
}

static double rate_of(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load, uint32_t k)
{
    return gpw_horizon_yield(horizon, k) / round_of(horizon, load, k);
}

void gpw_horizon_follow(gpw_horizon_t *horizon, const gpw_horizon_t *other)
{
    if (!is_known(horizon) && is_known(other)) {
        horizon->accepted = other->accepted;
        horizon->tried = other->tried;
        horizon->draft_us = other->draft_us;
        horizon->row_us = other->row_us;
    }
}

uint32_t gpw_horizon_get(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load)
{
    if (!horizon->adaptive) {
        return horizon->fixed;
    }
    if (horizon->max <= HORIZON_MIN) {
        return horizon->max;
    }
    gpw_horizon_t h = *horizon;
    gpw_horizon_load_t l = *load;
    if (!is_known(horizon)) { // times are in draft steps
        h.draft_us = 1;
        h.row_us = ROW_COST;
        l.swap_us = 0;
        l.riders = 1;
    }
    double best = 0;
    uint32_t best_k = HORIZON_MIN;
    for (uint32_t k = HORIZON_MIN; k <= h.max; k++) {
        double rate = rate_of(&h, &l, k);
        best_k = rate > best ? k : best_k;
        best = longer(best, rate);
    }
    uint32_t k = l.riders > 1 ? h.max : best_k;
    while (k > best_k && rate_of(&h, &l, k) < best * GROUP_RATE) {
        k--;
    }
    return k;
}

static double mean(double before, double sample)
{
    return before > 0 ? before + NEWEST * (sample - before) : sample;
}

void gpw_horizon_learn(gpw_horizon_t *horizon, const gpw_horizon_outcome_t *outcome)
{
    if (outcome->verify_us > 0) {
        horizon->row_us = mean(horizon->row_us, outcome->verify_us / (outcome->drafted + 1));
    }
    if (outcome->drafted == 0) {
        return;
    }
    // Of a run that stopped early, accepted + 1 drafts were tried and one failed.
    uint32_t tried = outcome->accepted + (outcome->accepted < outcome->drafted);
    horizon->accepted = (1 - NEWEST) * horizon->accepted + outcome->accepted;
    horizon->tried = (1 - NEWEST) * horizon->tried + tried;
    if (outcome->draft_us > 0) {
        horizon->draft_us = mean(horizon->draft_us, outcome->draft_us / outcome->drafted);
    }
}
