// SPDX-License-Identifier: Apache-2.0
// KeyDiff (Park et al. 2025): keys that are unlike the others get more attention, so
//
//   anchor = mean over t of k[t] / |k[t]|,  score[t] = -cos(k[t], anchor)
//
// for each KV head, over the tokens that are chosen among. Within a block the anchor is that block's
// own, as in the paper's blockwise form, but for survivors of earlier blocks, which it would have
// carried along: a block's choice here depends on that block alone, so it can be shared.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/select/selector.h"

// The anchor to directions[0], unnormalised, and 1 / |k[t]| to spare.
static void find_anchor(const gpw_selection_t *choice, uint32_t kv_head)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t size = choice->shape->block_tokens, dim = choice->shape->head_dim;
    memset(scratch->directions, 0, dim * sizeof(float));
    for (uint32_t t = 0; t < choice->tokens; t++) {
        if (t % size == 0) {
            gpw_select_unpack(choice, 0, kv_head, t / size);
        }
        const float *k = scratch->unpacked + (size_t)(t % size) * dim;
        float square = gpw_select_dot(k, k, dim);
        float inverse = square > 0 ? 1.0f / sqrtf(square) : 0.0f;
        for (uint32_t c = 0; c < dim; c++) {
            scratch->directions[c] += k[c] * inverse;
        }
        scratch->spare[t] = inverse;
    }
}

// The anchor's length and its division by the count change no order.
static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t size = choice->shape->block_tokens, dim = choice->shape->head_dim;
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        find_anchor(choice, h);
        for (uint32_t t = 0; t < choice->tokens; t++) {
            if (t % size == 0) {
                gpw_select_unpack(choice, 0, h, t / size);
            }
            const float *k = scratch->unpacked + (size_t)(t % size) * dim;
            scratch->scores[(size_t)h * scratch->stride + t] =
                -gpw_select_dot(k, scratch->directions, dim) * scratch->spare[t];
        }
    }
    gpw_select_scored(choice, kept);
}

const gpw_selector_t gpw_select_key_difference = {.name = "key difference", .choose = choose};
