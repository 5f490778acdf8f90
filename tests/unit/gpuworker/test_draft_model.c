// SPDX-License-Identifier: Apache-2.0
// A draft model in the engine: what it proposes saves steps where it is right, and leaves no trace anywhere.
#include "common/log.h"
#include "gpuworker/metrics.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { PROMPT = 230, MORE = 120, BLOCK_TOKENS = 16, COMPRESSORS_MAX = 32, TOKENS = 4 };

static gpw_model_t *model, *other; // a smaller one, which knows nothing of the first
static int32_t prompt[PROMPT];

static gpw_worker_options_t worker_options(const gpw_model_t *draft, uint32_t window)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.context_max = 512;
    options.sessions_max = COMPRESSORS_MAX;
    options.prompt_lookup = 0;
    options.draft_model = draft;
    options.draft_tokens = TOKENS;
    options.draft_window = window;
    return options;
}

// A worker whose small model costs next to nothing, as far as it knows: virtual time tells it nothing.
static rig_t open_cheap(const gpw_model_t *draft, uint32_t window)
{
    rig_t rig = rig_open(worker_options(draft, window));
    rig.worker->engine->draft_model.step_us = 1;
    rig.worker->engine->draft_model.row_us = 1000;
    return rig;
}

static gpw_request_t *find(const rig_t *rig, uint64_t id)
{
    for (uint32_t slot = 0; slot < rig->worker->active_max; slot++) {
        gpw_request_t *request = rig->worker->active[slot];
        if (request && request->id == id) {
            return request;
        }
    }
    return NULL;
}

// One that believes its draft model for a while, right or wrong.
static gpw_request_t *submit(const rig_t *rig, const char *compressor, uint32_t horizon,
                             answer_t *answer)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.compressor = compressor;
    params.horizon = horizon;
    params.horizon_set = true;
    answer_submit(rig->worker, &params, answer);
    gpw_request_t *request = find(rig, answer->id);
    request->draft_window.acceptance = 1; // the engine has not seen it yet
    return request;
}

static void expect_nothing_left(const rig_t *rig)
{
    const gpw_engine_t *engine = rig->worker->engine;
    assert_null(engine->first);
    assert_int_equal(engine->device.used_bytes, 0);
    assert_int_equal(engine->device.reserved_bytes, 0);
    assert_false(gpw_draft_model_busy(engine));
}

static void the_model_itself_has_every_proposal_accepted(void **state)
{
    (void)state;
    static answer_t plain, direct, drafted;
    gpw_compressor_t no_op = *gpw_compressor_find("snapkv");
    no_op.name = "no-op";
    no_op.params.keep_percent = 100;
    rig_t rig = open_cheap(model, 512);
    submit(&rig, "none", 0, &plain);
    submit(&rig, "none", 16, &direct);
    submit(&rig, "kivi4", 16, &drafted)->compressor = &no_op;
    rig_run(&rig);
    assert_int_equal(plain.usage.model_proposed_tokens, 0);
    assert_int_equal(plain.usage.drafted_tokens, 0);
    answer_compare(&direct, &plain, "none");
    answer_compare(&drafted, &plain, "no-op");
    const answer_t *answers[] = {&direct, &drafted};
    for (int i = 0; i < 2; i++) {
        const gpw_usage_t *usage = &answers[i]->usage;
        assert_true(usage->model_proposed_tokens > MORE / 2);
        assert_int_equal(usage->model_proposals_accepted, usage->model_proposed_tokens);
        assert_int_equal(usage->accepted_tokens, usage->drafted_tokens);
        assert_int_equal(usage->drafted_tokens + usage->verifications, MORE - 1);
        assert_int_equal(usage->proposed_tokens, 0); // prompt lookup's
    }
    assert_int_equal(direct.usage.drafted_tokens, direct.usage.model_proposed_tokens);
    expect_nothing_left(&rig);
    rig_close(&rig);
}

