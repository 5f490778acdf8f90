// SPDX-License-Identifier: Apache-2.0
// The life of a block, leases and the order of eviction.
#include "tests/unit/kvstore/blocks_world.h"

#include <stdio.h>

#include "common/mem.h"
#include "kvstore/evict.h"
#include "kvstore/lease.h"

static void a_block_is_found_only_while_it_is_sealed(void **state)
{
    (void)state;
    kvs_block_t *block;
    kvs_spec_t spec = spec_of(1, 0);
    assert_int_equal(kvs_index_reserve(blocks, &spec, &block), AS_OK);
    assert_null(find(1));
    kvs_index_fill(blocks, block);
    assert_null(find(1));
    assert_int_equal(added, 0);
    kvs_index_seal(blocks, block, 7);
    assert_ptr_equal(find(1), block);
    assert_int_equal(added, 1);
    kvs_index_doom(blocks, block);
    assert_null(find(1));
    assert_int_equal(removed, 1);
    assert_int_equal(kvs_pool_used(pool), 0);
}

static void a_key_that_is_being_written_is_taken(void **state)
{
    (void)state;
    kvs_block_t *block, *second;
    kvs_spec_t spec = spec_of(1, 0);
    assert_int_equal(kvs_index_reserve(blocks, &spec, &block), AS_OK);
    assert_int_equal(kvs_index_reserve(blocks, &spec, &second), AS_ERR_EXISTS);
    spec.kind = AS_WIRE_SEALED; // another kind is another block
    assert_int_equal(kvs_index_reserve(blocks, &spec, &second), AS_OK);
    kvs_index_doom(blocks, block);
    kvs_index_doom(blocks, second);
}

static void a_condemned_block_waits_for_its_last_pin_and_lease(void **state)
{
    (void)state;
    kvs_block_t *block = seal(1, 0);
    kvs_index_pin(blocks, block);
    kvs_index_lease(blocks, block);
    kvs_index_doom(blocks, block);
    assert_int_equal(kvs_index_count(blocks, KVS_DYING), 1);
    assert_null(find(1));
    kvs_block_t *again = seal(1, 0); // the key is free at once
    assert_ptr_not_equal(again, block);
    kvs_index_unpin(blocks, block);
    assert_int_equal(kvs_index_count(blocks, KVS_DYING), 1);
    kvs_index_unlease(blocks, block);
    assert_int_equal(kvs_index_count(blocks, KVS_DYING), 0);
    assert_ptr_equal(find(1), again);
    assert_int_equal(kvs_pool_used(pool), KVS_POOL_GRAIN_BYTES);
}

static void a_full_pool_is_busy_and_costs_no_entry(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= BLOCKS; n++) {
        seal(n, 0);
    }
    kvs_block_t *block;
    kvs_spec_t spec = spec_of(BLOCKS + 1, BLOCKS + 2);
    assert_int_equal(kvs_index_reserve(blocks, &spec, &block), AS_ERR_BUSY);
    assert_int_equal(kvs_index_unused(blocks), ENTRIES - BLOCKS);
}

static void children_are_evicted_before_their_parents(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 10; n++) {
        seal(n, n - 1); // a chain, its first block the oldest
    }
    uint64_t evicted = 0;
    for (uint32_t left = 10; left > 0; left--) {
        kvs_evict_some(blocks, pool, (left - 1) * KVS_POOL_GRAIN_BYTES, &evicted);
        for (uint32_t n = 1; n <= 10; n++) {
            assert_int_equal(find(n) != NULL, n < left);
        }
    }
    assert_int_equal(evicted, 10);
}

static void a_child_put_before_its_parent_still_goes_first(void **state)
{
    (void)state;
    seal(2, 1);
    seal(1, 0);
    seal(3, 2);
    uint64_t evicted = 0;
    kvs_evict_some(blocks, pool, 2 * KVS_POOL_GRAIN_BYTES, &evicted);
    assert_null(find(3));
    kvs_evict_some(blocks, pool, KVS_POOL_GRAIN_BYTES, &evicted);
    assert_null(find(2));
    assert_non_null(find(1));
}

