// SPDX-License-Identifier: Apache-2.0
// The admin service: figures, a listing in key order, and forgetting blocks. Handlers answer at
// once.
#include <string.h>

#include "common/rpc.h"
#include "kvstore/store.h"
#include "proto/kvstore.pb-c.h"

#define LIST_MAX 1000u // blocks of one page
#define DROP_MAX 16384u

// The service is the first member, so that a handler finds the rest from the pointer that it is
// given.
typedef struct kvs_admin {
    Assay__Store_Service service;
    kvs_store_t *store;
    uint32_t page[LIST_MAX + 1]; // ids of the index, in key order
    Assay__StoreBlock blocks[LIST_MAX];
    Assay__StoreBlock *pointers[LIST_MAX];
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
    closure(&reply, closure_data);
}

static int key_order(const as_key_t *a, const as_key_t *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

// Puts block `id` into its place among the `count` smallest so far, at most `limit`.
static uint32_t page_insert(kvs_admin_t *admin, uint32_t count, uint32_t limit, uint32_t id)
{
    const kvs_index_t *index = admin->store->index;
    const as_key_t *key = &kvs_index_at(index, id)->spec.key;
    if (count == limit) {
        if (key_order(key, &kvs_index_at(index, admin->page[count - 1])->spec.key) >= 0) {
            return count;
        }
        count--;
    }
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (key_order(&kvs_index_at(index, admin->page[middle])->spec.key, key) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(&admin->page[low + 1], &admin->page[low], (count - low) * sizeof(admin->page[0]));
    admin->page[low] = id;
    return count + 1;
}

static void describe(kvs_block_t *block, uint64_t now_us, Assay__StoreBlock *to)
{
    assay__store_block__init(to);
    to->key = (ProtobufCBinaryData){sizeof(as_key_t), block->spec.key.bytes};
    to->parent = (ProtobufCBinaryData){sizeof(as_key_t), block->spec.parent.bytes};
    to->tokens = block->spec.tokens;
    to->bytes = block->bytes;
    to->uses = block->uses;
    to->leases = block->leases;
    to->age_us = now_us - block->sealed_us;
}

static void serve_list(Assay__Store_Service *service, const Assay__StoreListRequest *request,
                       Assay__StoreListReply_Closure closure, void *closure_data)
{
    kvs_admin_t *admin = (kvs_admin_t *)service;
    kvs_store_t *store = admin->store;
    as_key_t after;
    if (request->after.len != 0 && request->after.len != sizeof(after)) {
        as_rpc_fail((ProtobufCClosure)closure, closure_data, AS_ERR_INVALID,
                    "after must be empty or a key of 32 bytes");
        return;
    }
    if (request->after.len > 0) {
        memcpy(after.bytes, request->after.data, sizeof(after));
    }
    uint32_t limit = request->limit == 0 || request->limit > LIST_MAX ? LIST_MAX : request->limit;
    uint32_t count = 0;
    for (uint32_t id = 0; id < kvs_index_blocks_max(store->index); id++) {
        const kvs_block_t *block = kvs_index_at(store->index, id);
        bool wanted = block->state == KVS_SEALED && block->spec.kind == AS_WIRE_FULL &&
                      (request->after.len == 0 || key_order(&block->spec.key, &after) > 0);
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
        describe(kvs_index_at(store->index, admin->page[i]), as_loop_now_us(store->options.loop),
                 &admin->blocks[i]);
        admin->pointers[i] = &admin->blocks[i];
    }
    closure(&reply, closure_data);
}

static void serve_drop(Assay__Store_Service *service, const Assay__StoreDropRequest *request,
                       Assay__StoreDropReply_Closure closure, void *closure_data)
{
    kvs_store_t *store = ((kvs_admin_t *)service)->store;
    if (request->n_keys > DROP_MAX) {
        as_rpc_fail((ProtobufCClosure)closure, closure_data, AS_ERR_LIMIT, "more than 16384 keys");
        return;
    }
    for (size_t i = 0; i < request->n_keys; i++) {
        if (request->keys[i].len != sizeof(as_key_t)) {
            as_rpc_fail((ProtobufCClosure)closure, closure_data, AS_ERR_INVALID,
                        "a key has 32 bytes");
            return;
        }
    }
    Assay__StoreDropReply reply = ASSAY__STORE_DROP_REPLY__INIT;
    if (request->n_keys == 0) {
        reply.dropped = kvs_store_drop_all(store);
    }
    for (size_t i = 0; i < request->n_keys; i++) {
        as_key_t key;
        memcpy(key.bytes, request->keys[i].data, sizeof(key));
        reply.dropped += kvs_store_drop(store, &key);
    }
    closure(&reply, closure_data);
}

static void serve_scrub(Assay__Store_Service *service, const Assay__StoreScrubRequest *request,
                        Assay__StoreScrubReply_Closure closure, void *closure_data)
{
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

void kvs_admin_free(kvs_store_t *store)
{
    as_mem_free(store->admin);
}

ProtobufCService *kvs_admin_service(kvs_store_t *store)
{
    return &store->admin->service.base;
}
