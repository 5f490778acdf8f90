// SPDX-License-Identifier: Apache-2.0
// Rotated Lloyd-Max codes: against numpy, attention against its formula, bytes, and values that codecs stumble over.
#include "compressor_fixture.h"
#include "gpuworker/resident/turbo.h"
#include "model_fixture.h"
#include "tiny_model.h"

static const as_shape_t turbo_shapes[] = {
    {1, 4, 2, 64, 64, AS_ELEMENT_F16},  {1, 4, 4, 64, 50, AS_ELEMENT_F16},
    {1, 5, 1, 80, 64, AS_ELEMENT_F16},  {1, 2, 2, 80, 7, AS_ELEMENT_F16},
    {1, 4, 1, 128, 32, AS_ELEMENT_F16}, {1, 2, 2, 128, 17, AS_ELEMENT_F16},
    {1, 3, 1, 256, 16, AS_ELEMENT_F16}, {1, 2, 2, 256, 33, AS_ELEMENT_F16},
};
enum { SHAPES = sizeof(turbo_shapes) / sizeof(turbo_shapes[0]), BLOCKS = 9 }; // more than a part

static const gpw_compressor_t *turbo(uint32_t bits)
{
    return gpw_compressor_find(bits == 4 ? "turbo4" : "turbo3");
}

static gpw_codes_layout_t layout_of(const as_shape_t *shape, uint32_t bits)
{
    gpw_codes_layout_t layout;
    gpw_segment_options_t options = {.params = &turbo(bits)->params, .shape = *shape};
    assert_int_equal(gpw_turbo_layout(&options, &layout), AS_OK);
    return layout;
}

// ---- Reading codes, as turbo.h has them --------------------------------------------------------

// Element e of a lane's `count`.
static uint32_t code_at(uint32_t bits, const uint8_t *row, uint32_t count, uint32_t lane,
                        uint32_t e)
{
    if (bits == 4) {
        return row[e / 8 * 64 + lane * 4 + e % 4] >> (e % 8 / 4 * 4) & 15;
    }
    bool whole = e / 32 * 32 + 32 <= count;
    uint32_t slice = e % 32 / 4, byte = lane * 4 + e % 4;
    row += e / 32 * 192;
    uint32_t low = row[slice / 4 * 64 + byte] >> (slice % 4 * 2) & 3;
    uint32_t high =
        whole ? row[128 + byte] >> slice & 1 : row[64 + byte % 32] >> (slice + lane / 8 * 4) & 1;
    return low | high << 2;
}

// Part 0: of token's key; 1: of its value.
static uint32_t code_of(const gpw_codes_layout_t *l, const uint8_t *head, uint32_t part,
                        uint32_t token, uint32_t channel)
{
    if (part == 0) {
        return code_at(l->bits, head + token / 16 * l->k_row_bytes, l->dim, token % 16, channel);
    }
    const uint8_t *row = head + l->v_codes + channel / 16 * l->v_row_bytes;
    return code_at(l->bits, row, l->tokens_padded, channel % 16, token);
}

static const krn_f16 *halves_at(const uint8_t *head, size_t offset)
{
    return (const krn_f16 *)(const void *)(head + offset);
}

// ---- Against numpy -----------------------------------------------------------------------------

static float golden_value(uint64_t seed, uint64_t i)
{
    return (float)(tiny_mix((seed << 40) + i) >> 40) / 8388608.0f - 1.0f;
}

static float through_f16(float x)
{
    return krn_f16_to_float(krn_f16_from_float(x));
}

static uint32_t fnv(uint32_t number, uint8_t byte)
{
    return (number ^ byte) * 0x01000193u;
}

#define FNV_BEGIN 0x811c9dc5u

