// SPDX-License-Identifier: Apache-2.0
// The choice of a compressor as a function of what was measured: thousands of simulated sessions, what they
// lose against the best method of all, and when another one is to be chosen.
//
// A simulated world says of each method how often its drafts fail and what its attention and compression
// cost. Sessions come in waves of several, so that those of a wave are chosen for before any of
// them has taught anything; each text fails more or less often than the mean.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gpuworker/decode/chooser.h"
#include "gpuworker/decode/forms.h"

enum { WAVE = 8, ANSWER = 256, HORIZON = 64 };

static const char *const names[] = {"alpha",  "beta", "gamma", "delta", "epsilon",
                                    "zeta",   "eta",  "theta", "iota",  "kappa",
                                    "lambda", "mu",   "nu",    "xi",    "plain"};
enum { METHODS = sizeof(names) / sizeof(names[0]), PLAIN = METHODS - 1 };

typedef struct method {
    double failing;   // of drafts, in the mean
    double attend_us; // of a draft, for each token
    double seal_us;   // for each token
} method_t;

typedef struct world {
    method_t method[METHODS];
    double draft_us, row_us, row_attend_us, swap_us, exposed;
    uint32_t prompt_tokens;
    double unlike; // texts: the logarithm of how much more or less often than the mean drafts fail
    uint64_t random;
} world_t;

static double uniform(world_t *world)
{
    world->random = world->random * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(world->random >> 11) / (double)(1ull << 53);
}

static double normal(world_t *world)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += uniform(world);
    }
    return sum;
}

// Methods like those of the table, on two cores, over a link of so many Gbit/s.
static world_t world_of(uint64_t seed, double gbit)
{
    world_t world = {.draft_us = 4000,
                     .row_us = 1200,
                     .row_attend_us = 0.12,
                     .swap_us = 8192 * 23040 * 8 / (gbit * 1e3),
                     .exposed = 26.0 / 30,
                     .prompt_tokens = 8000,
                     .unlike = 0.4,
                     .random = seed * 7919 + 1};
    for (uint32_t m = 0; m < METHODS; m++) {
        method_t *method = &world.method[m];
        method->failing = m == PLAIN ? 0 : 0.015 * exp(3 * uniform(&world));
        method->attend_us = 0.15 + 0.7 * uniform(&world);
        method->seal_us = 10 + 60 * uniform(&world);
    }
    return world;
}

static gpw_chooser_ask_t ask_of(const world_t *world)
{
    gpw_chooser_ask_t ask = {.prompt_tokens = world->prompt_tokens,
                             .answer_tokens = ANSWER,
                             .horizon = HORIZON,
                             .load = {.sessions = WAVE, .riders = 1, .exposed = world->exposed}};
    for (uint32_t m = 0; m < METHODS; m++) {
        ask.candidate[m] = (gpw_candidate_t){.possible = m != PLAIN,
                                             .sessions = WAVE,
                                             .bytes = 1000 - m,
                                             .swap_us = world->swap_us,
                                             .seal_tokens = world->prompt_tokens};
    }
    return ask;
}

static gpw_horizon_load_t load_of(const world_t *world)
{
    return (gpw_horizon_load_t){.sessions = WAVE,
                                .swaps = WAVE,
                                .riders = 1,
                                .swap_us = world->swap_us,
                                .exposed = world->exposed};
}

static gpw_horizon_t horizon_of(const world_t *world, uint32_t m, double failing)
{
    gpw_horizon_t horizon;
    gpw_horizon_init(&horizon, HORIZON, HORIZON, true);
    horizon.accepted = (1 - failing) * horizon.tried;
    horizon.draft_us = world->draft_us + world->method[m].attend_us * world->prompt_tokens;
    horizon.row_us = world->row_us + world->row_attend_us * world->prompt_tokens;
    return horizon;
}

