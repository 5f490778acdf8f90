// SPDX-License-Identifier: Apache-2.0
// Accounts: how much of the pool each owner has, and how much it may have. The owner of a block is
// its namespace, of its tenant. A tenant has at most as many accounts as it leaves free, so that none
// can keep the others out with many namespaces of a small block each.
#ifndef KVS_ACCOUNT_H
#define KVS_ACCOUNT_H

#include <stdbool.h>
#include "common/block.h"
#include "common/status.h"

#define KVS_ACCOUNT_NONE UINT32_MAX
#define KVS_QUOTA_NONE   SIZE_MAX

typedef struct kvs_owner {
    as_key_t namespace_key;
    uint32_t tenant;
} kvs_owner_t;

// Written by account.c; `sealed`, `oldest` and `newest` by order.c, `passed` and `soft_too` by evict.c.
typedef struct kvs_account {
    kvs_owner_t owner;
    size_t bytes;       // of the pool, also of blocks that are being written or are condemned
    size_t quota_bytes; // its own; KVS_QUOTA_NONE: the default holds
    size_t goal_bytes;  // being evicted down to; KVS_QUOTA_NONE: not
    bool used;
    uint32_t blocks;                     // that the bytes are of
    uint32_t sealed;                     // blocks in the list of:
    uint32_t oldest, newest;             // SEALED blocks, in the order in which a quota takes them
    uint32_t next;                       // same bucket; next unused
    uint32_t goal_next;                  // of those being evicted
    uint32_t total;                      // of its tenant; NONE: it has none
    uint32_t sibling_next, sibling_prev; // accounts of that total
    uint32_t passed;                     // blocks in a row that eviction found held
    bool soft_too;                       // and then it takes soft guards
} kvs_account_t;

typedef struct kvs_accounts kvs_accounts_t;

// What all namespaces of a tenant have together, and may have.
typedef struct kvs_total {
    uint32_t tenant;
    bool used;
    size_t bytes, quota_bytes;
    uint32_t blocks;
    uint32_t first; // account
} kvs_total_t;

#define KVS_TOTALS_MAX 512u

// At most `max` owners at a time.
as_status_t kvs_accounts_alloc(uint32_t max, kvs_accounts_t **accounts_p) AS_MUST_USE;
void kvs_accounts_free(kvs_accounts_t *accounts); // NULL is fine
uint32_t kvs_accounts_max(const kvs_accounts_t *accounts);
kvs_account_t *kvs_account_at(kvs_accounts_t *accounts, uint32_t i); // may be unused
uint32_t kvs_account_find(const kvs_accounts_t *accounts, const kvs_owner_t *owner); // or NONE
// Whether a block of this owner can be charged: it has an account, or its tenant has fewer than it leaves to
// others. Quotas of operators may take the last ones.
bool kvs_account_may_open(const kvs_accounts_t *accounts, const kvs_owner_t *owner);
// Charges a block of `bytes`. AS_ERR_BUSY: it cannot be.
as_status_t kvs_account_charge(kvs_accounts_t *accounts, const kvs_owner_t *owner, size_t bytes,
                               uint32_t *account_p) AS_MUST_USE;
void kvs_account_refund(kvs_accounts_t *accounts, uint32_t account, size_t bytes);

// ---- quotas
void kvs_quota_set_default(kvs_accounts_t *accounts, size_t bytes); // KVS_QUOTA_NONE: no quota
// Its own quota; KVS_QUOTA_NONE: the default again.
as_status_t kvs_quota_set(kvs_accounts_t *accounts, const kvs_owner_t *owner,
                          size_t bytes) AS_MUST_USE;
// Of all namespaces of a tenant together; KVS_QUOTA_NONE: no quota. Looks at all accounts. AS_ERR_BUSY:
// KVS_TOTALS_MAX tenants have one.
as_status_t kvs_quota_set_total(kvs_accounts_t *accounts, uint32_t tenant,
                                size_t bytes) AS_MUST_USE;
const kvs_total_t *kvs_quota_total(const kvs_accounts_t *accounts, uint32_t tenant); // or NULL
// The totals there are: pass *cursor from 0. NULL at the end.
const kvs_total_t *kvs_quota_next_total(const kvs_accounts_t *accounts, uint32_t *cursor);
// Whether so many owners more could have quotas of their own.
bool kvs_accounts_have_room(const kvs_accounts_t *accounts, uint32_t more);
size_t kvs_quota_of(const kvs_accounts_t *accounts, uint32_t account); // also of NONE: the default
// The account is to be evicted down to `bytes`.
void kvs_quota_want(kvs_accounts_t *accounts, uint32_t account, size_t bytes);
uint32_t kvs_quota_wanted(const kvs_accounts_t *accounts);       // one of those, or NONE
void kvs_quota_done(kvs_accounts_t *accounts, uint32_t account); // it is as far as it gets

#endif
