// SPDX-License-Identifier: Apache-2.0
// What sessions reserve of a worker's memory beside stores.
#include "answers.h"

enum { BLOCK_TOKENS = 16, PROMPT = 300, MAX_TOKENS = 24 };

static answer_t answers[2];

static void run_until_told(world_t *world, const answer_t *answer)
{
    uint64_t until_us = as_loop_now_us(world->loop) + 60000000;
    while (answer->count == 0 && as_loop_now_us(world->loop) < until_us) {
        as_loop_run_once(world->loop, true);
    }
    assert_true(answer->count > 0);
}

static world_options_t usual(const gpw_model_t *model)
{
    return (world_options_t){.model = model,
                             .seed = 5,
                             .stores = 1,
                             .workers = 1,
                             .block_tokens = BLOCK_TOKENS,
                             .cache_bytes_max = 16u << 20,
                             .ram_bytes = 8u << 20};
}

static void run_until_idle(world_t *world)
{
    uint64_t until_us = as_loop_now_us(world->loop) + 60000000;
    while (!gpw_worker_idle(world->workers[0].worker) && as_loop_now_us(world->loop) < until_us) {
        as_loop_run_once(world->loop, true);
    }
    assert_true(gpw_worker_idle(world->workers[0].worker));
}

// Reserved when the first token of the prompt is there.
static uint64_t reserved_after_prefill(world_t *world, uint32_t number, const int32_t *prompt)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MAX_TOKENS);
    params.compressor = "kivi4";
    answer_submit(world->workers[0].worker, &params, &answers[number]);
    run_until_told(world, &answers[number]);
    return world->workers[0].worker->engine->device.reserved_bytes;
}

static void a_prefix_that_came_from_stores_takes_no_memory_for_its_full_cache(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    gpw_model_t *model = tiny_load(3);
    int32_t prompt[PROMPT];
    prompt_make(prompt, PROMPT, 0, 5);
    world_t world;
    world_options_t options = usual(model);
    world_open(&world, &options);
    world_run(&world, 2000000);
    uint64_t computed = reserved_after_prefill(&world, 0, prompt);
    run_until_idle(&world);
    uint64_t fetched = reserved_after_prefill(&world, 1, prompt);
    run_until_idle(&world);
    const gpw_engine_t *engine = world.workers[0].worker->engine;
    uint64_t prefix =
        answers[1].usage.cached_tokens / BLOCK_TOKENS * as_block_bytes(&engine->shape);
    assert_true(answers[0].usage.cached_tokens == 0 && prefix > 0);
    assert_true(fetched + prefix <= computed);
    assert_int_equal(engine->device.reserved_bytes, 0);
    world_close(&world);
    gpw_model_free(model);
}

// Sessions keep what stores have while there is room; for one that waits they let go, and swap from then on.
static void the_full_cache_stays_until_somebody_waits_for_the_memory(void **state)
{
    (void)state;
    gpw_model_t *model = tiny_load(3);
    int32_t prompt[PROMPT];
    static answer_t expected;
    prompt_make(prompt, PROMPT, 0, 5);
    gpw_request_params_t params = request_params(prompt, PROMPT, 4 * MAX_TOKENS);
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &expected);
    params.compressor = "kivi4";
    params.horizon = 4;
    params.horizon_set = true;
    for (int narrow = 0; narrow < 2; narrow++) {
        world_t world;
        world_options_t options = usual(model);
        options.keep_while_room = true;
        options.cache_bytes_max = narrow ? 520u << 10 : options.cache_bytes_max;
        world_open(&world, &options);
        world_run(&world, 2000000);
        for (uint32_t round = 0; round < 2; round++) { // in the second the prefix is stored
            for (uint32_t i = 0; i < 2; i++) {
                answer_submit(world.workers[0].worker, &params, &answers[i]);
            }
            run_until_idle(&world);
            for (uint32_t i = 0; i < 2; i++) {
                assert_int_equal(answers[i].status, AS_OK);
                answer_compare(&answers[i], &expected, narrow ? "narrow" : "wide");
                assert_true(round == 0 || answers[i].usage.cached_tokens > 0);
                assert_true(narrow || answers[i].usage.swapped_bytes == 0);
            }
        }
        uint64_t swapped = answers[0].usage.swapped_bytes + answers[1].usage.swapped_bytes;
        assert_true(!narrow || swapped > 0);
        assert_int_equal(world.workers[0].worker->engine->device.reserved_bytes, 0);
        world_close(&world);
    }
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_that_came_from_stores_takes_no_memory_for_its_full_cache),
        cmocka_unit_test(the_full_cache_stays_until_somebody_waits_for_the_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
