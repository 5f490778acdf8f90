// SPDX-License-Identifier: Apache-2.0
// The admin service: figures, a listing in key order, forgetting blocks, pins and quotas. Handlers
// answer at once, but for Drop, which waits until the disk has forgotten too.
#include <string.h>

#include "common/log.h"
#include "common/rpc.h"
#include "common/rpc_peer.h"
#include "kvstore/store.h"
#include "proto/kvstore.pb-c.h"

#define LIST_MAX         1000u // blocks of one page, and accounts
#define KEYS_MAX         16384u
#define KVS_DRAIN_MS_MAX 86400000u
#define TELL_US          1000000u // between two lines in the log about denials

// The service is the first member, so that a handler finds the rest from the pointer that it is
// given.
typedef struct kvs_admin {
    Assay__Store_Service service;
    kvs_store_t *store;
    bool stopped; // nobody is answered any more
    as_log_due_t denials_due;
    uint32_t page[LIST_MAX + 1]; // ids of the index, in key order
    Assay__StoreBlock blocks[LIST_MAX];
    Assay__StoreBlock *pointers[LIST_MAX];
    Assay__StoreAccount accounts[LIST_MAX];
    Assay__StoreAccount *account_pointers[LIST_MAX];
} kvs_admin_t;

static void serve_stat(Assay__Store_Service *service, const Assay__StoreStatRequest *request,
                       Assay__StoreStatReply_Closure closure, void *closure_data)
{
    (void)request;
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    Assay__StoreStatReply reply = ASSAY__STORE_STAT_REPLY__INIT;
    reply.node_id = store->node_id;
    reply.data_address = (char *)(uintptr_t)kvs_store_address(store);
    reply.ram_bytes_used = stat.ram_bytes_used;
    reply.ram_bytes_max = stat.ram_bytes_max;
    reply.blocks = stat.blocks;
    reply.leases = stat.leases;
    reply.pins = stat.pins;
    reply.reservations = stat.reservations;
    reply.hits = stat.hits;
    reply.misses = stat.misses;
    reply.bytes_read = stat.bytes_read;
    reply.bytes_written = stat.bytes_written;
    reply.evictions = stat.evictions;
    reply.connections = stat.connections;
    reply.quota_evictions = stat.quota_evictions;
    reply.purged = stat.purged;
    reply.expired = stat.expired;
    reply.ghost_hits = stat.ghost_hits;
    reply.soft_pinned_bytes = stat.soft_bytes;
    reply.hard_pinned_bytes = stat.hard_bytes;
    reply.disk_blocks = stat.disk_blocks;
    reply.disk_bytes_used = stat.disk_bytes_used;
    reply.disk_bytes_max = stat.disk_bytes_max;
    reply.promotions = stat.promotions;
    reply.disk_read_only = stat.disk_read_only;
    reply.conflicts = stat.conflicts;
    reply.scrub_passes = stat.scrub_passes;
    reply.scrub_bytes = stat.scrub_bytes;
    reply.scrub_bad_ram = stat.scrub_bad_ram;
    reply.scrub_bad_disk = stat.scrub_bad_disk;
    reply.scrub_restored = stat.scrub_restored;
    reply.repaired_blocks = stat.repaired_blocks;
    reply.repaired_bytes = stat.repaired_bytes;
    reply.repair_pending = stat.repair_pending;
    closure(&reply, closure_data);
}

// By key, then by tenant.
static int order(const kvs_block_t *a, const kvs_block_t *b)
{
    int by_key = memcmp(a->key.bytes, b->key.bytes, sizeof(a->key.bytes));
    return by_key ? by_key : (a->tenant > b->tenant) - (a->tenant < b->tenant);
}

