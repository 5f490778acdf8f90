// SPDX-License-Identifier: Apache-2.0
// What the tests of the model share: loading it, a paged full cache of one session, and passes over
// it.
#ifndef MODEL_FIXTURE_H
#define MODEL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "gpuworker/model/forward.h"

#define FIXTURE_PAGE_TOKENS 64u

// Path of a file below tests/golden.
static inline const char *fixture_golden(const char *name, char path[512])
{
    snprintf(path, 512, "%s/tests/golden/%s", ASSAY_SOURCE_DIR, name);
    return path;
}

// The model that the environment names. Never skips: without it the test fails and says what to do.
static inline gpw_model_t *fixture_load_real(void)
{
    const char *path = getenv("ASSAY_MODEL");
    if (!path) {
        fail_msg(
            "ASSAY_MODEL is not set: run ASSAY_MODEL=$(tools/fetch-model) first, or ./dev test");
    }
    char error[256] = "";
    gpw_model_t *model = NULL;
    gpw_model_options_t options = {.path = path};
    if (gpw_model_load(&options, error, sizeof(error), &model) != AS_OK) {
        fail_msg("cannot load %s: %s", path, error);
    }
    return model;
}

static inline gpw_model_t *fixture_load_golden(const char *name, krn_weight_type_t weights)
{
    char path[512], error[256] = "";
    gpw_model_t *model = NULL;
    gpw_model_options_t options = {.path = fixture_golden(name, path), .weights = weights};
    if (gpw_model_load(&options, error, sizeof(error), &model) != AS_OK) {
        fail_msg("cannot load %s: %s", path, error);
    }
    return model;
}

typedef struct fixture {
    const gpw_model_t *model;
    const krn_ops_t *ops;
    krn_pool_t *pool;
    gpw_workspace_t *workspace;
    gpw_forward_t *forward;
    uint32_t tokens_max;
    size_t cache_elements;
    krn_f16 *cache; // [layer][page][K or V][kv head][token][dim]
    krn_page_t *pages;
    void *scratch;
    const int32_t *positions; // of the pass
} fixture_t;

static inline size_t fixture_part(const fixture_t *fixture)
{
    return (size_t)fixture->model->kv_heads * FIXTURE_PAGE_TOKENS * fixture->model->head_dim;
}

static inline uint32_t fixture_pages(const fixture_t *fixture)
{
    return (fixture->tokens_max + FIXTURE_PAGE_TOKENS - 1) / FIXTURE_PAGE_TOKENS;
}

static inline fixture_t fixture_open(const gpw_model_t *model, const krn_ops_t *ops,
                                     uint32_t threads, uint32_t tokens_max, uint32_t rows_max)
{
    fixture_t fixture = {.model = model, .ops = ops, .tokens_max = tokens_max};
    assert_int_equal(krn_pool_alloc(threads, &fixture.pool), AS_OK);
    uint32_t chunk = rows_max < GPW_FORWARD_STEP_ROWS ? rows_max : GPW_FORWARD_STEP_ROWS;
    assert_int_equal(gpw_workspace_alloc(model, ops, fixture.pool, chunk, &fixture.workspace),
                     AS_OK);
    assert_int_equal(gpw_forward_alloc(fixture.workspace, rows_max, &fixture.forward), AS_OK);
    fixture.cache_elements =
        (size_t)model->layers * fixture_pages(&fixture) * 2 * fixture_part(&fixture);
    fixture.cache = as_mem_zalloc(fixture.cache_elements, sizeof(krn_f16));
    fixture.pages = as_mem_zalloc(fixture_pages(&fixture), sizeof(krn_page_t));
    fixture.scratch =
        as_mem_aligned(64, krn_attention_scratch_bytes(chunk, model->q_heads, model->head_dim));
    assert_non_null(fixture.cache);
    assert_non_null(fixture.pages);
    assert_non_null(fixture.scratch);
    return fixture;
}

static inline void fixture_close(fixture_t *fixture)
{
    gpw_forward_free(fixture->forward);
    gpw_workspace_free(fixture->workspace);
    krn_pool_free(fixture->pool);
    as_mem_free(fixture->scratch);
    as_mem_free(fixture->pages);
    as_mem_free(fixture->cache);
}

