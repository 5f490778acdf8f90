// SPDX-License-Identifier: Apache-2.0
// Put, locate and fetch between a real client and a real store: over UCX by shared memory and by
// TCP (in a process of its own, since UCX reads its settings once), and over the simulated network
// with one-sided reads and by messages.
#include "tests/unit/client/world.h"

#include <unistd.h>

static world_t world;
static bool over_sim, by_messages;

static void begin(world_options_t *options)
{
    options->messages = by_messages;
    world_open(&world, options);
}

static void begin_plain(void)
{
    world_options_t options = world_defaults(over_sim);
    begin(&options);
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static void a_chain_that_was_put_is_fetched_whole_and_right(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 40);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 40});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 40);
    assert_int_equal(result.layers, world.shape.layers);
    world_pass(&world, 200000);
    assert_nothing_is_held(&world);
}

static void a_fetch_ends_at_the_first_block_that_is_not_stored(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 5);
    assert_int_equal(put_block(&world, 6), AS_OK); // a hole at 5
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 20});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 5);
}

static void a_fetch_of_nothing_stored_says_not_found(void **state)
{
    (void)state;
    begin_plain();
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 3});
    assert_int_equal(result.status, AS_ERR_NOT_FOUND);
    assert_true(result.located);
    assert_int_equal(result.block_count, 0);
}

static void a_ring_of_two_slots_brings_every_layer(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 10);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 10, .slots = 2});
    assert_int_equal(result.status, AS_OK);
}

static void a_slot_is_not_overwritten_before_it_is_released(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 3);
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 3, .slots = 2, .hold = true}, &result), AS_OK);
    world_pass(&world, 300000);
    assert_int_equal(result.layers, 2);
    for (uint32_t block = 0; block < 3; block++) {
        assert_true(extent_is_right(&result, block, 0) && extent_is_right(&result, block, 1));
    }
    assay_fetch_release(result.fetch, 1);
    world_pass(&world, 50000);
    assert_int_equal(result.layers, 2); // layer 2 needs the slot of layer 0
    result.hold = false;
    assay_fetch_release(result.fetch, 0);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
}

// The deadline is the store's, not the caller's.
static void a_caller_that_reads_slowly_loses_nothing(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 3);
    if (!over_sim) {
        return; // where time is real there is a test less that may fail on a busy machine
    }
    fetch_result_t result;
    const fetch_ask_t ask = {.count = 3, .slots = 1, .hold = true, .deadline_us = 400000};
    assert_int_equal(fetch_begin(&world, ask, &result), AS_OK);
    for (uint32_t layer = 0; layer + 1 < world.shape.layers; layer++) {
        world_pass(&world, 450000);
        assert_false(result.done);
        assert_int_equal(result.layers, layer + 1);
        assay_fetch_release(result.fetch, layer);
    }
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.wrong, 0);
    fetch_free(&result);
    world_pass(&world, 200000);
    assert_nothing_is_held(&world);
}

static void a_second_put_of_a_key_says_exists(void **state)
{
    (void)state;
    begin_plain();
    assert_int_equal(put_block(&world, 0), AS_OK);
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
}

static void of_two_writers_of_one_key_one_writes(void **state)
{
    (void)state;
    begin_plain();
    put_result_t a, b;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &a, &put), AS_OK);
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &b, &put), AS_OK);
    assert_true(world_run(&world, &a.done) && world_run(&world, &b.done));
    assert_int_equal((a.status == AS_OK) + (b.status == AS_OK), 1);
    assert_int_equal((a.status == AS_ERR_EXISTS) + (b.status == AS_ERR_EXISTS), 1);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 1}).status, AS_OK);
}