// Tokens a second of the worker, were all sessions on the method: over texts of every kind.
static double yield_of(const world_t *world, uint32_t m)
{
    gpw_horizon_load_t load = load_of(world);
    double sum = 0;
    for (int i = -2; i <= 2; i++) {
        double failing = world->method[m].failing * exp(i * world->unlike);
        gpw_horizon_t horizon = horizon_of(world, m, failing < 1 ? failing : 1);
        uint32_t k = gpw_horizon_get(&horizon, &load);
        double token_us = gpw_horizon_round_us(&horizon, &load, k) / gpw_horizon_yield(&horizon, k);
        double us = ANSWER * token_us + WAVE * world->method[m].seal_us * (world->prompt_tokens);
        sum += us / ANSWER; // the time of equal answers
    }
    return 5 * WAVE * 1e6 / sum;
}

static double best_yield(const world_t *world)
{
    double best = 0;
    for (uint32_t m = 0; m < PLAIN; m++) {
        best = fmax(best, yield_of(world, m));
    }
    return best;
}

// One session's answer on the method, from whose rounds the chooser learns.
static void run_session(world_t *world, gpw_chooser_t *chooser, uint32_t m)
{
    double failing = world->method[m].failing * exp(world->unlike * normal(world));
    failing = failing < 1 ? failing : 1;
    gpw_horizon_load_t load = load_of(world);
    gpw_horizon_t horizon = horizon_of(world, m, failing);
    gpw_lesson_t lesson = {.method = m};
    gpw_sealing_t sealing = {.method = m,
                             .tokens = world->prompt_tokens,
                             .bytes = 1,
                             .us = world->method[m].seal_us * world->prompt_tokens};
    gpw_chooser_sealed(chooser, &sealing);
    for (uint32_t said = 1; said < ANSWER;) {
        uint32_t k = gpw_horizon_get(&horizon, &load), accepted = 0;
        k = k < ANSWER - said ? k : ANSWER - said;
        while (accepted < k && uniform(world) >= failing) {
            accepted++;
        }
        double tokens = world->prompt_tokens + said;
        double noise = exp(0.1 * normal(world));
        double attend_us = world->method[m].attend_us * tokens * k;
        double row_attend_us = world->row_attend_us * tokens * (k + 1);
        lesson.context_tokens = (uint32_t)tokens;
        lesson.outcome =
            (gpw_horizon_outcome_t){.drafted = k,
                                    .accepted = accepted,
                                    .draft_us = noise * (world->draft_us * k + attend_us),
                                    .draft_attend_us = noise * attend_us,
                                    .verify_us = world->row_us * (k + 1) + row_attend_us,
                                    .verify_attend_us = row_attend_us};
        lesson.taught += gpw_chooser_learn(chooser, &lesson);
        said += accepted + 1;
    }
    gpw_chooser_answered(chooser, ANSWER);
}

// A wave of sessions; returns what they lose against the best, summed.
static double run_wave(world_t *world, gpw_chooser_t *chooser, gpw_pick_t picks[WAVE])
{
    double best = best_yield(world), lost = 0;
    gpw_chooser_ask_t ask = ask_of(world);
    for (uint32_t i = 0; i < WAVE; i++) {
        assert_true(gpw_chooser_pick(chooser, &ask, &picks[i]));
        lost += 1 - yield_of(world, picks[i].method) / best;
    }
    for (uint32_t i = 0; i < WAVE; i++) {
        run_session(world, chooser, picks[i].method);
        if (picks[i].reason == GPW_PICK_TRIAL) {
            gpw_chooser_end_trial(chooser, picks[i].method);
        }
    }
    return lost;
}

static void thousands_of_sessions_lose_less_than_a_twentieth(void **state)
{
    (void)state;
    enum { WAVES = 250, LATE = 50 };
    static const double gbits[] = {1, 10, 100};
    for (uint64_t seed = 0; seed < 10; seed++) {
        for (int g = 0; g < 3; g++) {
            world_t world = world_of(seed, gbits[g]);
            gpw_chooser_t chooser;
            gpw_pick_t picks[WAVE];
            gpw_chooser_init(&chooser, names, METHODS);
            double lost = 0, late = 0;
            for (uint32_t w = 0; w < WAVES; w++) {
                double loss = run_wave(&world, &chooser, picks);
                lost += loss;
                late += w >= WAVES - LATE ? loss : 0;
            }
            lost /= WAVES * WAVE;
            late /= LATE * WAVE;
            print_message(
                "seed %llu, %.0f Gbit/s: %.4f of 2,000 sessions lost, %.4f of the last 400\n",
                (unsigned long long)seed, gbits[g], lost, late);
            assert_true(lost < 0.05 && late < 0.03);
        }
    }
}

