// SPDX-License-Identifier: Apache-2.0
// What drafts are to be right about and what they must leave no trace of, with compressors at both
// ends: one that keeps everything, and one that keeps noise.
#include "gpuworker/resident/kivi.h"
#include "gpuworker/worker_internal.h"
#include "kernels/f16.h"
#include "worker_fixture.h"

enum { PROMPT = 230, MORE = 120, BLOCK_TOKENS = 16, COMMITTED = 320 };

static gpw_model_t *model;
static int32_t prompt[PROMPT];

static gpw_worker_options_t worker_options(void)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.context_max = 512;
    return options;
}

// Keeps everything, by the code that keeps a part.
static gpw_compressor_t no_op(void)
{
    gpw_compressor_t compressor = *gpw_compressor_find("snapkv");
    compressor.name = "no-op";
    compressor.params.keep_percent = 100;
    return compressor;
}

// Other keys and values than those that it was given.
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

static gpw_compressor_t noise(void)
{
    gpw_compressor_t compressor = *gpw_compressor_find("kivi4");
    compressor.name = "noise";
    compressor.seal = seal_noise;
    return compressor;
}

// Submits a request that drafts with a compressor, also one that no name finds; NULL: plain decoding.
static gpw_request_t *submit(rig_t *rig, const gpw_compressor_t *compressor, uint32_t horizon,
                             answer_t *answer)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    bool named = compressor && gpw_compressor_find(compressor->name);
    params.compressor = named ? compressor->name : compressor ? "kivi4" : "none";
    params.horizon = horizon;
    params.horizon_set = true;
    answer_submit(rig->worker, &params, answer);
    for (uint32_t slot = 0; slot < rig->worker->active_max; slot++) {
        gpw_request_t *request = rig->worker->active[slot];
        if (request && request->id == answer->id) {
            if (!named) {
                request->compressor = compressor; // the engine has not seen it yet
            }
            return request;
        }
    }
    fail();
    return NULL;
}

static void expect_right(const answer_t *answer, const answer_t *expected, const char *name)
{
    assert_int_equal(answer->status, AS_OK);
    assert_int_equal(expected->status, AS_OK);
    answer_compare(answer, expected, name);
}

static const uint32_t horizons[] = {1, 4, 16, 64};

static void a_no_op_compressor_has_every_draft_accepted(void **state)
{
    (void)state;
    static answer_t expected, answers[4];
    gpw_compressor_t compressor = no_op();
    rig_t rig = rig_open(worker_options());
    submit(&rig, NULL, 0, &expected);
    rig_run(&rig);
    for (uint32_t h = 0; h < 4; h++) { // together
        submit(&rig, &compressor, horizons[h], &answers[h]);
    }
    rig_run(&rig);
    for (uint32_t h = 0; h < 4; h++) {
        const gpw_usage_t *usage = &answers[h].usage;
        expect_right(&answers[h], &expected, "no-op");
        assert_true(usage->drafted_tokens > 0);
        assert_int_equal(usage->accepted_tokens, usage->drafted_tokens);
        // Each verification gives its drafts and one more; the first token is prefill's.
        assert_int_equal(usage->drafted_tokens + usage->verifications, MORE - 1);
    }
    rig_close(&rig);
}

static void a_noise_compressor_has_hardly_a_draft_accepted_and_changes_nothing(void **state)
{
    (void)state;
    static answer_t expected, answers[4];
    gpw_compressor_t compressor = noise();
    rig_t rig = rig_open(worker_options());
    submit(&rig, NULL, 0, &expected);
    for (uint32_t h = 0; h < 3; h++) {
        submit(&rig, &compressor, horizons[h], &answers[h]);
    }
    rig_run(&rig);
    for (uint32_t h = 0; h < 3; h++) {
        const gpw_usage_t *usage = &answers[h].usage;
        expect_right(&answers[h], &expected, "noise");
        if (usage->accepted_tokens * 10 > usage->drafted_tokens) {
            fail_msg("horizon %u: %u of %u drafts were accepted", horizons[h],
                     usage->accepted_tokens, usage->drafted_tokens);
        }
    }
    rig_close(&rig);
}

// The full cache of the first COMMITTED positions, once they are committed; then runs to the end.
static uint8_t *committed_cache(const gpw_compressor_t *compressor, uint32_t horizon)
{
    static answer_t answer;
    rig_t rig = rig_open(worker_options());
    gpw_request_t *request = submit(&rig, compressor, horizon, &answer);
    size_t bytes = as_block_bytes(&rig.worker->engine->shape);
    uint8_t *cache = malloc(COMMITTED / BLOCK_TOKENS * bytes);
    assert_non_null(cache);
    while (!request->cached || request->blocks.tokens < COMMITTED) {
        assert_false(answer.finished);
        assert_true(as_loop_run_once(rig.loop, true));
    }
    for (uint32_t b = 0; b < COMMITTED / BLOCK_TOKENS; b++) {
        memcpy(cache + b * bytes, request->blocks.block[b].memory, bytes);
    }
    rig_run(&rig);
    assert_int_equal(answer.status, AS_OK);
    rig_close(&rig);
    return cache;
}

static void expect_committed(const gpw_compressor_t *compressor, const uint8_t *expected)
{
    as_shape_t shape = gpw_model_shape(model, BLOCK_TOKENS);
    for (uint32_t h = 1; h < 3; h++) { // shorter than a block, and as long
        uint8_t *cache = committed_cache(compressor, horizons[h]);
        if (memcmp(cache, expected, COMMITTED / BLOCK_TOKENS * as_block_bytes(&shape)) != 0) {
            fail_msg("%s, horizon %u: other keys or values", compressor->name, horizons[h]);
        }
        free(cache);
    }
}

// What is stored must not tell that there were drafts.
static void committed_keys_and_values_are_those_of_plain_decoding(void **state)
{
    (void)state;
    gpw_compressor_t wrong = noise();
    uint8_t *expected = committed_cache(NULL, 0);
    for (EACH_TRIED_COMPRESSOR(c)) {
        expect_committed(c, expected);
    }
    expect_committed(&wrong, expected);
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_no_op_compressor_has_every_draft_accepted),
        cmocka_unit_test(a_noise_compressor_has_hardly_a_draft_accepted_and_changes_nothing),
        cmocka_unit_test(committed_keys_and_values_are_those_of_plain_decoding),
    };
    model = tiny_load(3);
    prompt_make(prompt, PROMPT, 0, 41);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpw_model_free(model);
    return failed;
}