static void compare_vectors(FILE *file, const gpw_codes_layout_t *l, const uint8_t *head,
                            uint32_t part)
{
    assert_int_equal(fscanf(file, "codes"), 0);
    for (uint32_t t = 0; t < l->tokens; t++) {
        uint32_t number = FNV_BEGIN, expected, scale;
        for (uint32_t c = 0; c < l->dim; c++) {
            number = fnv(number, (uint8_t)code_of(l, head, part, t, c));
        }
        assert_int_equal(fscanf(file, "%x %x", &expected, &scale), 2);
        if (number != expected || halves_at(head, part ? l->v_scales : l->k_scales)[t] != scale) {
            fail_msg("bits %u, dim %u, part %u, token %u: other codes or scale", l->bits, l->dim,
                     part, t);
        }
    }
    assert_int_equal(fscanf(file, "\n"), 0);
}

static void compare_head(FILE *file, const gpw_codes_layout_t *l, uint64_t seed, uint32_t kv_head)
{
    size_t count = (size_t)l->tokens * l->dim;
    float *k = malloc(2 * count * sizeof(float)), *v = k + count;
    uint8_t *head = as_mem_aligned(64, l->head_bytes);
    memset(head, 0, l->head_bytes);
    for (size_t i = 0; i < count; i++) {
        uint64_t at = kv_head * count + i;
        uint32_t token = (uint32_t)(i / l->dim), channel = (uint32_t)(i % l->dim);
        k[i] = through_f16(golden_value(seed, at) + ((float)(channel % 5) - 2));
        v[i] = through_f16(golden_value(seed, ((uint64_t)1 << 32) + at) * (float)(token % 4));
    }
    gpw_turbo_pack(l, k, v, head);
    uint32_t number = FNV_BEGIN, expected;
    for (uint32_t c = 0; c < l->dim; c++) {
        krn_f16 bits = halves_at(head, l->k_centre)[c];
        number = fnv(fnv(number, bits & 0xff), (uint8_t)(bits >> 8));
    }
    assert_int_equal(fscanf(file, "centre %x\n", &expected), 1);
    assert_int_equal(number, expected);
    compare_vectors(file, l, head, 0);
    compare_vectors(file, l, head, 1);
    as_mem_free(head);
    free(k);
}

