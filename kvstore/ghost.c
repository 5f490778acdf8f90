// SPDX-License-Identifier: Apache-2.0
// Ghosts, four bytes each: 16 bits of the key, the queue, and when it was evicted. A table of
// buckets; a full bucket forgets its oldest. Two keys of the same bits are taken for one, which
// costs a block a place in the wrong queue, once in some thousand.
//
// Time is counted for each queue in evictions, a share of the blocks that the store held then: 1024
// ticks are as many evictions as it held blocks.
//
// A ghost that comes back soon would still be here had its queue been a little larger. So it moves
// the border: from the small queue, the small queue gets more; from the main queue, less. The
// paper's tenth is right for web objects, where most are asked for once. Chains of a conversation
// come back after minutes, and how many blocks come in a minute differs by the model and the load.
#include "kvstore/ghost.h"

#include "common/assert.h"
#include "common/mem.h"

#define WAYS        8u // of a bucket
#define WHEN_BITS   15u
#define WHEN_MASK   ((1u << WHEN_BITS) - 1)
#define TURN_TICKS  1024u            // the store's blocks once over
#define LIFE_TICKS  (4 * TURN_TICKS) // a ghost that is older is none
#define SOON_TICKS  (TURN_TICKS / 16)
#define SHARE_ONE   65536u
#define SHARE_FIRST (SHARE_ONE / 2)
#define SHARE_MIN   (SHARE_ONE / 64)
#define SHARE_MAX   (SHARE_ONE / 10 * 7)
#define SHARE_STEP  (SHARE_ONE / 256)

struct kvs_ghosts {
    uint32_t buckets;
    uint32_t share;     // of the small queue, of SHARE_ONE
    uint64_t clocks[2]; // ticks << 20
    uint64_t hits;
    uint32_t slots[]; // bits of the key (16), queue (1), when (15); 0: empty
};

as_status_t kvs_ghosts_alloc(uint32_t blocks_max, kvs_ghosts_t **ghosts_p)
{
    uint32_t buckets = (uint32_t)(((uint64_t)blocks_max * KVS_GHOSTS_A_BLOCK + WAYS - 1) / WAYS);
    kvs_ghosts_t *ghosts =
        as_mem_zalloc(1, sizeof(*ghosts) + (size_t)buckets * WAYS * sizeof(uint32_t));
    if (!ghosts) {
        return AS_ERR_NO_MEMORY;
    }
    ghosts->buckets = buckets;
    ghosts->share = SHARE_FIRST;
    *ghosts_p = ghosts;
    return AS_OK;
}

void kvs_ghosts_free(kvs_ghosts_t *ghosts)
{
    as_mem_free(ghosts);
}

static uint32_t bucket_of(const kvs_ghosts_t *ghosts, const as_key_t *key)
{
    uint64_t high = as_key_hash(key) >> 32;
    return (uint32_t)(high * ghosts->buckets >> 32) * WAYS;
}

static uint32_t bits_of(const as_key_t *key)
{
    uint32_t bits = (uint32_t)as_key_hash(key) & 0xffffu;
    return bits ? bits : 1;
}

static uint32_t age_of(const kvs_ghosts_t *ghosts, uint32_t slot)
{
    uint32_t now = (uint32_t)(ghosts->clocks[slot >> WHEN_BITS & 1] >> 20);
    return (now - slot) & WHEN_MASK;
}

void kvs_ghosts_add(kvs_ghosts_t *ghosts, const as_key_t *key, kvs_queue_t queue, uint32_t blocks)
{
    AS_ASSERT(blocks > 0);
    queue = queue == KVS_SMALL ? KVS_SMALL : KVS_MAIN;
    uint32_t *slots = &ghosts->slots[bucket_of(ghosts, key)], bits = bits_of(key);
    uint32_t *to = &slots[0];
    for (uint32_t i = 0; i < WAYS; i++) {
        if (slots[i] == 0 || slots[i] >> 16 == bits) {
            to = &slots[i];
            break;
        }
        if (age_of(ghosts, slots[i]) > age_of(ghosts, *to)) {
            to = &slots[i];
        }
    }
    ghosts->clocks[queue] += ((uint64_t)TURN_TICKS << 20) / blocks;
    uint32_t when = (uint32_t)(ghosts->clocks[queue] >> 20) & WHEN_MASK;
    *to = bits << 16 | (uint32_t)queue << WHEN_BITS | when;
}

static void learn(kvs_ghosts_t *ghosts, kvs_queue_t queue)
{
    if (queue == KVS_SMALL) {
        uint32_t more = ghosts->share + SHARE_STEP;
        ghosts->share = more < SHARE_MAX ? more : SHARE_MAX;
    } else {
        ghosts->share =
            ghosts->share > SHARE_MIN + SHARE_STEP ? ghosts->share - SHARE_STEP : SHARE_MIN;
    }
}

kvs_queue_t kvs_ghosts_admit(kvs_ghosts_t *ghosts, const as_key_t *key)
{
    uint32_t *slots = &ghosts->slots[bucket_of(ghosts, key)], bits = bits_of(key);
    for (uint32_t i = 0; i < WAYS; i++) {
        if (slots[i] >> 16 != bits) {
            continue;
        }
        uint32_t age = age_of(ghosts, slots[i]);
        kvs_queue_t queue = slots[i] >> WHEN_BITS & 1 ? KVS_MAIN : KVS_SMALL;
        slots[i] = 0;
        if (age >= LIFE_TICKS) {
            return KVS_SMALL;
        }
        ghosts->hits++;
        if (age < SOON_TICKS) {
            learn(ghosts, queue);
        }
        return KVS_MAIN;
    }
    return KVS_SMALL;
}

bool kvs_ghosts_has(const kvs_ghosts_t *ghosts, const as_key_t *key)
{
    const uint32_t *slots = &ghosts->slots[bucket_of(ghosts, key)];
    for (uint32_t i = 0; i < WAYS; i++) {
        if (slots[i] >> 16 == bits_of(key)) {
            return age_of(ghosts, slots[i]) < LIFE_TICKS;
        }
    }
    return false;
}

uint64_t kvs_ghosts_hits(const kvs_ghosts_t *ghosts)
{
    return ghosts->hits;
}

size_t kvs_ghosts_small_bytes(const kvs_ghosts_t *ghosts, size_t bytes)
{
    return bytes / SHARE_ONE * ghosts->share + bytes % SHARE_ONE * ghosts->share / SHARE_ONE;
}
