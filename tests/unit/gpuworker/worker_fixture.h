// SPDX-License-Identifier: Apache-2.0
// What the tests of the engine share: a small model, prompts, and requests whose answers are kept.
#ifndef WORKER_FIXTURE_H
#define WORKER_FIXTURE_H

#include <unistd.h>

#include "calibration_fixture.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/resident/read/reader.h"
#include "gpuworker/worker.h"
#include "model_fixture.h"
#include "tiny_model.h"

#define ANSWER_TOKENS_MAX 512u

typedef struct answer {
    int32_t tokens[ANSWER_TOKENS_MAX];
    uint64_t hashes[ANSWER_TOKENS_MAX];
    uint32_t count;
    bool finished;
    gpw_finish_t finish;
    as_status_t status;
    char error[160];
    gpw_usage_t usage;
    uint64_t id;
    as_loop_t *loop; // for finished_us; may be NULL
    uint64_t finished_us;
} answer_t;

// Whether its steps read what the ones before them chose.
static inline bool compressor_remembers(const gpw_compressor_t *compressor)
{
    return compressor->params.reader && compressor->params.reader->scan;
}

static inline bool compressors_are_alike(const gpw_compressor_t *a, const gpw_compressor_t *b)
{
    return a->open == b->open && !((a->flags ^ b->flags) & GPW_COMPRESSOR_DATA_SIZED) &&
           compressor_remembers(a) == compressor_remembers(b);
}

// Whether tests that let engines run try this row of the table. One of each way in which segments are
// held is tried, which is what an engine can see of a method; all with ASSAY_TEST_FULL=1.
static inline bool compressor_is_tried(const gpw_compressor_t *compressor)
{
    const gpw_compressor_t *c = gpw_compressors();
    while (!compressors_are_alike(c, compressor)) {
        c++;
    }
    return c == compressor || getenv("ASSAY_TEST_FULL");
}

// The next row from `c` on that is tried; one without a name when there is none.
static inline const gpw_compressor_t *compressor_tried(const gpw_compressor_t *c)
{
    while (c->name && !compressor_is_tried(c)) {
        c++;
    }
    return c;
}

#define EACH_TRIED_COMPRESSOR(c)                                                                   \
    const gpw_compressor_t *c = compressor_tried(gpw_compressors());                               \
    c->name;                                                                                       \
    c = compressor_tried(c + 1)

// Makes what attention and the feed-forward part add weigh more than the token itself. Else the
// next token hardly depends on the cache, drafts are nearly always right, and a verification that
// accepts anything would pass.
static inline void tiny_sharpen(gpw_model_t *model)
{
    for (uint32_t l = 0; l < model->layers; l++) {
        krn_weight_t *weights[] = {&model->layer[l].o, &model->layer[l].down};
        for (int w = 0; w < 2; w++) {
            krn_f16 *data = weights[w]->data;
            size_t count = krn_weight_bytes(KRN_WEIGHT_F16, weights[w]->n, weights[w]->k) / 2;
            for (size_t i = 0; i < count; i++) {
                // + 3 in the exponent of a normal number: times eight.
                data[i] = (data[i] & 0x7c00u) ? (krn_f16)(data[i] + (3u << 10)) : data[i];
            }
        }
    }
}

static inline gpw_model_t *tiny_load(uint32_t layers)
{
    tiny_t tiny = tiny_default;
    tiny.layers = layers;
    gpw_model_t *model = tiny_open(&tiny, KRN_WEIGHT_F16);
    tiny_sharpen(model);
    return model;
}

static inline void answer_on_tokens(void *ctx, const gpw_token_event_t *tokens, uint32_t count)
{
    answer_t *answer = ctx;
    assert_false(answer->finished);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(answer->count < ANSWER_TOKENS_MAX);
        answer->tokens[answer->count] = tokens[i].token;
        answer->hashes[answer->count++] = tokens[i].logits_hash;
    }
}

