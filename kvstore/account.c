// SPDX-License-Identifier: Apache-2.0
// Accounts, in slots of fixed size found by the owner's key. A slot is free again when no block is
// charged to it, it has no quota of its own and is not being evicted.
#include "kvstore/account.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/siphash.h"

#define NONE KVS_ACCOUNT_NONE

// How many accounts a tenant has; there is one where it has any.
typedef struct holder {
    uint32_t tenant, accounts;
    uint32_t next; // same bucket; next unused
} holder_t;

struct kvs_accounts {
    uint32_t max, mask;
    uint32_t unused, unused_count;
    uint32_t holder_unused;
    holder_t *holders;
    uint32_t *holder_buckets;
    uint32_t goal_first;
    size_t quota_bytes; // of those that have none of their own
    uint32_t *buckets;
    uint32_t total_end; // no total from here on is used
    kvs_total_t totals[KVS_TOTALS_MAX];
    kvs_account_t slots[];
};

as_status_t kvs_accounts_alloc(uint32_t max, kvs_accounts_t **accounts_p)
{
    AS_ASSERT(max > 0 && max <= 1u << 30);
    uint32_t buckets = 1;
    while (buckets < max) {
        buckets *= 2;
    }
    kvs_accounts_t *accounts =
        as_mem_zalloc(1, sizeof(*accounts) + (size_t)max * sizeof(kvs_account_t));
    if (!accounts) {
        return AS_ERR_NO_MEMORY;
    }
    accounts->buckets = as_mem_alloc(buckets * sizeof(uint32_t));
    accounts->holder_buckets = as_mem_alloc(buckets * sizeof(uint32_t));
    accounts->holders = as_mem_zalloc(max, sizeof(holder_t));
    if (!accounts->buckets || !accounts->holder_buckets || !accounts->holders) {
        kvs_accounts_free(accounts);
        return AS_ERR_NO_MEMORY;
    }
    memset(accounts->buckets, 0xff, buckets * sizeof(uint32_t));
    memset(accounts->holder_buckets, 0xff, buckets * sizeof(uint32_t));
    accounts->max = accounts->unused_count = max;
    accounts->mask = buckets - 1;
    accounts->goal_first = NONE;
    accounts->quota_bytes = KVS_QUOTA_NONE;
    for (uint32_t i = 0; i < max; i++) {
        accounts->slots[i].next = accounts->holders[i].next = i + 1 < max ? i + 1 : NONE;
    }
    *accounts_p = accounts;
    return AS_OK;
}

void kvs_accounts_free(kvs_accounts_t *accounts)
{
    if (accounts) {
        as_mem_free(accounts->buckets);
        as_mem_free(accounts->holder_buckets);
        as_mem_free(accounts->holders);
        as_mem_free(accounts);
    }
}

uint32_t kvs_accounts_max(const kvs_accounts_t *accounts)
{
    return accounts->max;
}

kvs_account_t *kvs_account_at(kvs_accounts_t *accounts, uint32_t i)
{
    AS_ASSERT(i < accounts->max);
    return &accounts->slots[i];
}

static uint32_t *bucket_of(const kvs_accounts_t *accounts, const kvs_owner_t *owner)
{
    uint8_t bytes[sizeof(owner->tenant) + sizeof(owner->namespace_key)];
    memcpy(bytes, &owner->tenant, sizeof(owner->tenant));
    memcpy(bytes + sizeof(owner->tenant), &owner->namespace_key, sizeof(owner->namespace_key));
    uint64_t hash = as_siphash_own(bytes, sizeof(bytes));
    return &accounts->buckets[hash & accounts->mask];
}

static bool is_same(const kvs_owner_t *a, const kvs_owner_t *b)
{
    return a->tenant == b->tenant && as_key_equal(&a->namespace_key, &b->namespace_key);
}

uint32_t kvs_account_find(const kvs_accounts_t *accounts, const kvs_owner_t *owner)
{
    uint32_t at = *bucket_of(accounts, owner);
    while (at != NONE && !is_same(&accounts->slots[at].owner, owner)) {
        at = accounts->slots[at].next;
    }
    return at;
}

// ---- totals of tenants

static uint32_t total_find(const kvs_accounts_t *accounts, uint32_t tenant)
{
    for (uint32_t i = 0; i < accounts->total_end; i++) {
        if (accounts->totals[i].used && accounts->totals[i].tenant == tenant) {
            return i;
        }
    }
    return NONE;
}

static void total_join(kvs_accounts_t *accounts, uint32_t at, uint32_t id)
{
    kvs_account_t *account = &accounts->slots[at];
    account->total = id;
    if (id == NONE) {
        return;
    }
    kvs_total_t *total = &accounts->totals[id];
    account->sibling_prev = NONE;
    account->sibling_next = total->first;
    if (total->first != NONE) {
        accounts->slots[total->first].sibling_prev = at;
    }
    total->first = at;
    total->bytes += account->bytes;
    total->blocks += account->blocks;
}

