// SPDX-License-Identifier: Apache-2.0
// Low-rank summaries of dropped tokens: against numpy, beside the same cache without, bytes, and what is refused.
#include "compressor_fixture.h"
#include "gpuworker/resident/stored.h"
#include "gpuworker/resident/summary.h"
#include "kernels/f16.h"
#include "model_fixture.h"
#include "tiny_model.h"

enum { CASES = 20, F = GPW_SUMMARY_FEATURES };

static const as_shape_t shape = {2, 6, 2, 64, 32, AS_ELEMENT_F16};

static gpw_compressor_t less(const gpw_calibration_t *c)
{
    gpw_compressor_t row = *gpw_compressor_find("less");
    row.params.calibration = c;
    return row;
}

// ---- Against numpy -----------------------------------------------------------------------------

static float golden_value(uint64_t seed, uint64_t i)
{
    return (float)(tiny_mix((seed << 40) + i) >> 40) / 8388608.0f - 1.0f;
}

static sample_t golden_sample(uint64_t seed, as_shape_t of, uint32_t blocks, uint32_t rows)
{
    sample_t s = {.shape = of, .blocks = blocks, .rows = rows};
    uint32_t dim = of.head_dim, tokens = blocks * of.block_tokens;
    s.extents = as_mem_zalloc(blocks, as_block_bytes(&of));
    s.q = as_mem_alloc((size_t)rows * of.q_heads * dim * sizeof(float));
    for (uint32_t i = 0; i < 2 * of.kv_heads * tokens * dim; i++) {
        uint32_t part = i / (of.kv_heads * tokens * dim), at = i % (of.kv_heads * tokens * dim);
        uint32_t h = at / (tokens * dim), t = at / dim % tokens;
        extent_of(&s, t / of.block_tokens,
                  0)[as_extent_offset(&of, part, h, t % of.block_tokens) + at % dim] =
            krn_f16_from_float(golden_value(seed, ((uint64_t)part << 32) + at));
    }
    for (uint32_t i = 0; i < rows * of.q_heads * dim; i++) {
        s.q[i] = golden_value(seed, ((uint64_t)2 << 32) + i);
    }
    return s;
}

static float *golden_maps(uint64_t seed, const gpw_calibration_t *c)
{
    size_t count = gpw_calibration_maps_bytes(c) / sizeof(float);
    float *maps = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        bool is_bias = i % gpw_summary_floats(c->head_dim) >= (size_t)F * c->head_dim;
        maps[i] = golden_value(seed, ((uint64_t)4 << 32) + i) * (is_bias ? 1 : 0.2f);
    }
    return maps;
}

static void compare_pairs(FILE *file, const sample_t *s, const krn_partials_t *got, uint64_t seed)
{
    uint32_t dim = s->shape.head_dim;
    for (uint32_t pair = 0; pair < s->rows * s->shape.q_heads; pair++) {
        const uint32_t channels[] = {0, dim / 2, dim - 1};
        double lse, value;
        assert_int_equal(fscanf(file, "%lf", &lse), 1);
        assert_float_equal(got->max[pair] + logf(got->sum[pair]), lse, 1e-4);
        for (uint32_t c = 0; c < 3; c++) {
            assert_int_equal(fscanf(file, "%lf ", &value), 1);
            double out = got->out[(size_t)pair * dim + channels[c]] / got->sum[pair];
            if (fabs(out - value) > 1e-5) {
                fail_msg("seed %u, pair %u: %g, by numpy %g", (unsigned)seed, pair, out, value);
            }
        }
    }
}

