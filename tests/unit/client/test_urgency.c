// SPDX-License-Identifier: Apache-2.0
// What is urgent overtakes what is large, at the store and on the link: on the simulated network,
// where a connection has so many bytes per second.
#include "tests/unit/client/world.h"

#define BYTES_PER_S 10000000u
#define BULK_BLOCKS 48u // of 256 KiB: more than the client has in flight
#define ONE_BLOCK   60u
#define NEAR_US     100u
#define FAR_US      400000u // the client asks for all of it at once

static world_t world;

static void set_delay(uint64_t us)
{
    const as_sim_faults_t link = {
        .delay_us_min = us, .delay_us_max = us, .bandwidth_bytes_per_s = BYTES_PER_S};
    as_sim_set_faults(world.sim, &link);
}

static void begin(void)
{
    world_options_t options = world_defaults(true);
    options.messages = true;
    options.store.ram_bytes = 64u << 20;
    options.shape = (as_shape_t){8, 32, 8, 32, 32, AS_ELEMENT_F16};
    world_open(&world, &options);
    assert_int_equal(as_block_bytes(&world.shape), 256u << 10);
    put_chain(&world, BULK_BLOCKS);
    assert_int_equal(put_block(&world, ONE_BLOCK), AS_OK);
    as_sim_set_piece_bytes(world.sim, 256u << 10);
    set_delay(NEAR_US);
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

// How long one block takes that is asked for while many are on their way, and how far those are then.
static uint64_t load_one_beside_many(assay_urgency_t urgency, uint64_t *others_bytes_p)
{
    fetch_result_t many, one;
    set_delay(FAR_US);
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = BULK_BLOCKS, .deadline_us = WAIT_US}, &many),
        AS_OK);
    while (assay_fetch_bytes(many.fetch) < 1u << 20) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    set_delay(NEAR_US);
    uint64_t began_us = as_loop_now_us(world.loop), before = assay_fetch_bytes(many.fetch);
    const fetch_ask_t ask = {
        .first = ONE_BLOCK, .count = 1, .deadline_us = WAIT_US, .urgency = urgency};
    assert_int_equal(fetch_begin(&world, ask, &one), AS_OK);
    assert_true(world_run(&world, &one.done));
    assert_int_equal(one.status, AS_OK);
    uint64_t took_us = as_loop_now_us(world.loop) - began_us;
    *others_bytes_p = many.done ? UINT64_MAX : assay_fetch_bytes(many.fetch) - before;
    assert_true(world_run(&world, &many.done));
    assert_int_equal(many.status, AS_OK);
    assert_int_equal(many.wrong + one.wrong, 0);
    fetch_free(&many);
    fetch_free(&one);
    return took_us;
}

static void what_a_decode_step_waits_for_overtakes_what_is_loaded_in_bulk(void **state)
{
    (void)state;
    begin();
    set_delay(FAR_US);
    const fetch_ask_t first = {.count = BULK_BLOCKS, .deadline_us = WAIT_US};
    assert_int_equal(fetch_chain(&world, first).status, AS_OK); // the client learns how far it is
    uint64_t others[ASSAY_URGENCY_COUNT], took_us[ASSAY_URGENCY_COUNT];
    for (uint32_t i = 0; i < ASSAY_URGENCY_COUNT; i++) {
        took_us[i] = load_one_beside_many((assay_urgency_t)i, &others[i]);
    }
    // Alike, it waits behind all that the client has asked for. Urgent, its LOCATE and its READ each wait
    // only for what the store has handed to the network. Either way 4 MB come that had left the store
    // when it was far away.
    assert_true(others[ASSAY_URGENCY_PREFIX] > 9u << 20);
    assert_true(others[ASSAY_URGENCY_KVFETCH] < 13u << 19);
    assert_true(others[ASSAY_URGENCY_VERIFY] < 13u << 19);
    assert_true(took_us[ASSAY_URGENCY_KVFETCH] <= took_us[ASSAY_URGENCY_VERIFY]);
    assert_true(took_us[ASSAY_URGENCY_VERIFY] * 4 < took_us[ASSAY_URGENCY_PREFIX] * 3);
}

static void what_is_loaded_in_bulk_goes_on_beside_what_is_urgent(void **state)
{
    (void)state;
    begin();
    fetch_result_t bulk, urgent;
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 24, .deadline_us = WAIT_US}, &bulk),
                     AS_OK);
    const fetch_ask_t ask = {
        .count = BULK_BLOCKS, .deadline_us = WAIT_US, .urgency = ASSAY_URGENCY_VERIFY};
    assert_int_equal(fetch_begin(&world, ask, &urgent), AS_OK);
    while (assay_fetch_bytes(urgent.fetch) < 6u << 20) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    assert_true(assay_fetch_bytes(bulk.fetch) > 1u << 20); // a fifth of the link by the weights
    assert_true(assay_fetch_bytes(bulk.fetch) < assay_fetch_bytes(urgent.fetch));
    assert_true(world_run(&world, &bulk.done) && world_run(&world, &urgent.done));
    assert_int_equal(bulk.status, AS_OK);
    assert_int_equal(urgent.status, AS_OK);
    fetch_free(&bulk);
    fetch_free(&urgent);
}

static void what_a_fetch_that_is_over_had_asked_for_is_not_sent(void **state)
{
    (void)state;
    begin();
    kvs_stat_t stat;
    fetch_result_t many;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = BULK_BLOCKS, .deadline_us = WAIT_US}, &many),
        AS_OK);
    while (assay_fetch_bytes(many.fetch) < 1u << 20) {
        assert_true(as_loop_run_once(world.loop, true));
    }
    assay_fetch_cancel(many.fetch); // with 8 MiB asked for
    assert_true(world_run(&world, &many.done));
    world_pass(&world, 3000000);
    kvs_store_stat(world.stores[0], &stat);
    assert_in_range(stat.bytes_read, 1u << 20, 7u << 19); // what was at the network is
    assert_int_equal(stat.pins + stat.leases, 0);
    fetch_free(&many);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_a_decode_step_waits_for_overtakes_what_is_loaded_in_bulk),
        TEST(what_a_fetch_that_is_over_had_asked_for_is_not_sent),
        TEST(what_is_loaded_in_bulk_goes_on_beside_what_is_urgent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