static void other_bytes_for_a_key_are_a_conflict_and_do_not_replace_the_first(void **state)
{
    (void)state;
    begin_plain();
    put_result_t first, second;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &first, &put), AS_OK);
    as_log_set_level(AS_LOG_ERROR + 1);
    world.twist = 1;
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &second, &put),
                     AS_OK); // while it is written
    assert_true(world_run(&world, &first.done) && world_run(&world, &second.done));
    assert_int_equal(first.status, AS_OK);
    assert_int_equal(second.status, AS_ERR_CONFLICT);
    assert_int_equal(put_block(&world, 0), AS_ERR_CONFLICT); // and after it
    as_log_set_level(AS_LOG_INFO);
    kvs_stat_t stat;
    kvs_store_stat(world.stores[0], &stat);
    assert_int_equal(stat.conflicts, 2);
    world.twist = 0;
    assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 1}).status, AS_OK);
}

static void a_chain_is_striped_over_stores_and_fetched_from_all(void **state)
{
    (void)state;
    world_options_t options = world_defaults(over_sim);
    options.stores = 3;
    begin(&options);
    put_chain(&world, 64);
    uint32_t used = 0;
    for (uint32_t i = 0; i < 3; i++) {
        kvs_stat_t stat;
        kvs_store_stat(world.stores[i], &stat);
        used += stat.blocks > 0;
    }
    assert_true(used >= 2); // 4 runs on 3 stores
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 64});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 64);
}

static void a_fetch_from_the_middle_of_a_run_asks_every_store(void **state)
{
    (void)state;
    world_options_t options = world_defaults(over_sim);
    options.stores = 3;
    begin(&options);
    put_chain(&world, 64);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.first = 21, .count = 40});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(result.block_count, 40);
    world_pass(&world, 200000);
    assert_nothing_is_held(&world);
}

static void named_nodes_are_asked_first(void **state)
{
    (void)state;
    world_options_t options = world_defaults(over_sim);
    options.stores = 2;
    begin(&options);
    put_result_t result;
    assay_put_t *put;
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &result, &put), AS_OK);
    assert_true(world_run(&world, &result.done));
    uint64_t right = result.node_id, wrong = 0;
    for (uint32_t i = 0; i < 2; i++) {
        wrong = kvs_store_node_id(world.stores[i]) != right ? kvs_store_node_id(world.stores[i])
                                                            : wrong;
    }
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 1, .node_ids = &right}).status,
                     AS_OK);
    // A wrong name costs a question, not the block.
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 1, .node_ids = &wrong}).status,
                     AS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        kvs_stat_t stat;
        kvs_store_stat(world.stores[i], &stat);
        assert_int_equal(stat.misses, kvs_store_node_id(world.stores[i]) == wrong ? 1 : 0);
    }
}

static void a_cancelled_fetch_ends_once_and_holds_nothing(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 40);
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 40, .hold = true, .slots = 1}, &result), AS_OK);
    assert_true(world_run(&world, &result.located));
    assay_fetch_cancel(result.fetch);
    assay_fetch_cancel(result.fetch);
    assert_false(result.done); // never from inside
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_ERR_CANCELLED);
    fetch_free(&result);
    world_pass(&world, 200000);
    assert_nothing_is_held(&world);
}

static void freeing_the_client_ends_what_is_under_way(void **state)
{
    (void)state;
    begin_plain();
    put_chain(&world, 10);
    fetch_result_t fetch;
    put_result_t put;
    assay_put_t *handle;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 10, .slots = 1, .hold = true}, &fetch), AS_OK);
    assert_true(world_run(&world, &fetch.located));
    assert_int_equal(put_start(&world, 20, world_deadline_us(&world), &put, &handle), AS_OK);
    assay_client_free(world.client);
    world.client = NULL;
    assert_true(fetch.done && put.done);
    assert_int_equal(fetch.status, AS_ERR_CANCELLED);
    assert_int_equal(put.status, AS_ERR_CANCELLED);
    fetch_free(&fetch);
    world_pass(&world, 200000);
    assert_nothing_is_held(&world);
}

// ---- blocks that count each for itself, and some layers of them

