// SPDX-License-Identifier: Apache-2.0
// Compressors against plain formulas: what a segment attends to, what it holds exactly, and the
// bytes it takes.
#include "compressor_fixture.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/select/selector.h"

static const gpw_compressor_params_t *kivi_params;

typedef struct quantized {
    double code;
    float scale, low;
} quantized_t;

// All of one layer and KV head.
typedef struct kivi_head {
    uint32_t tokens, dim, size; // size: of a block
    double mid;
    quantized_t *z[2]; // K and V: [tokens][dim]
} kivi_head_t;

// The formula of kivi.h: `count` values of one group, `stride` apart, which stand in `low`.
static void quantize(quantized_t *z, uint32_t count, size_t stride)
{
    float low = INFINITY, high = -INFINITY, levels = (float)((1u << kivi_params->bits) - 1);
    for (uint32_t i = 0; i < count; i++) {
        low = fminf(low, z[i * stride].low);
        high = fmaxf(high, z[i * stride].low);
    }
    float scale = krn_f16_to_float(krn_f16_from_float((high - low) / levels));
    for (uint32_t i = 0; i < count; i++) {
        // In single precision: a value halfway between two codes must fall to the same side.
        float code = scale > 0 ? floorf((z[i * stride].low - low) * (1.0f / scale) + 0.5f) : 0;
        z[i * stride] = (quantized_t){fminf(fmaxf(code, 0), levels), scale, low};
    }
}

// Of `length` values, groups one behind the other; the last may be shorter.
static void quantize_groups(quantized_t *z, uint32_t length, size_t stride)
{
    uint32_t group = kivi_params->group;
    for (uint32_t first = 0; first < length; first += group) {
        uint32_t count = length - first < group ? length - first : group;
        quantize(z + first * stride, count, stride);
    }
}

static kivi_head_t head_make(const sample_t *s, uint32_t layer, uint32_t head)
{
    uint32_t size = s->shape.block_tokens, dim = s->shape.head_dim;
    kivi_head_t h = {.tokens = s->blocks * size,
                     .dim = dim,
                     .size = size,
                     .mid = ((1u << kivi_params->bits) - 1) / 2.0};
    for (uint32_t part = 0; part < 2; part++) {
        h.z[part] = malloc((size_t)h.tokens * dim * sizeof(*h.z[part]));
        for (uint32_t i = 0; i < h.tokens * dim; i++) {
            h.z[part][i].low = (float)exact_value(s, layer, part, head, i / dim, i % dim);
        }
    }
    for (uint32_t i = 0; i < s->blocks * dim; i++) { // a channel of a block
        quantize_groups(h.z[0] + (size_t)(i / dim) * size * dim + i % dim, size, dim);
    }
    for (uint32_t t = 0; t < h.tokens; t++) {
        quantize_groups(h.z[1] + (size_t)t * dim, dim, 1);
    }
    return h;
}

static void head_free(kivi_head_t *h)
{
    free(h->z[0]);
    free(h->z[1]);
    *h = (kivi_head_t){0};
}

static kivi_head_t held_head; // the one that was asked for last
static uint32_t held_number;

// Of the sample and layer at hand.
static double kivi_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                         uint32_t token, uint32_t channel)
{
    if (!held_head.z[0] || held_number != head) {
        head_free(&held_head);
        held_head = head_make(s, layer, head);
        held_number = head;
    }
    const quantized_t *z = &held_head.z[part][(size_t)token * held_head.dim + channel];
    return z->code * z->scale + z->low;
}

// ---- The formula of kivi_attend.h --------------------------------------------------------------

#define STEPS 127.0f

// x * (code - mid) * scale with the weight x * scale rounded, and what of x is left to its centre.
static double weighed(const kivi_head_t *h, const quantized_t *z, double steps, double step,
                      double x)
{
    return step * steps * (z->code - h->mid) + x * (z->low + h->mid * z->scale);
}

// In single precision, as the code has it: so that both round every weight to the same side.
static float step_of_block(const kivi_head_t *h, uint32_t block, const float *q)
{
    float largest = 1e-30f;
    for (uint32_t t = block * h->size; t < (block + 1) * h->size; t++) {
        for (uint32_t c = 0; c < h->dim; c++) {
            float weight = fabsf(q[c] * h->z[0][(size_t)t * h->dim + c].scale);
            largest = weight > largest ? weight : largest;
        }
    }
    return largest * (1.0f / STEPS);
}

