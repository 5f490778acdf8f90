// SPDX-License-Identifier: Apache-2.0
// Sessions on one chain are verified in one swap: agents that share a long prefix pay for its way
// once.
//
// Sessions that draft alike (none more than twice as long as another) stay in step. One that begins a
// draft meets the others half way: all of them end when its draft is as long as half of what they have
// left and half of what it wants. When one begins a swap, its like come along however little they have
// drafted: the short verification costs them a row, and from then on they are in step. Nobody waits for
// anybody.
//
// Others come along that have half of their draft, or that want the same blocks within the time that the
// swap takes: they would only stand in line behind it. One that drafts much less than they swaps for
// itself in between. All finish their drafts while the first layers are on their way. Sessions whose
// chains part have blocks of their own behind the common ones; as long as there are few, these stay held,
// so that the common ones are all that is to be brought.
#ifndef GPW_RIDERS_H
#define GPW_RIDERS_H

#include "gpuworker/decode/horizon.h"
#include "gpuworker/decode/stream.h"

struct gpw_request;

// What sharing makes of the load: sessions, swaps and riders (decode/horizon.h).
void gpw_riders_load(const struct gpw_request *request, gpw_horizon_load_t *load);
// Of the sessions on the same chain with the same compressor the one that knows most of drafts; or NULL.
const struct gpw_request *gpw_riders_like(const struct gpw_request *request);
// How long the draft that `request` begins should be, to be complete with those of its like on the same
// chain: half way between what they have left and what it wants. Theirs are lengthened to that.
uint32_t gpw_riders_target(struct gpw_request *request);
// Joins a stream that brings these blocks already, and of which no layer is gone yet.
bool gpw_riders_board(struct gpw_request *request, uint32_t first, uint32_t count);
// Widens the range of a swap that `request` is about to begin to that of the longest chain among
// those that would come along.
void gpw_riders_widen(const struct gpw_request *request, gpw_stream_range_t *range);
// Lets them join the request's stream, which has just begun to bring the range.
void gpw_riders_join(struct gpw_request *request, const gpw_stream_range_t *range);
// How far the session may let go of its blocks, all of which below `limit` it could do without.
uint32_t gpw_riders_drop_limit(const struct gpw_request *request, uint32_t limit);

#endif
