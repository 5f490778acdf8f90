// SPDX-License-Identifier: Apache-2.0
// Attention by readers: over what they choose, against its formula; of steps that go on from each other; and what
// changes nothing. What they choose: test_readers.c.
#include "gpuworker/resident/exact.h"
#include "readers_fixture.h"

// ---- Attending ----------------------------------------------------------------------------------

static bool is_read(const held_t *held, uint32_t kv_head, uint32_t token)
{
    return is_chosen(gpw_indexed_read(held->segment), kv_head, token);
}

// Log-sum-exp of what is chosen, in double precision.
static double lse_of(const held_t *held, uint32_t pair)
{
    const sample_t *s = held->sample;
    uint32_t dim = s->shape.head_dim, head = pair * s->shape.kv_heads / s->shape.q_heads;
    double sum = 0;
    for (uint32_t t = 0; t < s->blocks * s->shape.block_tokens; t++) {
        double dot = 0;
        if (!held->holds(held, head, t)) {
            continue;
        }
        for (uint32_t c = 0; c < dim; c++) {
            dot += s->q[(size_t)pair * dim + c] * held->value(s, held->layer, 0, head, t, c);
        }
        sum += exp(dot / sqrt(dim));
    }
    return log(sum);
}

static void they_attend_to_what_they_choose(void **state)
{
    (void)state;
    for (size_t i = 0; i < READERS * HEADS; i++) {
        const struct reader *reader = &readers[i / HEADS];
        if (reader->params.reader->scan) {
            continue;
        }
        sample_t s = sample_of(heads[i % HEADS], 1);
        gpw_segment_t *segment = seal_all(&s, &indexed, &reader->params);
        uint32_t layer = s.shape.layers - 1;
        attended_t a = attend(&s, &indexed, segment, layer, 1);
        held_t held = {.holds = is_read,
                       .value = exact_value,
                       .sample = &s,
                       .segment = segment,
                       .layer = layer};
        double error = attention_error(&s, &held, layer, &a.partials);
        if (!(error < 1e-5)) {
            fail_msg("%s, shape %zu: error %g", reader->name, i % HEADS, error);
        }
        for (uint32_t pair = 0; pair < s.shape.q_heads; pair++) {
            double lse = a.partials.max[pair] + log(a.partials.sum[pair]);
            assert_float_equal(lse, lse_of(&held, pair), 1e-4);
        }
        as_mem_free(a.memory);
        indexed.close(segment);
        sample_free(&s);
    }
}

// To the bit, where a page is a block.
static void to_read_everything_is_to_attend_to_everything(void **state)
{
    (void)state;
    for (size_t i = 0; i < READERS * HEADS; i++) {
        gpw_compressor_params_t params = readers[i / HEADS].params;
        params.read_percent = 100;
        sample_t s = sample_make(heads[i % HEADS], 21, 2);
        gpw_segment_t *segment = seal_all(&s, &indexed, &params);
        gpw_segment_t *whole = seal_all(&s, &gpw_codec_exact, &gpw_codec_exact.params);
        attended_t a = attend(&s, &indexed, segment, s.shape.layers - 1, 1);
        attended_t b = attend(&s, &gpw_codec_exact, whole, s.shape.layers - 1, 1);
        assert_memory_equal(a.memory, b.memory, a.floats * sizeof(float));
        as_mem_free(a.memory);
        as_mem_free(b.memory);
        indexed.close(segment);
        gpw_codec_exact.close(whole);
        sample_free(&s);
    }
}

// ---- Low bits ----------------------------------------------------------------------------------

static const gpw_compressor_params_t *codes_params;

