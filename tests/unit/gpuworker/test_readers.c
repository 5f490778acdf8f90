// SPDX-License-Identifier: Apache-2.0
// What readers choose: against numpy, of each twenty cases at all head sizes, grouped and not; how much that is;
// and of what a prompt keeps. Attention over it: test_reading.c.
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/kept_prompt.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/resident/select/top.h"
#include "model_fixture.h"
#include "readers_fixture.h"
#include "tiny_model.h"

static const gpw_compressor_t kept_prompt = {GPW_KEPT_PROMPT_FUNCTIONS};

enum { CASES = 20, TOKENS_MAX = 2048 };

// ---- Against numpy ------------------------------------------------------------------------------

typedef struct golden {
    char method[32];
    uint64_t seed;
    as_shape_t shape;
    uint32_t tokens;
    gpw_compressor_params_t params;
} golden_t;

// Element i of what golden_readers.py makes of a seed.
static float golden_value(uint64_t seed, uint64_t i)
{
    return (float)(tiny_mix((seed << 40) + i) >> 40) / 8388608.0f - 1.0f;
}

static sample_t golden_sample(const golden_t *g)
{
    const as_shape_t *shape = &g->shape;
    sample_t s = {.shape = *shape, .blocks = g->tokens / shape->block_tokens, .rows = 1};
    s.extents = as_mem_zalloc(s.blocks, as_block_bytes(shape));
    for (uint32_t row = 0; row < 2 * shape->kv_heads * g->tokens; row++) {
        uint32_t part = row / (shape->kv_heads * g->tokens), h = row / g->tokens % shape->kv_heads;
        uint32_t t = row % g->tokens;
        size_t at = as_extent_offset(shape, part, h, t % shape->block_tokens);
        uint64_t i = ((uint64_t)h * g->tokens + t) * shape->head_dim + ((uint64_t)part << 33);
        for (uint32_t c = 0; c < shape->head_dim; c++) {
            extent_of(&s, t / shape->block_tokens, 0)[at + c] =
                krn_f16_from_float(golden_value(g->seed, i + c));
        }
    }
    size_t queries = (size_t)shape->q_heads * shape->head_dim;
    s.q = as_mem_alloc(queries * sizeof(float));
    for (size_t i = 0; i < queries; i++) {
        s.q[i] = golden_value(g->seed, ((uint64_t)1 << 32) + i) * 4.0f;
    }
    return s;
}

static bool read_case(FILE *file, golden_t *g)
{
    unsigned long long seed;
    gpw_compressor_params_t *p = &g->params;
    *g = (golden_t){.shape = {.layers = 1, .element = AS_ELEMENT_F16}};
    bool found =
        fscanf(file, "case %31s %llu %u %u %u %u %u %u %u %u %u %u %u %u\n", g->method, &seed,
               &g->shape.head_dim, &g->shape.q_heads, &g->shape.kv_heads, &g->shape.block_tokens,
               &g->tokens, &p->page_tokens, &p->sink_tokens, &p->read_percent, &p->read_tokens,
               &p->channel_percent, &p->bits, &p->group) == 14;
    g->seed = seed;
    for (size_t i = 0; i < READERS; i++) {
        if (strcmp(readers[i].name, g->method) == 0) {
            p->reader = readers[i].params.reader;
        }
    }
    assert_true(!found || p->reader);
    return found;
}

static void compare_chosen(FILE *file, const golden_t *g, const gpw_read_t *read)
{
    static char digits[TOKENS_MAX / 4 + 2];
    for (uint32_t h = 0; h < g->shape.kv_heads; h++) {
        assert_int_equal(fscanf(file, "read %513s\n", digits), 1);
        assert_int_equal(strlen(digits), (g->tokens + 3) / 4);
        for (uint32_t t = 0; t < g->tokens; t++) {
            char digit[2] = {digits[t / 4], 0};
            bool expected = strtoul(digit, NULL, 16) >> t % 4 & 1;
            if (is_chosen(read, h, t) != expected) {
                fail_msg("%s, seed %llu: head %u %s token %u", g->method,
                         (unsigned long long)g->seed, h, expected ? "leaves" : "reads", t);
            }
        }
    }
}

