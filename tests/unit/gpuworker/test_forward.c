// SPDX-License-Identifier: Apache-2.0
// Small models of every architecture and RoPE scaling give the logits of a double-precision forward
// pass (tests/golden/tiny_models.txt), and a row's bits do not depend on how its pass is cut.
#include <math.h>
#include <unistd.h>

#include "model_fixture.h"
#include "tiny_model.h"

#define TOKENS     48u
#define LINE_BYTES 16384u

// f32 sums against f64 ones, and K and V that round to the neighbouring f16 now and then (half a
// unit in 2^11 of one element): measured at most 3e-4 on logits of deviation 4.7; a wrong
// rotation or scale is off by more than 0.1.
#define LOGIT_ERROR_MAX 2e-3

static void make_tokens(int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)((i * 37 + 11) % TINY_VOCAB);
    }
}

// Logits [TOKENS][vocab] of a pass over all tokens.
static float *compute(const tiny_t *tiny, const krn_ops_t *ops, krn_weight_type_t weights,
                      uint32_t chunk)
{
    int32_t tokens[TOKENS];
    make_tokens(tokens, TOKENS);
    gpw_model_t *model = tiny_open(tiny, weights);
    fixture_t fixture = fixture_open(model, ops, 2, TOKENS, TOKENS);
    float *logits = malloc(TOKENS * TINY_VOCAB * sizeof(float));
    fixture_prefill(&fixture, tokens, 0, TOKENS, chunk, logits);
    fixture_close(&fixture);
    gpw_model_free(model);
    return logits;
}

static void check_row(const tiny_t *tiny, const float *logits, char *line, double *worst_p)
{
    uint32_t row = (uint32_t)strtoul(line + 4, &line, 10);
    assert_in_range(row, 0, TOKENS - 1);
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        double error = fabs(strtod(line, &line) - (double)logits[row * TINY_VOCAB + i]);
        *worst_p = error > *worst_p ? error : *worst_p;
        if (!(error < LOGIT_ERROR_MAX)) {
            fail_msg("%s, row %u, token %u: off by %g", tiny->name, row, i, error);
        }
    }
}

static void computes_every_architecture_and_scaling(void **state)
{
    (void)state;
    char path[512];
    static char line[LINE_BYTES];
    FILE *file = fopen(fixture_golden("tiny_models.txt", path), "r");
    assert_non_null(file);
    tiny_t tiny = {0};
    float *logits = NULL;
    double worst = 0;
    int models = 0;
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "model ", 6) == 0) {
            int read =
                sscanf(line, "model %31s %15s %u %u %u %u %u %u %u %u %u %15s", tiny.name,
                       tiny.arch, &tiny.embed, &tiny.layers, &tiny.q_heads, &tiny.kv_heads,
                       &tiny.dim, &tiny.ffn, &tiny.bias, &tiny.tied, &tiny.rope_dim, tiny.scaling);
            assert_int_equal(read, 12);
            free(logits);
            logits = compute(&tiny, krn_cpu(), KRN_WEIGHT_F32, TOKENS);
            models++;
        } else if (strncmp(line, "row ", 4) == 0) {
            check_row(&tiny, logits, line, &worst);
        }
    }
    fclose(file);
    free(logits);
    assert_int_equal(models, 7);
    print_message("worst error %.2g\n", worst);
}

static void gives_the_same_bits_with_the_reference_kernels(void **state)
{
    (void)state;
    float *fast = compute(&tiny_default, krn_cpu(), KRN_WEIGHT_F16, TOKENS);
    float *slow = compute(&tiny_default, krn_reference(), KRN_WEIGHT_F16, TOKENS);
    assert_memory_equal(fast, slow, TOKENS * TINY_VOCAB * sizeof(float));
    free(slow);
    free(fast);
}

static void gives_the_same_bits_however_the_prompt_is_cut(void **state)
{
    (void)state;
    tiny_t tiny = tiny_default;
    snprintf(tiny.arch, sizeof(tiny.arch), "qwen3");
    float *whole = compute(&tiny, krn_cpu(), KRN_WEIGHT_F16, TOKENS);
    for (uint32_t chunk = 1; chunk < TOKENS; chunk += 5) {
        float *cut = compute(&tiny, krn_cpu(), KRN_WEIGHT_F16, chunk);
        assert_memory_equal(whole, cut, TOKENS * TINY_VOCAB * sizeof(float));
        free(cut);
    }
    free(whole);
}

