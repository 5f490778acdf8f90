// SPDX-License-Identifier: Apache-2.0
// The life of a request: it ends once, in time, whatever is done to it, and leaves nothing behind.
#include <math.h>

#include "common/log.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

static gpw_model_t *model;

enum { PROMPT = 70, MORE = 24 };

static int32_t prompt[400];

static gpw_request_params_t usual(void)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.compressor = "kivi2";
    params.horizon = 4;
    params.horizon_set = true;
    return params;
}

static gpw_worker_options_t small_worker(void)
{
    gpw_worker_options_t options = rig_options(model, 16);
    options.threads = 1;
    options.tick_us = 100;
    return options;
}

static void expect_nothing_left(const rig_t *rig)
{
    const gpw_engine_t *engine = rig->worker->engine;
    assert_true(gpw_worker_idle(rig->worker));
    assert_null(engine->first);
    assert_int_equal(engine->sessions, 0);
    assert_int_equal(engine->load_sessions, 0); // as the scheduler and /metrics are told
    assert_int_equal(engine->load_used_bytes, 0);
    assert_int_equal(engine->device.reserved_bytes, 0);
    assert_int_equal(engine->device.used_bytes, 0);
    assert_int_equal(rig->worker->active_count, 0);
    for (uint32_t i = 0; i < GPW_REQUESTS_MAX; i++) {
        assert_false(engine->forwards[i].used);
    }
    for (uint32_t i = 0; i < GPW_PREFILLS_MAX; i++) {
        assert_false(engine->long_forwards[i].used);
    }
}

static void a_request_may_be_cancelled_after_any_event(void **state)
{
    (void)state;
    uint32_t steps_seen = 0;
    bool completed = false;
    uint32_t stride =
        getenv("ASSAY_TEST_SANITIZED") ? 5 : 1; // thousands of events, each slow there
    for (uint32_t after = 0; !completed; after += stride) {
        rig_t rig = rig_open(small_worker());
        static answer_t answer, other;
        gpw_request_params_t params = usual();
        params.token_count = 100; // more rows than a short pass takes
        answer_submit(rig.worker, &params, &answer);
        answer_submit(rig.worker, &params, &other);
        for (uint32_t i = 0; i < after; i++) {
            as_loop_run_once(rig.loop, true);
        }
        gpw_request_t *first = rig.worker->engine->first;
        steps_seen |= first && !first->finished ? 1u << first->step : 0;
        completed = answer.finished || (first && first->finished); // it may be on its way
        gpw_worker_cancel(rig.worker, answer.id);
        gpw_worker_cancel(rig.worker, answer.id);
        rig_run(&rig);
        assert_true(answer.finished && other.finished);
        assert_int_equal(answer.status, completed ? AS_OK : AS_ERR_CANCELLED);
        assert_int_equal(other.status, AS_OK);
        assert_int_equal(other.count, MORE);
        expect_nothing_left(&rig);
        rig_close(&rig);
    }
    uint32_t expected =
        1u << GPW_STEP_PREFILL | 1u << GPW_STEP_DRAFT | 1u << GPW_STEP_VERIFY | 1u << GPW_STEP_SEAL;
    assert_int_equal(steps_seen & expected, expected);
}

static void a_request_ends_at_its_deadline(void **state)
{
    (void)state;
    unsigned long warnings = as_log_count(AS_LOG_WARN);
    for (uint64_t deadline_us = 50; deadline_us < 4000; deadline_us += 350) {
        rig_t rig = rig_open(small_worker());
        static answer_t answer;
        gpw_request_params_t params = usual();
        params.deadline_us = deadline_us;
        answer.loop = rig.loop;
        answer_submit(rig.worker, &params, &answer);
        rig_run(&rig);
        assert_int_equal(answer.status, AS_ERR_DEADLINE);
        assert_int_equal(answer.finish, GPW_FINISH_ERROR);
        assert_int_equal(answer.finished_us, deadline_us);
        expect_nothing_left(&rig);
        rig_close(&rig);
    }
    assert_int_equal(as_log_count(AS_LOG_WARN), warnings); // an expected end is no warning
}

static void requests_above_the_queue_are_refused(void **state)
{
    (void)state;
    gpw_worker_options_t options = small_worker();
    options.sessions_max = 1;
    options.queue_max = 2;
    rig_t rig = rig_open(options);
    static answer_t answers[3];
    gpw_request_params_t params = usual();
    for (int i = 0; i < 3; i++) {
        answer_submit(rig.worker, &params, &answers[i]);
    }
    char error[256];
    uint64_t id;
    gpw_request_events_t events = {NULL, answer_on_tokens, answer_on_finish, NULL};
    assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &id),
                     AS_ERR_BUSY);
    assert_non_null(strstr(error, "try again"));
    rig_run(&rig);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(answers[i].status, AS_OK);
        answer_compare(&answers[i], &answers[0], "queued");
        assert_true(i == 0 || answers[i].usage.queue_us > answers[i - 1].usage.queue_us);
    }
    answer_submit(rig.worker, &params, &answers[0]); // there is room again
    rig_run(&rig);
    rig_close(&rig);
}

