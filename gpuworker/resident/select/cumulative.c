// SPDX-License-Identifier: Apache-2.0
// H2O (Zhang et al. 2023), over a window: the newest tokens, and of the others the heavy hitters.
//
//   score[t] = attention on t, summed over queries and over the group's query heads
//
// Of the budget recent_percent go to the newest of the tokens that are chosen among. H2O sums over
// every query of the prompt, which would compute prefill's attention a second time; here it is those
// of the observation window, which is why the row's name says so. Each of them sees every token that
// is scored, so earlier tokens are not favoured by having been seen more often.
#include <math.h>

#include "gpuworker/resident/select/window_scores.h"

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t heads = choice->shape->kv_heads, group = choice->shape->q_heads / heads;
    uint32_t free = choice->budget - choice->sinks;
    uint32_t recent = (uint32_t)((uint64_t)free * choice->params->recent_percent / 100);
    gpw_window_t window = {.rows = choice->seen->rows, .heads = group, .tokens = choice->tokens};
    for (uint32_t h = 0; h < heads; h++) {
        float *scores = scratch->scores + (size_t)h * scratch->stride;
        window.head = h * group;
        gpw_window_scores(choice, &window, scores);
        for (uint32_t t = choice->tokens - recent; t < choice->tokens; t++) {
            scores[t] = INFINITY;
        }
    }
    gpw_select_scored(choice, kept);
}

const gpw_selector_t gpw_select_cumulative = {
    .name = "cumulative attention, windowed", .observes = true, .choose = choose};
