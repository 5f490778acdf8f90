// SPDX-License-Identifier: Apache-2.0
// Which addresses of a store others are told.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kvstore/advertise.h"

static void every_interface_is_known_by_each_of_its_names(void **state)
{
    (void)state;
    const char *every[] = {"0.0.0.0:1", "0.0.0.0:0", "[::]:1", "[0:0::0]:1", ":1", "0:1", "0.0:1"};
    const char *one[] = {"10.0.0.2:1", "127.0.0.1:0", "[::1]:1", "[fe80::2]:1", "store-0.stores:1"};
    for (size_t i = 0; i < sizeof(every) / sizeof(every[0]); i++) {
        assert_true(kvs_is_every_interface(every[i]));
    }
    for (size_t i = 0; i < sizeof(one) / sizeof(one[0]); i++) {
        assert_false(kvs_is_every_interface(one[i]));
    }
}

static void expect(const char *address, const char *advertise, const char *data, const char *told)
{
    char found[KVS_ADDRESS_BYTES_MAX];
    kvs_advertise(address, advertise, data, found);
    assert_string_equal(found, told);
}

static void what_is_told_can_be_reached(void **state)
{
    (void)state;
    expect("10.0.0.2:7710", NULL, "10.0.0.2:7710", "10.0.0.2:7710");
    expect("127.0.0.1:7712", NULL, "10.0.0.2:7710", "127.0.0.1:7712");
    expect("0.0.0.0:7712", NULL, "10.0.0.2:7710", "10.0.0.2:7712");
    expect("[::]:7712", NULL, "[fe80::2]:7710", "[fe80::2]:7712");
    expect("0.0.0.0:7710", "10.0.0.2", "0.0.0.0:7710", "10.0.0.2:7710");
    expect("10.9.9.9:7710", "store-0.stores", "10.9.9.9:7710", "store-0.stores:7710");
    expect("[::]:7710", "[fe80::2]", "[::]:7710", "[fe80::2]:7710");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_interface_is_known_by_each_of_its_names),
        cmocka_unit_test(what_is_told_can_be_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
