// SPDX-License-Identifier: Apache-2.0
// What one more row costs in a step of compute.
#include "gpuworker/decode/price.h"

#define DECAY                                                                                      \
    (1.0 - 1.0 / 2048) // weight of the past, for each layer: some sixty passes of thirty layers
#define STEPS    64.0  // fewer tell nothing
#define VARIANCE 0.05  // of rows; less draws no line
#define START    0.3f  // of a small model on two cores
#define LEAST    0.02f // a price of nothing would have everything proposed

void gpw_row_price_learn(gpw_row_price_t *price, uint32_t rows, uint64_t us)
{
    double r = rows, t = (double)us;
    price->steps = DECAY * price->steps + 1;
    price->rows = DECAY * price->rows + r;
    price->us = DECAY * price->us + t;
    price->rows_rows = DECAY * price->rows_rows + r * r;
    price->rows_us = DECAY * price->rows_us + r * t;
}

float gpw_row_price_get(const gpw_row_price_t *price)
{
    double n = price->steps;
    double spread = n * price->rows_rows - price->rows * price->rows; // n^2 times the variance
    if (n < STEPS || price->us <= 0 || spread < VARIANCE * n * n) {
        return START;
    }
    double slope = (n * price->rows_us - price->rows * price->us) / spread;
    float one = (float)(slope * price->rows / price->us);
    return one < LEAST ? LEAST : one > 1.0f ? 1.0f : one;
}
