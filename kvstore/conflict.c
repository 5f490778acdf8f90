// SPDX-License-Identifier: Apache-2.0
// What a PUT meets: whether it can be at all, and what is here under its key. A key names its bytes, so
// a second put of it brings the same ones: then it has nothing to send. Other bytes under the same key are a
// fault of some worker (its memory, its build, its numerics) that no reader could see: the first put stays,
// the second is told, and it is counted.
//
// Digests are compared: of the PUT with that of the block in RAM, of the writer that is at it, or of the
// block on disk. A block that is on disk only is not in the way: it is put into RAM again, unless another
// store brings it as a copy, which it is already (but a pinned one belongs into RAM). A writer may yet give
// up: so one that counts copies is not told EXISTS on its account, but to come again.
#include "common/log.h"
#include "kvstore/disk/image.h"
#include "kvstore/store.h"

#define TELL_US 10000000u // between two lines in the log

as_status_t kvs_put_check(const as_wire_put_t *ask)
{
    const uint32_t of_copies = AS_WIRE_HOT | AS_WIRE_PINS;
    if ((ask->flags & ~(AS_WIRE_DURABLE | AS_WIRE_COPY | AS_WIRE_STAGED | of_copies)) != 0 ||
        ((ask->flags & of_copies) != 0 && !(ask->flags & AS_WIRE_COPY)) ||
        (ask->flags & AS_WIRE_PINS) == AS_WIRE_PINS) {
        return AS_ERR_INVALID;
    }
    if ((ask->kind != AS_WIRE_FULL && ask->kind != AS_WIRE_SEALED) || ask->layers == 0 ||
        ask->extent_bytes == 0 || ask->extent_bytes % sizeof(uint32_t) != 0 || ask->tokens == 0 ||
        as_key_equal(&ask->key, &ask->parent)) {
        return AS_ERR_INVALID;
    }
    if (ask->layers > AS_LAYERS_MAX || ask->extent_bytes > AS_WIRE_EXTENT_BYTES_MAX ||
        (uint64_t)ask->layers * ask->extent_bytes > AS_WIRE_BLOCK_BYTES_MAX ||
        ask->tokens > AS_BLOCK_TOKENS_MAX) {
        return AS_ERR_LIMIT;
    }
    return AS_OK;
}

static as_status_t compare(kvs_store_t *store, const kvs_spec_t *spec, uint32_t promised,
                           uint32_t flags)
{
    kvs_block_t *block = kvs_index_find(store->index, &spec->key, kvs_realm_of(spec));
    bool is_copy = flags & AS_WIRE_COPY;
    uint32_t digest;
    if (block) {
        bool same_shape = block->layers == spec->layers &&
                          block->extent_bytes == spec->extent_bytes &&
                          block->tokens == spec->tokens;
        digest = as_block_digest(&spec->key, kvs_index_crcs(store->index, block), block->layers);
        if (!same_shape || digest != promised) {
            return AS_ERR_CONFLICT;
        }
        if (is_copy) { // another store only asks
            kvs_copy_pin(store, block, flags);
        } else {
            kvs_suspect(store, block);
        }
        return AS_ERR_EXISTS;
    }
    if (kvs_puts_digest(store->puts, spec, &digest)) {
        return digest != promised ? AS_ERR_CONFLICT : is_copy ? AS_ERR_BUSY : AS_ERR_EXISTS;
    }
    if (!kvs_tier_digest(store, spec, &digest)) {
        return AS_OK;
    }
    bool is_enough = is_copy && (flags & AS_WIRE_PINS) == 0; // pins are of RAM
    return digest != promised ? AS_ERR_CONFLICT : is_enough ? AS_ERR_EXISTS : AS_OK;
}

static as_status_t conflict_check(kvs_store_t *store, const kvs_spec_t *spec, uint32_t digest,
                                  uint32_t flags)
{
    kvs_expire_key(store, &spec->key, kvs_realm_of(spec));
    as_status_t status = compare(store, spec, digest, flags);
    if (status != AS_ERR_CONFLICT) {
        return status;
    }
    kvs_count(&store->counted.conflicts, KVS_METRIC_CONFLICTS, 1);
    if (as_log_is_due(&store->conflict_due, as_loop_now_us(store->options.loop), TELL_US, NULL)) {
        const uint8_t *key = spec->key.bytes;
        AS_ERROR(
            "kvstore",
            "put refused: block %02x%02x%02x%02x%02x%02x%02x%02x is here with other bytes; two "
            "workers compute different caches for the same tokens: compare their builds and "
            "check their memory (%llu such puts so far)",
            key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7],
            (unsigned long long)store->counted.conflicts);
    }
    return AS_ERR_CONFLICT;
}

as_status_t kvs_put_meets(kvs_store_t *store, const kvs_spec_t *spec, uint32_t digest,
                          uint32_t flags)
{
    as_status_t status = conflict_check(store, spec, digest, flags);
    if (status != AS_OK) {
        return status;
    }
    if (flags & AS_WIRE_COPY) {
        status = kvs_copy_check(store, spec, flags);
    }
    if (status == AS_OK && kvs_image_bytes(spec) > kvs_pool_bytes(store->pool)) {
        status = AS_ERR_LIMIT;
    }
    return status == AS_OK ? kvs_quota_room(store, spec) : status;
}
