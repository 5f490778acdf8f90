// SPDX-License-Identifier: Apache-2.0
// The whole cluster under faults: every request ends in time, no answer has a wrong token, nothing
// leaks.
//
// A seed chooses the network's faults, the requests and what happens to the nodes. ASSAY_SIM_SEEDS
// is how many seeds run (60 unless given, 8 under sanitizers, 200 in full runs), ASSAY_SIM_SEED the one seed to run alone.
#include "client/internal.h"
#include "common/fault.h"
#include "../unit/gpuworker/worker_fixture.h"
#include "common/log.h"
#include "gpuworker/worker_internal.h"
#include "world.h"

enum {
    BLOCK_TOKENS = 16,
    POOL = 24,     // different requests in all
    REQUESTS = 14, // of one seed
    ACTIONS = 30,
    FAMILIES = 4 // of prompts that share their first tokens
};

typedef struct pooled {
    int32_t tokens[400];
    uint32_t count, max_tokens;
    gpw_choose_params_t choose;
    answer_t expected;
} pooled_t;

static gpw_model_t *model;
static pooled_t pool[POOL];
static uint64_t
    totals[7]; // ok, cancelled, late, recomputed blocks, cached tokens, swapped, pushed KiB

static void make_pool(void)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    rig_t rig = rig_open(options);
    for (uint32_t i = 0; i < POOL; i++) {
        pooled_t *p = &pool[i];
        uint32_t shared = 40 + 60 * (i % FAMILIES);
        p->count = shared + 5 + i * 3;
        p->max_tokens = 10 + (i * 7) % 45;
        p->choose = (gpw_choose_params_t){
            .temperature = i % 3 == 0 ? 0.9f : 0.0f, .top_p = 0.95f, .seed = i};
        prompt_make(p->tokens, p->count, shared, 50 + i);
        gpw_request_params_t params = request_params(p->tokens, p->count, p->max_tokens);
        params.choose = p->choose;
        answer_submit(rig.worker, &params, &p->expected);
        rig_run(&rig);
        assert_int_equal(p->expected.status, AS_OK);
    }
    rig_close(&rig);
}

typedef struct asked {
    const pooled_t *what;
    answer_t answer;
    world_worker_t *worker;
    uint64_t deadline_us; // absolute
    const char *compressor;
    uint32_t horizon;
    bool cancelled, refused;
} asked_t;

static int64_t assay_rescued(void)
{
    return as_metric_value(&assay_metrics[ASSAY_METRIC_RESCUED]);
}

static uint32_t compressor_count(void)
{
    uint32_t count = 0;
    while (gpw_compressor_names(0)[count]) {
        count++;
    }
    return count;
}

static void ask(world_t *world, asked_t *asked)
{
    const char *const *compressors = gpw_compressor_names(0);
    static const uint32_t horizons[] = {0, 1, 4, 16, 64};
    uint64_t r = world_random(world);
    asked->what = &pool[r % POOL];
    asked->worker = &world->workers[(r >> 8) % world->options.workers];
    gpw_request_params_t params =
        request_params(asked->what->tokens, asked->what->count, asked->what->max_tokens);
    params.choose = asked->what->choose;
    params.compressor = asked->compressor = compressors[(r >> 16) % compressor_count()];
    params.horizon = asked->horizon = horizons[(r >> 24) % 5];
    params.horizon_set = (r >> 32) % 4 != 0;
    params.deadline_us = (r >> 40) % 8 == 0 ? 20000 + (r >> 44) % 400000 : 30000000;
    asked->deadline_us = as_loop_now_us(world->loop) + params.deadline_us;
    gpw_request_events_t events = {&asked->answer, answer_on_tokens, answer_on_finish, NULL};
    asked->answer = (answer_t){.loop = world->loop};
    char error[256];
    as_status_t status = gpw_worker_submit(asked->worker->worker, &params, &events, error,
                                           sizeof(error), &asked->answer.id);
    asked->refused = status == AS_ERR_BUSY;
    assert_true(status == AS_OK || asked->refused);
}

