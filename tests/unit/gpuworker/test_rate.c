// SPDX-License-Identifier: Apache-2.0
// How many bits tokens and channels get: against numpy, and of weights that allocations stumble over.
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/select/top.h"
#include "model_fixture.h"
#include "rate_fixture.h"
#include "tiny_model.h"

static const gpw_compressor_params_t usual = {
    .codec = &gpw_codec_exact, .bits = 2, .window_tokens = 32, .pool_tokens = 5};

// ---- Against numpy -----------------------------------------------------------------------------

enum { CASES = 20 };

typedef struct golden {
    uint64_t seed;
    as_shape_t shape;
    uint32_t tokens;
    gpw_compressor_params_t params;
} golden_t;

static float golden_value(uint64_t seed, uint64_t i)
{
    return (float)(tiny_mix((seed << 40) + i) >> 40) / 8388608.0f - 1.0f;
}

static float sign_of(uint32_t channel)
{
    return channel % 2 ? -1.0f : 1.0f;
}

// Values are not looked at.
static void fill_keys(const golden_t *g, sample_t *s)
{
    uint32_t dim = g->shape.head_dim;
    for (uint32_t row = 0; row < g->shape.kv_heads * g->tokens; row++) {
        uint32_t h = row / g->tokens, t = row % g->tokens;
        float pull = golden_value(g->seed, ((uint64_t)1 << 33) + t);
        pull = pull * pull * pull * pull * 32.0f / sqrtf((float)dim);
        krn_f16 *k = extent_of(s, t / g->shape.block_tokens, 0) +
                     as_extent_offset(&g->shape, 0, h, t % g->shape.block_tokens);
        for (uint32_t c = 0; c < dim; c++) {
            float x = golden_value(g->seed, (uint64_t)row * dim + c) + sign_of(c) * pull;
            uint32_t width = 1 + c % 7;
            k[c] = krn_f16_from_float(x * ((float)(width * width * width) / 64.0f));
        }
    }
}

static sample_t golden_sample(const golden_t *g)
{
    const as_shape_t *shape = &g->shape;
    sample_t s = {.shape = *shape, .blocks = gpw_sealed_target(shape, g->tokens)};
    s.tail_tokens = g->tokens - s.blocks * shape->block_tokens;
    s.extents = as_mem_zalloc(sample_blocks(&s), as_block_bytes(shape));
    fill_keys(g, &s);
    size_t queries = (size_t)g->params.window_tokens * shape->q_heads * shape->head_dim;
    s.window_q = as_mem_alloc(queries * sizeof(float));
    for (size_t i = 0; i < queries; i++) {
        s.window_q[i] = golden_value(g->seed, ((uint64_t)1 << 32) + i) +
                        sign_of((uint32_t)(i % shape->head_dim));
    }
    return s;
}

static bool read_case(FILE *file, golden_t *g)
{
    unsigned long long seed;
    *g = (golden_t){.shape = {.layers = 1, .element = AS_ELEMENT_F16}, .params = usual};
    bool found = fscanf(file, "case %llu %u %u %u %u %u %u %u %u\n", &seed, &g->shape.head_dim,
                        &g->shape.q_heads, &g->shape.kv_heads, &g->shape.block_tokens, &g->tokens,
                        &g->params.window_tokens, &g->params.pool_tokens, &g->params.bits) == 9;
    g->seed = seed;
    return found;
}

static void compare_line(FILE *file, const golden_t *g, const char *what, const uint8_t *rates,
                         uint32_t count)
{
    static char name[16], digits[RATE_TOKENS_MAX];
    assert_int_equal(fscanf(file, "%15s %4095s\n", name, digits), 2);
    assert_string_equal(name, what);
    assert_int_equal(strlen(digits), count);
    for (uint32_t i = 0; i < count; i++) {
        if (rates[i] != digits[i] - '0') {
            fail_msg("seed %llu: %s %u of rate %u, by numpy %c", (unsigned long long)g->seed, what,
                     i, rates[i], digits[i]);
        }
    }
}

static void they_get_the_bits_that_numpy_gives(void **state)
{
    (void)state;
    char path[512];
    FILE *file = fopen(fixture_golden("rate.txt", path), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]\n"), 0);
    uint32_t cases = 0;
    golden_t g;
    for (; read_case(file, &g); cases++) {
        sample_t s = golden_sample(&g);
        choose_rates(&s, &g.params, 0);
        for (uint32_t h = 0; h < g.shape.kv_heads; h++) {
            compare_line(file, &g, "tokens", chosen.of_token[h], s.blocks * g.shape.block_tokens);
            compare_line(file, &g, "channels", chosen.of_channel[h], g.shape.head_dim);
        }
        sample_free(&s);
    }
    assert_int_equal(cases, CASES);
    fclose(file);
}

// ---- Weights that are alike --------------------------------------------------------------------

static size_t bytes_taken(uint32_t head, uint32_t dim)
{
    gpw_mixed_layout_t layout;
    gpw_mixed_layout(dim, &chosen.rates[head], &layout);
    return layout.bytes;
}

