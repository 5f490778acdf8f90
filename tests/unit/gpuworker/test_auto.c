// SPDX-License-Identifier: Apache-2.0
// Compressor "auto" in the engine: the bits of full-cache decoding whatever is chosen, several methods
// tried, the same choices again, what fits, and what sessions on one chain hold.
#include "common/log.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, PROMPTS = 6, PROMPT = 150, MORE = 40, SESSIONS = 4, WAVES = 24 };

static gpw_model_t *model;
static int32_t prompts[PROMPTS][PROMPT];
static answer_t expected[PROMPTS];

// `plain`: whether plain decoding is a candidate, too. Where it is, little else is worth a trial: there are
// no stores, and nothing to swap.
static gpw_worker_options_t options_of(bool plain)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.compressor = GPW_COMPRESSOR_AUTO;
    options.swap_full_cache = !plain;
    options.sessions_max = SESSIONS;
    options.threads = 1;
    options.tick_us = 100;
    return options;
}

static gpw_request_params_t params_of(uint32_t prompt)
{
    gpw_request_params_t params = request_params(prompts[prompt], PROMPT, MORE);
    params.compressor = NULL; // the worker's default
    return params;
}

static const gpw_chooser_t *chooser_of(const rig_t *rig)
{
    return &rig->worker->engine->candidates.chooser;
}

typedef struct seen {
    const char *name[WAVES * SESSIONS];
    uint32_t count, others; // others: that were not the most frequent name's
} seen_t;

// Waves of sessions, each on a text of its own.
static seen_t run_waves(rig_t *rig)
{
    static answer_t answers[SESSIONS];
    seen_t seen = {0};
    for (uint32_t w = 0; w < WAVES; w++) {
        for (uint32_t i = 0; i < SESSIONS; i++) {
            gpw_request_params_t params = params_of((w + i) % PROMPTS);
            answer_submit(rig->worker, &params, &answers[i]);
        }
        rig_run(rig);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            const gpw_usage_t *usage = &answers[i].usage;
            assert_int_equal(answers[i].status, AS_OK);
            assert_non_null(usage->compressor);
            assert_true(strncmp(usage->chosen, usage->compressor, strlen(usage->compressor)) == 0);
            answer_compare(&answers[i], &expected[(w + i) % PROMPTS], usage->chosen);
            seen.name[seen.count++] = usage->compressor;
        }
    }
    return seen;
}

static uint32_t different(const seen_t *seen)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < seen->count; i++) {
        uint32_t before = 0;
        while (before < i && strcmp(seen->name[before], seen->name[i]) != 0) {
            before++;
        }
        count += before == i;
    }
    return count;
}

static void answers_are_those_of_the_full_cache_and_several_methods_are_tried(void **state)
{
    (void)state;
    rig_t rig = rig_open(options_of(false));
    uint32_t count = chooser_of(&rig)->count;
    int64_t chosen = 0, tried = 0;
    for (uint32_t m = 0; m < count; m++) {
        chosen -= gpw_metric_method_value(GPW_METHOD_CHOSEN, m);
        tried -= gpw_metric_method_value(GPW_METHOD_TRIED, m);
    }
    seen_t seen = run_waves(&rig);
    assert_true(different(&seen) >= 4);
    assert_string_equal(seen.name[0], gpw_compressors()->name);
    int64_t expects = 0;
    for (uint32_t m = 0; m < count; m++) {
        chosen += gpw_metric_method_value(GPW_METHOD_CHOSEN, m);
        tried += gpw_metric_method_value(GPW_METHOD_TRIED, m);
        expects += gpw_metric_method_value(GPW_METHOD_EXPECTED, m) > 0;
        assert_int_equal(chooser_of(&rig)->method[m].trials, 0);
    }
    assert_int_equal(chosen, WAVES * SESSIONS);
    assert_true(tried > 0 && tried <= WAVES * SESSIONS / 4);
    assert_true(expects >= 4);
    rig_close(&rig);

    rig = rig_open(options_of(false)); // and again
    seen_t again = run_waves(&rig);
    for (uint32_t i = 0; i < seen.count; i++) {
        assert_string_equal(again.name[i], seen.name[i]);
    }
    rig_close(&rig);
}

