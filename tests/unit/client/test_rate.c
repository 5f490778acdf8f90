// SPDX-License-Identifier: Apache-2.0
// How fast stores are, as a client measures it: on the simulated network, where a link's speed is
// known, what is predicted is compared with what then happens.
#include "tests/unit/client/world.h"

static world_t world;

static void begin(uint32_t stores, bool messages)
{
    world_options_t options = world_defaults(true);
    options.stores = stores;
    options.messages = messages;
    options.shape = (as_shape_t){8, 4, 2, 32, 32, AS_ELEMENT_F16}; // blocks of 64 KiB
    world_open(&world, &options);
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static void set_link(uint64_t bytes_per_s, uint64_t delay_us)
{
    const as_sim_faults_t link = {
        .delay_us_min = delay_us, .delay_us_max = delay_us, .bandwidth_bytes_per_s = bytes_per_s};
    as_sim_set_faults(world.sim, &link);
}

// Who has each block of the chain.
static uint64_t nodes[WORLD_BLOCKS_MAX];

static void note_nodes(uint32_t count)
{
    for (uint32_t b = 0; b < count; b++) {
        nodes[b] = assay_client_place(world.client, &world.keys[b / AS_RUN_BLOCKS * AS_RUN_BLOCKS]);
    }
}

static uint64_t predict(uint32_t count)
{
    return assay_client_load_us(world.client, nodes, count, as_block_bytes(&world.shape));
}

static uint64_t load(uint32_t count)
{
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = count}).status, AS_OK);
    return as_loop_now_us(world.loop) - began_us;
}

static void assert_near(uint64_t predicted_us, uint64_t took_us)
{
    if (predicted_us < took_us * 6 / 10 || predicted_us > took_us * 15 / 10) {
        fail_msg("predicted %llu us, took %llu us", (unsigned long long)predicted_us,
                 (unsigned long long)took_us);
    }
}

static void what_was_measured_predicts_what_comes(void **state)
{
    (void)state;
    static const uint64_t speeds[] = {4000000, 40000000, 400000000}, delays[] = {20000, 1000, 50};
    for (int messages = 0; messages < 2; messages++) {
        begin(1, messages);
        put_chain(&world, 48);
        note_nodes(48);
        assert_int_equal(predict(48), 0); // nothing was loaded yet
        for (int i = 0; i < 3; i++) {
            set_link(speeds[i], delays[i]);
            for (int n = 0; n < 12; n++) { // the running mean follows
                load(48);
            }
            uint64_t all_us = predict(48), half_us = predict(24);
            assert_near(all_us, load(48));
            assert_near(half_us, load(24));
            assert_true(half_us < all_us);
        }
        world_close(&world);
    }
    begin(1, false); // for the teardown
}

static void stores_are_read_at_the_same_time(void **state)
{
    (void)state;
    begin(3, true);
    put_chain(&world, 64);
    note_nodes(64);
    set_link(10000000, 500);
    for (int n = 0; n < 12; n++) {
        load(64);
    }
    assert_near(predict(64), load(64));
    assay_rate_t rates[4];
    assert_int_equal(assay_client_rates(world.client, rates, 4), 3);
    uint32_t known = 0;
    for (int i = 0; i < 3; i++) {
        known += rates[i].bytes_per_s > 0;
        assert_true(rates[i].bytes_per_s < 11000000);
        assert_true(rates[i].bytes_per_s == 0 || rates[i].locate_us >= 1000);
    }
    assert_true(known >= 1);
}

// A chain of 48 blocks on one store, which was loaded once over that link.
static void begin_loaded(uint64_t bytes_per_s, uint64_t delay_us)
{
    begin(1, true);
    put_chain(&world, 48);
    note_nodes(48);
    set_link(bytes_per_s, delay_us);
    load(48);
}

static void old_measurements_and_unknown_stores_are_not_believed(void **state)
{
    (void)state;
    begin_loaded(10000000, 500);
    assert_true(predict(48) > 0);
    nodes[47] = 4711;
    assert_int_equal(predict(48), 0);
    assert_true(predict(47) > 0);
    assert_int_equal(predict(0), 0);
    world_pass(&world, 31000000);
    assert_int_equal(predict(47), 0);
    load(48);
    assert_true(predict(47) > 0);
}

static void a_question_without_an_answer_counts(void **state)
{
    (void)state;
    begin_loaded(100000000, 100);
    uint64_t before_us = predict(48);
    set_link(100000000, 3000000); // longer than anybody waits
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 48});
    assert_int_not_equal(result.status, AS_OK);
    assert_true(predict(48) > before_us + 100000);
}

static void a_reader_that_is_slow_itself_is_not_the_links_fault(void **state)
{
    (void)state;
    begin_loaded(100000000, 100);
    uint64_t before_us = predict(48);
    // A ring of one layer, whose reader takes its time.
    fetch_result_t result;
    assert_int_equal(
        fetch_begin(&world, (fetch_ask_t){.count = 48, .slots = 1, .hold = true}, &result), AS_OK);
    for (uint32_t layer = 0; layer < world.shape.layers && !result.done; layer++) {
        while (result.layers <= layer) {
            as_loop_run_once(world.loop, true);
        }
        world_pass(&world, 300000);
        if (!result.done) { // the last layer ends it
            assay_fetch_release(result.fetch, layer);
        }
    }
    assert_true(world_run(&world, &result.done));
    fetch_free(&result);
    assert_near(predict(48), before_us);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_measured_predicts_what_comes),
        TEST(stores_are_read_at_the_same_time),
        TEST(old_measurements_and_unknown_stores_are_not_believed),
        TEST(a_question_without_an_answer_counts),
        TEST(a_reader_that_is_slow_itself_is_not_the_links_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