typedef struct waiting {
    answer_t answer;
    uint32_t places[8], count;
} waiting_t;

static void on_place(void *ctx, uint32_t place)
{
    waiting_t *waiting = ctx; // the answer is its first member
    assert_false(waiting->answer.finished);
    assert_true(waiting->count < 8);
    waiting->places[waiting->count++] = place;
}

static void who_waits_is_told_its_place_in_line(void **state)
{
    (void)state;
    gpw_worker_options_t options = small_worker();
    options.sessions_max = 1;
    rig_t rig = rig_open(options);
    static waiting_t waiting[4];
    gpw_request_params_t params = usual();
    memset(waiting, 0, sizeof(waiting));
    for (int i = 0; i < 4; i++) {
        gpw_request_events_t events = {&waiting[i].answer, answer_on_tokens, answer_on_finish,
                                       on_place};
        char error[256];
        assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error),
                                           &waiting[i].answer.id),
                         AS_OK);
    }
    while (waiting[0].answer.count == 0) {
        as_loop_run_once(rig.loop, true);
    }
    gpw_worker_cancel(rig.worker, waiting[1].answer.id); // those behind move up
    rig_run(&rig);
    static const uint32_t expected[4][3] = {{0}, {1}, {2, 1}, {3, 2, 1}};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(waiting[i].count, i);
        assert_memory_equal(waiting[i].places, expected[i], i * sizeof(uint32_t));
        assert_int_equal(waiting[i].answer.status, i == 1 ? AS_ERR_CANCELLED : AS_OK);
    }
    rig_close(&rig);
}

static void sessions_wait_for_memory_and_never_exceed_it(void **state)
{
    (void)state;
    gpw_worker_options_t options = small_worker();
    rig_t probe = rig_open(options);
    static answer_t answers[4];
    gpw_request_params_t params = usual();
    answer_submit(probe.worker, &params, &answers[0]);
    for (int i = 0; i < 5; i++) {
        as_loop_run_once(probe.loop, true);
    }
    uint64_t one = probe.worker->engine->device.reserved_bytes;
    assert_true(one > 0);
    rig_run(&probe);
    rig_close(&probe);

    options.cache_bytes_max = one + one / 2; // room for one
    rig_t rig = rig_open(options);
    for (int i = 0; i < 4; i++) {
        answer_submit(rig.worker, &params, &answers[i]);
    }
    const gpw_device_t *device = &rig.worker->engine->device;
    while (!gpw_worker_idle(rig.worker)) {
        as_loop_run_once(rig.loop, true);
        assert_true(device->used_bytes <= device->reserved_bytes);
        assert_true(device->reserved_bytes <= options.cache_bytes_max);
        assert_true(rig.worker->engine->sessions <= 1);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(answers[i].status, AS_OK);
    }
    params.max_tokens = 300; // can never fit
    char error[256];
    uint64_t id;
    gpw_request_events_t events = {NULL, answer_on_tokens, answer_on_finish, NULL};
    assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &id),
                     AS_ERR_LIMIT);
    rig_close(&rig);
}

static void the_workspace_is_part_of_the_device(void **state)
{
    (void)state;
    gpw_worker_options_t options = small_worker();
    rig_t rig = rig_open(options);
    uint64_t workspace = (uint64_t)gpw_metric_value(GPW_METRIC_WORKSPACE_BYTES);
    rig_close(&rig);
    // At least the logits and the residual streams of two long prompts.
    size_t least = GPW_LOGITS_ROWS * TINY_VOCAB * sizeof(float);
    assert_true(workspace > least);

    options.device_bytes_max = workspace + 1000;
    rig = rig_open(options);
    assert_int_equal(rig.worker->options.cache_bytes_max, 1000);
    assert_int_equal(rig.worker->engine->device.bytes_max, 1000);
    rig_close(&rig);

    gpw_worker_t *worker = NULL;
    as_loop_t *loop;
    assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
    options.engine_loop = options.io_loop = loop;
    options.device_bytes_max = workspace;
    assert_int_equal(gpw_worker_alloc(&options, &worker), AS_ERR_LIMIT);
    as_loop_free(loop);
}

