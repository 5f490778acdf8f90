// SPDX-License-Identifier: Apache-2.0
// SnapKV (Li et al. 2024): what the prompt's last queries (the observation window) attend to most.
//
//   score[t]  = attention of the window's rows and of the group's query heads on t (window_scores.h)
//   pooled[t] = the greatest score within pool_tokens around t, before the window
//
// Pooling keeps the neighbours of what is looked at, without which a kept token says little.
#include "gpuworker/resident/select/top.h"
#include "gpuworker/resident/select/window_scores.h"

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    const gpw_segment_observe_t *seen = choice->seen;
    uint32_t group = choice->shape->q_heads / choice->shape->kv_heads;
    gpw_window_t window = {.rows = seen->rows, .heads = group, .tokens = seen->tokens - seen->rows};
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        window.head = h * group;
        gpw_window_scores(choice, &window, scratch->spare);
        gpw_select_pool_max(scratch->spare, window.tokens, choice->params->pool_tokens,
                            scratch->scores + (size_t)h * scratch->stride);
    }
    gpw_select_scored(choice, kept);
}

const gpw_selector_t gpw_select_window = {
    .name = "observation window", .observes = true, .choose = choose};
