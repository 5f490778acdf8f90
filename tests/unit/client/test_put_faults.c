// SPDX-License-Identifier: Apache-2.0
// Puts that fail half-way, at every moment of a put: the writer dies, its connection is cut, the store
// stops, the put is given up, its bytes change meanwhile. What is stored is whole and right or is
// not there, nothing is held, no memory is lost, and the key is free for the next put.
#include "client/internal.h"
#include "world.h"

#define TURNS_MAX 400u
#define BLOCK     1u // that is put; block 0 is there before

typedef struct setting {
    const char *name;
    bool small; // comes with its message; else it is taken from the writer's memory
    bool messages;
    uint32_t replicas;
    bool staged; // the store takes it out of the client's memory
    bool pieces; // it comes in pieces, which keep their order
} setting_t;

static const setting_t settings[] = {{"large", false, false, 1, false, false},
                                     {"small, by messages", true, true, 1, false, false},
                                     {"two copies", false, true, 2, false, false},
                                     {"staged", false, false, 1, true, false},
                                     {"two copies, staged", false, false, 2, true, false},
                                     {"in pieces", false, true, 1, false, true},
                                     {"two copies, in pieces", false, true, 2, false, true}};

static world_t world;
static world_options_t options;
static uint64_t block_bytes; // that one takes of a pool
static put_result_t result;
static assay_put_t *put;

static kvs_stat_t stat_of(uint32_t store)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[store], &stat);
    return stat;
}

static void begin(const setting_t *setting, uint64_t seed)
{
    options = world_defaults(true);
    options.seed = seed;
    options.messages = setting->messages;
    options.stores = setting->replicas;
    options.store.reservation_us = 1000000;
    options.client.connect_timeout_us = options.client.stall_timeout_us = 200000;
    options.client.retry_after_us = 1000;
    if (setting->small) {
        options.shape = (as_shape_t){2, 2, 2, 16, 8, AS_ELEMENT_F16};
    }
    options.client.stage_bytes = setting->staged ? 1u << 20 : 0;
    world_open(&world, &options);
    assay_client_set_replicas(world.client, setting->replicas);
    assert_int_equal(put_block(&world, 0), AS_OK);
    block_bytes = stat_of(0).ram_bytes_used;
    if (setting->staged) {
        assert_int_equal(put_block(&world, 0), AS_ERR_EXISTS); // the client has offered its memory
    }
    if (setting->pieces) {
        as_sim_set_piece_bytes(world.sim, as_block_bytes(&world.shape) / 5);
    }
    const as_sim_faults_t slow = {.delay_us_min = setting->pieces ? 100 : 10,
                                  .delay_us_max = setting->pieces ? 100 : 300};
    as_sim_set_faults(world.sim, &slow);
    assert_int_equal(put_start(&world, BLOCK, 400000, &result, &put), AS_OK);
}

// Another process, where the first has died.
static void another_client(void)
{
    static world_net_t which;
    assay_client_free(world.client);
    which = (world_net_t){&world, WORLD_STORES_MAX, false};
    assay_client_options_t client = options.client;
    client.loop = world.loop;
    client.net_alloc = world_net_alloc;
    client.net_ctx = &which;
    assert_int_equal(assay_client_alloc(&client, &world.client), AS_OK);
    assay_client_set_replicas(world.client, options.stores);
    world_tell_stores(&world);
}

// ---- faults

static void the_writer_dies(void)
{
    as_sim_kill(world.sim, world.client_net);
    world_pass(&world, 3000000);
    another_client();
}

static void the_connection_is_cut(void)
{
    for (uint32_t i = 0; i < world.store_count; i++) {
        assay_link_fail(assay_link_find(world.client, kvs_store_node_id(world.stores[i])),
                        AS_ERR_PEER_LOST);
    }
}

static void the_store_stops(void)
{
    as_sim_stop(world.sim, world.store_nets[0]);
    assert_true(world_run(&world, &result.done));
    as_sim_resume(world.sim, world.store_nets[0]);
}

static void the_put_is_cancelled(void)
{
    if (!result.done) {
        assay_put_cancel(put);
    }
}

// By a writer that had not finished it: only the bytes that were promised are taken.
static void the_bytes_change(void)
{
    if (!result.done) {
        result.bytes[as_block_bytes(&world.shape) / 2] ^= 1;
    }
}

// ---- what is looked at

static uint32_t expect_whole_or_nothing(void)
{
    uint32_t stored = 0;
    for (uint32_t i = 0; i < world.store_count; i++) {
        kvs_stat_t stat = stat_of(i);
        assert_in_range(stat.blocks, 1, 2);
        assert_int_equal(stat.ram_bytes_used, stat.blocks * block_bytes);
        stored += stat.blocks == 2;
    }
    fetch_result_t fetch = fetch_chain(&world, (fetch_ask_t){.count = 2}); // right, or it fails
    assert_int_equal(fetch.status, AS_OK);
    assert_int_equal(fetch.block_count, stored > 0 ? 2 : 1);
    return stored;
}

// False: the put was over before so many turns.
static bool one_moment(const setting_t *setting, void (*fault)(void), uint32_t turns)
{
    begin(setting, turns + 1);
    for (uint32_t n = 0; n < turns && !result.done; n++) {
        as_loop_run_once(world.loop, true);
    }
    bool under_way = !result.done;
    fault();
    assert_true(world_run(&world, &result.done));
    as_status_t status = result.status;
    world_pass(&world, 3000000); // reservations expire, links are tried again
    assert_nothing_is_held(&world);
    uint32_t stored = expect_whole_or_nothing();
    assert_true(status != AS_OK || stored > 0);
    as_status_t again = put_block(&world, BLOCK);
    assert_true(again == AS_OK || (stored > 0 && again == AS_ERR_EXISTS));
    assert_int_equal(expect_whole_or_nothing(), world.store_count);
    world_close(&world);
    return under_way;
}

static void at_every_moment(void (*fault)(void))
{
    as_log_set_level(AS_LOG_ERROR + 1);
    for (uint32_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
        uint32_t turns = 0;
        while (turns < TURNS_MAX && one_moment(&settings[s], fault, turns)) {
            turns++;
        }
        print_message("%s: %u moments\n", settings[s].name, turns);
        assert_in_range(turns, 4, TURNS_MAX - 1);
    }
    as_log_set_level(AS_LOG_INFO);
}

static void a_writer_that_dies_leaves_a_whole_block_or_none(void **state)
{
    (void)state;
    at_every_moment(the_writer_dies);
}

static void a_cut_connection_leaves_a_whole_block_or_none(void **state)
{
    (void)state;
    at_every_moment(the_connection_is_cut);
}

static void a_store_that_stops_takes_a_whole_block_or_none(void **state)
{
    (void)state;
    at_every_moment(the_store_stops);
}

static void a_cancelled_put_leaves_a_whole_block_or_none(void **state)
{
    (void)state;
    at_every_moment(the_put_is_cancelled);
}

static void a_block_that_changes_while_it_is_put_is_refused_or_was_read_before(void **state)
{
    (void)state;
    at_every_moment(the_bytes_change);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_that_dies_leaves_a_whole_block_or_none),
        cmocka_unit_test(a_cut_connection_leaves_a_whole_block_or_none),
        cmocka_unit_test(a_store_that_stops_takes_a_whole_block_or_none),
        cmocka_unit_test(a_cancelled_put_leaves_a_whole_block_or_none),
        cmocka_unit_test(a_block_that_changes_while_it_is_put_is_refused_or_was_read_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