static void what_was_used_outlives_what_was_not(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        seal(n, 0); // roots of their own
    }
    kvs_index_lease(blocks, find(1));
    kvs_index_unlease(blocks, find(1));
    uint64_t evicted = 0;
    kvs_evict_some(blocks, pool, KVS_POOL_GRAIN_BYTES, &evicted);
    assert_int_equal(evicted, 7);
    assert_non_null(find(1)); // the oldest of all
}

static void held_blocks_are_passed_over(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        seal(n, 0);
    }
    kvs_block_t *one = find(1), *two = find(2);
    kvs_index_pin(blocks, one);
    kvs_index_lease(blocks, two);
    uint64_t evicted = 0;
    while (kvs_evict_some(blocks, pool, 0, &evicted)) {
    }
    assert_int_equal(evicted, 2);
    assert_true(find(1) && find(2));
    kvs_index_unpin(blocks, one);
    kvs_index_unlease(blocks, two);
}

static void use(uint32_t n)
{
    kvs_index_lease(blocks, find(n));
    kvs_index_unlease(blocks, find(n));
}

static uint64_t evict_to(uint32_t left)
{
    uint64_t evicted = 0;
    while (kvs_evict_some(blocks, pool, left * KVS_POOL_GRAIN_BYTES, &evicted)) {
    }
    return evicted;
}

static void a_held_end_of_a_chain_keeps_all_of_it_and_nothing_else(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        seal(n, n - 1);
    }
    for (uint32_t n = 4; n <= 12; n++) {
        seal(n, 0);
    }
    kvs_block_t *last = find(3);
    kvs_index_pin(blocks, last);
    uint64_t evicted = 0;
    uint32_t calls = 0;
    while (kvs_evict_some(blocks, pool, 0, &evicted)) {
        assert_true(++calls < 4); // it does not go round in circles
    }
    assert_int_equal(evicted, 9);
    assert_true(find(1) && find(2) && find(3));
    kvs_index_unpin(blocks, last);
    assert_int_equal(evict_to(0), 3);
}

static void a_used_end_of_a_cold_chain_does_not_hold_up_eviction(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        seal(n, n - 1);
    }
    for (uint32_t i = 0; i < KVS_HEAT_MAX; i++) {
        use(4);
    }
    for (uint32_t n = 5; n <= 12; n++) {
        seal(n, 0);
    }
    assert_int_equal(evict_to(8), 4);
    assert_true(find(1) && find(2) && find(3) && find(4));
    assert_true(!find(5) && !find(6)); // the newer ones, which nobody used
    assert_int_equal(evict_to(0), 8);
}

static void what_comes_back_after_its_eviction_is_for_the_main_queue(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        seal(n, 0);
        assert_int_equal(find(n)->queue, KVS_SMALL);
    }
    assert_int_equal(evict_to(4), 4);
    assert_null(find(1));
    assert_int_equal(seal(1, 0)->queue, KVS_MAIN);
    assert_int_equal(kvs_ghosts_hits(kvs_index_ghosts(blocks)), 1);
    assert_int_equal(seal(9, 0)->queue, KVS_SMALL);
    kvs_index_doom(blocks, find(5)); // dropped, not evicted: no ghost
    assert_int_equal(seal(5, 0)->queue, KVS_SMALL);
    for (uint32_t n = 100; n < 100 + 6 * ENTRIES; n++) { // more than are remembered
        seal(n, 0);
        evict_to(BLOCKS - 1);
    }
    assert_int_equal(seal(2, 0)->queue, KVS_SMALL);
}

static void a_scan_does_not_flush_a_chain_that_is_used(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        seal(n, n - 1);
    }
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t n = 1; n <= 8; n++) {
            use(n);
        }
        for (uint32_t i = 0; i < 2 * BLOCKS; i++) { // chains of their own, of 4 blocks
            if (kvs_index_count(blocks, KVS_SEALED) == BLOCKS) {
                evict_to(BLOCKS - 1);
            }
            uint32_t n = 1000 + round * 2 * BLOCKS + i;
            seal(n, i % 4 ? n - 1 : 0);
        }
        for (uint32_t n = 1; n <= 8; n++) {
            assert_non_null(find(n));
        }
    }
}

// ---- against a model: random use, with every rule checked at every eviction

#define MODEL_KEYS 200u

static struct {
    uint32_t parent;
    bool sealed;
    uint32_t pins, leases;
} model[MODEL_KEYS + 1];
static uint32_t model_sealed;

