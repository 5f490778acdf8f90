// SPDX-License-Identifier: Apache-2.0
// Sessions on one chain are verified in one swap: agents that share a long prefix pay for its way
// once.
//
// When a swap begins, those sessions come along that want the same blocks within the time that it
// takes: they would only stand in line behind it. Each finishes its draft while the first layers are
// on their way. Sessions whose chains part have blocks of their own behind the common ones; as long
// as there are few, these stay held, so that the common ones are all that is to be brought.
#ifndef GPW_RIDERS_H
#define GPW_RIDERS_H

#include "gpuworker/decode/stream.h"

struct gpw_request;

// How long the draft that `request` begins should be, rather than `target`, to be complete with that of
// a session on the same chain: so those that came along once stay together.
uint32_t gpw_riders_target(struct gpw_request *request, uint32_t target);
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
