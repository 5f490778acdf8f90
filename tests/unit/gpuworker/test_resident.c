// SPDX-License-Identifier: Apache-2.0
// Blocks, tail, budget and horizon, each alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "gpuworker/decode/horizon.h"
#include "gpuworker/resident/blocks.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/tail.h"

static const as_shape_t shape = {2, 4, 2, 16, 16, AS_ELEMENT_F16};

typedef struct cache {
    gpw_device_t device;
    gpw_budget_t budget;
    gpw_blocks_t blocks;
} cache_t;

static void cache_open(cache_t *cache, uint32_t tokens_max)
{
    memset(cache, 0, sizeof(*cache));
    cache->device = (gpw_device_t){.ops = gpw_device_host(), .bytes_max = 1u << 20};
    cache->budget.device = &cache->device;
    assert_true(gpw_budget_reserve(&cache->budget, 1u << 19));
    assert_int_equal(gpw_blocks_init(&cache->blocks, &shape, &cache->budget, tokens_max), AS_OK);
}

static void cache_close(cache_t *cache)
{
    gpw_blocks_fini(&cache->blocks);
    gpw_budget_end(&cache->budget);
    assert_int_equal(cache->device.reserved_bytes, 0);
    assert_int_equal(cache->device.used_bytes, 0);
}

static void a_row_lands_where_the_extent_has_its_token(void **state)
{
    (void)state;
    cache_t cache;
    cache_open(&cache, 64);
    assert_int_equal(gpw_blocks_cover(&cache.blocks, 40), AS_OK);
    assert_int_equal(cache.blocks.count, 3);
    krn_f16 k[2 * 2 * 16], v[2 * 2 * 16];
    for (uint32_t i = 0; i < 64; i++) {
        k[i] = (krn_f16)(100 + i);
        v[i] = (krn_f16)(500 + i);
    }
    gpw_rows_t rows = {.position = 31, .count = 2, .k = k, .v = v}; // across two blocks
    gpw_blocks_store(&cache.blocks, 1, &rows);
    for (uint32_t r = 0; r < 2; r++) {
        const krn_f16 *extent = (const void *)gpw_blocks_extent(&cache.blocks, (31 + r) / 16, 1);
        for (uint32_t h = 0; h < 2; h++) {
            size_t at_k = as_extent_offset(&shape, 0, h, (31 + r) % 16);
            size_t at_v = as_extent_offset(&shape, 1, h, (31 + r) % 16);
            assert_memory_equal(extent + at_k, k + (r * 2 + h) * 16, 32);
            assert_memory_equal(extent + at_v, v + (r * 2 + h) * 16, 32);
        }
    }
    assert_null(gpw_blocks_extent(&cache.blocks, 3, 0));
    cache_close(&cache);
}

static void blocks_are_dropped_from_the_front_once_a_store_has_them(void **state)
{
    (void)state;
    cache_t cache;
    cache_open(&cache, 96);
    gpw_blocks_t *b = &cache.blocks;
    assert_int_equal(gpw_blocks_cover(b, 96), AS_OK);
    assert_int_equal(gpw_blocks_drop(b, 6), 0);
    b->block[1].node_id = 7;
    assert_int_equal(gpw_blocks_drop(b, 6), 0); // the first is still missing
    b->block[0].node_id = 7;
    b->block[2].node_id = 7;
    b->block[2].publishing = true; // someone reads it
    assert_int_equal(gpw_blocks_drop(b, 6), 2);
    b->block[2].publishing = false;
    assert_int_equal(gpw_blocks_drop(b, 2), 0); // not above the limit
    b->block[3].lossy = true;
    assert_int_equal(gpw_blocks_drop(b, 6), 2);
    assert_int_equal(b->stored, 4);
    assert_int_equal(cache.budget.used_bytes, 2 * as_block_bytes(&shape));
    assert_int_equal(gpw_blocks_hold(b, 1), AS_OK);
    assert_int_equal(b->stored, 1);
    assert_true(gpw_blocks_extent(b, 1, 0) && !gpw_blocks_extent(b, 0, 0));
    assert_int_equal(b->block[1].node_id, 0);
    cache_close(&cache);
}

static void keys_chain_from_the_namespace(void **state)
{
    (void)state;
    cache_t cache;
    cache_open(&cache, 64);
    int32_t tokens[64];
    as_key_t keys[4];
    for (int i = 0; i < 64; i++) {
        tokens[i] = i * 3;
    }
    cache.blocks.namespace_key.bytes[0] = 9;
    gpw_blocks_key(&cache.blocks, tokens, 20); // a part, then the rest
    assert_int_equal(cache.blocks.keyed, 1);
    gpw_blocks_key(&cache.blocks, tokens, 64);
    assert_int_equal(as_chain_keys(&cache.blocks.namespace_key, tokens, 64, 16, keys, 4), 4);
    for (int i = 0; i < 4; i++) {
        assert_true(as_key_equal(&keys[i], &cache.blocks.block[i].key));
    }
    cache_close(&cache);
}