// The best one's drafts begin to fail, all of a sudden: others take its place.
static void a_method_that_fails_on_new_texts_is_left(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        world_t world = world_of(seed, 1);
        gpw_chooser_t chooser;
        gpw_pick_t picks[WAVE];
        gpw_chooser_init(&chooser, names, METHODS);
        for (uint32_t w = 0; w < 100; w++) {
            run_wave(&world, &chooser, picks);
        }
        uint32_t favourite = 0;
        for (uint32_t m = 0; m < PLAIN; m++) {
            favourite = yield_of(&world, m) > yield_of(&world, favourite) ? m : favourite;
        }
        world.method[favourite].failing = 0.6;
        for (uint32_t w = 0; w < 8; w++) {
            run_wave(&world, &chooser, picks);
        }
        double lost = 0;
        uint32_t stayed = 0;
        for (uint32_t w = 0; w < 20; w++) {
            lost += run_wave(&world, &chooser, picks);
            for (uint32_t i = 0; i < WAVE; i++) {
                stayed += picks[i].method == favourite && picks[i].reason != GPW_PICK_TRIAL;
            }
        }
        print_message("seed %llu: %.4f lost afterwards, %u sessions stayed\n",
                      (unsigned long long)seed, lost / (20 * WAVE), stayed);
        // One more wave may look whether it fails still.
        assert_true(lost / (20 * WAVE) < 0.1 && stayed <= WAVE);
    }
}

static void teach(gpw_chooser_t *chooser, uint32_t method, uint32_t tokens, uint32_t accepted_of_64)
{
    for (int i = 0; i < 40; i++) {
        gpw_lesson_t lesson = {.method = method,
                               .context_tokens = tokens,
                               .outcome = {.drafted = 64,
                                           .accepted = accepted_of_64,
                                           .draft_us = 64 * 5000,
                                           .draft_attend_us = 64 * 1000,
                                           .verify_us = 65 * 2000,
                                           .verify_attend_us = 65 * 1000}};
        gpw_chooser_learn(chooser, &lesson);
    }
}

static gpw_pick_t pick(gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask)
{
    gpw_pick_t picked;
    assert_true(gpw_chooser_pick(chooser, ask, &picked));
    if (picked.reason == GPW_PICK_TRIAL) {
        gpw_chooser_end_trial(chooser, picked.method);
    }
    return picked;
}

// Another choice, where this one is a trial.
static gpw_pick_t pick_best(gpw_chooser_t *chooser, const gpw_chooser_ask_t *ask)
{
    gpw_pick_t picked = pick(chooser, ask);
    return picked.reason == GPW_PICK_TRIAL ? pick(chooser, ask) : picked;
}

static void the_first_is_chosen_where_nothing_is_known_and_the_first_of_equal_ones(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_chooser_init(&chooser, names, METHODS);
    for (int i = 0; i < 3; i++) {
        gpw_pick_t first = pick(&chooser, &ask);
        assert_int_equal(first.method, 0);
        assert_int_equal(first.reason, GPW_PICK_FIRST);
    }
    for (uint32_t m = METHODS - 1; m-- > 2;) {
        teach(&chooser, m, 8000, 50);
    }
    gpw_pick_t best = pick_best(&chooser, &ask);
    assert_int_equal(best.reason, GPW_PICK_BEST);
    assert_int_equal(best.method, 2);
    assert_int_equal(best.other, 3);
}

// The same questions and lessons give the same choices.
static void nothing_is_left_to_chance(void **state)
{
    (void)state;
    gpw_chooser_t chooser[2];
    world_t world[2];
    for (int i = 0; i < 2; i++) {
        world[i] = world_of(5, 10);
        gpw_chooser_init(&chooser[i], names, METHODS);
    }
    for (uint32_t w = 0; w < 50; w++) {
        gpw_pick_t picks[2][WAVE];
        for (int i = 0; i < 2; i++) {
            run_wave(&world[i], &chooser[i], picks[i]);
        }
        for (uint32_t i = 0; i < WAVE; i++) {
            assert_int_equal(picks[0][i].method, picks[1][i].method);
            assert_int_equal(picks[0][i].reason, picks[1][i].reason);
            assert_memory_equal(picks[0][i].rates, picks[1][i].rates, sizeof(picks[0][i].rates));
        }
    }
}

