// SPDX-License-Identifier: Apache-2.0
// The choice of a session's compressor: the formula is in chooser.h.
//
// tests/unit/gpuworker/test_chooser.c has thousands of sessions chosen in a simulation, and what was lost
// against the best method of all.
#include "gpuworker/decode/chooser.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"

#define MEMORY         4096.0          // drafts: what a method showed in the last so many counts
#define NEWEST         (1.0 / 64)      // weight of the newest round in what is the same for all
#define NEWEST_ANSWER  (1.0 / 16)      // and of the newest answer
#define NEWEST_SEALING (1.0 / 8)       // and of the newest prompt's compression
#define AGING          (1 - 1.0 / 256) // of the sessions behind a measurement, with every choice
#define ELSEWHERE      0.125           // weight of what is known of contexts of the next class
#define START_TRIED    32.0            // drafts that count as tried before any was
#define START_ACCEPTED 27.2            // and accepted: as the horizon takes it
#define SESSION_DRAFTS 64u             // of a session, to count whole
#define MEASURED       0.1             // sessions, to be chosen by what is known
#define HELD_RATE      0.9             // of the best: enough for what the chain's sessions hold
#define TRIALS_ROOT    2.0
#define TRIALS_SHARE   0.01
#define TRIAL_GAP      4u   // choices from one trial to the next
#define TRIAL_GAIN     1.02 // of the best, that a trial might yield
#define TRIAL_ANSWER   16u  // shorter, a session tells nothing
#define SESSIONS_FADE  0.125
#define UNTIMED_ROW    0.25 // a verified row in drafts, before either was timed
#define TIE            1e-9

typedef struct belief {
    double acceptance;
    double attend_us; // of a draft, for each token of context; negative: not known
    double sessions;
} belief_t;

void gpw_chooser_init(gpw_chooser_t *chooser, const char *const *names, uint32_t count)
{
    AS_ASSERT(count > 0 && count <= GPW_METHODS_MAX);
    *chooser = (gpw_chooser_t){.names = names, .count = count};
}

static uint32_t length_of(uint32_t tokens)
{
    uint32_t length = 0;
    for (uint32_t limit = 1024; tokens > limit && length + 1 < GPW_CHOOSER_LENGTHS; limit *= 4) {
        length++;
    }
    return length;
}

static bool is_plain(const gpw_chooser_t *chooser, uint32_t method)
{
    return method + 1 == chooser->count;
}

static bool is_timed(const gpw_chooser_t *chooser)
{
    return chooser->draft_us > 0;
}

static double lesser(double a, double b)
{
    return a < b ? a : b;
}

static belief_t believe(const gpw_chooser_t *chooser, uint32_t method, uint32_t tokens)
{
    gpw_known_t sum = {.accepted = START_ACCEPTED, .tried = START_TRIED};
    uint32_t own = length_of(tokens);
    for (uint32_t l = 0; l < GPW_CHOOSER_LENGTHS; l++) {
        const gpw_known_t *known = &chooser->method[method].known[l];
        double weight = pow(ELSEWHERE, l > own ? l - own : own - l);
        sum.sessions += weight * known->sessions;
        sum.accepted += weight * known->accepted;
        sum.tried += weight * known->tried;
        sum.attend_us += weight * known->attend_us;
        sum.attend_tokens += weight * known->attend_tokens;
    }
    return (belief_t){.acceptance = is_plain(chooser, method) ? 1 : sum.accepted / sum.tried,
                      .attend_us = sum.attend_tokens > 0 ? sum.attend_us / sum.attend_tokens : -1,
                      .sessions = sum.sessions};
}

// The horizon's a, d and v.
static void expect(const gpw_chooser_t *chooser, const belief_t *belief, uint32_t tokens,
                   gpw_horizon_t *horizon)
{
    double attend_us = belief->attend_us > 0 ? belief->attend_us : 0;
    horizon->accepted = belief->acceptance * horizon->tried;
    horizon->draft_us = is_timed(chooser) ? chooser->draft_us + attend_us * tokens : 1;
    horizon->row_us = chooser->row_us > 0 ? chooser->row_us + chooser->row_attend_us * tokens
                                          : UNTIMED_ROW * horizon->draft_us;
}

