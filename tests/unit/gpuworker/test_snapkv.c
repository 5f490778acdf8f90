// SPDX-License-Identifier: Apache-2.0
// SnapKV: what it keeps, against numpy and against its formula; what it attends to; what it holds
// whole.
#include "compressor_fixture.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/select.h"
#include "gpuworker/resident/snapkv.h"
#include "model_fixture.h"
#include "tiny_model.h"

static const gpw_compressor_t *snapkv(void)
{
    return gpw_compressor_find("snapkv");
}

static gpw_segment_t *open_for(const sample_t *s, const gpw_compressor_params_t *params,
                               uint32_t prompt_blocks)
{
    gpw_segment_options_t options = options_for(s, params);
    options.prompt_blocks = prompt_blocks;
    gpw_segment_t *segment;
    assert_int_equal(snapkv()->open(&options, &segment), AS_OK);
    assert_int_equal(snapkv()->reserve(segment, s->blocks), AS_OK);
    return segment;
}

static void seal_blocks(const sample_t *s, gpw_segment_t *segment, uint32_t layer, uint32_t first)
{
    for (uint32_t b = first; b < s->blocks; b++) {
        snapkv()->seal(segment, layer, b, extent_of(s, b, layer));
    }
}

// ---- Against numpy -----------------------------------------------------------------------------

typedef struct golden {
    uint64_t seed;
    as_shape_t shape;
    uint32_t tokens;
    gpw_compressor_params_t params;
} golden_t;

// Element i of what golden_snapkv.py makes of a seed.
static float golden_value(uint64_t seed, uint64_t i)
{
    return (float)(tiny_mix((seed << 40) + i) >> 40) / 8388608.0f - 1.0f;
}

static sample_t golden_sample(const golden_t *g)
{
    const as_shape_t *shape = &g->shape;
    sample_t s = sample_make(*shape, gpw_sealed_target(shape, g->tokens), 1);
    s.tail_tokens = g->tokens - s.blocks * shape->block_tokens;
    as_mem_free(s.extents);
    s.extents = as_mem_zalloc(sample_blocks(&s), as_block_bytes(shape));
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        for (uint32_t t = 0; t < g->tokens; t++) {
            krn_f16 *extent = extent_of(&s, t / shape->block_tokens, 0);
            size_t at = as_extent_offset(shape, 0, h, t % shape->block_tokens);
            uint64_t i = ((uint64_t)h * g->tokens + t) * shape->head_dim;
            for (uint32_t c = 0; c < shape->head_dim; c++) {
                extent[at + c] = krn_f16_from_float(golden_value(g->seed, i + c));
            }
        }
    }
    size_t queries = (size_t)g->params.window_tokens * shape->q_heads * shape->head_dim;
    for (size_t i = 0; i < queries; i++) {
        s.window_q[i] = golden_value(g->seed, ((uint64_t)1 << 32) + i) * 4.0f;
    }
    return s;
}

static void compare_kept(FILE *file, const gpw_segment_t *segment, const golden_t *g)
{
    for (uint32_t h = 0; h < g->shape.kv_heads; h++) {
        uint32_t count, expected;
        const uint32_t *kept = gpw_snapkv_kept(segment, 0, h, &count);
        assert_int_equal(fscanf(file, "kept"), 0);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(fscanf(file, "%u", &expected), 1);
            if (kept[i] != expected) {
                fail_msg("seed %llu, head %u, kept token %u: %u, expected %u",
                         (unsigned long long)g->seed, h, i, kept[i], expected);
            }
        }
        assert_int_not_equal(fscanf(file, "%u", &expected), 1); // no more of them
    }
}

static void it_keeps_what_numpy_keeps(void **state)
{
    (void)state;
    char path[512];
    FILE *file = fopen(fixture_golden("snapkv.txt", path), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]\n"), 0);
    uint32_t cases = 0;
    golden_t g;
    unsigned long long seed;
    while (memset(&g, 0, sizeof(g)),
           fscanf(file, "case %llu %u %u %u %u %u %u %u %u %u\n", &seed, &g.shape.head_dim,
                  &g.shape.q_heads, &g.shape.kv_heads, &g.shape.block_tokens, &g.tokens,
                  &g.params.window_tokens, &g.params.pool_tokens, &g.params.sink_tokens,
                  &g.params.keep_percent) == 10) {
        g.seed = seed;
        g.shape.layers = 1;
        g.shape.element = AS_ELEMENT_F16;
        sample_t s = golden_sample(&g);
        gpw_segment_t *segment = open_for(&s, &g.params, s.blocks);
        observe(&s, snapkv(), &g.params, segment, 0, 1);
        compare_kept(file, segment, &g);
        snapkv()->close(segment);
        sample_free(&s);
        cases++;
    }
    assert_true(feof(file));
    fclose(file);
    assert_int_equal(cases, 20);
}

// ---- Against the formula -----------------------------------------------------------------------