static void drafting_copies_the_open_block_and_leaves_it_alone(void **state)
{
    (void)state;
    cache_t cache;
    gpw_tail_t tail;
    cache_open(&cache, 64);
    assert_int_equal(gpw_tail_init(&tail, &shape, &cache.budget, 20), AS_OK);
    assert_int_equal(gpw_blocks_cover(&cache.blocks, 21), AS_OK);
    for (uint32_t layer = 0; layer < 2; layer++) {
        memset(gpw_blocks_extent(&cache.blocks, 1, layer), 0x11 + (int)layer,
               as_extent_bytes(&shape));
    }
    cache.blocks.tokens = 21;
    gpw_tail_begin(&tail, &cache.blocks);
    assert_null(gpw_tail_extent(&tail, 0, 0));
    krn_f16 row[32] = {0x2222};
    for (uint32_t layer = 0; layer < 2; layer++) {
        const krn_f16 *page = (const void *)gpw_tail_extent(&tail, 1, layer);
        for (uint32_t t = 0; t < 5; t++) {
            assert_int_equal(page[as_extent_offset(&shape, 1, 1, t)], 0x1111 + 0x0101 * layer);
        }
    }
    gpw_extent_store(&shape, gpw_tail_extent(&tail, 1, 0), 21, row, row);
    const krn_f16 *exact = (const void *)gpw_blocks_extent(&cache.blocks, 1, 0);
    assert_int_equal(exact[as_extent_offset(&shape, 0, 0, 5)], 0x1111);
    assert_non_null(gpw_tail_extent(&tail, (21 + 19) / 16, 1)); // the last of 20 drafts has room
    gpw_tail_fini(&tail);
    cache_close(&cache);
}

static void a_budget_holds_what_it_promised_and_no_more(void **state)
{
    (void)state;
    gpw_device_t device = {.ops = gpw_device_host(), .bytes_max = 1000};
    gpw_budget_t a = {.device = &device}, b = {.device = &device};
    assert_true(gpw_budget_reserve(&a, 600));
    assert_false(gpw_budget_reserve(&b, 401));
    assert_false(gpw_budget_reserve(&b, UINT64_MAX));
    assert_true(gpw_budget_reserve(&b, 400));
    void *memory = gpw_budget_alloc(&a, 500);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    gpw_budget_shrink(&a, 100);
    assert_true(gpw_budget_reserve(&b, 100));
    gpw_budget_free(&a, memory, 500);
    as_mem_fail_nth(1);
    assert_null(gpw_budget_alloc(&a, 500));
    assert_int_equal(a.used_bytes, 0);
    gpw_budget_end(&a);
    gpw_budget_end(&b);
}

static void a_residual_stays_out_of_the_segment(void **state)
{
    (void)state;
    assert_int_equal(gpw_sealed_target(&shape, 0), 0);
    assert_int_equal(gpw_sealed_target(&shape, GPW_RESIDUAL_TOKENS + 15), 0);
    assert_int_equal(gpw_sealed_target(&shape, GPW_RESIDUAL_TOKENS + 16), 1);
    assert_int_equal(gpw_sealed_target(&shape, GPW_RESIDUAL_TOKENS + 160), 10);
}

static void learn(gpw_horizon_t *horizon, uint32_t accepted_of_ten, double verify_us)
{
    for (int i = 0; i < 40; i++) {
        gpw_horizon_outcome_t outcome = {
            .drafted = 10, .accepted = accepted_of_ten, .draft_us = 10000, .verify_us = verify_us};
        gpw_horizon_learn(horizon, &outcome);
    }
}

static const gpw_horizon_load_t alone = {.sessions = 1, .swaps = 1, .riders = 1};

