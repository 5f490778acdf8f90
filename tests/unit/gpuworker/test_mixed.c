// SPDX-License-Identifier: Apache-2.0
// Prompts in mixed widths: attention against plain attention over what the formula of mixed.h makes of
// keys and values, instruction sets, odd ends, and values that codes stumble over.
#include "gpuworker/resident/affine.h"
#include "gpuworker/resident/exact.h"
#include "rate_fixture.h"

static const gpw_compressor_t mixed = {GPW_MIXED_FUNCTIONS};

static const gpw_compressor_params_t usual = {
    .codec = &gpw_codec_exact, .bits = 2, .window_tokens = 32, .pool_tokens = 5};

static const as_shape_t heads[] = {
    {2, 9, 3, 64, 64, AS_ELEMENT_F16},  {1, 4, 4, 64, 16, AS_ELEMENT_F16},
    {2, 5, 1, 80, 50, AS_ELEMENT_F16},  {1, 2, 2, 80, 32, AS_ELEMENT_F16},
    {1, 6, 2, 128, 64, AS_ELEMENT_F16}, {1, 3, 3, 128, 16, AS_ELEMENT_F16},
    {1, 4, 1, 256, 32, AS_ELEMENT_F16}, {1, 2, 2, 256, 16, AS_ELEMENT_F16},
    {1, 4, 2, 16, 64, AS_ELEMENT_F16},  {1, 3, 1, 48, 64, AS_ELEMENT_F16},
};
enum { SHAPES = sizeof(heads) / sizeof(heads[0]) };

// Some channels vary more than others, and with `pulls` some tokens are looked at much more: all widths occur.
static void spread(sample_t *s, bool pulls)
{
    uint32_t size = s->shape.block_tokens, dim = s->shape.head_dim, layers = s->shape.layers;
    float root = sqrtf((float)dim);
    for (uint32_t i = 0; i < sample_tokens(s) * layers * s->shape.kv_heads; i++) {
        uint32_t h = i % s->shape.kv_heads, layer = i / s->shape.kv_heads % layers;
        uint32_t t = i / s->shape.kv_heads / layers;
        float pull = !pulls ? 0 : t == 7 ? 16 : t % 101 == 50 ? 9 : t % 13 == 5 ? 4 : 0;
        krn_f16 *k = extent_of(s, t / size, layer) + as_extent_offset(&s->shape, 0, h, t % size);
        for (uint32_t c = 0; c < dim; c++) {
            float x = krn_f16_to_float(k[c]), width = c % 16 == 0 ? 16 : c % 4 == 3 ? 0.02f : 0.5f;
            k[c] = krn_f16_from_float(x * width + pull / root);
        }
    }
    for (size_t i = 0; i < (size_t)GPW_OBSERVED_ROWS_MAX * s->shape.q_heads * dim; i++) {
        s->window_q[i] = s->window_q[i] / 4 + 1.0f;
    }
}

// ---- What the formula makes of keys and values -------------------------------------------------

typedef struct decoded {
    double *of[2]; // keys and values of all tokens of one layer: [kv head][token][dim]
} decoded_t;

static decoded_t decoded;

static double *decoded_at(const sample_t *s, uint32_t part, uint32_t head, uint32_t token)
{
    uint32_t tokens = s->blocks * s->shape.block_tokens;
    return decoded.of[part] + ((size_t)head * tokens + token) * s->shape.head_dim;
}

static double decoded_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                            uint32_t token, uint32_t channel)
{
    (void)layer;
    return decoded_at(s, part, head, token)[channel];
}

static bool is_held(const held_t *held, uint32_t kv_head, uint32_t token)
{
    (void)held;
    return chosen.of_token[kv_head][token] > 0;
}

// Code and back, of a group from low to high.
static double through(uint32_t bits, double x, double low, double high)
{
    float levels = (float)((1u << bits) - 1);
    double scale = krn_f16_to_float(krn_f16_from_float((float)(high - low) / levels));
    double code = scale > 0 ? floor((x - low) / scale + 0.5) : 0;
    return fmin(fmax(code, 0), levels) * scale + low;
}