static void total_leave(kvs_accounts_t *accounts, uint32_t at)
{
    const kvs_account_t *account = &accounts->slots[at];
    if (account->total == NONE) {
        return;
    }
    kvs_total_t *total = &accounts->totals[account->total];
    uint32_t prev = account->sibling_prev, next = account->sibling_next;
    *(prev == NONE ? &total->first : &accounts->slots[prev].sibling_next) = next;
    if (next != NONE) {
        accounts->slots[next].sibling_prev = prev;
    }
    total->bytes -= account->bytes;
    total->blocks -= account->blocks;
}

// A block more, or one less, where `bytes` and `blocks` are the negative of it.
static void count(kvs_accounts_t *accounts, kvs_account_t *account, size_t bytes, uint32_t blocks)
{
    account->bytes += bytes;
    account->blocks += blocks;
    if (account->total != NONE) {
        accounts->totals[account->total].bytes += bytes;
        accounts->totals[account->total].blocks += blocks;
    }
}

as_status_t kvs_quota_set_total(kvs_accounts_t *accounts, uint32_t tenant, size_t bytes)
{
    uint32_t id = total_find(accounts, tenant);
    if (id != NONE) {
        accounts->totals[id].quota_bytes = bytes;
        accounts->totals[id].used = bytes != KVS_QUOTA_NONE;
        for (uint32_t at; bytes == KVS_QUOTA_NONE && (at = accounts->totals[id].first) != NONE;) {
            total_leave(accounts, at);
            accounts->slots[at].total = NONE;
        }
        return AS_OK;
    }
    if (bytes == KVS_QUOTA_NONE) {
        return AS_OK;
    }
    for (id = 0; id < KVS_TOTALS_MAX && accounts->totals[id].used;) {
        id++;
    }
    if (id == KVS_TOTALS_MAX) {
        return AS_ERR_BUSY;
    }
    accounts->total_end = id < accounts->total_end ? accounts->total_end : id + 1;
    accounts->totals[id] =
        (kvs_total_t){.tenant = tenant, .used = true, .quota_bytes = bytes, .first = NONE};
    for (uint32_t at = 0; at < accounts->max; at++) {
        if (accounts->slots[at].used && accounts->slots[at].owner.tenant == tenant) {
            total_join(accounts, at, id);
        }
    }
    return AS_OK;
}

const kvs_total_t *kvs_quota_total(const kvs_accounts_t *accounts, uint32_t tenant)
{
    uint32_t id = total_find(accounts, tenant);
    return id == NONE ? NULL : &accounts->totals[id];
}

const kvs_total_t *kvs_quota_next_total(const kvs_accounts_t *accounts, uint32_t *cursor)
{
    while (*cursor < accounts->total_end) {
        const kvs_total_t *total = &accounts->totals[(*cursor)++];
        if (total->used) {
            return total;
        }
    }
    return NULL;
}

bool kvs_accounts_have_room(const kvs_accounts_t *accounts, uint32_t more)
{
    return more <= accounts->unused_count;
}

// ---- how many a tenant has

// Where the number of the tenant's holder is, or NONE and would be.
static uint32_t *holder_link(const kvs_accounts_t *accounts, uint32_t tenant)
{
    uint64_t hash = as_siphash_own(&tenant, sizeof(tenant));
    uint32_t *link = &accounts->holder_buckets[hash & accounts->mask];
    while (*link != NONE && accounts->holders[*link].tenant != tenant) {
        link = &accounts->holders[*link].next;
    }
    return link;
}

static void holder_add(kvs_accounts_t *accounts, uint32_t tenant)
{
    uint32_t *link = holder_link(accounts, tenant);
    if (*link == NONE) {
        uint32_t at = accounts->holder_unused; // there are as many as accounts
        accounts->holder_unused = accounts->holders[at].next;
        accounts->holders[at] = (holder_t){.tenant = tenant, .next = NONE};
        *link = at;
    }
    accounts->holders[*link].accounts++;
}

static void holder_remove(kvs_accounts_t *accounts, uint32_t tenant)
{
    uint32_t *link = holder_link(accounts, tenant), at = *link;
    AS_ASSERT(at != NONE && accounts->holders[at].accounts > 0);
    if (--accounts->holders[at].accounts == 0) {
        *link = accounts->holders[at].next;
        accounts->holders[at].next = accounts->holder_unused;
        accounts->holder_unused = at;
    }
}

