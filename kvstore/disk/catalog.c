// SPDX-License-Identifier: Apache-2.0
// RocksDB for what is known of the blocks on disk. Their bytes lie in segment files: RocksDB's own
// large values move at a fraction of the disk's rate.
//
// Key: kind (1 byte), key of the block (32), and tenant (4) where the block is of one. Value, little-endian:
//
//   offset bytes
//        0     4  version: 3
//        4     4  number of the segment
//        8     8  offset in it
//       16     4  layers
//       20     4  bytes of an extent
//       24     4  tokens
//       28    32  parent key
//       60    32  namespace key
//       92     4  digest: CRC32C of the key and the extents' checksums
//       96     8  when it expires, us since 1970; 0: never
//      104     8  the first 8 bytes of the key that places its run
//      112     4  CRC32C of key and value up to here
//
// Of versions 1 and 2, which are read still, the sum comes before the place (then the block's own key
// places it), and of version 1 before the time.
#include "kvstore/disk/catalog.h"

#include <errno.h>
#include <ftw.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/checksum.h"
#include "common/fault.h"
#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/footers.h"
#include "proto/wire.h"

#define VERSION         3u
#define LOG_HEADER      5 // RocksDB's InfoLogLevel::HEADER_LEVEL, which C does not name
#define WRITE_BUFFER    (8u << 20)
#define FILES_MAX       256
#define MEASURE_COMMITS 32u // between two looks at what RocksDB holds
// How RocksDB reads its log at the start (WALRecoveryMode): it is whole or an error; or whatever is sound,
// also behind what is not.
#define LOG_IS_WHOLE  1
#define LOG_ALL_SOUND 3

struct kvs_catalog {
    char path[4096];
    rocksdb_t *db;   // NULL: it could not be opened again
    bool tried;      // to, since the last commit
    as_status_t why; // it is closed
    uint32_t faults; // found so far
    rocksdb_options_t *options;
    rocksdb_column_family_handle_t *families[2]; // default, blocks
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *write[2]; // plain, synced
    rocksdb_writebatch_t *batch;
    uint32_t commits;
    _Atomic uint64_t memory_bytes;
};

// ---- records

static void put32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

static uint32_t sum_of(const uint8_t *key, size_t key_bytes, const uint8_t *value, size_t bytes)
{
    return as_crc32c(as_crc32c(0, key, key_bytes), value, bytes);
}

size_t kvs_catalog_key_bytes(const kvs_spec_t *spec)
{
    return spec->tenant ? KVS_CATALOG_KEY_BYTES_MAX : KVS_CATALOG_KEY_BYTES;
}

static void write_key(const kvs_spec_t *spec, uint8_t *key)
{
    key[0] = (uint8_t)spec->kind;
    memcpy(key + 1, &spec->key, sizeof(spec->key));
    if (spec->tenant) {
        put32(key + KVS_CATALOG_KEY_BYTES, spec->tenant);
    }
}

// Bytes of a record of that version before its sum; 0: there is none.
static size_t sum_at_of(uint32_t version)
{
    return version >= 1 && version <= VERSION ? 88 + 8 * (size_t)version : 0;
}

void kvs_catalog_format(const kvs_record_t *record, uint8_t *key,
                        uint8_t value[KVS_CATALOG_RECORD_BYTES])
{
    const kvs_spec_t *spec = &record->spec;
    write_key(spec, key);
    size_t sum_at = sum_at_of(VERSION);
    put32(value, VERSION);
    put32(value + 4, record->segment);
    memcpy(value + 8, &record->offset, sizeof(record->offset));
    put32(value + 16, spec->layers);
    put32(value + 20, spec->extent_bytes);
    put32(value + 24, spec->tokens);
    memcpy(value + 28, &spec->parent, sizeof(spec->parent));
    memcpy(value + 60, &spec->namespace_key, sizeof(spec->namespace_key));
    put32(value + 92, record->digest);
    memcpy(value + 96, &spec->expires_us, sizeof(spec->expires_us));
    memcpy(value + 104, &spec->place, sizeof(spec->place));
    put32(value + sum_at, sum_of(key, kvs_catalog_key_bytes(spec), value, sum_at));
}

