// SPDX-License-Identifier: Apache-2.0
// Verified drafting gives the tokens and the logits' bits of full-cache decoding.
//
// Every combination of prompt, compressor, horizon and way of choosing runs against plain decoding
// by the same worker, several requests at a time, every other one with prompt lookup. A sample runs always; all of it with
// ASSAY_TEST_FULL=1.
#include "gpuworker/resident/compressor.h"
#include "worker_fixture.h"

static const uint32_t horizons[] = {1, 4, 16, 64};

enum { PROMPTS = 20, BATCH = 6, HORIZONS = sizeof(horizons) / sizeof(horizons[0]) };

typedef struct grid {
    const gpw_model_t *model;
    uint32_t block_tokens, max_tokens;
    int32_t tokens[PROMPTS][512];
    uint32_t counts[PROMPTS];
    uint32_t stride;                         // every stride-th combination runs
    const gpw_compressor_t *compressors[64]; // that are tried
    uint32_t compressor_count;
    answer_t *answers; // [compressor_count * HORIZONS]
    char (*names)[96];
    uint64_t drafted, accepted, proposed, runs;
} grid_t;

static bool full(void)
{
    return getenv("ASSAY_TEST_FULL") != NULL;
}

static gpw_choose_params_t choice(bool sampled, uint32_t prompt)
{
    gpw_choose_params_t greedy = {.temperature = 0, .top_p = 1};
    gpw_choose_params_t seeded = {
        .temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .seed = 1234 + prompt};
    return sampled ? seeded : greedy;
}

// The combinations of one prompt and way of choosing against their reference, BATCH at a time.
static void run_prompt(grid_t *grid, rig_t *rig, uint32_t prompt, bool sampled)
{
    static answer_t expected;
    answer_t *answers = grid->answers;
    uint32_t count = 0;
    gpw_request_params_t params =
        request_params(grid->tokens[prompt], grid->counts[prompt], grid->max_tokens);
    params.choose = choice(sampled, prompt);
    for (uint32_t c = 0; c < grid->compressor_count; c++) {
        for (uint32_t h = 0; h < HORIZONS; h++) {
            uint32_t number = ((prompt * 2 + sampled) * grid->compressor_count + c) * HORIZONS + h;
            if (number % grid->stride != 0) {
                continue;
            }
            params.compressor = grid->compressors[c]->name;
            params.horizon = horizons[h];
            params.prompt_lookup = number / grid->stride % 2 ? GPW_LOOKUP_MAX : 0;
            params.horizon_set = params.prompt_lookup_set = true;
            snprintf(grid->names[count], sizeof(grid->names[count]),
                     "prompt %u, %s, horizon %u, %s", prompt, params.compressor, horizons[h],
                     sampled ? "sampled" : "greedy");
            answer_submit(rig->worker, &params, &answers[count++]);
            if (count % BATCH == 0) {
                rig_run(rig);
            }
        }
    }
    if (count == 0) {
        return;
    }
    params.compressor = "none";
    params.prompt_lookup = 0;
    answer_submit(rig->worker, &params, &expected);
    rig_run(rig);
    assert_int_equal(expected.status, AS_OK);
    assert_int_equal(expected.count, grid->max_tokens);
    assert_int_equal(expected.usage.drafted_tokens, 0);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(answers[i].status, AS_OK);
        answer_compare(&answers[i], &expected, grid->names[i]);
        grid->drafted += answers[i].usage.drafted_tokens;
        grid->accepted += answers[i].usage.accepted_tokens;
        grid->proposed += answers[i].usage.proposed_tokens;
        grid->runs++;
    }
}

static void run_grid(grid_t *grid)
{
    gpw_worker_options_t options = rig_options(grid->model, grid->block_tokens);
    options.sessions_max = BATCH;
    options.context_max = 512;
    rig_t rig = rig_open(options);
    for (EACH_TRIED_COMPRESSOR(c)) {
        assert_true(grid->compressor_count < 64);
        grid->compressors[grid->compressor_count++] = c;
    }
    grid->answers = calloc(grid->compressor_count * HORIZONS, sizeof(*grid->answers));
    grid->names = calloc(grid->compressor_count * HORIZONS, sizeof(*grid->names));
    assert_true(grid->answers && grid->names);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        run_prompt(grid, &rig, p, false);
        run_prompt(grid, &rig, p, true);
    }
    rig_close(&rig);
    free(grid->answers);
    free(grid->names);
    printf("%llu runs, %llu drafted, %llu accepted, %llu proposed\n",
           (unsigned long long)grid->runs, (unsigned long long)grid->drafted,
           (unsigned long long)grid->accepted, (unsigned long long)grid->proposed);
    // Some drafts are right and some are wrong: else nothing was tested.
    assert_true(grid->accepted > 0 && grid->accepted < grid->drafted && grid->proposed > 0);
}

static void a_small_model_verifies_to_the_same_bits(void **state)
{
    (void)state;
    static grid_t grid;
    gpw_model_t *model = tiny_load(3);
    grid = (grid_t){.model = model, .block_tokens = 16, .max_tokens = 64, .stride = full() ? 1 : 5};
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
                    .max_tokens = full() ? 32 : 24,
                    .stride = full() ? 1 : 37};
    real_prompts(&grid);
    run_grid(&grid);
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_model_verifies_to_the_same_bits),
        cmocka_unit_test(short_prompts_verify_to_the_same_bits),
        cmocka_unit_test(the_real_model_verifies_to_the_same_bits),
    };
    // Instrumented code takes minutes for one answer of the real model; the small one runs the same
    // code.
    if (getenv("ASSAY_TEST_SANITIZED")) {
        const struct CMUnitTest small[] = {tests[0], tests[1]};
        return cmocka_run_group_tests(small, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
