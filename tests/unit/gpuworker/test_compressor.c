// SPDX-License-Identifier: Apache-2.0
// Compressors against plain formulas: what a segment attends to, what it holds exactly, and the
// bytes it takes.
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "gpuworker/resident/compressor.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/partials.h"
#include "kernels/f16.h"

typedef struct sample {
    as_shape_t shape;
    uint32_t blocks;
    krn_f16 *extents; // [block][layer]
    float *q;         // [rows][q_heads][dim]
    uint32_t rows;
} sample_t;

static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(*state >> 40) / 8388608.0f - 1.0f;
}

static sample_t sample_make(as_shape_t shape, uint32_t blocks, uint32_t rows)
{
    sample_t s = {.shape = shape, .blocks = blocks, .rows = rows};
    uint64_t state = 99 + shape.head_dim;
    size_t elements = as_block_bytes(&shape) / sizeof(krn_f16) * blocks;
    s.extents = as_mem_alloc(elements * sizeof(krn_f16));
    for (size_t i = 0; i < elements; i++) {
        float channel = (float)(i % shape.head_dim % 7) - 3.0f; // channels differ, as real keys' do
        s.extents[i] = krn_f16_from_float(noise(&state) + channel);
    }
    size_t queries = (size_t)rows * shape.q_heads * shape.head_dim;
    s.q = as_mem_alloc(queries * sizeof(float));
    for (size_t i = 0; i < queries; i++) {
        s.q[i] = noise(&state);
    }
    return s;
}

static void sample_free(sample_t *s)
{
    as_mem_free(s->extents);
    as_mem_free(s->q);
}

static krn_f16 *extent_of(const sample_t *s, uint32_t block, uint32_t layer)
{
    return s->extents + (as_block_bytes(&s->shape) * block + as_extent_bytes(&s->shape) * layer) /
                            sizeof(krn_f16);
}

// Value (part 0: K, 1: V) as the compressor is to see it.
typedef double (*value_fn)(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                           uint32_t token, uint32_t channel);

static double exact_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                          uint32_t token, uint32_t channel)
{
    uint32_t size = s->shape.block_tokens;
    size_t at = as_extent_offset(&s->shape, part, head, token % size) + channel;
    return krn_f16_to_float(extent_of(s, token / size, layer)[at]);
}

static const gpw_compressor_params_t *kivi_params;

// The formula of kivi.h, on one value at a time.
static double kivi_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                         uint32_t token, uint32_t channel)
{
    uint32_t size = s->shape.block_tokens, group = kivi_params->group;
    uint32_t block = token / size * size;
    uint32_t index = part ? channel : token - block, end = part ? s->shape.head_dim : size;
    uint32_t first = index / group * group, last = first + group < end ? first + group : end;
    double low = INFINITY, high = -INFINITY;
    for (uint32_t i = first; i < last; i++) {
        double x = part ? exact_value(s, layer, part, head, token, i)
                        : exact_value(s, layer, part, head, block + i, channel);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    float levels = (float)((1u << kivi_params->bits) - 1);
    float scale = krn_f16_to_float(krn_f16_from_float(((float)high - (float)low) / levels));
    float x = (float)exact_value(s, layer, part, head, token, channel);
    // In single precision: a value halfway between two codes must fall to the same side.
    double code = scale > 0 ? floorf((x - (float)low) * (1.0f / scale) + 0.5f) : 0;
    code = code < 0 ? 0 : code > levels ? levels : code;
    return code * scale + low;
}

typedef struct held {
    bool (*holds)(uint32_t block, uint32_t blocks);
    value_fn value;
} held_t;

static bool holds_all(uint32_t block, uint32_t blocks)
{
    (void)block;
    (void)blocks;
    return true;
}

// Plain softmax attention in double precision; returns the largest error of out against `partials`,
// relative to the largest output.
static double attention_error(const sample_t *s, const held_t *held, uint32_t layer,
                              const krn_partials_t *partials)
{
    uint32_t dim = s->shape.head_dim, tokens = s->blocks * s->shape.block_tokens;
    uint32_t group = s->shape.q_heads / s->shape.kv_heads;
    double worst = 0, largest = 0;
    double *weights = malloc(tokens * sizeof(double));
    for (uint32_t pair = 0; pair < s->rows * s->shape.q_heads; pair++) {
        uint32_t head = pair % s->shape.q_heads / group;
        double max = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < tokens; t++) {
            weights[t] = -INFINITY;
            if (held->holds(t / s->shape.block_tokens, s->blocks)) {
                double dot = 0;
                for (uint32_t c = 0; c < dim; c++) {
                    dot += s->q[(size_t)pair * dim + c] * held->value(s, layer, 0, head, t, c);
                }
                weights[t] = dot / sqrt(dim);
            }
            max = weights[t] > max ? weights[t] : max;
        }
        for (uint32_t t = 0; t < tokens; t++) {
            weights[t] = exp(weights[t] - max);
            sum += weights[t];
        }
        for (uint32_t c = 0; c < dim; c++) {
            double out = 0;
            for (uint32_t t = 0; t < tokens; t++) {
                out += weights[t] > 0 ? weights[t] * held->value(s, layer, 1, head, t, c) : 0;
            }
            out /= sum;
            double got = partials->out[(size_t)pair * dim + c] / partials->sum[pair];
            worst = fabs(got - out) > worst ? fabs(got - out) : worst;
            largest = fabs(out) > largest ? fabs(out) : largest;
        }
    }
    free(weights);
    return worst / largest;
}