// Puts block `id` into its place among the `count` smallest so far, at most `limit`.
static uint32_t page_insert(kvs_admin_t *admin, uint32_t count, uint32_t limit, uint32_t id)
{
    const kvs_index_t *index = admin->store->index;
    const kvs_block_t *block = kvs_index_at(index, id);
    if (count == limit) {
        if (order(block, kvs_index_at(index, admin->page[count - 1])) >= 0) {
            return count;
        }
        count--;
    }
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (order(kvs_index_at(index, admin->page[middle]), block) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(&admin->page[low + 1], &admin->page[low], (count - low) * sizeof(admin->page[0]));
    admin->page[low] = id;
    return count + 1;
}

static ProtobufCBinaryData of_key(const as_key_t *key)
{
    return (ProtobufCBinaryData){sizeof(*key), (uint8_t *)(uintptr_t)key->bytes};
}

static void describe(const kvs_store_t *store, const kvs_block_t *block, Assay__StoreBlock *to)
{
    uint64_t now_us = as_loop_now_us(store->options.loop);
    assay__store_block__init(to);
    to->key = of_key(&block->key);
    to->tenant = block->tenant;
    to->parent = of_key(kvs_index_parent_key(store->index, block));
    to->tokens = block->tokens;
    to->bytes = kvs_block_bytes(block);
    to->uses = block->uses;
    to->leases = block->leases;
    to->namespace_key = of_key(&kvs_index_owner(store->index, block)->namespace_key);
    to->pin = (Assay__PinLevel)block->guard;
    to->expires_in_us = kvs_expiry_left_us(store, block->expires_us);
    to->age_us = now_us - block->sealed_us;
}

static void serve_list(Assay__Store_Service *service, const Assay__StoreListRequest *request,
                       Assay__StoreListReply_Closure closure, void *closure_data)
{
    kvs_admin_t *admin = (kvs_admin_t *)service;
    kvs_store_t *store = admin->store;
    kvs_block_t after = {.tenant = request->after_tenant};
    if (request->after.len != 0 && request->after.len != sizeof(after.key)) {
        as_rpc_fail((ProtobufCClosure)closure, closure_data, AS_ERR_INVALID,
                    "after must be empty or a key of 32 bytes");
        return;
    }
    if (request->after.len > 0) {
        memcpy(after.key.bytes, request->after.data, sizeof(after.key));
    }
    uint32_t limit = request->limit == 0 || request->limit > LIST_MAX ? LIST_MAX : request->limit;
    uint32_t count = 0;
    for (uint32_t id = 0; id < kvs_index_blocks_max(store->index); id++) {
        const kvs_block_t *block = kvs_index_at(store->index, id);
        bool wanted = block->state == KVS_SEALED && block->kind == AS_WIRE_FULL &&
                      (request->after.len == 0 || order(block, &after) > 0);
        if (wanted) {
            count =
                page_insert(admin, count, limit + 1, id); // one more than asked for: is there more?
        }
    }
    Assay__StoreListReply reply = ASSAY__STORE_LIST_REPLY__INIT;
    reply.more = count > limit;
    reply.n_blocks = count > limit ? limit : count;
    reply.blocks = admin->pointers;
    for (uint32_t i = 0; i < reply.n_blocks; i++) {
        describe(store, kvs_index_at(store->index, admin->page[i]), &admin->blocks[i]);
        admin->pointers[i] = &admin->blocks[i];
    }
    closure(&reply, closure_data);
}

// The texts are of the caller's mistakes; NULL: the keys are sound.
static const char *keys_fault(const ProtobufCBinaryData *keys, size_t count)
{
    if (count > KEYS_MAX) {
        return "more than 16384 keys";
    }
    for (size_t i = 0; i < count; i++) {
        if (keys[i].len != sizeof(as_key_t)) {
            return "a key has 32 bytes";
        }
    }
    return NULL;
}

// Without keys all blocks are meant: nobody is to lose others' for having named a tenant.
static const char *all_fault(size_t key_count, uint32_t tenant)
{
    return key_count == 0 && tenant != 0
               ? "without keys the blocks of all tenants are meant: tenant "
                 "must not be given"
               : NULL;
}

static as_key_t key_of(const ProtobufCBinaryData *bytes)
{
    as_key_t key;
    memcpy(key.bytes, bytes->data, sizeof(key));
    return key;
}

// One line for many denials: who is denied may come again and again.
static void tell_denied(kvs_admin_t *admin)
{
    uint64_t untold, now_us = as_loop_now_us(admin->store->options.loop);
    if (as_log_is_due(&admin->denials_due, now_us, TELL_US, &untold)) {
        AS_WARN("kvstore",
                "denied: a change that was asked for by nobody of --operator (and %llu more since "
                "the line before)",
                (unsigned long long)untold);
    }
}

// True: it is no operator who asks, and was told.
static bool is_denied(void *service, ProtobufCClosure closure, void *closure_data)
{
    bool denied = !as_rpc_is_operator(closure_data);
    if (denied) {
        tell_denied(service);
        as_rpc_fail(closure, closure_data, AS_ERR_DENIED,
                    "the certificate is no operator's: see the store's --operator");
    }
    return denied;
}

static void refuse(ProtobufCClosure closure, void *closure_data, const char *text)
{
    as_rpc_fail(closure, closure_data, AS_ERR_INVALID, text);
}

typedef struct drop {
    const kvs_admin_t *admin;
    Assay__StoreDropReply_Closure closure;
    void *closure_data;
    uint64_t dropped;
} drop_t;

static void drop_answer(const drop_t *drop, as_status_t status)
{
    Assay__StoreDropReply reply = ASSAY__STORE_DROP_REPLY__INIT;
    reply.dropped = drop->dropped;
    reply.not_on_disk = status != AS_OK;
    if (!drop->admin->stopped) {
        drop->closure(&reply, drop->closure_data);
    }
}

static void on_drop_settled(void *ctx, as_status_t status)
{
    drop_answer(ctx, status);
    as_mem_free(ctx);
}

// Answers when the blocks cannot come back.
static void drop_settle(const drop_t *from)
{
    drop_t *drop = as_mem_alloc(sizeof(*drop));
    as_status_t status = AS_ERR_NO_MEMORY;
    if (drop) {
        *drop = *from;
        status = kvs_tier_settle(from->admin->store, on_drop_settled, drop);
    }
    if (status != AS_OK) {
        as_mem_free(drop);
        drop_answer(from, status == AS_ERR_UNSUPPORTED ? AS_OK : status);
    }
}

static void serve_drop(Assay__Store_Service *service, const Assay__StoreDropRequest *request,
                       Assay__StoreDropReply_Closure closure, void *closure_data)
{
    if (is_denied(service, (ProtobufCClosure)closure, closure_data)) {
        return;
    }
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    const char *fault = keys_fault(request->keys, request->n_keys);
    if (!fault && request->namespace_key.len > 0 &&
        (request->namespace_key.len != sizeof(as_key_t) || request->n_keys > 0)) {
        fault = "namespace_key has 32 bytes and comes without keys";
    } else if (!fault && request->namespace_key.len == 0) {
        fault = all_fault(request->n_keys, request->tenant);
    }
    if (fault) {
        refuse((ProtobufCClosure)closure, closure_data, fault);
        return;
    }
    drop_t drop = {(const kvs_admin_t *)service, closure, closure_data, 0};
    if (request->namespace_key.len > 0) {
        kvs_owner_t owner = {key_of(&request->namespace_key), request->tenant};
        drop.dropped = kvs_store_purge(store, &owner);
    } else if (request->n_keys == 0) {
        drop.dropped = kvs_store_drop_all(store);
    }
    for (size_t i = 0; i < request->n_keys; i++) {
        as_key_t key = key_of(&request->keys[i]);
        drop.dropped += kvs_store_drop(store, &key, request->tenant);
    }
    drop_settle(&drop);
}

static void serve_pin(Assay__Store_Service *service, const Assay__StorePinRequest *request,
                      Assay__StorePinReply_Closure closure, void *closure_data)
{
    if (is_denied(service, (ProtobufCClosure)closure, closure_data)) {
        return;
    }
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    const char *fault = keys_fault(request->keys, request->n_keys);
    if (request->level != ASSAY__PIN_LEVEL__PIN_LEVEL_SOFT &&
        request->level != ASSAY__PIN_LEVEL__PIN_LEVEL_HARD) {
        fault = "level is soft or hard";
    }
    if (fault) {
        refuse((ProtobufCClosure)closure, closure_data, fault);
        return;
    }
    Assay__StorePinReply reply = ASSAY__STORE_PIN_REPLY__INIT;
    reply.missing_at = as_mem_alloc((request->n_keys + 1) * sizeof(*reply.missing_at));
    if (!reply.missing_at) {
        as_rpc_fail((ProtobufCClosure)closure, closure_data, AS_ERR_NO_MEMORY, "out of memory");
        return;
    }
    for (size_t i = 0; i < request->n_keys; i++) {
        as_key_t key = key_of(&request->keys[i]);
        as_status_t status =
            kvs_store_pin(store, &key, request->tenant, (kvs_guard_t)request->level);
        reply.pinned += status == AS_OK;
        reply.refused += status == AS_ERR_LIMIT;
        if (status == AS_ERR_NOT_FOUND) {
            reply.missing++;
            reply.missing_at[reply.n_missing_at++] = (uint32_t)i;
        }
    }
    closure(&reply, closure_data);
    as_mem_free(reply.missing_at);
}

static void serve_unpin(Assay__Store_Service *service, const Assay__StoreUnpinRequest *request,
                        Assay__StoreUnpinReply_Closure closure, void *closure_data)
{
    if (is_denied(service, (ProtobufCClosure)closure, closure_data)) {
        return;
    }
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    const char *fault = keys_fault(request->keys, request->n_keys);
    fault = fault ? fault : all_fault(request->n_keys, request->tenant);
    if (fault) {
        refuse((ProtobufCClosure)closure, closure_data, fault);
        return;
    }
    Assay__StoreUnpinReply reply = ASSAY__STORE_UNPIN_REPLY__INIT;
    if (request->n_keys == 0) {
        reply.unpinned = kvs_store_unpin_all(store);
    }
    for (size_t i = 0; i < request->n_keys; i++) {
        as_key_t key = key_of(&request->keys[i]);
        reply.unpinned += kvs_store_pin(store, &key, request->tenant, KVS_GUARD_NONE) == AS_OK;
    }
    closure(&reply, closure_data);
}

static uint64_t quota_told(size_t bytes)
{
    return bytes == KVS_QUOTA_NONE ? 0 : bytes;
}

static void describe_account(kvs_store_t *store, uint32_t id, Assay__StoreAccount *to)
{
    kvs_accounts_t *accounts = kvs_index_accounts(store->index);
    kvs_account_t *account = kvs_account_at(accounts, id);
    assay__store_account__init(to);
    to->namespace_key = (ProtobufCBinaryData){sizeof(as_key_t), account->owner.namespace_key.bytes};
    to->tenant = account->owner.tenant;
    to->bytes = account->bytes;
    to->blocks = account->blocks;
    to->quota_bytes = quota_told(kvs_quota_of(accounts, id));
    to->is_default = account->quota_bytes == KVS_QUOTA_NONE;
}

// As an account without a namespace.
static void list_totals(kvs_admin_t *admin, Assay__StoreQuotaReply *reply)
{
    uint32_t cursor = 0;
    const kvs_total_t *total;
    while ((total = kvs_quota_next_total(kvs_index_accounts(admin->store->index), &cursor))) {
        Assay__StoreAccount *to = &admin->accounts[reply->n_accounts];
        assay__store_account__init(to);
        to->tenant = total->tenant;
        to->bytes = total->bytes;
        to->blocks = total->blocks;
        to->quota_bytes = total->quota_bytes;
        admin->account_pointers[reply->n_accounts++] = to;
    }
}

static void list_accounts(kvs_admin_t *admin, const kvs_owner_t *owner,
                          Assay__StoreQuotaReply *reply)
{
    kvs_accounts_t *accounts = kvs_index_accounts(admin->store->index);
    uint32_t first = owner ? kvs_account_find(accounts, owner) : 0;
    for (uint32_t id = first; id < kvs_accounts_max(accounts); id++) {
        if (!kvs_account_at(accounts, id)->used) {
            continue;
        }
        if (reply->n_accounts == LIST_MAX) {
            reply->more = true;
            return;
        }
        describe_account(admin->store, id, &admin->accounts[reply->n_accounts]);
        admin->account_pointers[reply->n_accounts] = &admin->accounts[reply->n_accounts];
        reply->n_accounts++;
        if (owner) {
            return;
        }
    }
}

static void serve_quota(Assay__Store_Service *service, const Assay__StoreQuotaRequest *request,
                        Assay__StoreQuotaReply_Closure closure, void *closure_data)
{
    if ((request->set || request->reset) &&
        is_denied(service, (ProtobufCClosure)closure, closure_data)) {
        return;
    }
    kvs_admin_t *admin = (kvs_admin_t *)service;
    kvs_store_t *store = admin->store;
    bool is_named = request->namespace_key.len > 0, changes = request->set || request->reset;
    if ((is_named && request->namespace_key.len != sizeof(as_key_t)) || (changes && !is_named) ||
        (request->set && (request->reset || request->bytes == 0 || request->bytes > INT64_MAX))) {
        refuse((ProtobufCClosure)closure, closure_data,
               "namespace_key has 32 bytes; set gives it bytes, or reset the default");
        return;
    }
    kvs_owner_t owner = {.tenant = request->tenant};
    if (is_named) {
        owner.namespace_key = key_of(&request->namespace_key);
    }
    if (changes && kvs_store_set_quota(store, &owner,
                                       request->set ? request->bytes : KVS_QUOTA_NONE) != AS_OK) {
        as_rpc_fail((ProtobufCClosure)closure, closure_data, AS_ERR_BUSY,
                    "too many namespaces have blocks or quotas");
        return;
    }
    Assay__StoreQuotaReply reply = ASSAY__STORE_QUOTA_REPLY__INIT;
    reply.quota_bytes =
        quota_told(kvs_quota_of(kvs_index_accounts(store->index), KVS_ACCOUNT_NONE));
    reply.accounts = admin->account_pointers;
    if (!is_named) {
        list_totals(admin, &reply); // fewer than a reply takes
    }
    list_accounts(admin, is_named ? &owner : NULL, &reply);
    closure(&reply, closure_data);
}

static void serve_scrub(Assay__Store_Service *service, const Assay__StoreScrubRequest *request,
                        Assay__StoreScrubReply_Closure closure, void *closure_data)
{
    if (request->start && is_denied(service, (ProtobufCClosure)closure, closure_data)) {
        return;
    }
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    if (request->start) {
        kvs_store_scrub(store, request->bytes_per_second);
    }
    kvs_scrub_stat_t stat;
    kvs_store_scrub_stat(store, &stat);
    Assay__StoreScrubReply reply = ASSAY__STORE_SCRUB_REPLY__INIT;
    reply.pass = stat.pass;
    reply.running = stat.running;
    reply.took_us = stat.took_us;
    reply.bytes = stat.bytes;
    reply.ram_blocks = stat.ram_blocks;
    reply.ram_bytes = stat.ram_bytes;
    reply.disk_blocks = stat.disk_blocks;
    reply.disk_bytes = stat.disk_bytes;
    reply.bad_ram_blocks = stat.bad_ram_blocks;
    reply.bad_disk_blocks = stat.bad_disk_blocks;
    reply.restored_blocks = stat.restored_blocks;
    closure(&reply, closure_data);
}

static void serve_drain(Assay__Store_Service *service, const Assay__StoreDrainRequest *request,
                        Assay__StoreDrainReply_Closure closure, void *closure_data)
{
    if (request->start && is_denied(service, (ProtobufCClosure)closure, closure_data)) {
        return;
    }
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    if (request->timeout_ms > KVS_DRAIN_MS_MAX) {
        refuse((ProtobufCClosure)closure, closure_data, "timeout_ms is more than a day");
        return;
    }
    if (request->start) {
        uint64_t own_us =
            store->options.drain_us > 0 ? store->options.drain_us : KVS_DRAIN_US_USUAL;
        own_us = request->disk ? KVS_DRAIN_MS_MAX * 1000ull : own_us;
        uint64_t timeout_us = request->timeout_ms > 0 ? request->timeout_ms * 1000 : own_us;
        if (!request->disk) {
            kvs_store_drain(store, timeout_us);
        } else if (!kvs_store_drain_disk(store, timeout_us)) {
            refuse(
                (ProtobufCClosure)closure, closure_data,
                "the store has drained without its disk and is about to end: start it again with "
                "the same --disk, and drain it with --disk from the beginning");
            return;
        }
    }
    kvs_drain_stat_t stat;
    kvs_store_drain_stat(store, &stat);
    Assay__StoreDrainReply reply = ASSAY__STORE_DRAIN_REPLY__INIT;
    reply.running = stat.running;
    reply.is_over = stat.is_over;
    reply.took_us = stat.took_us;
    reply.blocks = stat.blocks;
    reply.bytes = stat.bytes;
    reply.handed_blocks = stat.handed_blocks;
    reply.handed_bytes = stat.handed_bytes;
    reply.kept_blocks = stat.kept_blocks;
    reply.on_disk_blocks = stat.on_disk_blocks;
    reply.pinned_blocks = stat.pinned_blocks;
    reply.handed_pins = stat.handed_pins;
    closure(&reply, closure_data);
}

as_status_t kvs_admin_alloc(kvs_store_t *store)
{
    kvs_admin_t *admin = as_mem_zalloc(1, sizeof(*admin));
    if (!admin) {
        return AS_ERR_NO_MEMORY;
    }
    admin->service = (Assay__Store_Service)ASSAY__STORE__INIT(serve_);
    admin->store = store;
    store->admin = admin;
    return AS_OK;
}

void kvs_admin_stop(kvs_store_t *store)
{
    if (store->admin) {
        store->admin->stopped = true;
    }
}

void kvs_admin_free(kvs_store_t *store)
{
    as_mem_free(store->admin);
}

ProtobufCService *kvs_admin_service(kvs_store_t *store)
{
    return &store->admin->service.base;
}