bool kvs_catalog_parse(const void *key_bytes_p, size_t key_bytes, const void *value_bytes_p,
                       size_t value_bytes, kvs_record_t *record_p)
{
    const uint8_t *key = key_bytes_p, *value = value_bytes_p;
    uint32_t version = value_bytes >= sizeof(version) ? get32(value) : 0;
    size_t sum_at = sum_at_of(version);
    if ((key_bytes != KVS_CATALOG_KEY_BYTES && key_bytes != KVS_CATALOG_KEY_BYTES_MAX) ||
        sum_at == 0 || value_bytes != sum_at + sizeof(uint32_t) ||
        get32(value + sum_at) != sum_of(key, key_bytes, value, sum_at) ||
        get32(value + 24) > AS_BLOCK_TOKENS_MAX) {
        return false;
    }
    kvs_record_t record = {.spec = {.kind = key[0],
                                    .layers = get32(value + 16),
                                    .extent_bytes = get32(value + 20),
                                    .tokens = (uint16_t)get32(value + 24)},
                           .segment = get32(value + 4),
                           .digest = get32(value + 92)};
    memcpy(&record.offset, value + 8, sizeof(record.offset));
    memcpy(&record.spec.key, key + 1, sizeof(record.spec.key));
    bool has_tenant = key_bytes == KVS_CATALOG_KEY_BYTES_MAX;
    record.spec.tenant = has_tenant ? get32(key + KVS_CATALOG_KEY_BYTES) : 0;
    memcpy(&record.spec.parent, value + 28, sizeof(record.spec.parent));
    memcpy(&record.spec.namespace_key, value + 60, sizeof(record.spec.namespace_key));
    record.spec.place = as_key_hash(&record.spec.key);
    if (version >= 2) {
        memcpy(&record.spec.expires_us, value + 96, sizeof(record.spec.expires_us));
    }
    if (version >= 3) {
        memcpy(&record.spec.place, value + 104, sizeof(record.spec.place));
    }
    const kvs_spec_t *spec = &record.spec;
    bool sound = has_tenant == (spec->tenant != 0) &&
                 (spec->kind == AS_WIRE_FULL || spec->kind == AS_WIRE_SEALED) && spec->layers > 0 &&
                 spec->layers <= AS_LAYERS_MAX && spec->extent_bytes > 0 &&
                 spec->extent_bytes % sizeof(uint32_t) == 0 &&
                 spec->extent_bytes <= AS_WIRE_EXTENT_BYTES_MAX &&
                 (uint64_t)spec->layers * spec->extent_bytes <= AS_WIRE_BLOCK_BYTES_MAX &&
                 spec->tokens > 0 && record.offset % KVS_POOL_GRAIN_BYTES == 0;
    if (sound) {
        *record_p = record;
    }
    return sound;
}

// ---- the database

// RocksDB hands on the words of the errno alone.
static bool says_full(const char *error)
{
    return strstr(error, "No space left on device") || strstr(error, "Disk quota exceeded");
}

// Logs and frees RocksDB's message. AS_OK when there is none, AS_ERR_LIMIT: the disk is full.
static as_status_t told(char *error, const char *what)
{
    if (!error) {
        return AS_OK;
    }
    bool full = says_full(error);
    AS_ERROR("disk", "%scatalog: %s: %s", full ? "disk full: " : "", what, error);
    rocksdb_free(error);
    return full ? AS_ERR_LIMIT : AS_ERR_IO;
}

// Anything but the disk itself failing: what RocksDB says of bytes that are not its own, and of files
// that its bytes name and that are not there.
static bool is_damage(const char *error)
{
    return strncmp(error, "IO error", 8) != 0 || strstr(error, "No such file");
}

// AS_ERR_CHECKSUM: it is damaged.
static as_status_t try_open(kvs_catalog_t *catalog, int log_recovery)
{
    const char *names[2] = {"default", "blocks"};
    const rocksdb_options_t *both[2] = {catalog->options, catalog->options};
    char *error = NULL;
    rocksdb_options_set_wal_recovery_mode(catalog->options, log_recovery);
    catalog->db = rocksdb_open_column_families(catalog->options, catalog->path, 2, names, both,
                                               catalog->families, &error);
    bool damaged = error && is_damage(error);
    catalog->faults += damaged;
    as_status_t status = told(error, catalog->path);
    return damaged ? AS_ERR_CHECKSUM : status;
}