bool gpw_chooser_expect(const gpw_chooser_t *chooser, uint32_t method, uint32_t tokens,
                        gpw_horizon_t *horizon)
{
    belief_t belief = believe(chooser, method, tokens);
    if (belief.sessions < MEASURED || !is_timed(chooser) || chooser->row_us <= 0) {
        return false;
    }
    gpw_horizon_init(horizon, 0, 0, true);
    expect(chooser, &belief, tokens, horizon);
    return true;
}

// ---- Tokens a second ---------------------------------------------------------------------------

static double answer_of(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask)
{
    double most = ask->answer_tokens;
    return chooser->answer_tokens > 0 ? lesser(most, chooser->answer_tokens) : most;
}

// In the middle of its answer.
static uint32_t context_of(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask)
{
    return ask->prompt_tokens + (uint32_t)(answer_of(chooser, ask) / 2);
}

// Of as many sessions as come and fit.
static gpw_horizon_load_t load_of(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask,
                                  const gpw_candidate_t *candidate)
{
    gpw_horizon_load_t load = ask->load;
    uint32_t n = load.sessions < candidate->sessions ? load.sessions : candidate->sessions;
    load.sessions = n;
    load.swap_us = is_timed(chooser) ? candidate->swap_us : 0;
    load.riders = load.riders < n ? load.riders : n;
    load.swaps = n - load.riders + 1;
    load.riders = load.swap_us > 0 ? load.riders : 1;
    return load;
}

static double token_us(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask, uint32_t method,
                       const belief_t *belief)
{
    gpw_horizon_load_t load = load_of(chooser, ask, &ask->candidate[method]);
    gpw_horizon_t horizon;
    gpw_horizon_init(&horizon, ask->horizon, ask->horizon, !ask->horizon_fixed);
    expect(chooser, belief, context_of(chooser, ask), &horizon);
    if (is_plain(chooser, method)) {
        return load.sessions * horizon.draft_us;
    }
    uint32_t k = gpw_horizon_get(&horizon, &load);
    return gpw_horizon_round_us(&horizon, &load, k) / gpw_horizon_yield(&horizon, k);
}

static double rate_of(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask, uint32_t method,
                      const belief_t *belief)
{
    const gpw_method_t *m = &chooser->method[method];
    const gpw_candidate_t *candidate = &ask->candidate[method];
    gpw_horizon_load_t load = load_of(chooser, ask, candidate);
    double answer = answer_of(chooser, ask);
    double us = answer * token_us(chooser, ask, method, belief);
    if (is_timed(chooser)) {
        double seal_us = m->seal_tokens > 0 ? m->seal_us / m->seal_tokens : 0;
        us += load.sessions * seal_us * candidate->seal_tokens + load.swaps * candidate->fetch_us;
    }
    return load.sessions * answer * (is_timed(chooser) ? 1e6 : 1) / us;
}

// ---- The choice --------------------------------------------------------------------------------

// The possible one of the greatest rate but for `except`; of equal ones the first. count: there is none.
static uint32_t best_of(const gpw_chooser_t *chooser, const gpw_pick_t *pick, uint32_t except)
{
    uint32_t best = chooser->count;
    for (uint32_t m = 0; m < chooser->count; m++) {
        if (m != except && pick->rates[m] > 0 &&
            (best == chooser->count || pick->rates[m] > pick->rates[best] * (1 + TIE))) {
            best = m;
        }
    }
    return best;
}