bool kvs_account_may_open(const kvs_accounts_t *accounts, const kvs_owner_t *owner)
{
    if (kvs_account_find(accounts, owner) != NONE) {
        return true;
    }
    uint32_t at = *holder_link(accounts, owner->tenant);
    return (at == NONE ? 0 : accounts->holders[at].accounts) < accounts->unused_count;
}

// ---- accounts

static uint32_t open(kvs_accounts_t *accounts, const kvs_owner_t *owner)
{
    uint32_t at = kvs_account_find(accounts, owner);
    if (at != NONE || accounts->unused == NONE) {
        return at;
    }
    at = accounts->unused;
    kvs_account_t *account = &accounts->slots[at];
    accounts->unused = account->next;
    accounts->unused_count--;
    holder_add(accounts, owner->tenant);
    uint32_t *bucket = bucket_of(accounts, owner);
    *account = (kvs_account_t){.owner = *owner,
                               .used = true,
                               .quota_bytes = KVS_QUOTA_NONE,
                               .goal_bytes = KVS_QUOTA_NONE,
                               .oldest = NONE,
                               .newest = NONE,
                               .next = *bucket,
                               .goal_next = NONE};
    *bucket = at;
    total_join(accounts, at, total_find(accounts, owner->tenant));
    return at;
}

static void close_if_unused(kvs_accounts_t *accounts, uint32_t at)
{
    kvs_account_t *account = &accounts->slots[at];
    if (account->blocks > 0 || account->quota_bytes != KVS_QUOTA_NONE ||
        account->goal_bytes != KVS_QUOTA_NONE) {
        return;
    }
    AS_ASSERT(account->bytes == 0 && account->sealed == 0);
    uint32_t *link = bucket_of(accounts, &account->owner);
    while (*link != at) {
        link = &accounts->slots[*link].next;
    }
    *link = account->next;
    total_leave(accounts, at);
    account->used = false;
    account->next = accounts->unused;
    accounts->unused = at;
    accounts->unused_count++;
    holder_remove(accounts, account->owner.tenant);
}

as_status_t kvs_account_charge(kvs_accounts_t *accounts, const kvs_owner_t *owner, size_t bytes,
                               uint32_t *account_p)
{
    uint32_t at = kvs_account_may_open(accounts, owner) ? open(accounts, owner) : NONE;
    if (at == NONE) {
        return AS_ERR_BUSY;
    }
    count(accounts, &accounts->slots[at], bytes, 1);
    *account_p = at;
    return AS_OK;
}

void kvs_account_refund(kvs_accounts_t *accounts, uint32_t at, size_t bytes)
{
    kvs_account_t *account = kvs_account_at(accounts, at);
    AS_ASSERT(account->bytes >= bytes && account->blocks > 0);
    count(accounts, account, (size_t)0 - bytes, UINT32_MAX);
    close_if_unused(accounts, at);
}

// ---- quotas

void kvs_quota_set_default(kvs_accounts_t *accounts, size_t bytes)
{
    accounts->quota_bytes = bytes;
}

as_status_t kvs_quota_set(kvs_accounts_t *accounts, const kvs_owner_t *owner, size_t bytes)
{
    bool is_default = bytes == KVS_QUOTA_NONE;
    uint32_t at = is_default ? kvs_account_find(accounts, owner) : open(accounts, owner);
    if (at == NONE) {
        return is_default ? AS_OK : AS_ERR_BUSY;
    }
    accounts->slots[at].quota_bytes = bytes;
    close_if_unused(accounts, at);
    return AS_OK;
}

size_t kvs_quota_of(const kvs_accounts_t *accounts, uint32_t at)
{
    bool own = at != NONE && accounts->slots[at].quota_bytes != KVS_QUOTA_NONE;
    return own ? accounts->slots[at].quota_bytes : accounts->quota_bytes;
}

void kvs_quota_want(kvs_accounts_t *accounts, uint32_t at, size_t bytes)
{
    kvs_account_t *account = kvs_account_at(accounts, at);
    AS_ASSERT(bytes != KVS_QUOTA_NONE);
    if (account->goal_bytes == KVS_QUOTA_NONE) {
        account->goal_next = accounts->goal_first;
        accounts->goal_first = at;
        account->goal_bytes = bytes;
        account->passed = 0;
        account->soft_too = false;
    } else if (bytes < account->goal_bytes) {
        account->goal_bytes = bytes;
    }
}

uint32_t kvs_quota_wanted(const kvs_accounts_t *accounts)
{
    return accounts->goal_first;
}

void kvs_quota_done(kvs_accounts_t *accounts, uint32_t at)
{
    AS_ASSERT(at == accounts->goal_first);
    kvs_account_t *account = kvs_account_at(accounts, at);
    accounts->goal_first = account->goal_next;
    account->goal_next = NONE;
    account->goal_bytes = KVS_QUOTA_NONE;
    close_if_unused(accounts, at);
}
