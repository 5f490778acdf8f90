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

// A number whose order is that of the floats; -0 and +0 are equal.
static uint32_t order_of(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static uint32_t count_from(const float *x, uint32_t count, uint32_t threshold)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        found += order_of(x[i]) >= threshold;
    }
    return found;
}

// The keep-th greatest is found by bisection over these numbers, in 32 passes whatever the values
// are, and without a copy to sort.
static uint32_t threshold_for(const float *x, uint32_t count, uint32_t keep)
{
    uint32_t low = 0, high = UINT32_MAX; // at least `keep` are >= low
    while (low < high) {
        uint32_t middle = low + (high - low) / 2 + 1;
        if (count_from(x, count, middle) >= keep) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

void gpw_select_top(const float *x, uint32_t count, uint32_t keep, uint32_t *indices)
{
    AS_ASSERT(keep <= count);
    if (keep == 0) {
        return;
    }
    uint32_t threshold = threshold_for(x, count, keep);
    uint32_t above = threshold == UINT32_MAX ? 0 : count_from(x, count, threshold + 1);
    uint32_t equal = keep - above, written = 0;
    for (uint32_t i = 0; i < count && written < keep; i++) {
        uint32_t order = order_of(x[i]);
        if (order > threshold || (order == threshold && equal > 0)) {
            equal -= order == threshold;
            indices[written++] = i;
        }
    }
    AS_ASSERT(written == keep);
}