static void sessions_take_turns(void **state)
{
    (void)state;
    rig_t rig = rig_open(small_worker());
    static answer_t answers[2];
    gpw_request_params_t params = usual();
    params.compressor = "none";
    answer_submit(rig.worker, &params, &answers[0]);
    answer_submit(rig.worker, &params, &answers[1]);
    while (!answers[0].finished) {
        as_loop_run_once(rig.loop, true);
    }
    assert_true(answers[1].count + 2 >= MORE); // nearly as far
    rig_run(&rig);
    rig_close(&rig);
}

typedef struct wrong {
    const char *field; // that the message names
    as_status_t status;
    void (*spoil)(gpw_request_params_t *params);
} wrong_t;

static void no_tokens(gpw_request_params_t *p)
{
    p->token_count = 0;
}
static void no_max(gpw_request_params_t *p)
{
    p->max_tokens = 0;
}
static void too_long(gpw_request_params_t *p)
{
    p->max_tokens = TINY_CONTEXT;
}
static void huge_max(gpw_request_params_t *p)
{
    p->max_tokens = UINT32_MAX;
}
static void bad_temperature(gpw_request_params_t *p)
{
    p->choose.temperature = NAN;
}
static void cold(gpw_request_params_t *p)
{
    p->choose.temperature = -1;
}
static void bad_top_p(gpw_request_params_t *p)
{
    p->choose.top_p = 0;
}
static void many_logprobs(gpw_request_params_t *p)
{
    p->logprobs = GPW_LOGPROBS_MAX + 1;
}
static void bad_compressor(gpw_request_params_t *p)
{
    p->compressor = "zip";
}
static void far_horizon(gpw_request_params_t *p)
{
    p->horizon = GPW_HORIZON_MAX + 1;
}

static void a_wrong_parameter_is_named(void **state)
{
    (void)state;
    static const wrong_t wrongs[] = {
        {"prompt", AS_ERR_INVALID, no_tokens},
        {"max_tokens", AS_ERR_INVALID, no_max},
        {"max_tokens", AS_ERR_LIMIT, too_long},
        {"max_tokens", AS_ERR_LIMIT, huge_max},
        {"temperature", AS_ERR_INVALID, bad_temperature},
        {"temperature", AS_ERR_INVALID, cold},
        {"top_p", AS_ERR_INVALID, bad_top_p},
        {"logprobs", AS_ERR_INVALID, many_logprobs},
        {"compressor", AS_ERR_INVALID, bad_compressor},
        {"horizon", AS_ERR_INVALID, far_horizon},
    };
    rig_t rig = rig_open(small_worker());
    gpw_request_events_t events = {NULL, answer_on_tokens, answer_on_finish, NULL};
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        char error[256] = "";
        uint64_t id;
        gpw_request_params_t params = usual();
        wrongs[i].spoil(&params);
        assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &id),
                         wrongs[i].status);
        assert_non_null(strstr(error, wrongs[i].field));
    }
    int32_t bad[] = {1, (int32_t)TINY_VOCAB};
    char error[256] = "";
    uint64_t id;
    gpw_request_params_t params = request_params(bad, 2, 1);
    assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &id),
                     AS_ERR_INVALID);
    assert_non_null(strstr(error, "288"));
    expect_nothing_left(&rig);
    rig_close(&rig);
}

static void unverified_drafts_leave_as_they_come(void **state)
{
    (void)state;
    rig_t rig = rig_open(small_worker());
    static answer_t exact, lossy, again;
    gpw_request_params_t params = request_params(prompt, 300, 150);
    answer_submit(rig.worker, &params, &exact);
    params.compressor = "streaming";
    params.verify = GPW_VERIFY_OFF;
    answer_submit(rig.worker, &params, &lossy);
    answer_submit(rig.worker, &params, &again);
    rig_run(&rig);
    assert_int_equal(lossy.status, AS_OK);
    assert_int_equal(lossy.count, 150);
    assert_int_equal(lossy.usage.verifications, 0);
    assert_int_equal(lossy.tokens[0], exact.tokens[0]); // from the exact prefill
    answer_compare(&again, &lossy, "unverified");
    assert_true(memcmp(lossy.hashes, exact.hashes, sizeof(exact.hashes)) != 0);
    assert_true(lossy.usage.resident_bytes < exact.usage.resident_bytes);
    expect_nothing_left(&rig);
    rig_close(&rig);
}

