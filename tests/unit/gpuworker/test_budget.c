// SPDX-License-Identifier: Apache-2.0
// Sixty-four sessions and memory for a few: the budget holds at every moment, the rest wait in a line
// that moves on, none starves, and those that are cancelled leave nothing behind.
#include "common/log.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, COUNT = 64, KINDS = 8, SESSIONS = 12, PROMPT_MAX = 200 };

static gpw_model_t *model;
static int32_t prompts[KINDS][PROMPT_MAX];
static gpw_request_params_t kinds[KINDS];
static answer_t alone[KINDS];
static uint64_t reserved_alone[KINDS]; // the most that each takes

typedef struct queued {
    answer_t answer; // first: the context of its events
    uint32_t kind, place, places_told;
    bool cancelled;
} queued_t;

static queued_t queue[COUNT + 1];

static gpw_worker_options_t options_of(uint64_t bytes)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.sessions_max = SESSIONS;
    options.queue_max = GPW_REQUESTS_MAX;
    options.threads = 1;
    options.tick_us = 100;
    options.cache_bytes_max = bytes;
    return options;
}

// Answers of each kind by itself, and what they take.
static int begin_all(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    model = tiny_load(2);
    for (uint32_t k = 0; k < KINDS; k++) {
        uint32_t tokens = 20 + 25 * k;
        prompt_make(prompts[k], tokens, 0, 600 + k);
        kinds[k] = request_params(prompts[k], tokens, 6 + k);
        kinds[k].compressor = gpw_worker_compressors(0)[k % 5];
        kinds[k].horizon = 1 + k;
        kinds[k].horizon_set = true;
        rig_t rig = rig_open(options_of(16u << 20));
        answer_submit(rig.worker, &kinds[k], &alone[k]);
        while (!gpw_worker_idle(rig.worker)) {
            uint64_t now = rig.worker->engine->device.reserved_bytes;
            reserved_alone[k] = now > reserved_alone[k] ? now : reserved_alone[k];
            as_loop_run_once(rig.loop, true);
        }
        assert_int_equal(alone[k].status, AS_OK);
        rig_close(&rig);
    }
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    gpw_model_free(model);
    return 0;
}

// Room for the largest and a half.
static uint64_t budget(void)
{
    return reserved_alone[KINDS - 1] * 3 / 2;
}

static void on_place(void *ctx, uint32_t place)
{
    queued_t *queued = ctx;
    assert_false(queued->answer.finished);
    assert_true(place > 0);
    assert_true(queued->place == 0 || place < queued->place); // nobody pushes in
    queued->place = place;
    queued->places_told++;
}

static void submit(rig_t *rig, queued_t *queued, uint32_t kind)
{
    char error[256] = "";
    gpw_request_events_t events = {&queued->answer, answer_on_tokens, answer_on_finish, on_place};
    *queued = (queued_t){.kind = kind};
    queued->answer.loop = rig->loop;
    as_status_t status = gpw_worker_submit(rig->worker, &kinds[kind], &events, error, sizeof(error),
                                           &queued->answer.id);
    if (status != AS_OK) {
        fail_msg("request %u of kind %u: %s", (unsigned)(queued - queue), kind, error);
    }
}

static void check_budget(const rig_t *rig)
{
    const gpw_engine_t *engine = rig->worker->engine;
    assert_true(engine->device.used_bytes <= engine->device.reserved_bytes);
    assert_true(engine->device.reserved_bytes <= budget());
    assert_true(engine->sessions <= SESSIONS);
}

static void run_to_end(rig_t *rig)
{
    while (!gpw_worker_idle(rig->worker)) {
        as_loop_run_once(rig->loop, true);
        check_budget(rig);
    }
    assert_null(rig->worker->engine->first);
    assert_int_equal(rig->worker->engine->sessions, 0);
    assert_int_equal(rig->worker->engine->device.used_bytes, 0);
    assert_int_equal(rig->worker->engine->device.reserved_bytes, 0);
    assert_int_equal(rig->worker->active_count, 0);
    assert_int_equal(gpw_metric_value(GPW_METRIC_RESERVED_BYTES), 0);
    assert_int_equal(gpw_metric_value(GPW_METRIC_SESSIONS), 0);
}

static void check_answers(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const answer_t *answer = &queue[i].answer;
        assert_true(answer->finished);
        if (queue[i].cancelled && answer->status == AS_ERR_CANCELLED) {
            continue;
        }
        assert_int_equal(answer->status, AS_OK);
        answer_compare(answer, &alone[queue[i].kind], "queued");
    }
}

