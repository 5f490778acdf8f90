// SPDX-License-Identifier: Apache-2.0
// Choosing by scores.
#include "gpuworker/resident/select/top.h"

#include <string.h>

#include "common/assert.h"

void gpw_select_pool_max(const float *x, uint32_t count, uint32_t width, float *out)
{
    uint32_t reach = width / 2;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = i > reach ? i - reach : 0;
        uint32_t end = count - i > reach ? i + reach + 1 : count;
        float max = x[first];
        for (uint32_t j = first + 1; j < end; j++) {
            max = x[j] > max ? x[j] : max;
        }
        out[i] = max;
    }
}

void gpw_select_pool_mean(const float *x, uint32_t count, uint32_t width, float *out)
{
    int64_t last = (int64_t)count - 1, reach = width / 2;
    reach = reach < last ? reach : last;
    for (int64_t i = 0; i <= last; i++) {
        float sum = 0;
        for (int64_t j = i - reach; j <= i + reach; j++) {
            int64_t at = j < 0 ? -j : j;
            sum += x[at > last ? 2 * last - at : at];
        }
        out[i] = sum / (float)(2 * reach + 1);
    }
}

// A number whose order is that of the floats; -0 and +0 are equal.
static uint32_t order_of(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The greatest number at which, from the greatest element down, the weights (NULL: ones) come to
// `keep`, and what they come to above it. Found by digits of eight bits, in four passes whatever the
// values are, and without a copy to sort. 0 < keep <= all weights.
static uint32_t threshold_for(const float *x, const uint16_t *weights, uint32_t count,
                              uint32_t keep, uint32_t *above_p)
{
    uint32_t threshold = 0, known = 0, above = 0; // known: a mask of the digits that are found
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t sums[256] = {0}, digit = 255;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t order = order_of(x[i]);
            if ((order & known) == threshold) {
                sums[order >> shift & 255] += weights ? weights[i] : 1;
            }
        }
        for (; keep - above > sums[digit]; digit--) {
            above += sums[digit];
        }
        threshold |= digit << shift;
        known |= 255u << shift;
    }
    *above_p = above;
    return threshold;
}

void gpw_select_top(const float *x, uint32_t count, uint32_t keep, uint32_t *indices)
{
    AS_ASSERT(keep <= count);
    if (keep == 0) {
        return;
    }
    uint32_t above, written = 0;
    uint32_t threshold = threshold_for(x, NULL, count, keep, &above), equal = keep - above;
    for (uint32_t i = 0; i < count && written < keep; i++) {
        uint32_t order = order_of(x[i]);
        if (order > threshold || (order == threshold && equal > 0)) {
            equal -= order == threshold;
            indices[written++] = i;
        }
    }
    AS_ASSERT(written == keep);
}

void gpw_select_top_units(const float *x, const uint16_t *sizes, uint32_t count, uint32_t keep,
                          uint16_t *taken)
{
    uint32_t above = 0;
    uint32_t threshold = keep ? threshold_for(x, sizes, count, keep, &above) : UINT32_MAX;
    uint32_t equal = keep - above;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t order = order_of(x[i]);
        uint32_t some = sizes[i] < equal ? sizes[i] : equal;
        taken[i] = order > threshold ? sizes[i] : order == threshold ? (uint16_t)some : 0;
        equal -= order == threshold ? some : 0;
    }
}
