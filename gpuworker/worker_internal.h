// SPDX-License-Identifier: Apache-2.0
// The worker as its own files see it.
#ifndef GPW_WORKER_INTERNAL_H
#define GPW_WORKER_INTERNAL_H

#include "gpuworker/engine.h"
#include "gpuworker/resident/calibration.h"

struct gpw_worker {
    gpw_worker_options_t options;
    gpw_engine_t *engine;
    gpw_link_t *link;
    gpw_cluster_t *cluster;
    gpw_calibration_t calibration;
    gpw_compressor_t *calibrated; // the table with it in; NULL: there is none
    // io
    gpw_request_t **active; // [active_max]: requests whose on_finish has not been called
    uint32_t active_max, active_count;
    uint64_t next_id;
    // both
    _Atomic uint32_t alive; // requests that are not freed
};

// ---- worker_params.c

// Where a refused request's reason is written.
typedef struct gpw_refusal {
    char *text;
    size_t bytes;
} gpw_refusal_t;

// Writes the reason; returns the status.
__attribute__((format(printf, 3, 4))) as_status_t
gpw_refuse(const gpw_refusal_t *refusal, as_status_t status, const char *format, ...);
// Counts, ids and ranges. AS_ERR_INVALID or AS_ERR_LIMIT, with the reason.
as_status_t gpw_params_check(const gpw_worker_t *worker, const gpw_request_params_t *params,
                             const gpw_refusal_t *refusal) AS_MUST_USE;
// The row of this name, with the worker's calibration; *compressor_p is NULL for "none" and "auto".
as_status_t gpw_params_compressor(const gpw_worker_t *worker, const char *name,
                                  const gpw_refusal_t *refusal,
                                  const gpw_compressor_t **compressor_p) AS_MUST_USE;

// ---- worker.c

void gpw_worker_post_io(gpw_worker_t *worker, as_task_t *task);
void gpw_worker_request_gone(gpw_worker_t *worker); // the engine freed one

#endif