// The same noise at a position makes both models choose alike.
static void sampling_accepts_what_both_models_choose(void **state)
{
    (void)state;
    static answer_t plain, sampled;
    rig_t rig = open_cheap(model, 512);
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.choose = (gpw_choose_params_t){.temperature = 0.9f, .top_p = 0.9f, .seed = 11};
    params.horizon_set = true;
    answer_submit(rig.worker, &params, &plain);
    params.horizon = 16;
    answer_submit(rig.worker, &params, &sampled);
    rig_run(&rig);
    answer_compare(&sampled, &plain, "sampled");
    assert_true(sampled.usage.model_proposed_tokens > MORE / 2);
    assert_int_equal(sampled.usage.model_proposals_accepted, sampled.usage.model_proposed_tokens);
    rig_close(&rig);
}

// The drafts are the very same, token for token: with a fixed horizon equal drafts mean equal verifications.
static void a_model_that_knows_nothing_changes_no_draft(void **state)
{
    (void)state;
    static answer_t plain, without[COMPRESSORS_MAX], with[COMPRESSORS_MAX];
    const char *names[COMPRESSORS_MAX];
    uint32_t proposed = 0, right = 0, count = 0;
    for (EACH_TRIED_COMPRESSOR(c)) {
        assert_true(count < COMPRESSORS_MAX);
        names[count++] = c->name;
    }
    rig_t bare = rig_open(worker_options(NULL, 512)), rig = open_cheap(other, 512);
    submit(&bare, "none", 0, &plain);
    for (uint32_t i = 0; i < count; i++) {
        submit(&bare, names[i], 12, &without[i]);
        submit(&rig, names[i], 12, &with[i]);
    }
    rig_run(&bare);
    rig_run(&rig);
    for (uint32_t i = 0; i < count; i++) {
        const gpw_usage_t *usage = &with[i].usage, *before = &without[i].usage;
        answer_compare(&without[i], &plain, names[i]);
        answer_compare(&with[i], &plain, names[i]);
        assert_int_equal(usage->drafted_tokens, before->drafted_tokens);
        assert_int_equal(usage->accepted_tokens, before->accepted_tokens);
        assert_int_equal(usage->verifications, before->verifications);
        assert_int_equal(before->model_proposed_tokens, 0);
        proposed += usage->model_proposed_tokens;
        right += usage->model_proposals_accepted;
    }
    printf("%u of %u proposals were right\n", right, proposed);
    assert_true(proposed > 20 && right * 4 < proposed);
    expect_nothing_left(&rig);
    rig_close(&rig);
    rig_close(&bare);
}

// What a request that never stops asking did for its first tokens, with windows as they are or computed anew
// now and then but for their first token.
static gpw_usage_t run_asking(uint32_t window, bool anew, int64_t *rows_p)
{
    static answer_t answer;
    rig_t rig = open_cheap(model, window);
    int64_t before = gpw_metric_value(GPW_METRIC_MODEL_ROWS_TOTAL);
    gpw_request_params_t params = request_params(prompt, PROMPT, 2 * MORE);
    params.compressor = "kivi2";
    params.horizon = 12;
    params.horizon_set = true;
    answer_submit(rig.worker, &params, &answer);
    gpw_request_t *request = find(&rig, answer.id);
    for (uint32_t turn = 0; request->token_count < PROMPT + MORE / 2; turn++) {
        if (!gpw_draft_model_is_asked(request)) {
            request->draft_window.acceptance = 1;
            request->draft_window.count = anew && turn % 4 == 0 && request->draft_window.count > 0
                                              ? 1
                                              : request->draft_window.count;
        }
        assert_true(as_loop_run_once(rig.loop, true));
    }
    gpw_usage_t usage = request->usage;
    *rows_p = gpw_metric_value(GPW_METRIC_MODEL_ROWS_TOTAL) - before;
    gpw_worker_cancel(rig.worker, answer.id);
    rig_run(&rig);
    expect_nothing_left(&rig);
    rig_close(&rig);
    return usage;
}

