// SPDX-License-Identifier: Apache-2.0
// Some tokens of each block: attention over what is kept, by any codec; what a block's choice may
// depend on. What is kept: test_selectors.c.
#include "compressor_fixture.h"
#include "gpuworker/resident/exact.h"
#include "gpuworker/resident/kept_blocks.h"
#include "gpuworker/resident/select/selector.h"

static const gpw_compressor_t kept_blocks = {GPW_KEPT_BLOCKS_FUNCTIONS};

static const gpw_compressor_params_t usual = {
    .selector = &gpw_select_norms, .codec = &gpw_codec_exact, .sink_tokens = 4, .keep_percent = 25};

static const as_shape_t heads[] = {
    {2, 9, 3, 64, 64, AS_ELEMENT_F16},  {2, 4, 4, 64, 16, AS_ELEMENT_F16},
    {2, 5, 1, 80, 50, AS_ELEMENT_F16},  {1, 2, 2, 80, 32, AS_ELEMENT_F16},
    {1, 6, 2, 128, 64, AS_ELEMENT_F16}, {1, 3, 3, 128, 16, AS_ELEMENT_F16},
    {1, 4, 1, 256, 32, AS_ELEMENT_F16}, {1, 2, 2, 256, 16, AS_ELEMENT_F16},
};

enum { BLOCKS = 7, TOKENS_MAX = BLOCKS * 64 };

static bool chosen[16][TOKENS_MAX]; // of the layer that was sealed last

static bool is_chosen(const held_t *held, uint32_t kv_head, uint32_t token)
{
    (void)held;
    return chosen[kv_head][token];
}

static gpw_segment_t *seal_blocks(const sample_t *s, const gpw_compressor_params_t *params)
{
    gpw_segment_options_t options = options_for(s, params);
    gpw_segment_t *segment;
    assert_int_equal(kept_blocks.open(&options, &segment), AS_OK);
    assert_int_equal(kept_blocks.reserve(segment, s->blocks), AS_OK);
    for (uint32_t layer = 0; layer < s->shape.layers; layer++) {
        memset(chosen, 0, sizeof(chosen));
        for (uint32_t b = 0; b < s->blocks; b++) {
            kept_blocks.seal(segment, layer, b, extent_of(s, b, layer));
            for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
                uint32_t count;
                const uint32_t *tokens = gpw_kept_blocks_chosen(segment, h, &count);
                for (uint32_t i = 0; i < count; i++) {
                    chosen[h][b * s->shape.block_tokens + tokens[i]] = true;
                }
            }
        }
    }
    return segment;
}

// Codes are as near to the exact rows as they are of whole blocks, and the fewer bytes.
static void every_selector_and_codec_attends_to_what_is_kept(void **state)
{
    (void)state;
    static const gpw_selector_t *selectors[] = {&gpw_select_norms, &gpw_select_key_difference};
    const gpw_compressor_t *codecs[] = {&gpw_codec_exact, gpw_compressor_find("kivi4")};
    for (size_t i = 0; i < 4 * sizeof(heads) / sizeof(heads[0]); i++) {
        gpw_compressor_params_t params = usual;
        params.selector = selectors[i % 2];
        params.codec = codecs[i / 2 % 2];
        sample_t s = sample_make(heads[i / 4], BLOCKS, 2);
        uint32_t layer = s.shape.layers - 1;
        gpw_segment_t *segment = seal_blocks(&s, &params);
        attended_t a = attend(&s, &kept_blocks, segment, layer, 1);
        held_t held = {.holds = is_chosen, .value = exact_value, .sample = &s};
        double error = attention_error(&s, &held, layer, &a.partials);
        if (!(error < (i / 2 % 2 ? 0.1 : 1e-5))) {
            fail_msg("shape %zu, %s, %s: error %g", i / 4, params.selector->name,
                     params.codec->name, error);
        }
        as_mem_free(a.memory);
        kept_blocks.close(segment);
        sample_free(&s);
    }
}

// Else it could not be shared: the same block gives the same bytes behind others.
static void a_block_is_sealed_alike_wherever_it_stands(void **state)
{
    (void)state;
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        if (c->open != gpw_kept_blocks_open) {
            continue;
        }
        sample_t s = sample_make(heads[0], BLOCKS, 1), turned = sample_make(heads[0], BLOCKS, 1);
        for (uint32_t b = 1; b < BLOCKS; b++) {
            memcpy(extent_of(&turned, b, 0), extent_of(&s, BLOCKS - b, 0),
                   as_block_bytes(&s.shape));
        }
        gpw_segment_t *one = seal_all(&s, c, &c->params), *two = seal_all(&turned, c, &c->params);
        for (uint32_t b = 1; b < BLOCKS; b++) {
            size_t bytes;
            const uint8_t *slot = *c->slot(one, b, &bytes);
            assert_memory_equal(slot, *c->slot(two, BLOCKS - b, &bytes), bytes);
        }
        c->close(one);
        c->close(two);
        sample_free(&s);
        sample_free(&turned);
    }
}

static void the_sinks_are_kept_of_the_first_blocks_alone(void **state)
{
    (void)state;
    sample_t s = sample_make(heads[1], BLOCKS, 1); // keeps 4 of 16 tokens
    gpw_compressor_params_t params = usual;
    for (params.sink_tokens = 0; params.sink_tokens < 40; params.sink_tokens += 3) {
        gpw_segment_t *segment = seal_blocks(&s, &params);
        uint32_t before = 0;
        for (uint32_t b = 0; b < BLOCKS; b++, before += 16) {
            uint32_t sinks = params.sink_tokens > before ? params.sink_tokens - before : 0;
            for (uint32_t t = 0; t < (sinks < 4 ? sinks : 4); t++) {
                assert_true(chosen[0][before + t]);
            }
        }
        kept_blocks.close(segment);
    }
    sample_free(&s);
}

static void all_of_a_block_is_the_block(void **state)
{
    (void)state;
    gpw_compressor_params_t params = usual;
    params.keep_percent = 100;
    sample_t s = sample_make(heads[3], BLOCKS, 1);
    gpw_segment_t *segment = seal_blocks(&s, &params);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_memory_equal(kept_blocks.extent(segment, 0, b), extent_of(&s, b, 0),
                            as_extent_bytes(&s.shape));
    }
    kept_blocks.close(segment);
    sample_free(&s);
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    enum { WRONG = 8 };
    sample_t s = sample_make(heads[0], 2, 1);
    gpw_compressor_params_t wrong[WRONG];
    for (int i = 0; i < WRONG; i++) {
        wrong[i] = usual;
    }
    wrong[0].keep_percent = 0;
    wrong[1].keep_percent = 101;
    wrong[2].selector = NULL;
    wrong[3].selector = &gpw_select_window; // looks at queries: nothing of it may be shared
    wrong[4].selector = &gpw_select_positions;
    wrong[5].codec = NULL;
    wrong[6].codec = gpw_compressor_find("streaming"); // its blocks do not stand alone
    wrong[7].head_floor_percent = 20;                  // blocks of a codec have no ragged heads
    for (int i = 0; i < WRONG; i++) {
        gpw_segment_options_t options = options_for(&s, &wrong[i]);
        gpw_segment_t *segment;
        assert_int_equal(kept_blocks.open(&options, &segment), AS_ERR_UNSUPPORTED);
    }
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_selector_and_codec_attends_to_what_is_kept),
        cmocka_unit_test(a_block_is_sealed_alike_wherever_it_stands),
        cmocka_unit_test(the_sinks_are_kept_of_the_first_blocks_alone),
        cmocka_unit_test(all_of_a_block_is_the_block),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