static void act(world_t *world, asked_t *asked, uint32_t count)
{
    uint64_t r = world_random(world);
    uint32_t s = (uint32_t)(r >> 8) % world->options.stores;
    world_store_t *store = &world->stores[s];
    switch (r % 12) {
    case 0:
        if (store->killed) {
            world_store_start(world, s);
        } else {
            world_store_kill(store);
        }
        break;
    case 1:
        if (!store->killed) {
            world_store_stop(store);
        }
        break;
    case 2:
    case 3:
        if (!store->killed) {
            world_store_resume(store);
        }
        break;
    case 4:
        world_scheduler_down(world, (r >> 16) % 2);
        break;
    case 5:
        if (count > 0) {
            asked_t *one = &asked[(r >> 16) % count];
            one->cancelled |= !one->answer.finished;
            gpw_worker_cancel(one->worker->worker, one->answer.id);
        }
        break;
    case 6:
        if (!store->killed) {
            kvs_store_drop_all(store->store);
        }
        break;
    case 7:
        if (!store->killed) {
            world_store_drain(store);
        }
        break;
    default:
        break;
    }
}

static void set_faults(world_t *world)
{
    uint64_t r = world_random(world);
    static const uint32_t losses[] = {0, 0, 500, 5000, 30000};
    static const uint32_t corruptions[] = {0, 0, 200, 5000, 50000};
    as_sim_faults_t faults = {.loss_ppm = losses[r % 5],
                              .corrupt_ppm = corruptions[(r >> 8) % 5],
                              .delay_us_min = 20,
                              .delay_us_max = (r >> 16) % 3 == 0 ? 8000 : 200,
                              .bandwidth_bytes_per_s = (r >> 20) % 3 == 0 ? 20000000 : 0};
    as_sim_set_faults(world->sim, &faults);
}

static void heal(world_t *world)
{
    as_sim_faults_t none = {.delay_us_min = 20, .delay_us_max = 100};
    as_sim_set_faults(world->sim, &none);
    world_scheduler_down(world, false);
    for (uint32_t s = 0; s < world->options.stores; s++) {
        if (!world->stores[s].killed) {
            world_store_resume(&world->stores[s]);
        }
    }
}

static void check_answer(const asked_t *asked, uint64_t seed)
{
    const answer_t *answer = &asked->answer;
    const answer_t *expected = &asked->what->expected;
    if (asked->refused) {
        return;
    }
    if (!answer->finished || answer->finished_us > asked->deadline_us + 1000) {
        fail_msg("seed %llu: a request did not end in time", (unsigned long long)seed);
    }
    totals[0] += answer->status == AS_OK;
    totals[1] += answer->status == AS_ERR_CANCELLED;
    totals[2] += answer->status == AS_ERR_DEADLINE;
    totals[3] += answer->usage.recomputed_blocks;
    totals[4] += answer->usage.cached_tokens;
    totals[5] += answer->usage.swapped_bytes >> 10;
    totals[6] += answer->usage.pushed_bytes >> 10;
    bool ended_well = answer->status == AS_OK ||
                      (answer->status == AS_ERR_CANCELLED && asked->cancelled) ||
                      answer->status == AS_ERR_DEADLINE;
    if (!ended_well || (answer->status == AS_OK && answer->count != expected->count)) {
        fail_msg("seed %llu: a request ended with %s (%s), %u of %u tokens",
                 (unsigned long long)seed, as_status_str(answer->status), answer->error,
                 answer->count, expected->count);
    }
    for (uint32_t i = 0; i < answer->count; i++) {
        if (answer->tokens[i] != expected->tokens[i] || answer->hashes[i] != expected->hashes[i]) {
            fail_msg("seed %llu: token %u of request %llu is wrong (%s, horizon %u, prompt %u, "
                     "%u blocks recomputed, %u tokens cached)",
                     (unsigned long long)seed, i, (unsigned long long)answer->id, asked->compressor,
                     asked->horizon, asked->what->count, answer->usage.recomputed_blocks,
                     answer->usage.cached_tokens);
        }
    }
}

