// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/net_batch.h"

static void what_is_added_comes_out_in_order(void **state)
{
    (void)state;
    unsigned char batch[1000], header[300];
    size_t used = 0, done = 0, count = 0, bytes;
    memset(header, 7, sizeof(header));
    while (as_net_batch_add(batch, &used, sizeof(batch), header, 1 + count * 40 % 300)) {
        count++;
    }
    assert_true(count > 4 && used <= sizeof(batch));
    for (size_t i = 0; i < count; i++) {
        const unsigned char *at = as_net_batch_next(batch, used, &done, &bytes);
        assert_non_null(at);
        assert_int_equal(bytes, 1 + i * 40 % 300);
        assert_memory_equal(at, header, bytes);
    }
    assert_int_equal(done, used);
}

static void a_batch_is_filled_to_the_last_byte_and_no_further(void **state)
{
    (void)state;
    unsigned char batch[12] = {0};
    size_t used = 0;
    assert_false(as_net_batch_add(batch, &used, 11, "123456789a", 10));
    assert_true(as_net_batch_add(batch, &used, 11, "123456789", 9));
    assert_int_equal(used, 11);
    assert_int_equal(batch[11], 0);
    assert_false(as_net_batch_add(batch, &used, 11, "1", 1));
    assert_false(as_net_batch_add(batch, &used, 12, "1", 1));
    used = 0;
    assert_false(as_net_batch_add(batch, &used, sizeof(batch), "", 0));
}

static void what_is_cut_or_empty_is_malformed(void **state)
{
    (void)state;
    unsigned char batch[100];
    size_t used = 0, bytes, done = 0;
    assert_true(as_net_batch_add(batch, &used, sizeof(batch), "abc", 3));
    for (size_t cut = 1; cut < used; cut++) {
        assert_null(as_net_batch_next(batch, cut, &done, &bytes));
        assert_int_equal(done, 0);
    }
    assert_null(as_net_batch_next("\0\0a", 3, &done, &bytes));
    assert_null(as_net_batch_next("\xff\xff", 2, &done, &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_added_comes_out_in_order),
        cmocka_unit_test(a_batch_is_filled_to_the_last_byte_and_no_further),
        cmocka_unit_test(what_is_cut_or_empty_is_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