// Sessions whose request names a compressor teach as well.
static void what_others_drafted_on_is_known(void **state)
{
    (void)state;
    static answer_t answers[2];
    rig_t rig = rig_open(options_of(false));
    gpw_request_params_t params = params_of(0);
    params.compressor = "streaming";
    answer_submit(rig.worker, &params, &answers[0]);
    rig_run(&rig);
    assert_string_equal(answers[0].usage.compressor, "streaming");
    assert_string_equal(answers[0].usage.chosen, "");
    params.compressor = GPW_COMPRESSOR_AUTO;
    answer_submit(rig.worker, &params, &answers[1]);
    rig_run(&rig);
    assert_string_equal(answers[1].usage.compressor, "streaming");
    assert_non_null(strstr(answers[1].usage.chosen, "tokens/s"));
    answer_compare(&answers[1], &expected[0], "streaming");
    rig_close(&rig);
}

static void choices_of_one_prompt_take_what_the_first_has(void **state)
{
    (void)state;
    static answer_t answers[SESSIONS];
    rig_t rig = rig_open(options_of(false));
    uint32_t followed = 0;
    run_waves(&rig); // so that there is something to try
    for (uint32_t round = 0; round < PROMPTS; round++) {
        for (uint32_t i = 0; i < SESSIONS; i++) {
            gpw_request_params_t params = params_of(round);
            params.choose =
                (gpw_choose_params_t){.temperature = 1.2f, .top_p = 1, .seed = round * 10 + i};
            answer_submit(rig.worker, &params, &answers[i]);
        }
        rig_run(&rig);
        const gpw_compressor_t *first = gpw_compressor_find(answers[0].usage.compressor);
        bool shared = first && first->slot && first->flags & GPW_COMPRESSOR_QUERY_FREE;
        for (uint32_t i = 1; i < SESSIONS && shared; i++) {
            assert_string_equal(answers[i].usage.compressor, first->name);
            assert_non_null(strstr(answers[i].usage.chosen, "on the same prompt"));
            followed++;
        }
    }
    assert_true(followed > 0);
    rig_close(&rig);
}

static as_status_t submit(gpw_worker_t *worker, const gpw_request_params_t *params, char error[256])
{
    static answer_t answer;
    uint64_t id;
    gpw_request_events_t events = {&answer, answer_on_tokens, answer_on_finish, NULL};
    answer = (answer_t){0};
    return gpw_worker_submit(worker, params, &events, error, 256, &id);
}

static void unverified_answers_need_a_name(void **state)
{
    (void)state;
    char error[256] = "";
    rig_t rig = rig_open(options_of(false));
    gpw_request_params_t params = params_of(0);
    params.verify = GPW_VERIFY_OFF;
    assert_int_equal(submit(rig.worker, &params, error), AS_ERR_INVALID);
    assert_non_null(strstr(error, "name one, such as \"kivi4\""));
    params.compressor = GPW_COMPRESSOR_AUTO;
    assert_int_equal(submit(rig.worker, &params, error), AS_ERR_INVALID);
    params.compressor = "kivi4";
    assert_int_equal(submit(rig.worker, &params, error), AS_OK);
    rig_run(&rig);
    rig_close(&rig);
}

