// SPDX-License-Identifier: Apache-2.0
// Sessions on one chain hold its sealed blocks once: their answers do not change, the device's
// account is right at every moment, and what is shared lives as long as somebody has it.
#include "common/log.h"
#include "gpuworker/worker_internal.h"
#include "worker_fixture.h"

enum { BLOCK_TOKENS = 16, PROMPT = 170, FORKS = 4, MORE = 40 };
enum { SEALED = (PROMPT - GPW_RESIDUAL_TOKENS) / BLOCK_TOKENS }; // blocks of the prompt

static gpw_model_t *model;
static int32_t prompt[PROMPT], other[PROMPT];

static rig_t open_rig(void)
{
    gpw_worker_options_t options = rig_options(model, BLOCK_TOKENS);
    options.sessions_max = FORKS;
    options.threads = 1;
    options.tick_us = 100;
    return rig_open(options);
}

static gpw_request_params_t fork_params(const char *compressor, uint64_t seed)
{
    gpw_request_params_t params = request_params(prompt, PROMPT, MORE);
    params.compressor = compressor;
    params.horizon = 4;
    params.horizon_set = true;
    params.choose = (gpw_choose_params_t){.temperature = 1.5f, .top_p = 1, .seed = seed};
    return params;
}

static const gpw_engine_t *engine_of(const rig_t *rig)
{
    return rig->worker->engine;
}

static uint32_t shared_blocks(const rig_t *rig)
{
    uint32_t blocks = 0;
    for (const gpw_request_t *r = engine_of(rig)->first; r; r = r->next) {
        blocks += r->sealed.shared_blocks;
    }
    return blocks;
}

// What is used is what sessions use and what is shared.
static void check_account(const rig_t *rig)
{
    const gpw_engine_t *engine = engine_of(rig);
    uint64_t used = gpw_shared_bytes(engine->shared), reserved = used;
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        used += r->budget.used_bytes;
        reserved += r->budget.reserved_bytes;
    }
    assert_int_equal(used, engine->device.used_bytes);
    assert_int_equal(reserved, engine->device.reserved_bytes);
}

static void run_until_sealed(rig_t *rig, const answer_t *answers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        while (answers[i].count < 2) {
            assert_true(as_loop_run_once(rig->loop, true));
            check_account(rig);
        }
    }
}

static void run_to_end(rig_t *rig)
{
    while (!gpw_worker_idle(rig->worker)) {
        as_loop_run_once(rig->loop, true);
        check_account(rig);
    }
    assert_int_equal(gpw_shared_bytes(engine_of(rig)->shared), 0);
    assert_int_equal(engine_of(rig)->device.reserved_bytes, 0);
}

static uint64_t block_bytes(const char *compressor)
{
    rig_t rig = open_rig();
    static answer_t answer;
    gpw_request_params_t params = fork_params(compressor, 1);
    answer_submit(rig.worker, &params, &answer);
    run_until_sealed(&rig, &answer, 1);
    uint64_t bytes = gpw_shared_bytes(engine_of(&rig)->shared);
    assert_int_equal(shared_blocks(&rig), SEALED);
    assert_int_equal(bytes % SEALED, 0);
    run_to_end(&rig);
    rig_close(&rig);
    return bytes / SEALED;
}