static void they_choose_what_numpy_chooses(void **state)
{
    (void)state;
    char path[512];
    FILE *file = fopen(fixture_golden("readers.txt", path), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]\n"), 0);
    uint32_t cases = 0;
    golden_t g;
    while (read_case(file, &g)) {
        sample_t s = golden_sample(&g);
        gpw_segment_t *segment = seal_all(&s, &indexed, &g.params);
        attended_t a = attend(&s, &indexed, segment, 0, 1);
        compare_chosen(file, &g, gpw_indexed_read(segment));
        as_mem_free(a.memory);
        indexed.close(segment);
        sample_free(&s);
        cases++;
    }
    assert_true(feof(file));
    fclose(file);
    assert_int_equal(cases, READERS * CASES);
}

// ---- How much -----------------------------------------------------------------------------------

static void they_read_a_quarter_and_all_of_the_first_layers(void **state)
{
    (void)state;
    as_shape_t shape = heads[0];
    shape.layers = 3;
    sample_t s = sample_of(shape, 1);
    uint32_t tokens = s.blocks * shape.block_tokens;
    for (size_t i = 0; i < READERS; i++) {
        gpw_compressor_params_t params = readers[i].params;
        params.whole_layers = 2;
        gpw_segment_t *segment = seal_all(&s, &indexed, &params);
        for (uint32_t layer = 0; layer < shape.layers; layer++) {
            attended_t a = attend(&s, &indexed, segment, layer, 1);
            uint32_t count, budget = gpw_read_budget(&params, layer, tokens);
            gpw_read_chosen(gpw_indexed_read(segment), 1, &count);
            assert_true(layer < 2 ? count == tokens : count >= budget && count < budget + 16);
            assert_true(layer < 2 || budget <= (tokens + 3) / 4);
            as_mem_free(a.memory);
        }
        indexed.close(segment);
    }
    sample_free(&s);
}

// ---- Of what a prompt keeps --------------------------------------------------------------------

static const gpw_segment_t *rocket_segment;

static bool is_kept_and_read(const held_t *held, uint32_t kv_head, uint32_t token)
{
    uint32_t count, read;
    const uint32_t *kept = gpw_kept_prompt_positions(rocket_segment, held->layer, kv_head, &count);
    const uint32_t *chosen = gpw_read_chosen(gpw_kept_prompt_read(rocket_segment), kv_head, &read);
    for (uint32_t i = 0; i < read; i++) {
        assert_true(chosen[i] < count);
        if (kept[chosen[i]] == token) {
            return true;
        }
    }
    return false;
}

// Page scores of two_dimensional.c over the kept keys, in double precision; returns the least of a
// chosen token and the greatest of one that is not.
static void rocket_bounds(const sample_t *s, uint32_t kv_head,
                          const gpw_compressor_params_t *params, double *least_p, double *most_p)
{
    static double scores[TOKENS_MAX];
    uint32_t count, dim = s->shape.head_dim, layer = s->shape.layers - 1,
                    size = params->page_tokens;
    uint32_t group = s->shape.q_heads / s->shape.kv_heads;
    uint32_t run = 16 * s->shape.block_tokens / (16 * size) * (16 * size); // whole rows of pages
    const uint32_t *kept = gpw_kept_prompt_positions(rocket_segment, layer, kv_head, &count);
    float sizes[256] = {0}, sums[256] = {0};
    uint32_t channels[256], used = (dim * params->channel_percent + 99) / 100;
    const float *q = s->q + (size_t)kv_head * group * dim;
    for (uint32_t i = 0; i < group * dim; i++) {
        sizes[i % dim] += fabsf(q[i]);
        sums[i % dim] += q[i];
    }
    gpw_select_top(sizes, dim, used, channels);
    memset(scores, 0, sizeof(scores));
    for (uint32_t g = 0; g < group; g++) {
        double logits[TOKENS_MAX], all = 0, some = 0, sum = 0;
        for (uint32_t c = 0; c < dim; c++) {
            all += fabsf(q[g * dim + c]);
        }
        for (uint32_t r = 0; r < used; r++) {
            some += fabsf(q[g * dim + channels[r]]);
        }
        for (uint32_t t = 0; t < count; t++) { // each token by its page's bounds
            uint32_t first = t / run * run + t % run / size * size, end = first + size;
            end = end > (t / run + 1) * run ? (t / run + 1) * run : end;
            logits[t] = 0;
            for (uint32_t r = 0; r < used; r++) {
                double bound = sums[channels[r]] > 0 ? -INFINITY : INFINITY;
                for (uint32_t i = first; i < end && i < count; i++) {
                    double x = exact_value(s, layer, 0, kv_head, kept[i], channels[r]);
                    bound = sums[channels[r]] > 0 ? fmax(bound, x) : fmin(bound, x);
                }
                logits[t] += q[g * dim + channels[r]] * bound;
            }
            logits[t] = exp(logits[t] / sqrt(dim * some / all));
            sum += t == first ? logits[t] : 0; // over pages
        }
        for (uint32_t t = 0; t < count; t++) {
            scores[t] += logits[t] / sum;
        }
    }
    *least_p = INFINITY;
    *most_p = 0;
    for (uint32_t t = 0; t < count; t++) {
        bool read = is_chosen(gpw_kept_prompt_read(rocket_segment), kv_head, t);
        *least_p = read ? fmin(*least_p, scores[t]) : *least_p;
        *most_p = read ? *most_p : fmax(*most_p, scores[t]);
    }
}

