// SPDX-License-Identifier: Apache-2.0
// What select/rate.h chooses for a made-up prompt, asked without a segment.
#ifndef RATE_FIXTURE_H
#define RATE_FIXTURE_H

#include "compressor_fixture.h"
#include "gpuworker/resident/mixed.h"

enum { RATE_HEADS_MAX = 16, RATE_TOKENS_MAX = 4096 };

typedef struct chosen_rates {
    const sample_t *sample;
    const gpw_compressor_params_t *params;
    size_t head_bytes;
    gpw_rates_t rates[RATE_HEADS_MAX];
    uint8_t of_token[RATE_HEADS_MAX][RATE_TOKENS_MAX];
    uint8_t of_channel[RATE_HEADS_MAX][KRN_HEAD_DIM_MAX];
} chosen_rates_t;

static chosen_rates_t chosen;

// Zones follow each other by ever fewer bits; `at` asserts that each lists every index at most once.
static inline void note_tokens(uint32_t head, const uint32_t *tokens)
{
    for (uint32_t rate = GPW_RATES - 1; rate > 0; rate--) {
        for (uint32_t i = 0; i < chosen.rates[head].tokens[rate]; i++, tokens++) {
            assert_int_equal(chosen.of_token[head][*tokens], 0);
            assert_true(i == 0 || tokens[0] > tokens[-1]);
            chosen.of_token[head][*tokens] = (uint8_t)rate;
        }
    }
}

static inline void note_channels(uint32_t head, const uint8_t *channels)
{
    bool seen[KRN_HEAD_DIM_MAX] = {false};
    uint32_t dim = 0;
    for (uint32_t rate = GPW_RATES; rate-- > 0;) {
        for (uint32_t i = 0; i < chosen.rates[head].channels[rate]; i++, dim++) {
            assert_false(seen[channels[dim]]);
            seen[channels[dim]] = true;
            chosen.of_channel[head][channels[dim]] = (uint8_t)rate;
        }
    }
    assert_int_equal(dim, chosen.sample->shape.head_dim);
}

static inline void choose_now(gpw_segment_t *segment, const gpw_segment_observe_t *args)
{
    (void)segment;
    const as_shape_t *shape = &chosen.sample->shape;
    gpw_select_scratch_t scratch;
    gpw_select_carve(shape, args->tokens, true, args->scratch, &scratch);
    gpw_selection_t choice = {.params = chosen.params,
                              .shape = shape,
                              .ops = krn_cpu(),
                              .pages = args->pages,
                              .tokens = chosen.sample->blocks * shape->block_tokens,
                              .seen = args,
                              .scratch = &scratch};
    uint32_t *tokens = malloc((choice.tokens + 1) * sizeof(*tokens));
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        uint8_t channels[KRN_HEAD_DIM_MAX];
        gpw_rate_request_t request = {.kv_head = h,
                                      .bytes = chosen.head_bytes,
                                      .rates = &chosen.rates[h],
                                      .tokens = tokens,
                                      .channels = channels};
        gpw_rate_choose(&choice, &request);
        note_tokens(h, tokens);
        note_channels(h, channels);
    }
    free(tokens);
}

// Fills `chosen` for one layer, with as many bytes for each head as mixed.h gives it.
static inline void choose_rates(const sample_t *s, const gpw_compressor_params_t *params,
                                uint32_t layer)
{
    static const gpw_compressor_t asked = {.observe = choose_now};
    assert_true(s->shape.kv_heads <= RATE_HEADS_MAX &&
                s->blocks * s->shape.block_tokens <= RATE_TOKENS_MAX);
    memset(&chosen, 0, sizeof(chosen));
    chosen.sample = s;
    chosen.params = params;
    chosen.head_bytes = (size_t)s->blocks * s->shape.block_tokens * s->shape.head_dim * 2 *
                        params->bits / 8 / 64 * 64;
    observe(s, &asked, params, NULL, layer, 1);
}

#endif
