// SPDX-License-Identifier: Apache-2.0
// The worker's metrics: a counter and a histogram for every step, and what moved.
#ifndef GPW_METRICS_H
#define GPW_METRICS_H

#include "common/metrics.h"

typedef enum gpw_metric {
    GPW_METRIC_STEP_TOTAL,                           // + step
    GPW_METRIC_STEP_US = GPW_METRIC_STEP_TOTAL + 10, // + step
    GPW_METRIC_REQUESTS_TOTAL = GPW_METRIC_STEP_US + 10,
    GPW_METRIC_REQUESTS_FAILED_TOTAL,
    GPW_METRIC_TOKENS_TOTAL,
    GPW_METRIC_DRAFTED_TOKENS_TOTAL,
    GPW_METRIC_ACCEPTED_TOKENS_TOTAL,
    GPW_METRIC_PROPOSED_TOKENS_TOTAL,
    GPW_METRIC_PROPOSALS_ACCEPTED_TOTAL,
    GPW_METRIC_MODEL_PROPOSED_TOKENS_TOTAL,
    GPW_METRIC_MODEL_PROPOSALS_ACCEPTED_TOTAL,
    GPW_METRIC_MODEL_ROWS_TOTAL,
    GPW_METRIC_MODEL_US_TOTAL,
    GPW_METRIC_CACHED_TOKENS_TOTAL,
    GPW_METRIC_FETCHED_BYTES_TOTAL,
    GPW_METRIC_SWAPPED_BYTES_TOTAL,
    GPW_METRIC_PUSHED_BYTES_TOTAL,
    GPW_METRIC_PUSHED_TOTAL,
    GPW_METRIC_PUSHED_PREFIXES_TOTAL,
    GPW_METRIC_SEALED_FETCHED_BLOCKS_TOTAL,
    GPW_METRIC_SEALED_PUBLISHED_BYTES_TOTAL,
    GPW_METRIC_PUSH_REFUSED_TOTAL,
    GPW_METRIC_PUBLISHED_BYTES_TOTAL,
    GPW_METRIC_PUBLISH_DROPPED_BLOCKS_TOTAL,
    GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL,
    GPW_METRIC_CHOSEN_BLOCKS_TOTAL,
    GPW_METRIC_RESTARTS_TOTAL,
    GPW_METRIC_BATCH_LAYERS_TOTAL,
    GPW_METRIC_BATCH_ROWS_TOTAL,
    GPW_METRIC_BATCH_PASSES_TOTAL,
    GPW_METRIC_SHARED_SWAPS_TOTAL,
    GPW_METRIC_SWAP_MOVING_US_TOTAL,
    GPW_METRIC_SWAP_HIDDEN_US_TOTAL,
    GPW_METRIC_SEALING_US_TOTAL,
    GPW_METRIC_ROUND_US_TOTAL,
    GPW_METRIC_ROUND_EXPECTED_US_TOTAL,
    GPW_METRIC_ROUND_TOKENS_TOTAL,
    GPW_METRIC_ROUND_EXPECTED_TOKENS_TOTAL,
    GPW_METRIC_SWAP_WAIT_US,
    GPW_METRIC_PUSH_WAIT_US,
    GPW_METRIC_FIRST_TOKEN_US,
    GPW_METRIC_SESSIONS,
    GPW_METRIC_RESERVED_BYTES,
    GPW_METRIC_SHARED_BYTES,
    GPW_METRIC_WORKSPACE_BYTES,
    GPW_METRIC_COUNT
} gpw_metric_t;

// Of each method (decode/chooser.h), which is their label.
typedef enum gpw_method_metric {
    GPW_METHOD_CHOSEN,
    GPW_METHOD_TRIED,
    GPW_METHOD_EXPECTED, // thousandths of a token a second
    GPW_METHOD_METRIC_COUNT
} gpw_method_metric_t;

void gpw_metrics_register(void); // idempotent
void gpw_metric_add(gpw_metric_t metric, int64_t amount);
void gpw_metric_set(gpw_metric_t metric, int64_t value);
void gpw_metric_observe(gpw_metric_t metric, uint64_t value);
int64_t gpw_metric_value(gpw_metric_t metric);
// method: as the chooser numbers them.
void gpw_metric_method_add(gpw_method_metric_t metric, uint32_t method, int64_t amount);
void gpw_metric_method_set(gpw_method_metric_t metric, uint32_t method, int64_t value);
int64_t gpw_metric_method_value(gpw_method_metric_t metric, uint32_t method);

#endif