// By itself RocksDB leaves out all that its log has behind a byte that is damaged, and tells nobody. Records
// stand each for itself, so those behind it are taken too, and the damage is told; so is an end that a power
// cut tore, which looks the same.
// What RocksDB holds: records that its files have not yet, and what it knows of the files.
static void measure(kvs_catalog_t *catalog)
{
    static const char *const names[] = {"rocksdb.cur-size-all-mem-tables",
                                        "rocksdb.estimate-table-readers-mem"};
    uint64_t all = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t bytes = 0;
        if (rocksdb_property_int_cf(catalog->db, catalog->families[i / 2], names[i % 2], &bytes) ==
            0) {
            all += bytes;
        }
    }
    atomic_store_explicit(&catalog->memory_bytes, all, memory_order_relaxed);
}

static as_status_t database_open(kvs_catalog_t *catalog)
{
    catalog->faults += kvs_footers_check(catalog->path);
    as_status_t status = try_open(catalog, LOG_IS_WHOLE);
    status = status == AS_ERR_CHECKSUM ? try_open(catalog, LOG_ALL_SOUND) : status;
    if (status == AS_OK) {
        measure(catalog);
    }
    return status;
}

static void database_close(kvs_catalog_t *catalog)
{
    for (int i = 0; i < 2; i++) {
        if (catalog->db && catalog->families[i]) {
            rocksdb_column_family_handle_destroy(catalog->families[i]);
        }
        catalog->families[i] = NULL;
    }
    if (catalog->db) {
        rocksdb_close(catalog->db);
        catalog->db = NULL;
    }
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *at)
{
    (void)stat;
    (void)type;
    (void)at;
    return remove(path);
}

as_status_t kvs_catalog_renew(kvs_catalog_t *catalog)
{
    char aside[sizeof(catalog->path) + 16];
    snprintf(aside, sizeof(aside), "%s.damaged", catalog->path);
    database_close(catalog);
    rocksdb_writebatch_clear(catalog->batch);
    nftw(aside, remove_one, 16, FTW_DEPTH | FTW_PHYS); // the one before
    if (rename(catalog->path, aside) != 0) {
        AS_ERROR("disk", "cannot put %s aside: %s", catalog->path, strerror(errno));
        return AS_ERR_IO;
    }
    AS_ERROR("disk", "the damaged catalog is now %s", aside);
    return database_open(catalog);
}

static as_status_t database_mend(kvs_catalog_t *catalog)
{
    char *error = NULL;
    AS_ERROR("disk", "the catalog is damaged: it is repaired, what cannot be repaired is a miss");
    rocksdb_repair_db(catalog->options, catalog->path, &error);
    as_status_t status = told(error, "repairing");
    if (status == AS_OK) {
        status = database_open(catalog);
    }
    return status == AS_OK ? AS_OK : kvs_catalog_renew(catalog);
}

as_status_t kvs_catalog_open(const char *directory, kvs_catalog_t **catalog_p)
{
    kvs_catalog_t *catalog = as_mem_zalloc(1, sizeof(*catalog));
    if (!catalog) {
        return AS_ERR_NO_MEMORY;
    }
    rocksdb_options_t *options = catalog->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_create_missing_column_families(options, 1);
    rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER);
    rocksdb_options_set_max_open_files(options, FILES_MAX);
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_keep_log_file_num(options, 2);
    // Nothing but the options at the start: its log is a file on the same disk, and where that fails
    // twice, writing to it ends the process (an assertion). What matters is told here.
    rocksdb_options_set_info_log_level(options, LOG_HEADER);
    rocksdb_block_based_table_options_t *tables = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_checksum(tables, KVS_TABLE_CHECKSUM);
    rocksdb_block_based_options_set_format_version(tables, KVS_TABLE_VERSION);
    rocksdb_options_set_block_based_table_factory(options, tables);
    rocksdb_block_based_options_destroy(tables);
    catalog->read = rocksdb_readoptions_create();
    catalog->write[0] = rocksdb_writeoptions_create();
    catalog->write[1] = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(catalog->write[1], 1);
    catalog->batch = rocksdb_writebatch_create();
    snprintf(catalog->path, sizeof(catalog->path), "%s/catalog", directory);
    as_status_t status = database_open(catalog);
    if (status == AS_ERR_CHECKSUM) {
        status = database_mend(catalog);
    }
    if (status != AS_OK) {
        kvs_catalog_close(catalog);
        return status;
    }
    *catalog_p = catalog;
    return AS_OK;
}

void kvs_catalog_close(kvs_catalog_t *catalog)
{
    if (!catalog) {
        return;
    }
    database_close(catalog);
    rocksdb_writeoptions_destroy(catalog->write[0]);
    rocksdb_writeoptions_destroy(catalog->write[1]);
    rocksdb_writebatch_destroy(catalog->batch);
    rocksdb_readoptions_destroy(catalog->read);
    rocksdb_options_destroy(catalog->options);
    as_mem_free(catalog);
}

