// SPDX-License-Identifier: Apache-2.0
// A stored prefix that need not be fetched before the first token.
//
// Where the rest of a prompt is short, its rows are computed by push-down (decode/pushdown.h): the first
// verified token comes after as many round trips as there are layers, with no block brought. What the session
// drafts on is then brought sealed, as stores keep it (resident/stored.h), a third to a fifth of the bytes, in
// the step SEAL, which waits for it. A store that has it not costs a fetch of the full blocks, each layer of
// which is sealed as it comes; one that cannot attend costs the fetch that it would have been.
#ifndef GPW_PREFIX_H
#define GPW_PREFIX_H

#include "gpuworker/decode/pass.h"

// Of FETCH: whether the rows behind the prefix of `blocks` blocks are to be computed by push-down.
bool gpw_prefix_is_pushed(const struct gpw_request *request, uint32_t blocks);
// Whether the session has a prefix that was not sealed when its prompt was computed.
bool gpw_prefix_is_unsealed(const struct gpw_request *request);
// The turn of SEAL until it is.
gpw_turn_t gpw_prefix_seal_turn(struct gpw_request *request);

#endif
