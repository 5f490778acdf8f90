// SPDX-License-Identifier: Apache-2.0
// What one more row costs in a step of compute: for rows that perhaps are for nothing.
//
// A step of r rows takes about base + slope * r: the weights are read once, arithmetic and attention are paid
// for each row. `slope` over the mean time of a row is the price: near 0 where a few rows share a step and
// reading the weights is what takes the time, near 1 where arithmetic does. A row that yields a token with
// more than this chance raises the tokens of a second, whoever's they are.
#ifndef GPW_PRICE_H
#define GPW_PRICE_H

#include <stdint.h>

// A line through (rows, time) of the last steps, by decayed sums. Zeroes are a beginning.
typedef struct gpw_row_price {
    double steps, rows, us, rows_rows, rows_us;
} gpw_row_price_t;

void gpw_row_price_learn(gpw_row_price_t *price, uint32_t rows, uint64_t us);
float gpw_row_price_get(const gpw_row_price_t *price); // 0 to 1

#endif