static void the_budget_holds_under_sixty_four_sessions_and_the_rest_wait_with_a_place(void **state)
{
    (void)state;
    rig_t rig = rig_open(options_of(budget()));
    for (uint32_t i = 0; i < COUNT; i++) {
        submit(&rig, &queue[i], i * 5 % KINDS);
    }
    run_to_end(&rig);
    check_answers(COUNT);
    uint32_t waited = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        waited += queue[i].places_told > 0;
        assert_true(queue[i].places_told == 0 || queue[i].answer.usage.queue_us > 0);
        // Who came before began before.
        assert_true(i == 0 || queue[i].answer.usage.queue_us >= queue[i - 1].answer.usage.queue_us);
    }
    assert_true(waited > COUNT - SESSIONS);
    rig_close(&rig);
}

static uint64_t begun_us(const queued_t *queued)
{
    const gpw_usage_t *usage = &queued->answer.usage;
    return queued->answer.finished_us - usage->total_us + usage->queue_us;
}

// The largest session stands behind small ones, and whenever one of these goes another comes.
// It may begin again with what it has said as prompt, and must fit as it did at first.
static void what_a_session_may_need_does_not_grow_with_its_answer(void **state)
{
    enum { SHORT = 20, ANSWER = 140 };
    static answer_t answer;
    int32_t tokens[SHORT];
    (void)state;
    gpw_model_t *tiny = tiny_load(2);
    prompt_make(tokens, SHORT, 0, 3);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        rig_t rig = rig_open(rig_options(tiny, 16));
        gpw_request_params_t params = request_params(tokens, SHORT, ANSWER);
        params.compressor = c->name;
        answer_submit(rig.worker, &params, &answer);
        uint64_t bytes = 0;
        while (!answer.finished) {
            as_loop_run_once(rig.loop, true);
            const gpw_request_t *request = rig.worker->engine->first;
            if (request) {
                bytes = bytes ? bytes : gpw_request_bytes_max(request);
                assert_int_equal(gpw_request_bytes_max(request), bytes);
            }
        }
        assert_true(bytes > 0);
        assert_int_equal(answer.status, AS_OK);
        rig_run(&rig);
        rig_close(&rig);
    }
    gpw_model_free(tiny);
}

static void none_starves_behind_those_that_come_later(void **state)
{
    (void)state;
    enum { AHEAD = 10, ALIVE = 16 };
    rig_t rig = rig_open(options_of(budget()));
    const queued_t *large = &queue[AHEAD];
    uint32_t count = 0;
    while (count <= AHEAD || !large->answer.finished) {
        if (count < COUNT && rig.worker->active_count < ALIVE) {
            submit(&rig, &queue[count], count == AHEAD ? KINDS - 1 : count % 3);
            count++;
        } else {
            as_loop_run_once(rig.loop, true);
            check_budget(&rig);
        }
    }
    assert_true(count > AHEAD + 8);
    run_to_end(&rig);
    check_answers(count);
    for (uint32_t i = AHEAD + 1; i < count; i++) {
        assert_true(begun_us(&queue[i]) >= begun_us(large));
    }
    rig_close(&rig);
}

static void those_that_are_cancelled_leave_nothing_behind(void **state)
{
    (void)state;
    rig_t rig = rig_open(options_of(budget()));
    uint64_t random = 77;
    uint32_t events = 0, cancelled = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        submit(&rig, &queue[i], i % KINDS);
    }
    while (!gpw_worker_idle(rig.worker)) {
        as_loop_run_once(rig.loop, true);
        check_budget(&rig);
        if (++events % 23 == 0) {
            random = tiny_mix(random + events);
            queued_t *one = &queue[random % COUNT];
            one->cancelled |= !one->answer.finished;
            gpw_worker_cancel(rig.worker, one->answer.id);
        }
    }
    run_to_end(&rig);
    check_answers(COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        cancelled += queue[i].answer.status == AS_ERR_CANCELLED;
    }
    print_message("%u of %u were cancelled\n", cancelled, COUNT);
    assert_true(cancelled > 10 && cancelled < COUNT - 10);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_budget_holds_under_sixty_four_sessions_and_the_rest_wait_with_a_place),
        cmocka_unit_test(what_a_session_may_need_does_not_grow_with_its_answer),
        cmocka_unit_test(none_starves_behind_those_that_come_later),
        cmocka_unit_test(those_that_are_cancelled_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