static void a_prompts_kept_tokens_are_read_by_pages_of_them(void **state)
{
    (void)state;
    const gpw_compressor_t *rocket = gpw_compressor_find("rocketkv");
    for (size_t i = 0; i < HEADS; i++) {
        sample_t s = sample_make(heads[i], heads[i].block_tokens == 16 ? 70 : 9, 1);
        gpw_segment_t *segment = seal_all(&s, rocket, &rocket->params);
        uint32_t layer = s.shape.layers - 1, kept, read;
        attended_t a = attend(&s, rocket, segment, layer, 1);
        held_t held = {
            .holds = is_kept_and_read, .value = exact_value, .sample = &s, .layer = layer};
        rocket_segment = segment;
        assert_true(attention_error(&s, &held, layer, &a.partials) < 1e-5);
        for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
            double least, most;
            gpw_kept_prompt_positions(segment, layer, h, &kept);
            gpw_read_chosen(gpw_kept_prompt_read(segment), h, &read);
            assert_int_equal(read, (kept * 11 + 99) / 100);
            rocket_bounds(&s, h, &rocket->params, &least, &most);
            assert_true(least >= most * (1 - 1e-4));
        }
        as_mem_free(a.memory);
        rocket->close(segment);
        sample_free(&s);
    }
}

// ---- Refusals ----------------------------------------------------------------------------------

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    enum { WRONG = 12 };
    sample_t s = sample_make(heads[0], 2, 1);
    gpw_compressor_params_t wrong[WRONG];
    for (int i = 0; i < WRONG; i++) {
        wrong[i] = readers[i % READERS].params;
    }
    wrong[0].page_tokens = 0;
    wrong[1].page_tokens = 0;
    wrong[2].channel_percent = 0;
    wrong[3].bits = 3;
    wrong[4].read_percent = 101;
    wrong[5].page_tokens = 0;
    wrong[6].channel_percent = 101;
    wrong[7].read_tokens = 0; // and no share
    wrong[8].reader = NULL;
    wrong[9].selector = &gpw_select_norms; // all tokens stay here
    wrong[10].codec = &gpw_codec_exact;
    wrong[11].group = 8;
    for (int i = 0; i < WRONG; i++) {
        gpw_segment_options_t options = options_for(&s, &wrong[i]);
        gpw_segment_t *segment;
        assert_int_equal(indexed.open(&options, &segment), AS_ERR_UNSUPPORTED);
        assert_int_equal(indexed.bytes_max(&options, 2), 0);
    }
    // What a prompt keeps: readers of blocks, and heads that keep different numbers.
    gpw_compressor_params_t kept[4];
    for (int i = 0; i < 4; i++) {
        kept[i] = gpw_compressor_find("rocketkv")->params;
    }
    kept[0].reader = &gpw_read_clusters;
    kept[1].reader = &gpw_read_low_bits;
    kept[2].head_floor_percent = 20;
    kept[3].selector = &gpw_select_norm_stop;
    for (int i = 0; i < 4; i++) {
        gpw_segment_options_t options = options_for(&s, &kept[i]);
        gpw_segment_t *segment;
        assert_int_equal(kept_prompt.open(&options, &segment), AS_ERR_UNSUPPORTED);
        assert_int_equal(kept_prompt.bytes_max(&options, 2), 0);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_choose_what_numpy_chooses),
        cmocka_unit_test(they_read_a_quarter_and_all_of_the_first_layers),
        cmocka_unit_test(a_prompts_kept_tokens_are_read_by_pages_of_them),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
