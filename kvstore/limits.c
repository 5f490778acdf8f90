// SPDX-License-Identifier: Apache-2.0
// What an operator decides about blocks: pins, quotas of owners, and purging a namespace.
//
// A quota bounds what one owner has of the pool, or all owners of one tenant. Near it the owner's own blocks are evicted beside
// the requests, by the marks that the pool has too (shares of the quota here); a put that would go
// beyond it is told BUSY, and comes again. Nobody else's blocks go for it.
#include "common/assert.h"
#include "common/log.h"
#include "kvstore/disk/image.h"
#include "kvstore/evict.h"
#include "kvstore/store.h"

// ---- quotas

static size_t percent_of(size_t bytes, uint32_t percent)
{
    return bytes / 100 * percent + bytes % 100 * percent / 100;
}

static void evict_soon(kvs_store_t *store, uint32_t account, size_t goal_bytes)
{
    kvs_quota_want(kvs_index_accounts(store->index), account, goal_bytes);
    as_loop_post(store->options.loop, &store->quota_evict);
}

void kvs_quota_on_evict(void *ctx)
{
    kvs_store_t *store = ctx;
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    uint32_t account = kvs_quota_wanted(accounts);
    if (account == KVS_ACCOUNT_NONE) {
        return;
    }
    uint64_t evicted = 0;
    if (!kvs_evict_account(store->index, account, &evicted)) {
        kvs_quota_done(accounts, account);
    }
    kvs_count(&store->counted.quota_evictions, KVS_METRIC_EVICTIONS_QUOTA, evicted);
    kvs_store_gauge(store);
    if (kvs_quota_wanted(accounts) != KVS_ACCOUNT_NONE) {
        as_loop_post(store->options.loop, &store->quota_evict);
    }
}

// Each owner of the tenant gives its share, so that together they come to `goal_bytes`.
static void evict_total(kvs_store_t *store, const kvs_total_t *total, size_t goal_bytes)
{
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    double share = total->bytes > goal_bytes ? (double)goal_bytes / (double)total->bytes : 1;
    for (uint32_t at = total->first; share < 1 && at != KVS_ACCOUNT_NONE;) {
        kvs_account_t *account = kvs_account_at(accounts, at);
        evict_soon(store, at, (size_t)((double)account->bytes * share));
        at = account->sibling_next;
    }
}

static as_status_t total_room(kvs_store_t *store, uint32_t tenant, size_t bytes)
{
    const kvs_total_t *total = kvs_quota_total(kvs_index_accounts(store->index), tenant);
    if (!total) {
        return AS_OK;
    }
    if (bytes > total->quota_bytes) {
        return AS_ERR_LIMIT;
    }
    size_t most = total->quota_bytes - bytes;
    if (total->bytes <= most) {
        return AS_OK;
    }
    size_t low = percent_of(total->quota_bytes, store->options.evict_low_percent);
    evict_total(store, total, low < most ? low : most);
    return AS_ERR_BUSY;
}

static as_status_t own_room(kvs_store_t *store, const kvs_spec_t *spec, size_t bytes)
{
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    uint32_t account =
        kvs_account_find(accounts, &(kvs_owner_t){spec->namespace_key, spec->tenant});
    size_t quota = kvs_quota_of(accounts, account);
    if (quota == KVS_QUOTA_NONE) {
        return AS_OK;
    }
    if (bytes > quota) {
        return AS_ERR_LIMIT;
    }
    if (account == KVS_ACCOUNT_NONE || kvs_account_at(accounts, account)->bytes <= quota - bytes) {
        return AS_OK;
    }
    size_t low = percent_of(quota, store->options.evict_low_percent);
    evict_soon(store, account, low < quota - bytes ? low : quota - bytes);
    return AS_ERR_BUSY;
}

as_status_t kvs_quota_room(kvs_store_t *store, const kvs_spec_t *spec)
{
    size_t bytes = kvs_image_bytes(spec);
    const kvs_owner_t owner = {spec->namespace_key, spec->tenant};
    if (!kvs_account_may_open(kvs_index_accounts(store->index), &owner)) {
        return AS_ERR_BUSY; // what eviction takes would seldom be an owner's last
    }
    as_status_t status = own_room(store, spec, bytes);
    return status == AS_OK ? total_room(store, spec->tenant, bytes) : status;
}

static void total_watch(kvs_store_t *store, uint32_t tenant, uint32_t from_percent)
{
    const kvs_total_t *total = kvs_quota_total(kvs_index_accounts(store->index), tenant);
    if (total && total->bytes > percent_of(total->quota_bytes, from_percent)) {
        evict_total(store, total, percent_of(total->quota_bytes, store->options.evict_low_percent));
    }
}

