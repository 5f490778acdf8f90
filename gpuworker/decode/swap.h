// SPDX-License-Identifier: Apache-2.0
// The swap: stored blocks brought to a pass, layer by layer, through a ring of a few layers.
//
// Also carries the prefix fetch, which is the same: the prefix's layers pass by once, are attended
// to, sealed, and gone. What is under way is a stream (decode/stream.h); here is what one session
// wants of it.
//
// When a draft begins, the session books time of the link and memory for the ring (decode/rings.h)
// from when its draft will be as long as the horizon says, so sessions' verifications follow each
// other. The booking says whose turn it is: the swap begins when the link is free and nobody wanted
// it before, be that sooner or later than booked, and the session drafts on until then.
//
// Sessions on one chain are verified in one swap: when one begins, those that would want the same
// blocks within the time that it takes come along, and each reads every layer before its slot is free.
#ifndef GPW_SWAP_H
#define GPW_SWAP_H

#include "gpuworker/decode/stream.h"
#include "gpuworker/resident/blocks.h"

struct gpw_request;

typedef struct gpw_swap {
    gpw_stream_t *stream; // NULL: none
    struct gpw_request *next_reader;
    uint32_t released; // layers that it has read
    uint32_t first_block,
        end_block; // of the stream's, those that are its own too: of a longer chain's the rest may not be
    // In line for the link.
    gpw_booking_t booking;
    bool waits;
    uint64_t want_us; // since when, or from when on as booked
    // Of a push-down.
    uint32_t asked_layers;
    uint64_t asked_us, push_wait_us; // when the last one was asked for; for all of them
    uint64_t waited_since_us;
} gpw_swap_t;

typedef enum gpw_swap_state { GPW_SWAP_READY, GPW_SWAP_WAITING, GPW_SWAP_FAILED } gpw_swap_state_t;

// The stored blocks that the segment cannot stand in for: [*first_p, *first_p + return value).
uint32_t gpw_swap_range(const struct gpw_request *request, uint32_t limit, uint32_t *first_p);
uint32_t gpw_swap_ring_slots(const struct gpw_engine *engine); // layers
// Bytes of the ring for so many blocks.
size_t gpw_swap_ring_bytes(const struct gpw_engine *engine, uint32_t blocks);
// Link time of so many blocks in microseconds; 0: not known.
double gpw_swap_link_us(const struct gpw_engine *engine, uint32_t blocks);
// Books the link for the swap of a draft that will be complete at `at_us`.
void gpw_swap_book(struct gpw_request *request, uint64_t at_us);
// Starts bringing `count` blocks from `first`. AS_ERR_BUSY: it is not its turn; in line.
as_status_t gpw_swap_start(struct gpw_request *request, uint32_t first, uint32_t count,
                           const uint64_t *node_ids) AS_MUST_USE;
// Whether what is under way is a push-down.
static inline bool gpw_swap_is_pushed(const gpw_swap_t *swap)
{
    return swap->stream && swap->stream->pushed;
}
// Whether `layer` may be attended to. FAILED: the transfer ended before; *hole_p is the first
// missing block of the chain.
gpw_swap_state_t gpw_swap_layer(struct gpw_request *request, uint32_t layer, uint32_t *hole_p);
// Whether the first layer is here, or never will be.
bool gpw_swap_is_here(const struct gpw_request *request);
const uint8_t *gpw_swap_extent(const gpw_swap_t *swap, uint32_t block,
                               uint32_t layer);                      // NULL: not in the swap
void gpw_swap_release(struct gpw_request *request, uint32_t layers); // [0, layers) are read
// Ends a swap, complete or not, and the wish for one: what is left of it runs out behind.
void gpw_swap_end(struct gpw_request *request);
// Of one that failed, before its end: whether no block is missing and stores or the client were too
// busy. Then it is too early to ask again for a while.
bool gpw_swap_is_refused(struct gpw_request *request);
// Whether it is too early to ask again; the engine wakes when it is not.
bool gpw_swap_is_too_early(const struct gpw_request *request);

#endif
