// SPDX-License-Identifier: Apache-2.0
// TOVA (Oren et al. 2024), once: what the prompt's last query attends to most.
//
//   score[t] = sum over all query heads of the layer of that query's attention on t
//
// So all heads of a layer keep the same tokens. The paper evicts one token at every step by the
// newest query; here the choice is made when a prompt is sealed, and what is said after it stays.
#include <string.h>

#include "gpuworker/resident/select/top.h"
#include "gpuworker/resident/select/window_scores.h"

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    uint32_t heads = choice->shape->kv_heads, group = choice->shape->q_heads / heads;
    gpw_window_t window = {
        .row = choice->seen->rows - 1, .rows = 1, .heads = group, .tokens = choice->tokens};
    for (uint32_t h = 0; h < heads; h++) {
        window.head = h * group;
        gpw_window_scores(choice, &window, h ? scratch->spare : scratch->scores);
        for (uint32_t t = 0; h && t < choice->tokens; t++) {
            scratch->scores[t] += scratch->spare[t];
        }
    }
    for (uint32_t h = 1; h < heads; h++) {
        memcpy(scratch->scores + (size_t)h * scratch->stride, scratch->scores,
               choice->tokens * sizeof(float));
    }
    gpw_select_scored(choice, kept);
}

const gpw_selector_t gpw_select_last_query = {
    .name = "last query", .observes = true, .choose = choose};
