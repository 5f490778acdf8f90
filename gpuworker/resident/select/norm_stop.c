// SPDX-License-Identifier: Apache-2.0
// DBudgetKV (Ni et al. 2025, later ReFreeKV): no budget; the oldest tokens go until the attention of
// the prompt's last query would feel it.
//
//   a_h[t] = attention of the last query's head h on t; the sinks are left out of it and kept
//   F(i)   = mean over the layer's query heads of sqrt(sum over t >= i of a_h[t]^2)
//   kept   = the sinks and all t >= i, for the greatest i with
//            F(sinks) - F(i) <= norm_drop_permille / 1000 * F(sinks)
//
// The same for all heads of a layer, another for each layer. Sinks would hide all else, were they
// not left out. Among the t are the newest tokens, which are never dropped. The paper's threshold is
// 1 %; the code that was published with it uses 5 %.
#include <math.h>
#include <string.h>

#include "gpuworker/resident/select/window_scores.h"

// Adds sqrt of the suffix sums of one head's squares to `norms`.
static void add_norms(const float *attention, uint32_t sinks, uint32_t tokens, float *norms)
{
    double square = 0;
    for (uint32_t t = tokens; t-- > sinks;) {
        square += (double)attention[t] * attention[t];
        norms[t] += (float)sqrt(square);
    }
}

static void choose(const gpw_selection_t *choice, gpw_kept_t *kept)
{
    const gpw_select_scratch_t *scratch = choice->scratch;
    float *norms = scratch->scores;
    gpw_window_t window = {
        .row = choice->seen->rows - 1, .rows = 1, .heads = 1, .tokens = choice->seen->tokens};
    memset(norms, 0, window.tokens * sizeof(*norms));
    for (window.head = 0; window.head < choice->shape->q_heads; window.head++) {
        gpw_window_scores(choice, &window, scratch->spare);
        add_norms(scratch->spare, choice->sinks, window.tokens, norms);
    }
    uint32_t first = choice->sinks; // that is kept behind the sinks
    float felt = norms[first] * (float)choice->params->norm_drop_permille / 1000.0f;
    while (first < choice->tokens && norms[choice->sinks] - norms[first + 1] <= felt) {
        first++;
    }
    uint32_t count = choice->sinks + choice->tokens - first;
    for (uint32_t h = 0; h < choice->shape->kv_heads; h++) {
        for (uint32_t i = 0; i < count; i++) {
            kept->positions[(size_t)h * count + i] =
                i < choice->sinks ? i : first + i - choice->sinks;
        }
        kept->counts[h] = count;
    }
}

const gpw_selector_t gpw_select_norm_stop = {
    .name = "norm stop", .observes = true, .data_sized = true, .choose = choose};
