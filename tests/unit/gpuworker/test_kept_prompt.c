// SPDX-License-Identifier: Apache-2.0
// Some tokens of a prompt: attention over what is kept, what comes after the prompt, bytes. What is
// kept: test_selectors.c.
#include "compressor_fixture.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/kept_prompt.h"
#include "gpuworker/resident/kivi.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/select/selector.h"

static const gpw_compressor_t kept_prompt = {GPW_KEPT_PROMPT_FUNCTIONS};

static const gpw_compressor_params_t usual = {.selector = &gpw_select_window,
                                              .codec = &gpw_codec_exact,
                                              .sink_tokens = 4,
                                              .window_tokens = 32,
                                              .keep_percent = 25,
                                              .pool_tokens = 7};

static gpw_segment_t *open_for(const sample_t *s, const gpw_compressor_params_t *params,
                               uint32_t prompt_blocks)
{
    gpw_segment_options_t options = options_for(s, params);
    options.prompt_blocks = prompt_blocks;
    gpw_segment_t *segment;
    assert_int_equal(kept_prompt.open(&options, &segment), AS_OK);
    assert_int_equal(kept_prompt.reserve(segment, s->blocks), AS_OK);
    return segment;
}

static bool is_kept(const held_t *held, uint32_t kv_head, uint32_t token)
{
    uint32_t count;
    const uint32_t *kept = gpw_kept_prompt_positions(held->segment, held->layer, kv_head, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (kept[i] == token) {
            return true;
        }
    }
    return false;
}

static bool keeps_some_of_the_prompt(const gpw_compressor_t *c)
{
    return c->seal == gpw_kept_prompt_seal;
}

// ---- Attending ---------------------------------------------------------------------------------

static const as_shape_t heads[] = {
    {2, 9, 3, 64, 64, AS_ELEMENT_F16},  {3, 4, 4, 64, 16, AS_ELEMENT_F16},
    {2, 5, 1, 80, 50, AS_ELEMENT_F16},  {1, 2, 2, 80, 32, AS_ELEMENT_F16},
    {1, 6, 2, 128, 64, AS_ELEMENT_F16}, {1, 3, 3, 128, 16, AS_ELEMENT_F16},
    {1, 4, 1, 256, 32, AS_ELEMENT_F16}, {1, 2, 2, 256, 16, AS_ELEMENT_F16},
};

// Also where heads and layers keep different numbers, and more than one run of pages. What a reader
// leaves of it: test_readers.c.
static void every_method_attends_to_what_it_keeps(void **state)
{
    (void)state;
    uint32_t methods = 0;
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        bool reads_all = keeps_some_of_the_prompt(c) && !c->params.reader;
        for (size_t i = 0; reads_all && i < sizeof(heads) / sizeof(heads[0]); i++) {
            sample_t s = sample_make(heads[i], heads[i].block_tokens == 16 ? 70 : 5, 2);
            gpw_segment_t *segment = seal_all(&s, c, &c->params);
            uint32_t layer = heads[i].layers - 1;
            attended_t a = attend(&s, c, segment, layer, 1);
            held_t held = {.holds = is_kept,
                           .value = exact_value,
                           .sample = &s,
                           .segment = segment,
                           .layer = layer};
            double error = attention_error(&s, &held, layer, &a.partials);
            if (!(error < 1e-5)) {
                fail_msg("%s, shape %zu: error %g", c->name, i, error);
            }
            as_mem_free(a.memory);
            c->close(segment);
            sample_free(&s);
        }
        methods += reads_all;
    }
    assert_true(methods >= 7);
}

static void threads_do_not_change_what_is_kept(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[0], 30, 1);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        gpw_segment_t *segments[2];
        if (!keeps_some_of_the_prompt(c)) {
            continue;
        }
        for (uint32_t i = 0; i < 2; i++) {
            segments[i] = open_for(&s, &c->params, s.blocks);
            observe(&s, c, &c->params, segments[i], 1, i ? 4 : 1);
        }
        for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
            uint32_t count, again;
            const uint32_t *one = gpw_kept_prompt_positions(segments[0], 1, h, &count);
            const uint32_t *other = gpw_kept_prompt_positions(segments[1], 1, h, &again);
            assert_int_equal(count, again);
            assert_memory_equal(one, other, count * sizeof(*one));
        }
        for (uint32_t i = 0; i < 2; i++) {
            c->close(segments[i]);
        }
    }
    sample_free(&s);
}

