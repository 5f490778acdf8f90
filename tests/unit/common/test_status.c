// SPDX-License-Identifier: Apache-2.0
// Statuses have names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "common/status.h"

static void every_status_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int a = 0; a < AS_STATUS_COUNT; a++) {
        assert_true(strlen(as_status_str((as_status_t)a)) > 1);
        assert_string_not_equal(as_status_str((as_status_t)a), "unknown status");
        for (int b = 0; b < a; b++) {
            assert_string_not_equal(as_status_str((as_status_t)a), as_status_str((as_status_t)b));
        }
    }
    assert_string_equal(as_status_str(AS_ERR_PEER_LOST), "peer lost");
}

static void a_status_from_a_newer_peer_has_a_name_too(void **state)
{
    (void)state;
    assert_string_equal(as_status_str((as_status_t)AS_STATUS_COUNT), "unknown status");
    assert_string_equal(as_status_str((as_status_t)-1), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_of_its_own),
        cmocka_unit_test(a_status_from_a_newer_peer_has_a_name_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
