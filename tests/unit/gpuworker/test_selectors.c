// SPDX-License-Identifier: Apache-2.0
// What selectors keep: against numpy, of each method twenty prompts at all head sizes, grouped and
// not; budgets; and the greatest of a list.
#include "compressor_fixture.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/kept_blocks.h"
#include "gpuworker/resident/kept_prompt.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/resident/select/top.h"
#include "model_fixture.h"
#include "tiny_model.h"

// ---- Against numpy -----------------------------------------------------------------------------

enum { CASES = 20, TOKENS_MAX = 2048 };

typedef struct golden {
    char method[32];
    uint64_t seed;
    as_shape_t shape;
    uint32_t tokens, layer, positions;
    gpw_compressor_params_t params;
    krn_rope_t rope;
} golden_t;

static const gpw_compressor_t kept_prompt = {GPW_KEPT_PROMPT_FUNCTIONS};
static const gpw_compressor_t kept_blocks = {GPW_KEPT_BLOCKS_FUNCTIONS};
static const gpw_compressor_t exact = {GPW_EXACT_FUNCTIONS};

static const struct method {
    const char *name;
    const gpw_selector_t *selector;
} methods[] = {
    {"norms", &gpw_select_norms},           {"key_difference", &gpw_select_key_difference},
    {"positions", &gpw_select_positions},   {"expected", &gpw_select_expected},
    {"window", &gpw_select_window},         {"pyramid", &gpw_select_window},
    {"adaptive", &gpw_select_window},       {"last_query", &gpw_select_last_query},
    {"cumulative", &gpw_select_cumulative}, {"norm_stop", &gpw_select_norm_stop},
};

enum { METHODS = sizeof(methods) / sizeof(methods[0]) };

// Element i of what golden_selectors.py makes of a seed.
static float golden_value(uint64_t seed, uint64_t i)
{
    return (float)(tiny_mix((seed << 40) + i) >> 40) / 8388608.0f - 1.0f;
}

static sample_t golden_sample(const golden_t *g)
{
    const as_shape_t *shape = &g->shape;
    sample_t s = {.shape = *shape, .blocks = gpw_sealed_target(shape, g->tokens), .rope = &g->rope};
    s.tail_tokens = g->tokens - s.blocks * shape->block_tokens;
    s.extents = as_mem_zalloc(sample_blocks(&s), as_block_bytes(shape));
    for (uint32_t row = 0; row < 2 * shape->kv_heads * g->tokens; row++) {
        uint32_t part = row / (shape->kv_heads * g->tokens), h = row / g->tokens % shape->kv_heads;
        uint32_t t = row % g->tokens;
        krn_f16 *extent = extent_of(&s, t / shape->block_tokens, g->layer);
        size_t at = as_extent_offset(shape, part, h, t % shape->block_tokens);
        uint64_t i = ((uint64_t)h * g->tokens + t) * shape->head_dim + ((uint64_t)part << 33);
        for (uint32_t c = 0; c < shape->head_dim; c++) {
            extent[at + c] = krn_f16_from_float(golden_value(g->seed, i + c));
        }
    }
    size_t queries = (size_t)g->params.window_tokens * shape->q_heads * shape->head_dim;
    s.window_q = as_mem_alloc(queries * sizeof(float));
    for (size_t i = 0; i < queries && g->params.selector->observes; i++) {
        s.window_q[i] = golden_value(g->seed, ((uint64_t)1 << 32) + i) * 4.0f;
    }
    return s;
}

static void rope_make(golden_t *g)
{
    double inv_freq[KRN_HEAD_DIM_MAX];
    g->rope.position_count = g->positions;
    float *table = as_mem_zalloc((size_t)g->positions * (g->rope.dim + 1), sizeof(*table));
    for (uint32_t i = 0; i < g->rope.dim / 2; i++) {
        inv_freq[i] = pow(10000.0, -2.0 * i / g->rope.dim);
    }
    krn_rope_fill(table, g->rope.dim, inv_freq, 1, 0, g->positions);
    g->rope.cos_sin = table;
}