// ---- What comes after the prompt ---------------------------------------------------------------

static uint32_t prompt_blocks_of_test;

static bool is_kept_or_later(const held_t *held, uint32_t kv_head, uint32_t token)
{
    return token >= prompt_blocks_of_test * held->sample->shape.block_tokens ||
           is_kept(held, kv_head, token);
}

static void seal_after(const sample_t *s, const gpw_compressor_params_t *params,
                       uint32_t prompt_blocks)
{
    sample_t prompt = *s;
    prompt.blocks = prompt_blocks;
    gpw_segment_t *segment = open_for(s, params, prompt_blocks);
    observe(&prompt, &kept_prompt, params, segment, 0, 1);
    for (uint32_t b = 0; b < s->blocks; b++) {
        kept_prompt.seal(segment, 0, b, extent_of(s, b, 0));
    }
    attended_t a = attend(s, &kept_prompt, segment, 0, 1);
    held_t held = {
        .holds = is_kept_or_later, .value = exact_value, .sample = s, .segment = segment};
    bool is_exact = params->codec == &gpw_codec_exact;
    assert_true(attention_error(s, &held, 0, &a.partials) < (is_exact ? 1e-5 : 0.1));
    for (uint32_t b = 0; b < s->blocks; b++) {
        const void *extent = kept_prompt.extent(segment, 0, b);
        assert_true((extent != NULL) == (b >= prompt_blocks && is_exact));
        if (extent) {
            assert_memory_equal(extent, extent_of(s, b, 0), as_extent_bytes(&s->shape));
        }
    }
    assert_null(kept_prompt.extent(segment, 0, s->blocks));
    gpw_segment_options_t options = options_for(s, params);
    options.prompt_blocks = prompt_blocks;
    assert_int_equal(kept_prompt.bytes(segment), kept_prompt.bytes_max(&options, s->blocks));
    as_mem_free(a.memory);
    kept_prompt.close(segment);
}

// Whatever part of the last page the prompt leaves empty.
static void blocks_sealed_later_are_the_codecs(void **state)
{
    (void)state;
    gpw_compressor_params_t coded = usual;
    coded.codec = gpw_compressor_find("kivi4");
    sample_t s = sample_make(heads[2], 6, 1);
    for (prompt_blocks_of_test = 0; prompt_blocks_of_test <= 6; prompt_blocks_of_test++) {
        seal_after(&s, &usual, prompt_blocks_of_test);
        seal_after(&s, &coded, prompt_blocks_of_test);
    }
    sample_free(&s);
}

// ---- How much is kept --------------------------------------------------------------------------

static void the_sinks_are_kept_whatever_they_score(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[0], 4, 1);
    gpw_compressor_params_t params = usual;
    for (uint32_t i = 0; i < 18; i++) {
        params.head_floor_percent = i / 9 * 20;
        params.sink_tokens = i % 9 * 64;
        gpw_segment_t *segment = open_for(&s, &params, s.blocks);
        observe(&s, &kept_prompt, &params, segment, 0, 1);
        for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
            uint32_t count, sealed = s.blocks * s.shape.block_tokens;
            const uint32_t *kept = gpw_kept_prompt_positions(segment, 0, h, &count);
            for (uint32_t t = 0; t < params.sink_tokens && t < sealed; t++) {
                assert_true(t < count && kept[t] == t);
            }
        }
        kept_prompt.close(segment);
    }
    sample_free(&s);
}

// A head whose attention is spread keeps more than one that looks at few tokens; the safeguard is
// kept by each, and all of them together keep what they would have kept alike.
static void heads_share_a_budget_by_what_they_look_at(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[1], 40, 1);
    uint32_t dim = s.shape.head_dim, group = s.shape.q_heads / s.shape.kv_heads;
    for (size_t i = 0; i < (size_t)GPW_OBSERVED_ROWS_MAX * s.shape.q_heads * dim; i++) {
        s.window_q[i] *= i / dim % s.shape.q_heads / group == 1 ? 20.0f : 0.1f;
    }
    gpw_compressor_params_t params = usual;
    params.head_floor_percent = 20;
    params.pool_tokens = 1;
    gpw_segment_t *segment = open_for(&s, &params, s.blocks);
    observe(&s, &kept_prompt, &params, segment, 0, 1);
    uint32_t total = 0, budget = s.blocks * s.shape.block_tokens / 4, counts[4];
    for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
        gpw_kept_prompt_positions(segment, 0, h, &counts[h]);
        assert_true(counts[h] >= budget / 5);
        total += counts[h];
    }
    assert_int_equal(total, s.shape.kv_heads * budget);
    assert_true(counts[1] < budget && counts[0] > budget);
    kept_prompt.close(segment);
    sample_free(&s);
}