uint64_t kvs_catalog_each(kvs_catalog_t *catalog, void (*each)(void *ctx, const kvs_record_t *),
                          void *ctx, bool *damaged_p)
{
    uint64_t unsound = 0;
    rocksdb_iterator_t *at =
        rocksdb_create_iterator_cf(catalog->db, catalog->read, catalog->families[1]);
    for (rocksdb_iter_seek_to_first(at); rocksdb_iter_valid(at); rocksdb_iter_next(at)) {
        size_t key_bytes, value_bytes;
        const char *key = rocksdb_iter_key(at, &key_bytes);
        const char *value = rocksdb_iter_value(at, &value_bytes);
        kvs_record_t record;
        if (kvs_catalog_parse(key, key_bytes, value, value_bytes, &record)) {
            each(ctx, &record);
        } else {
            unsound++;
            rocksdb_writebatch_delete_cf(catalog->batch, catalog->families[1], key, key_bytes);
        }
    }
    char *error = NULL;
    rocksdb_iter_get_error(at, &error);
    *damaged_p = told(error, "reading the catalog, what could be read is used") != AS_OK;
    catalog->faults += *damaged_p;
    rocksdb_iter_destroy(at);
    return unsound;
}

uint32_t kvs_catalog_faults(const kvs_catalog_t *catalog)
{
    return catalog->faults;
}

// After a write that failed RocksDB takes no other until it is opened anew: a full disk or one that
// failed once would end the tier. Tried once for each commit.
static bool is_open(kvs_catalog_t *catalog)
{
    if (!catalog->db && !catalog->tried) {
        catalog->tried = true;
        as_status_t status = database_open(catalog);
        catalog->why = status == AS_ERR_LIMIT ? AS_ERR_LIMIT : AS_ERR_IO;
    }
    return catalog->db != NULL;
}

void kvs_catalog_put(kvs_catalog_t *catalog, const kvs_record_t *record)
{
    if (!is_open(catalog)) {
        return; // the commit tells
    }
    uint8_t key[KVS_CATALOG_KEY_BYTES_MAX], value[KVS_CATALOG_RECORD_BYTES];
    kvs_catalog_format(record, key, value);
    rocksdb_writebatch_put_cf(catalog->batch, catalog->families[1], (char *)key,
                              kvs_catalog_key_bytes(&record->spec), (char *)value,
                              KVS_CATALOG_RECORD_BYTES);
}

void kvs_catalog_delete(kvs_catalog_t *catalog, const kvs_spec_t *spec)
{
    if (!is_open(catalog)) {
        return;
    }
    uint8_t bytes[KVS_CATALOG_KEY_BYTES_MAX];
    write_key(spec, bytes);
    rocksdb_writebatch_delete_cf(catalog->batch, catalog->families[1], (char *)bytes,
                                 kvs_catalog_key_bytes(spec));
}

static as_status_t write_batch(kvs_catalog_t *catalog, bool sync)
{
    char *error = NULL;
    if (!is_open(catalog)) {
        return catalog->why;
    }
    if (as_fault(AS_FAULT_disk_catalog_fails)) {
        return AS_ERR_IO;
    }
    if (as_fault(AS_FAULT_disk_catalog_full)) {
        return AS_ERR_LIMIT;
    }
    rocksdb_write(catalog->db, catalog->write[sync], catalog->batch, &error);
    as_status_t status = told(error, "writing");
    if (status != AS_OK) {
        database_close(catalog);
        catalog->why = status;
    }
    return status;
}

uint64_t kvs_catalog_memory(const kvs_catalog_t *catalog)
{
    return atomic_load_explicit(&catalog->memory_bytes, memory_order_relaxed);
}

as_status_t kvs_catalog_commit(kvs_catalog_t *catalog, bool sync)
{
    as_status_t status = AS_OK;
    if (!catalog->db) {
        status = catalog->why; // what was put is not even in the batch
    } else if (rocksdb_writebatch_count(catalog->batch) > 0) {
        status = write_batch(catalog, sync);
        status = status == AS_OK ? AS_OK : write_batch(catalog, sync);
        if (catalog->db && catalog->commits++ % MEASURE_COMMITS == 0) {
            measure(catalog);
        }
    }
    catalog->tried = false;
    rocksdb_writebatch_clear(catalog->batch);
    return status;
}
