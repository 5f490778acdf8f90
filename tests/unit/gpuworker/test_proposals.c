// SPDX-License-Identifier: Apache-2.0
// Prompt lookup in the engine: proposals that are right save steps, those that are wrong leave no trace.
#include "gpuworker/resident/compressor.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { PROMPT = 230, MORE = 150, BLOCK_TOKENS = 16, COMPRESSORS_MAX = 32 };

static gpw_model_t *model;
static int32_t prompt[PROMPT];

static rig_t open_rig(void)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.context_max = 512;
    options.sessions_max = COMPRESSORS_MAX;
    return rig_open(options);
}

// A request whose matches are all believed for a while, right or wrong.
static void submit(rig_t *rig, const char *compressor, uint32_t horizon, uint32_t lookup,
                   answer_t *answer)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.compressor = compressor;
    params.horizon = horizon;
    params.prompt_lookup = lookup;
    params.horizon_set = params.prompt_lookup_set = true;
    answer_submit(rig->worker, &params, answer);
    for (uint32_t slot = 0; slot < rig->worker->active_max; slot++) {
        gpw_request_t *request = rig->worker->active[slot];
        for (uint32_t l = 0; request && request->id == answer->id && l < GPW_LOOKUP_LENGTHS; l++) {
            request->lookup.acceptance[l] = 1; // the engine has not seen it yet
        }
    }
}

// The drafts are the very same, token for token: rows behind a wrong proposal are never attended to, and what
// they left behind is written over. With a fixed horizon equal drafts mean equal verifications.
static void proposals_change_no_draft(void **state)
{
    (void)state;
    static answer_t plain, without[COMPRESSORS_MAX], with[COMPRESSORS_MAX];
    const char *names[COMPRESSORS_MAX];
    uint32_t wrong = 0, right = 0, count = 0;
    for (EACH_TRIED_COMPRESSOR(c)) {
        assert_true(count < COMPRESSORS_MAX);
        names[count++] = c->name;
    }
    for (uint32_t horizon = 3; horizon <= 48; horizon *= 4) {
        rig_t rig = open_rig();
        submit(&rig, "none", 0, GPW_LOOKUP_MAX, &plain);
        rig_run(&rig);
        assert_int_equal(plain.usage.drafted_tokens, 0);
        for (uint32_t i = 0; i < count; i++) {
            submit(&rig, names[i], horizon, 0, &without[i]);
        }
        rig_run(&rig);
        for (uint32_t i = 0; i < count; i++) {
            submit(&rig, names[i], horizon, GPW_LOOKUP_MAX, &with[i]);
        }
        rig_run(&rig);
        for (uint32_t i = 0; i < count; i++) {
            const gpw_usage_t *usage = &with[i].usage, *before = &without[i].usage;
            answer_compare(&without[i], &plain, names[i]);
            answer_compare(&with[i], &plain, names[i]);
            assert_int_equal(usage->drafted_tokens, before->drafted_tokens);
            assert_int_equal(usage->accepted_tokens, before->accepted_tokens);
            assert_int_equal(usage->verifications, before->verifications);
            assert_int_equal(before->proposed_tokens, 0);
            assert_true(usage->proposals_accepted <= usage->proposed_tokens);
            right += usage->proposals_accepted;
            wrong += usage->proposed_tokens - usage->proposals_accepted;
        }
        rig_close(&rig);
    }
    printf("%u proposals were right, %u wrong\n", right, wrong);
    assert_true(right > 20 && wrong > 20);
}

// Where nothing is drafted, proposals are verified as drafts are.
static void a_full_cache_confirms_proposals_directly(void **state)
{
    (void)state;
    static answer_t plain, answers[3];
    static const uint32_t most[] = {1, 4, GPW_LOOKUP_MAX};
    rig_t rig = open_rig();
    submit(&rig, "none", 0, 0, &plain);
    rig_run(&rig);
    for (uint32_t i = 0; i < 3; i++) {
        submit(&rig, "none", 16, most[i], &answers[i]);
    }
    rig_run(&rig);
    for (uint32_t i = 0; i < 3; i++) {
        const gpw_usage_t *usage = &answers[i].usage;
        answer_compare(&answers[i], &plain, "none");
        assert_int_equal(usage->drafted_tokens, usage->proposed_tokens);
        assert_int_equal(usage->accepted_tokens, usage->proposals_accepted);
        assert_true(usage->proposals_accepted > 0);
        assert_int_equal(usage->verifications + usage->accepted_tokens, MORE - 1);
    }
    rig_close(&rig);
}

// Both ends of what there is to say: nothing is proposed where it is off, where nothing is verified, and where
// plain decoding was asked for.
static void lookup_is_off_where_it_is_not_wanted(void **state)
{
    (void)state;
    static answer_t answer;
    rig_t rig = open_rig();
    gpw_request_params_t params = request_params(prompt, PROMPT, 20);
    params.compressor = "kivi4";
    params.verify = GPW_VERIFY_OFF;
    params.prompt_lookup = GPW_LOOKUP_MAX;
    params.prompt_lookup_set = true;
    answer_submit(rig.worker, &params, &answer);
    rig_run(&rig);
    assert_int_equal(answer.status, AS_OK);
    assert_int_equal(answer.usage.proposed_tokens, 0);
    char error[160];
    uint64_t id;
    gpw_request_events_t events = {&answer, answer_on_tokens, answer_on_finish, NULL};
    params.prompt_lookup = GPW_LOOKUP_MAX + 1;
    assert_int_equal(gpw_worker_submit(rig.worker, &params, &events, error, sizeof(error), &id),
                     AS_ERR_INVALID);
    assert_non_null(strstr(error, "prompt_lookup must be at most"));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proposals_change_no_draft),
        cmocka_unit_test(a_full_cache_confirms_proposals_directly),
        cmocka_unit_test(lookup_is_off_where_it_is_not_wanted),
    };
    model = tiny_load(3);
    for (uint32_t i = 0; i < PROMPT; i++) { // a list of like entries
        prompt[i] = (int32_t)(tiny_mix(i % 23 < 18 ? i % 23 : i) % TINY_VOCAB);
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpw_model_free(model);
    return failed;
}
