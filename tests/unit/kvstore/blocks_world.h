// SPDX-License-Identifier: Apache-2.0
// An index over a small pool, and blocks for it. Each includer is one test program.
#ifndef BLOCKS_WORLD_H
#define BLOCKS_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "kvstore/index.h"
#include "proto/wire.h"

#define BLOCKS  32u          // that the pool has room for
#define ENTRIES (2 * BLOCKS) // each may name a parent that is not here

static uint8_t memory[BLOCKS * KVS_POOL_GRAIN_BYTES];
static kvs_pool_t *pool;
static kvs_index_t *blocks;
static int added, removed;

static void on_event(void *ctx, kvs_event_t event, const kvs_spec_t *spec)
{
    (void)ctx;
    (void)spec;
    *(event == KVS_BLOCK_ADDED ? &added : &removed) += 1;
}

static int begin(void **state)
{
    (void)state;
    added = removed = 0;
    if (kvs_pool_alloc(sizeof(memory), ENTRIES, &pool) != AS_OK) {
        return -1;
    }
    const kvs_index_options_t options = {ENTRIES, memory, pool};
    if (kvs_index_alloc(&options, &blocks) != AS_OK) {
        return -1;
    }
    kvs_index_set_listener(blocks, on_event, NULL);
    return 0;
}

static int end(void **state)
{
    (void)state;
    kvs_index_free(blocks);
    kvs_pool_free(pool);
    return 0;
}

static as_key_t key_of(uint32_t n)
{
    as_key_t key = {{0}};
    uint32_t mixed = n * 0x9e3779b9u;
    memcpy(key.bytes, &n, sizeof(n));
    memcpy(key.bytes + 4, &mixed, sizeof(mixed)); // keys are uniform
    key.bytes[31] = 1;
    return key;
}

// Block n follows block `parent`; 0 is the namespace.
static kvs_spec_t spec_of(uint32_t n, uint32_t parent)
{
    return (kvs_spec_t){.key = key_of(n),
                        .parent = key_of(parent),
                        .namespace_key = key_of(0),
                        .kind = AS_WIRE_FULL,
                        .layers = 2,
                        .extent_bytes = 128,
                        .tokens = 16,
                        .place = n};
}

static kvs_block_t *seal(uint32_t n, uint32_t parent)
{
    kvs_block_t *block;
    kvs_spec_t spec = spec_of(n, parent);
    assert_int_equal(kvs_index_reserve(blocks, &spec, &block), AS_OK);
    kvs_index_fill(blocks, block);
    kvs_index_seal(blocks, block, n);
    return block;
}

static kvs_block_t *find(uint32_t n)
{
    as_key_t key = key_of(n);
    return kvs_index_find(blocks, &key, AS_WIRE_FULL);
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

#endif