static void decode_channel(const sample_t *s, uint32_t layer, uint32_t head, uint32_t channel)
{
    uint32_t bits = gpw_rate_bits[chosen.of_channel[head][channel]];
    double low = INFINITY, high = -INFINITY, sum = 0, count = 0;
    for (uint32_t t = 0; t < s->blocks * s->shape.block_tokens; t++) {
        if (chosen.of_token[head][t] > 0) {
            double x = exact_value(s, layer, 0, head, t, channel);
            low = fmin(low, x);
            high = fmax(high, x);
            sum += x;
            count++;
        }
    }
    double mean = krn_f16_to_float(krn_f16_from_float((float)(sum / count)));
    for (uint32_t t = 0; t < s->blocks * s->shape.block_tokens; t++) {
        double x = exact_value(s, layer, 0, head, t, channel);
        decoded_at(s, 0, head, t)[channel] = bits ? through(bits, x, low, high) : mean;
    }
}

static void decode_token(const sample_t *s, uint32_t layer, uint32_t head, uint32_t token)
{
    uint32_t bits = gpw_rate_bits[chosen.of_token[head][token]], dim = s->shape.head_dim;
    double low = INFINITY, high = -INFINITY;
    for (uint32_t c = 0; c < dim; c++) {
        double x = exact_value(s, layer, 1, head, token, c);
        low = fmin(low, x);
        high = fmax(high, x);
    }
    for (uint32_t c = 0; c < dim; c++) {
        double x = exact_value(s, layer, 1, head, token, c);
        decoded_at(s, 1, head, token)[c] = bits == 16 ? x : through(bits, x, low, high);
    }
}

static void decode(const sample_t *s, const gpw_compressor_params_t *params, uint32_t layer)
{
    uint32_t tokens = s->blocks * s->shape.block_tokens;
    choose_rates(s, params, layer);
    for (uint32_t part = 0; part < 2; part++) {
        decoded.of[part] =
            calloc((size_t)s->shape.kv_heads * tokens * s->shape.head_dim, sizeof(double));
    }
    for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
        for (uint32_t c = 0; c < s->shape.head_dim; c++) {
            decode_channel(s, layer, h, c);
        }
        for (uint32_t t = 0; t < tokens; t++) {
            if (chosen.of_token[h][t] > 0) {
                decode_token(s, layer, h, t);
            }
        }
    }
}

static void decoded_free(void)
{
    free(decoded.of[0]);
    free(decoded.of[1]);
    decoded = (decoded_t){{NULL}};
}

// ---- Attending ---------------------------------------------------------------------------------

typedef struct errors {
    double formula, exact; // from attention over what is decoded; over what it was made of
} errors_t;

static errors_t errors_of(const sample_t *s, const gpw_compressor_params_t *params, uint32_t layer)
{
    gpw_segment_t *segment = seal_all(s, &mixed, params);
    attended_t a = attend(s, &mixed, segment, layer, 1);
    decode(s, params, layer);
    held_t as_coded = {.holds = is_held, .value = decoded_value, .sample = s};
    held_t as_it_was = {.holds = is_held, .value = exact_value, .sample = s};
    errors_t errors = {attention_error(s, &as_coded, layer, &a.partials),
                       attention_error(s, &as_it_was, layer, &a.partials)};
    assert_null(mixed.extent(segment, layer, 0));
    decoded_free();
    as_mem_free(a.memory);
    mixed.close(segment);
    return errors;
}

// Weights are rounded to steps; that costs little beside what the codes have cost.
static void it_attends_to_what_its_formula_says(void **state)
{
    (void)state;
    uint32_t seen[2][GPW_RATES] = {{0}};
    for (uint32_t i = 0; i < SHAPES * 4; i++) {
        const as_shape_t *shape = &heads[i / 4];
        sample_t s = sample_make(*shape, 1200 / shape->block_tokens + 1, i % 2 ? 3 : 1);
        if (i / 2 % 2) {
            spread(&s, i % 2);
        }
        errors_t errors = errors_of(&s, &usual, shape->layers - 1);
        for (uint32_t r = 0; r < GPW_RATES; r++) {
            seen[0][r] += chosen.rates[0].tokens[r];
            seen[1][r] += chosen.rates[0].channels[r];
        }
        if (!(errors.formula < 5e-3) || !(errors.formula < errors.exact / 8)) {
            fail_msg("shape %u, variant %u: error %g, coding %g", i / 4, i % 4, errors.formula,
                     errors.exact);
        }
        sample_free(&s);
    }
    for (uint32_t r = 0; r < GPW_RATES; r++) {
        assert_true(seen[0][r] > 0);
        assert_true(seen[1][r] > 0 || r == GPW_RATES - 1);
    }
}

