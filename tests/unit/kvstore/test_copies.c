// SPDX-License-Identifier: Apache-2.0
// Where copies of other stores stand in the order of eviction.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kvstore/index.h"
#include "proto/wire.h"

#define BLOCKS      32u
#define BLOCK_BYTES 4096u

static uint8_t memory[BLOCKS * KVS_POOL_GRAIN_BYTES];
static kvs_index_t *blocks;

static as_key_t key_of(uint32_t n)
{
    as_key_t key = {{0}};
    memcpy(key.bytes, &n, sizeof(n));
    return key;
}

static kvs_block_t *seal_copy(uint32_t n, bool is_hot)
{
    kvs_block_t *block;
    const kvs_spec_t spec = {.key = key_of(n),
                             .parent = key_of(0),
                             .namespace_key = key_of(0),
                             .kind = AS_WIRE_FULL,
                             .layers = 1,
                             .extent_bytes = BLOCK_BYTES,
                             .tokens = 16,
                             .place = n};
    assert_int_equal(kvs_index_reserve(blocks, &spec, &block), AS_OK);
    kvs_index_fill(blocks, block);
    kvs_index_seal_copy(blocks, block, n, is_hot);
    return block;
}

static void hot_copies_have_a_part_of_the_pool_until_they_are_used(void **state)
{
    (void)state;
    kvs_pool_t *pool;
    assert_int_equal(kvs_pool_alloc(sizeof(memory), BLOCKS, &pool), AS_OK);
    const kvs_index_options_t options = {BLOCKS, memory, pool};
    assert_int_equal(kvs_index_alloc(&options, &blocks), AS_OK);
    const uint32_t most = sizeof(memory) / KVS_GIVEN_PART / BLOCK_BYTES;
    assert_in_range(most, 3, BLOCKS / 4);
    kvs_block_t *given[3], *block;
    assert_int_equal(seal_copy(1, false)->queue, KVS_SMALL);
    for (uint32_t n = 0; n < most; n++) {
        block = seal_copy(10 + n, true);
        assert_int_equal(block->queue, KVS_MAIN);
        given[n % 3] = block;
    }
    assert_int_equal(seal_copy(2, true)->queue, KVS_SMALL);
    kvs_index_lease(blocks, given[0]); // used
    kvs_index_lease(blocks, given[0]); // once more
    assert_int_equal(seal_copy(3, true)->queue, KVS_MAIN);
    assert_int_equal(seal_copy(4, true)->queue, KVS_SMALL);
    kvs_index_evict(blocks, given[1]);
    kvs_index_guard(blocks, given[2], KVS_GUARD_HARD);
    assert_int_equal(seal_copy(5, true)->queue, KVS_MAIN);
    assert_int_equal(seal_copy(6, true)->queue, KVS_MAIN);
    assert_int_equal(seal_copy(7, true)->queue, KVS_SMALL);
    kvs_index_unlease(blocks, given[0]);
    kvs_index_unlease(blocks, given[0]);
    kvs_index_free(blocks);
    kvs_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hot_copies_have_a_part_of_the_pool_until_they_are_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
