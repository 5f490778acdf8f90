// SPDX-License-Identifier: Apache-2.0
// Blocks with a time to live. Whoever is about to find one asks here first, so that it is a miss from
// its time on, to the microsecond; a walk beside the requests frees what nobody asks for.
//
// Times are of the store's clock: the loop's, and with a disk that of the wall as it was at the
// start, so that a block's time passes while its store is down. Who sets the wall clock moves it at
// the next start.
#include <string.h>
#include <time.h>

#include "kvstore/disk/disk.h"
#include "kvstore/store.h"

#define RAM_LOOKS  4096u // entries of one step of the walk
#define DISK_LOOKS 1024u

void kvs_expiry_init(kvs_store_t *store)
{
    struct timespec wall;
    if (store->options.disk_directory && clock_gettime(CLOCK_REALTIME, &wall) == 0) {
        store->epoch_us = (uint64_t)wall.tv_sec * 1000000 + (uint64_t)wall.tv_nsec / 1000 -
                          as_loop_now_us(store->options.loop);
    }
}

static uint64_t now(const kvs_store_t *store)
{
    return as_loop_now_us(store->options.loop) + store->epoch_us;
}

uint64_t kvs_expiry_at(const kvs_store_t *store, uint32_t ttl_ms)
{
    return ttl_ms ? now(store) + (uint64_t)ttl_ms * 1000 : 0;
}

uint64_t kvs_expiry_left_us(const kvs_store_t *store, uint64_t expires_us)
{
    uint64_t now_us = now(store);
    return expires_us > now_us ? expires_us - now_us : 0;
}

static bool is_over(const kvs_store_t *store, uint64_t expires_us)
{
    return expires_us != 0 && expires_us <= now(store);
}

// In RAM and on disk.
static void expire(kvs_store_t *store, as_key_t key, kvs_realm_t realm)
{
    kvs_tier_remove(store, &key, realm); // first: leaving RAM is told then
    kvs_block_t *block = kvs_index_find(store->index, &key, realm);
    if (block) {
        kvs_index_doom(store->index, block);
    }
    kvs_count(&store->counted.expired, KVS_METRIC_EVICTIONS_TTL, 1);
}

void kvs_expire_key(kvs_store_t *store, const as_key_t *key, kvs_realm_t realm)
{
    const kvs_block_t *block = kvs_index_find(store->index, key, realm);
    const kvs_spec_t *spec = block ? NULL : kvs_tier_find(store, key, realm);
    if (is_over(store, block ? block->expires_us : spec ? spec->expires_us : 0)) {
        expire(store, *key, realm);
    }
}

bool kvs_expire_some(kvs_store_t *store)
{
    uint32_t blocks_max = kvs_index_blocks_max(store->index);
    bool in_ram = kvs_index_mortals(store->index) > 0;
    for (uint32_t i = 0; in_ram && i < RAM_LOOKS && i < blocks_max; i++) {
        store->expiry_cursor = (store->expiry_cursor + 1) % blocks_max;
        const kvs_block_t *block = kvs_index_at(store->index, store->expiry_cursor);
        if (block->state == KVS_SEALED && is_over(store, block->expires_us)) {
            expire(store, block->key, kvs_block_realm(block));
        }
    }
    kvs_disk_stat_t disk;
    kvs_tier_stat(store, &disk);
    for (uint32_t i = 0; disk.mortal_blocks > 0 && i < DISK_LOOKS; i++) {
        const kvs_spec_t *spec = kvs_tier_next(store, &store->expiry_disk_cursor);
        if (!spec) {
            store->expiry_disk_cursor = 0;
            break;
        }
        if (is_over(store, spec->expires_us)) {
            expire(store, spec->key, kvs_realm_of(spec));
        }
    }
    return in_ram || disk.mortal_blocks > 0;
}