// Marks what is kept: kept[kv_head][token].
typedef bool kept_t[16][TOKENS_MAX];

static void keep_of_prompt(const sample_t *s, const golden_t *g, kept_t kept)
{
    gpw_segment_options_t options = options_for(s, &g->params);
    gpw_segment_t *segment;
    assert_int_equal(kept_prompt.open(&options, &segment), AS_OK);
    assert_int_equal(kept_prompt.reserve(segment, s->blocks), AS_OK);
    observe(s, &kept_prompt, &g->params, segment, g->layer, 1);
    for (uint32_t h = 0; h < g->shape.kv_heads; h++) {
        uint32_t count;
        const uint32_t *positions = gpw_kept_prompt_positions(segment, g->layer, h, &count);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(i == 0 || positions[i - 1] < positions[i]);
            kept[h][positions[i]] = true;
        }
    }
    kept_prompt.close(segment);
}

static void keep_of_blocks(const sample_t *s, const golden_t *g, kept_t kept)
{
    gpw_segment_options_t options = options_for(s, &g->params);
    gpw_segment_t *segment;
    assert_int_equal(kept_blocks.open(&options, &segment), AS_OK);
    assert_int_equal(kept_blocks.reserve(segment, s->blocks), AS_OK);
    for (uint32_t b = 0; b < s->blocks; b++) {
        kept_blocks.seal(segment, 0, b, extent_of(s, b, 0));
        for (uint32_t h = 0; h < g->shape.kv_heads; h++) {
            uint32_t count;
            const uint32_t *chosen = gpw_kept_blocks_chosen(segment, h, &count);
            for (uint32_t i = 0; i < count; i++) {
                assert_true(i == 0 || chosen[i - 1] < chosen[i]);
                kept[h][b * g->shape.block_tokens + chosen[i]] = true;
            }
        }
    }
    kept_blocks.close(segment);
}

static void keep_whole_blocks(const sample_t *s, const golden_t *g, kept_t kept)
{
    gpw_segment_t *segment = seal_all(s, &exact, &g->params);
    for (uint32_t t = 0; t < s->blocks * g->shape.block_tokens; t++) {
        for (uint32_t h = 0; h < g->shape.kv_heads; h++) {
            kept[h][t] = exact.extent(segment, 0, t / g->shape.block_tokens) != NULL;
        }
    }
    exact.close(segment);
}

static void compare_kept(FILE *file, const golden_t *g, kept_t kept)
{
    static char digits[TOKENS_MAX / 4 + 2];
    uint32_t tokens = gpw_sealed_target(&g->shape, g->tokens) * g->shape.block_tokens;
    for (uint32_t h = 0; h < g->shape.kv_heads; h++) {
        assert_int_equal(fscanf(file, "kept %513s\n", digits), 1);
        assert_int_equal(strlen(digits), (tokens + 3) / 4);
        for (uint32_t t = 0; t < tokens; t++) {
            char digit[2] = {digits[t / 4], 0};
            bool expected = strtoul(digit, NULL, 16) >> t % 4 & 1;
            if (kept[h][t] != expected) {
                fail_msg("%s, seed %llu: head %u %s token %u", g->method,
                         (unsigned long long)g->seed, h, expected ? "dropped" : "kept", t);
            }
        }
    }
}

static bool read_case(FILE *file, golden_t *g)
{
    unsigned long long seed;
    gpw_compressor_params_t *p = &g->params;
    *g = (golden_t){.shape = {.element = AS_ELEMENT_F16}};
    bool found =
        fscanf(file, "case %31s %llu %u %u %u %u %u %u %u %u %u %u %u %u %u %u %u %u %d %u\n",
               g->method, &seed, &g->shape.head_dim, &g->shape.q_heads, &g->shape.kv_heads,
               &g->shape.block_tokens, &g->tokens, &p->window_tokens, &p->pool_tokens,
               &p->sink_tokens, &p->keep_percent, &p->recent_percent, &p->layer_slope,
               &g->shape.layers, &g->layer, &p->head_floor_percent, &p->norm_drop_permille,
               &g->rope.dim, &g->rope.neox, &g->positions) == 20;
    g->seed = seed;
    p->codec = &gpw_codec_exact;
    for (size_t m = 0; m < METHODS; m++) {
        if (strcmp(methods[m].name, g->method) == 0) {
            p->selector = methods[m].selector;
        }
    }
    assert_true(!found || p->selector);
    return found;
}

