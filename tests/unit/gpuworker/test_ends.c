// SPDX-License-Identifier: Apache-2.0
// An answer that ends in the middle of a run of drafts ends where plain decoding ends: at its last
// token by count, or at an end token.
#include "gpuworker/model/tokenizer_internal.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, PROMPT = 150, MORE = 40, ANSWERS = 64 };

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t whole; // plain decoding of MORE tokens
static const uint32_t horizons[] = {3, 16, 64};

enum { HORIZONS = sizeof(horizons) / sizeof(horizons[0]) };

static bool slow(void)
{
    return getenv("ASSAY_TEST_SANITIZED") != NULL;
}

// Sampled, so that an answer has many different tokens.
static gpw_request_params_t params_of(uint32_t count)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, count);
    params.choose = (gpw_choose_params_t){.temperature = 0.9f, .top_p = 1, .seed = 3};
    return params;
}

static rig_t open_worker(void)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.sessions_max = 8;
    options.queue_max = ANSWERS;
    return rig_open(options);
}

static void expect_nothing_left(const rig_t *rig)
{
    const gpw_engine_t *engine = rig->worker->engine;
    assert_null(engine->first);
    assert_int_equal(engine->sessions, 0);
    assert_int_equal(engine->device.used_bytes, 0);
    assert_int_equal(engine->device.reserved_bytes, 0);
}

// One answer of every compressor and horizon, together, each the first `count` tokens of the whole one.
static void expect_end(rig_t *rig, gpw_request_params_t params, uint32_t count, gpw_finish_t finish)
{
    static answer_t answers[ANSWERS];
    static char names[ANSWERS][64];
    uint32_t n = 0;
    for (EACH_TRIED_COMPRESSOR(c)) {
        for (uint32_t h = 0; h < HORIZONS; h++) {
            assert_true(n < ANSWERS);
            params.compressor = c->name;
            params.horizon = horizons[h];
            params.horizon_set = true;
            snprintf(names[n], sizeof(names[n]), "%s, horizon %u, %u tokens", c->name, horizons[h],
                     count);
            answer_submit(rig->worker, &params, &answers[n++]);
        }
    }
    rig_run(rig);
    static answer_t expected;
    expected = whole;
    expected.count = count;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(answers[i].status, AS_OK);
        assert_int_equal(answers[i].finish, finish);
        answer_compare(&answers[i], &expected, names[i]);
        assert_int_equal(answers[i].usage.completion_tokens, count);
    }
    expect_nothing_left(rig);
}

static void a_horizon_longer_than_what_is_left_gives_no_token_more(void **state)
{
    (void)state;
    rig_t rig = open_worker();
    for (uint32_t count = 1; count <= MORE; count += count < 9 && !slow() ? 1 : 9) {
        expect_end(&rig, params_of(count), count, GPW_FINISH_LENGTH);
    }
    rig_close(&rig);
}

static bool is_new(uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (whole.tokens[i] == whole.tokens[index]) {
            return false;
        }
    }
    return true;
}

// Each token of the answer that was not said before it is once what ends it.
static void an_end_token_inside_a_run_is_the_last(void **state)
{
    (void)state;
    static bool ends[TINY_VOCAB];
    memset(ends, 0, sizeof(ends));
    gpw_tokenizer_t tokenizer = {.count = TINY_VOCAB, .end = ends}, *own = model->tokenizer;
    uint32_t ended = 0;
    model->tokenizer = &tokenizer;
    rig_t rig = open_worker();
    for (uint32_t last = 0; last < MORE; last += ended < 5 && !slow() ? 1 : 9) {
        if (!is_new(last)) {
            continue;
        }
        gpw_request_params_t params = params_of(MORE);
        params.ignore_end = false;
        ends[whole.tokens[last]] = true;
        expect_end(&rig, params, last + 1, GPW_FINISH_STOP);
        params.ignore_end = true;
        expect_end(&rig, params, MORE, GPW_FINISH_LENGTH);
        ends[whole.tokens[last]] = false;
        ended++;
    }
    assert_true(ended > 2);
    rig_close(&rig);
    model->tokenizer = own;
}

static int load(void **state)
{
    (void)state;
    model = tiny_load(2);
    prompt_make(prompt, PROMPT, 0, 17);
    rig_t rig = open_worker();
    gpw_request_params_t params = params_of(MORE);
    answer_submit(rig.worker, &params, &whole);
    rig_run(&rig);
    rig_close(&rig);
    assert_int_equal(whole.count, MORE);
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
        cmocka_unit_test(a_horizon_longer_than_what_is_left_gives_no_token_more),
        cmocka_unit_test(an_end_token_inside_a_run_is_the_last),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
