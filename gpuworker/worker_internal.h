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

void gpw_worker_post_io(gpw_worker_t *worker, as_task_t *task);
void gpw_worker_request_gone(gpw_worker_t *worker); // the engine freed one

#endif