static gpw_segment_options_t options_for(const sample_t *s, const gpw_compressor_params_t *params)
{
    gpw_segment_options_t options = {
        .params = params, .shape = s->shape, .ops = krn_cpu(), .blocks_max = s->blocks};
    return options;
}

static gpw_segment_t *seal_all(const sample_t *s, const gpw_compressor_t *compressor,
                               const gpw_compressor_params_t *params)
{
    gpw_segment_options_t options = options_for(s, params);
    gpw_segment_t *segment;
    assert_int_equal(compressor->open(&options, &segment), AS_OK);
    assert_int_equal(compressor->reserve(segment, s->blocks), AS_OK);
    for (uint32_t layer = 0; layer < s->shape.layers; layer++) {
        for (uint32_t b = 0; b < s->blocks; b++) {
            compressor->seal(segment, layer, b, extent_of(s, b, layer));
        }
    }
    return segment;
}

typedef struct attended {
    float *memory, *scratch;
    size_t floats;
    krn_partials_t partials;
} attended_t;

static attended_t attend(const sample_t *s, const gpw_compressor_t *compressor,
                         const gpw_segment_t *segment, uint32_t layer, uint32_t threads)
{
    attended_t a = {0};
    krn_pool_t *pool;
    size_t pairs = (size_t)s->rows * s->shape.q_heads;
    assert_int_equal(krn_pool_alloc(threads, &pool), AS_OK);
    a.floats = pairs * (s->shape.head_dim + 2);
    a.memory = as_mem_alloc(a.floats * sizeof(float));
    a.scratch = as_mem_alloc(gpw_segment_scratch_bytes(&s->shape, s->rows));
    a.partials = gpw_partials_carve(a.memory, pairs, s->shape.head_dim);
    gpw_segment_attend_t args = {.pool = pool,
                                 .layer = layer,
                                 .rows = s->rows,
                                 .scale = 1.0f / sqrtf((float)s->shape.head_dim),
                                 .q = s->q,
                                 .out = &a.partials,
                                 .scratch = a.scratch};
    compressor->attend(segment, &args);
    krn_pool_free(pool);
    as_mem_free(a.scratch);
    return a;
}

static const as_shape_t shapes[] = {
    {2, 4, 2, 16, 16, AS_ELEMENT_F16},  // blocks shorter than a group
    {2, 9, 3, 64, 64, AS_ELEMENT_F16},  // SmolLM2's heads
    {1, 6, 1, 48, 64, AS_ELEMENT_F16},  // a last channel group of 16
    {1, 5, 1, 80, 50, AS_ELEMENT_F16},  // odd block, one head for five
    {1, 2, 2, 256, 32, AS_ELEMENT_F16}, // the widest head
    {2, 8, 8, 32, 256, AS_ELEMENT_F16}, // no grouping, the longest block
};

static void kivi_attends_to_what_its_formula_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (uint32_t rows = 1; rows <= 3; rows += 2) {
            sample_t s = sample_make(shapes[i], 11, rows);
            for (int four = 0; four < 2; four++) {
                const gpw_compressor_t *kivi = gpw_compressor_find(four ? "kivi4" : "kivi2");
                kivi_params = &kivi->params;
                gpw_segment_t *segment = seal_all(&s, kivi, &kivi->params);
                attended_t a = attend(&s, kivi, segment, shapes[i].layers - 1, 1);
                held_t held = {holds_all, kivi_value};
                double error = attention_error(&s, &held, shapes[i].layers - 1, &a.partials);
                if (error > 2e-5) {
                    fail_msg("shape %zu, %s: error %g", i, kivi->name, error);
                }
                as_mem_free(a.memory);
                kivi->close(segment);
            }
            sample_free(&s);
        }
    }
}