static void check_leaks(world_t *world, uint64_t seed)
{
    for (uint32_t w = 0; w < world->options.workers; w++) {
        const gpw_worker_t *worker = world->workers[w].worker;
        if (!gpw_worker_idle(worker) || worker->engine->device.reserved_bytes ||
            worker->engine->sessions || worker->active_count) {
            fail_msg("seed %llu: worker %u still holds something", (unsigned long long)seed, w);
        }
    }
    for (uint32_t s = 0; s < world->options.stores; s++) {
        if (world->stores[s].killed) {
            continue;
        }
        kvs_stat_t stat;
        kvs_store_stat(world->stores[s].store, &stat);
        if (stat.leases || stat.pins || stat.reservations || stat.dying) {
            fail_msg(
                "seed %llu: store %u has %llu leases, %llu pins, %llu reservations, %llu dying",
                (unsigned long long)seed, s, (unsigned long long)stat.leases,
                (unsigned long long)stat.pins, (unsigned long long)stat.reservations,
                (unsigned long long)stat.dying);
        }
    }
}

static void run_seed(uint64_t seed)
{
    static asked_t asked[REQUESTS];
    world_t world;
    world_options_t options = {.model = model,
                               .seed = seed,
                               .stores = 2 + seed % 2,
                               .workers = 2,
                               .replicas = 1 + seed / 2 % 2,
                               .block_tokens = BLOCK_TOKENS,
                               .cache_bytes_max = seed % 3 == 0 ? 440u << 10 : 16u << 20,
                               .ram_bytes = seed % 5 == 0 ? 512u << 10 : 8u << 20,
                               .push_down = (gpw_push_down_t)(seed / 2 % 3),
                               .store_sealed = seed / 6 % 2,
                               .keep_while_room = seed % 7 < 2,
                               .swap_full_cache = seed % 13 == 1,
                               .no_overlap = seed % 17 == 2,
                               .no_sharing = seed % 19 == 3,
                               .no_attend = seed % 11 == 0,
                               .weigh = seed % 4 == 1};
    memset(asked, 0, sizeof(asked));
    world_open(&world, &options);
    world_run(&world, 50000);
    if (seed % 8 != 7) { // some worlds begin before the nodes know each other
        world_run(&world, 1500000);
    }
    set_faults(&world);
    uint32_t count = 0;
    for (uint32_t a = 0; a < ACTIONS; a++) {
        world_run(&world, world_random(&world) % 60000);
        if (count < REQUESTS && world_random(&world) % 2 == 0) {
            ask(&world, &asked[count++]);
        }
        act(&world, asked, count);
    }
    uint64_t give_up_us = as_loop_now_us(world.loop) + 31000000;
    for (uint32_t i = 0; i < count; i++) {
        while (!asked[i].answer.finished && !asked[i].refused &&
               as_loop_now_us(world.loop) < give_up_us) {
            as_loop_run_once(world.loop, true);
        }
    }
    heal(&world);
    world_run(&world, 8000000); // leases, reservations and puts run out
    for (uint32_t i = 0; i < count; i++) {
        check_answer(&asked[i], seed);
    }
    check_leaks(&world, seed);
    world_close(&world);
}