static void attention_is_that_of_numpy(void **state)
{
    (void)state;
    char path[512];
    FILE *file = fopen(fixture_golden("summary.txt", path), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]\n"), 0);
    for (uint32_t i = 0; i < CASES; i++) {
        as_shape_t of = {.layers = 1, .element = AS_ELEMENT_F16};
        uint32_t seed, blocks, window, rows;
        assert_int_equal(fscanf(file, "case %u %u %u %u %u %u %u %u\n", &seed, &of.head_dim,
                                &of.q_heads, &of.kv_heads, &of.block_tokens, &blocks, &window,
                                &rows),
                         8);
        sample_t s = golden_sample(seed, of, blocks, rows);
        gpw_calibration_t c = calibration_of(&(as_key_t){{9}}, &of);
        c.maps = golden_maps(seed, &c);
        gpw_compressor_t row = less(&c);
        row.params.window_tokens = window * of.block_tokens;
        gpw_segment_t *segment = seal_all(&s, &row, &row.params);
        attended_t a = attend(&s, &row, segment, 0, 2);
        compare_pairs(file, &s, &a.partials, seed);
        as_mem_free(a.memory);
        row.close(segment);
        free(c.maps);
        sample_free(&s);
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

// ---- Beside the same cache without -------------------------------------------------------------

// To the bit what streaming is, until a block leaves; then no more, but the exact blocks are the same.
static void until_something_is_dropped_it_is_streaming(void **state)
{
    (void)state;
    gpw_calibration_t c = calibration_of(&(as_key_t){{9}}, &shape);
    gpw_compressor_t row = less(&c);
    const gpw_compressor_t *streaming = gpw_compressor_find("streaming");
    assert_int_equal(row.params.window_tokens, streaming->params.window_tokens);
    for (uint32_t blocks = 8; blocks <= 11; blocks++) { // one of sinks and eight of the window
        sample_t s = sample_make(shape, blocks, 2);
        gpw_segment_t *with = seal_all(&s, &row, &row.params);
        gpw_segment_t *without = seal_all(&s, streaming, &streaming->params);
        for (uint32_t layer = 0; layer < shape.layers; layer++) {
            attended_t a = attend(&s, &row, with, layer, 1);
            attended_t b = attend(&s, streaming, without, layer, 1);
            bool is_same = memcmp(a.memory, b.memory, a.floats * sizeof(float)) == 0;
            assert_true(is_same == (blocks <= 9));
            for (uint32_t i = 0; i < blocks; i++) {
                assert_true((row.extent(with, layer, i) != NULL) ==
                            (streaming->extent(without, layer, i) != NULL));
            }
            as_mem_free(a.memory);
            as_mem_free(b.memory);
        }
        row.close(with);
        streaming->close(without);
        sample_free(&s);
    }
}

// Of values that are all alike any mean is that value, whatever the maps say, and however large.
static void a_mean_of_equal_values_is_that_value(void **state)
{
    (void)state;
    gpw_calibration_t c = calibration_of(&(as_key_t){{9}}, &shape);
    size_t count = gpw_calibration_maps_bytes(&c) / sizeof(float);
    float *maps = malloc(count * sizeof(float));
    for (int i = 0; i < 3; i++) {
        sample_t s = sample_make(shape, 30, 2);
        for (uint32_t b = 0; b < s.blocks * shape.layers; b++) {
            krn_f16 *v = extent_of(&s, b / shape.layers, b % shape.layers) +
                         as_extent_offset(&shape, 1, 0, 0);
            for (uint32_t e = 0; e < shape.kv_heads * shape.block_tokens * shape.head_dim; e++) {
                v[e] = krn_f16_from_float(-60000);
            }
        }
        for (size_t j = 0; j < count; j++) {
            maps[j] = i == 0 ? 0 : i == 1 ? 1e4f : (float)(j % 5) - 2;
        }
        gpw_calibration_t of = c;
        of.maps = maps;
        gpw_compressor_t row = less(&of);
        gpw_segment_t *segment = seal_all(&s, &row, &row.params);
        attended_t a = attend(&s, &row, segment, 1, 1);
        for (uint32_t pair = 0; pair < s.rows * shape.q_heads; pair++) {
            float out = a.partials.out[(size_t)pair * shape.head_dim] / a.partials.sum[pair];
            assert_float_equal(out, krn_f16_to_float(krn_f16_from_float(-60000)), 1);
        }
        as_mem_free(a.memory);
        row.close(segment);
        sample_free(&s);
    }
    free(maps);
}

// Those of streaming, of each KV head H and z, and what a block is unpacked to.
static void the_summary_is_counted(void **state)
{
    (void)state;
    gpw_calibration_t c = calibration_of(&(as_key_t){{9}}, &shape);
    gpw_compressor_t row = less(&c);
    const gpw_compressor_t *streaming = gpw_compressor_find("streaming");
    sample_t s = sample_make(shape, 40, 1);
    gpw_segment_t *with = seal_all(&s, &row, &row.params);
    gpw_segment_t *without = seal_all(&s, streaming, &streaming->params);
    uint64_t more = row.bytes(with) - streaming->bytes(without);
    uint64_t summary = 2 * 2 * F * (64 + 1) * sizeof(float);
    assert_in_range(more, summary + 2 * 32 * 64 * 4, summary + 2 * 32 * 64 * 4 + 256);
    as_shape_t stored;
    assert_false(gpw_stored_shape(&row, &shape, &stored)); // a sum cannot be taken apart
    row.close(with);
    streaming->close(without);
    sample_free(&s);
}

static void without_maps_of_the_model_nothing_opens(void **state)
{
    (void)state;
    sample_t s = sample_make(shape, 2, 1);
    for (int i = 0; i < 7; i++) {
        gpw_segment_t *segment;
        gpw_calibration_t c = calibration_of(&(as_key_t){{9}}, &shape);
        c.layers += i == 1;
        c.q_heads += i == 2;
        c.kv_heads += i == 3;
        c.head_dim += i == 4;
        c.maps = i == 5 ? NULL : c.maps;
        gpw_compressor_t row = less(i ? &c : NULL);
        gpw_segment_options_t options = options_for(&s, &row.params);
        if (i == 6) {
            assert_int_equal(row.open(&options, &segment), AS_OK);
            row.close(segment);
            continue;
        }
        assert_int_equal(row.open(&options, &segment), AS_ERR_UNSUPPORTED);
        assert_int_equal(row.bytes_max(&options, 2), 0);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_that_of_numpy),
        cmocka_unit_test(until_something_is_dropped_it_is_streaming),
        cmocka_unit_test(a_mean_of_equal_values_is_that_value),
        cmocka_unit_test(the_summary_is_counted),
        cmocka_unit_test(without_maps_of_the_model_nothing_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