static void logits_of(const kivi_head_t *h, const float *q, double *logits)
{
    for (uint32_t block = 0; block * h->size < h->tokens; block++) {
        float step = step_of_block(h, block, q), inverse = 1.0f / step;
        for (uint32_t t = block * h->size; t < (block + 1) * h->size; t++) {
            logits[t] = 0;
            for (uint32_t c = 0; c < h->dim; c++) {
                const quantized_t *z = &h->z[0][(size_t)t * h->dim + c];
                double steps = rint((double)(q[c] * inverse) * z->scale);
                logits[t] += weighed(h, z, steps, step, q[c]);
            }
            logits[t] /= sqrt(h->dim);
        }
    }
}

static double exponentials(double *logits, uint32_t count)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < count; t++) {
        max = logits[t] > max ? logits[t] : max;
    }
    for (uint32_t t = 0; t < count; t++) {
        logits[t] = exp(logits[t] - max);
        sum += logits[t];
    }
    return sum;
}

// A 127th of each block's largest weight.
static void steps_of_values(const kivi_head_t *h, const double *p, double *steps)
{
    for (uint32_t block = 0; block * h->size < h->tokens; block++) {
        double largest = 1e-30;
        for (uint32_t i = block * h->size * h->dim; i < (block + 1) * h->size * h->dim; i++) {
            double weight = p[i / h->dim] * h->z[1][i].scale;
            largest = weight > largest ? weight : largest;
        }
        steps[block] = largest / STEPS;
    }
}

// One channel of the output. *slack_p: what it may be beside it, where weights lie so near the middle of two
// steps that an exponential in single precision decides.
static double channel_of(const kivi_head_t *h, const double *p, const double *steps, uint32_t c,
                         double *slack_p)
{
    double sum = 0;
    *slack_p = 0;
    for (uint32_t t = 0; t < h->tokens; t++) {
        const quantized_t *z = &h->z[1][(size_t)t * h->dim + c];
        double step = steps[t / h->size], weight = p[t] * z->scale / step;
        bool in_the_middle = fabs(weight - floor(weight) - 0.5) < 1e-3;
        sum += weighed(h, z, rint(weight), step, p[t]);
        *slack_p += in_the_middle ? step * fabs(z->code - h->mid) : 0;
    }
    return sum;
}

// The largest error relative to the largest output, beyond what is in the middle.
static double rounded_error(const sample_t *s, uint32_t layer, const krn_partials_t *partials)
{
    uint32_t dim = s->shape.head_dim, group = s->shape.q_heads / s->shape.kv_heads;
    double worst = 0, largest = 0;
    for (uint32_t head = 0; head < s->shape.kv_heads; head++) {
        kivi_head_t h = head_make(s, layer, head);
        double *p = malloc(h.tokens * sizeof(*p)), *steps = malloc(s->blocks * sizeof(*steps));
        for (uint32_t i = 0; i < s->rows * group; i++) {
            size_t pair = (size_t)(i / group) * s->shape.q_heads + head * group + i % group;
            logits_of(&h, s->q + pair * dim, p);
            double sum = exponentials(p, h.tokens);
            steps_of_values(&h, p, steps);
            for (uint32_t c = 0; c < dim; c++) {
                double slack, out = channel_of(&h, p, steps, c, &slack) / sum;
                double got = partials->out[pair * dim + c] / partials->sum[pair];
                double error = fabs(got - out) - slack / sum;
                worst = error > worst ? error : worst;
                largest = fabs(out) > largest ? fabs(out) : largest;
            }
        }
        free(p);
        free(steps);
        head_free(&h);
    }
    return worst / largest;
}

// Of every shape, with one row and three, and both widths of codes.
static void each_kivi(void (*check)(const sample_t *s, const char *name, const attended_t *a))
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (uint32_t rows = 1; rows <= 3; rows += 2) {
            sample_t s = sample_make(shapes[i], 11, rows);
            for (int four = 0; four < 2; four++) {
                const gpw_compressor_t *kivi = gpw_compressor_find(four ? "kivi4" : "kivi2");
                kivi_params = &kivi->params;
                gpw_segment_t *segment = seal_all(&s, kivi, &kivi->params);
                attended_t a = attend(&s, kivi, segment, shapes[i].layers - 1, 1);
                check(&s, kivi->name, &a);
                as_mem_free(a.memory);
                kivi->close(segment);
            }
            sample_free(&s);
        }
    }
}

