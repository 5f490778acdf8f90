// SPDX-License-Identifier: Apache-2.0
// A session that is cancelled after any number of ticks, at every step, with each compressor, with
// puts, swaps and push-downs in flight or what it needs lost: the session beside it gives its whole
// answer, and neither worker nor store holds anything afterwards. And one that begins again for want
// of memory says the same; and of one that its caller has enough of what it computed is stored.
//
// A sample of the moments runs always, another for each seed (ASSAY_TEST_SEED); all of them with
// ASSAY_TEST_FULL=1.
#include "answers.h"

enum { BLOCK_TOKENS = 16, PROMPT = 260, MAX_TOKENS = 24, TICKS_MAX = 20000, TICK_US = 100 };

typedef enum scenario { SWAPS, PUSHES, LOSES, SCENARIOS } scenario_t;
static const char *const scenario_names[] = {"swaps", "push-downs", "lost blocks"};

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t expected;
static uint64_t chance;

static uint64_t random_next(void)
{
    chance += 0x9e3779b97f4a7c15ull;
    return tiny_mix(chance) >> 20;
}

// Moments of one compressor and scenario, of all there are.
static uint32_t moments(void)
{
    return getenv("ASSAY_TEST_FULL") ? TICKS_MAX : getenv("ASSAY_TEST_SANITIZED") ? 4 : 16;
}

static int begin_all(void **state)
{
    (void)state;
    const char *seed = getenv("ASSAY_TEST_SEED");
    chance = seed ? strtoull(seed, NULL, 10) : 1;
    print_message("ASSAY_TEST_SEED=%llu\n", (unsigned long long)chance);
    as_log_set_level(AS_LOG_ERROR);
    model = tiny_load(3);
    prompt_make(prompt, PROMPT, 0, 31);
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &expected);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

static world_options_t options_of(scenario_t scenario)
{
    return (world_options_t){.model = model,
                             .seed = 7,
                             .stores = 2,
                             .workers = 1,
                             .block_tokens = BLOCK_TOKENS,
                             .cache_bytes_max = 16u << 20,
                             .push_down = scenario == PUSHES ? GPW_PUSH_DOWN_ON : GPW_PUSH_DOWN_OFF,
                             .ram_bytes = 8u << 20};
}

static gpw_request_params_t params_of(const char *compressor, const char *salt)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    params.compressor = compressor;
    params.cache_salt = salt;
    params.horizon = 4;
    params.horizon_set = true;
    return params;
}

static void expect_nothing_held(world_t *world)
{
    world_run(world, 2500000); // leases and puts run out
    check_nothing_is_held(world);
}

static void expect_whole(const answer_t *answer, const char *name)
{
    assert_int_equal(answer->status, AS_OK);
    answer_compare(answer, &expected, name);
}

static void drop_all(world_t *world)
{
    for (uint32_t s = 0; s < world->options.stores; s++) {
        kvs_store_drop_all(world->stores[s].store);
    }
}

// ---- Cancelled ---------------------------------------------------------------------------------

enum { BESIDE_MAX = 3 }; // as many as there are sessions

typedef struct trial {
    const char *compressor;
    scenario_t scenario;
    uint32_t
        number; // odd ones find the prompt stored; of eight one stands in line behind three others
} trial_t;

static uint32_t step_of(const world_t *world, uint64_t id)
{
    const gpw_request_t *r = worker_of(world)->engine->first;
    while (r && r->id != id) {
        r = r->next;
    }
    return r ? 1u << r->step : 0;
}

static void check_cancelled(const answer_t *answer, const char *name)
{
    if (answer->status == AS_OK) { // it was on its way
        expect_whole(answer, name);
        return;
    }
    assert_int_equal(answer->status, AS_ERR_CANCELLED);
    assert_true(answer->count <= expected.count);
    assert_memory_equal(answer->tokens, expected.tokens, answer->count * sizeof(int32_t));
    assert_memory_equal(answer->hashes, expected.hashes, answer->count * sizeof(uint64_t));
}