static void the_length_of_the_context_decides(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_chooser_init(&chooser, names, METHODS);
    teach(&chooser, 1, 500, 62); // keeps all of a short context
    teach(&chooser, 1, 8000, 3);
    teach(&chooser, 4, 500, 40);
    teach(&chooser, 4, 8000, 40);
    assert_int_equal(pick_best(&chooser, &ask).method, 4);
    ask.prompt_tokens = 500;
    assert_int_equal(pick_best(&chooser, &ask).method, 1);
    ask.prompt_tokens = 100000; // what is known of the next length
    assert_int_equal(pick_best(&chooser, &ask).method, 4);
}

static void what_does_not_fit_is_not_chosen_nor_tried(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_pick_t picked;
    gpw_chooser_init(&chooser, names, METHODS);
    teach(&chooser, 0, 8000, 60);
    teach(&chooser, 2, 8000, 50);
    for (uint32_t m = 0; m < METHODS; m++) {
        ask.candidate[m].possible = m == 2 || m == 7;
    }
    uint32_t tried = 0;
    for (int i = 0; i < 40; i++) {
        picked = pick(&chooser, &ask);
        assert_true(picked.method == (picked.reason == GPW_PICK_TRIAL ? 7 : 2));
        tried += picked.reason == GPW_PICK_TRIAL;
    }
    assert_true(tried > 0 && tried < 12);
    ask.candidate[2].possible = false;
    picked = pick(&chooser, &ask);
    assert_int_equal(picked.method, 7);
    assert_int_equal(picked.reason, GPW_PICK_ONLY);
    ask.candidate[7].possible = false;
    assert_false(gpw_chooser_pick(&chooser, &ask, &picked));
}

// Where a session alone waits for its own swap, two together do not: a method that has room for more of
// them yields more, although its drafts fail more often.
static void memory_for_more_sessions_counts(void **state)
{
    (void)state;
    world_t world = world_of(1, 10);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_chooser_init(&chooser, names, METHODS);
    teach(&chooser, 1, 8000, 45);
    teach(&chooser, 2, 8000, 44);
    ask.load.exposed = 1;
    for (uint32_t m = 0; m < METHODS; m++) {
        ask.candidate[m].swap_us = 300000;
        ask.candidate[m].possible = m == 1 || m == 2;
    }
    assert_int_equal(pick_best(&chooser, &ask).method, 1);
    ask.candidate[1].sessions = 1;
    assert_int_equal(pick_best(&chooser, &ask).method, 2);
}

static void plain_decoding_is_chosen_where_it_may_be_and_is_faster(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_chooser_init(&chooser, names, METHODS);
    teach(&chooser, 1, 8000, 20);
    gpw_lesson_t said = {.method = PLAIN,
                         .context_tokens = 8000,
                         .taught = 0,
                         .outcome = {.verify_us = 5200, .verify_attend_us = 1200}};
    for (int i = 0; i < 40; i++) { // a token for a little more than a draft
        said.taught += gpw_chooser_learn(&chooser, &said);
    }
    assert_int_equal(pick_best(&chooser, &ask).method, 1);
    ask.candidate[PLAIN].possible = true;
    for (uint32_t m = 0; m < METHODS; m++) { // memory has room for all full caches
        ask.candidate[m].swap_us = 0;
    }
    assert_int_equal(pick_best(&chooser, &ask).method, PLAIN);
}