static void they_keep_what_numpy_keeps(void **state)
{
    (void)state;
    char path[512];
    FILE *file = fopen(fixture_golden("selectors.txt", path), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]\n"), 0);
    uint32_t cases = 0;
    static golden_t g;
    static kept_t kept;
    while (read_case(file, &g)) {
        memset(kept, 0, sizeof(kept));
        rope_make(&g);
        sample_t s = golden_sample(&g);
        if (!g.params.selector->choose) {
            keep_whole_blocks(&s, &g, kept);
        } else if (g.params.selector->observes) {
            keep_of_prompt(&s, &g, kept);
        } else {
            keep_of_blocks(&s, &g, kept);
        }
        compare_kept(file, &g, kept);
        as_mem_free((void *)g.rope.cos_sin);
        sample_free(&s);
        cases++;
    }
    assert_true(feof(file));
    fclose(file);
    assert_int_equal(cases, METHODS * CASES);
}

// ---- Budgets -----------------------------------------------------------------------------------

static void layers_share_a_budget_out_without_losing_a_token_of_it(void **state)
{
    (void)state;
    for (uint32_t layers = 1; layers <= 40; layers += 3) {
        for (uint32_t tokens = 0; tokens <= 3000; tokens = tokens * 3 / 2 + 1) {
            for (uint32_t i = 0; i < 40; i++) {
                gpw_compressor_params_t params = {.keep_percent = 5 + 10 * (i % 10),
                                                  .sink_tokens = i % 2 * 4,
                                                  .layer_slope = 1 + i * 2};
                gpw_compressor_params_t alike = params;
                alike.layer_slope = 0;
                uint64_t sum = 0;
                uint32_t before = UINT32_MAX;
                for (uint32_t l = 0; l < layers; l++) {
                    uint32_t budget = gpw_select_budget(&params, layers, l, tokens);
                    assert_true(budget <= tokens);
                    assert_true(budget >= params.sink_tokens || budget == tokens);
                    assert_true(l == 0 || budget <= before + 1); // but for rounding, ever less
                    before = budget;
                    sum += budget;
                }
                assert_int_equal(sum,
                                 (uint64_t)layers * gpw_select_budget(&alike, layers, 0, tokens));
            }
        }
    }
}

// ---- The greatest ------------------------------------------------------------------------------

static void the_greatest_are_taken_and_of_equal_ones_the_first(void **state)
{
    (void)state;
    enum { COUNT = 97 };
    float x[COUNT];
    uint64_t noise_state = 5;
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            // Few different values: many are equal. Some rounds have zeros of both signs and
            // infinities.
            x[i] = floorf((noise(&noise_state) + (float)(round % 2)) * (float)(1 + round % 7));
            x[i] = round % 5 == 0 && i % 9 == 0 ? INFINITY : x[i];
            x[i] = round % 5 == 1 && i % 9 == 0 ? -INFINITY : x[i];
            x[i] = x[i] == 0 && i % 2 ? -0.0f : x[i];
        }
        for (uint32_t keep = 0; keep <= COUNT; keep++) {
            uint32_t chosen[COUNT], next = 0;
            gpw_select_top(x, COUNT, keep, chosen);
            for (uint32_t i = 0; i < COUNT; i++) {
                uint32_t before = 0; // how many come before it in the order of preference
                for (uint32_t j = 0; j < COUNT; j++) {
                    before += x[j] > x[i] || (x[j] == x[i] && j < i);
                }
                if (before < keep) {
                    assert_int_equal(chosen[next++], i);
                }
            }
            assert_int_equal(next, keep);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_keep_what_numpy_keeps),
        cmocka_unit_test(layers_share_a_budget_out_without_losing_a_token_of_it),
        cmocka_unit_test(the_greatest_are_taken_and_of_equal_ones_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
