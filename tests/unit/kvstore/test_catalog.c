// SPDX-License-Identifier: Apache-2.0
// Records of the disk tier's catalog: they come back as they were, also those of older versions, and
// no flipped bit is taken for one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "common/checksum.h"
#include "kvstore/disk/catalog.h"
#include "proto/wire.h"

// As it would have been written at that version.
static void check_record(const kvs_record_t *record, uint32_t version)
{
    kvs_record_t parsed;
    uint8_t key[KVS_CATALOG_KEY_BYTES], value[KVS_CATALOG_RECORD_BYTES];
    kvs_catalog_format(record, key, value);
    size_t value_bytes = KVS_CATALOG_RECORD_BYTES - (3 - version) * sizeof(uint64_t);
    memcpy(value, &version, sizeof(version));
    uint32_t sum = as_crc32c(as_crc32c(0, key, sizeof(key)), value, value_bytes - sizeof(sum));
    memcpy(value + value_bytes - sizeof(sum), &sum, sizeof(sum));
    assert_true(kvs_catalog_parse(key, sizeof(key), value, value_bytes, &parsed));
    assert_memory_equal(&parsed.spec, &record->spec, sizeof(record->spec));
    assert_int_equal(parsed.offset, 8192);
    for (size_t bit = 0; bit < 8 * value_bytes; bit++) {
        value[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(kvs_catalog_parse(key, sizeof(key), value, value_bytes, &parsed));
        value[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * sizeof(key); bit++) {
        key[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(kvs_catalog_parse(key, sizeof(key), value, value_bytes, &parsed));
        key[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_false(kvs_catalog_parse(key, sizeof(key) - 1, value, value_bytes, &parsed));
    assert_false(kvs_catalog_parse(key, sizeof(key), value, value_bytes - 1, &parsed));
}

static void records_survive_only_as_they_were_written(void **state)
{
    (void)state;
    kvs_record_t record = {.spec = {.key = {{5, 1}},
                                    .parent = {{4, 1}},
                                    .namespace_key = {{9}},
                                    .kind = AS_WIRE_FULL,
                                    .layers = 3,
                                    .extent_bytes = 4096,
                                    .tokens = 64},
                           .segment = 9,
                           .offset = 8192,
                           .digest = 77};
    record.spec.place = as_key_hash(&record.spec.key); // what older records mean
    check_record(&record, 1);
    record.spec.expires_us = 1234567890123;
    check_record(&record, 2);
    record.spec.place = 99;
    check_record(&record, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_survive_only_as_they_were_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
