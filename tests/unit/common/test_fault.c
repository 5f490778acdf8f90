// SPDX-License-Identifier: Apache-2.0
// Fault sites fire when and only when they are armed to.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "capture.h"
#include "common/fault.h"

static int clear(void **state)
{
    (void)state;
    as_fault_clear();
    return 0;
}

static void no_site_fires_unarmed(void **state)
{
    (void)state;
    for (int site = 0; site < AS_FAULT_COUNT; site++) {
        assert_false(as_fault((as_fault_site_t)site));
    }
}

static void every_site_fires_once_on_its_nth_visit(void **state)
{
    (void)state;
    for (int i = 0; i < AS_FAULT_COUNT; i++) {
        as_fault_site_t site = (as_fault_site_t)i;
        as_fault_arm(site, 3);
        assert_false(as_fault(site));
        assert_false(as_fault((as_fault_site_t)((i + 1) % AS_FAULT_COUNT)));
        assert_false(as_fault(site));
        assert_true(as_fault(site));
        assert_false(as_fault(site));
        assert_int_equal(as_fault_fired(site), 1);
    }
}

static unsigned fired_of(uint32_t ppm, uint64_t seed, unsigned visits)
{
    unsigned fired = 0;
    as_fault_arm_chance(AS_FAULT_serve_read_corrupt, ppm, seed);
    for (unsigned i = 0; i < visits; i++) {
        fired += as_fault(AS_FAULT_serve_read_corrupt);
    }
    return fired;
}

static void chance_is_about_what_was_asked_and_follows_the_seed(void **state)
{
    (void)state;
    // 100,000 visits at 5 %: 5,000, standard deviation 69; ten of these for the bound.
    assert_in_range(fired_of(50000, 1, 100000), 4310, 5690);
    assert_int_equal(fired_of(0, 1, 1000), 0);
    assert_int_equal(fired_of(1000000, 1, 1000), 1000);
    bool first[64], differs = false;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        as_fault_arm_chance(AS_FAULT_serve_read_corrupt, 500000, 7);
        for (int i = 0; i < 64; i++) {
            bool fires = as_fault(AS_FAULT_serve_read_corrupt);
            assert_true(seed == 1 || fires == first[i]);
            first[i] = fires;
        }
    }
    as_fault_arm_chance(AS_FAULT_serve_read_corrupt, 500000, 8);
    for (int i = 0; i < 64; i++) {
        differs = differs || as_fault(AS_FAULT_serve_read_corrupt) != first[i];
    }
    assert_true(differs);
}

static void clear_disarms_and_forgets(void **state)
{
    (void)state;
    as_fault_arm(AS_FAULT_route_fail, 1);
    assert_true(as_fault(AS_FAULT_route_fail));
    as_fault_arm(AS_FAULT_route_fail, 1);
    as_fault_clear();
    assert_false(as_fault(AS_FAULT_route_fail));
    assert_int_equal(as_fault_fired(AS_FAULT_route_fail), 0);
}

static void texts_arm_sites(void **state)
{
    (void)state;
    assert_int_equal(as_fault_parse("route_fail=2"), AS_OK);
    assert_false(as_fault(AS_FAULT_route_fail));
    assert_true(as_fault(AS_FAULT_route_fail));
    assert_int_equal(as_fault_parse("serve_locate_drop=1000000@9"), AS_OK);
    assert_true(as_fault(AS_FAULT_serve_locate_drop));
    assert_string_equal(as_fault_name(AS_FAULT_serve_locate_drop), "serve_locate_drop");
}

static void a_bad_text_is_refused_with_what_is_accepted(void **state)
{
    (void)state;
    static capture_t capture;
    static const char *const bad[] = {"",
                                      "route_fail",
                                      "route_fail=",
                                      "route_fail=0",
                                      "route_fail=-1",
                                      "route_fail=1x",
                                      "route_fail=1@",
                                      "route_fail=@1",
                                      "route_fail=1000001@1",
                                      "route_fail=18446744073709551616",
                                      "route_fai=1",
                                      "route_fails=1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        capture_begin(&capture);
        as_status_t status = as_fault_parse(bad[i]);
        const char *text = capture_end(&capture);
        assert_int_equal(status, AS_ERR_INVALID);
        assert_true(strstr(text, "SITE=NTH") || strstr(text, "; known: serve_read_corrupt, "));
        assert_false(as_fault(AS_FAULT_route_fail));
    }
    capture_begin(&capture);
    as_status_t status = as_fault_parse("nope=1");
    const char *text = capture_end(&capture);
    assert_int_equal(status, AS_ERR_INVALID);
    assert_non_null(strstr(text, "unknown fault site nope; known: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(no_site_fires_unarmed, clear),
        cmocka_unit_test_setup(every_site_fires_once_on_its_nth_visit, clear),
        cmocka_unit_test_setup(chance_is_about_what_was_asked_and_follows_the_seed, clear),
        cmocka_unit_test_setup(clear_disarms_and_forgets, clear),
        cmocka_unit_test_setup(texts_arm_sites, clear),
        cmocka_unit_test_setup(a_bad_text_is_refused_with_what_is_accepted, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
