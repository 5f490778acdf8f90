// SPDX-License-Identifier: Apache-2.0
// Requests that share steps: none sees the others in its answer, none waits for long, and each may
// come and go at any step.
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, KINDS = 20, MIXES = 12, MIXED = 14, SEED = 4811 };

static gpw_model_t *model;

static bool slow(void)
{
    return getenv("ASSAY_TEST_SANITIZED") != NULL;
}

// ---- Any mix -----------------------------------------------------------------------------------

typedef struct kind {
    int32_t tokens[400];
    gpw_request_params_t params;
    answer_t alone;
    char name[96];
} kind_t;

static kind_t kinds[KINDS];

static uint64_t random_next(uint64_t *random_p)
{
    *random_p += 0x9e3779b97f4a7c15ull;
    return tiny_mix(*random_p) >> 20;
}

static gpw_worker_options_t options_for(uint32_t sessions, uint32_t batch_rows, uint32_t threads)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.sessions_max = sessions;
    options.batch_rows = batch_rows;
    options.threads = threads;
    options.tick_us = 100; // a step an event
    return options;
}

// Requests of every kind, each answered with nobody beside it.
static void make_kinds(void)
{
    const char *const *compressors = gpw_worker_compressors(0);
    uint32_t count = 0;
    while (compressors[count]) {
        count++;
    }
    rig_t rig = rig_open(options_for(1, GPW_FORWARD_STEP_ROWS, 1));
    for (uint32_t i = 0; i < KINDS; i++) {
        kind_t *kind = &kinds[i];
        uint32_t tokens = i % 4 == 3 ? 200 + 9 * i : 3 + 7 * i; // prompts, and short ones
        prompt_make(kind->tokens, tokens, 0, 900 + i);
        kind->params = request_params(kind->tokens, tokens, 9 + 13 * i % 40);
        kind->params.compressor = compressors[i % count];
        kind->params.horizon = 1 + 5 * i % 17;
        kind->params.horizon_set = true;
        bool is_auto = strcmp(kind->params.compressor, GPW_COMPRESSOR_AUTO) == 0;
        kind->params.verify = i % 5 == 4 && !is_auto ? GPW_VERIFY_OFF : GPW_VERIFY_FULL;
        if (i % 2) {
            kind->params.choose = (gpw_choose_params_t){
                .temperature = 0.9f, .top_p = 0.95f, .top_k = 40, .seed = 77 + i};
        }
        snprintf(kind->name, sizeof(kind->name), "kind %u: %s, %u tokens, horizon %u%s%s", i,
                 kind->params.compressor, tokens, kind->params.horizon,
                 kind->params.verify == GPW_VERIFY_OFF ? ", not verified" : "",
                 i % 2 ? ", sampled" : "");
        answer_submit(rig.worker, &kind->params, &kind->alone);
        rig_run(&rig);
        assert_int_equal(kind->alone.status, AS_OK);
    }
    rig_close(&rig);
}

typedef struct mixed {
    const kind_t *kind;
    answer_t answer;
    bool cancelled;
} mixed_t;

static void check_mixed(const mixed_t *mixed)
{
    const answer_t *answer = &mixed->answer, *alone = &mixed->kind->alone;
    assert_true(answer->finished);
    if (answer->status == AS_OK) {
        answer_compare(answer, alone, mixed->kind->name);
        assert_int_equal(answer->usage.drafted_tokens, alone->usage.drafted_tokens);
        assert_int_equal(answer->usage.accepted_tokens, alone->usage.accepted_tokens);
        return;
    }
    assert_true(mixed->cancelled && answer->status == AS_ERR_CANCELLED);
    assert_true(answer->count <= alone->count);
    assert_memory_equal(answer->tokens, alone->tokens, answer->count * sizeof(int32_t));
    assert_memory_equal(answer->hashes, alone->hashes, answer->count * sizeof(uint64_t));
}