static void a_pass_larger_than_a_chunk_equals_passes_of_one(void **state)
{
    (void)state;
    enum { COUNT = GPW_FORWARD_STEP_ROWS + 44 };
    static int32_t tokens[COUNT];
    make_tokens(tokens, COUNT);
    gpw_model_t *model = tiny_open(&tiny_default, KRN_WEIGHT_F16);
    float *whole = malloc((size_t)COUNT * TINY_VOCAB * sizeof(float));
    float *single = malloc((size_t)COUNT * TINY_VOCAB * sizeof(float));
    fixture_t large = fixture_open(model, krn_cpu(), 2, COUNT, COUNT);
    fixture_t small = fixture_open(model, krn_cpu(), 1, COUNT, 1);
    fixture_prefill(&large, tokens, 0, COUNT, COUNT, whole);
    fixture_prefill(&small, tokens, 0, COUNT, 1, single);
    assert_memory_equal(whole, single, (size_t)COUNT * TINY_VOCAB * sizeof(float));
    assert_memory_equal(large.cache, small.cache, large.cache_elements * sizeof(krn_f16));
    fixture_close(&small);
    fixture_close(&large);
    free(single);
    free(whole);
    gpw_model_free(model);
}

// What the first halves gave, of all rows.
typedef struct halves {
    float *q, *attention;
    krn_f16 *k, *v;
    size_t q_width, kv_width;
} halves_t;

static void take(void *ctx, const gpw_forward_rows_t *rows)
{
    halves_t *h = ctx;
    memcpy(h->q + rows->row0 * h->q_width, rows->q, rows->rows * h->q_width * sizeof(float));
    memcpy(h->k + rows->row0 * h->kv_width, rows->k, rows->rows * h->kv_width * sizeof(krn_f16));
    memcpy(h->v + rows->row0 * h->kv_width, rows->v, rows->rows * h->kv_width * sizeof(krn_f16));
}

static void attend_to_nothing(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows,
                              const float *q, const krn_f16 *k, const krn_f16 *v, float *out)
{
    const halves_t *h = ctx;
    (void)layer, (void)row0, (void)q, (void)k, (void)v;
    memset(out, 0, rows * h->q_width * sizeof(float));
}

// In steps of few rows, and with a layer of another pass in between.
static void a_layer_in_two_halves_gives_the_same_bits(void **state)
{
    (void)state;
    gpw_model_t *model = tiny_open(&tiny_default, KRN_WEIGHT_F16);
    float *whole = compute(&tiny_default, krn_cpu(), KRN_WEIGHT_F16, TOKENS);
    float *parts = malloc(TOKENS * TINY_VOCAB * sizeof(float));
    int32_t tokens[TOKENS], positions[TOKENS];
    make_tokens(tokens, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++) {
        positions[i] = (int32_t)i;
    }
    halves_t h = {.q_width = (size_t)model->q_heads * model->head_dim,
                  .kv_width = (size_t)model->kv_heads * model->head_dim};
    h.q = malloc(TOKENS * h.q_width * sizeof(float));
    h.attention = malloc(TOKENS * h.q_width * sizeof(float));
    h.k = malloc(TOKENS * h.kv_width * sizeof(krn_f16));
    h.v = malloc(TOKENS * h.kv_width * sizeof(krn_f16));
    fixture_t fixture = fixture_open(model, krn_cpu(), 2, TOKENS, TOKENS);
    gpw_forward_free(fixture.forward);
    gpw_workspace_free(fixture.workspace);
    gpw_forward_t *other;
    assert_int_equal(gpw_workspace_alloc(model, krn_cpu(), fixture.pool, 20, &fixture.workspace),
                     AS_OK);
    assert_int_equal(gpw_forward_alloc(fixture.workspace, TOKENS, &fixture.forward), AS_OK);
    assert_int_equal(gpw_forward_alloc(fixture.workspace, 4, &other), AS_OK);
    fixture.positions = positions;
    gpw_forward_begin(fixture.forward, tokens, positions, TOKENS);
    gpw_forward_begin(other, tokens, positions, 4);
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        gpw_forward_layer_begin(fixture.forward, take, &h);
        fixture_attend(&fixture, layer, 0, TOKENS, h.q, h.k, h.v, h.attention);
        gpw_forward_layer(other, attend_to_nothing, &h);
        gpw_forward_layer_end(fixture.forward, h.attention);
        assert_int_equal(gpw_forward_next_layer(fixture.forward), layer + 1);
    }
    fixture_logits(&fixture, TOKENS, parts);
    assert_memory_equal(whole, parts, TOKENS * TINY_VOCAB * sizeof(float));
    gpw_forward_free(other);
    fixture_close(&fixture);
    free(h.q);
    free(h.attention);
    free(h.k);
    free(h.v);
    free(whole);
    free(parts);
    gpw_model_free(model);
}

