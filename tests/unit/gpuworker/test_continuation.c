// SPDX-License-Identifier: Apache-2.0
// An answer that is given instead of chosen: its tokens are those, its logits what the cache makes of
// them, whatever cache that is.
#include <math.h>

#include "gpuworker/model/tokenizer_internal.h"
#include "gpuworker/resident/coded.h"
#include "gpuworker/worker_internal.h"
#include "kernels/f16.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, PROMPT = 230, MORE = 80 };

static gpw_model_t *model;
static int32_t prompt[PROMPT];
static answer_t sampled, greedy; // of the full cache, MORE tokens

// An answer with the probabilities of its tokens.
typedef struct told {
    answer_t answer;
    double nats; // of the tokens behind the first
    uint32_t logprobs;
} told_t;

static void on_tokens(void *ctx, const gpw_token_event_t *tokens, uint32_t count)
{
    told_t *told = ctx;
    answer_on_tokens(&told->answer, tokens, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(isfinite(tokens[i].logprob) && tokens[i].logprob <= 0);
        told->nats -= told->logprobs++ > 0 ? (double)tokens[i].logprob : 0;
    }
}

static void on_finish(void *ctx, gpw_finish_t finish, as_status_t status, const char *error,
                      const gpw_usage_t *usage)
{
    told_t *told = ctx;
    answer_on_finish(&told->answer, finish, status, error, usage);
}

static gpw_request_params_t params_of(const answer_t *continuation)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.continuation = continuation->tokens;
    params.want_logprobs = true;
    return params;
}

static void submit(rig_t *rig, const gpw_request_params_t *params, told_t *told)
{
    char error[256] = "";
    gpw_request_events_t events = {told, on_tokens, on_finish, NULL};
    *told = (told_t){.nats = 0};
    as_status_t status =
        gpw_worker_submit(rig->worker, params, &events, error, sizeof(error), &told->answer.id);
    if (status != AS_OK) {
        fail_msg("submit: %s", error);
    }
}

static void run(const gpw_request_params_t *params, told_t *told)
{
    rig_t rig = rig_open(rig_options(model, BLOCK_TOKENS));
    submit(&rig, params, told);
    rig_run(&rig);
    rig_close(&rig);
    assert_int_equal(told->answer.status, AS_OK);
    assert_int_equal(told->answer.finish, GPW_FINISH_LENGTH);
    assert_int_equal(told->answer.usage.completion_tokens, MORE);
    assert_int_equal(told->logprobs, MORE);
}

static void logits_of_given_tokens_are_those_of_choosing_them(void **state)
{
    (void)state;
    static told_t told;
    const answer_t *answers[] = {&sampled, &greedy};
    for (uint32_t i = 0; i < 2; i++) {
        gpw_request_params_t params = params_of(answers[i]);
        params.choose.temperature = 1; // nothing is chosen
        run(&params, &told);
        answer_compare(&told.answer, answers[i], "full cache");
        params.horizon_set = true; // plain decoding
        run(&params, &told);
        answer_compare(&told.answer, answers[i], "full cache, horizon 0");
    }
}

static void with_verification_any_cache_gives_the_full_ones_logits(void **state)
{
    (void)state;
    static told_t told;
    for (EACH_TRIED_COMPRESSOR(c)) {
        gpw_request_params_t params = params_of(&sampled);
        params.compressor = c->name;
        params.prompt_lookup = 8;
        params.prompt_lookup_set = true;
        run(&params, &told);
        answer_compare(&told.answer, &sampled, c->name);
        const gpw_usage_t *usage = &told.answer.usage;
        assert_true(usage->verifications > 0 && usage->proposed_tokens == 0);
        assert_int_equal(usage->accepted_tokens, usage->drafted_tokens);
    }
}

static void without_it_they_are_those_of_choosing_on_what_the_compressor_keeps(void **state)
{
    (void)state;
    static told_t told;
    static answer_t lossy;
    for (EACH_TRIED_COMPRESSOR(c)) {
        gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
        params.compressor = c->name;
        params.verify = GPW_VERIFY_OFF;
        answer_alone(rig_options(model, BLOCK_TOKENS), &params, &lossy);
        params.continuation = lossy.tokens;
        params.want_logprobs = true;
        run(&params, &told);
        answer_compare(&told.answer, &lossy, c->name);
        assert_int_equal(told.answer.usage.verifications, 0);
    }
}

// ---- What is lost ------------------------------------------------------------------------------

static void seal_noise(gpw_segment_t *segment, uint32_t layer, uint32_t block, const void *extent)
{
    (void)extent;
    as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS);
    size_t count = as_extent_bytes(&shape) / sizeof(krn_f16);
    krn_f16 *noise = malloc(count * sizeof(*noise));
    assert_non_null(noise);
    for (size_t i = 0; i < count; i++) {
        uint64_t random = tiny_mix(((uint64_t)layer << 40) + ((uint64_t)block << 20) + i);
        noise[i] = krn_f16_from_float((float)(random >> 40) / 4194304.0f - 2.0f);
    }
    gpw_coded_seal(segment, layer, block, noise);
    free(noise);
}