typedef struct each {
    void *blocks[WORLD_BLOCKS_MAX];
    as_status_t statuses[WORLD_BLOCKS_MAX];
    as_key_t keys[WORLD_BLOCKS_MAX];
    uint32_t index[WORLD_BLOCKS_MAX]; // in the chain
    bool done;
    as_status_t status;
} each_t;

static void on_each_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    (void)block_count;
}

static void on_each_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
    fail();
}

static void on_each_done(void *ctx, as_status_t status, uint32_t hole)
{
    (void)hole;
    each_t *each = ctx;
    each->status = status;
    each->done = true;
}

// Asks for the whole chain in an order of its own and looks at what is said to be there; returns how
// many blocks are not.
static uint32_t fetch_each(each_t *each, uint32_t first_layer, uint32_t layer_count)
{
    size_t extent = as_extent_bytes(&world.shape);
    for (uint32_t i = 0; i < WORLD_BLOCKS_MAX; i++) {
        each->index[i] = i * 37 % WORLD_BLOCKS_MAX;
        each->keys[i] = world.keys[each->index[i]];
        each->blocks[i] = calloc(layer_count, extent);
    }
    each->done = false;
    const assay_fetch_args_t args = {.shape = world.shape,
                                     .keys = each->keys,
                                     .block_count = WORLD_BLOCKS_MAX,
                                     .deadline_us = world_deadline_us(&world),
                                     .buffers = each->blocks,
                                     .layer_stride = extent,
                                     .layer_slots = layer_count,
                                     .first_layer = first_layer,
                                     .layer_count = layer_count,
                                     .statuses = each->statuses,
                                     .on_located = on_each_located,
                                     .on_layer = on_each_layer,
                                     .on_done = on_each_done,
                                     .ctx = each};
    assay_fetch_t *fetch;
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_OK);
    assert_true(world_run(&world, &each->done));
    uint32_t missed = 0;
    for (uint32_t i = 0; i < WORLD_BLOCKS_MAX; i++) {
        const uint8_t *bytes = each->blocks[i];
        missed += each->statuses[i] != AS_OK;
        for (size_t b = 0; each->statuses[i] == AS_OK && b < layer_count * extent; b++) {
            uint32_t layer = first_layer + (uint32_t)(b / extent);
            assert_int_equal(bytes[b], world_byte(each->index[i], layer, b % extent));
        }
        free(each->blocks[i]);
    }
    return missed;
}

static void keys_in_any_order_count_each_for_itself(void **state)
{
    (void)state;
    world_options_t options = world_defaults(over_sim);
    options.stores = 3;
    begin(&options);
    put_chain(&world, 50);
    each_t each;
    assert_int_equal(fetch_each(&each, 0, world.shape.layers), 14);
    assert_int_equal(each.status, AS_OK);
    for (uint32_t i = 0; i < WORLD_BLOCKS_MAX; i++) {
        assert_int_equal(each.statuses[i], each.index[i] < 50 ? AS_OK : AS_ERR_NOT_FOUND);
    }
    assert_int_equal(fetch_each(&each, 1, 2), 14);
    assert_int_equal(fetch_each(&each, world.shape.layers - 1, 1), 14);
    world_pass(&world, 200000);
    assert_nothing_is_held(&world);
}

static void of_damaged_blocks_each_is_missed_and_no_other(void **state)
{
    (void)state;
    world_options_t options = world_defaults(over_sim);
    options.stores = 3;
    begin(&options);
    put_chain(&world, WORLD_BLOCKS_MAX);
    as_fault_arm_chance(AS_FAULT_fetch_extent_corrupt, 50000, 3);
    each_t each;
    uint32_t missed = fetch_each(&each, 0, world.shape.layers);
    as_fault_clear();
    assert_int_equal(each.status, AS_OK);
    assert_true(missed > 0 && missed < WORLD_BLOCKS_MAX / 2);
    for (uint32_t i = 0; i < WORLD_BLOCKS_MAX; i++) {
        assert_true(each.statuses[i] == AS_OK || each.statuses[i] == AS_ERR_CHECKSUM);
    }
    assert_int_equal(fetch_each(&each, 0, world.shape.layers), 0);
}