static void an_abandoned_pass_leaves_no_trace(void **state)
{
    (void)state;
    int32_t tokens[TOKENS], positions[TOKENS];
    float *logits = malloc(2 * TINY_VOCAB * sizeof(float));
    make_tokens(tokens, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++) {
        positions[i] = (int32_t)i;
    }
    gpw_model_t *model = tiny_open(&tiny_default, KRN_WEIGHT_F16);
    fixture_t fixture = fixture_open(model, krn_cpu(), 1, TOKENS, TOKENS);
    fixture_pass(&fixture, tokens, positions, TOKENS);
    gpw_forward_row_t last = {fixture.forward, TOKENS - 1};
    gpw_forward_logits(fixture.workspace, &last, 1, logits);
    gpw_forward_begin(fixture.forward, tokens + 3, positions, 5);
    gpw_forward_layer(fixture.forward, fixture_attend, &fixture);
    assert_int_equal(gpw_forward_next_layer(fixture.forward), 1);
    fixture_pass(&fixture, tokens, positions, TOKENS);
    assert_int_equal(gpw_forward_next_layer(fixture.forward), model->layers);
    gpw_forward_logits(fixture.workspace, &last, 1, logits + TINY_VOCAB);
    assert_memory_equal(logits, logits + TINY_VOCAB, TINY_VOCAB * sizeof(float));
    fixture_close(&fixture);
    gpw_model_free(model);
    free(logits);
}

static void says_so_when_memory_runs_out(void **state)
{
    (void)state;
    gpw_model_t *model = tiny_open(&tiny_default, KRN_WEIGHT_F16);
    gpw_workspace_t *workspace = NULL;
    gpw_forward_t *forward = NULL;
    assert_int_equal(gpw_workspace_alloc(model, krn_cpu(), NULL, 0, &workspace), AS_ERR_INVALID);
    assert_int_equal(
        gpw_workspace_alloc(model, krn_cpu(), NULL, GPW_FORWARD_STEP_ROWS + 1, &workspace),
        AS_ERR_INVALID);
    bool finished = false;
    for (uint64_t nth = 1; !finished; nth++) {
        as_mem_fail_nth(nth);
        as_status_t status = gpw_workspace_alloc(model, krn_cpu(), NULL, 8, &workspace);
        finished = as_mem_fail_nth(0) < nth;
        assert_int_equal(status, finished ? AS_OK : AS_ERR_NO_MEMORY);
    }
    finished = false;
    assert_int_equal(gpw_forward_alloc(workspace, 0, &forward), AS_ERR_INVALID);
    assert_int_equal(gpw_forward_alloc(workspace, TINY_CONTEXT + 1, &forward), AS_ERR_INVALID);
    for (uint64_t nth = 1; !finished; nth++) {
        as_mem_fail_nth(nth);
        as_status_t status = gpw_forward_alloc(workspace, 8, &forward);
        finished = as_mem_fail_nth(0) < nth;
        assert_int_equal(status, finished ? AS_OK : AS_ERR_NO_MEMORY);
    }
    gpw_forward_free(forward);
    gpw_workspace_free(workspace);
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes_every_architecture_and_scaling),
        cmocka_unit_test(gives_the_same_bits_with_the_reference_kernels),
        cmocka_unit_test(gives_the_same_bits_however_the_prompt_is_cut),
        cmocka_unit_test(a_pass_larger_than_a_chunk_equals_passes_of_one),
        cmocka_unit_test(a_layer_in_two_halves_gives_the_same_bits),
        cmocka_unit_test(an_abandoned_pass_leaves_no_trace),
        cmocka_unit_test(says_so_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