// What its chain's sessions hold, where that yields nearly as much as the best or is not measured.
static uint32_t held_of(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask,
                        const gpw_pick_t *pick, uint32_t best)
{
    uint32_t held = chooser->count;
    for (uint32_t m = 0; m < chooser->count; m++) {
        const gpw_candidate_t *candidate = &ask->candidate[m];
        bool is_good = best == chooser->count || pick->rates[m] <= 0 ||
                       pick->rates[m] >= HELD_RATE * pick->rates[best];
        if (candidate->possible && candidate->held > 0 && is_good &&
            (held == chooser->count || candidate->held > ask->candidate[held].held)) {
            held = m;
        }
    }
    return held;
}

static bool may_try(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask)
{
    double choices = (double)chooser->choices;
    double most = TRIALS_ROOT * (sqrt(choices) - 1) + TRIALS_SHARE * choices;
    return (double)chooser->trials < most && chooser->choices - chooser->last_trial >= TRIAL_GAP &&
           ask->answer_tokens >= TRIAL_ANSWER;
}

// As good as it may still be; where its attention was never timed, as cheap as the cheapest.
static belief_t hope(const belief_t *belief, double cheapest_us)
{
    double root = sqrt(belief->sessions);
    belief_t hoped = *belief;
    hoped.acceptance = 1 - (1 - belief->acceptance) * root / (root + 1);
    hoped.attend_us = belief->attend_us < 0 ? cheapest_us : belief->attend_us;
    return hoped;
}

static double cheapest_us(const gpw_chooser_t *chooser, uint32_t tokens)
{
    double least = -1;
    for (uint32_t m = 0; m < chooser->count; m++) {
        double us = believe(chooser, m, tokens).attend_us;
        least = us >= 0 && (least < 0 || us < least) ? us : least;
    }
    return least;
}

// The candidate that might yield most, if more than the best; count: there is none.
static uint32_t to_try(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask,
                       const gpw_pick_t *pick, uint32_t best)
{
    uint32_t found = chooser->count, tokens = context_of(chooser, ask);
    double most = TRIAL_GAIN * pick->rates[best], cheapest = cheapest_us(chooser, tokens);
    for (uint32_t m = 0; m < chooser->count; m++) {
        const gpw_candidate_t *candidate = &ask->candidate[m];
        if (m == best || !candidate->possible || chooser->method[m].trials > 0) {
            continue;
        }
        belief_t belief = believe(chooser, m, tokens), hoped = hope(&belief, cheapest);
        double rate = rate_of(chooser, ask, m, &hoped);
        bool is_equal = found < chooser->count && fabs(rate - most) <= TIE * most;
        if (is_equal ? candidate->bytes > ask->candidate[found].bytes : rate > most) {
            found = m;
            most = rate;
        }
    }
    return found;
}

// How many candidates there are; *first_p is the first.
static uint32_t candidates_of(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask,
                              uint32_t *first_p)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < chooser->count; m++) {
        if (ask->candidate[m].possible) {
            *first_p = count++ == 0 ? m : *first_p;
        }
    }
    return count;
}

static void rate_all(const gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask, gpw_pick_t *pick)
{
    pick->timed = is_timed(chooser);
    pick->tokens = context_of(chooser, ask);
    pick->sessions = ask->load.sessions;
    for (uint32_t m = 0; m < chooser->count; m++) {
        belief_t belief = believe(chooser, m, pick->tokens);
        if (ask->candidate[m].possible && belief.sessions >= MEASURED) {
            pick->rates[m] = rate_of(chooser, ask, m, &belief);
        }
    }
}

static void decide(gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask, uint32_t first,
                   gpw_pick_t *pick)
{
    uint32_t none = chooser->count, best = best_of(chooser, pick, none);
    uint32_t held = held_of(chooser, ask, pick, best);
    bool tries = held == none && best != none && may_try(chooser, ask);
    uint32_t trial = tries ? to_try(chooser, ask, pick, best) : none;
    if (held != none) {
        pick->method = held;
        pick->reason = GPW_PICK_HELD;
        pick->held = ask->candidate[held].held;
    } else if (best == none) {
        pick->method = first;
        pick->reason = GPW_PICK_FIRST;
    } else if (trial != none) {
        pick->method = trial;
        pick->reason = GPW_PICK_TRIAL;
        chooser->method[trial].trials++;
        chooser->trials++;
        chooser->last_trial = chooser->choices;
    } else {
        pick->method = best;
        pick->reason = GPW_PICK_BEST;
    }
    uint32_t other = best_of(chooser, pick, pick->method);
    pick->other = other == none ? pick->method : other;
}