// Of few tokens and of more than parts have, whatever is left of pieces, units and groups.
static void every_length_is_attended_to(void **state)
{
    (void)state;
    gpw_compressor_params_t params = usual;
    const as_shape_t shape = {1, 4, 2, 64, 16, AS_ELEMENT_F16};
    for (uint32_t blocks = 3; blocks < 80; blocks += blocks < 20 ? 1 : 7) {
        for (params.bits = 1; params.bits <= 8; params.bits += 2) {
            sample_t s = sample_make(shape, blocks, 2);
            spread(&s, true);
            errors_t errors = errors_of(&s, &params, 0);
            if (chosen.rates[0].tokens[0] < blocks * 16 && !(errors.formula < 6e-3)) {
                fail_msg("%u blocks, %u bits: error %g, coding %g", blocks, params.bits,
                         errors.formula, errors.exact);
            }
            sample_free(&s);
        }
    }
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    gpw_mixed_attend_fn *fns[4];
    gpw_mixed_attends(fns);
    uint32_t portable = 0;
    while (fns[portable + 1]) {
        portable++;
    }
    for (uint32_t i = 0; i < SHAPES; i++) {
        sample_t s = sample_make(heads[i], 1000 / heads[i].block_tokens, 3);
        spread(&s, true);
        decode(&s, &usual, 0);
        uint32_t dim = heads[i].head_dim, tokens = s.blocks * heads[i].block_tokens, held = 0;
        uint32_t *list = malloc(tokens * sizeof(*list));
        uint8_t *memory = as_mem_aligned(64, chosen.head_bytes + 64);
        memset(memory, 0x7f, chosen.head_bytes + 64);
        krn_page_t *pages = malloc(s.blocks * sizeof(*pages));
        for (uint32_t b = 0; b < s.blocks; b++) {
            pages[b] = gpw_page(&s.shape, extent_of(&s, b, 0), b);
        }
        uint32_t place = 0;
        for (uint32_t rate = GPW_RATES; rate-- > 0;) {
            for (uint32_t t = 0; rate > 0 && t < tokens; t++) {
                if (chosen.of_token[0][t] == rate) {
                    list[held++] = t;
                }
            }
            for (uint32_t c = 0; c < dim; c++) {
                if (chosen.of_channel[0][c] == rate) {
                    memory[place++] = (uint8_t)c;
                }
            }
        }
        gpw_mixed_source_t source = {&s.shape, pages, 0, &chosen.rates[0], list};
        gpw_mixed_pack(&source, memory);
        size_t pairs = (size_t)s.rows * heads[i].q_heads, floats = pairs * (dim + 2);
        float *truth = as_mem_zalloc(floats, sizeof(float));
        float *other = as_mem_zalloc(floats, sizeof(float));
        for (uint32_t first = 0; first < held; first += GPW_MIXED_PART_TOKENS) {
            uint32_t left = held - first;
            gpw_mixed_part_t part = {.rates = &chosen.rates[0],
                                     .memory = memory,
                                     .dim = dim,
                                     .first = first,
                                     .tokens = left < GPW_MIXED_PART_TOKENS ? left
                                                                            : GPW_MIXED_PART_TOKENS,
                                     .rows = s.rows,
                                     .q_heads = heads[i].q_heads,
                                     .group_heads = heads[i].q_heads / heads[i].kv_heads,
                                     .scale = 0.125f,
                                     .q = s.q,
                                     .out = gpw_partials_carve(truth, pairs, dim)};
            fns[portable](&part);
            part.out = gpw_partials_carve(other, pairs, dim);
            for (uint32_t f = 0; f < portable; f++) {
                fns[f](&part);
                assert_memory_equal(truth, other, floats * sizeof(float));
            }
        }
        as_mem_free(truth);
        as_mem_free(other);
        as_mem_free(memory);
        free(list);
        free(pages);
        decoded_free();
        sample_free(&s);
    }
}