static void what_the_chain_holds_is_chosen_while_it_is_nearly_as_good(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_chooser_init(&chooser, names, METHODS);
    ask.candidate[5].held = 3;
    gpw_pick_t picked = pick(&chooser, &ask); // nothing is known: what is there
    assert_int_equal(picked.method, 5);
    assert_int_equal(picked.reason, GPW_PICK_HELD);
    assert_int_equal(picked.held, 3);
    teach(&chooser, 1, 8000, 50);
    teach(&chooser, 5, 8000, 48);
    for (int i = 0; i < 60; i++) { // and nothing is tried there
        assert_int_equal(pick(&chooser, &ask).method, 5);
    }
    teach(&chooser, 5, 8000, 8);
    assert_int_equal(pick_best(&chooser, &ask).method, 1);
}

static void a_prefix_that_stores_have_in_a_form_is_worth_its_fetch(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_chooser_init(&chooser, names, METHODS);
    teach(&chooser, 1, 8000, 50);
    teach(&chooser, 3, 8000, 49);
    for (uint32_t m = 0; m < METHODS; m++) {
        ask.candidate[m].fetch_us = 1500000;
    }
    assert_int_equal(pick_best(&chooser, &ask).method, 1);
    ask.candidate[3].fetch_us = 400000;
    ask.candidate[3].seal_tokens = 0;
    assert_int_equal(pick_best(&chooser, &ask).method, 3);
    ask.answer_tokens = 100000; // of a long answer it is nothing
    assert_int_equal(pick_best(&chooser, &ask).method, 1);
}

static void one_method_is_tried_once_at_a_time_and_never_for_a_short_answer(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_pick_t picked;
    gpw_chooser_init(&chooser, names, METHODS);
    teach(&chooser, 0, 8000, 40);
    uint32_t trials = 0, last = 0;
    bool tried[METHODS] = {false};
    for (uint32_t i = 1; i <= 200; i++) {
        assert_true(gpw_chooser_pick(&chooser, &ask, &picked));
        if (picked.reason == GPW_PICK_TRIAL) {
            assert_false(tried[picked.method]); // none has ended
            assert_true(last == 0 || i - last >= 4);
            tried[picked.method] = true;
            last = i;
            trials++;
            assert_true(trials <= 2 * (sqrt(i) - 1) + 0.01 * i + 1);
            // Nothing is known of any: the one that keeps most is tried first.
            assert_int_equal(picked.method, trials);
        }
    }
    assert_int_equal(trials, METHODS - 2); // all but the best and plain decoding
    for (uint32_t m = 1; m < PLAIN; m++) {
        gpw_chooser_end_trial(&chooser, m);
    }
    ask.answer_tokens = 8;
    for (uint32_t i = 0; i < 200; i++) {
        assert_true(gpw_chooser_pick(&chooser, &ask, &picked));
        assert_int_equal(picked.method, 0);
    }
}

static void the_horizon_begins_with_what_is_known(void **state)
{
    (void)state;
    gpw_chooser_t chooser;
    gpw_horizon_t known;
    gpw_chooser_init(&chooser, names, METHODS);
    assert_false(gpw_chooser_expect(&chooser, 3, 8000, &known));
    teach(&chooser, 3, 8000, 63);
    assert_true(gpw_chooser_expect(&chooser, 3, 8000, &known));
    assert_true(fabs(known.draft_us - 5000) < 1);
    assert_true(fabs(known.row_us - 2000) < 1);
    assert_true(known.accepted / known.tried > 0.95);
    assert_true(gpw_chooser_expect(&chooser, 3, 16000, &known));
    assert_true(fabs(known.draft_us - 6000) < 1); // attention twice
    assert_true(fabs(known.row_us - 3000) < 1);
    assert_false(gpw_chooser_expect(&chooser, 4, 8000, &known));
}

