// SPDX-License-Identifier: Apache-2.0
// Verified drafting on the real model. With ASSAY_TEST_FULL=1 every fifth combination (verify_grid.h), which are some
// with each compressor at each horizon, greedy and sampled: hundreds; test_verify has all of them, on a small model.
#include "verify_grid.h"

// Prompts from the golden text, each from another place; a few are long enough for StreamingLLM to
// drop blocks.
static void real_prompts(grid_t *grid)
{
    char path[512];
    FILE *file = fopen(fixture_golden("english.txt", path), "r");
    assert_non_null(file);
    static char text[32768];
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    assert_true(bytes > 8000);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        static int32_t tokens[16384];
        size_t count = 0;
        gpw_encode_options_t encode = {0};
        size_t from = (size_t)p * 251 % (bytes / 3);
        while (from < bytes && text[from] != ' ') {
            from++;
        }
        assert_int_equal(gpw_tokenizer_encode(grid->model->tokenizer, text + from, bytes - from,
                                              encode, tokens, 16384, &count),
                         AS_OK);
        uint32_t want = p % 7 == 0 ? 440 : 80 + p * 7;
        grid->counts[p] = count < want ? (uint32_t)count : want;
        memcpy(grid->tokens[p], tokens, grid->counts[p] * sizeof(int32_t));
    }
}

static void the_real_model_verifies_to_the_same_bits(void **state)
{
    (void)state;
    static grid_t grid;
    gpw_model_t *model = fixture_load_real();
    grid = (grid_t){.model = model,
                    .block_tokens = 64,
                    .max_tokens = is_full() ? 32 : 24,
                    .stride = is_full() ? 5 : 37};
    real_prompts(&grid);
    run_grid(&grid);
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_model_verifies_to_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