static void kivi_comes_closer_with_more_bits(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 8, 1);
    double errors[2];
    for (int four = 0; four < 2; four++) {
        const gpw_compressor_t *kivi = gpw_compressor_find(four ? "kivi4" : "kivi2");
        gpw_segment_t *segment = seal_all(&s, kivi, &kivi->params);
        attended_t a = attend(&s, kivi, segment, 0, 1);
        held_t held = {holds_all, exact_value};
        errors[four] = attention_error(&s, &held, 0, &a.partials);
        assert_null(kivi->extent(segment, 0, 0));
        as_mem_free(a.memory);
        kivi->close(segment);
    }
    assert_true(errors[1] < errors[0] / 2 && errors[0] < 0.5);
    sample_free(&s);
}

static void a_constant_group_decodes_to_its_value(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 1, 1);
    for (size_t i = 0; i < as_block_bytes(&s.shape) / sizeof(krn_f16); i++) {
        s.extents[i] = krn_f16_from_float(-2.5f);
    }
    const gpw_compressor_t *kivi = gpw_compressor_find("kivi2");
    gpw_segment_t *segment = seal_all(&s, kivi, &kivi->params);
    attended_t a = attend(&s, kivi, segment, 0, 1);
    for (uint32_t c = 0; c < s.shape.head_dim; c++) {
        assert_float_equal(a.partials.out[c] / a.partials.sum[0], -2.5, 1e-6);
    }
    as_mem_free(a.memory);
    kivi->close(segment);
    sample_free(&s);
}

static const gpw_compressor_params_t small_window = {.sink_tokens = 4, .window_tokens = 40};

// 40 tokens of window are three blocks of 16.
static bool streaming_holds(uint32_t block, uint32_t blocks)
{
    return block == 0 || block + 3 >= blocks;
}

static void streaming_attends_to_sinks_and_window_exactly(void **state)
{
    (void)state;
    const gpw_compressor_t *streaming = gpw_compressor_find("streaming");
    for (uint32_t blocks = 1; blocks < 24; blocks++) {
        sample_t s = sample_make(shapes[0], blocks, 2);
        gpw_segment_t *segment = seal_all(&s, streaming, &small_window);
        attended_t a = attend(&s, streaming, segment, 1, 1);
        held_t held = {streaming_holds, exact_value};
        assert_true(attention_error(&s, &held, 1, &a.partials) < 1e-5);
        for (uint32_t b = 0; b < blocks; b++) {
            const void *extent = streaming->extent(segment, 1, b);
            assert_true((extent != NULL) == streaming_holds(b, blocks));
            if (extent) {
                assert_memory_equal(extent, extent_of(&s, b, 1), as_extent_bytes(&s.shape));
            }
        }
        assert_null(streaming->extent(segment, 1, blocks));
        as_mem_free(a.memory);
        streaming->close(segment);
        sample_free(&s);
    }
}

static void an_empty_segment_yields_an_empty_partial(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 2, 1);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        gpw_segment_options_t options = options_for(&s, &c->params);
        gpw_segment_t *segment;
        assert_int_equal(c->open(&options, &segment), AS_OK);
        attended_t a = attend(&s, c, segment, 0, 1);
        assert_true(a.partials.max[0] == -INFINITY && a.partials.sum[0] == 0.0f);
        as_mem_free(a.memory);
        c->close(segment);
    }
    sample_free(&s);
}

static void threads_and_rows_do_not_change_a_bit(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[1], 40, 3);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        gpw_segment_t *segment = seal_all(&s, c, &c->params);
        attended_t one = attend(&s, c, segment, 1, 1);
        attended_t four = attend(&s, c, segment, 1, 4);
        assert_memory_equal(one.memory, four.memory, one.floats * sizeof(float));
        sample_t single = s;
        single.rows = 1;
        attended_t alone = attend(&single, c, segment, 1, 2);
        size_t row = (size_t)s.shape.q_heads * s.shape.head_dim;
        assert_memory_equal(one.partials.out, alone.partials.out, row * sizeof(float));
        as_mem_free(one.memory);
        as_mem_free(four.memory);
        as_mem_free(alone.memory);
        c->close(segment);
    }
    sample_free(&s);
}

static void portable_and_vector_code_give_the_same_bits(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        skip();
    }
