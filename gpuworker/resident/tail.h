// SPDX-License-Identifier: Apache-2.0
// The tail while drafting: exact blocks that are not sealed yet, and behind them provisional pages.
//
// K and V of drafts come from lossy attention, so they never touch the exact blocks: a provisional
// page begins as a copy of the exact rows of the block that it continues, and is dropped whole
// after the verification.
#ifndef GPW_TAIL_H
#define GPW_TAIL_H

#include "gpuworker/resident/blocks.h"

typedef struct gpw_tail {
    gpw_budget_t *budget;
    as_shape_t shape;
    uint8_t *memory; // [pages_max], a block each
    uint32_t pages_max;
    uint32_t first_block; // block that page 0 stands for; valid while drafting
} gpw_tail_t;

// Bytes of the provisional pages for drafts of up to `horizon` tokens.
uint64_t gpw_tail_bytes(const as_shape_t *shape, uint32_t horizon);
as_status_t gpw_tail_init(gpw_tail_t *tail, const as_shape_t *shape, gpw_budget_t *budget,
                          uint32_t horizon) AS_MUST_USE;
void gpw_tail_fini(gpw_tail_t *tail);
// Begins a draft behind blocks->tokens.
void gpw_tail_begin(gpw_tail_t *tail, const gpw_blocks_t *blocks);
uint8_t *gpw_tail_extent(const gpw_tail_t *tail, uint32_t block,
                         uint32_t layer); // NULL below first_block

#endif