// Drafts on a lossy cache are often rejected, and a small window moves on several times; what is proposed is
// what a window computed anew says.
static void a_window_rolls_back_to_what_was_accepted(void **state)
{
    (void)state;
    for (uint32_t window = 128; window <= 512; window *= 4) {
        int64_t rows, rows_anew;
        gpw_usage_t kept = run_asking(window, false, &rows);
        gpw_usage_t anew = run_asking(window, true, &rows_anew);
        printf("window %u: %u of %u proposals were right, %u of %u drafts; %lld rows, anew %lld\n",
               window, kept.model_proposals_accepted, kept.model_proposed_tokens,
               kept.accepted_tokens, kept.drafted_tokens, (long long)rows, (long long)rows_anew);
        assert_true(kept.model_proposals_accepted > 10);
        assert_true(kept.model_proposals_accepted < kept.model_proposed_tokens);
        assert_true(kept.accepted_tokens < kept.drafted_tokens);
        assert_int_equal(kept.model_proposed_tokens, anew.model_proposed_tokens);
        assert_int_equal(kept.model_proposals_accepted, anew.model_proposals_accepted);
        assert_true(rows * 3 < rows_anew);
    }
}

// Prompt lookup goes first: the model is asked only where that has nothing.
static void prompt_lookup_goes_first(void **state)
{
    (void)state;
    static answer_t plain, both;
    gpw_worker_options_t options = worker_options(model, 512);
    options.prompt_lookup = 8;
    rig_t rig = rig_open(options);
    rig.worker->engine->draft_model.step_us = 1;
    rig.worker->engine->draft_model.row_us = 1000;
    submit(&rig, "none", 0, &plain);
    gpw_request_t *request = submit(&rig, "kivi4", 16, &both);
    for (uint32_t l = 0; l < GPW_LOOKUP_LENGTHS; l++) {
        request->lookup.acceptance[l] = 1;
    }
    rig_run(&rig);
    answer_compare(&both, &plain, "both");
    assert_true(both.usage.proposed_tokens > 0 && both.usage.model_proposed_tokens > 0);
    rig_close(&rig);
}

// One that costs as much as it saves is tried now and then, and no more.
static void a_model_that_does_not_pay_is_left_alone(void **state)
{
    (void)state;
    static answer_t answer;
    rig_t rig = rig_open(worker_options(other, 512));
    rig.worker->engine->draft_model.step_us = 100;
    rig.worker->engine->draft_model.row_us = 10;
    submit(&rig, "kivi4", 16, &answer);
    rig_run(&rig);
    assert_int_equal(answer.status, AS_OK);
    assert_in_range(answer.usage.model_proposed_tokens, 1, answer.usage.drafted_tokens / 10);
    rig_close(&rig);
}

// Cancels the first of three sessions; the others know nothing of it. False: it was complete.
static bool cancel_first(const rig_t *rig, answer_t *answers, const answer_t *plain)
{
    gpw_worker_cancel(rig->worker, answers[0].id);
    rig_run((rig_t *)rig);
    answer_compare(&answers[1], plain, "none");
    answer_compare(&answers[2], plain, "kivi2");
    expect_nothing_left(rig);
    return answers[0].finish == GPW_FINISH_CANCELLED;
}

static void submit_three(const rig_t *rig, answer_t *answers)
{
    submit(rig, "kivi4", 16, &answers[0]);
    submit(rig, "none", 16, &answers[1]);
    submit(rig, "kivi2", 16, &answers[2]);
}

