// SPDX-License-Identifier: Apache-2.0
// Choosing by scores: the greatest of a list, and the greatest or the mean around each place of it.
#ifndef GPW_TOP_H
#define GPW_TOP_H

#include <stdint.h>

// out[i] = the greatest of x[i - width / 2 .. i + width / 2], as far as there are any; `width` is
// odd.
void gpw_select_pool_max(const float *x, uint32_t count, uint32_t width, float *out);
// out[i] = the mean of x[i - width / 2 .. i + width / 2], where an index beyond an end is as far inside
// of it; `width` is odd, and as narrow as 2 * count - 1 where that is less.
void gpw_select_pool_mean(const float *x, uint32_t count, uint32_t width, float *out);
// Writes the indices of the `keep` greatest of x[count], ascending; of equal ones the lower index
// is taken. No x is NaN; infinities are fine. keep <= count.
void gpw_select_top(const float *x, uint32_t count, uint32_t keep, uint32_t *indices);
// Of units of sizes[count] tokens those of greatest x, until they have `keep` tokens: taken[i] is how
// many of unit i, all but for the last that is taken. keep <= all sizes.
void gpw_select_top_units(const float *x, const uint16_t *sizes, uint32_t count, uint32_t keep,
                          uint16_t *taken);

#endif