// Cancelled after so many ticks, or as soon as it is answered (TICKS_MAX). Returns the step that it was at, as a bit; 0: nothing was left of it.
static uint32_t cancel_after(world_t *world, const trial_t *trial, uint32_t ticks)
{
    static answer_t answer, beside[BESIDE_MAX];
    char salt[32] = "warm";
    if (trial->number % 2 == 0) {
        snprintf(salt, sizeof(salt), "%s-%u", trial->compressor, trial->number);
    }
    uint32_t others = trial->number % 8 == 7 ? BESIDE_MAX : 1;
    gpw_request_params_t params = params_of(trial->compressor, "warm");
    for (uint32_t i = 0; i < others; i++) {
        answer_submit(worker_of(world), &params, &beside[i]);
    }
    params.cache_salt = salt;
    answer_submit(worker_of(world), &params, &answer);
    uint32_t before =
        1 + (uint32_t)(random_next() % 80); // the loss, which is noticed somewhat later
    for (uint32_t t = 0; t < ticks && !(ticks == TICKS_MAX && answer.finished); t++) {
        world_run(world, TICK_US);
        if (trial->scenario == LOSES && t + before == ticks) {
            drop_all(world);
        }
    }
    uint32_t step = step_of(world, answer.id);
    gpw_worker_cancel(worker_of(world), answer.id);
    run_to_end(world, &answer);
    check_cancelled(&answer, trial->compressor);
    for (uint32_t i = 0; i < others; i++) {
        run_to_end(world, &beside[i]);
        expect_whole(&beside[i], trial->compressor);
    }
    expect_nothing_held(world);
    return step;
}

// Ticks of an answer with somebody beside it, to the end of its puts.
static uint32_t ticks_of(world_t *world, const char *compressor)
{
    static answer_t answers[2];
    uint32_t ticks = 0;
    for (int i = 0; i < 2; i++) {
        gpw_request_params_t params = params_of(compressor, i ? "warm" : "cold");
        answer_submit(worker_of(world), &params, &answers[i]);
    }
    for (; !gpw_worker_idle(worker_of(world)); ticks++) {
        world_run(world, TICK_US);
        assert_true(ticks < TICKS_MAX);
    }
    expect_nothing_held(world);
    return ticks;
}

// The steps at which one was cancelled.
static uint32_t cancel_at_moments(const char *compressor, scenario_t scenario)
{
    uint32_t steps = 0;
    world_t world;
    world_options_t options = options_of(scenario);
    const as_sim_faults_t slow = {.delay_us_min = 200, .delay_us_max = 600};
    world_open(&world, &options);
    world_run(&world, 2000000);
    as_sim_set_faults(world.sim, &slow); // what moves is found moving
    uint32_t ticks = ticks_of(&world, compressor);
    uint32_t count = ticks < moments() ? ticks : moments();
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from = i * ticks / count, width = (i + 1) * ticks / count - from;
        trial_t trial = {compressor, scenario, i};
        steps |= cancel_after(&world, &trial, from + (uint32_t)(random_next() % width));
    }
    trial_t last = {compressor, scenario, 2 * TICKS_MAX};
    steps |= cancel_after(&world, &last, TICKS_MAX);
    world_close(&world);
    return steps;
}

static void a_session_that_is_cancelled_after_any_tick_leaves_nothing_behind(void **state)
{
    (void)state;
    uint32_t steps = 0;
    int64_t pushed = gpw_metric_value(GPW_METRIC_PUSHED_BYTES_TOTAL);
    for (int s = 0; s < SCENARIOS; s++) {
        uint32_t seen = 0;
        for (EACH_TRIED_COMPRESSOR(c)) {
            seen |= cancel_at_moments(c->name, (scenario_t)s);
        }
        print_message("%s: steps %x\n", scenario_names[s], seen);
        steps |= seen;
    }
    assert_true(gpw_metric_value(GPW_METRIC_PUSHED_BYTES_TOTAL) > pushed);
    uint32_t common = 1u << GPW_STEP_PREFILL | 1u << GPW_STEP_DRAFT | 1u << GPW_STEP_VERIFY;
    assert_int_equal(steps & common, common);
    for (uint32_t step = 0; step < GPW_STEP_COUNT && moments() > 4; step++) {
        if (!(steps & 1u << step) && step != GPW_STEP_SEAL) { // SEAL may be over within a tick
            fail_msg("none was cancelled at the step %s", gpw_steps[step].name);
        }
    }
}

