// SPDX-License-Identifier: Apache-2.0
// Between RAM and disk: blocks are written behind the puts. promote.c brings them back.
//
// Every block that is sealed is queued for the disk. When the queue is full it stays in RAM only,
// which is counted. Leaving RAM does not take a block from disk, nor is it told to the scheduler,
// as long as the node still has it.
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "kvstore/locate.h"

typedef struct behind {
    kvs_store_t *store;
    kvs_block_t *block; // pinned
    kvs_tier_done_fn done;
    void *ctx;
} behind_t;

struct kvs_tier {
    kvs_disk_t *disk;
    as_pool_t *behinds;
};

// ---- events

static void tell(kvs_store_t *store, kvs_event_t event, const kvs_spec_t *spec)
{
    if (store->listener) {
        as_key_t key;
        as_key_scope(&spec->key, spec->tenant, &key);
        store->listener(store->listener_ctx, event, &key);
    }
}

static bool on_disk(const kvs_store_t *store, const as_key_t *key, kvs_realm_t realm)
{
    return store->tier && kvs_disk_find(store->tier->disk, key, realm);
}

// The index hears of RAM only; the scheduler wants to know what the node has.
void kvs_tier_on_index_event(void *ctx, kvs_event_t event, const kvs_spec_t *spec)
{
    kvs_store_t *store = ctx;
    if (!on_disk(store, &spec->key, kvs_realm_of(spec))) {
        tell(store, event, spec);
    }
}

static void on_gone(void *ctx, const kvs_spec_t *spec)
{
    kvs_store_t *store = ctx;
    kvs_block_t *block = kvs_index_find(store->index, &spec->key, kvs_realm_of(spec));
    if (!block) {
        if (spec->kind == AS_WIRE_FULL) {
            tell(store, KVS_BLOCK_REMOVED, spec);
        }
    } else if (block->heat > 0 || block->guard) { // its second chance on disk
        kvs_tier_write_behind(store, block);
    }
}

// ---- writing

static void on_written(void *ctx, as_status_t status)
{
    behind_t *behind = ctx;
    kvs_store_t *store = behind->store;
    kvs_tier_done_fn done = behind->done;
    void *done_ctx = behind->ctx;
    kvs_index_unpin(store->index, behind->block);
    as_pool_give(store->tier->behinds, behind);
    if (done) {
        done(done_ctx, status);
    }
}

static as_status_t write_block(kvs_store_t *store, kvs_block_t *block, kvs_tier_done_fn done,
                               void *ctx)
{
    behind_t *behind = as_pool_take(store->tier->behinds);
    if (!behind) {
        return AS_ERR_BUSY;
    }
    *behind = (behind_t){store, block, done, ctx};
    uint8_t *image = kvs_index_extent(store->index, block, 0);
    // What lies behind the checksums is some other block's.
    const kvs_spec_t spec = kvs_index_spec(store->index, block);
    size_t used = kvs_image_crcs_at(&spec) + spec.layers * sizeof(uint32_t);
    memset(image + used, 0, kvs_image_bytes(&spec) - used);
    kvs_index_pin(store->index, block);
    const kvs_disk_write_t params = {&spec, image, done != NULL, on_written, behind};
    as_status_t status = kvs_disk_write(store->tier->disk, &params);
    if (status != AS_OK) {
        kvs_index_unpin(store->index, block);
        as_pool_give(store->tier->behinds, behind);
    }
    return status;
}

void kvs_tier_write_behind(kvs_store_t *store, kvs_block_t *block)
{
    if (!store->tier) {
        return;
    }
    as_status_t status = write_block(store, block, NULL, NULL);
    if (status != AS_OK && status != AS_ERR_EXISTS) {
        kvs_count(&store->counted.disk_skipped, KVS_METRIC_DISK_SKIPPED, 1);
    }
}

as_status_t kvs_tier_write_durable(kvs_store_t *store, kvs_block_t *block, kvs_tier_done_fn done,
                                   void *ctx)
{
    if (!store->tier) {
        return AS_ERR_UNSUPPORTED;
    }
    // It may be there already, or on its way.
    const kvs_spec_t spec = kvs_index_spec(store->index, block);
    as_status_t status = kvs_disk_sync(store->tier->disk, &spec, done, ctx);
    return status == AS_ERR_NOT_FOUND ? write_block(store, block, done, ctx) : status;
}