static inline krn_f16 *fixture_page(const fixture_t *fixture, uint32_t layer, uint32_t page)
{
    return fixture->cache +
           ((size_t)layer * fixture_pages(fixture) + page) * 2 * fixture_part(fixture);
}

static inline void fixture_store(const fixture_t *fixture, uint32_t layer, uint32_t position,
                                 const krn_f16 *k, const krn_f16 *v)
{
    uint32_t dim = fixture->model->head_dim;
    krn_f16 *page = fixture_page(fixture, layer, position / FIXTURE_PAGE_TOKENS);
    for (uint32_t head = 0; head < fixture->model->kv_heads; head++) {
        size_t to = ((size_t)head * FIXTURE_PAGE_TOKENS + position % FIXTURE_PAGE_TOKENS) * dim;
        memcpy(page + to, k + (size_t)head * dim, dim * sizeof(*k));
        memcpy(page + fixture_part(fixture) + to, v + (size_t)head * dim, dim * sizeof(*v));
    }
}

static inline void fixture_attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows,
                                  const float *q, const krn_f16 *k, const krn_f16 *v, float *out)
{
    fixture_t *fixture = ctx;
    const gpw_model_t *model = fixture->model;
    size_t kv = (size_t)model->kv_heads * model->head_dim;
    const int32_t *positions = fixture->positions + row0;
    int32_t last = 0;
    for (uint32_t row = 0; row < rows; row++) {
        fixture_store(fixture, layer, (uint32_t)positions[row], k + row * kv, v + row * kv);
        last = positions[row] > last ? positions[row] : last;
    }
    uint32_t pages = (uint32_t)last / FIXTURE_PAGE_TOKENS + 1;
    for (uint32_t i = 0; i < pages; i++) {
        krn_f16 *page = fixture_page(fixture, layer, i);
        fixture->pages[i] = (krn_page_t){.k = page, .v = page + fixture_part(fixture), .index = i};
    }
    krn_attention_args_t args = {.rows = rows,
                                 .q_heads = model->q_heads,
                                 .kv_heads = model->kv_heads,
                                 .dim = model->head_dim,
                                 .capacity = FIXTURE_PAGE_TOKENS,
                                 .scale = 1.0f / __builtin_sqrtf((float)model->head_dim),
                                 .q = q,
                                 .positions = positions,
                                 .pages = fixture->pages,
                                 .page_count = pages};
    krn_attention(fixture->ops, fixture->pool, &args, out, NULL, fixture->scratch);
}

// One pass of rows at any positions; the caller then asks for logits.
static inline void fixture_pass(fixture_t *fixture, const int32_t *tokens, const int32_t *positions,
                                uint32_t rows)
{
    fixture->positions = positions;
    gpw_forward_begin(fixture->forward, tokens, positions, rows);
    while (gpw_forward_next_layer(fixture->forward) < fixture->model->layers) {
        gpw_forward_layer(fixture->forward, fixture_attend, fixture);
    }
}

// Logits [count][vocab] of rows [0, count) of the pass.
static inline void fixture_logits(fixture_t *fixture, uint32_t count, float *logits)
{
    gpw_forward_row_t *rows = as_mem_zalloc(count, sizeof(*rows));
    assert_non_null(rows);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = (gpw_forward_row_t){fixture->forward, i};
    }
    gpw_forward_logits(fixture->workspace, rows, count, logits);
    as_mem_free(rows);
}

// `count` tokens from position `first`, in passes of `chunk`. Logits of all of them [count][vocab]
// unless NULL.
static inline void fixture_prefill(fixture_t *fixture, const int32_t *tokens, uint32_t first,
                                   uint32_t count, uint32_t chunk, float *logits)
{
    int32_t *positions = as_mem_zalloc(chunk, sizeof(*positions));
    assert_non_null(positions);
    for (uint32_t at = 0; at < count; at += chunk) {
        uint32_t pass_rows = count - at < chunk ? count - at : chunk;
        for (uint32_t i = 0; i < pass_rows; i++) {
            positions[i] = (int32_t)(first + at + i);
        }
        fixture_pass(fixture, tokens + at, positions, pass_rows);
        if (logits) {
            fixture_logits(fixture, pass_rows, logits + (size_t)at * fixture->model->vocab);
        }
    }
    as_mem_free(positions);
}

#endif
