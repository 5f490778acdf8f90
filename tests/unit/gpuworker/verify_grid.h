// SPDX-License-Identifier: Apache-2.0
// Verified drafting gives the tokens and the logits' bits of full-cache decoding.
//
// Every combination of prompt, compressor, horizon and way of choosing runs against plain decoding
// by the same worker, several requests at a time, every other one with prompt lookup.
#ifndef TESTS_VERIFY_GRID_H
#define TESTS_VERIFY_GRID_H

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

static inline bool is_full(void)
{
    return getenv("ASSAY_TEST_FULL") != NULL;
}

static inline gpw_choose_params_t choice(bool sampled, uint32_t prompt)
{
    gpw_choose_params_t greedy = {.temperature = 0, .top_p = 1};
    gpw_choose_params_t seeded = {
        .temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .seed = 1234 + prompt};
    return sampled ? seeded : greedy;
}

// The combinations of one prompt and way of choosing against their reference, BATCH at a time.
static inline void run_prompt(grid_t *grid, rig_t *rig, uint32_t prompt, bool sampled)
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

static inline void run_grid(grid_t *grid)
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

#endif