// Attention that is the same for every token must not leave all of them or none above the border: the
// first ones have bits, as long as there are bytes.
static void equal_weights_share_the_bytes_in_order(void **state)
{
    (void)state;
    sample_t s = sample_make((as_shape_t){1, 9, 3, 64, 64, AS_ELEMENT_F16}, 16, 1);
    for (size_t i = 0; i < as_block_bytes(&s.shape) / sizeof(krn_f16) * sample_blocks(&s); i++) {
        bool of_key = i / (64 * 64) % 6 < 3;
        s.extents[i] = of_key ? krn_f16_from_float(0.5f) : s.extents[i];
    }
    choose_rates(&s, &usual, 0);
    for (uint32_t h = 0; h < 3; h++) {
        uint32_t held = s.blocks * 64 - chosen.rates[h].tokens[0];
        assert_true(held > s.blocks * 64 / 2 && held < s.blocks * 64);
        for (uint32_t t = 0; t < s.blocks * 64; t++) {
            assert_int_equal(chosen.of_token[h][t] > 0, t < held);
        }
        size_t values = gpw_mixed_value_bytes(64, chosen.rates[h].tokens);
        assert_true(values <= chosen.head_bytes / 2 && values > chosen.head_bytes / 2 - 1024);
        assert_int_equal(chosen.rates[h].channels[0], 64); // which do not vary
    }
    sample_free(&s);
}

// Nobody looks at a token whose key repels every query: no bits, however many there are.
static void what_is_not_looked_at_gets_nothing(void **state)
{
    (void)state;
    sample_t s = sample_make((as_shape_t){1, 4, 2, 64, 64, AS_ELEMENT_F16}, 4, 1);
    gpw_compressor_params_t params = usual;
    params.bits = 16;
    params.pool_tokens = 1;
    for (uint32_t row = 0; row < GPW_OBSERVED_ROWS_MAX * 4; row++) {
        for (uint32_t c = 0; c < 64; c++) {
            s.window_q[row * 64 + c] = 10.0f;
        }
    }
    for (uint32_t h = 0; h < 2; h++) {
        for (uint32_t c = 0; c < 64; c++) {
            extent_of(&s, 1, 0)[as_extent_offset(&s.shape, 0, h, 7) + c] =
                krn_f16_from_float(-100.0f);
        }
    }
    choose_rates(&s, &params, 0);
    for (uint32_t h = 0; h < 2; h++) {
        assert_int_equal(chosen.of_token[h][64 + 7], 0);
        assert_true(chosen.rates[h].tokens[0] < 256);
    }
    sample_free(&s);
}

// ---- Bytes -------------------------------------------------------------------------------------

// But for the granularity of four channels, and never more than there are.
static void the_bytes_are_used(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 80, 128, 256};
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t bits = 1; bits <= 4; bits++) {
            sample_t s =
                sample_make((as_shape_t){1, 6, 2, dims[i], 64, AS_ELEMENT_F16}, 20 + 5 * bits, 1);
            gpw_compressor_params_t params = usual;
            params.bits = bits;
            choose_rates(&s, &params, 0);
            for (uint32_t h = 0; h < 2; h++) {
                double share = (double)bytes_taken(h, dims[i]) / (double)chosen.head_bytes;
                if (!(share <= 1 && share > 0.97)) {
                    fail_msg("head size %u, %u bits: %.3f of the bytes", dims[i], bits, share);
                }
            }
            sample_free(&s);
        }
    }
}

static void a_budget_that_holds_nothing_is_nothing(void **state)
{
    (void)state;
    sample_t s = sample_make((as_shape_t){1, 2, 2, 64, 16, AS_ELEMENT_F16}, 1, 1);
    choose_rates(&s, &usual, 0); // 512 bytes, of which the scales of keys take 320
    for (uint32_t h = 0; h < 2; h++) {
        assert_int_equal(chosen.rates[h].tokens[0], 16);
        assert_true(bytes_taken(h, 64) <= chosen.head_bytes);
    }
    sample_free(&s);
}

// ---- Pooling -----------------------------------------------------------------------------------

static void a_mean_is_over_a_mirrored_end(void **state)
{
    (void)state;
    const float x[5] = {1, 2, 4, 8, 16};
    float out[5];
    gpw_select_pool_mean(x, 5, 5, out);
    const float sums[5] = {4 + 2 + 1 + 2 + 4, 2 + 1 + 2 + 4 + 8, 1 + 2 + 4 + 8 + 16,
                           2 + 4 + 8 + 16 + 8, 4 + 8 + 16 + 8 + 4};
    for (int i = 0; i < 5; i++) {
        assert_float_equal(out[i], sums[i] / 5, 1e-6);
    }
    gpw_select_pool_mean(x, 2, 5, out); // as narrow as 3
    assert_float_equal(out[0], (2 + 1 + 2) / 3.0f, 1e-6);
    assert_float_equal(out[1], (1 + 2 + 1) / 3.0f, 1e-6);
    gpw_select_pool_mean(x, 1, 5, out);
    assert_float_equal(out[0], 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_get_the_bits_that_numpy_gives),
        cmocka_unit_test(equal_weights_share_the_bytes_in_order),
        cmocka_unit_test(what_is_not_looked_at_gets_nothing),
        cmocka_unit_test(the_bytes_are_used),
        cmocka_unit_test(a_budget_that_holds_nothing_is_nothing),
        cmocka_unit_test(a_mean_is_over_a_mirrored_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