static void age(gpw_chooser_t *chooser)
{
    for (uint32_t m = 0; m < chooser->count; m++) {
        for (uint32_t l = 0; l < GPW_CHOOSER_LENGTHS; l++) {
            chooser->method[m].known[l].sessions *= AGING;
        }
    }
}

bool gpw_chooser_pick(gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask, gpw_pick_t *pick_p)
{
    gpw_chooser_ask_t seen = *ask;
    gpw_pick_t pick = {0};
    uint32_t first = 0;
    uint32_t count = candidates_of(chooser, ask, &first);
    if (count == 0) {
        return false;
    }
    chooser->choices++;
    age(chooser);
    // Sessions that come together are chosen for one after the other: the first is not alone for long.
    double faded = chooser->sessions * (1 - SESSIONS_FADE) + ask->load.sessions * SESSIONS_FADE;
    chooser->sessions = ask->load.sessions > faded ? ask->load.sessions : faded;
    seen.load.sessions = (uint32_t)(chooser->sessions + 0.5);
    rate_all(chooser, &seen, &pick);
    if (count == 1) {
        pick.method = pick.other = first;
        pick.reason = GPW_PICK_ONLY;
    } else {
        decide(chooser, &seen, first, &pick);
    }
    belief_t belief = believe(chooser, pick.method, pick.tokens);
    pick.acceptance = belief.acceptance;
    pick.measured = belief.sessions;
    *pick_p = pick;
    return true;
}

void gpw_chooser_end_trial(gpw_chooser_t *chooser, uint32_t method)
{
    AS_ASSERT(chooser->method[method].trials > 0);
    chooser->method[method].trials--;
}

// ---- Words -------------------------------------------------------------------------------------

// "kivi4 with 41.2 tokens/s"; of what was not timed the name alone.
static void write_rate(const gpw_chooser_t *chooser, const gpw_pick_t *pick, uint32_t method,
                       char text[64])
{
    const char *name = chooser->names[method];
    if (pick->timed && pick->rates[method] > 0) {
        snprintf(text, 64, "%s with %.3g tokens/s", name, pick->rates[method]);
    } else {
        snprintf(text, 64, "%s", name);
    }
}

static void explain_best(const gpw_chooser_t *chooser, const gpw_pick_t *pick,
                         char text[GPW_CHOSEN_BYTES])
{
    char rate[64], other[64], next[80] = "", drafts[48] = "";
    write_rate(chooser, pick, pick->method, rate);
    write_rate(chooser, pick, pick->other, other);
    if (pick->other != pick->method) {
        snprintf(next, sizeof(next), "; next %s", other);
    }
    if (!is_plain(chooser, pick->method)) {
        snprintf(drafts, sizeof(drafts), ", %.0f %% of its drafts right", 100 * pick->acceptance);
    }
    snprintf(text, GPW_CHOSEN_BYTES, "%s is expected to be the fastest (%u x %u tokens%s)%s", rate,
             pick->sessions, pick->tokens, drafts, next);
}