static void fail_allocations(rig_t *rig, const char *compressor)
{
    // A block that cannot be noted as shared stays the session's own, a segment that cannot be made
    // smaller as it is, and the answer is complete.
    const gpw_compressor_t *row = gpw_compressor_find(compressor);
    bool completed = false, may_go_on = row->slot || row->flags & GPW_COMPRESSOR_DATA_SIZED;
    for (uint64_t n = 1; !completed; n++) {
        static answer_t answer;
        gpw_request_params_t params = usual();
        params.compressor = compressor;
        gpw_request_events_t events = {&answer, answer_on_tokens, answer_on_finish, NULL};
        char error[256];
        answer = (answer_t){0};
        as_mem_fail_nth(0);
        as_mem_fail_nth(n);
        as_status_t status =
            gpw_worker_submit(rig->worker, &params, &events, error, sizeof(error), &answer.id);
        if (status == AS_OK) {
            rig_run(rig);
            assert_true(answer.finished);
            status = answer.status;
        }
        completed = as_mem_fail_nth(0) < n;
        if (completed || !may_go_on || status != AS_OK) {
            assert_int_equal(status, completed ? AS_OK : AS_ERR_NO_MEMORY);
        }
        assert_true(status != AS_OK || answer.count == MORE);
        expect_nothing_left(rig);
    }
}

static void every_failed_allocation_ends_the_request_or_nothing(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    rig_t rig = rig_open(small_worker());
    fail_allocations(&rig, "kivi2");
    fail_allocations(&rig, "knorm");    // which keeps some of each block
    fail_allocations(&rig, "specache"); // which remembers what it has read
    fail_allocations(&rig,
                     "dbudgetkv"); // which looks at queries, and does not know how much it keeps
    rig_close(&rig);
    as_log_set_level(AS_LOG_INFO);
}

static void every_failed_allocation_of_a_worker_is_survived(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    bool completed = false;
    for (uint64_t n = 1; !completed; n++) {
        as_loop_t *loop;
        gpw_worker_t *worker = NULL;
        assert_int_equal(as_loop_alloc_sim(&loop), AS_OK);
        gpw_worker_options_t options = small_worker();
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
    as_log_set_level(AS_LOG_INFO);
}

static void what_still_runs_is_finished_when_the_worker_goes(void **state)
{
    (void)state;
    for (int events = 0; events < 40; events += 3) {
        rig_t rig = rig_open(small_worker());
        static answer_t answers[3];
        gpw_request_params_t params = usual();
        for (int i = 0; i < 3; i++) {
            answer_submit(rig.worker, &params, &answers[i]);
        }
        for (int i = 0; i < events; i++) {
            as_loop_run_once(rig.loop, true);
        }
        rig_close(&rig);
        for (int i = 0; i < 3; i++) {
            assert_true(answers[i].finished);
            assert_int_equal(answers[i].finish, GPW_FINISH_CANCELLED);
        }
    }
}

static uint32_t tops_seen;

static void on_logprobs(void *ctx, const gpw_token_event_t *tokens, uint32_t count)
{
    (void)ctx;
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(tokens[i].top_count, 3);
        assert_true(tokens[i].logprob <= 0);
        assert_true(tokens[i].top_logprobs[0] >= tokens[i].top_logprobs[1]);
        assert_int_equal(tokens[i].top_tokens[0], tokens[i].token); // greedy
        tops_seen++;
    }
}

static void log_probabilities_come_with_every_token(void **state)
{
    (void)state;
    rig_t rig = rig_open(small_worker());
    static answer_t answer;
    char error[256];
    gpw_request_params_t params = usual();
    params.want_logprobs = true;
    params.logprobs = 3;
    gpw_request_events_t events = {&answer, on_logprobs, answer_on_finish, NULL};
    answer = (answer_t){0};
    tops_seen = 0;
    assert_int_equal(
        gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &answer.id), AS_OK);
    rig_run(&rig);
    assert_int_equal(tops_seen, MORE);
    rig_close(&rig);
}

static int load(void **state)
{
    (void)state;
    model = tiny_load(2);
    prompt_make(prompt, 400, 0, 5);
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
        cmocka_unit_test(a_request_may_be_cancelled_after_any_event),
        cmocka_unit_test(a_request_ends_at_its_deadline),
        cmocka_unit_test(requests_above_the_queue_are_refused),
        cmocka_unit_test(who_waits_is_told_its_place_in_line),
        cmocka_unit_test(sessions_wait_for_memory_and_never_exceed_it),
        cmocka_unit_test(the_workspace_is_part_of_the_device),
        cmocka_unit_test(sessions_take_turns),
        cmocka_unit_test(a_wrong_parameter_is_named),
        cmocka_unit_test(unverified_drafts_leave_as_they_come),
        cmocka_unit_test(every_failed_allocation_ends_the_request_or_nothing),
        cmocka_unit_test(every_failed_allocation_of_a_worker_is_survived),
        cmocka_unit_test(what_still_runs_is_finished_when_the_worker_goes),
        cmocka_unit_test(log_probabilities_come_with_every_token),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