static void run_mix(uint64_t seed)
{
    static const uint32_t rows[] = {1, 3, 16, 70, GPW_FORWARD_STEP_ROWS};
    static mixed_t mixed[MIXED];
    uint64_t random = seed;
    uint32_t sessions = 2 + (uint32_t)(random_next(&random) % 11);
    uint32_t threads = 1 + (uint32_t)(random_next(&random) % 3);
    rig_t rig = rig_open(options_for(sessions, rows[random_next(&random) % 5], threads));
    memset(mixed, 0, sizeof(mixed));
    uint32_t started = 0;
    while (started < MIXED || !gpw_worker_idle(rig.worker)) {
        uint64_t r = random_next(&random);
        if (started < MIXED && r % 8 == 0) {
            mixed[started].kind = &kinds[(r >> 8) % KINDS];
            answer_submit(rig.worker, &mixed[started].kind->params, &mixed[started].answer);
            started++;
        }
        if (started > 0 && (r >> 16) % 256 == 0) {
            mixed_t *one = &mixed[(r >> 24) % started];
            one->cancelled = true;
            gpw_worker_cancel(rig.worker, one->answer.id);
        }
        as_loop_run_once(rig.loop, true);
    }
    for (uint32_t i = 0; i < MIXED; i++) {
        check_mixed(&mixed[i]);
    }
    assert_int_equal(rig.worker->engine->device.reserved_bytes, 0);
    rig_close(&rig);
}

static void an_answer_is_the_same_whatever_it_shares_its_steps_with(void **state)
{
    (void)state;
    print_message("seeds from %d\n", SEED);
    for (uint64_t seed = SEED; seed < SEED + (slow() ? 2 : MIXES); seed++) {
        run_mix(seed);
    }
}

// ---- In step -----------------------------------------------------------------------------------

static int64_t value(gpw_metric_t metric)
{
    return gpw_metric_value(metric);
}

static void fill(rig_t *rig, answer_t *answers, uint32_t count, const gpw_request_params_t *params)
{
    for (uint32_t i = 0; i < count; i++) {
        answer_submit(rig->worker, params, &answers[i]);
        for (uint32_t events = 0; events < 7 * i; events++) { // nobody begins with another
            as_loop_run_once(rig->loop, true);
        }
    }
}

static void run_until_all_answer(rig_t *rig, const answer_t *answers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        while (answers[i].count == 0) {
            assert_true(as_loop_run_once(rig->loop, true));
        }
    }
}

static double mean_passes(const char *compressor, uint32_t horizon)
{
    enum { COUNT = 8 };
    static answer_t answers[COUNT];
    rig_t rig = rig_open(options_for(COUNT, GPW_FORWARD_STEP_ROWS, 1));
    gpw_request_params_t params = request_params(kinds[3].tokens, 40, 200);
    params.compressor = compressor;
    params.horizon = horizon;
    params.horizon_set = true;
    params.verify = horizon > GPW_HORIZON_MAX / 2 ? GPW_VERIFY_OFF : GPW_VERIFY_FULL;
    fill(&rig, answers, COUNT, &params);
    run_until_all_answer(&rig, answers, COUNT);
    int64_t layers = value(GPW_METRIC_BATCH_LAYERS_TOTAL);
    int64_t passes = value(GPW_METRIC_BATCH_PASSES_TOTAL);
    while (answers[0].count < 100) {
        assert_true(as_loop_run_once(rig.loop, true));
    }
    double mean = (double)(value(GPW_METRIC_BATCH_PASSES_TOTAL) - passes) /
                  (double)(value(GPW_METRIC_BATCH_LAYERS_TOTAL) - layers);
    rig_run(&rig);
    rig_close(&rig);
    return mean;
}

static void sessions_fall_into_step(void **state)
{
    (void)state;
    double plain = mean_passes("none", 0), lossy = mean_passes("kivi2", GPW_HORIZON_MAX),
           verified = mean_passes("kivi4", 8);
    print_message("of 8: plain %.2f, not verified %.2f, verified %.2f\n", plain, lossy, verified);
    assert_true(plain > 7.9);
    assert_true(lossy > 7.5); // now and then one seals a block
    assert_true(verified > 4);
}

// ---- Fairness ----------------------------------------------------------------------------------

