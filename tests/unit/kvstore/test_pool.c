// SPDX-License-Identifier: Apache-2.0
// The allocator of the pool against a model: a byte map of who has which grain.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kvstore/pool.h"

#define GRAINS 2048u
#define RUNS   512u
#define SEED   20260303u

static uint64_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

typedef struct held {
    uint32_t run;
    size_t offset, bytes;
} held_t;

static void mark(uint8_t *map, const held_t *held, uint8_t from, uint8_t to)
{
    size_t first = held->offset / KVS_POOL_GRAIN_BYTES;
    size_t count = (held->bytes + KVS_POOL_GRAIN_BYTES - 1) / KVS_POOL_GRAIN_BYTES;
    assert_int_equal(held->offset % KVS_POOL_GRAIN_BYTES, 0);
    for (size_t i = first; i < first + count; i++) {
        assert_true(i < GRAINS);
        assert_int_equal(map[i], from);
        map[i] = to;
    }
}

static void random_takes_and_gives_agree_with_a_model(void **state)
{
    (void)state;
    static uint8_t map[GRAINS];
    static held_t held[RUNS]; // those out first; of the others `run` is a name that is free
    uint32_t count = 0, refused = 0;
    double worst = 0;
    kvs_pool_t *pool;
    rng_state = SEED;
    printf("seed %u\n", SEED);
    for (uint32_t i = 0; i < RUNS; i++) {
        held[i].run = i;
    }
    assert_int_equal(kvs_pool_alloc((size_t)GRAINS * KVS_POOL_GRAIN_BYTES, RUNS, &pool), AS_OK);
    for (uint32_t step = 0; step < 200000; step++) {
        if (count < RUNS && rng(100) < 52) {
            // Mixed sizes: mostly small, some a twentieth of the pool.
            held_t now = {.run = held[count].run,
                          .bytes = 1 + (rng(4) ? rng(8 * KVS_POOL_GRAIN_BYTES)
                                               : rng(100 * KVS_POOL_GRAIN_BYTES))};
            if (!kvs_pool_take(pool, now.run, now.bytes, &now.offset)) {
                refused++;
                size_t free_bytes = kvs_pool_bytes(pool) - kvs_pool_used(pool);
                double fragmentation =
                    free_bytes ? 1.0 - (double)kvs_pool_largest(pool) / (double)free_bytes : 0.0;
                worst = fragmentation > worst ? fragmentation : worst;
                // Segregated fit may refuse up to a sixteenth early, never more.
                assert_true(kvs_pool_largest(pool) <
                            now.bytes + now.bytes / 8 + 2 * KVS_POOL_GRAIN_BYTES);
                continue;
            }
            mark(map, &now, 0, 1);
            held[count++] = now;
        } else if (count > 0) {
            uint32_t which = rng(count);
            mark(map, &held[which], 1, 0);
            held_t gone = held[which];
            kvs_pool_give(pool, gone.run);
            held[which] = held[--count];
            held[count] = gone;
        }
        if (step % 997 == 0) {
            kvs_pool_check(pool);
        }
    }
    printf("refused %u, fragmentation when refused at most %.2f\n", refused, worst);
    assert_true(refused > 0); // else the pool was never full
    while (count > 0) {
        kvs_pool_give(pool, held[--count].run);
    }
    kvs_pool_check(pool);
    assert_int_equal(kvs_pool_used(pool), 0);
    assert_int_equal(kvs_pool_largest(pool), kvs_pool_bytes(pool)); // all joined again
    kvs_pool_free(pool);
}

static void runs_of_one_size_fill_the_pool_to_the_last(void **state)
{
    (void)state;
    kvs_pool_t *pool;
    size_t offset, bytes = 3 * KVS_POOL_GRAIN_BYTES - 5;
    assert_int_equal(kvs_pool_alloc(300 * (size_t)KVS_POOL_GRAIN_BYTES, 200, &pool), AS_OK);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 100; i++) {
            assert_true(kvs_pool_take(pool, i, bytes, &offset));
        }
        assert_false(kvs_pool_take(pool, 100, 1, &offset));
        kvs_pool_give(pool, 50); // a hole of just this size is found again
        assert_true(kvs_pool_take(pool, 150, bytes, &offset));
        for (uint32_t i = 0; i < 100; i++) {
            uint32_t run = (i * 37) % 100;
            kvs_pool_give(pool, run == 50 ? 150 : run);
        }
    }
    kvs_pool_free(pool);
}

static void limits_hold(void **state)
{
    (void)state;
    kvs_pool_t *pool;
    size_t offset;
    assert_int_equal(kvs_pool_alloc(KVS_POOL_GRAIN_BYTES - 1, 1, &pool), AS_ERR_LIMIT);
    assert_int_equal(kvs_pool_alloc(10 * KVS_POOL_GRAIN_BYTES, 2, &pool), AS_OK);
    assert_false(kvs_pool_take(pool, 0, 0, &offset));
    assert_false(kvs_pool_take(pool, 0, SIZE_MAX, &offset));
    assert_false(kvs_pool_take(pool, 0, 11 * KVS_POOL_GRAIN_BYTES, &offset));
    assert_true(kvs_pool_take(pool, 0, 9 * KVS_POOL_GRAIN_BYTES, &offset));
    assert_true(kvs_pool_take(pool, 1, 1, &offset));
    kvs_pool_give(pool, 0);
    assert_false(kvs_pool_take(pool, 0, 10 * KVS_POOL_GRAIN_BYTES, &offset));
    kvs_pool_check(pool);
    kvs_pool_free(pool);
    as_mem_fail_nth(1);
    assert_int_equal(kvs_pool_alloc(10 * KVS_POOL_GRAIN_BYTES, 2, &pool), AS_ERR_NO_MEMORY);
    as_mem_fail_nth(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_takes_and_gives_agree_with_a_model),
        cmocka_unit_test(runs_of_one_size_fill_the_pool_to_the_last),
        cmocka_unit_test(limits_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
