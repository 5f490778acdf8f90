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
    as_loop_t *loop;
    uint32_t *ended_p;
    uint32_t place; // 1: the first that was done
} prompt_t;

static gpw_tokenizer_t *open_tokenizer(void)
{
    char error[GPW_GGUF_ERROR_BYTES] = "", path[512];
    gpw_gguf_t *gguf = NULL;
    gpw_tokenizer_t *tokenizer = NULL;
    assert_int_equal(gpw_gguf_open(fixture_golden("tokenizer_qwen2.gguf", path), error, &gguf),
                     AS_OK);
    assert_int_equal(gpw_tokenizer_alloc(gguf, error, &tokenizer), AS_OK);
    gpw_gguf_close(gguf);
    return tokenizer;
}

static void on_done(void *ctx)
{
    prompt_t *prompt = ctx;
    prompt->place = ++*prompt->ended_p;
    if (*prompt->ended_p == JOBS) {
        as_loop_stop(prompt->loop);
    }
}

static void fill(prompt_t *prompt, uint32_t *ended_p, as_loop_t *loop, size_t bytes)
{
    *prompt = (prompt_t){.loop = loop, .ended_p = ended_p};
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

static void check_tokens(const gpw_tokenizer_t *tokenizer, const prompt_t *prompt)
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
    static prompt_t prompts[2];
    uint32_t ended = 0;
    gpw_tokenizer_t *tokenizer = open_tokenizer();
    gpw_tokenize_t *tokenize = NULL;
    as_loop_t *loop = NULL;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_OK);
    fill(&prompts[0], &ended, loop, LONG_BYTES); // does not hold up the other
    fill(&prompts[1], &ended, loop, GPW_TOKENIZE_SHORT_BYTES);
    assert_false(gpw_tokenize_start(tokenize, &prompts[0].job));
    assert_true(gpw_tokenize_start(tokenize, &prompts[1].job));
    check_tokens(tokenizer, &prompts[1]);
    assert_int_equal(ended, 0);
    gpw_tokenize_free(tokenize);
    as_loop_unpost(loop, &prompts[0].job.done);
    as_loop_run_once(loop, false);
    assert_int_equal(ended, 0);
    as_loop_free(loop);
    gpw_tokenizer_free(tokenizer);
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
    static prompt_t prompts[JOBS];
    uint32_t ended = 0;
    gpw_tokenizer_t *tokenizer = open_tokenizer();
    gpw_tokenize_t *tokenize = NULL;
    as_loop_t *loop = NULL;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_OK);
    for (int i = 0; i < JOBS; i++) {
        fill(&prompts[i], &ended, loop, LONG_BYTES);
        prompts[i].job.text = NULL;
        prompts[i].job.prepare = i % 2 ? prepare_text : prepare_nothing;
        assert_false(gpw_tokenize_start(tokenize, &prompts[i].job));
    }
    as_loop_run(loop);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(prompts[i].job.status, AS_OK);
        assert_int_equal(prompts[i].job.text_bytes, i % 2 ? LONG_BYTES / 2 : 0);
        if (i % 2) {
            check_tokens(tokenizer, &prompts[i]);
        }
        assert_true((prompts[i].job.token_count > 0) == (i % 2));
    }
    gpw_tokenize_free(tokenize);
    as_loop_free(loop);
    gpw_tokenizer_free(tokenizer);
}

static void of_those_that_wait_the_shortest_is_next(void **state)
{
    (void)state;
    static prompt_t prompts[JOBS];
    // The first may be taken before the others are there.
    static const size_t bytes[JOBS] = {LONG_BYTES, LONG_BYTES - 1, 20000, 5000};
    uint32_t ended = 0;
    gpw_tokenizer_t *tokenizer = open_tokenizer();
    gpw_tokenize_t *tokenize = NULL;
    as_loop_t *loop = NULL;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_OK);
    for (int i = 0; i < JOBS; i++) {
        fill(&prompts[i], &ended, loop, bytes[i]);
    }
    for (int i = 0; i < JOBS; i++) {
        assert_false(gpw_tokenize_start(tokenize, &prompts[i].job));
    }
    as_loop_run(loop);
    assert_int_equal(ended, JOBS);
    for (int i = 0; i < JOBS; i++) {
        check_tokens(tokenizer, &prompts[i]);
    }
    assert_true(prompts[3].place < prompts[2].place && prompts[2].place < prompts[1].place);
    gpw_tokenize_free(tokenize);
    as_loop_free(loop);
    gpw_tokenizer_free(tokenizer);
}

static void ends_with_jobs_that_wait(void **state)
{
    (void)state;
    static prompt_t prompts[JOBS];
    uint32_t ended = 0;
    gpw_tokenizer_t *tokenizer = open_tokenizer();
    gpw_tokenize_t *tokenize = NULL;
    as_loop_t *loop = NULL;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_OK);
    for (int i = 0; i < JOBS; i++) {
        fill(&prompts[i], &ended, loop, LONG_BYTES);
        assert_false(gpw_tokenize_start(tokenize, &prompts[i].job));
    }
    gpw_tokenize_free(tokenize);
    for (int i = 0; i < JOBS; i++) {
        as_loop_unpost(loop, &prompts[i].job.done);
    }
    as_loop_run_once(loop, false);
    assert_int_equal(ended, 0);
    as_loop_free(loop);
    gpw_tokenizer_free(tokenizer);
    gpw_tokenize_free(NULL);
}

static void every_failed_allocation_is_the_outcome(void **state)
{
    (void)state;
    static prompt_t prompt;
    uint32_t ended = 0;
    gpw_tokenizer_t *tokenizer = open_tokenizer();
    gpw_tokenize_t *tokenize = NULL;
    as_loop_t *loop = NULL;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    as_mem_fail_nth(1);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_ERR_NO_MEMORY);
    as_mem_fail_nth(0);
    assert_int_equal(gpw_tokenize_alloc(loop, tokenizer, &tokenize), AS_OK);
    fill(&prompt, &ended, loop, 1000);
    as_mem_fail_nth(1);
    assert_true(gpw_tokenize_start(tokenize, &prompt.job));
    as_mem_fail_nth(0);
    assert_int_equal(prompt.job.status, AS_ERR_NO_MEMORY);
    gpw_tokenize_free(tokenize);
    as_loop_free(loop);
    gpw_tokenizer_free(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_prompt_is_done_at_once),
        cmocka_unit_test(a_request_is_read_where_it_is_encoded),
        cmocka_unit_test(of_those_that_wait_the_shortest_is_next),
        cmocka_unit_test(ends_with_jobs_that_wait),
        cmocka_unit_test(every_failed_allocation_is_the_outcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