// ---- Begun again -------------------------------------------------------------------------------

// The stores lose everything while the device has no room for it.
static void a_session_that_begins_again_for_want_of_memory_says_the_same(void **state)
{
    (void)state;
    enum { SESSIONS = 3 };
    static answer_t answers[SESSIONS];
    int64_t restarts = gpw_metric_value(GPW_METRIC_RESTARTS_TOTAL);
    for (EACH_TRIED_COMPRESSOR(c)) {
        for (uint32_t run = 0; run < (moments() > 4 ? 8 : 2); run++) {
            world_t world;
            world_options_t options = options_of(SWAPS);
            options.cache_bytes_max = 460u << 10;
            options.seed = run + 1;
            world_open(&world, &options);
            world_run(&world, 2000000);
            for (uint32_t i = 0; i < SESSIONS; i++) {
                gpw_request_params_t params = params_of(c->name, "same");
                answer_submit(worker_of(&world), &params, &answers[i]);
            }
            for (uint32_t t = 0; t < 60; t++) {
                world_run(&world, 20 * WORLD_TICK_US);
                drop_all(&world);
                const gpw_device_t *device = &worker_of(&world)->engine->device;
                assert_true(device->used_bytes <= device->reserved_bytes);
                assert_true(device->reserved_bytes <= options.cache_bytes_max);
            }
            for (uint32_t i = 0; i < SESSIONS; i++) {
                run_to_end(&world, &answers[i]);
                expect_whole(&answers[i], c->name);
            }
            expect_nothing_held(&world);
            world_close(&world);
        }
    }
    print_message("%lld begun again\n",
                  (long long)gpw_metric_value(GPW_METRIC_RESTARTS_TOTAL) - restarts);
    assert_true(gpw_metric_value(GPW_METRIC_RESTARTS_TOTAL) > restarts);
}

// Where it is cancelled, its puts are.
static void what_a_request_computed_is_stored_when_its_caller_has_enough(void **state)
{
    (void)state;
    static answer_t first, second;
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        world_t world;
        const world_options_t options = options_of(SWAPS);
        world_open(&world, &options);
        world_run(&world, 2000000);
        gpw_request_params_t params = params_of("kivi4", "enough");
        answer_submit(worker_of(&world), &params, &first);
        while (first.count == 0) {
            world_run(&world, WORLD_TICK_US);
        }
        (cancelled ? gpw_worker_cancel : gpw_worker_stop)(worker_of(&world), first.id);
        run_to_end(&world, &first);
        assert_int_equal(first.status, cancelled ? AS_ERR_CANCELLED : AS_OK);
        assert_int_equal(first.finish, cancelled ? GPW_FINISH_CANCELLED : GPW_FINISH_STOP);
        assert_true(first.count < MAX_TOKENS);
        world_run(&world, 2500000);
        answer_submit(worker_of(&world), &params, &second);
        run_to_end(&world, &second);
        expect_whole(&second, "kivi4");
        const uint32_t stored = (PROMPT - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        assert_int_equal(second.usage.cached_tokens == stored, !cancelled);
        expect_nothing_held(&world);
        world_close(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_that_is_cancelled_after_any_tick_leaves_nothing_behind),
        cmocka_unit_test(a_session_that_begins_again_for_want_of_memory_says_the_same),
        cmocka_unit_test(what_a_request_computed_is_stored_when_its_caller_has_enough),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
