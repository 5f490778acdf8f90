// SPDX-License-Identifier: Apache-2.0
// The swap: stored blocks brought to a pass, layer by layer, through a ring of a few layers.
//
// Also carries the prefix fetch, which is the same stream: the prefix's layers pass by once, are
// attended to, sealed, and gone. The ring is kept between swaps and freed with the session.
#ifndef GPW_SWAP_H
#define GPW_SWAP_H

#include "gpuworker/link.h"
#include "gpuworker/resident/blocks.h"

struct gpw_request;

typedef struct gpw_swap {
    uint8_t *ring;
    size_t ring_bytes;
    gpw_transfer_t *transfer;          // NULL: none
    uint32_t first_block, block_count; // of the transfer
    size_t layer_stride;
    uint32_t layer_slots;
    size_t extent_bytes;
    uint32_t released; // layers
    bool prefix;       // counted as fetched, not as swapped
    bool pushed;       // the transfer is an attend (decode/pushdown.h): the ring holds no extents
    uint32_t asked_layers;           // of that
    uint64_t asked_us, push_wait_us; // when the last one was asked for; for all of them
    bool abandoned; // cancelled: the ring is busy until the transfer is done, and its layers are
                    // not to be read
    uint64_t waited_since_us;
} gpw_swap_t;

// Blocks of the chain, and who has each; node_ids NULL: as the blocks say.
typedef struct gpw_swap_range {
    uint32_t first, count;
    const uint64_t *node_ids;
} gpw_swap_range_t;

typedef enum gpw_swap_state { GPW_SWAP_READY, GPW_SWAP_WAITING, GPW_SWAP_FAILED } gpw_swap_state_t;

// The stored blocks that the segment cannot stand in for: [*first_p, *first_p + return value).
uint32_t gpw_swap_range(const struct gpw_request *request, uint32_t limit, uint32_t *first_p);
// Starts bringing `count` blocks from `first`. AS_ERR_BUSY while an abandoned one still runs out.
as_status_t gpw_swap_start(struct gpw_request *request, uint32_t first, uint32_t count,
                           const uint64_t *node_ids) AS_MUST_USE;
// The ring, with room for so many bytes. AS_ERR_BUSY as of gpw_swap_start.
as_status_t gpw_swap_fit(struct gpw_request *request, size_t bytes) AS_MUST_USE;
// Starts a transfer of these blocks into the ring; of `params` the kind's own part is given.
as_status_t gpw_swap_begin(struct gpw_request *request, const gpw_swap_range_t *range,
                           const gpw_transfer_params_t *params) AS_MUST_USE;
// Whether what is under way is a push-down that is still wanted.
static inline bool gpw_swap_is_pushed(const gpw_swap_t *swap)
{
    return swap->transfer && !swap->abandoned && swap->pushed;
}
// Whether `layer` may be attended to. FAILED: the transfer ended before; *hole_p is the first
// missing block of the chain.
gpw_swap_state_t gpw_swap_layer(struct gpw_request *request, uint32_t layer, uint32_t *hole_p);
const uint8_t *gpw_swap_extent(const gpw_swap_t *swap, uint32_t block,
                               uint32_t layer);           // NULL: not in the swap
void gpw_swap_release(gpw_swap_t *swap, uint32_t layers); // [0, layers) are read
// Ends a swap, complete or not: what is left of it runs out behind.
void gpw_swap_end(struct gpw_request *request);
void gpw_swap_free_ring(struct gpw_request *request); // no transfer may be left

#endif