static void codes_are_those_of_numpy(void **state)
{
    (void)state;
    char path[512];
    FILE *file = fopen(fixture_golden("turbo.txt", path), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*[^\n]\n"), 0);
    uint32_t cases = 0, bits;
    unsigned long long seed;
    as_shape_t shape = {.layers = 1, .q_heads = 4, .element = AS_ELEMENT_F16};
    while (fscanf(file, "case %llu %u %u %u %u\n", &seed, &bits, &shape.head_dim, &shape.kv_heads,
                  &shape.block_tokens) == 5) {
        gpw_codes_layout_t layout = layout_of(&shape, bits);
        for (uint32_t h = 0; h < shape.kv_heads; h++) {
            compare_head(file, &layout, seed, h);
        }
        cases++;
    }
    assert_true(feof(file));
    fclose(file);
    assert_int_equal(cases, 20);
}

// ---- The rotation ------------------------------------------------------------------------------

static void the_rotation_keeps_lengths_spreads_spikes_and_goes_back(void **state)
{
    (void)state;
    for (uint32_t dim = 16; dim <= 256; dim += 16) {
        for (uint32_t i = 0; i < dim; i++) {
            float x[256] = {0};
            double square = 0, largest = 0;
            x[i] = 1.0f;
            gpw_turbo_rotate(x, 1, dim);
            for (uint32_t c = 0; c < dim; c++) {
                square += (double)x[c] * x[c];
                largest = fabs(x[c]) > largest ? fabs(x[c]) : largest;
            }
            if (fabs(square - 1) > 1e-6 || largest * largest > 25.0 / dim) {
                fail_msg("dim %u, channel %u: length %g, largest %g", dim, i, square, largest);
            }
            gpw_turbo_rotate_back(x, 1, dim);
            for (uint32_t c = 0; c < dim; c++) {
                assert_true(fabsf(x[c] - (c == i ? 1.0f : 0.0f)) < 1e-6f);
            }
        }
    }
}

// ---- The formula of turbo_attend.h -------------------------------------------------------------

// Of one KV head, all blocks, rotated.
typedef struct turbo_head {
    uint32_t tokens, dim, size;
    double *levels[2], *scales[2]; // K and V: [tokens][dim], [tokens]
    double *centre;                // [block][dim]
} turbo_head_t;

static turbo_head_t turbo_head_make(const sample_t *s, uint32_t bits, gpw_segment_t *segment,
                                    uint32_t kv_head)
{
    gpw_codes_layout_t l = layout_of(&s->shape, bits);
    turbo_head_t h = {.tokens = s->blocks * l.tokens, .dim = l.dim, .size = l.tokens};
    h.centre = malloc(s->blocks * l.dim * sizeof(double));
    for (uint32_t part = 0; part < 2; part++) {
        h.levels[part] = malloc((size_t)h.tokens * l.dim * sizeof(double));
        h.scales[part] = malloc(h.tokens * sizeof(double));
        for (uint32_t t = 0; t < h.tokens; t++) {
            size_t bytes;
            const uint8_t *head =
                *turbo(bits)->slot(segment, t / l.tokens, &bytes) + kv_head * l.head_bytes;
            size_t scales = part ? l.v_scales : l.k_scales;
            h.scales[part][t] = krn_f16_to_float(halves_at(head, scales)[t % l.tokens]) / 8.0;
            for (uint32_t c = 0; c < l.dim; c++) {
                h.levels[part][(size_t)t * l.dim + c] =
                    gpw_turbo_levels(bits)[code_of(&l, head, part, t % l.tokens, c)];
                h.centre[t / l.tokens * l.dim + c] =
                    krn_f16_to_float(halves_at(head, l.k_centre)[c]);
            }
        }
    }
    return h;
}

static void turbo_head_free(turbo_head_t *h)
{
    for (uint32_t part = 0; part < 2; part++) {
        free(h->levels[part]);
        free(h->scales[part]);
    }
    free(h->centre);
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

// q: rotated. `rounded`: to steps, in single precision as the code has it, so that both round to the same side.
static void turbo_logits(const turbo_head_t *h, const float *q, bool rounded, double *logits)
{
    float largest = 1e-30f;
    for (uint32_t c = 0; c < h->dim; c++) {
        largest = fabsf(q[c]) > largest ? fabsf(q[c]) : largest;
    }
    float step = largest * (1.0f / 127.0f), inverse = 1.0f / step;
    for (uint32_t t = 0; t < h->tokens; t++) {
        double dot = 0, middle = 0;
        for (uint32_t c = 0; c < h->dim; c++) {
            double x = rounded ? step * rint((double)q[c] * inverse) : q[c];
            dot += x * h->levels[0][(size_t)t * h->dim + c];
            middle += q[c] * h->centre[t / h->size * h->dim + c];
        }
        logits[t] = (dot * h->scales[0][t] + middle) / sqrt(h->dim);
    }
}

// Weights of tokens, rounded to their block's steps. *slack: the step of those that lie so near the middle of two
// that an exponential in single precision decides, else 0.
static void round_weights(const turbo_head_t *h, double *w, double *slack)
{
    for (uint32_t first = 0; first < h->tokens; first += h->size) {
        double largest = 1e-30;
        for (uint32_t t = first; t < first + h->size; t++) {
            largest = w[t] > largest ? w[t] : largest;
        }
        double step = largest / 255;
        for (uint32_t t = first; t < first + h->size; t++) {
            double steps = w[t] / step;
            slack[t] = fabs(steps - floor(steps) - 0.5) < 2e-3 ? step : 0;
            w[t] = rint(steps) * step;
        }
    }
}

// The largest error of one pair, beyond what is in the middle, and the largest output, of those so far.
static void pair_error(const turbo_head_t *h, const float *q, bool rounded, const float *got,
                       double worst_and_largest[2])
{
    double *w = calloc(2 * h->tokens, sizeof(double)), *slack = w + h->tokens;
    turbo_logits(h, q, rounded, w);
    double sum = exponentials(w, h->tokens);
    for (uint32_t t = 0; t < h->tokens; t++) {
        w[t] *= h->scales[1][t];
    }
    if (rounded) {
        round_weights(h, w, slack);
    }
    for (uint32_t c = 0; c < h->dim; c++) {
        double out = 0, may = 0;
        for (uint32_t t = 0; t < h->tokens; t++) {
            double level = h->levels[1][(size_t)t * h->dim + c];
            out += w[t] * level;
            may += slack[t] * fabs(level);
        }
        double error = fabs(got[c] - out / sum) - may / sum;
        worst_and_largest[0] = error > worst_and_largest[0] ? error : worst_and_largest[0];
        worst_and_largest[1] =
            fabs(out / sum) > worst_and_largest[1] ? fabs(out / sum) : worst_and_largest[1];
    }
    free(w);
}

// Relative to the largest output, in the codes' basis.
static double formula_error(const sample_t *s, uint32_t bits, gpw_segment_t *segment,
                            const krn_partials_t *partials, bool rounded)
{
    uint32_t dim = s->shape.head_dim, group = s->shape.q_heads / s->shape.kv_heads;
    double errors[2] = {0, 0};
    for (uint32_t kv_head = 0; kv_head < s->shape.kv_heads; kv_head++) {
        turbo_head_t h = turbo_head_make(s, bits, segment, kv_head);
        for (uint32_t i = 0; i < s->rows * group; i++) {
            size_t pair = (size_t)(i / group) * s->shape.q_heads + kv_head * group + i % group;
            float q[256], got[256];
            memcpy(q, s->q + pair * dim, dim * sizeof(float));
            for (uint32_t c = 0; c < dim; c++) {
                got[c] = partials->out[pair * dim + c] / partials->sum[pair];
            }
            gpw_turbo_rotate(q, 1, dim);
            gpw_turbo_rotate(got, 1, dim);
            pair_error(&h, q, rounded, got, errors);
        }
        turbo_head_free(&h);
    }
    return errors[0] / errors[1];
}

static void attention_is_what_its_formula_says(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * SHAPES; i++) {
        uint32_t bits = 3 + i % 2;
        sample_t s = sample_make(turbo_shapes[i / 2], BLOCKS, 1 + i / 2 % 2);
        gpw_segment_t *segment = seal_all(&s, turbo(bits), &turbo(bits)->params);
        attended_t a = attend(&s, turbo(bits), segment, 0, 1);
        double error = formula_error(&s, bits, segment, &a.partials, true);
        double exactly = formula_error(&s, bits, segment, &a.partials, false);
        held_t held = {.value = exact_value};
        double lost = attention_error(&s, &held, 0, &a.partials);
        if (error > 2e-5 || exactly > 5e-3 || lost > (bits == 4 ? 0.15 : 0.3)) {
            fail_msg("%u bits, head dimension %u: error %g, of rounding weights %g, of all %g",
                     bits, s.shape.head_dim, error, exactly, lost);
        }
        as_mem_free(a.memory);
        turbo(bits)->close(segment);
        sample_free(&s);
    }
}

// ---- Bytes -------------------------------------------------------------------------------------

// Of one token and KV head: bits of each channel, two scales, and the block's mean key.
static void bytes_are_those_of_the_formula(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 80, 128, 256};
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t bits = 3 + i % 2, dim = dims[i / 2];
        as_shape_t shape = {30, 2, 2, dim, 64, AS_ELEMENT_F16};
        gpw_segment_options_t options = {
            .params = &turbo(bits)->params, .shape = shape, .blocks_max = 100};
        double formula = 2 * (dim * bits / 8.0 + 2) + 2.0 * dim / 64;
        double bytes =
            (double)(turbo(bits)->bytes_max(&options, 100) - turbo(bits)->bytes_max(&options, 0)) /
            (100 * 64 * 30 * 2);
        if (fabs(bytes / formula - 1) > 0.02) {
            fail_msg("%u bits, head dimension %u: %.2f bytes, not %.2f", bits, dim, bytes, formula);
        }
    }
}

