// SPDX-License-Identifier: Apache-2.0
// Verifications whose attention stores compute: the same tokens and logits' bits as of full-cache decoding,
// with far fewer bytes over links, also where stores die, refuse or have nothing in the middle of one.
#include "answers.h"
#include "common/fault.h"

enum { BLOCK_TOKENS = 16, PROMPT = 300, MAX_TOKENS = 40 };

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t expected[2]; // greedy, sampled

// Instrumented code takes ten times as long.
static uint32_t thinned(uint32_t count)
{
    return getenv("ASSAY_TEST_SANITIZED") ? (count + 3) / 4 : count;
}

static gpw_request_params_t params_of(bool sampled)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    if (sampled) {
        params.choose =
            (gpw_choose_params_t){.temperature = 0.9f, .top_p = 0.95f, .top_k = 30, .seed = 77};
    }
    return params;
}

static gpw_request_params_t drafted(bool sampled, const char *compressor, uint32_t horizon)
{
    gpw_request_params_t params = params_of(sampled);
    params.compressor = compressor;
    params.horizon = horizon;
    params.horizon_set = true;
    return params;
}

static int begin_all(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    model = tiny_load(3);
    prompt_make(prompt, PROMPT, 0, 5);
    for (int sampled = 0; sampled < 2; sampled++) {
        gpw_request_params_t params = params_of(sampled);
        answer_alone(rig_options(model, BLOCK_TOKENS), &params, &expected[sampled]);
    }
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

static world_options_t usual(uint32_t stores, uint32_t replicas)
{
    return (world_options_t){.model = model,
                             .seed = 3,
                             .stores = stores,
                             .workers = 1,
                             .replicas = replicas,
                             .block_tokens = BLOCK_TOKENS,
                             .cache_bytes_max = 16u << 20,
                             .push_down = GPW_PUSH_DOWN_ON,
                             .ram_bytes = 8u << 20};
}

// The answer of the world's worker, which must be right.
static void answer_of(world_t *world, const gpw_request_params_t *params, bool sampled,
                      answer_t *answer)
{
    answer_submit(world->workers[0].worker, params, answer);
    run_to_end(world, answer);
    assert_int_equal(answer->status, AS_OK);
    answer_compare(answer, &expected[sampled], params->compressor);
}

// ---- the bits

static void every_compressor_and_horizon_gives_the_same_bits(void **state)
{
    static const uint32_t horizons[] = {1, 4, 16, 64};
    (void)state;
    static answer_t answer;
    for (uint32_t stores = 1; stores <= 3; stores += 2) {
        world_t world;
        world_options_t options = usual(stores, 1);
        uint64_t pushed = 0;
        world_open(&world, &options);
        world_run(&world, 2000000);
        for (EACH_TRIED_COMPRESSOR(c)) {
            for (uint32_t h = stores / 3; h < 4; h += 4 / thinned(4)) {
                bool sampled = (c - gpw_compressors() + h) % 2 == 1;
                gpw_request_params_t params = drafted(sampled, c->name, horizons[h]);
                answer_of(&world, &params, sampled, &answer);
                assert_int_equal(answer.usage.swapped_bytes, 0);
                assert_int_equal(answer.usage.recomputed_blocks, 0);
                pushed += answer.usage.pushed_verifications;
                world_run(&world, 500000); // what it stored is told to the scheduler
            }
        }
        assert_true(pushed > thinned(20));
        world_run(&world, 3000000);
        check_nothing_is_held(&world);
        world_close(&world);
    }
}

static void far_fewer_bytes_go_over_links_than_by_swaps(void **state)
{
    (void)state;
    static answer_t answers[2];
    for (int push = 0; push < 2; push++) {
        world_t world;
        world_options_t options = usual(1, 1);
        options.push_down = push ? GPW_PUSH_DOWN_ON : GPW_PUSH_DOWN_OFF;
        world_open(&world, &options);
        world_run(&world, 2000000);
        gpw_request_params_t params = drafted(false, "kivi4", 4);
        answer_of(&world, &params, false, &answers[push]);
        world_close(&world);
    }
    assert_int_equal(answers[0].usage.pushed_bytes, 0);
    assert_true(answers[0].usage.swapped_bytes > 4 * answers[1].usage.pushed_bytes);
    assert_true(answers[1].usage.pushed_bytes > 0);
    assert_int_equal(answers[1].usage.swapped_bytes, 0);
}

// ---- faults

// A store goes in the middle of an answer; then what it had is brought or computed again.
static void a_store_that_dies_in_mid_verification_costs_time_only(void **state)
{
    (void)state;
    uint64_t pushed = 0, otherwise = 0;
    static answer_t answers[2];
    for (uint32_t run = 0; run < thinned(18); run++) {
        world_t world;
        world_options_t options = usual(3, 1 + run % 2);
        gpw_request_params_t params = drafted(false, "kivi2", 4);
        options.seed = run + 1;
        world_open(&world, &options);
        world_run(&world, 2000000);
        answer_of(&world, &params, false, &answers[0]);
        world_run(&world, 2000000);
        answer_submit(world.workers[0].worker, &params, &answers[1]);
        world_run(&world, 20000 + run / 3 * 7000);
        world_store_kill(&world.stores[run % 3]);
        run_to_end(&world, &answers[1]);
        assert_int_equal(answers[1].status, AS_OK);
        answer_compare(&answers[1], &expected[0], "with a dead store");
        pushed += answers[1].usage.pushed_verifications;
        otherwise += answers[1].usage.swapped_bytes + answers[1].usage.recomputed_blocks;
        world_run(&world, 8000000);
        check_nothing_is_held(&world);
        world_close(&world);
    }
    assert_true(pushed > 0 && otherwise > 0);
}

static void stores_that_compute_none_are_swapped_from(void **state)
{
    (void)state;
    static answer_t answer;
    world_t world;
    world_options_t options = usual(2, 1);
    options.no_attend = true;
    int64_t refused = gpw_metric_value(GPW_METRIC_PUSH_REFUSED_TOTAL);
    world_open(&world, &options);
    world_run(&world, 2000000);
    gpw_request_params_t params = drafted(true, "kivi4", 8);
    answer_of(&world, &params, true, &answer);
    assert_int_equal(answer.usage.pushed_verifications, 0);
    assert_true(answer.usage.swapped_bytes > 0);
    assert_true(gpw_metric_value(GPW_METRIC_PUSH_REFUSED_TOTAL) > refused);
    world_run(&world, 3000000);
    check_nothing_is_held(&world);
    world_close(&world);
}

static void an_answer_that_is_lost_is_swapped_for(void **state)
{
    (void)state;
    static answer_t answer;
    world_t world;
    world_options_t options = usual(1, 1);
    world_open(&world, &options);
    world_run(&world, 2000000);
    gpw_request_params_t params = drafted(false, "kivi4", 8);
    as_fault_arm(AS_FAULT_attend_answer_drop, 5);
    answer_of(&world, &params, false, &answer);
    assert_int_equal(as_fault_fired(AS_FAULT_attend_answer_drop), 1);
    as_fault_clear();
    assert_true(answer.usage.pushed_verifications > 0);
    world_run(&world, 8000000);
    check_nothing_is_held(&world);
    world_close(&world);
}

static void cancelled_at_any_moment_nothing_is_held(void **state)
{
    (void)state;
    static answer_t answers[2];
    world_t world;
    world_options_t options = usual(2, 1);
    world_open(&world, &options);
    world_run(&world, 2000000);
    gpw_request_params_t params = drafted(false, "kivi4", 4);
    answer_of(&world, &params, false, &answers[0]);
    world_run(&world, 1000000);
    for (uint32_t moment = 0; moment < thinned(24); moment++) {
        answer_submit(world.workers[0].worker, &params, &answers[1]);
        world_run(&world, 500 + moment * 40000 / thinned(24));
        gpw_worker_cancel(world.workers[0].worker, answers[1].id);
        run_to_end(&world, &answers[1]);
        for (uint32_t i = 0; i < answers[1].count; i++) {
            assert_int_equal(answers[1].tokens[i], expected[0].tokens[i]);
        }
        world_run(&world, 2500000);
        check_nothing_is_held(&world);
    }
    world_close(&world);
}

// ---- the choice

// Over a slow link the swaps that measure it are few, and over a fast one they are all there is.
static void auto_pushes_down_where_the_link_is_what_takes_time(void **state)
{
    (void)state;
    static answer_t answer;
    for (int slow = 0; slow < 2; slow++) {
        world_t world;
        world_options_t options = usual(1, 1);
        options.push_down = GPW_PUSH_DOWN_AUTO;
        world_open(&world, &options);
        const as_sim_faults_t link = {
            .delay_us_min = 50, .delay_us_max = 60, .bandwidth_bytes_per_s = slow ? 5000000 : 0};
        as_sim_set_faults(world.sim, &link);
        world_run(&world, 2000000);
        uint64_t pushed = 0, swapped = 0;
        for (uint32_t i = 0; i < 4; i++) {
            gpw_request_params_t params = drafted(false, "kivi2", 4);
            answer_of(&world, &params, false, &answer);
            pushed += answer.usage.pushed_verifications;
            swapped += answer.usage.swapped_bytes;
            world_run(&world, 1000000);
        }
        assert_true(slow ? pushed > 0 : pushed == 0);
        assert_true(swapped > 0);
        world_close(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_compressor_and_horizon_gives_the_same_bits),
        cmocka_unit_test(far_fewer_bytes_go_over_links_than_by_swaps),
        cmocka_unit_test(a_store_that_dies_in_mid_verification_costs_time_only),
        cmocka_unit_test(stores_that_compute_none_are_swapped_from),
        cmocka_unit_test(an_answer_that_is_lost_is_swapped_for),
        cmocka_unit_test(cancelled_at_any_moment_nothing_is_held),
        cmocka_unit_test(auto_pushes_down_where_the_link_is_what_takes_time),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