as_status_t kvs_tier_affirm(kvs_store_t *store, const kvs_spec_t *spec, kvs_tier_done_fn done,
                            void *ctx)
{
    if (!store->tier) {
        return AS_ERR_UNSUPPORTED;
    }
    kvs_block_t *block = kvs_index_find(store->index, &spec->key, kvs_realm_of(spec));
    return block ? kvs_tier_write_durable(store, block, done, ctx)
                 : kvs_disk_sync(store->tier->disk, spec, done, ctx);
}

bool kvs_tier_digest(const kvs_store_t *store, const kvs_spec_t *spec, uint32_t *digest_p)
{
    return store->tier &&
           kvs_disk_digest(store->tier->disk, &spec->key, kvs_realm_of(spec), digest_p);
}

// ---- the rest

struct kvs_disk *kvs_tier_disk(const kvs_store_t *store)
{
    return store->tier ? store->tier->disk : NULL;
}

bool kvs_tier_remove(kvs_store_t *store, const as_key_t *key, kvs_realm_t realm)
{
    kvs_promote_remove(store, key, realm);
    const kvs_spec_t *found = kvs_tier_find(store, key, realm); // what is being written is not
    kvs_spec_t spec = found ? *found : (kvs_spec_t){0};
    bool removed = store->tier && kvs_disk_remove(store->tier->disk, key, realm);
    if (found && removed && spec.kind == AS_WIRE_FULL &&
        !kvs_index_find(store->index, key, realm)) {
        tell(store, KVS_BLOCK_REMOVED, &spec);
    }
    return removed;
}

// How many of them were in no RAM.
uint64_t kvs_tier_remove_all(kvs_store_t *store)
{
    uint64_t removed = 0;
    uint32_t cursor = 0;
    for (const kvs_spec_t *at; (at = kvs_tier_next(store, &cursor)) != NULL;) {
        kvs_spec_t spec = *at;
        bool in_ram = kvs_index_find(store->index, &spec.key, kvs_realm_of(&spec)) != NULL;
        removed += kvs_tier_remove(store, &spec.key, kvs_realm_of(&spec)) && !in_ram;
    }
    return removed;
}

as_status_t kvs_tier_settle(kvs_store_t *store, kvs_tier_done_fn done, void *ctx)
{
    return store->tier ? kvs_disk_settle(store->tier->disk, done, ctx) : AS_ERR_UNSUPPORTED;
}

const kvs_spec_t *kvs_tier_find(const kvs_store_t *store, const as_key_t *key, kvs_realm_t realm)
{
    return store->tier ? kvs_disk_find(store->tier->disk, key, realm) : NULL;
}

const kvs_spec_t *kvs_tier_next(const kvs_store_t *store, uint32_t *cursor_p)
{
    return store->tier ? kvs_disk_next(store->tier->disk, cursor_p) : NULL;
}

void kvs_tier_stat(const kvs_store_t *store, struct kvs_disk_stat *stat_p)
{
    memset(stat_p, 0, sizeof(*stat_p));
    if (store->tier) {
        kvs_disk_stat(store->tier->disk, stat_p);
    }
}

as_status_t kvs_tier_alloc(kvs_store_t *store)
{
    const kvs_store_options_t *options = &store->options;
    if (!options->disk_directory) {
        return AS_OK;
    }
    kvs_tier_t *tier = as_mem_zalloc(1, sizeof(*tier));
    if (!tier) {
        return AS_ERR_NO_MEMORY;
    }
    store->tier = tier;
    const kvs_disk_options_t disk = {.loop = options->loop,
                                     .directory = options->disk_directory,
                                     .bytes_max = options->disk_bytes,
                                     .queue_bytes_max = options->disk_queue_bytes,
                                     .reads_max = KVS_PROMOTIONS_MAX,
                                     .on_gone = on_gone,
                                     .ctx = store};
    as_status_t status =
        as_pool_alloc("kvs behinds", sizeof(behind_t), KVS_BEHINDS_MAX, &tier->behinds);
    return status == AS_OK ? kvs_disk_alloc(&disk, &tier->disk) : status;
}

void kvs_tier_free(kvs_store_t *store)
{
    kvs_tier_t *tier = store->tier;
    if (!tier) {
        return;
    }
    store->listener = NULL;
    kvs_disk_free(tier->disk); // what is under way is called back now
    as_pool_free(tier->behinds);
    as_mem_free(tier);
    store->tier = NULL;
}