// ---- Values that codecs stumble over -----------------------------------------------------------

typedef float (*made_fn)(uint32_t part, uint32_t token, uint32_t channel);

static float zero(uint32_t part, uint32_t token, uint32_t channel)
{
    (void)part, (void)token, (void)channel;
    return 0.0f;
}

// As large as f16 can be, the signs mixed.
static float vast(uint32_t part, uint32_t token, uint32_t channel)
{
    return (part * 7 + token * 5 + channel * 3) % 4 < 2 ? 65504.0f : -65504.0f;
}

static float tiny(uint32_t part, uint32_t token, uint32_t channel)
{
    (void)part, (void)token;
    return channel % 2 ? 6e-4f : -6e-4f;
}

// One channel holds all there is.
static float spike(uint32_t part, uint32_t token, uint32_t channel)
{
    return channel == (part + token) % 16 ? 65504.0f : 0.0f;
}

static sample_t sample_of(made_fn value)
{
    sample_t s = sample_make(turbo_shapes[2], 2, 1);
    for (uint32_t b = 0; b < s.blocks; b++) {
        for (uint32_t part = 0; part < 2; part++) {
            for (uint32_t i = 0; i < s.shape.block_tokens * s.shape.head_dim; i++) {
                uint32_t token = i / s.shape.head_dim, channel = i % s.shape.head_dim;
                extent_of(&s, b, 0)[as_extent_offset(&s.shape, part, 0, token) + channel] =
                    krn_f16_from_float(value(part, b * s.shape.block_tokens + token, channel));
            }
        }
    }
    return s;
}

