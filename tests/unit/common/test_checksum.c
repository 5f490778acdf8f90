// SPDX-License-Identifier: Apache-2.0
// CRC32C: the vectors of RFC 3720, and every implementation against bit-by-bit division.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checksum.h"
#include "common/checksum_impl.h"

#define SEED 20260101u

static uint32_t slow_crc(uint32_t crc, const uint8_t *data, size_t bytes)
{
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

static void check_vectors(uint32_t (*crc)(uint32_t crc, const uint8_t *data, size_t bytes))
{
    static const uint8_t read_command[48] = {
        0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
        0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
    uint8_t data[32];
    memset(data, 0, 32);
    assert_int_equal(crc(0, data, 32), 0x8a9136aa);
    memset(data, 0xff, 32);
    assert_int_equal(crc(0, data, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++) {
        data[i] = i;
    }
    assert_int_equal(crc(0, data, 32), 0x46dd794e);
    for (uint8_t i = 0; i < 32; i++) {
        data[i] = (uint8_t)(31 - i);
    }
    assert_int_equal(crc(0, data, 32), 0x113fdb5c);
    assert_int_equal(crc(0, read_command, 48), 0xd9963a56);
    assert_int_equal(crc(0, (const uint8_t *)"123456789", 9), 0xe3069283);
    assert_int_equal(crc(0, data, 0), 0);
}

static uint32_t public_crc(uint32_t crc, const uint8_t *data, size_t bytes)
{
    return as_crc32c(crc, data, bytes);
}

static void the_vectors_of_rfc_3720_hold(void **state)
{
    (void)state;
    check_vectors(slow_crc);
    check_vectors(public_crc);
    for (size_t i = 0; i < as_crc32c_impl_count; i++) {
        if (as_crc32c_impls[i].supported()) {
            print_message("implementation %s\n", as_crc32c_impls[i].name);
            check_vectors(as_crc32c_impls[i].crc);
        }
    }
}

static uint8_t *random_bytes(size_t bytes)
{
    unsigned seed = SEED;
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(rand_r(&seed) >> 7);
    }
    return data;
}

// Crc and copy of one length at one misalignment; the bytes around the destination must stay.
static void check_one(const as_crc32c_impl_t *impl, const uint8_t *data, size_t bytes, uint8_t *out)
{
    uint32_t start = (uint32_t)(bytes * 2654435761u);
    uint32_t expected = slow_crc(start, data, bytes);
    assert_int_equal(impl->crc(start, data, bytes), expected);
    memset(out, 0xa5, bytes + 32);
    assert_int_equal(impl->copy(start, out + 16, data, bytes), expected);
    assert_memory_equal(out + 16, data, bytes);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(out[i], 0xa5);
        assert_int_equal(out[16 + bytes + (size_t)i], 0xa5);
    }
}

static void every_implementation_agrees_with_long_division(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED);
    const size_t largest = 40000;
    uint8_t *data = random_bytes(largest + 64), *out = malloc(largest + 128);
    // Around each boundary of the implementations: words, 64, 256, three streams of 256, three of
    // 2048, where copies begin to go past the caches.
    static const size_t around[] = {256,  512,   768,   1024,  1536,  6144,
                                    6912, 12288, 16384, 16448, 18432, 40000 - 20};
    for (size_t i = 0; i < as_crc32c_impl_count; i++) {
        const as_crc32c_impl_t *impl = &as_crc32c_impls[i];
        if (!impl->supported()) {
            print_message("skipped: %s is not supported by this processor\n", impl->name);
            continue;
        }
        for (size_t bytes = 0; bytes < 400; bytes++) {
            check_one(impl, data + bytes % 64, bytes, out);
        }
        for (size_t a = 0; a < sizeof(around) / sizeof(around[0]); a++) {
            for (size_t bytes = around[a] - 9; bytes <= around[a] + 9; bytes += 3) {
                check_one(impl, data + (bytes * 7) % 64, bytes, out + bytes % 32);
            }
        }
    }
    free(out);
    free(data);
}

static void a_sum_continues_over_any_split(void **state)
{
    (void)state;
    const size_t bytes = 9000;
    uint8_t *data = random_bytes(bytes);
    uint32_t whole = slow_crc(0, data, bytes);
    for (size_t i = 0; i < as_crc32c_impl_count; i++) {
        if (!as_crc32c_impls[i].supported()) {
            continue;
        }
        for (size_t split = 0; split <= bytes; split += 97) {
            uint32_t first = as_crc32c_impls[i].crc(0, data, split);
            assert_int_equal(as_crc32c_impls[i].crc(first, data + split, bytes - split), whole);
        }
    }
    free(data);
}

static void any_flipped_bit_changes_the_sum(void **state)
{
    (void)state;
    const size_t bytes = 3000;
    uint8_t *data = random_bytes(bytes);
    uint32_t whole = as_crc32c(0, data, bytes);
    for (size_t bit = 0; bit < 8 * bytes; bit += 5) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_not_equal(as_crc32c(0, data, bytes), whole);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(data);
}

static void the_public_copy_copies_and_sums(void **state)
{
    (void)state;
    const size_t bytes = 200001;
    uint8_t *data = random_bytes(bytes), *out = malloc(bytes);
    assert_int_equal(as_crc32c_copy(5, out, data, bytes), slow_crc(5, data, bytes));
    assert_memory_equal(out, data, bytes);
    assert_int_equal(as_crc32c(5, out, bytes), slow_crc(5, data, bytes));
    free(out);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors_of_rfc_3720_hold),
        cmocka_unit_test(every_implementation_agrees_with_long_division),
        cmocka_unit_test(a_sum_continues_over_any_split),
        cmocka_unit_test(any_flipped_bit_changes_the_sum),
        cmocka_unit_test(the_public_copy_copies_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