static void every_request_ends_with_the_right_tokens_and_nothing_leaks(void **state)
{
    (void)state;
    const char *one = getenv("ASSAY_SIM_SEED");
    const char *many = getenv("ASSAY_SIM_SEEDS");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1;
    uint64_t usual = getenv("ASSAY_TEST_FULL") ? 200 : getenv("ASSAY_TEST_SANITIZED") ? 8 : 60;
    uint64_t count = one ? 1 : many ? strtoull(many, NULL, 10) : usual;
    as_log_set_level(getenv("ASSAY_SIM_VERBOSE") ? AS_LOG_DEBUG : AS_LOG_ERROR);
    model = tiny_load(3);
    make_pool();
    for (uint64_t seed = first; seed < first + count; seed++) {
        run_seed(seed);
    }
    gpw_model_free(model);
    assert_true(as_fault_fired(AS_FAULT_swap_slot_reused) > 0);
    printf("%llu seeds: %llu ok, %llu cancelled, %llu late, %llu blocks recomputed, %llu tokens "
           "cached, %llu KiB swapped, %llu pushed, %lld restarts\n",
           (unsigned long long)count, (unsigned long long)totals[0], (unsigned long long)totals[1],
           (unsigned long long)totals[2], (unsigned long long)totals[3],
           (unsigned long long)totals[4], (unsigned long long)totals[5],
           (unsigned long long)totals[6], (long long)gpw_metric_value(GPW_METRIC_RESTARTS_TOTAL));
}

// A request whose long answer is verified by swaps.
static gpw_request_params_t swapped_params(const pooled_t *what)
{
    gpw_request_params_t params = request_params(what->tokens, what->count, what->max_tokens);
    params.choose = what->choose;
    params.compressor = "kivi2";
    params.horizon = 4;
    params.horizon_set = true;
    return params;
}

// A world without faults, whose stores have room for all that is asked.
static void open_kept(world_t *world, uint64_t seed, uint32_t stores, uint32_t replicas)
{
    model = tiny_load(3);
    make_pool();
    const world_options_t options = {.model = model,
                                     .seed = seed,
                                     .stores = stores,
                                     .workers = 2,
                                     .replicas = replicas,
                                     .block_tokens = BLOCK_TOKENS,
                                     .cache_bytes_max = 16u << 20,
                                     .ram_bytes = 8u << 20};
    world_open(world, &options);
    world_run(world, 2000000);
}

static void answer_of(world_t *world, uint32_t worker, const pooled_t *what, answer_t *answer,
                      const char *name)
{
    gpw_request_params_t params = swapped_params(what);
    answer_submit(world->workers[worker].worker, &params, answer);
    world_run(world, 3000000);
    assert_true(answer->finished);
    assert_int_equal(answer->status, AS_OK);
    answer_compare(answer, &what->expected, name);
}

// Without faults the second worker answers from what the first one stored, and long answers are
// verified by swaps.
static void a_prefix_that_one_worker_stored_is_used_by_the_other(void **state)
{
    (void)state;
    world_t world;
    open_kept(&world, 1, 2, 0);
    static answer_t answers[2];
    const pooled_t *what = &pool[23];
    answer_of(&world, 0, what, &answers[0], "first worker");
    answer_of(&world, 1, what, &answers[1], "second worker");
    assert_int_equal(answers[0].usage.cached_tokens, 0);
    assert_true(answers[0].usage.published_bytes > 0);
    uint32_t blocks = (what->count - 1) / BLOCK_TOKENS;
    assert_int_equal(answers[1].usage.cached_tokens, blocks * BLOCK_TOKENS);
    assert_true(answers[1].usage.swapped_bytes > 0);
    assert_int_equal(answers[0].usage.recomputed_blocks + answers[1].usage.recomputed_blocks, 0);
    assert_true(answers[1].usage.first_token_us < answers[0].usage.first_token_us * 2);
    check_leaks(&world, 1);
    world_close(&world);
    gpw_model_free(model);
}