static inline void answer_on_finish(void *ctx, gpw_finish_t finish, as_status_t status,
                                    const char *error, const gpw_usage_t *usage)
{
    answer_t *answer = ctx;
    assert_false(answer->finished);
    assert_true((status == AS_OK) == (error == NULL));
    answer->finished = true;
    answer->finish = finish;
    answer->status = status;
    answer->usage = *usage;
    snprintf(answer->error, sizeof(answer->error), "%s", error ? error : "");
    answer->finished_us = answer->loop ? as_loop_now_us(answer->loop) : 0;
}

// Tokens that depend on the seed, and share their first `shared` tokens with all seeds.
static inline void prompt_make(int32_t *tokens, uint32_t count, uint32_t shared, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t from = i < shared ? 7 : seed;
        tokens[i] = (int32_t)(tiny_mix(from * 1000003u + i) % TINY_VOCAB);
    }
}

static inline gpw_request_params_t request_params(const int32_t *tokens, uint32_t count,
                                                  uint32_t max_tokens)
{
    gpw_request_params_t params = {.tokens = tokens,
                                   .token_count = count,
                                   .max_tokens = max_tokens,
                                   .choose = {.temperature = 0, .top_p = 1},
                                   .compressor = "none",
                                   .logits_hash = true,
                                   .ignore_end = true};
    return params;
}

static inline void answer_submit(gpw_worker_t *worker, const gpw_request_params_t *params,
                                 answer_t *answer)
{
    char error[256] = "";
    gpw_request_events_t events = {answer, answer_on_tokens, answer_on_finish, NULL};
    as_loop_t *loop = answer->loop;
    *answer = (answer_t){.loop = loop};
    as_status_t status =
        gpw_worker_submit(worker, params, &events, error, sizeof(error), &answer->id);
    if (status != AS_OK) {
        fail_msg("submit: %s", error);
    }
}

static inline void answer_compare(const answer_t *answer, const answer_t *expected,
                                  const char *what)
{
    if (answer->count != expected->count) {
        fail_msg("%s: %u tokens, expected %u", what, answer->count, expected->count);
    }
    for (uint32_t i = 0; i < answer->count; i++) {
        if (answer->tokens[i] != expected->tokens[i] || answer->hashes[i] != expected->hashes[i]) {
            fail_msg("%s: token %u is %d (%016llx), expected %d (%016llx)", what, i,
                     answer->tokens[i], (unsigned long long)answer->hashes[i], expected->tokens[i],
                     (unsigned long long)expected->hashes[i]);
        }
    }
}

// A worker without stores on a simulated loop.
typedef struct rig {
    as_loop_t *loop;
    gpw_worker_t *worker;
} rig_t;

static inline gpw_worker_options_t rig_options(const gpw_model_t *model, uint32_t block_tokens)
{
    static gpw_calibration_t calibrations[8]; // of the last ones: a worker copies its own
    static uint32_t next;
    gpw_calibration_t *calibration = &calibrations[next++ % 8];
    as_shape_t shape = gpw_model_shape(model, block_tokens);
    gpw_worker_options_t options;
    gpw_worker_options_init(&options);
    options.model = model;
    options.ops = krn_cpu();
    options.block_tokens = block_tokens;
    *calibration = calibration_of(&model->fingerprint, &shape);
    options.calibration = calibration;
    return options;
}

static inline rig_t rig_open(gpw_worker_options_t options)
{
    rig_t rig = {0};
    assert_int_equal(as_loop_alloc_sim(&rig.loop), AS_OK);
    options.engine_loop = options.io_loop = rig.loop;
    assert_int_equal(gpw_worker_alloc(&options, &rig.worker), AS_OK);
    return rig;
}

static inline void rig_close(rig_t *rig)
{
    gpw_worker_free(rig->worker);
    as_loop_free(rig->loop);
}

// Runs until no request is left.
static inline void rig_run(rig_t *rig)
{
    while (!gpw_worker_idle(rig->worker)) {
        assert_true(as_loop_run_once(rig->loop, true) || gpw_worker_idle(rig->worker));
    }
}

// The answer of a worker of its own, alone.
static inline void answer_alone(gpw_worker_options_t options, const gpw_request_params_t *params,
                                answer_t *answer)
{
    rig_t rig = rig_open(options);
    answer_submit(rig.worker, params, answer);
    rig_run(&rig);
    assert_int_equal(answer->status, AS_OK);
    rig_close(&rig);
}

#endif
