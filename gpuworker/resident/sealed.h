// SPDX-License-Identifier: Apache-2.0
// A session's sealed segment: the compressed form of the blocks [0, blocks) of its chain, on which
// it drafts.
#ifndef GPW_SEALED_H
#define GPW_SEALED_H

#include "gpuworker/device.h"
#include "gpuworker/resident/compressor.h"

// Newest tokens that stay exact in the tail before their block is sealed: one group of KIVI.
#define GPW_RESIDUAL_TOKENS 32u

typedef struct gpw_shared_ref gpw_shared_ref_t; // of shared.c

typedef struct gpw_sealed {
    const gpw_compressor_t *compressor; // NULL: no segment, everything is exact
    gpw_segment_t *segment;
    gpw_budget_t *budget;
    uint32_t blocks;       // sealed in all layers
    uint64_t bytes;        // counted in the budget
    uint64_t spared_bytes; // of what was reserved for the prompt, what it turned out not to need
    // Of these blocks the first are shared with other sessions (resident/shared.h).
    gpw_shared_ref_t *shared; // the newest; NULL: none
    uint32_t shared_blocks;
    uint64_t shared_bytes; // not in `bytes`
} gpw_sealed_t;

as_status_t gpw_sealed_open(gpw_sealed_t *sealed, const gpw_compressor_t *compressor,
                            gpw_budget_t *budget, const gpw_segment_options_t *options) AS_MUST_USE;
void gpw_sealed_close(gpw_sealed_t *sealed);
// Memory for the blocks [0, blocks).
as_status_t gpw_sealed_reserve(gpw_sealed_t *sealed, uint32_t blocks) AS_MUST_USE;
// Counts the segment's bytes anew, once a prompt's tokens were chosen.
void gpw_sealed_recount(gpw_sealed_t *sealed);
// How many blocks a cache of `tokens` tokens has sealed.
uint32_t gpw_sealed_target(const as_shape_t *shape, uint32_t tokens);

#endif