// A long prompt beside a session that decodes: each gets on at half its speed.
static void a_long_prompt_and_a_session_that_decodes_share_the_time(void **state)
{
    (void)state;
    enum { ROWS = 16, PROMPT = 400 };
    static answer_t decoding, prompt;
    rig_t rig = rig_open(options_for(4, ROWS, 1));
    gpw_request_params_t params = request_params(kinds[3].tokens, 40, 400);
    params.prompt_lookup_set = true; // a token a step
    answer_submit(rig.worker, &params, &decoding);
    run_until_all_answer(&rig, &decoding, 1);
    params = request_params(kinds[19].tokens, PROMPT - 30, 20);
    uint32_t before = decoding.count;
    answer_submit(rig.worker, &params, &prompt);
    run_until_all_answer(&rig, &prompt, 1);
    uint32_t meanwhile = decoding.count - before;
    // As many steps as the prompt had: a step a layer, and one for the logits.
    uint32_t steps = (PROMPT - 30 + ROWS - 1) / ROWS * model->layers;
    print_message("%u tokens in %u steps of the prompt\n", meanwhile, steps);
    assert_true(meanwhile >= steps / (model->layers + 1) - 2);
    assert_true(meanwhile <= steps / (model->layers + 1) + 2);
    rig_run(&rig);
    rig_close(&rig);
}

// More sessions than a step has rows: none falls back.
static void nobody_falls_back_when_a_step_is_too_small_for_all(void **state)
{
    (void)state;
    enum { COUNT = 7 };
    static answer_t answers[COUNT];
    rig_t rig = rig_open(options_for(COUNT, 2, 1));
    gpw_request_params_t params = request_params(kinds[0].tokens, 3, 150);
    params.prompt_lookup_set = true; // a token a step
    fill(&rig, answers, COUNT, &params);
    run_until_all_answer(&rig, answers, COUNT);
    uint32_t at_first[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        at_first[i] = answers[i].count;
    }
    while (answers[0].count < at_first[0] + 40) {
        assert_true(as_loop_run_once(rig.loop, true));
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_in_range(answers[i].count - at_first[i], 38, 42);
    }
    rig_run(&rig);
    rig_close(&rig);
}

// ---- Cancelled at any step -------------------------------------------------------------------

static void a_request_that_is_cancelled_in_a_step_leaves_the_others_alone(void **state)
{
    (void)state;
    enum { COUNT = 4 };
    uint32_t computing = 0;
    bool completed = false;
    for (uint32_t after = 0; !completed; after += slow() ? 23 : 7) {
        static answer_t answers[COUNT];
        rig_t rig = rig_open(options_for(COUNT, 32, 2));
        for (uint32_t i = 0; i < COUNT; i++) {
            answer_submit(rig.worker, &kinds[4 + i].params, &answers[i]);
        }
        for (uint32_t i = 0; i < after; i++) {
            as_loop_run_once(rig.loop, true);
        }
        const gpw_request_t *second = rig.worker->engine->first;
        while (second && second->id != answers[1].id) {
            second = second->next;
        }
        computing += second && second->computing;
        completed = answers[1].finished || (second && second->finished);
        gpw_worker_cancel(rig.worker, answers[1].id);
        rig_run(&rig);
        assert_int_equal(answers[1].status, completed ? AS_OK : AS_ERR_CANCELLED);
        for (uint32_t i = 0; i < COUNT; i++) {
            if (i != 1) {
                answer_compare(&answers[i], &kinds[4 + i].alone, kinds[4 + i].name);
            }
        }
        assert_int_equal(rig.worker->engine->sessions, 0);
        assert_int_equal(rig.worker->engine->device.reserved_bytes, 0);
        assert_false(gpw_batch_busy(rig.worker->engine));
        rig_close(&rig);
    }
    assert_true(computing > 5);
}

static int load(void **state)
{
    (void)state;
    model = tiny_load(3);
    make_kinds();
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
        cmocka_unit_test(an_answer_is_the_same_whatever_it_shares_its_steps_with),
        cmocka_unit_test(sessions_fall_into_step),
        cmocka_unit_test(a_long_prompt_and_a_session_that_decodes_share_the_time),
        cmocka_unit_test(nobody_falls_back_when_a_step_is_too_small_for_all),
        cmocka_unit_test(a_request_that_is_cancelled_in_a_step_leaves_the_others_alone),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