static void forks_hold_a_sealed_block_once(void **state)
{
    (void)state;
    // The last two choose what they read for each session, and one of them remembers it.
    static const char *const names[] = {"kivi4", "kivi2", "clusterkv", "specache"};
    static answer_t alone[FORKS], forks[FORKS];
    for (int n = 0; n < 4; n++) {
        uint64_t one = block_bytes(names[n]);
        for (uint32_t i = 0; i < FORKS; i++) {
            rig_t rig = open_rig();
            gpw_request_params_t params = fork_params(names[n], i);
            answer_submit(rig.worker, &params, &alone[i]);
            run_to_end(&rig);
            rig_close(&rig);
        }
        rig_t rig = open_rig();
        for (uint32_t i = 0; i < FORKS; i++) {
            gpw_request_params_t params = fork_params(names[n], i);
            answer_submit(rig.worker, &params, &forks[i]);
        }
        run_until_sealed(&rig, forks, FORKS);
        assert_int_equal(shared_blocks(&rig), FORKS * SEALED);
        assert_int_equal(gpw_shared_bytes(engine_of(&rig)->shared), SEALED * one);
        gpw_worker_cancel(rig.worker, forks[0].id); // who hung them up goes first
        run_to_end(&rig);
        for (uint32_t i = 1; i < FORKS; i++) {
            answer_compare(&forks[i], &alone[i], names[n]);
            assert_int_equal(forks[i].usage.resident_bytes, alone[i].usage.resident_bytes);
        }
        assert_true(memcmp(forks[1].tokens, forks[2].tokens, sizeof(forks[1].tokens)) != 0);
        rig_close(&rig);
    }
}

// Another prompt, salt or compressor, a method that looks at queries, and tokens whose K and V come
// from unverified drafts: nothing in common.
static void nothing_else_is_shared(void **state)
{
    (void)state;
    static answer_t answers[FORKS];
    rig_t rig = open_rig();
    gpw_request_params_t params[FORKS] = {fork_params("kivi4", 1), fork_params("kivi4", 1),
                                          fork_params("kivi4", 1), fork_params("snapkv", 1)};
    params[1].tokens = other;
    params[2].cache_salt = "another";
    for (uint32_t i = 0; i < FORKS; i++) {
        answer_submit(rig.worker, &params[i], &answers[i]);
    }
    run_until_sealed(&rig, answers, FORKS);
    assert_int_equal(shared_blocks(&rig), 3 * SEALED);
    assert_int_equal(gpw_shared_bytes(engine_of(&rig)->shared), 3 * SEALED * block_bytes("kivi4"));
    run_to_end(&rig);

    params[0].verify = GPW_VERIFY_OFF;
    params[0].max_tokens = MORE + 20;
    answer_submit(rig.worker, &params[0], &answers[0]);
    while (answers[0].count < MORE + 15) {
        as_loop_run_once(rig.loop, true);
    }
    assert_true(engine_of(&rig)->first->sealed.blocks > PROMPT / BLOCK_TOKENS);
    assert_true(shared_blocks(&rig) <= PROMPT / BLOCK_TOKENS);
    run_to_end(&rig);
    rig_close(&rig);
}

static void a_session_that_cannot_note_a_block_keeps_its_own(void **state)
{
    (void)state;
    static answer_t alone, forks[2];
    as_log_set_level(AS_LOG_ERROR);
    rig_t rig = open_rig();
    gpw_request_params_t params = fork_params("kivi4", 3);
    answer_submit(rig.worker, &params, &alone);
    run_to_end(&rig);
    for (uint64_t n = 1; n < 120; n += 3) {
        answer_submit(rig.worker, &params, &forks[0]);
        answer_submit(rig.worker, &params, &forks[1]);
        as_mem_fail_nth(n);
        run_to_end(&rig);
        as_mem_fail_nth(0);
        for (int i = 0; i < 2; i++) {
            if (forks[i].status == AS_OK) {
                answer_compare(&forks[i], &alone, "after a failed allocation");
            } else {
                assert_int_equal(forks[i].status, AS_ERR_NO_MEMORY);
            }
        }
    }
    rig_close(&rig);
    as_log_set_level(AS_LOG_INFO);
}

static int load(void **state)
{
    (void)state;
    model = tiny_load(2);
    prompt_make(prompt, PROMPT, 0, 31);
    prompt_make(other, PROMPT, 0, 32);
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
        cmocka_unit_test(forks_hold_a_sealed_block_once),
        cmocka_unit_test(nothing_else_is_shared),
        cmocka_unit_test(a_session_that_cannot_note_a_block_keeps_its_own),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
