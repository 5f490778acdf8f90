// SPDX-License-Identifier: Apache-2.0
// Placement: balanced by weight, and stable when stores come and go.
#include "client/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

#define RUNS 4000u

static as_key_t key_of(uint64_t n)
{
    as_key_t key = {{0}};
    n = (n + 1) * 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < 8; i++) {
        key.bytes[i] = (uint8_t)((n ^ n >> 29) * 0xbf58476d1ce4e5b9ull >> (8 * i));
    }
    return key;
}

static assay_client_t client_of(uint32_t count)
{
    assay_client_t client = {.store_count = count};
    for (uint32_t i = 0; i < count; i++) {
        client.stores[i] = (assay_store_t){.node_id = i + 1, .capacity_bytes = 1u << 30};
    }
    return client;
}

static void without_stores_there_is_no_place(void **state)
{
    (void)state;
    static assay_client_t client;
    as_key_t key = key_of(1);
    assert_int_equal(assay_client_place(&client, &key), 0);
}

static void runs_are_spread_in_proportion_to_weight(void **state)
{
    (void)state;
    static assay_client_t client;
    uint32_t counts[5] = {0};
    client = client_of(4);
    client.stores[3].capacity_bytes = 3u << 30; // half of all
    for (uint32_t i = 0; i < RUNS; i++) {
        as_key_t key = key_of(i);
        counts[assay_client_place(&client, &key)]++;
    }
    for (uint32_t i = 1; i <= 3; i++) {
        assert_in_range(counts[i], RUNS / 6 * 85 / 100, RUNS / 6 * 115 / 100);
    }
    assert_in_range(counts[4], RUNS / 2 * 93 / 100, RUNS / 2 * 107 / 100);
}

static void a_store_that_goes_moves_only_its_own_runs(void **state)
{
    (void)state;
    static assay_client_t all, fewer;
    all = client_of(5);
    fewer = client_of(4); // without node 5
    for (uint32_t i = 0; i < RUNS; i++) {
        as_key_t key = key_of(i);
        uint64_t before = assay_client_place(&all, &key);
        if (before != 5) {
            assert_int_equal(assay_client_place(&fewer, &key), before);
        }
    }
}

// It is as gone for placement; what has copies there goes to the next best.
static void nothing_is_placed_on_a_store_that_drains(void **state)
{
    (void)state;
    static assay_client_t draining, fewer;
    draining = client_of(5);
    draining.stores[4].draining = true;
    fewer = client_of(4); // without node 5
    for (uint32_t i = 0; i < RUNS; i++) {
        as_key_t key = key_of(i);
        uint64_t one[5], other[5];
        assert_int_equal(assay_client_rank(&draining, &key, one, 5), 4);
        assert_int_equal(assay_client_rank(&fewer, &key, other, 5), 4);
        assert_memory_equal(one, other, 4 * sizeof(one[0]));
    }
}

static void the_order_of_the_list_does_not_matter(void **state)
{
    (void)state;
    static assay_client_t one, other;
    one = client_of(5);
    other = client_of(5);
    for (uint32_t i = 0; i < 5; i++) {
        other.stores[i] = one.stores[4 - i];
    }
    for (uint32_t i = 0; i < RUNS; i++) {
        as_key_t key = key_of(i);
        assert_int_equal(assay_client_place(&one, &key), assay_client_place(&other, &key));
    }
}

// The copies of a run: the best node is the one of a single copy, all are different, and when one
// goes the others stay and the next moves up.
static void copies_are_at_the_next_best_nodes(void **state)
{
    (void)state;
    static assay_client_t all, fewer;
    all = client_of(6);
    fewer = client_of(5); // without node 6
    for (uint32_t i = 0; i < RUNS; i++) {
        as_key_t key = key_of(i);
        uint64_t ids[8], left[8], expected[8];
        assert_int_equal(assay_client_rank(&all, &key, ids, 8), 6);
        assert_int_equal(ids[0], assay_client_place(&all, &key));
        assert_int_equal(assay_client_rank(&fewer, &key, left, 8), 5);
        uint32_t count = 0;
        for (uint32_t j = 0; j < 6; j++) {
            for (uint32_t k = 0; k < j; k++) {
                assert_int_not_equal(ids[j], ids[k]);
            }
            expected[count] = ids[j];
            count += ids[j] != 6;
        }
        assert_memory_equal(left, expected, 5 * sizeof(left[0]));
        uint64_t two[2];
        assert_int_equal(assay_client_rank(&all, &key, two, 2), 2);
        assert_memory_equal(two, ids, sizeof(two));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_stores_there_is_no_place),
        cmocka_unit_test(runs_are_spread_in_proportion_to_weight),
        cmocka_unit_test(a_store_that_goes_moves_only_its_own_runs),
        cmocka_unit_test(copies_are_at_the_next_best_nodes),
        cmocka_unit_test(nothing_is_placed_on_a_store_that_drains),
        cmocka_unit_test(the_order_of_the_list_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
