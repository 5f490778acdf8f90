// SPDX-License-Identifier: Apache-2.0
// Entries of the index that stand for a key: a block's, or a parent's that is not here.
#include "tests/unit/kvstore/blocks_world.h"

static void a_full_index_is_busy(void **state)
{
    (void)state;
    const kvs_index_options_t options = {3, memory, pool};
    kvs_index_t *small;
    kvs_block_t *block;
    kvs_spec_t spec = spec_of(1, 2), another = spec_of(3, 4);
    assert_int_equal(kvs_index_alloc(&options, &small), AS_OK);
    assert_int_equal(kvs_index_reserve(small, &spec, &block), AS_OK);
    assert_int_equal(kvs_index_unused(small), 1); // its parent's key has one
    assert_int_equal(kvs_index_reserve(small, &another, &block), AS_ERR_BUSY);
    assert_int_equal(kvs_index_unused(small), 1);
    another = spec_of(2, 0); // the parent itself needs no other
    assert_int_equal(kvs_index_reserve(small, &another, &block), AS_OK);
    another = spec_of(3, 0);
    assert_int_equal(kvs_index_reserve(small, &another, &block), AS_OK);
    another = spec_of(5, 0);
    assert_int_equal(kvs_index_reserve(small, &another, &block), AS_ERR_BUSY);
    kvs_index_free(small);
    assert_int_equal(kvs_pool_used(pool), 3 * KVS_POOL_GRAIN_BYTES);
}

static bool has_parent_key(const kvs_block_t *block, uint32_t parent)
{
    as_key_t key = key_of(parent);
    kvs_spec_t spec = kvs_index_spec(blocks, block);
    return as_key_equal(&spec.parent, &key) &&
           as_key_equal(kvs_index_parent_key(blocks, block), &key);
}

static void a_parent_that_comes_late_or_again_finds_its_children(void **state)
{
    (void)state;
    kvs_block_t *child = seal(2, 1);
    assert_null(kvs_index_parent(blocks, child));
    for (uint32_t round = 0; round < 2; round++) {
        kvs_block_t *parent = seal(1, 0);
        assert_ptr_equal(kvs_index_child(blocks, parent), child);
        assert_ptr_equal(kvs_index_parent(blocks, child), parent);
        assert_int_equal(kvs_index_unused(blocks), ENTRIES - 2);
        kvs_index_doom(blocks, parent);
        assert_null(kvs_index_parent(blocks, child));
        assert_true(has_parent_key(child, 1));
    }
    kvs_spec_t spec = spec_of(1, 0);
    spec.tenant = 7; // another's block of that key is no parent of it
    kvs_block_t *stranger;
    assert_int_equal(kvs_index_reserve(blocks, &spec, &stranger), AS_OK);
    assert_null(kvs_index_child(blocks, stranger));
    kvs_index_doom(blocks, stranger);
    kvs_index_doom(blocks, child);
    assert_int_equal(kvs_index_unused(blocks), ENTRIES); // nobody names it any more
}

static void a_condemned_parent_keeps_its_children_and_its_key_is_free(void **state)
{
    (void)state;
    kvs_block_t *parent = seal(1, 0), *child = seal(2, 1);
    kvs_index_lease(blocks, parent);
    kvs_index_doom(blocks, parent);
    kvs_block_t *again = seal(1, 0), *second = seal(3, 1);
    assert_ptr_equal(kvs_index_child(blocks, again), second);
    kvs_index_unlease(blocks, parent);
    assert_ptr_equal(find(1), again);
    assert_true(has_parent_key(child, 1) && has_parent_key(second, 1));
    kvs_index_doom(blocks, again);
    kvs_index_doom(blocks, second);
    assert_int_equal(kvs_index_unused(blocks), ENTRIES - 2);
    assert_non_null(kvs_index_child(blocks, seal(1, 0))); // of one of those that stood for it
    kvs_index_doom(blocks, child);
    kvs_index_doom(blocks, find(1));
    assert_int_equal(kvs_index_unused(blocks), ENTRIES);
}

// Parents as nobody would say them, also itself; blocks that are dropped while they are read.
static void entries_are_neither_lost_nor_kept_under_random_use(void **state)
{
    (void)state;
    enum { KEYS = 12, LEASED = 8 };
    kvs_block_t *leased[LEASED] = {0};
    uint32_t parents[KEYS + 1] = {0};
    uint64_t seed = 3;
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t n = 1 + next_random(&seed) % KEYS, of = next_random(&seed) % LEASED;
        kvs_block_t *block = find(n);
        if (leased[of]) {
            kvs_index_unlease(blocks, leased[of]);
            leased[of] = NULL;
        } else if (!block) {
            parents[n] = next_random(&seed) % (KEYS + 1);
            seal(n, parents[n]);
        } else if (next_random(&seed) % 2) {
            kvs_index_lease(blocks, block);
            leased[of] = block;
        } else {
            assert_true(has_parent_key(block, parents[n]));
            kvs_index_doom(blocks, block);
        }
        assert_true(kvs_index_unused(blocks) >= ENTRIES - 2 * KEYS - 2 * LEASED);
    }
    for (uint32_t of = 0; of < LEASED; of++) {
        if (leased[of]) {
            kvs_index_unlease(blocks, leased[of]);
        }
    }
    while (kvs_index_oldest(blocks, KVS_SMALL)) {
        kvs_index_doom(blocks, kvs_index_oldest(blocks, KVS_SMALL));
    }
    assert_int_equal(kvs_index_unused(blocks), ENTRIES);
    assert_int_equal(kvs_pool_used(pool), 0);
}

int main(void)
{
    as_siphash_own_known();
    const struct CMUnitTest tests[] = {
        TEST(a_full_index_is_busy),
        TEST(a_parent_that_comes_late_or_again_finds_its_children),
        TEST(a_condemned_parent_keeps_its_children_and_its_key_is_free),
        TEST(entries_are_neither_lost_nor_kept_under_random_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
