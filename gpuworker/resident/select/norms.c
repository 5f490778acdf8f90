// SPDX-License-Identifier: Apache-2.0
// Knorm (Devoto et al. 2024, "A simple and effective L2 norm-based strategy for KV cache
// compression"): keys of small norm get much attention, so score[t] = -|k[t]|^2. RoPE does not
// change a norm. The sinks are kept besides, which the method leaves to their norms.
#include "gpuworker/resident/select/selector.h"

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t size = choice->shape->block_tokens, dim = choice->shape->head_dim;
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        for (uint32_t t = 0; t < choice->tokens; t++) {
            if (t % size == 0) {
                gpw_select_unpack(choice, 0, h, t / size);
            }
            scratch->scores[(size_t)h * scratch->stride + t] =
                -gpw_select_dot(scratch->unpacked + (size_t)(t % size) * dim,
                                scratch->unpacked + (size_t)(t % size) * dim, dim);
        }
    }
    gpw_select_scored(choice, kept);
}

const gpw_selector_t gpw_select_norms = {.name = "norms", .choose = choose};