static void threads_do_not_change_what_is_packed(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[0], 30, 2);
    spread(&s, true);
    gpw_segment_options_t options = options_for(&s, &usual);
    attended_t a[2];
    for (uint32_t i = 0; i < 2; i++) {
        gpw_segment_t *segment;
        assert_int_equal(mixed.open(&options, &segment), AS_OK);
        assert_int_equal(mixed.reserve(segment, s.blocks), AS_OK);
        observe(&s, &mixed, &usual, segment, 1, i ? 4 : 1);
        for (uint32_t b = 0; b < s.blocks; b++) {
            mixed.seal(segment, 1, b, extent_of(&s, b, 1));
        }
        a[i] = attend(&s, &mixed, segment, 1, 1);
        mixed.close(segment);
    }
    assert_memory_equal(a[0].memory, a[1].memory, a[0].floats * sizeof(float));
    as_mem_free(a[0].memory);
    as_mem_free(a[1].memory);
    sample_free(&s);
}

// ---- Values that codes stumble over ------------------------------------------------------------

// A group on one side of zero: a zero point in whole codes would saturate, and 5 to 6 come back as 1.
static void what_does_not_straddle_zero_decodes_right(void **state)
{
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        sample_t s = sample_make(heads[0], 10, 2);
        for (size_t i = 0; i < as_block_bytes(&s.shape) / sizeof(krn_f16) * sample_blocks(&s);
             i++) {
            uint64_t noise_state = i;
            float x = 5.5f + noise(&noise_state) / 2;
            s.extents[i] = krn_f16_from_float((float)sign * x);
        }
        gpw_compressor_params_t params = usual;
        params.bits = 4;
        errors_t errors = errors_of(&s, &params, 1);
        uint32_t coded = chosen.rates[0].tokens[1] + chosen.rates[0].tokens[2];
        assert_true(coded > 500); // of 640, in 2 or 4 bits
        assert_true(errors.formula < 1e-3 && errors.exact < 0.02);
        sample_free(&s);
    }
}

static void a_constant_prompt_decodes_to_its_value(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[1], 40, 1);
    for (size_t i = 0; i < as_block_bytes(&s.shape) / sizeof(krn_f16) * sample_blocks(&s); i++) {
        s.extents[i] = krn_f16_from_float(-2.5f);
    }
    gpw_segment_t *segment = seal_all(&s, &mixed, &usual);
    attended_t a = attend(&s, &mixed, segment, 0, 1);
    for (uint32_t c = 0; c < s.shape.head_dim; c++) {
        assert_float_equal(a.partials.out[c] / a.partials.sum[0], -2.5, 1e-5);
    }
    as_mem_free(a.memory);
    mixed.close(segment);
    sample_free(&s);
}

// A channel without bits is its mean: what all keys have in common counts against other segments.
static void the_mean_of_a_channel_is_not_lost(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[1], 40, 1);
    for (uint32_t t = 0; t < sample_tokens(&s); t++) {
        for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
            krn_f16 *k = extent_of(&s, t / 16, 0) + as_extent_offset(&s.shape, 0, h, t % 16);
            k[3] = krn_f16_from_float(10.0f);
        }
    }
    for (size_t i = 0; i < (size_t)s.rows * s.shape.q_heads * s.shape.head_dim; i++) {
        s.q[i] = i % s.shape.head_dim == 3 ? 8.0f : 0.0f;
    }
    gpw_segment_t *segment = seal_all(&s, &mixed, &usual);
    attended_t a = attend(&s, &mixed, segment, 0, 1);
    assert_float_equal(a.partials.max[0], 10, 1e-4); // 8 * 10 / sqrt(64)
    as_mem_free(a.memory);
    mixed.close(segment);
    sample_free(&s);
}

// ---- What comes after the prompt ---------------------------------------------------------------

static uint32_t prompt_tokens_of_test;

static bool is_held_or_later(const held_t *held, uint32_t kv_head, uint32_t token)
{
    return token >= prompt_tokens_of_test || is_held(held, kv_head, token);
}

static double decoded_or_later(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                               uint32_t token, uint32_t channel)
{
    sample_t prompt = *s;
    prompt.blocks = prompt_tokens_of_test / s->shape.block_tokens;
    return token >= prompt_tokens_of_test
               ? exact_value(s, layer, part, head, token, channel)
               : decoded_value(&prompt, layer, part, head, token, channel);
}

