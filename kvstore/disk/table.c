// SPDX-License-Identifier: Apache-2.0
// The table of the disk tier: an entry for each block on disk, in the bucket of its key and in the
// list of its segment.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "kvstore/disk/state.h"

#define ENTRIES_FIRST 1024u

static uint32_t bucket_of(const kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm)
{
    return (uint32_t)kvs_realm_hash(realm, key) & (disk->entries_max - 1);
}

uint32_t kvs_table_find(const kvs_disk_t *disk, const as_key_t *key, kvs_realm_t realm)
{
    uint32_t at = disk->buckets[bucket_of(disk, key, realm)];
    while (at != KVS_DISK_NONE && (kvs_realm_of(&disk->entries[at].record.spec) != realm ||
                                   !as_key_equal(&disk->entries[at].record.spec.key, key))) {
        at = disk->entries[at].key_next;
    }
    return at;
}

static void bucket_insert(kvs_disk_t *disk, uint32_t at)
{
    kvs_entry_t *entry = &disk->entries[at];
    uint32_t *bucket =
        &disk->buckets[bucket_of(disk, &entry->record.spec.key, kvs_realm_of(&entry->record.spec))];
    entry->key_next = *bucket;
    *bucket = at;
}

// Doubles the table: every block that is on disk has its entry.
static as_status_t grow(kvs_disk_t *disk)
{
    uint32_t before = disk->entries_max, count = before ? 2 * before : ENTRIES_FIRST;
    if (before > UINT32_MAX / 4) {
        return AS_ERR_LIMIT;
    }
    uint32_t *buckets = as_mem_alloc(count * sizeof(uint32_t));
    kvs_entry_t *entries =
        buckets ? as_mem_realloc(disk->entries, count * sizeof(kvs_entry_t)) : NULL;
    if (!entries) {
        as_mem_free(buckets);
        return AS_ERR_NO_MEMORY;
    }
    as_mem_free(disk->buckets);
    disk->buckets = buckets;
    disk->entries = entries;
    disk->entries_max = count;
    memset(buckets, 0xff, count * sizeof(uint32_t));
    for (uint32_t i = before; i < count; i++) {
        entries[i].segment = NULL;
        entries[i].key_next = i + 1 < count ? i + 1 : disk->unused;
    }
    disk->unused = before;
    for (uint32_t i = 0; i < before; i++) {
        if (entries[i].segment) {
            bucket_insert(disk, i);
        }
    }
    return AS_OK;
}

as_status_t kvs_table_add(kvs_disk_t *disk, const kvs_record_t *record, kvs_segment_t *segment,
                          uint32_t *at_p)
{
    // Growing rebuilds the buckets, and with them the list of unused entries would be lost: so only
    // when none is left.
    as_status_t status = disk->unused == KVS_DISK_NONE ? grow(disk) : AS_OK;
    if (status != AS_OK) {
        return status;
    }
    uint32_t at = disk->unused;
    kvs_entry_t *entry = &disk->entries[at];
    disk->unused = entry->key_next;
    *entry = (kvs_entry_t){
        .record = *record, .segment = segment, .prev = KVS_DISK_NONE, .next = segment->first_entry};
    if (entry->next != KVS_DISK_NONE) {
        disk->entries[entry->next].prev = at;
    }
    segment->first_entry = at;
    segment->entries++;
    bucket_insert(disk, at);
    *at_p = at;
    return AS_OK;
}

void kvs_table_remove(kvs_disk_t *disk, uint32_t at)
{
    kvs_entry_t *entry = &disk->entries[at];
    kvs_segment_t *segment = entry->segment;
    const kvs_spec_t *spec = &entry->record.spec;
    uint32_t *link = &disk->buckets[bucket_of(disk, &spec->key, kvs_realm_of(spec))];
    while (*link != at) {
        AS_ASSERT(*link != KVS_DISK_NONE);
        link = &disk->entries[*link].key_next;
    }
    *link = entry->key_next;
    if (entry->next != KVS_DISK_NONE) {
        disk->entries[entry->next].prev = entry->prev;
    }
    if (entry->prev != KVS_DISK_NONE) {
        disk->entries[entry->prev].next = entry->next;
    } else {
        segment->first_entry = entry->next;
    }
    segment->entries--;
    if (!entry->writing) {
        disk->stat.blocks--;
        disk->stat.mortal_blocks -= spec->expires_us != 0;
        disk->stat.bytes -= kvs_image_bytes(spec);
    }
    entry->segment = NULL;
    entry->key_next = disk->unused;
    disk->unused = at;
}

void kvs_table_found(kvs_disk_t *disk, uint32_t at)
{
    disk->entries[at].writing = false;
    disk->stat.blocks++;
    disk->stat.mortal_blocks += disk->entries[at].record.spec.expires_us != 0;
    disk->stat.bytes += kvs_image_bytes(&disk->entries[at].record.spec);
}

as_status_t kvs_table_init(kvs_disk_t *disk)
{
    disk->unused = KVS_DISK_NONE;
    return grow(disk);
}

void kvs_table_free(kvs_disk_t *disk)
{
    as_mem_free(disk->entries);
    as_mem_free(disk->buckets);
}
