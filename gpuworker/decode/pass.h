// SPDX-License-Identifier: Apache-2.0
// One forward pass of consecutive positions over the full cache, a layer at a time: what prefill,
// recompute and verification have in common.
//
// In layer l, the pass waits until the swap (if any) has brought layer l; writes the rows' K and V
// into the held blocks; attends over the pages of all blocks up to its last row, in absolute order,
// wherever each lies: held, in the swap's ring, or exact in the segment. The pages' content is the
// same bits in each place, so the results are too.
#ifndef GPW_PASS_H
#define GPW_PASS_H

#include <stdbool.h>
#include <stdint.h>
#include "common/status.h"
#include "gpuworker/model/forward.h"

struct gpw_request;

// A forward pass's scratch, one of the engine's fixed number.
typedef struct gpw_forward_slot {
    gpw_forward_t *forward;
    int32_t *positions; // [rows_max]
    uint32_t rows_max;
    bool used;
} gpw_forward_slot_t;

typedef struct gpw_pass {
    gpw_forward_slot_t *slot;
    uint32_t position, rows; // first position
    uint32_t page_count;     // pages of the present layer, in engine->pages
} gpw_pass_t;

typedef enum gpw_pass_state {
    GPW_PASS_MORE,    // did some layers
    GPW_PASS_WAITING, // for the swap
    GPW_PASS_DONE,    // all layers are done
    GPW_PASS_FAILED   // the swap failed: *hole_p
} gpw_pass_state_t;

// Called after each layer, while its pages are still there.
typedef void (*gpw_pass_layer_fn)(struct gpw_request *request, uint32_t layer);

// Tokens are request->tokens[position ...]. The blocks must cover the rows.
void gpw_pass_begin(struct gpw_request *request, gpw_forward_slot_t *slot, uint32_t position,
                    uint32_t rows);
gpw_pass_state_t gpw_pass_run(struct gpw_request *request, gpw_pass_layer_fn after_layer,
                              uint32_t *hole_p);
void gpw_pass_end(struct gpw_request *request);
// One layer of a block, wherever it lies.
const uint8_t *gpw_pass_extent(const struct gpw_request *request, uint32_t block, uint32_t layer);

#endif