// Perplexity of the greedy answer over what a compressor keeps; NULL: over the full cache.
static double perplexity(const gpw_compressor_t *compressor)
{
    static told_t told;
    gpw_request_params_t params = params_of(&greedy);
    params.verify = GPW_VERIFY_OFF;
    params.compressor = compressor ? "kivi4" : "none";
    rig_t rig = rig_open(rig_options(model, BLOCK_TOKENS));
    submit(&rig, &params, &told);
    for (uint32_t slot = 0; compressor && slot < rig.worker->active_max; slot++) {
        if (rig.worker->active[slot]) {
            rig.worker->active[slot]->compressor = compressor; // the engine has not seen it yet
        }
    }
    rig_run(&rig);
    rig_close(&rig);
    assert_int_equal(told.answer.status, AS_OK);
    assert_int_equal(told.logprobs, MORE);
    return exp(told.nats / (MORE - 1));
}

static void a_destroyed_cache_makes_the_full_ones_answer_unlikely(void **state)
{
    (void)state;
    gpw_compressor_t noise = *gpw_compressor_find("kivi4");
    noise.seal = seal_noise;
    double full = perplexity(NULL), close = perplexity(gpw_compressor_find("kivi4"));
    double destroyed = perplexity(&noise);
    print_message("perplexity %.3f, kivi4 %.3f, noise %.3f\n", full, close, destroyed);
    assert_true(full >= 1 && full < TINY_VOCAB);
    assert_true(fabs(log(close / full)) < log(destroyed / full) / 2);
    assert_true(destroyed > 1.5 * full);
}

// ---- Misuse, and ends --------------------------------------------------------------------------

static void end_tokens_in_it_end_nothing(void **state)
{
    (void)state;
    static bool ends[TINY_VOCAB];
    static told_t told;
    gpw_tokenizer_t tokenizer = {.count = TINY_VOCAB, .end = ends}, *own = model->tokenizer;
    memset(ends, 0, sizeof(ends));
    ends[sampled.tokens[MORE / 2]] = true;
    model->tokenizer = &tokenizer;
    for (int off = 0; off < 2; off++) {
        gpw_request_params_t params = params_of(&sampled);
        params.ignore_end = false;
        params.compressor = "kivi4";
        params.verify = off ? GPW_VERIFY_OFF : GPW_VERIFY_FULL;
        run(&params, &told);
        assert_memory_equal(told.answer.tokens, sampled.tokens, MORE * sizeof(int32_t));
    }
    model->tokenizer = own;
}

static void what_is_no_token_is_named(void **state)
{
    (void)state;
    static told_t told;
    char error[256] = "";
    answer_t wrong = sampled;
    rig_t rig = rig_open(rig_options(model, BLOCK_TOKENS));
    gpw_request_params_t params = params_of(&wrong);
    gpw_request_events_t events = {&told, on_tokens, on_finish, NULL};
    wrong.tokens[3] = TINY_VOCAB;
    assert_int_equal(
        gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &told.answer.id),
        AS_ERR_INVALID);
    assert_non_null(strstr(error, "continuation token 3"));
    rig_close(&rig);
}

static void a_request_without_memory_for_it_is_refused(void **state)
{
    (void)state;
    rig_t rig = rig_open(rig_options(model, BLOCK_TOKENS));
    gpw_request_params_t params = params_of(&sampled);
    uint32_t refused = 0;
    bool taken = false;
    for (uint64_t n = 1; !taken; n++) {
        told_t told = {.nats = 0};
        char error[256] = "";
        gpw_request_events_t events = {&told, on_tokens, on_finish, NULL};
        as_mem_fail_nth(n);
        as_status_t status =
            gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &told.answer.id);
        as_mem_fail_nth(0);
        taken = status == AS_OK;
        assert_true(taken || status == AS_ERR_NO_MEMORY);
        refused += !taken;
        rig_run(&rig);
    }
    assert_true(refused >= 3); // the request, its tokens, its continuation
    rig_close(&rig);
}

static int load(void **state)
{
    (void)state;
    model = tiny_load(3);
    prompt_make(prompt, PROMPT, 0, 29);
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &greedy);
    params.choose = (gpw_choose_params_t){.temperature = 0.9f, .top_p = 1, .seed = 3};
    answer_alone(rig_options(model, BLOCK_TOKENS), &params, &sampled);
    assert_int_equal(sampled.count, MORE);
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
        cmocka_unit_test(logits_of_given_tokens_are_those_of_choosing_them),
        cmocka_unit_test(with_verification_any_cache_gives_the_full_ones_logits),
        cmocka_unit_test(without_it_they_are_those_of_choosing_on_what_the_compressor_keeps),
        cmocka_unit_test(a_destroyed_cache_makes_the_full_ones_answer_unlikely),
        cmocka_unit_test(end_tokens_in_it_end_nothing),
        cmocka_unit_test(what_is_no_token_is_named),
        cmocka_unit_test(a_request_without_memory_for_it_is_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