// Without verification each token shows what was kept: a prompt that was computed here and one whose
// prefix was fetched answer alike, and differ from the exact answer.
static void what_queries_choose_does_not_depend_on_what_was_stored(void **state)
{
    (void)state;
    world_t world;
    open_kept(&world, 5, 2, 0);
    static answer_t answers[2];
    const pooled_t *what = &pool[23];
    for (uint32_t i = 0; i < 2; i++) {
        gpw_request_params_t params = swapped_params(what);
        params.compressor = "snapkv";
        params.verify = GPW_VERIFY_OFF;
        answer_submit(world.workers[i].worker, &params, &answers[i]);
        world_run(&world, 3000000);
        assert_true(answers[i].finished);
        assert_int_equal(answers[i].status, AS_OK);
    }
    answer_compare(&answers[1], &answers[0], "with a fetched prefix");
    assert_int_equal(answers[0].usage.cached_tokens, 0);
    assert_true(answers[1].usage.cached_tokens > 0);
    assert_true(
        memcmp(answers[0].hashes, what->expected.hashes, answers[0].count * sizeof(uint64_t)) != 0);
    check_leaks(&world, 5);
    world_close(&world);
    gpw_model_free(model);
}

// One store of three is killed at some moment of an answer: with two copies of each block nothing is
// computed again.
static void a_store_that_dies_costs_no_block_of_which_there_are_two_copies(void **state)
{
    (void)state;
    model = tiny_load(3);
    make_pool();
    uint64_t swapped = 0;
    int64_t rescued = assay_rescued();
    for (uint32_t run = 0; run < 24; run++) {
        world_t world;
        world_options_t options = {.model = model,
                                   .seed = run + 1,
                                   .stores = 3,
                                   .workers = 1,
                                   .replicas = 2,
                                   .block_tokens = BLOCK_TOKENS,
                                   .cache_bytes_max = 16u << 20,
                                   .ram_bytes = 8u << 20};
        world_open(&world, &options);
        world_run(&world, 2000000);
        static answer_t answers[2];
        const pooled_t *what = &pool[23];
        gpw_request_params_t params = swapped_params(what);
        answer_submit(world.workers[0].worker, &params, &answers[0]);
        world_run(&world, 3000000); // and what it stored is told to the scheduler
        assert_true(answers[0].finished);
        answer_submit(world.workers[0].worker, &params, &answers[1]);
        world_run(&world, 1000 + run / 3 * 9000);
        world_store_kill(&world.stores[run % 3]);
        world_run(&world, 5000000);
        assert_true(answers[1].finished);
        assert_int_equal(answers[1].status, AS_OK);
        answer_compare(&answers[1], &what->expected, "with a dead store");
        assert_int_equal(answers[1].usage.recomputed_blocks, 0);
        assert_int_equal(answers[1].usage.cached_tokens,
                         (what->count - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
        swapped += answers[1].usage.swapped_bytes;
        world_close(&world);
    }
    assert_true(swapped > 0);
    assert_true(assay_rescued() > rescued); // it was in the middle of something
    gpw_model_free(model);
}

// Asks, lets stores go, asks again: all is loaded, nothing is computed again.
static void expect_all_is_kept(uint32_t stores, uint32_t replicas, void (*lose)(world_t *))
{
    world_t world;
    open_kept(&world, 9, stores, replicas);
    static answer_t answers[2];
    const pooled_t *what = &pool[23];
    answer_of(&world, 0, what, &answers[0], "before the loss");
    lose(&world);
    answer_of(&world, 1, what, &answers[1],
              "after the loss"); // by another worker: it has nothing of its own
    assert_int_equal(answers[1].usage.recomputed_blocks, 0);
    assert_int_equal(answers[1].usage.cached_tokens,
                     (what->count - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
    check_leaks(&world, 9);
    world_close(&world);
    gpw_model_free(model);
}

// All but the last, one after the other.
static void drain_stores(world_t *world)
{
    for (uint32_t s = 0; s + 1 < world->options.stores; s++) {
        world_store_drain(&world->stores[s]);
        world_run(world, 4000000);
        assert_true(world->stores[s].killed);
    }
}

static void kill_stores(world_t *world)
{
    for (uint32_t s = 0; s + 1 < world->options.stores; s++) {
        world_store_kill(&world->stores[s]);
        world_run(world, 15000000); // until it is dead, and its copies are made again
    }
}

static void stores_that_drain_one_after_the_other_cost_no_block(void **state)
{
    (void)state;
    expect_all_is_kept(3, 1, drain_stores);
}

static void
stores_that_die_one_after_the_other_cost_no_block_of_which_there_are_two_copies(void **state)
{
    (void)state;
    expect_all_is_kept(3, 2, kill_stores);
}

// The same prompt again and again, over a link that becomes slow and fast again: its prefix is loaded,
// computed, loaded, always with the same tokens. What the link can do is seen from what
// verifications bring over it.
static uint32_t ask_until(world_t *world, const pooled_t *what, bool loaded)
{
    static answer_t answer;
    uint32_t blocks = (what->count - 1) / BLOCK_TOKENS;
    for (uint32_t tries = 1; tries <= 20; tries++) {
        gpw_request_params_t params = swapped_params(what);
        answer_submit(world->workers[0].worker, &params, &answer);
        for (int i = 0; i < 600 && !answer.finished; i++) {
            world_run(world, 100000);
        }
        assert_true(answer.finished);
        assert_int_equal(answer.status, AS_OK);
        answer_compare(&answer, &what->expected, loaded ? "fast link" : "slow link");
        uint32_t cached = answer.usage.cached_tokens / BLOCK_TOKENS;
        assert_true(answer.usage.chosen_blocks == 0 || cached == 0);
        if (loaded ? cached == blocks : answer.usage.chosen_blocks == blocks) {
            return tries;
        }
    }
    return 0;
}

static void a_prefix_behind_a_slow_link_is_computed_again(void **state)
{
    (void)state;
    model = tiny_load(3);
    make_pool();
    world_t world;
    world_options_t options = {.model = model,
                               .seed = 5,
                               .stores = 1,
                               .workers = 1,
                               .block_tokens = BLOCK_TOKENS,
                               .cache_bytes_max = 16u << 20,
                               .ram_bytes = 8u << 20,
                               .weigh = true};
    world_open(&world, &options);
    world_run(&world, 2000000);
    const as_sim_faults_t fast = {.bandwidth_bytes_per_s = 1000000000},
                          slow = {.delay_us_min = 5000,
                                  .delay_us_max = 5000,
                                  .bandwidth_bytes_per_s = 1000000};
    const pooled_t *what = &pool[23];
    int64_t chosen = gpw_metric_value(GPW_METRIC_CHOSEN_BLOCKS_TOTAL);
    as_sim_set_faults(world.sim, &fast);
    assert_true(ask_until(&world, what, true) > 0);
    assert_int_equal(ask_until(&world, what, true), 1);
    assert_int_equal(gpw_metric_value(GPW_METRIC_CHOSEN_BLOCKS_TOTAL), chosen);
    as_sim_set_faults(world.sim, &slow);
    assert_true(ask_until(&world, what, false) > 0);
    assert_true(gpw_metric_value(GPW_METRIC_CHOSEN_BLOCKS_TOTAL) > chosen);
    as_sim_set_faults(world.sim, &fast);
    assert_true(ask_until(&world, what, true) > 0);
    world_close(&world);
    gpw_model_free(model);
}

int main(void)
{
    // A layer that is released before it was read comes out as a wrong token.
    as_fault_arm_chance(AS_FAULT_swap_slot_reused, 1000000, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_that_one_worker_stored_is_used_by_the_other),
        cmocka_unit_test(what_queries_choose_does_not_depend_on_what_was_stored),
        cmocka_unit_test(a_store_that_dies_costs_no_block_of_which_there_are_two_copies),
        cmocka_unit_test(stores_that_drain_one_after_the_other_cost_no_block),
        cmocka_unit_test(
            stores_that_die_one_after_the_other_cost_no_block_of_which_there_are_two_copies),
        cmocka_unit_test(a_prefix_behind_a_slow_link_is_computed_again),
        cmocka_unit_test(every_request_ends_with_the_right_tokens_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
