// SPDX-License-Identifier: Apache-2.0
// Sealed blocks that sessions on one chain have in common: each is held once.
//
// A session seals its blocks by itself, then hangs them up here under their key. Equal chains give
// equal sealed bytes, so the second to come lets go of its own copy and takes the one that hangs
// there; the last to leave frees it. So forks of a prompt cost the tail of each, not its segment.
//
// Only blocks that a compressor makes of their K and V alone (GPW_COMPRESSOR_QUERY_FREE), that
// stand alone (`slot`), and whose K and V are exact. A key begins with the namespace: sessions of
// other salts never meet. What hangs here is in a budget of its own, moved there from the session
// that hung it up, so the device's sum stays; who takes a copy gives its reservation back.
// Engine thread only.
#ifndef GPW_SHARED_H
#define GPW_SHARED_H

#include "gpuworker/resident/sealed.h"

typedef struct gpw_shared gpw_shared_t;

as_status_t gpw_shared_alloc(gpw_device_t *device, gpw_shared_t **shared_p) AS_MUST_USE;
void gpw_shared_free(gpw_shared_t *shared);            // nothing may hang there; NULL is fine
uint64_t gpw_shared_bytes(const gpw_shared_t *shared); // of all that hangs there

bool gpw_shared_possible(const gpw_sealed_t *sealed);
// Shares the next block, number sealed->shared_blocks, which has this key and is sealed in all
// layers. False: no memory to note it; it stays the session's own.
bool gpw_shared_hang_up(gpw_shared_t *shared, gpw_sealed_t *sealed, const as_key_t *key);
// The session leaves. Called by gpw_sealed_close.
void gpw_shared_leave(gpw_sealed_t *sealed);

#endif