static void model_on_event(void *ctx, kvs_event_t event, const kvs_spec_t *spec)
{
    (void)ctx;
    uint32_t n;
    memcpy(&n, spec->key.bytes, sizeof(n));
    assert_true(model[n].sealed == (event == KVS_BLOCK_REMOVED));
    model[n].sealed = event == KVS_BLOCK_ADDED;
    model_sealed += event == KVS_BLOCK_ADDED ? 1u : UINT32_MAX;
    for (uint32_t i = 1; event == KVS_BLOCK_REMOVED && i <= MODEL_KEYS; i++) {
        assert_false(model[i].sealed && model[i].parent == n); // only ends of chains go
    }
    assert_false(event == KVS_BLOCK_REMOVED && (model[n].pins > 0 || model[n].leases > 0));
}

static void model_step(uint64_t *seed)
{
    uint32_t n = 1 + next_random(seed) % MODEL_KEYS;
    kvs_block_t *block = find(n);
    assert_int_equal(block != NULL, model[n].sealed);
    if (!block) {
        if (kvs_index_count(blocks, KVS_SEALED) == BLOCKS) {
            evict_to(BLOCKS - 1 - next_random(seed) % 8);
        }
        if (kvs_index_count(blocks, KVS_SEALED) < BLOCKS) {
            seal(n, model[n].parent);
        }
        return;
    }
    switch (next_random(seed) % 6) {
    case 0:
        kvs_index_pin(blocks, block);
        model[n].pins++;
        break;
    case 1:
        kvs_index_lease(blocks, block);
        model[n].leases++;
        break;
    case 2:
        use(n);
        break;
    default:
        if (model[n].pins > 0) {
            model[n].pins--;
            kvs_index_unpin(blocks, block);
        } else if (model[n].leases > 0) {
            model[n].leases--;
            kvs_index_unlease(blocks, block);
        }
    }
}

static void eviction_keeps_its_rules_under_random_use(void **state)
{
    (void)state;
    memset(model, 0, sizeof(model));
    model_sealed = 0;
    kvs_index_set_listener(blocks, model_on_event, NULL);
    uint64_t seed = 7;
    for (uint32_t n = 1; n <= MODEL_KEYS; n++) { // chains, and forks of chains
        model[n].parent = n % 10 == 1 ? 0 : n - 1 - next_random(&seed) % ((n - 1) % 10);
    }
    for (uint32_t i = 0; i < 200000; i++) {
        model_step(&seed);
        assert_int_equal(model_sealed, kvs_index_count(blocks, KVS_SEALED));
        assert_int_equal(kvs_pool_used(pool), model_sealed * KVS_POOL_GRAIN_BYTES);
    }
    for (uint32_t n = 1; n <= MODEL_KEYS; n++) {
        for (; model[n].pins > 0; model[n].pins--) {
            kvs_index_unpin(blocks, find(n));
        }
        for (; model[n].leases > 0; model[n].leases--) {
            kvs_index_unlease(blocks, find(n));
        }
    }
    evict_to(0);
    assert_int_equal(model_sealed, 0);
    assert_int_equal(kvs_index_unused(blocks), ENTRIES);
}

