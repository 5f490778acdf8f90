// SPDX-License-Identifier: Apache-2.0
// Prompts on the tokenizer's thread: the same tokens, the shortest first, and an end at any time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpuworker/model/gguf.h"
#include "gpuworker/serve/tokenize.h"
#include "model_fixture.h"

enum { JOBS = 4, LONG_BYTES = 60000, TOKENS = 60000 };

typedef struct prompt {
    gpw_tokenize_job_t job;
    char text[LONG_BYTES];
    int32_t tokens[TOKENS];
    uint32_t place; // 1: the first that was done
} prompt_t;

static gpw_tokenizer_t *tokenizer;
static gpw_tokenize_t *tokenize;
static as_loop_t *loop;
static prompt_t prompts[JOBS];
static uint32_t ended;

static int begin(void **state)
{
    (void)state;
    char error[GPW_GGUF_ERROR_BYTES] = "", path[512];
    gpw_gguf_t *gguf = NULL;
    assert_int_equal(gpw_gguf_open(fixture_golden("tokenizer_qwen2.gguf", path), error, &gguf),
                     AS_OK);
    assert_int_equal(gpw_tokenizer_alloc(gguf, error, &tokenizer), AS_OK);
    gpw_gguf_close(gguf);
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_OK);
    ended = 0;
    return 0;
}

// Of the thread that tokenizes; what of it was posted is taken back.
static void end_thread(void)
{
    gpw_tokenize_free(tokenize);
    tokenize = NULL;
    for (int i = 0; i < JOBS; i++) {
        as_loop_unpost(loop, &prompts[i].job.done);
    }
}

static int end(void **state)
{
    (void)state;
    end_thread();
    as_loop_free(loop);
    gpw_tokenizer_free(tokenizer);
    return 0;
}

static void on_done(void *ctx)
{
    prompt_t *prompt = ctx;
    prompt->place = ++ended;
    if (ended == JOBS) {
        as_loop_stop(loop);
    }
}

static void fill(prompt_t *prompt, size_t bytes)
{
    *prompt = (prompt_t){.place = 0};
    for (size_t i = 0; i < bytes; i++) {
        prompt->text[i] = (char)('a' + i * i % 23);
    }
    prompt->job = (gpw_tokenize_job_t){.text = prompt->text,
                                       .bytes = bytes,
                                       .text_bytes = bytes,
                                       .tokens = prompt->tokens,
                                       .tokens_max = TOKENS,
                                       .done = {.fn = on_done, .ctx = prompt}};
}

static void check_tokens(const prompt_t *prompt)
{
    static int32_t expected[TOKENS];
    size_t count = 0;
    assert_int_equal(gpw_tokenizer_encode(tokenizer, prompt->text, prompt->job.text_bytes,
                                          prompt->job.options, expected, TOKENS, &count),
                     AS_OK);
    assert_int_equal(prompt->job.status, AS_OK);
    assert_int_equal(prompt->job.token_count, count);
    assert_memory_equal(prompt->tokens, expected, count * sizeof(expected[0]));
}

static void a_short_prompt_is_done_at_once(void **state)
{
    (void)state;
    fill(&prompts[0], LONG_BYTES); // does not hold up the other
    fill(&prompts[1], GPW_TOKENIZE_SHORT_BYTES);
    assert_false(gpw_tokenize_start(tokenize, &prompts[0].job));
    assert_true(gpw_tokenize_start(tokenize, &prompts[1].job));
    check_tokens(&prompts[1]);
    assert_int_equal(ended, 0);
    end_thread();
    as_loop_run_once(loop, false);
    assert_int_equal(ended, 0);
}

static bool prepare_nothing(void *ctx)
{
    prompt_t *prompt = ctx;
    prompt->job.text_bytes = 0;
    return false;
}

static bool prepare_text(void *ctx)
{
    prompt_t *prompt = ctx;
    prompt->job.text = prompt->text;
    prompt->job.text_bytes = LONG_BYTES / 2;
    return true;
}

static void a_request_is_read_where_it_is_encoded(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        fill(&prompts[i], LONG_BYTES);
        prompts[i].job.text = NULL;
        prompts[i].job.prepare = i % 2 ? prepare_text : prepare_nothing;
        assert_false(gpw_tokenize_start(tokenize, &prompts[i].job));
    }
    as_loop_run(loop);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(prompts[i].job.status, AS_OK);
        assert_int_equal(prompts[i].job.text_bytes, i % 2 ? LONG_BYTES / 2 : 0);
        if (i % 2) {
            check_tokens(&prompts[i]);
        }
        assert_true((prompts[i].job.token_count > 0) == (i % 2));
    }
}

static void of_those_that_wait_the_shortest_is_next(void **state)
{
    (void)state;
    // The first may be taken before the others are there.
    static const size_t bytes[JOBS] = {LONG_BYTES, LONG_BYTES - 1, 20000, 5000};
    for (int i = 0; i < JOBS; i++) {
        fill(&prompts[i], bytes[i]);
    }
    for (int i = 0; i < JOBS; i++) {
        assert_false(gpw_tokenize_start(tokenize, &prompts[i].job));
    }
    as_loop_run(loop);
    assert_int_equal(ended, JOBS);
    for (int i = 0; i < JOBS; i++) {
        check_tokens(&prompts[i]);
    }
    assert_true(prompts[3].place < prompts[2].place && prompts[2].place < prompts[1].place);
}

static void ends_with_jobs_that_wait(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        fill(&prompts[i], LONG_BYTES);
        assert_false(gpw_tokenize_start(tokenize, &prompts[i].job));
    }
    end_thread();
    as_loop_run_once(loop, false);
    assert_int_equal(ended, 0);
    gpw_tokenize_free(NULL);
}

static void every_failed_allocation_is_the_outcome(void **state)
{
    (void)state;
    gpw_tokenize_t *other = NULL;
    as_mem_fail_nth(1);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &other), AS_ERR_NO_MEMORY);
    as_mem_fail_nth(0);
    fill(&prompts[0], 1000);
    as_mem_fail_nth(1);
    assert_true(gpw_tokenize_start(tokenize, &prompts[0].job));
    as_mem_fail_nth(0);
    assert_int_equal(prompts[0].job.status, AS_ERR_NO_MEMORY);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_short_prompt_is_done_at_once),          TEST(a_request_is_read_where_it_is_encoded),
        TEST(of_those_that_wait_the_shortest_is_next), TEST(ends_with_jobs_that_wait),
        TEST(every_failed_allocation_is_the_outcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
