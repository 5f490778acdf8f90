// SPDX-License-Identifier: Apache-2.0
// A record of the disk tier's catalog, from whatever the database may give back: a sum that was made
// right behind it lets the rest of the checks be reached.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/assert.h"
#include "common/checksum.h"
#include "kvstore/disk/image.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    bool mend = data[0] & 1;
    size_t key_max = data[0] & 4 ? KVS_CATALOG_KEY_BYTES_MAX : KVS_CATALOG_KEY_BYTES;
    size_t key_bytes = bytes - 1 < key_max ? bytes - 1 : key_max;
    const uint8_t *key = data + 1;
    uint8_t value[2 * KVS_CATALOG_RECORD_BYTES] = {0};
    size_t value_bytes = bytes - 1 - key_bytes;
    value_bytes = value_bytes < sizeof(value) ? value_bytes : sizeof(value);
    memcpy(value, key + key_bytes, value_bytes);
    if (mend && key_bytes == key_max && value_bytes >= 4) {
        const uint32_t version = 1 + (data[0] >> 3) % 3;
        value_bytes = KVS_CATALOG_RECORD_BYTES - (3 - version) * sizeof(uint64_t);
        memcpy(value, &version, sizeof(version));
        uint32_t sum = as_crc32c(as_crc32c(0, key, key_bytes), value, value_bytes - 4);
        memcpy(value + value_bytes - 4, &sum, sizeof(sum));
    }
    kvs_record_t record;
    if (!kvs_catalog_parse(key, key_bytes, value, value_bytes, &record)) {
        return 0;
    }
    // What is believed can be read: into a buffer of this size, at this place.
    AS_ASSERT(kvs_image_bytes(&record.spec) <= AS_WIRE_BLOCK_BYTES_MAX + (1u << 20));
    AS_ASSERT(record.offset % KVS_POOL_GRAIN_BYTES == 0);
    uint8_t key_again[KVS_CATALOG_KEY_BYTES_MAX], value_again[KVS_CATALOG_RECORD_BYTES];
    kvs_catalog_format(&record, key_again, value_again);
    AS_ASSERT(kvs_catalog_key_bytes(&record.spec) == key_bytes);
    AS_ASSERT(memcmp(key_again, key, key_bytes) == 0);
    AS_ASSERT(memcmp(value_again + 4, value + 4, 92) == 0); // behind it versions differ
    AS_ASSERT(value_bytes < sizeof(value_again) ||
              memcmp(value_again, value, sizeof(value_again)) == 0);
    return 0;
}
