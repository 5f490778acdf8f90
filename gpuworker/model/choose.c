// SPDX-License-Identifier: Apache-2.0
// Choosing the next token: filters, Gumbel noise and arg max, all in a fixed order of operations.
//
// Filters as usual: top_k keeps the k greatest logits, then top_p the fewest of those whose share
// of the probability at this temperature reaches top_p; on equal logits the lower ids stay. Both
// come down to a threshold and a count of tokens that equal it. The noise of a token is a function
// of (seed, position, token) only. NaN counts as minus infinity, so that damaged logits still
// choose some token.
#include "gpuworker/model/choose.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/assert.h"
#include "gpuworker/model/fixed_math.h"
#include "kernels/kernels.h"

#define LN2 0.6931471805599453

// What the filters leave: every logit above the threshold, and the first `equal` of those that
// equal it.
typedef struct filter {
    float threshold;
    uint32_t equal;
} filter_t;

static float number(float logit)
{
    return logit == logit ? logit : -INFINITY;
}

static int32_t arg_max(const float *logits, uint32_t vocab)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++) {
        if (number(logits[i]) > number(logits[best])) {
            best = (int32_t)i;
        }
    }
    return best;
}

// ---- Filters
// -------------------------------------------------------------------------------------

static void sift(float *heap, uint32_t count, uint32_t at)
{
    float value = heap[at];
    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] > heap[child]) {
            child++;
        }
        if (heap[child] <= value) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

static float pop(float *heap, uint32_t *count_p)
{
    float top = heap[0];
    heap[0] = heap[--*count_p];
    if (*count_p > 0) {
        sift(heap, *count_p, 0);
    }
    return top;
}

static void count_kept(filter_t *filter, float value)
{
    filter->equal = value == filter->threshold ? filter->equal + 1 : 1;
    filter->threshold = value;
}

static double weight_of(float logit, float max, float temperature)
{
    return (double)krn_expf((logit - max) / temperature);
}

// Pops logits in descending order into `kept`, at most top_k of them, and cuts at the first whose
// sum reaches top_p.
static filter_t make_filter(const float *logits, uint32_t vocab, const gpw_choose_params_t *params,
                            float *scratch)
{
    float *heap = scratch;
    float *kept = scratch + vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        heap[i] = number(logits[i]);
    }
    for (uint32_t i = vocab / 2; i-- > 0;) {
        sift(heap, vocab, i);
    }
    float max = heap[0];
    uint32_t keep_max = params->top_k > 0 && params->top_k < vocab ? params->top_k : vocab;
    uint32_t heap_count = vocab;
    uint32_t kept_count = 0;
    double total = 0;
    if (keep_max < vocab) { // the total is over the survivors of top_k
        while (kept_count < keep_max) {
            kept[kept_count] = pop(heap, &heap_count);
            total += weight_of(kept[kept_count++], max, params->temperature);
        }
    } else {
        for (uint32_t i = 0; i < vocab; i++) {
            total += weight_of(number(logits[i]), max, params->temperature);
        }
    }
    bool cut = params->top_p < 1.0f;
    double wanted = (double)params->top_p * total;
    double sum = 0;
    filter_t filter = {.threshold = NAN};
    for (uint32_t i = 0; i < keep_max; i++) {
        float value = i < kept_count ? kept[i] : pop(heap, &heap_count);
        count_kept(&filter, value);
        sum += weight_of(value, max, params->temperature);
        if (cut && sum >= wanted) {
            break;
        }
    }
    return filter;
}

// ---- Noise
// ---------------------------------------------------------------------------------------

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint64_t noise_bits(uint64_t key, uint32_t token)
{
    return mix(mix(key + (token + UINT64_C(1)) * 0x9e3779b97f4a7c15ull));
}

// Gumbel noise: -ln(-ln u), u in (0, 1) from the bits.
static double gumbel(uint64_t bits)
{
    double u = ((double)(bits >> 11) + 0.5) * 0x1p-53;
    double exponential = -gpw_ln(u);
    // u can round to 1; then -ln u is 0, and what it stands for is the half step below 1.
    return -gpw_ln(exponential > 0x1p-54 ? exponential : 0x1p-54);
}

// An upper bound of gumbel(bits) without logarithms: with c leading ones, 1 - u > 2^-(c + 1), and
// -ln u >= 1 - u.
static double gumbel_bound(uint64_t bits)
{
    uint64_t inverted = ~bits | 1u << 10; // 53 bits count
    return (double)(__builtin_clzll(inverted) + 1) * LN2;
}

static int32_t arg_max_noisy(const float *logits, uint32_t vocab, uint32_t position,
                             const gpw_choose_params_t *params, filter_t filter)
{
    uint64_t key = mix(params->seed ^ mix(position + 0x9e3779b97f4a7c15ull));
    double best_score = -INFINITY;
    int32_t best = -1;
    for (uint32_t i = 0; i < vocab; i++) {
        float logit = number(logits[i]);
        if (logit < filter.threshold || (logit == filter.threshold && filter.equal == 0)) {
            continue;
        }
        filter.equal -= logit == filter.threshold;
        double score = (double)(logit / params->temperature);
        uint64_t bits = noise_bits(key, i);
        if (best >= 0 && score + gumbel_bound(bits) < best_score) {
            continue; // most tokens: no logarithm is needed to know that they lose
        }
        score += gumbel(bits);
        if (best < 0 || score > best_score) {
            best_score = score;
            best = (int32_t)i;
        }
    }
    return best;
}

int32_t gpw_choose(const float *logits, uint32_t vocab, uint32_t position,
                   const gpw_choose_params_t *params, float *scratch)
{
    AS_ASSERT(vocab > 0);
    if (!(params->temperature > 0)) {
        return arg_max(logits, vocab);
    }
    filter_t filter = {.threshold = -INFINITY, .equal = vocab};
    bool filtered = params->top_p < 1.0f || (params->top_k > 0 && params->top_k < vocab);
    if (filtered) {
        filter = make_filter(logits, vocab, params, scratch);
    }
    return arg_max_noisy(logits, vocab, position, params, filter);
}

// ---- Log-probabilities
// ---------------------------------------------------------------------------

static double log_sum_exp(const float *logits, uint32_t vocab)
{
    float max = number(logits[arg_max(logits, vocab)]);
    if (isinf(max)) {
        return (double)max;
    }
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += (double)krn_expf(number(logits[i]) - max);
    }
    return (double)max + gpw_ln(sum);
}

float gpw_logprob(const float *logits, uint32_t vocab, int32_t token)
{
    AS_ASSERT(token >= 0 && (uint32_t)token < vocab);
    return (float)((double)number(logits[token]) - log_sum_exp(logits, vocab));
}

void gpw_top_logprobs(const float *logits, uint32_t vocab, uint32_t count, int32_t *tokens,
                      float *logprobs)
{
    AS_ASSERT(count <= vocab);
    double total = count > 0 ? log_sum_exp(logits, vocab) : 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        float logit = number(logits[i]);
        if (count == 0 || (found == count && !(logit > number(logits[tokens[count - 1]])))) {
            continue;
        }
        found += found < count;
        uint32_t place = found - 1;
        while (place > 0 && logit > number(logits[tokens[place - 1]])) {
            tokens[place] = tokens[place - 1];
            place--;
        }
        tokens[place] = (int32_t)i;
    }
    for (uint32_t i = 0; i < found; i++) {
        logprobs[i] = (float)((double)number(logits[tokens[i]]) - total);
    }
}