static void the_horizon_follows_acceptance_and_cost(void **state)
{
    (void)state;
    gpw_horizon_t fixed, poor, good, unknown;
    gpw_horizon_init(&fixed, 7, 64, false);
    gpw_horizon_init(&poor, 16, 64, true);
    gpw_horizon_init(&good, 16, 64, true);
    gpw_horizon_init(&unknown, 16, 64, true);
    learn(&fixed, 10, 1000);
    learn(&poor, 1, 6000);
    learn(&good, 9, 6000);
    const gpw_horizon_load_t slow_link = {
        .sessions = 1, .swaps = 1, .riders = 1, .swap_us = 20000, .exposed = 1};
    assert_int_equal(gpw_horizon_get(&fixed, &alone), 7);
    assert_int_equal(gpw_horizon_get(&poor, &alone), 4);
    assert_true(gpw_horizon_get(&unknown, &alone) >= 4);
    assert_true(gpw_horizon_get(&good, &slow_link) > gpw_horizon_get(&good, &alone));
    learn(&good, 10, 6000);
    const gpw_horizon_load_t slowest_link = {
        .sessions = 1, .swaps = 1, .riders = 1, .swap_us = 1e6, .exposed = 1};
    assert_int_equal(gpw_horizon_get(&good, &slowest_link), 64);
    gpw_horizon_init(&good, 2, 2, true);
    assert_int_equal(gpw_horizon_get(&good, &alone), 2); // never above what the operator allows
}

// A link that all wait for makes drafts as long as they may be at no cost; where the device is what
// all wait for, the link does not matter.
static void the_horizon_fills_the_time_that_the_link_takes(void **state)
{
    (void)state;
    gpw_horizon_t horizon;
    gpw_horizon_init(&horizon, 16, 64, true);
    learn(&horizon, 9, 5500); // a draft step 1,000 us, a row 500
    gpw_horizon_load_t load = {.sessions = 8, .swaps = 8, .riders = 1, .exposed = 0.9};
    uint32_t free_link = gpw_horizon_get(&horizon, &load);
    load.swap_us = 100;
    assert_int_equal(gpw_horizon_get(&horizon, &load), free_link);
    load.swap_us = 30000;
    uint32_t k = gpw_horizon_get(&horizon, &load);
    assert_in_range(k, 17, 20); // k * 1,000 + (k + 1) * 500 us of the device in 30,000 of the link
    assert_true(gpw_horizon_round_us(&horizon, &load, k) >= 8 * load.swap_us);
    assert_true(gpw_horizon_round_us(&horizon, &load, k - 4) == 8 * load.swap_us);
}

static double rate(const gpw_horizon_t *horizon, const gpw_horizon_load_t *load, uint32_t k)
{
    return gpw_horizon_yield(horizon, k) / gpw_horizon_round_us(horizon, load, k);
}

// A swap that eight ride in is one swap: it hides what the device needs for eight, and no more.
static void the_horizon_counts_a_shared_swap_once(void **state)
{
    (void)state;
    gpw_horizon_t horizon, newcomer;
    gpw_horizon_init(&horizon, 16, 64, true);
    gpw_horizon_init(&newcomer, 16, 64, true);
    learn(&horizon, 9, 5500); // a draft step 1,000 us, a row 500
    const gpw_horizon_load_t each = {
        .sessions = 8, .swaps = 8, .riders = 1, .swap_us = 30000, .exposed = 0.9};
    const gpw_horizon_load_t group = {
        .sessions = 8, .swaps = 1, .riders = 8, .swap_us = 30000, .exposed = 0.9};
    assert_true(gpw_horizon_round_us(&horizon, &group, 4) == 8 * 4 * 1000.0 + 0.9 * 30000);
    assert_true(gpw_horizon_round_us(&horizon, &group, 20) == 8 * (20 * 1000.0 + 21 * 500.0));
    assert_true(gpw_horizon_round_us(&horizon, &each, 4) == 8 * 30000.0);
    uint32_t k = gpw_horizon_get(&horizon, &group);
    assert_true(k < gpw_horizon_get(&horizon, &each));
    for (uint32_t other = 4; other <= 64; other++) {
        assert_true(rate(&horizon, &group, k) >= 0.875 * rate(&horizon, &group, other));
    }
    gpw_horizon_follow(&newcomer, &horizon);
    assert_int_equal(gpw_horizon_get(&newcomer, &group), k);
    learn(&newcomer, 1, 5500);
    gpw_horizon_follow(&newcomer, &horizon); // it knows for itself
    assert_true(gpw_horizon_get(&newcomer, &group) < k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_lands_where_the_extent_has_its_token),
        cmocka_unit_test(blocks_are_dropped_from_the_front_once_a_store_has_them),
        cmocka_unit_test(keys_chain_from_the_namespace),
        cmocka_unit_test(drafting_copies_the_open_block_and_leaves_it_alone),
        cmocka_unit_test(a_budget_holds_what_it_promised_and_no_more),
        cmocka_unit_test(a_residual_stays_out_of_the_segment),
        cmocka_unit_test(the_horizon_follows_acceptance_and_cost),
        cmocka_unit_test(the_horizon_fills_the_time_that_the_link_takes),
        cmocka_unit_test(the_horizon_counts_a_shared_swap_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