// KIVI's formula for `count` values, `stride` apart.
static double decoded(const float *x, uint32_t count, uint32_t at)
{
    float low = INFINITY, high = -INFINITY, levels = (float)((1u << codes_params->bits) - 1);
    for (uint32_t i = 0; i < count; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    float scale = krn_f16_to_float(krn_f16_from_float((high - low) / levels));
    float code = scale > 0 ? floorf((x[at] - low) * (1.0f / scale) + 0.5f) : 0;
    return (double)fminf(fmaxf(code, 0), levels) * scale + low;
}

static held_t *low_held;

// Exact where it is chosen, else of codes.
static double low_value(const sample_t *s, uint32_t layer, uint32_t part, uint32_t head,
                        uint32_t token, uint32_t channel)
{
    float x[256];
    uint32_t size = s->shape.block_tokens, dim = s->shape.head_dim, group = codes_params->group;
    uint32_t along = part ? channel : token % size, end = part ? dim : size;
    uint32_t first = along / group * group, count = end - first < group ? end - first : group;
    if (is_read(low_held, head, token)) {
        return exact_value(s, layer, part, head, token, channel);
    }
    for (uint32_t i = 0; i < count; i++) {
        x[i] = (float)(part ? exact_value(s, layer, 1, head, token, first + i)
                            : exact_value(s, layer, 0, head, token - along + first + i, channel));
    }
    return decoded(x, count, along - first);
}

// As near as rounding weights allows (test_compressor.c), and much nearer than without exact tokens.
static void what_is_not_chosen_is_attended_to_in_few_bits(void **state)
{
    (void)state;
    const struct reader *reader = &readers[3];
    codes_params = &reader->params;
    for (size_t i = 0; i < HEADS; i++) {
        sample_t s = sample_make(heads[i], heads[i].block_tokens < 64 ? 9 : 5, 1);
        gpw_segment_t *segment = seal_all(&s, &indexed, &reader->params);
        uint32_t layer = s.shape.layers - 1;
        attended_t a = attend(&s, &indexed, segment, layer, 1);
        held_t held = {.value = low_value, .sample = &s, .segment = segment, .layer = layer};
        held_t exact = {.value = exact_value};
        low_held = &held;
        double error = attention_error(&s, &held, layer, &a.partials);
        double lost = attention_error(&s, &exact, layer, &a.partials);
        if (!(error < 2e-3 && error < lost / 5)) {
            fail_msg("shape %zu: error %g, of few bits %g", i, error, lost);
        }
        as_mem_free(a.memory);
        indexed.close(segment);
        sample_free(&s);
    }
}

static void chosen_of(const gpw_segment_t *segment, uint32_t kv_head, uint32_t chosen[64])
{
    uint32_t count;
    const uint32_t *tokens = gpw_read_chosen(gpw_indexed_read(segment), kv_head, &count);
    assert_int_equal(count, 64);
    memcpy(chosen, tokens, 64 * sizeof(*chosen));
}

// Attends, and says by which choice the last row did.
static void step_chosen(const sample_t *s, const gpw_segment_t *segment, step_t step,
                        uint32_t chosen[64])
{
    attended_t a = attend_step(s, &indexed, segment, step);
    as_mem_free(a.memory);
    chosen_of(segment, 0, chosen);
}

static void a_step_reads_what_the_one_before_it_looked_at(void **state)
{
    (void)state;
    sample_t s = sample_of(heads[0], 3);
    gpw_segment_t *segment = seal_all(&s, &indexed, &readers[3].params);
    uint32_t own[3][64], next[64];
    for (uint32_t row = 0; row < 3; row++) {
        step_chosen(&s, segment, (step_t){.row = row, .rows = 1, .position = 7, .since = 7},
                    own[row]);
    }
    assert_memory_not_equal(own[0], own[1], sizeof(next));
    assert_memory_not_equal(own[1], own[2], sizeof(next));
    // Row 2 was the last at position 7; row 0 goes on with its draft.
    step_chosen(&s, segment, (step_t){.row = 0, .rows = 1, .position = 8, .since = 7}, next);
    assert_memory_equal(next, own[2], sizeof(next));
    // Three rows at positions 9 to 11: the last reads what the second looked at.
    step_chosen(&s, segment, (step_t){.row = 0, .rows = 3, .position = 9, .since = 7}, next);
    assert_memory_equal(next, own[1], sizeof(next));
    // Of these two were right: what follows goes on with row 1, at position 10.
    step_chosen(&s, segment, (step_t){.row = 2, .rows = 1, .position = 11, .since = 7}, next);
    assert_memory_equal(next, own[1], sizeof(next));
    // Another draft, and one whose row before was never computed: by its own queries.
    step_chosen(&s, segment, (step_t){.row = 0, .rows = 1, .position = 12, .since = 12}, next);
    assert_memory_equal(next, own[0], sizeof(next));
    step_chosen(&s, segment, (step_t){.row = 2, .rows = 1, .position = 14, .since = 12}, next);
    assert_memory_equal(next, own[2], sizeof(next));
    indexed.close(segment);
    sample_free(&s);
}

// Proposals are verified several at a time: the bits are those of one at a time.
static void rows_together_read_as_rows_after_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < READERS; i++) {
        sample_t s = sample_of(heads[i % HEADS], 3);
        gpw_segment_t *segment = seal_all(&s, &indexed, &readers[i].params);
        size_t row = (size_t)s.shape.q_heads * s.shape.head_dim;
        attended_t together = attend_step(&s, &indexed, segment, (step_t){.rows = 3});
        for (uint32_t r = 0; r < 3; r++) {
            attended_t alone =
                attend_step(&s, &indexed, segment, (step_t){.row = r, .rows = 1, .position = r});
            assert_memory_equal(together.partials.out + r * row, alone.partials.out,
                                row * sizeof(float));
            assert_memory_equal(together.partials.sum + r * s.shape.q_heads, alone.partials.sum,
                                s.shape.q_heads * sizeof(float));
            as_mem_free(alone.memory);
        }
        as_mem_free(together.memory);
        indexed.close(segment);
        sample_free(&s);
    }
}

