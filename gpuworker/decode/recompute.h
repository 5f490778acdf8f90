// SPDX-License-Identifier: Apache-2.0
// Recompute: blocks that no store gave are computed again, to the same bits.
#ifndef GPW_RECOMPUTE_H
#define GPW_RECOMPUTE_H

#include "gpuworker/request.h"

// The stored blocks from `hole` on are lost: makes room for them and goes to RECOMPUTE, or begins
// the request again when there is no room.
gpw_turn_t gpw_recompute_from(gpw_request_t *request, uint32_t hole);

#endif