static void reasons_have_the_figures(void **state)
{
    (void)state;
    world_t world = world_of(1, 1);
    gpw_chooser_ask_t ask = ask_of(&world);
    gpw_chooser_t chooser;
    gpw_pick_t picked;
    char text[GPW_CHOSEN_BYTES], expected[GPW_CHOSEN_BYTES];
    gpw_chooser_init(&chooser, names, METHODS);
    picked = pick(&chooser, &ask);
    gpw_chooser_explain(&chooser, &picked, text);
    assert_string_equal(text, "alpha is the first that fits: nothing is measured yet");
    teach(&chooser, 1, 8000, 63);
    teach(&chooser, 2, 8000, 30);
    picked = pick_best(&chooser, &ask);
    gpw_chooser_explain(&chooser, &picked, text);
    snprintf(
        expected, sizeof(expected),
        "beta with %.3g tokens/s is expected to be the fastest (8 x 8128 tokens, %.0f %% of its "
        "drafts right); next gamma with %.3g tokens/s",
        picked.rates[1], 100 * picked.acceptance, picked.rates[2]);
    assert_string_equal(text, expected);
    while (picked.reason != GPW_PICK_TRIAL) {
        picked = pick(&chooser, &ask);
    }
    gpw_chooser_explain(&chooser, &picked, text);
    snprintf(
        expected, sizeof(expected),
        "%s is tried, 0.0 sessions are behind what is known of it; the fastest is beta with %.3g "
        "tokens/s",
        names[picked.method], picked.rates[1]);
    assert_string_equal(text, expected);
    ask.candidate[2].held = 1;
    teach(&chooser, 2, 8000, 63);
    picked = pick(&chooser, &ask);
    gpw_chooser_explain(&chooser, &picked, text);
    assert_string_equal(text, "gamma is what 1 session on the same prompt holds its blocks in");
}

static void forms_that_stores_have_are_known_until_they_are_missed(void **state)
{
    (void)state;
    enum { BLOCKS = 40 };
    static gpw_forms_t forms;
    as_key_t keys[BLOCKS], others[BLOCKS], namespace_key = {.bytes = {1}};
    int32_t tokens[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        tokens[i] = i;
    }
    assert_int_equal(as_chain_keys(&namespace_key, tokens, BLOCKS, 1, keys, BLOCKS), BLOCKS);
    tokens[20] = 7;
    as_chain_keys(&namespace_key, tokens, BLOCKS, 1, others, BLOCKS);
    assert_int_equal(gpw_forms_blocks(&forms, keys, BLOCKS, 2), 0);
    for (uint32_t b = 0; b < 30; b++) {
        gpw_forms_note(&forms, &keys[b], b, 2);
    }
    gpw_forms_note(&forms, &keys[35], 35, 5);
    assert_int_equal(gpw_forms_blocks(&forms, keys, BLOCKS, 2), 28);
    assert_int_equal(gpw_forms_blocks(&forms, keys, BLOCKS, 5), 36);
    assert_int_equal(gpw_forms_blocks(&forms, keys, BLOCKS, 3), 0);
    assert_int_equal(gpw_forms_blocks(&forms, keys, 17, 2), 17);       // a shorter prompt
    assert_int_equal(gpw_forms_blocks(&forms, keys, 3, 2), 0);         // one too short to be known
    assert_int_equal(gpw_forms_blocks(&forms, others, BLOCKS, 2), 20); // they part there
    gpw_forms_forget(&forms, keys, 28, 2);
    assert_int_equal(gpw_forms_blocks(&forms, keys, BLOCKS, 2), 0);
    assert_int_equal(gpw_forms_blocks(&forms, keys, BLOCKS, 5), 36);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_of_sessions_lose_less_than_a_twentieth),
        cmocka_unit_test(a_method_that_fails_on_new_texts_is_left),
        cmocka_unit_test(the_first_is_chosen_where_nothing_is_known_and_the_first_of_equal_ones),
        cmocka_unit_test(nothing_is_left_to_chance),
        cmocka_unit_test(the_length_of_the_context_decides),
        cmocka_unit_test(what_does_not_fit_is_not_chosen_nor_tried),
        cmocka_unit_test(memory_for_more_sessions_counts),
        cmocka_unit_test(plain_decoding_is_chosen_where_it_may_be_and_is_faster),
        cmocka_unit_test(what_the_chain_holds_is_chosen_while_it_is_nearly_as_good),
        cmocka_unit_test(a_prefix_that_stores_have_in_a_form_is_worth_its_fetch),
        cmocka_unit_test(one_method_is_tried_once_at_a_time_and_never_for_a_short_answer),
        cmocka_unit_test(the_horizon_begins_with_what_is_known),
        cmocka_unit_test(reasons_have_the_figures),
        cmocka_unit_test(forms_that_stores_have_are_known_until_they_are_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