static const gpw_compressor_params_t usual = {
    .sink_tokens = 4, .window_tokens = 32, .keep_percent = 25, .pool_tokens = 7};

// Window attention on each token before the window, pooled; in double precision.
static void plain_scores(const sample_t *s, uint32_t layer, uint32_t kv_head, double *pooled)
{
    uint32_t tokens = sample_tokens(s), before = tokens - usual.window_tokens;
    uint32_t dim = s->shape.head_dim, group = s->shape.q_heads / s->shape.kv_heads;
    double *score = calloc(tokens, sizeof(*score)), *p = calloc(tokens, sizeof(*p));
    for (uint32_t pair = 0; pair < usual.window_tokens * group; pair++) {
        uint32_t row = pair / group, head = kv_head * group + pair % group;
        double sum = 0;
        for (uint32_t t = 0; t <= before + row; t++) {
            double dot = 0;
            for (uint32_t c = 0; c < dim; c++) {
                dot += s->window_q[((size_t)row * s->shape.q_heads + head) * dim + c] *
                       exact_value(s, layer, 0, kv_head, t, c);
            }
            p[t] = exp(dot / sqrt(dim));
            sum += p[t];
        }
        for (uint32_t t = 0; t < before; t++) {
            score[t] += p[t] / sum;
        }
    }
    for (uint32_t t = 0; t < before; t++) {
        pooled[t] = t < usual.sink_tokens ? INFINITY : 0;
        for (uint32_t u = t < 3 ? 0 : t - 3; u < before && u <= t + 3; u++) {
            pooled[t] = score[u] > pooled[t] ? score[u] : pooled[t];
        }
    }
    free(score);
    free(p);
}

// All that is kept scores at least as high as all that is not, but for single precision's error.
static void check_kept(const sample_t *s, const gpw_segment_t *segment, uint32_t layer, uint32_t h)
{
    uint32_t count, sealed = s->blocks * s->shape.block_tokens, next = 0;
    const uint32_t *kept = gpw_snapkv_kept(segment, layer, h, &count);
    double *pooled = calloc(sample_tokens(s), sizeof(*pooled));
    double lowest = INFINITY, highest = 0;
    plain_scores(s, layer, h, pooled);
    assert_int_equal(count, (sealed + 3) / 4 > 4 ? (sealed + 3) / 4 : 4);
    for (uint32_t t = 0; t < sealed; t++) {
        if (next < count && kept[next] == t) {
            lowest = pooled[t] < lowest ? pooled[t] : lowest;
            next++;
        } else {
            highest = pooled[t] > highest ? pooled[t] : highest;
        }
    }
    assert_int_equal(next, count);
    assert_true(lowest >= highest * (1 - 1e-5));
    free(pooled);
}

static bool is_kept(const held_t *held, uint32_t kv_head, uint32_t token)
{
    uint32_t count;
    const uint32_t *kept = gpw_snapkv_kept(held->segment, held->layer, kv_head, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (kept[i] == token) {
            return true;
        }
    }
    return false;
}

static void it_keeps_and_attends_to_what_its_formula_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        sample_t s = sample_make(shapes[i], i == 5 ? 2 : 7, 2);
        gpw_segment_t *segment = seal_all(&s, snapkv(), &usual);
        uint32_t layer = shapes[i].layers - 1;
        for (uint32_t h = 0; h < shapes[i].kv_heads; h++) {
            check_kept(&s, segment, layer, h);
        }
        attended_t a = attend(&s, snapkv(), segment, layer, 1);
        held_t held = {.holds = is_kept,
                       .value = exact_value,
                       .sample = &s,
                       .segment = segment,
                       .layer = layer};
        double error = attention_error(&s, &held, layer, &a.partials);
        if (error > 1e-5) {
            fail_msg("shape %zu: error %g", i, error);
        }
        as_mem_free(a.memory);
        snapkv()->close(segment);
        sample_free(&s);
    }
}

static void threads_do_not_change_what_is_kept(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 30, 1);
    gpw_segment_t *segments[2];
    for (uint32_t i = 0; i < 2; i++) {
        segments[i] = open_for(&s, &usual, s.blocks);
        observe(&s, snapkv(), &usual, segments[i], 1, i ? 4 : 1);
    }
    for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
        uint32_t count;
        const uint32_t *one = gpw_snapkv_kept(segments[0], 1, h, &count);
        assert_memory_equal(one, gpw_snapkv_kept(segments[1], 1, h, &count), count * sizeof(*one));
    }
    snapkv()->close(segments[0]);
    snapkv()->close(segments[1]);
    sample_free(&s);
}

// ---- What comes after the prompt ---------------------------------------------------------------

static uint32_t prompt_blocks_of_test;

static bool is_kept_or_later(const held_t *held, uint32_t kv_head, uint32_t token)
{
    return token >= prompt_blocks_of_test * held->sample->shape.block_tokens ||
           is_kept(held, kv_head, token);
}