// ---- What does not change anything -------------------------------------------------------------

// Also where there are more parts than a wave has.
static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    sample_t s = sample_make((as_shape_t){1, 6, 2, 64, 16, AS_ELEMENT_F16}, 300, 1);
    for (size_t i = 0; i < READERS; i++) {
        gpw_compressor_params_t params = readers[i].params;
        params.read_tokens = params.read_tokens ? params.read_tokens : 4500;
        gpw_segment_t *segment = seal_all(&s, &indexed, &params);
        attended_t one = attend_step(&s, &indexed, segment, (step_t){.rows = 1, .threads = 1});
        attended_t four = attend_step(&s, &indexed, segment, (step_t){.rows = 1, .threads = 4});
        assert_memory_equal(one.memory, four.memory, one.floats * sizeof(float));
        as_mem_free(one.memory);
        as_mem_free(four.memory);
        indexed.close(segment);
    }
    sample_free(&s);
}

// Steps of one session leave what is shared as it is, and another that has it reads the same.
static void a_block_that_is_shared_is_read_alike_and_never_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < READERS; i++) {
        sample_t s = sample_of(heads[2], 2);
        const gpw_compressor_params_t *params = &readers[i].params;
        gpw_segment_t *one = seal_all(&s, &indexed, params), *other;
        gpw_segment_t *again = seal_all(&s, &indexed, params);
        gpw_segment_options_t options = options_for(&s, params);
        assert_int_equal(indexed.open(&options, &other), AS_OK);
        assert_int_equal(indexed.reserve(other, s.blocks), AS_OK);
        attended_t a = attend(&s, &indexed, one, 1, 1);
        for (uint32_t b = 0; b < s.blocks; b++) {
            size_t bytes;
            uint8_t *slot = *indexed.slot(one, b, &bytes);
            assert_memory_equal(slot, *indexed.slot(again, b, &bytes), bytes);
            assert_memory_equal(slot, extent_of(&s, b, 0), as_extent_bytes(&s.shape));
            as_mem_free(*indexed.slot(other, b, &bytes));
            *indexed.slot(other, b, &bytes) = slot;
        }
        indexed.adopt(other, s.blocks);
        attended_t b = attend(&s, &indexed, other, 1, 1);
        assert_memory_equal(a.memory, b.memory, a.floats * sizeof(float));
        for (uint32_t block = 0; block < s.blocks; block++) {
            size_t bytes;
            assert_memory_equal(indexed.extent(other, 1, block), extent_of(&s, block, 1),
                                as_extent_bytes(&s.shape));
            *indexed.slot(other, block, &bytes) = NULL;
        }
        as_mem_free(a.memory);
        as_mem_free(b.memory);
        indexed.close(one);
        indexed.close(again);
        indexed.close(other);
        sample_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_attend_to_what_they_choose),
        cmocka_unit_test(to_read_everything_is_to_attend_to_everything),
        cmocka_unit_test(what_is_not_chosen_is_attended_to_in_few_bits),
        cmocka_unit_test(a_step_reads_what_the_one_before_it_looked_at),
        cmocka_unit_test(rows_together_read_as_rows_after_each_other),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(a_block_that_is_shared_is_read_alike_and_never_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