// The largest magnitude of the output; all of it must be numbers.
static double largest_output(made_fn value, uint32_t bits)
{
    sample_t s = sample_of(value);
    gpw_segment_t *segment = seal_all(&s, turbo(bits), &turbo(bits)->params);
    attended_t a = attend(&s, turbo(bits), segment, 0, 1);
    double largest = 0;
    for (uint32_t i = 0; i < s.shape.q_heads * s.shape.head_dim; i++) {
        double out = a.partials.out[i] / a.partials.sum[i / s.shape.head_dim];
        assert_true(isfinite(out));
        largest = fabs(out) > largest ? fabs(out) : largest;
    }
    as_mem_free(a.memory);
    turbo(bits)->close(segment);
    sample_free(&s);
    return largest;
}

static void zeros_stay_zeros_and_the_largest_and_smallest_values_stay_numbers(void **state)
{
    (void)state;
    for (uint32_t bits = 3; bits <= 4; bits++) {
        assert_true(largest_output(zero, bits) == 0.0);
        double most = largest_output(vast, bits);
        if (most < 30000 || most > 120000) {
            fail_msg("%u bits: %g", bits, most);
        }
        most = largest_output(tiny, bits);
        assert_true(most > 4e-4 && most < 1e-3);
        assert_true(largest_output(spike, bits) < 100000);
    }
}

static void widths_that_have_no_codebook_are_refused(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 9; bits++) {
        gpw_compressor_params_t params = {.bits = bits};
        gpw_segment_options_t options = {
            .params = &params, .shape = turbo_shapes[0], .ops = krn_cpu(), .blocks_max = 1};
        gpw_segment_t *segment = NULL;
        as_status_t status = turbo(4)->open(&options, &segment);
        assert_int_equal(status, bits == 3 || bits == 4 ? AS_OK : AS_ERR_UNSUPPORTED);
        if (segment) {
            turbo(4)->close(segment);
        }
        assert_true((gpw_turbo_levels(bits) != NULL) == (status == AS_OK));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_those_of_numpy),
        cmocka_unit_test(the_rotation_keeps_lengths_spreads_spikes_and_goes_back),
        cmocka_unit_test(attention_is_what_its_formula_says),
        cmocka_unit_test(bytes_are_those_of_the_formula),
        cmocka_unit_test(zeros_stay_zeros_and_the_largest_and_smallest_values_stay_numbers),
        cmocka_unit_test(widths_that_have_no_codebook_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