// Blocks of three models in one pool: eviction must make a run that is large enough, however the
// others lie.
static void blocks_of_mixed_sizes_always_find_room(void **state)
{
    (void)state;
    static const uint32_t grains[] = {1, 9, 40};
    const uint32_t pool_grains = 2048;
    kvs_pool_t *mixed;
    kvs_index_t *index;
    uint64_t evicted = 0, seed = 5;
    double used = 0, fragmentation = 0;
    uint32_t busy = 0, rounds_most = 0;
    assert_int_equal(kvs_pool_alloc(pool_grains * KVS_POOL_GRAIN_BYTES, pool_grains, &mixed),
                     AS_OK);
    const kvs_index_options_t options = {pool_grains, NULL, mixed};
    assert_int_equal(kvs_index_alloc(&options, &index), AS_OK);
    for (uint32_t n = 1; n <= 20000; n++) {
        uint32_t of = next_random(&seed) % 3, rounds = 0;
        kvs_spec_t spec = spec_of(n, n % 16 ? n - 1 : 0);
        spec.layers = 1;
        spec.extent_bytes = grains[of] * KVS_POOL_GRAIN_BYTES - 64;
        kvs_block_t *block;
        while (kvs_index_reserve(index, &spec, &block) == AS_ERR_BUSY) {
            double all = (double)kvs_pool_bytes(mixed), in_use = (double)kvs_pool_used(mixed);
            used += rounds == 0 ? in_use / all : 0;
            fragmentation += rounds == 0 && in_use < all
                                 ? 1 - (double)kvs_pool_largest(mixed) / (all - in_use)
                                 : 0;
            busy += rounds == 0;
            size_t goal = kvs_pool_used(mixed) - spec.extent_bytes; // as the store does
            while (kvs_evict_some(index, mixed, goal, &evicted)) {
            }
            rounds_most = ++rounds > rounds_most ? rounds : rounds_most;
        }
        kvs_index_fill(index, block);
        kvs_index_seal(index, block, n);
    }
    printf(
        "sizes of 1, 9 and 40 grains: at %.2f in use a block finds no room, with %.2f of what is "
        "free in pieces; at most %u evictions in a row of its size made some\n",
        used / busy, fragmentation / busy, rounds_most);
    assert_true(busy > 1000 && used / busy > 0.85 && rounds_most <= 8);
    kvs_index_free(index);
    kvs_pool_free(mixed);
}

static void parents_that_go_round_in_circles_are_evicted_all_the_same(void **state)
{
    (void)state;
    seal(1, 2);
    seal(2, 3);
    seal(3, 1);
    uint64_t evicted = 0;
    while (kvs_evict_some(blocks, pool, 0, &evicted)) {
    }
    assert_int_equal(evicted, 3);
}

static void a_lease_is_its_owners_and_ends_once(void **state)
{
    (void)state;
    kvs_leases_t *leases;
    kvs_lease_owner_t a = {.first = KVS_LEASE_NONE}, b = {.first = KVS_LEASE_NONE};
    kvs_block_t *leased[2] = {seal(1, 0), NULL};
    uint64_t id, other;
    assert_int_equal(kvs_leases_alloc(blocks, 2, &leases), AS_OK);
    assert_int_equal(kvs_lease_begin(leases, &a, leased, 2, 100, &id), AS_OK);
    assert_ptr_equal(kvs_lease_block(leases, &a, id, 0), leased[0]);
    assert_null(kvs_lease_block(leases, &a, id, 1)); // was not found
    assert_null(kvs_lease_block(leases, &a, id, 2)); // was not asked
    assert_null(kvs_lease_block(leases, &b, id, 0));
    kvs_lease_end(leases, &b, id);
    assert_int_equal(kvs_leases_count(leases), 1);
    assert_int_equal(kvs_lease_begin(leases, &b, leased, 1, 200, &other), AS_OK);
    assert_int_equal(kvs_lease_begin(leases, &b, leased, 1, 200, &other), AS_ERR_BUSY);
    kvs_lease_end(leases, &a, id);
    kvs_lease_end(leases, &a, id);
    assert_int_equal(leased[0]->leases, 1);
    kvs_leases_sweep(leases, 199);
    assert_int_equal(leased[0]->leases, 1);
    kvs_leases_sweep(leases, 200);
    assert_int_equal(leased[0]->leases, 0);
    assert_int_equal(kvs_lease_begin(leases, &a, leased, 1, 100, &other), AS_OK);
    assert_null(kvs_lease_block(leases, &a, id, 0)); // the slot has another generation
    kvs_lease_end_owner(leases, &a);
    assert_int_equal(kvs_leases_count(leases), 0);
    kvs_leases_free(leases);
}

