// SPDX-License-Identifier: Apache-2.0
// Promotion: blocks that are on disk only are brought into RAM, for a LOCATE that asks to read them.
//
// They are brought in the order of its keys, so what comes is the beginning of a chain; each makes room as
// a put does. What is here stays until the LOCATE is answered: its own blocks do not go for each other.
// Where there is no room, or as many as may be are on their way, the rest waits (locate.c).
//
// A promotion takes room in the pool as a writer does: RESERVED, FILLING while the disk's thread
// reads and checks it, then SEALED.
#include <string.h>

#include "common/assert.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "kvstore/locate.h"

typedef struct promotion {
    kvs_store_t *store;
    kvs_block_t *block;
    uint64_t waiting[KVS_LOCATES_MAX / 64]; // a bit for each LOCATE that waits for it
    bool unwanted;                          // the block was removed meanwhile
    bool restoring;                         // for the scrubber
} promotion_t;

struct kvs_promotions {
    as_pool_t *pool;
    promotion_t *open[KVS_PROMOTIONS_MAX];
    uint32_t open_count;
};

as_status_t kvs_promotions_alloc(kvs_store_t *store)
{
    if (!store->tier) {
        return AS_OK;
    }
    store->promotions = as_mem_zalloc(1, sizeof(*store->promotions));
    return store->promotions ? as_pool_alloc("kvs promotions", sizeof(promotion_t),
                                             KVS_PROMOTIONS_MAX, &store->promotions->pool)
                             : AS_ERR_NO_MEMORY;
}

void kvs_promotions_free(kvs_store_t *store)
{
    if (store->promotions) {
        as_pool_free(store->promotions->pool);
        as_mem_free(store->promotions);
        store->promotions = NULL;
    }
}

// ---- one block

static void forget(kvs_promotions_t *promotions, promotion_t *promotion)
{
    uint32_t at = 0;
    while (promotions->open[at] != promotion) {
        at++;
    }
    promotions->open[at] = promotions->open[--promotions->open_count];
    as_pool_give(promotions->pool, promotion);
}

static void hold(kvs_locate_t *locate, kvs_block_t *block)
{
    AS_ASSERT(locate->held_count < AS_WIRE_KEYS_MAX);
    kvs_index_pin(locate->conn->store->index, block);
    locate->held[locate->held_count++] = block;
}

