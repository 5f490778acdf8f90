// SPDX-License-Identifier: Apache-2.0
// Ghosts: which blocks were evicted lately, by a few bits of their keys, and what is learnt when
// one of them comes back.
#ifndef KVS_GHOST_H
#define KVS_GHOST_H

#include <stdbool.h>
#include <stdint.h>
#include "common/block.h"
#include "common/status.h"

// The queues of eviction: new blocks, those that were used or came back, and those with a guard.
typedef enum kvs_queue { KVS_SMALL, KVS_MAIN, KVS_GUARDED, KVS_QUEUES } kvs_queue_t;

#define KVS_GHOSTS_A_BLOCK 4u // ghosts that are remembered for each block that the index may have

typedef struct kvs_ghosts kvs_ghosts_t;

as_status_t kvs_ghosts_alloc(uint32_t blocks_max, kvs_ghosts_t **ghosts_p) AS_MUST_USE;
void kvs_ghosts_free(kvs_ghosts_t *ghosts); // NULL is fine
// A block was evicted from `queue`, while the store held `blocks` of them.
void kvs_ghosts_add(kvs_ghosts_t *ghosts, const as_key_t *key, kvs_queue_t queue, uint32_t blocks);
// A block comes: the queue that it belongs to. Forgets its ghost.
kvs_queue_t kvs_ghosts_admit(kvs_ghosts_t *ghosts, const as_key_t *key);
bool kvs_ghosts_has(const kvs_ghosts_t *ghosts, const as_key_t *key);
uint64_t kvs_ghosts_hits(const kvs_ghosts_t *ghosts); // blocks that came back
// The part of `bytes` that the small queue may have.
size_t kvs_ghosts_small_bytes(const kvs_ghosts_t *ghosts, size_t bytes);

#endif
