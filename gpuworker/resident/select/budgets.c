// SPDX-License-Identifier: Apache-2.0
// How many tokens a layer and a KV head keep.
//
// Of layers: PyramidKV (Cai et al. 2024). Low layers attend to much, high ones to little, so layer l
// of L keeps
//   most - l * (most - least) / (L - 1),  least = floor(budget / slope),  most = 2 * budget - least
// of budgets that are `budget` in the mean; where `most` is more than there is, it is all, and
// `least` the more. Rounded so that the sum is exactly L * budget. Where the last layer would not
// even keep the sinks, all layers keep the same.
//
// Of heads: AdaKV (Feng et al. 2024). The heads of a layer compete: what is kept are the kv_heads *
// budget greatest scores of all of them together, so that a head whose attention is spread keeps
// more than one that looks at few tokens. A head's own floor(budget * head_floor_percent / 100)
// greatest are kept whatever the others score (the safeguard), and so are its sinks.
#include <math.h>

#include "common/assert.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/resident/select/top.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t gpw_select_budget(const gpw_compressor_params_t *params, uint32_t layers, uint32_t layer,
                           uint32_t tokens)
{
    uint32_t sinks = min_u32(params->sink_tokens, tokens);
    uint64_t share = ((uint64_t)tokens * params->keep_percent + 99) / 100;
    uint64_t budget = share > sinks ? share : sinks;
    budget = budget < tokens ? budget : tokens;
    if (params->layer_slope == 0 || layers < 2) {
        return (uint32_t)budget;
    }
    uint64_t least = budget / params->layer_slope, most = 2 * budget - least;
    if (most > tokens) {
        most = tokens;
        least = 2 * budget - most;
    }
    if (least < sinks) {
        return (uint32_t)budget;
    }
    // What the layers before this one keep together, and with it, in parts of 2 * (layers - 1).
    uint64_t steps = 2 * (uint64_t)(layers - 1), l = layer;
    uint64_t before = steps * most * l - (l ? (most - least) * l * (l - 1) : 0);
    uint64_t with = steps * most * (l + 1) - (most - least) * (l + 1) * l;
    return (uint32_t)(with / steps - before / steps);
}

static float *scores_of(const gpw_selection_t *choice, uint32_t kv_head)
{
    return choice->scratch->scores + (size_t)kv_head * choice->scratch->stride;
}

static void keep_same(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        gpw_select_top(scores_of(choice, h), choice->tokens, choice->budget,
                       kept->positions + (size_t)h * choice->budget);
        kept->counts[h] = choice->budget;
    }
}

// The positions' room serves for the safeguard's first. What lies behind a head's tokens is never
// kept: there are enough tokens.
static void keep_shared(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    uint32_t heads = choice->shape->kv_heads, stride = choice->scratch->stride;
    uint32_t floor =
        (uint32_t)((uint64_t)choice->budget * choice->params->head_floor_percent / 100);
    for (uint32_t h = 0; h < heads; h++) {
        float *scores = scores_of(choice, h);
        gpw_select_top(scores, choice->tokens, floor, kept->positions);
        for (uint32_t i = 0; i < floor; i++) {
            scores[kept->positions[i]] = INFINITY;
        }
        for (uint32_t t = choice->tokens; t < stride; t++) {
            scores[t] = -INFINITY;
        }
        kept->counts[h] = 0;
    }
    gpw_select_top(choice->scratch->scores, heads * stride, heads * choice->budget,
                   kept->positions);
    for (uint32_t i = 0; i < heads * choice->budget; i++) {
        kept->counts[kept->positions[i] / stride]++;
        kept->positions[i] %= stride;
    }
}

void gpw_select_scored(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    AS_ASSERT(choice->sinks <= choice->budget && choice->budget <= choice->tokens);
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        for (uint32_t t = 0; t < choice->sinks; t++) {
            scores_of(choice, h)[t] = INFINITY;
        }
    }
    if (choice->params->head_floor_percent > 0) {
        keep_shared(choice, kept);
    } else {
        keep_same(choice, kept);
    }
}