static void seal_after(const sample_t *s, uint32_t prompt_blocks)
{
    sample_t prompt = *s;
    prompt.blocks = prompt_blocks;
    prompt.tail_tokens += (s->blocks - prompt_blocks) * s->shape.block_tokens;
    prompt_tokens_of_test = prompt_blocks * s->shape.block_tokens;
    gpw_segment_options_t options = options_for(s, &usual);
    options.prompt_blocks = prompt_blocks;
    gpw_segment_t *segment;
    assert_int_equal(mixed.open(&options, &segment), AS_OK);
    assert_int_equal(mixed.reserve(segment, s->blocks), AS_OK);
    observe(&prompt, &mixed, &usual, segment, 0, 1);
    if (prompt_blocks > 0) {
        decode(&prompt, &usual, 0);
    }
    for (uint32_t b = 0; b < s->blocks; b++) {
        mixed.seal(segment, 0, b, extent_of(s, b, 0));
    }
    attended_t a = attend(s, &mixed, segment, 0, 1);
    held_t held = {.holds = is_held_or_later, .value = decoded_or_later, .sample = s};
    assert_true(attention_error(s, &held, 0, &a.partials) < 5e-3);
    for (uint32_t b = 0; b < s->blocks; b++) {
        const void *extent = mixed.extent(segment, 0, b);
        assert_true((extent != NULL) == (b >= prompt_blocks));
        assert_true(!extent || memcmp(extent, extent_of(s, b, 0), as_extent_bytes(&s->shape)) == 0);
    }
    assert_null(mixed.extent(segment, 0, s->blocks));
    assert_int_equal(mixed.bytes(segment), mixed.bytes_max(&options, s->blocks));
    decoded_free();
    as_mem_free(a.memory);
    mixed.close(segment);
}

static void blocks_sealed_later_are_the_codecs(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[2], 9, 1);
    for (uint32_t prompt_blocks = 0; prompt_blocks <= 9; prompt_blocks++) {
        seal_after(&s, prompt_blocks);
    }
    sample_free(&s);
}

// ---- Bounds ------------------------------------------------------------------------------------

static void a_prompt_too_short_for_its_scales_yields_an_empty_partial(void **state)
{
    (void)state;
    sample_t s = sample_make((as_shape_t){2, 4, 2, 256, 2, AS_ELEMENT_F16}, 1, 1);
    gpw_segment_t *segment = seal_all(&s, &mixed, &usual);
    attended_t a = attend(&s, &mixed, segment, 0, 1);
    assert_true(a.partials.max[0] == -INFINITY && a.partials.sum[0] == 0.0f);
    as_mem_free(a.memory);
    mixed.close(segment);
    sample_free(&s);
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    enum { WRONG = 7 };
    sample_t s = sample_make(heads[0], 2, 1);
    gpw_compressor_params_t wrong[WRONG];
    for (int i = 0; i < WRONG; i++) {
        wrong[i] = usual;
    }
    wrong[0].bits = 0;
    wrong[1].bits = 17;
    wrong[2].window_tokens = 0;
    wrong[3].window_tokens = 33; // would not all lie in the tail
    wrong[4].pool_tokens = 4;
    wrong[5].pool_tokens = 0;
    wrong[6].codec = NULL;
    for (int i = 0; i < WRONG; i++) {
        gpw_segment_options_t options = options_for(&s, &wrong[i]);
        gpw_segment_t *segment;
        assert_int_equal(mixed.open(&options, &segment), AS_ERR_UNSUPPORTED);
        assert_int_equal(mixed.bytes_max(&options, 2), 0);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_attends_to_what_its_formula_says),
        cmocka_unit_test(every_length_is_attended_to),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(threads_do_not_change_what_is_packed),
        cmocka_unit_test(what_does_not_straddle_zero_decodes_right),
        cmocka_unit_test(a_constant_prompt_decodes_to_its_value),
        cmocka_unit_test(the_mean_of_a_channel_is_not_lost),
        cmocka_unit_test(blocks_sealed_later_are_the_codecs),
        cmocka_unit_test(a_prompt_too_short_for_its_scales_yields_an_empty_partial),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