// Those that wait for it need wait no longer; `block`: it is here, or NULL.
static void tell(kvs_store_t *store, const uint64_t *waiting, kvs_block_t *block)
{
    for (uint32_t word = 0; word < KVS_LOCATES_MAX / 64; word++) {
        for (uint64_t bits = waiting[word]; bits; bits &= bits - 1) {
            kvs_locate_t *locate =
                &store->locates->slots[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            AS_ASSERT(locate->promoting > 0);
            locate->promoting--;
            if (block) {
                hold(locate, block);
            }
        }
    }
}

static void on_promoted(void *ctx, as_status_t status)
{
    promotion_t promotion = *(promotion_t *)ctx;
    kvs_store_t *store = promotion.store;
    kvs_block_t *block = promotion.block;
    bool is_here = status == AS_OK && !promotion.unwanted;
    kvs_index_unpin(store->index, block);
    forget(store->promotions, ctx);
    if (is_here) {
        kvs_index_seal(store->index, block, as_loop_now_us(store->options.loop));
        kvs_count(&store->counted.promotions, KVS_METRIC_PROMOTIONS, 1);
        if (promotion.restoring) {
            kvs_scrub_restored(store);
        }
    } else {
        kvs_index_doom(store->index, block);
    }
    tell(store, promotion.waiting, is_here ? block : NULL);
    kvs_locates_wake(store);
}

static promotion_t *promotion_of(const kvs_store_t *store, const as_key_t *key, kvs_realm_t realm)
{
    for (uint32_t i = 0; store->promotions && i < store->promotions->open_count; i++) {
        promotion_t *promotion = store->promotions->open[i];
        if (kvs_block_realm(promotion->block) == realm &&
            as_key_equal(&promotion->block->key, key)) {
            return promotion;
        }
    }
    return NULL;
}

// As a put does.
static as_status_t reserve(kvs_store_t *store, const kvs_spec_t *spec, kvs_block_t **block_p)
{
    if (kvs_image_bytes(spec) > kvs_pool_bytes(store->pool)) {
        return AS_ERR_LIMIT;
    }
    as_status_t status = kvs_quota_room(store, spec);
    return status == AS_OK ? kvs_store_reserve(store, spec, block_p) : status;
}

// AS_ERR_BUSY: there is no room now, or too many are on their way; AS_ERR_LIMIT: there never is;
// AS_ERR_EXISTS: a writer brings it.
static as_status_t promote(kvs_store_t *store, const kvs_spec_t *found, promotion_t **promotion_p)
{
    kvs_promotions_t *promotions = store->promotions;
    kvs_spec_t spec = *found; // the call below may move it
    kvs_block_t *block;
    promotion_t *promotion = as_pool_take(promotions->pool);
    if (!promotion) {
        return AS_ERR_BUSY;
    }
    as_status_t status = reserve(store, &spec, &block);
    if (status != AS_OK) {
        as_pool_give(promotions->pool, promotion);
        return status;
    }
    kvs_quota_watch(store, block);
    kvs_index_fill(store->index, block);
    kvs_index_pin(store->index, block);
    *promotion = (promotion_t){.store = store, .block = block};
    promotions->open[promotions->open_count++] = promotion;
    status = kvs_disk_read(kvs_tier_disk(store), &spec, kvs_index_extent(store->index, block, 0),
                           on_promoted, promotion);
    if (status != AS_OK) {
        kvs_index_unpin(store->index, block);
        forget(promotions, promotion);
        kvs_index_doom(store->index, block);
        return status;
    }
    kvs_store_evict_soon(store, 0);
    *promotion_p = promotion;
    return AS_OK;
}

void kvs_tier_restore(kvs_store_t *store, const kvs_spec_t *spec)
{
    const kvs_spec_t *found = kvs_tier_find(store, &spec->key, kvs_realm_of(spec));
    promotion_t *promotion;
    if (found && promote(store, found, &promotion) == AS_OK) { // else when it is asked for
        promotion->restoring = true;
    }
}

void kvs_promote_remove(kvs_store_t *store, const as_key_t *key, kvs_realm_t realm)
{
    promotion_t *promotion = promotion_of(store, key, realm);
    if (promotion) {
        promotion->unwanted = true;
    }
}

// ---- for a LOCATE

void kvs_promote_begin(kvs_locate_t *locate)
{
    const kvs_store_t *store = locate->conn->store;
    kvs_realm_t realm = kvs_locate_realm(locate);
    locate->next_key = locate->header.key_count;
    if (!store->tier || locate->header.lease_ms == 0) { // without a lease it is only a look
        return;
    }
    for (uint32_t i = 0; i < locate->header.key_count; i++) {
        const as_key_t *key = &locate->keys[i];
        kvs_expire_key(locate->conn->store, key, realm);
        locate->cold |=
            !kvs_index_find(store->index, key, realm) && kvs_tier_find(store, key, realm);
    }
    for (uint32_t i = 0; locate->cold && i < locate->header.key_count; i++) {
        kvs_block_t *block = kvs_index_find(store->index, &locate->keys[i], realm);
        locate->sought[i] = block ? KVS_SOUGHT_HELD : KVS_SOUGHT_LATER;
        locate->next_key = 0;
        if (block) {
            hold(locate, block);
        }
    }
}

// False: it is on disk, and there is no room for it now.
static bool bring(kvs_locate_t *locate, uint32_t i)
{
    kvs_store_t *store = locate->conn->store;
    uint32_t slot = (uint32_t)(locate - store->locates->slots);
    const as_key_t *key = &locate->keys[i];
    kvs_block_t *block = kvs_index_find(store->index, key, kvs_locate_realm(locate));
    if (block) {
        hold(locate, block);
        locate->sought[i] = KVS_SOUGHT_HELD;
        return true;
    }
    const kvs_spec_t *found = kvs_tier_find(store, key, kvs_locate_realm(locate));
    promotion_t *promotion = promotion_of(store, key, kvs_locate_realm(locate));
    if (!promotion && found) {
        as_status_t status = promote(store, found, &promotion);
        if (status == AS_ERR_BUSY) {
            return false;
        }
        if (status == AS_ERR_LIMIT) {
            locate->sought[i] = KVS_SOUGHT_IN_VAIN;
        }
    }
    if (promotion && !(promotion->waiting[slot / 64] & 1ull << slot % 64)) {
        promotion->waiting[slot / 64] |= 1ull << slot % 64;
        locate->promoting++;
    }
    return true;
}

kvs_promoted_t kvs_promote_some(kvs_locate_t *locate)
{
    for (; locate->next_key < locate->header.key_count; locate->next_key++) {
        if (locate->sought[locate->next_key] != KVS_SOUGHT_HELD &&
            !bring(locate, locate->next_key)) {
            return KVS_PROMOTED_BLOCKED;
        }
    }
    return locate->promoting > 0 ? KVS_PROMOTED_COMING : KVS_PROMOTED_ALL;
}

bool kvs_promotions_are_full(const kvs_store_t *store)
{
    return store->promotions && store->promotions->open_count == KVS_PROMOTIONS_MAX;
}

bool kvs_promote_is_to_come(const kvs_locate_t *locate, uint32_t i)
{
    return locate->cold && locate->sought[i] != KVS_SOUGHT_IN_VAIN &&
           kvs_tier_find(locate->conn->store, &locate->keys[i], kvs_locate_realm(locate));
}

void kvs_promote_end(kvs_locate_t *locate)
{
    kvs_store_t *store = locate->conn->store;
    uint32_t slot = (uint32_t)(locate - store->locates->slots);
    for (uint32_t i = 0; locate->promoting > 0 && i < store->promotions->open_count; i++) {
        store->promotions->open[i]->waiting[slot / 64] &= ~(1ull << slot % 64);
    }
    locate->promoting = 0;
    while (locate->held_count > 0) {
        kvs_index_unpin(store->index, locate->held[--locate->held_count]);
    }
}
