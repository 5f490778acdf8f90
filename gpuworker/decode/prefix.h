// SPDX-License-Identifier: Apache-2.0
// A stored prefix that need not be fetched before the first token.
//
// Where the rest of a prompt is short, its rows are computed by push-down (decode/pushdown.h): the first
// verified token comes after as many round trips as there are layers, with no block brought. What the session
// drafts on comes behind it, in the step SEAL, which waits for it: sealed, as stores keep it
// (resident/stored.h), a third to a fifth of the bytes; or, where stores have it not or the worker does not
// ask (--store-sealed), the full blocks, each layer of which is sealed as it comes. Without the sealed form
// the first token is pushed only where that takes a small part of the fetch's time, since the fetch begins
// that much later, and where the session would not keep the blocks; with it also where nothing was
// measured yet. A store that cannot attend costs the fetch that it would have been.
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
