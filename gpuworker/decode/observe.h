// SPDX-License-Identifier: Apache-2.0
// What a query-aware compressor gets to see of a prefill: the prompt's last queries of the layer
// that was just computed, with the log-sum-exps of their logits. Kept from the begin of a prefill
// to its end.
#ifndef GPW_OBSERVE_H
#define GPW_OBSERVE_H

#include "gpuworker/device.h"
#include "gpuworker/resident/compressor.h"

struct gpw_request;

typedef struct gpw_observer {
    uint32_t rows; // the prompt's last ones, of the pass that prefills it; 0: none
    float *q;      // [rows_max][q_heads][dim]; NULL: not in a prefill, or nobody looks
    float *lse;    // [rows_max][q_heads]
} gpw_observer_t;

// Rows of a pass from its row `row0` on.
typedef struct gpw_observed_rows {
    uint32_t row0, rows;
    const float *q, *lse; // [rows][q_heads][dim], [rows][q_heads]
} gpw_observed_rows_t;

// How many of the prompt's last tokens the request's compressor looks at; 0: none.
uint32_t gpw_observe_window(const struct gpw_request *request);
uint64_t gpw_observe_bytes(const struct gpw_request *request); // of its budget
as_status_t gpw_observe_begin(struct gpw_request *request, uint32_t pass_rows) AS_MUST_USE;
void gpw_observe_end(struct gpw_request *request);
// Takes of these rows what belongs to the observed ones.
void gpw_observe_rows(struct gpw_request *request, const gpw_observed_rows_t *rows);
// Shows the layer to the compressor, while its pages are there.
void gpw_observe_layer(struct gpw_request *request, uint32_t layer);

#endif