#endif
    sample_t s = sample_make(shapes[1], 1, 1);
    const gpw_compressor_t *kivi = gpw_compressor_find("kivi4");
    gpw_segment_options_t options = options_for(&s, &kivi->params);
    gpw_kivi_layout_t layout;
    assert_int_equal(gpw_kivi_layout(&options, &layout), AS_OK);
    uint8_t *codes = as_mem_zalloc(1, layout.head_bytes);
    uint32_t head = layout.tokens * layout.dim;
    float *k = as_mem_alloc(2 * head * sizeof(float));
    krn_cpu()->f16_to_f32(s.extents, 2 * head, k);
    gpw_kivi_pack(&layout, k, k + head, codes);
    const uint8_t *blocks[] = {codes};
    float memory[2][3 * (64 + 2)];
    for (int i = 0; i < 2; i++) {
        gpw_kivi_part_t part = {.layout = &layout,
                                .ops = krn_cpu(),
                                .blocks = blocks,
                                .block_count = 1,
                                .rows = 1,
                                .group_heads = 3,
                                .q_heads = 3,
                                .scale = 0.125f,
                                .q = s.q,
                                .out = gpw_partials_carve(memory[i], 3, 64)};
        krn_partials_clear(&part.out, 3, 64);
        i ? gpw_kivi_attend_avx2(&part) : gpw_kivi_attend_portable(&part);
    }
    assert_memory_equal(memory[0], memory[1], sizeof(memory[0]));
    as_mem_free(k);
    as_mem_free(codes);
    sample_free(&s);
}

// What the allocator gave, as it tells itself.
static void bytes_are_those_that_are_allocated(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); // the sanitizers' allocators do not answer mallinfo2
#endif
    sample_t s = sample_make(shapes[1], 20, 1);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        struct mallinfo2 before = mallinfo2();
        gpw_segment_t *segment = seal_all(&s, c, &c->params);
        struct mallinfo2 after = mallinfo2();
        double allocated =
            (double)(after.uordblks + after.hblkhd) - (double)(before.uordblks + before.hblkhd);
        double told = (double)c->bytes(segment);
        gpw_segment_options_t options = options_for(&s, &c->params);
        if (fabs(allocated - told) > 0.02 * told + 4096) {
            fail_msg("%s: %.0f bytes told, %.0f allocated", c->name, told, allocated);
        }
        assert_int_equal(c->bytes(segment), c->bytes_max(&options, s.blocks));
        printf("%s: %.2f times smaller\n", c->name,
               (double)as_block_bytes(&s.shape) * s.blocks / told);
        c->close(segment);
    }
    sample_free(&s);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[0], 1, 1);
    gpw_compressor_params_t params[] = {{.bits = 3, .group = 32}, {.bits = 4, .group = 12}, {0}};
    const gpw_compressor_t *kivi = gpw_compressor_find("kivi4");
    for (int i = 0; i < 3; i++) {
        gpw_segment_options_t options = options_for(&s, &params[i]);
        gpw_segment_t *segment;
        assert_int_equal(kivi->open(&options, &segment), AS_ERR_UNSUPPORTED);
    }
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        gpw_segment_options_t options = options_for(&s, &c->params);
        options.shape.element = AS_ELEMENT_F32;
        gpw_segment_t *segment;
        assert_int_equal(c->open(&options, &segment), AS_ERR_UNSUPPORTED);
    }
    assert_null(gpw_compressor_find("kivi3"));
    sample_free(&s);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    sample_t s = sample_make(shapes[0], 6, 1);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        bool complete = false;
        for (uint64_t n = 1; !complete; n++) {
            gpw_segment_options_t options = options_for(&s, &c->params);
            gpw_segment_t *segment = NULL;
            as_mem_fail_nth(n);
            as_status_t status = c->open(&options, &segment);
            status = status == AS_OK ? c->reserve(segment, s.blocks) : status;
            as_mem_fail_nth(0);
            complete = status == AS_OK;
            assert_true(complete || status == AS_ERR_NO_MEMORY);
            if (segment) {
                c->close(segment);
            }
        }
    }
    sample_free(&s);
}

static void the_names_are_those_of_the_table_and_none(void **state)
{
    (void)state;
    const char *const *names = gpw_compressor_names();
    const char *list = gpw_compressor_list();
    uint32_t count = 0;
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        assert_string_equal(names[count++], c->name);
        assert_ptr_equal(gpw_compressor_find(c->name), c);
        assert_non_null(strstr(list, c->name));
    }
    assert_string_equal(names[count], "none");
    assert_null(names[count + 1]);
    assert_string_equal(list + strlen(list) - 8, " or none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kivi_attends_to_what_its_formula_says),
        cmocka_unit_test(kivi_comes_closer_with_more_bits),
        cmocka_unit_test(a_constant_group_decodes_to_its_value),
        cmocka_unit_test(streaming_attends_to_sinks_and_window_exactly),
        cmocka_unit_test(an_empty_segment_yields_an_empty_partial),
        cmocka_unit_test(threads_and_rows_do_not_change_a_bit),
        cmocka_unit_test(portable_and_vector_code_give_the_same_bits),
        cmocka_unit_test(bytes_are_those_that_are_allocated),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(the_names_are_those_of_the_table_and_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