// Whatever part of the last page the prompt leaves empty.
static void blocks_sealed_later_stay_whole(void **state)
{
    (void)state;
    for (prompt_blocks_of_test = 0; prompt_blocks_of_test <= 6; prompt_blocks_of_test++) {
        uint32_t prompt_blocks = prompt_blocks_of_test;
        sample_t s = sample_make(shapes[3], 6, 1);
        sample_t prompt = s;
        prompt.blocks = prompt_blocks;
        gpw_segment_t *segment = open_for(&s, &usual, prompt_blocks);
        observe(&prompt, snapkv(), &usual, segment, 0, 1);
        seal_blocks(&s, segment, 0, 0);
        attended_t a = attend(&s, snapkv(), segment, 0, 1);
        held_t held = {
            .holds = is_kept_or_later, .value = exact_value, .sample = &s, .segment = segment};
        assert_true(attention_error(&s, &held, 0, &a.partials) < 1e-5);
        for (uint32_t b = 0; b < s.blocks; b++) {
            const void *extent = snapkv()->extent(segment, 0, b);
            assert_true((extent != NULL) == (b >= prompt_blocks));
            if (extent) {
                assert_memory_equal(extent, extent_of(&s, b, 0), as_extent_bytes(&s.shape));
            }
        }
        assert_null(snapkv()->extent(segment, 0, s.blocks));
        gpw_segment_options_t options = options_for(&s, &usual);
        options.prompt_blocks = prompt_blocks;
        assert_int_equal(snapkv()->bytes(segment), snapkv()->bytes_max(&options, s.blocks));
        as_mem_free(a.memory);
        snapkv()->close(segment);
        sample_free(&s);
    }
}

static void all_of_a_prompt_is_the_prompt(void **state)
{
    (void)state;
    gpw_compressor_params_t all = usual;
    all.keep_percent = 100;
    sample_t s = sample_make(shapes[0], 5, 1);
    gpw_segment_t *segment = seal_all(&s, snapkv(), &all);
    for (uint32_t b = 0; b < s.blocks; b++) {
        assert_memory_equal(snapkv()->extent(segment, 1, b), extent_of(&s, b, 1),
                            as_extent_bytes(&s.shape));
    }
    snapkv()->close(segment);
    sample_free(&s);
}

static void the_sinks_are_kept_whatever_they_score(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 4, 1);
    gpw_compressor_params_t params = usual;
    for (params.sink_tokens = 0; params.sink_tokens <= 512; params.sink_tokens += 64) {
        gpw_segment_t *segment = open_for(&s, &params, s.blocks);
        observe(&s, snapkv(), &params, segment, 0, 1);
        for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
            uint32_t count, sealed = s.blocks * s.shape.block_tokens;
            const uint32_t *kept = gpw_snapkv_kept(segment, 0, h, &count);
            for (uint32_t t = 0; t < params.sink_tokens && t < sealed; t++) {
                assert_true(t < count && kept[t] == t);
            }
        }
        snapkv()->close(segment);
    }
    sample_free(&s);
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 2, 1);
    gpw_compressor_params_t wrong[6] = {usual, usual, usual, usual, usual, usual};
    wrong[0].window_tokens = 0;
    wrong[1].window_tokens = GPW_RESIDUAL_TOKENS + 1; // would not all lie in the tail
    wrong[2].keep_percent = 0;
    wrong[3].keep_percent = 101;
    wrong[4].pool_tokens = 6;
    wrong[5].pool_tokens = 0;
    for (int i = 0; i < 6; i++) {
        gpw_segment_options_t options = options_for(&s, &wrong[i]);
        gpw_segment_t *segment;
        assert_int_equal(snapkv()->open(&options, &segment), AS_ERR_UNSUPPORTED);
    }
    sample_free(&s);
}

// ---- Choosing ----------------------------------------------------------------------------------

static void the_greatest_are_taken_and_of_equal_ones_the_first(void **state)
{
    (void)state;
    enum { COUNT = 97 };
    float x[COUNT];
    uint64_t noise_state = 5;
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            // Few different values: many are equal. Some rounds have zeros and infinities.
            x[i] = floorf((noise(&noise_state) + 1.0f) * (float)(1 + round % 7));
            x[i] = round % 5 == 0 && i % 9 == 0 ? INFINITY : x[i];
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
        cmocka_unit_test(it_keeps_what_numpy_keeps),
        cmocka_unit_test(it_keeps_and_attends_to_what_its_formula_says),
        cmocka_unit_test(threads_do_not_change_what_is_kept),
        cmocka_unit_test(blocks_sealed_later_stay_whole),
        cmocka_unit_test(all_of_a_prompt_is_the_prompt),
        cmocka_unit_test(the_sinks_are_kept_whatever_they_score),
        cmocka_unit_test(parameters_out_of_range_are_refused),
        cmocka_unit_test(the_greatest_are_taken_and_of_equal_ones_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