void kvs_quota_watch(kvs_store_t *store, const kvs_block_t *block)
{
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    size_t quota = kvs_quota_of(accounts, block->account);
    if (quota != KVS_QUOTA_NONE && kvs_account_at(accounts, block->account)->bytes >
                                       percent_of(quota, store->options.evict_high_percent)) {
        evict_soon(store, block->account, percent_of(quota, store->options.evict_low_percent));
    }
    total_watch(store, block->tenant, store->options.evict_high_percent);
}

as_status_t kvs_store_set_total(kvs_store_t *store, uint32_t tenant, size_t bytes)
{
    as_status_t status = kvs_quota_set_total(kvs_index_accounts(store->index), tenant, bytes);
    total_watch(store, tenant, 100);
    return status;
}

as_status_t kvs_store_set_quota(kvs_store_t *store, const kvs_owner_t *owner, size_t bytes)
{
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    as_status_t status = kvs_quota_set(accounts, owner, bytes);
    uint32_t account = kvs_account_find(accounts, owner);
    size_t quota = kvs_quota_of(accounts, account);
    if (status == AS_OK && account != KVS_ACCOUNT_NONE && quota != KVS_QUOTA_NONE &&
        kvs_account_at(accounts, account)->bytes > quota) {
        evict_soon(store, account, percent_of(quota, store->options.evict_low_percent));
    }
    return status;
}

// ---- pins

as_status_t kvs_pin(kvs_store_t *store, kvs_block_t *block, kvs_guard_t guard)
{
    size_t most = percent_of(kvs_pool_bytes(store->pool), store->options.pin_percent);
    size_t hard = kvs_index_guarded_bytes(store->index, KVS_GUARD_HARD);
    bool more = guard == KVS_GUARD_HARD && block->guard != KVS_GUARD_HARD;
    if (more && (hard > most || kvs_block_bytes(block) > most - hard)) {
        return AS_ERR_LIMIT;
    }
    kvs_index_guard(store->index, block, guard);
    return AS_OK;
}

as_status_t kvs_store_pin(kvs_store_t *store, const as_key_t *key, uint32_t tenant,
                          kvs_guard_t guard)
{
    as_status_t status = AS_ERR_NOT_FOUND;
    for (uint32_t kind = AS_WIRE_FULL; kind <= AS_WIRE_SEALED; kind++) {
        kvs_block_t *block = kvs_index_find(store->index, key, kvs_realm(tenant, kind));
        if (block) {
            as_status_t one = kvs_pin(store, block, guard);
            status = status == AS_ERR_LIMIT ? status : one;
        }
    }
    kvs_store_gauge(store);
    return status;
}

uint64_t kvs_store_unpin_all(kvs_store_t *store)
{
    uint64_t unpinned = 0;
    kvs_block_t *block;
    while ((block = kvs_index_oldest(store->index, KVS_GUARDED)) != NULL) {
        kvs_index_guard(store->index, block, KVS_GUARD_NONE);
        unpinned++;
    }
    kvs_store_gauge(store);
    return unpinned;
}

// ---- purging

uint64_t kvs_store_purge(kvs_store_t *store, const kvs_owner_t *owner)
{
    uint64_t dropped = 0;
    uint32_t cursor = 0;
    kvs_drops_owner(store, owner);
    for (const kvs_spec_t *at; (at = kvs_tier_next(store, &cursor)) != NULL;) {
        kvs_spec_t spec = *at;
        if (spec.tenant == owner->tenant &&
            as_key_equal(&spec.namespace_key,
                         &owner->namespace_key)) { // first: leaving RAM is told then
            bool in_ram = kvs_index_find(store->index, &spec.key, kvs_realm_of(&spec)) != NULL;
            dropped += kvs_tier_remove(store, &spec.key, kvs_realm_of(&spec)) && !in_ram;
        }
    }
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    for (;;) { // the account may go with its last block
        uint32_t account = kvs_account_find(accounts, owner);
        kvs_block_t *block =
            account == KVS_ACCOUNT_NONE ? NULL : kvs_index_own_oldest(store->index, account);
        if (!block) {
            break;
        }
        kvs_tier_remove(store, &block->key, kvs_block_realm(block)); // also on its way there
        kvs_index_doom(store->index, block);
        dropped++;
    }
    kvs_count(&store->counted.purged, KVS_METRIC_EVICTIONS_PURGE, dropped);
    kvs_store_gauge(store);
    return dropped;
}