static void a_segment_of_unknown_size_is_as_small_as_what_it_keeps(void **state)
{
    (void)state;
    gpw_compressor_params_t params = usual;
    params.selector = &gpw_select_norm_stop;
    params.window_tokens = 1;
    params.keep_percent = 100;
    sample_t s = sample_make(heads[0], 6, 1);
    uint64_t last = 0;
    for (params.norm_drop_permille = 0; params.norm_drop_permille <= 600;
         params.norm_drop_permille += 150) {
        gpw_segment_options_t options = options_for(&s, &params);
        gpw_segment_t *segment = open_for(&s, &params, s.blocks);
        assert_int_equal(kept_prompt.bytes(segment), kept_prompt.bytes_max(&options, s.blocks));
        uint64_t empty = kept_prompt.bytes_max(&options, 0), kept = 0;
        for (uint32_t layer = 0; layer < s.shape.layers; layer++) {
            observe(&s, &kept_prompt, &params, segment, layer, 1);
            for (uint32_t h = 0; h < s.shape.kv_heads; h++) {
                uint32_t count;
                gpw_kept_prompt_positions(segment, layer, h, &count);
                kept += count;
            }
        }
        uint64_t bytes = kept_prompt.bytes(segment);
        assert_int_equal(bytes - empty, kept * (4 * s.shape.head_dim + sizeof(uint32_t)));
        assert_true(params.norm_drop_permille == 0 || bytes < last);
        last = bytes;
        kept_prompt.close(segment);
    }
    sample_free(&s);
}

// What is in the tail may be all that there is to attend to.
static void a_prompt_of_which_nothing_is_kept_yields_an_empty_partial(void **state)
{
    (void)state;
    gpw_compressor_params_t params = usual;
    params.selector = &gpw_select_norm_stop;
    params.sink_tokens = 0;
    params.keep_percent = 100;
    params.norm_drop_permille = 1000;
    sample_t s = sample_make(heads[0], 3, 1);
    gpw_segment_t *segment = seal_all(&s, &kept_prompt, &params);
    attended_t a = attend(&s, &kept_prompt, segment, 0, 1);
    assert_true(a.partials.max[0] == -INFINITY && a.partials.sum[0] == 0.0f);
    as_mem_free(a.memory);
    kept_prompt.close(segment);
    sample_free(&s);
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    enum { WRONG = 13 };
    sample_t s = sample_make(heads[0], 2, 1);
    gpw_compressor_params_t wrong[WRONG];
    for (int i = 0; i < WRONG; i++) {
        wrong[i] = usual;
    }
    wrong[0].window_tokens = 0;
    wrong[1].window_tokens = GPW_RESIDUAL_TOKENS + 1; // would not all lie in the tail
    wrong[2].keep_percent = 0;
    wrong[3].keep_percent = 101;
    wrong[4].pool_tokens = 6;
    wrong[5].pool_tokens = 0;
    wrong[6].recent_percent = 101;
    wrong[7].head_floor_percent = 101;
    wrong[8].norm_drop_permille = 1001;
    wrong[9].selector = NULL;
    wrong[10].selector = &gpw_select_norms; // it could be shared: kept_blocks.h
    wrong[11].selector = &gpw_select_positions;
    wrong[12].codec = NULL;
    for (int i = 0; i < WRONG; i++) {
        gpw_segment_options_t options = options_for(&s, &wrong[i]);
        gpw_segment_t *segment;
        assert_int_equal(kept_prompt.open(&options, &segment), AS_ERR_UNSUPPORTED);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_attends_to_what_it_keeps),
        cmocka_unit_test(threads_do_not_change_what_is_kept),
        cmocka_unit_test(blocks_sealed_later_are_the_codecs),
        cmocka_unit_test(the_sinks_are_kept_whatever_they_score),
        cmocka_unit_test(heads_share_a_budget_by_what_they_look_at),
        cmocka_unit_test(a_segment_of_unknown_size_is_as_small_as_what_it_keeps),
        cmocka_unit_test(a_prompt_of_which_nothing_is_kept_yields_an_empty_partial),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