static void check_formula(const sample_t *s, const char *name, const attended_t *a)
{
    double error = rounded_error(s, s->shape.layers - 1, &a->partials);
    if (error > 2e-5) {
        fail_msg("head dimension %u, %s: error %g", s->shape.head_dim, name, error);
    }
}

static void kivi_attends_to_what_its_formula_says(void **state)
{
    (void)state;
    each_kivi(check_formula);
}

static void check_rounding(const sample_t *s, const char *name, const attended_t *a)
{
    held_t held = {.value = kivi_value}, exact = {.value = exact_value};
    double error = attention_error(s, &held, s->shape.layers - 1, &a->partials);
    head_free(&held_head);
    double lost = attention_error(s, &exact, s->shape.layers - 1, &a->partials);
    if (error > 2e-3 || error > lost / 5) {
        fail_msg("head dimension %u, %s: error %g, quantizing %g", s->shape.head_dim, name, error,
                 lost);
    }
}

static void rounding_weights_costs_little_of_what_rounding_keys_and_values_does(void **state)
{
    (void)state;
    each_kivi(check_rounding);
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
        held_t held = {.value = exact_value};
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

static const gpw_compressor_params_t small_window = {
    .selector = &gpw_select_positions, .sink_tokens = 4, .window_tokens = 40};

// 40 tokens of window are three blocks of 16.
static bool streaming_holds_block(uint32_t block, uint32_t blocks)
{
    return block == 0 || block + 3 >= blocks;
}

static bool streaming_holds(const held_t *held, uint32_t kv_head, uint32_t token)
{
    (void)kv_head;
    return streaming_holds_block(token / held->sample->shape.block_tokens, held->sample->blocks);
}

static void streaming_attends_to_sinks_and_window_exactly(void **state)
{
    (void)state;
    const gpw_compressor_t *streaming = gpw_compressor_find("streaming");
    for (uint32_t blocks = 1; blocks < 24; blocks++) {
        sample_t s = sample_make(shapes[0], blocks, 2);
        gpw_segment_t *segment = seal_all(&s, streaming, &small_window);
        attended_t a = attend(&s, streaming, segment, 1, 1);
        held_t held = {.holds = streaming_holds, .value = exact_value, .sample = &s};
        assert_true(attention_error(&s, &held, 1, &a.partials) < 1e-5);
        for (uint32_t b = 0; b < blocks; b++) {
            const void *extent = streaming->extent(segment, 1, b);
            assert_true((extent != NULL) == streaming_holds_block(b, blocks));
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
    for (const gpw_compressor_t *c = compressors_for(&s.shape); c->name; c++) {
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
    for (const gpw_compressor_t *c = compressors_for(&s.shape); c->name; c++) {
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

// What the allocator gave, as it tells itself.
static void bytes_are_those_that_are_allocated(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); // the sanitizers' allocators do not answer mallinfo2
#endif
    sample_t s = sample_make(shapes[1], 20, 1);
    for (const gpw_compressor_t *c = compressors_for(&s.shape); c->name; c++) {
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
        if (c->flags & GPW_COMPRESSOR_DATA_SIZED) {
            assert_true(told <= (double)c->bytes_max(&options, s.blocks));
        } else {
            assert_int_equal(c->bytes(segment), c->bytes_max(&options, s.blocks));
        }
        printf("%s: %.2f times smaller\n", c->name,
               (double)as_block_bytes(&s.shape) * s.blocks / told);
        c->close(segment);
    }
    sample_free(&s);
}

// Of the bytes of the full cache, by each method's formula at head size 64 and 128 blocks of 64.
static const struct {
    const char *name;
    double share;
} formulas[] = {
    {"kivi4", (4 + 2 * 16.0 / 32) / 16}, // codes, and a scale and a minimum for a group
    {"kivi2", (2 + 2 * 16.0 / 32) / 16},
    {"turbo4",
     (4 + (2 * 16.0 + 16) / 128) / 16}, // codes, a scale for a key and a value; the mean key
    {"turbo3", (3 + (2 * 16.0 + 16) / 128) / 16},
    {"streaming", 5.0 / 128}, // of the sinks a block, and four
    {"dbudgetkv", 1},         // at most
    {"rdkv", 2.0 / 16},       // in the mean
    // All tokens as they are, and of a page or cluster of 16 two keys, or one; or codes.
    {"quest", 1 + 2 * 0.5 / 16},
    {"clusterkv", 1 + 0.5 / 16},
    {"specache", 1 + (2 + 2 * 16.0 / 64) / 16},
    // Two keys of a page of three, and a position.
    {"rocketkv", 0.3 * (1 + 2 * 0.5 / 3 + 4.0 / 256)},
    {"kvsharer", (4 + 2 * 16.0 / 32) / 16 / 2},                   // every other layer, as kivi4
    {"less", 5.0 / 128 + 8 * 65 * 4.0 / (128 * 64 * 2 * 64 * 2)}, // as streaming; H and z
};

static double share_of(const gpw_compressor_t *c)
{
    for (size_t i = 0; i < sizeof(formulas) / sizeof(formulas[0]); i++) {
        if (strcmp(formulas[i].name, c->name) == 0) {
            return formulas[i].share;
        }
    }
    return c->params.selector ? c->params.keep_percent / 100.0 : NAN;
}

static void bytes_of_a_long_prompt_are_those_of_the_formula(void **state)
{
    (void)state;
    const as_shape_t shape = {30, 9, 3, 64, 64, AS_ELEMENT_F16};
    const uint32_t blocks = 128;
    for (const gpw_compressor_t *c = compressors_for(&shape); c->name; c++) {
        gpw_segment_options_t options = {
            .params = &c->params, .shape = shape, .blocks_max = blocks, .prompt_blocks = blocks};
        double full = (double)as_block_bytes(&shape) * blocks;
        double ratio = (double)c->bytes_max(&options, blocks) / (share_of(c) * full);
        if (!(ratio > 0.98 && ratio < 1.02)) {
            fail_msg("%s: %.4f of the formula's bytes", c->name, ratio);
        }
    }
}

// Nothing of it may then reach another session.
static void a_method_that_looks_at_queries_is_not_free_of_them(void **state)
{
    (void)state;
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        assert_true((c->observe != NULL) == !(c->flags & GPW_COMPRESSOR_QUERY_FREE));
        assert_true(!c->observe || (c->params.window_tokens > 0 &&
                                    c->params.window_tokens <= GPW_OBSERVED_ROWS_MAX));
    }
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
    for (const gpw_compressor_t *c = compressors_for(&s.shape); c->name; c++) {
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
    for (const gpw_compressor_t *c = compressors_for(&s.shape); c->name; c++) {
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

static void the_names_are_those_of_the_table_none_and_auto(void **state)
{
    (void)state;
    const char *const *all = gpw_compressor_names(0), *const *usable = gpw_compressor_names(
                                                          GPW_COMPRESSOR_CALIBRATED);
    const char *const *shares = gpw_compressor_names(GPW_COMPRESSOR_SUMMARIZES);
    const char *list = gpw_compressor_list();
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        assert_string_equal(*all++, c->name);
        assert_ptr_equal(gpw_compressor_find(c->name), c);
        assert_non_null(strstr(list, c->name));
        if (!(c->flags & GPW_COMPRESSOR_CALIBRATED)) {
            assert_string_equal(*usable++, c->name);
        }
        if (!(c->flags & GPW_COMPRESSOR_SUMMARIZES)) {
            assert_string_equal(*shares++, c->name);
        }
    }
    assert_string_equal(all[0], "none");
    assert_string_equal(usable[0], "none");
    assert_string_equal(all[1], "auto");
    assert_string_equal(usable[1], "auto");
    assert_string_equal(shares[0], "none");
    assert_true(!all[2] && !usable[2]);
    assert_string_equal(list + strlen(list) - 14, ", none or auto");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kivi_attends_to_what_its_formula_says),
        cmocka_unit_test(rounding_weights_costs_little_of_what_rounding_keys_and_values_does),
        cmocka_unit_test(kivi_comes_closer_with_more_bits),
        cmocka_unit_test(a_constant_group_decodes_to_its_value),
        cmocka_unit_test(streaming_attends_to_sinks_and_window_exactly),
        cmocka_unit_test(an_empty_segment_yields_an_empty_partial),
        cmocka_unit_test(threads_and_rows_do_not_change_a_bit),
        cmocka_unit_test(bytes_are_those_that_are_allocated),
        cmocka_unit_test(bytes_of_a_long_prompt_are_those_of_the_formula),
        cmocka_unit_test(a_method_that_looks_at_queries_is_not_free_of_them),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(the_names_are_those_of_the_table_none_and_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