static void a_cancelled_session_leaves_nothing(void **state)
{
    (void)state;
    static answer_t plain, answers[3];
    bool slow = getenv("ASSAY_TEST_SANITIZED") != NULL, running = true;
    uint32_t moments = 0;
    rig_t rig = open_cheap(model, 128);
    const gpw_draft_model_t *draft = &rig.worker->engine->draft_model;
    submit(&rig, "none", 0, &plain);
    rig_run(&rig);
    for (uint32_t turns = 10; running; turns += 1 + (slow ? 2 : 1) * turns / 2) {
        submit_three(&rig, answers);
        for (uint32_t i = 0; i < turns && !answers[0].finished; i++) {
            as_loop_run_once(rig.loop, true);
        }
        running = cancel_first(&rig, answers, &plain);
        moments += running;
    }
    assert_true(moments > 4);
    submit_three(&rig, answers); // in the middle of a step of the small model
    while (draft->part_count == 0 || draft->parts[0].request->id != answers[0].id) {
        assert_true(as_loop_run_once(rig.loop, true));
    }
    assert_true(cancel_first(&rig, answers, &plain));
    rig_close(&rig);
}

// A window is counted where a session's cache is, and the scratch of the computation where the model's is.
static void the_budget_counts_windows_and_scratch(void **state)
{
    (void)state;
    static answer_t answers[2];
    gpw_worker_options_t options = worker_options(other, 128);
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.compressor = "kivi4";
    rig_t rig = rig_open(options);
    gpw_request_t *request = submit(&rig, "kivi4", 16, &answers[0]);
    as_shape_t shape = gpw_model_shape(other, BLOCK_TOKENS);
    uint64_t window = 128 / BLOCK_TOKENS * as_block_bytes(&shape);
    uint64_t with = gpw_request_bytes_max(request);
    assert_int_equal(gpw_draft_window_bytes(request), window);
    int64_t scratch = gpw_metric_value(GPW_METRIC_WORKSPACE_BYTES);
    rig_run(&rig);
    rig_close(&rig);

    rig = rig_open(worker_options(NULL, 128));
    request = submit(&rig, "kivi4", 16, &answers[0]);
    assert_int_equal(with, gpw_request_bytes_max(request) + window);
    assert_true(scratch > gpw_metric_value(GPW_METRIC_WORKSPACE_BYTES) + 100000);
    rig_run(&rig);
    rig_close(&rig);

    options.cache_bytes_max = with - 1;
    rig = rig_open(options);
    char error[160];
    gpw_request_events_t events = {&answers[0], answer_on_tokens, answer_on_finish, NULL};
    params.horizon = 16;
    params.horizon_set = true;
    uint64_t id;
    assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &id),
                     AS_ERR_LIMIT);
    rig_close(&rig);

    options.cache_bytes_max = with; // one at a time
    rig = rig_open(options);
    submit(&rig, "kivi4", 16, &answers[0]);
    submit(&rig, "kivi4", 16, &answers[1]);
    while (!gpw_worker_idle(rig.worker)) {
        as_loop_run_once(rig.loop, true);
        assert_true(rig.worker->engine->device.used_bytes <= with);
    }
    answer_compare(&answers[0], &answers[1], "in turn");
    assert_int_equal(answers[1].status, AS_OK);
    expect_nothing_left(&rig);
    rig_close(&rig);
}

static void every_failed_allocation_ends_the_request_or_the_start(void **state)
{
    (void)state;
    static answer_t answer;
    as_log_set_level(AS_LOG_ERROR);
    bool completed = false;
    for (uint64_t n = 1; !completed; n++) {
        as_loop_t *loop;
        gpw_worker_t *worker = NULL;
        assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
        gpw_worker_options_t options = worker_options(other, 128);
        options.engine_loop = options.io_loop = loop;
        options.sessions_max = 2;
        as_mem_fail_nth(n);
        as_status_t status = gpw_worker_alloc(&options, &worker);
        as_mem_fail_nth(0);
        completed = status == AS_OK;
        assert_true(completed || status == AS_ERR_NO_MEMORY);
        gpw_worker_free(worker);
        as_loop_free(loop);
    }
    rig_t rig = open_cheap(model, 128);
    completed = false;
    for (uint64_t n = 1; !completed; n++) {
        gpw_request_params_t params = request_params(prompt, PROMPT, 12);
        gpw_request_events_t events = {&answer, answer_on_tokens, answer_on_finish, NULL};
        char error[160];
        answer = (answer_t){0};
        as_mem_fail_nth(0);
        as_mem_fail_nth(n);
        as_status_t status =
            gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &answer.id);
        rig_run(&rig);
        completed = as_mem_fail_nth(0) < n;
        status = status == AS_OK ? answer.status : status;
        assert_int_equal(status, completed ? AS_OK : AS_ERR_NO_MEMORY);
        expect_nothing_left(&rig);
    }
    rig_close(&rig);
    as_log_set_level(AS_LOG_INFO);
}