// Keys as somebody would choose them who wants them all in one bucket, or in that of another tenant.
static void chosen_keys_spread_over_the_table(void **state)
{
    (void)state;
    enum { KEYS = 4096 };
    static uint8_t used[2][KEYS];
    uint32_t spread[2] = {0}, same = 0;
    memset(used, 0, sizeof(used));
    for (uint32_t i = 0; i < KEYS; i++) {
        as_key_t key = {{0}}, twin = {{0}};
        memcpy(key.bytes + 8, &i, sizeof(i)); // the first 8 bytes are those of all
        uint64_t mixed =
            kvs_realm(7, 1) * 0x9e3779b97f4a7c15ull ^ kvs_realm(8, 1) * 0x9e3779b97f4a7c15ull;
        memcpy(twin.bytes, &mixed, sizeof(mixed));
        memcpy(twin.bytes + 8, &i, sizeof(i));
        uint32_t at[2] = {(uint32_t)kvs_realm_hash(kvs_realm(7, 1), &key) % KEYS,
                          (uint32_t)kvs_realm_hash(kvs_realm(8, 1), &twin) % KEYS};
        same += at[0] == at[1];
        for (int k = 0; k < 2; k++) {
            spread[k] += !used[k][at[k]];
            used[k][at[k]] = 1;
        }
    }
    assert_in_range(spread[0], KEYS / 2, KEYS * 3 / 4); // 63 % by chance
    assert_in_range(spread[1], KEYS / 2, KEYS * 3 / 4);
    assert_in_range(same, 0, 20);
}

static void a_lease_is_renewed_by_its_owner_and_not_for_ever(void **state)
{
    (void)state;
    const uint64_t most_us = AS_WIRE_LEASE_MS_MAX * (uint64_t)1000;
    kvs_leases_t *leases;
    kvs_lease_owner_t a = {.first = KVS_LEASE_NONE}, b = {.first = KVS_LEASE_NONE};
    kvs_block_t *leased[1] = {seal(1, 0)};
    uint64_t id;
    assert_int_equal(kvs_leases_alloc(blocks, 2, &leases), AS_OK);
    assert_int_equal(kvs_lease_begin(leases, &a, leased, 1, 100, &id), AS_OK);
    assert_int_equal(kvs_lease_renew(leases, &b, id, 300), 0);
    assert_int_equal(kvs_lease_renew(leases, &a, id, 300), 300);
    assert_int_equal(kvs_lease_renew(leases, &a, id, 200), 300); // never back
    kvs_leases_sweep(leases, 299);
    assert_int_equal(leased[0]->leases, 1);
    assert_int_equal(kvs_lease_renew(leases, &a, id, UINT64_MAX), 100 + most_us);
    kvs_leases_sweep(leases, 100 + most_us);
    assert_int_equal(leased[0]->leases, 0);
    assert_int_equal(kvs_lease_renew(leases, &a, id, UINT64_MAX), 0);
    kvs_leases_free(leases);
}

static void the_failure_of_each_allocation_is_survived(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 9; n++) {
        const kvs_index_options_t options = {ENTRIES, memory, pool};
        kvs_index_t *other = NULL;
        as_mem_fail_nth(n);
        as_status_t status = kvs_index_alloc(&options, &other);
        as_mem_fail_nth(0);
        assert_int_equal(status, n <= 8 ? AS_ERR_NO_MEMORY : AS_OK);
        kvs_index_free(other);
    }
}

int main(void)
{
    as_siphash_own_known();
    const struct CMUnitTest tests[] = {
        TEST(a_block_is_found_only_while_it_is_sealed),
        TEST(a_key_that_is_being_written_is_taken),
        TEST(a_condemned_block_waits_for_its_last_pin_and_lease),
        TEST(a_full_pool_is_busy_and_costs_no_entry),
        TEST(children_are_evicted_before_their_parents),
        TEST(a_child_put_before_its_parent_still_goes_first),
        TEST(what_was_used_outlives_what_was_not),
        TEST(held_blocks_are_passed_over),
        TEST(a_held_end_of_a_chain_keeps_all_of_it_and_nothing_else),
        TEST(a_used_end_of_a_cold_chain_does_not_hold_up_eviction),
        TEST(what_comes_back_after_its_eviction_is_for_the_main_queue),
        TEST(a_scan_does_not_flush_a_chain_that_is_used),
        TEST(eviction_keeps_its_rules_under_random_use),
        TEST(blocks_of_mixed_sizes_always_find_room),
        TEST(parents_that_go_round_in_circles_are_evicted_all_the_same),
        TEST(a_lease_is_its_owners_and_ends_once),
        TEST(chosen_keys_spread_over_the_table),
        TEST(a_lease_is_renewed_by_its_owner_and_not_for_ever),
        TEST(the_failure_of_each_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
