// SPDX-License-Identifier: Apache-2.0
// The vectors of the reference implementation of SipHash-2-4: the key 00 01 .. 0f, inputs 00 01 02 ..
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/siphash.h"

static void the_published_vectors_hold(void **state)
{
    (void)state;
    const uint64_t secret[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    const uint64_t expected[] = {0x726fdb47dd0e0e31u, 0x74f839c593dc67fdu, 0x0d6c8009d9a94f5au,
                                 0x85676696d7fb7e2du};
    uint8_t bytes[64];
    for (uint8_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = i;
    }
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(as_siphash(secret, bytes, i), expected[i]);
    }
    assert_int_equal(as_siphash(secret, bytes, 15), 0xa129ca6149be45e5u); // of the paper
}

static void the_own_secret_stays(void **state)
{
    (void)state;
    uint64_t first = as_siphash_own("key", 3);
    assert_int_equal(as_siphash_own("key", 3), first);
    assert_true(as_siphash_own("kez", 3) != first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_vectors_hold),
        cmocka_unit_test(the_own_secret_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