static gpw_model_t *open_with_control(const char *control)
{
    builder_t builder = {0};
    tiny_metadata(&builder, &tiny_default);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, &control, 1);
    tiny_tensors(&builder, &tiny_default);
    char path[64], error[256] = "";
    builder_finish(&builder);
    builder_save(&builder, path);
    builder_free(&builder);
    gpw_model_t *loaded = NULL;
    gpw_model_options_t options = {.path = path};
    as_status_t status = gpw_model_load(&options, error, sizeof(error), &loaded);
    unlink(path);
    if (status != AS_OK) {
        fail_msg("%s", error);
    }
    return loaded;
}

static void another_vocabulary_is_refused_by_its_first_difference(void **state)
{
    (void)state;
    char error[256];
    assert_true(gpw_draft_model_fits(model, other, error, sizeof(error)));
    gpw_model_t *text = open_with_control("<s>"), *kind = open_with_control("t257");
    assert_false(gpw_draft_model_fits(model, text, error, sizeof(error)));
    assert_string_equal(error, "its token 257 is \"<s>\", that of the model \"t257\"");
    assert_false(gpw_draft_model_fits(model, kind, error, sizeof(error)));
    assert_string_equal(error, "its token 257 (\"t257\") is of another kind than the model's");
    gpw_model_t fewer = *other;
    fewer.vocab--;
    assert_false(gpw_draft_model_fits(model, &fewer, error, sizeof(error)));
    assert_string_equal(error, "its vocabulary has 287 tokens, that of the model 288");

    as_loop_t *loop;
    assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
    gpw_worker_options_t options = worker_options(text, 128);
    options.engine_loop = options.io_loop = loop;
    gpw_worker_t *worker = NULL;
    as_log_set_level(AS_LOG_ERROR);
    assert_int_equal(gpw_worker_alloc(&options, &worker), AS_ERR_CONFIG);
    options.draft_model = other;
    options.draft_window = other->context_max + 1;
    assert_int_equal(gpw_worker_alloc(&options, &worker), AS_ERR_CONFIG);
    as_log_set_level(AS_LOG_INFO);
    as_loop_free(loop);
    gpw_model_free(text);
    gpw_model_free(kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_itself_has_every_proposal_accepted),
        cmocka_unit_test(sampling_accepts_what_both_models_choose),
        cmocka_unit_test(a_model_that_knows_nothing_changes_no_draft),
        cmocka_unit_test(a_window_rolls_back_to_what_was_accepted),
        cmocka_unit_test(prompt_lookup_goes_first),
        cmocka_unit_test(a_model_that_does_not_pay_is_left_alone),
        cmocka_unit_test(a_cancelled_session_leaves_nothing),
        cmocka_unit_test(the_budget_counts_windows_and_scratch),
        cmocka_unit_test(every_failed_allocation_ends_the_request_or_the_start),
        cmocka_unit_test(another_vocabulary_is_refused_by_its_first_difference),
    };
    model = tiny_load(3);
    tiny_t small = tiny_default;
    small.layers = 1;
    small.tied = 0;
    small.embed = 32;
    small.q_heads = 2;
    small.kv_heads = 1;
    other = tiny_open(&small, KRN_WEIGHT_F16);
    for (uint32_t i = 0; i < PROMPT; i++) { // a list of like entries
        prompt[i] = (int32_t)(tiny_mix(i % 23 < 18 ? i % 23 : i) % TINY_VOCAB);
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpw_model_free(other);
    gpw_model_free(model);
    return failed;
}
