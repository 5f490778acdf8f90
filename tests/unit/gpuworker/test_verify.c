// SPDX-License-Identifier: Apache-2.0
// Verified drafting on small models, of prompts of all lengths: a sample always, all combinations (verify_grid.h) with
// ASSAY_TEST_FULL=1.
#include "verify_grid.h"

static void a_small_model_verifies_to_the_same_bits(void **state)
{
    (void)state;
    static grid_t grid;
    gpw_model_t *model = tiny_load(3);
    grid =
        (grid_t){.model = model, .block_tokens = 16, .max_tokens = 64, .stride = is_full() ? 1 : 5};
    for (uint32_t p = 0; p < PROMPTS; p++) {
        grid.counts[p] = 33 + p * 20;
        prompt_make(grid.tokens[p], grid.counts[p], 0, 100 + p);
    }
    run_grid(&grid);
    gpw_model_free(model);
}

// Around the ends of blocks, of the newest tokens that are never sealed, and of what a compressor
// looks at; with one token there is nothing to look back to.
static void short_prompts_verify_to_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 31, 32, 33, 47, 48, 49, 63, 64, 65};
    enum { MORE = 32 };
    static answer_t expected, answers[MORE];
    const char *names[MORE];
    gpw_model_t *model = tiny_load(3);
    gpw_worker_options_t options = rig_options(model, 16);
    options.sessions_max = BATCH;
    rig_t rig = rig_open(options);
    int32_t tokens[65];
    for (uint32_t p = 0; p < sizeof(counts) / sizeof(counts[0]); p++) {
        prompt_make(tokens, counts[p], 0, 300 + p);
        gpw_request_params_t params = request_params(tokens, counts[p], 40);
        answer_submit(rig.worker, &params, &expected);
        params.horizon = 4;
        params.horizon_set = true;
        uint32_t count = 0;
        for (EACH_TRIED_COMPRESSOR(c)) {
            assert_true(count < MORE);
            params.compressor = names[count] = c->name;
            answer_submit(rig.worker, &params, &answers[count++]);
        }
        rig_run(&rig);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(answers[i].status, AS_OK);
            answer_compare(&answers[i], &expected, names[i]);
        }
    }
    rig_close(&rig);
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_model_verifies_to_the_same_bits),
        cmocka_unit_test(short_prompts_verify_to_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