// As the memory grows: nothing fits, the smallest alone does, more do.
static void what_does_not_fit_is_not_chosen(void **state)
{
    (void)state;
    uint64_t bytes[GPW_METHODS_MAX], least = UINT64_MAX, most = 0;
    uint32_t count = 0;
    rig_t rig = rig_open(options_of(false));
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++, count++) {
        static answer_t answer;
        gpw_request_params_t params = params_of(0);
        params.compressor = c->name;
        answer_submit(rig.worker, &params, &answer);
        while (!rig.worker->engine->first) {
            as_loop_run_once(rig.loop, true);
        }
        bytes[count] = gpw_request_bytes_max(rig.worker->engine->first);
        least = bytes[count] < least ? bytes[count] : least;
        most = bytes[count] > most ? bytes[count] : most;
        rig_run(&rig);
    }
    rig_close(&rig);
    for (uint32_t part = 0; part <= 4; part++) {
        uint64_t limit = least + (most - least) * part / 4;
        gpw_worker_options_t options = options_of(false);
        options.cache_bytes_max = limit;
        rig = rig_open(options);
        for (uint32_t i = 0; i < 30; i++) {
            static answer_t answer;
            gpw_request_params_t params = params_of(i % PROMPTS);
            answer_submit(rig.worker, &params, &answer);
            rig_run(&rig);
            answer_compare(&answer, &expected[i % PROMPTS], answer.usage.chosen);
            const gpw_compressor_t *c = gpw_compressor_find(answer.usage.compressor);
            assert_true(bytes[c - gpw_compressors()] <= limit);
        }
        rig_close(&rig);
    }
    char error[256] = "";
    gpw_worker_options_t options = options_of(false);
    options.cache_bytes_max = least - 1;
    rig = rig_open(options);
    gpw_request_params_t params = params_of(0);
    assert_int_equal(submit(rig.worker, &params, error), AS_ERR_LIMIT);
    assert_non_null(strstr(error, "--device-memory"));
    rig_close(&rig);
}

static uint32_t plain_sessions(uint64_t bytes)
{
    gpw_worker_options_t options = options_of(true);
    options.cache_bytes_max = bytes;
    rig_t rig = rig_open(options);
    seen_t seen = run_waves(&rig);
    uint32_t plain = 0;
    for (uint32_t i = 0; i < seen.count; i++) {
        plain += strcmp(seen.name[i], "none") == 0;
    }
    rig_close(&rig);
    return plain;
}

static void plain_decoding_is_for_memory_that_holds_every_full_cache(void **state)
{
    (void)state;
    as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS);
    uint64_t full =
        (uint64_t)(PROMPT + MORE + BLOCK_TOKENS - 1) / BLOCK_TOKENS * as_block_bytes(&shape);
    assert_true(plain_sessions(full * SESSIONS) > 0);
    assert_int_equal(plain_sessions(full * SESSIONS - 1), 0);
}

static void a_failed_allocation_leaves_no_trial_behind(void **state)
{
    (void)state;
    static answer_t answers[SESSIONS];
    as_log_set_level(AS_LOG_ERROR);
    rig_t rig = rig_open(options_of(false));
    run_waves(&rig);
    for (uint64_t n = 1; n < 160; n += 5) {
        for (uint32_t i = 0; i < SESSIONS; i++) {
            gpw_request_params_t params = params_of(i);
            answer_submit(rig.worker, &params, &answers[i]);
        }
        as_mem_fail_nth(n);
        rig_run(&rig);
        as_mem_fail_nth(0);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            if (answers[i].status == AS_OK) {
                answer_compare(&answers[i], &expected[i], answers[i].usage.chosen);
            } else {
                assert_int_equal(answers[i].status, AS_ERR_NO_MEMORY);
            }
        }
    }
    for (uint32_t m = 0; m < chooser_of(&rig)->count; m++) {
        assert_int_equal(chooser_of(&rig)->method[m].trials, 0);
    }
    rig_close(&rig);
    as_log_set_level(AS_LOG_INFO);
}

static int load(void **state)
{
    (void)state;
    model = tiny_load(2);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        prompt_make(prompts[p], PROMPT, 0, 70 + p);
        gpw_request_params_t params = params_of(p);
        params.compressor = "none";
        params.horizon_set = true; // plain decoding
        answer_alone(options_of(true), &params, &expected[p]);
    }
    return 0;
}

static int unload(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_full_cache_and_several_methods_are_tried),
        cmocka_unit_test(what_others_drafted_on_is_known),
        cmocka_unit_test(choices_of_one_prompt_take_what_the_first_has),
        cmocka_unit_test(unverified_answers_need_a_name),
        cmocka_unit_test(what_does_not_fit_is_not_chosen),
        cmocka_unit_test(plain_decoding_is_for_memory_that_holds_every_full_cache),
        cmocka_unit_test(a_failed_allocation_leaves_no_trial_behind),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