static void a_stopped_store_costs_its_own_blocks(void **state)
{
    (void)state;
    world_options_t options = world_defaults(over_sim);
    options.stores = 3;
    begin(&options);
    if (!over_sim) {
        return; // only the simulation stops a node
    }
    put_chain(&world, WORLD_BLOCKS_MAX);
    as_sim_stop(world.sim, world.store_nets[1]);
    each_t each;
    uint32_t missed = fetch_each(&each, 0, world.shape.layers);
    assert_true(missed < WORLD_BLOCKS_MAX);
    as_sim_resume(world.sim, world.store_nets[1]);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    begin_plain();
    fetch_result_t result = {.world = &world, .count = 1, .slots = 1};
    uint8_t buffer[4096];
    assay_fetch_args_t args = {.shape = world.shape,
                               .keys = world.keys,
                               .block_count = 1,
                               .deadline_us = 1000,
                               .buffer = buffer,
                               .layer_stride = as_extent_bytes(&world.shape),
                               .layer_slots = 1,
                               .on_located = on_fetch_located,
                               .on_layer = on_fetch_layer,
                               .on_done = on_fetch_done,
                               .ctx = &result};
    assay_fetch_t *fetch;
    args.layer_slots = world.shape.layers + 1;
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_ERR_INVALID);
    args.layer_slots = 2;
    args.layer_stride = 1; // slots would overlap
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_ERR_INVALID);
    args.layer_stride = as_extent_bytes(&args.shape);
    args.first_layer = args.shape.layers; // none is left
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_ERR_INVALID);
    args.first_layer = 1;
    args.layer_count = args.shape.layers;
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_ERR_INVALID);
    args.first_layer = args.layer_count = 0;
    args.block_count = AS_CHAIN_BLOCKS_MAX + 1;
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_ERR_LIMIT);
    args.block_count = 0;
    assert_int_equal(assay_fetch_start(world.client, &args, &fetch), AS_ERR_INVALID);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_chain_that_was_put_is_fetched_whole_and_right),
        TEST(a_fetch_ends_at_the_first_block_that_is_not_stored),
        TEST(a_fetch_of_nothing_stored_says_not_found),
        TEST(a_ring_of_two_slots_brings_every_layer),
        TEST(a_slot_is_not_overwritten_before_it_is_released),
        TEST(a_caller_that_reads_slowly_loses_nothing),
        TEST(a_second_put_of_a_key_says_exists),
        TEST(of_two_writers_of_one_key_one_writes),
        TEST(other_bytes_for_a_key_are_a_conflict_and_do_not_replace_the_first),
        TEST(a_chain_is_striped_over_stores_and_fetched_from_all),
        TEST(a_fetch_from_the_middle_of_a_run_asks_every_store),
        TEST(named_nodes_are_asked_first),
        TEST(a_cancelled_fetch_ends_once_and_holds_nothing),
        TEST(freeing_the_client_ends_what_is_under_way),
        TEST(keys_in_any_order_count_each_for_itself),
        TEST(of_damaged_blocks_each_is_missed_and_no_other),
        TEST(a_stopped_store_costs_its_own_blocks),
        TEST(wrong_arguments_are_refused),
    };
    if (argc > 1) { // run again, by TCP
        return cmocka_run_group_tests_name("over UCX by TCP", tests, NULL, NULL);
    }
    over_sim = true;
    int failed = cmocka_run_group_tests_name("simulated, one-sided", tests, NULL, NULL);
    by_messages = true;
    failed += cmocka_run_group_tests_name("simulated, by messages", tests, NULL, NULL);
    over_sim = by_messages = false;
    failed += cmocka_run_group_tests_name("over UCX", tests, NULL, NULL);
    if (failed > 0) {
        return failed;
    }
    return world_again_by_tcp(argv[0]);
}
