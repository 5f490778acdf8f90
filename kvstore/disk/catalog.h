// SPDX-License-Identifier: Apache-2.0
// The catalog of the disk tier: what is known of each block on disk, in RocksDB.
//
// Column family "blocks": key -> where the block lies and what it is. Its records are outside bytes
// (a disk may give back anything): kvs_catalog_parse checks each. Calls block: they belong to the
// disk tier's threads, except kvs_catalog_open and kvs_catalog_each, at start.
#ifndef KVS_DISK_CATALOG_H
#define KVS_DISK_CATALOG_H

#include "kvstore/index.h"

#define KVS_CATALOG_KEY_BYTES     33u  // kind, key
#define KVS_CATALOG_KEY_BYTES_MAX 37u  // and tenant, where the block is of one
#define KVS_CATALOG_RECORD_BYTES  116u // see catalog.c

// A block on disk.
typedef struct kvs_record {
    kvs_spec_t spec;
    uint32_t segment; // number of the file
    uint64_t offset;  // in it; a multiple of 4096
    uint32_t digest;  // CRC32C of the key and the extents' checksums
} kvs_record_t;

typedef struct kvs_catalog kvs_catalog_t;

// Makes the directory's database when there is none. One that is damaged is repaired as far as RocksDB
// can, or put aside (catalog.damaged) and begun anew: its blocks are misses then, and the store starts.
as_status_t kvs_catalog_open(const char *directory, kvs_catalog_t **catalog_p) AS_MUST_USE;
void kvs_catalog_close(kvs_catalog_t *catalog); // NULL is fine
// Calls `each` with every sound record; returns how many were not sound (those are deleted). When it
// cannot be read to its end *damaged_p is set: renew it then.
uint64_t kvs_catalog_each(kvs_catalog_t *catalog, void (*each)(void *ctx, const kvs_record_t *),
                          void *ctx, bool *damaged_p);
// How often it was found damaged so far.
uint32_t kvs_catalog_faults(const kvs_catalog_t *catalog);
// Puts it aside and begins an empty one, into which the caller puts what it knows.
as_status_t kvs_catalog_renew(kvs_catalog_t *catalog) AS_MUST_USE;
// Writes and deletes gathered, then made at once; `sync`: on disk before it returns. AS_ERR_LIMIT: the
// disk is full; all is to be given again.
void kvs_catalog_put(kvs_catalog_t *catalog, const kvs_record_t *record);
void kvs_catalog_delete(kvs_catalog_t *catalog, const kvs_spec_t *spec);
// Bytes that RocksDB holds in memory for it, as of one of the last commits. From any thread.
uint64_t kvs_catalog_memory(const kvs_catalog_t *catalog);
as_status_t kvs_catalog_commit(kvs_catalog_t *catalog, bool sync) AS_MUST_USE;

// A record from the database's bytes. False: they are not one.
bool kvs_catalog_parse(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
                       kvs_record_t *record_p);
// `key` has room for kvs_catalog_key_bytes.
void kvs_catalog_format(const kvs_record_t *record, uint8_t *key,
                        uint8_t value[KVS_CATALOG_RECORD_BYTES]);
size_t kvs_catalog_key_bytes(const kvs_spec_t *spec);

#endif