void gpw_chooser_explain(const gpw_chooser_t *chooser, const gpw_pick_t *pick,
                         char text[GPW_CHOSEN_BYTES])
{
    const char *name = chooser->names[pick->method];
    char other[64];
    switch (pick->reason) {
    case GPW_PICK_ONLY:
        snprintf(text, GPW_CHOSEN_BYTES, "%s is the only one that fits --device-memory and model",
                 name);
        break;
    case GPW_PICK_FIRST:
        snprintf(text, GPW_CHOSEN_BYTES, "%s is the first that fits: nothing is measured yet",
                 name);
        break;
    case GPW_PICK_HELD:
        snprintf(text, GPW_CHOSEN_BYTES, "%s is what %u %s on the same prompt %s its blocks in",
                 name, pick->held, pick->held == 1 ? "session" : "sessions",
                 pick->held == 1 ? "holds" : "hold");
        break;
    case GPW_PICK_TRIAL:
        write_rate(chooser, pick, pick->other, other);
        snprintf(text, GPW_CHOSEN_BYTES,
                 "%s is tried, %.1f sessions are behind what is known of it; the fastest is %s",
                 name, pick->measured, other);
        break;
    default:
        explain_best(chooser, pick, text);
    }
}

// ---- What came of it ---------------------------------------------------------------------------

static void average(double *mean, double sample, double newest)
{
    *mean = *mean > 0 ? *mean + newest * (sample - *mean) : sample;
}

// What is the same for every method.
static void learn_common(gpw_chooser_t *chooser, const gpw_lesson_t *lesson, double drafts,
                         double rest_us)
{
    const gpw_horizon_outcome_t *outcome = &lesson->outcome;
    double rows = outcome->drafted + 1;
    if (drafts > 0 && rest_us > 0) {
        average(&chooser->draft_us, rest_us / drafts, NEWEST);
    }
    if (!is_plain(chooser, lesson->method) && outcome->verify_us > 0) {
        average(&chooser->row_us, (outcome->verify_us - outcome->verify_attend_us) / rows, NEWEST);
        average(&chooser->row_attend_us,
                outcome->verify_attend_us / (rows * lesson->context_tokens), NEWEST);
    }
}

uint32_t gpw_chooser_learn(gpw_chooser_t *chooser, const gpw_lesson_t *lesson)
{
    const gpw_horizon_outcome_t *outcome = &lesson->outcome;
    gpw_known_t *known = &chooser->method[lesson->method].known[length_of(lesson->context_tokens)];
    bool plain = is_plain(chooser, lesson->method);
    // Plain decoding says tokens at once: these are what a draft is to others.
    uint32_t drafts = plain ? outcome->accepted + 1 : outcome->drafted;
    uint32_t tried = outcome->accepted + (plain || outcome->accepted < outcome->drafted);
    double us = plain ? outcome->verify_us : outcome->draft_us;
    double attend_us = plain ? outcome->verify_attend_us : outcome->draft_attend_us;
    if (drafts == 0 || lesson->context_tokens == 0) {
        return 0;
    }
    learn_common(chooser, lesson, drafts, us - attend_us);
    double keep = exp(-(double)tried / MEMORY);
    known->accepted = keep * known->accepted + outcome->accepted;
    known->tried = keep * known->tried + tried;
    keep = exp(-(double)drafts / MEMORY);
    known->attend_us = keep * known->attend_us + attend_us;
    known->attend_tokens = keep * known->attend_tokens + (double)drafts * lesson->context_tokens;
    uint32_t left = lesson->taught < SESSION_DRAFTS ? SESSION_DRAFTS - lesson->taught : 0;
    known->sessions += (double)(tried < left ? tried : left) / SESSION_DRAFTS;
    return tried;
}

void gpw_chooser_sealed(gpw_chooser_t *chooser, const gpw_sealing_t *sealing)
{
    gpw_method_t *method = &chooser->method[sealing->method];
    if (sealing->tokens == 0) {
        return;
    }
    method->seal_us = (1 - NEWEST_SEALING) * method->seal_us + sealing->us;
    method->seal_tokens = (1 - NEWEST_SEALING) * method->seal_tokens + sealing->tokens;
    average(&method->bytes_per_token, (double)sealing->bytes / sealing->tokens, NEWEST_SEALING);
}

void gpw_chooser_answered(gpw_chooser_t *chooser, uint32_t tokens)
{
    average(&chooser->answer_tokens, tokens, NEWEST_ANSWER);
}
