// SPDX-License-Identifier: Apache-2.0
// A store that fails is asked less and less often, by one probe at a time; and a store is its node id,
// not its address.
#include "client/internal.h"
#include "tests/unit/client/world.h"

#define FIRST_US 50000u
#define MOST_US  800000u

static world_t world;

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static world_options_t options_of(bool sim)
{
    world_options_t options = world_defaults(sim);
    if (sim) {
        options.client.connect_timeout_us = options.client.stall_timeout_us = 200000;
    }
    options.client.retry_after_us = FIRST_US;
    options.client.retry_after_us_max = MOST_US;
    options.store.lease_us_max = 2000000;
    options.store.reservation_us = 1000000;
    return options;
}

static void begin(void)
{
    const world_options_t options = options_of(true);
    world_open(&world, &options);
}

static assay_link_t *link_of(uint32_t store)
{
    assay_link_t *link = assay_link_find(world.client, kvs_store_node_id(world.stores[store]));
    assert_non_null(link);
    return link;
}

// Passes time until the link may be tried again.
static void pass_down(const assay_link_t *link)
{
    uint64_t now_us = as_loop_now_us(world.loop);
    assert_int_equal(link->state, LINK_DOWN);
    if (link->down_until_us > now_us) {
        world_pass(&world, link->down_until_us - now_us);
    }
}

static void a_dead_store_is_asked_less_and_less_often(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 1);
    const assay_link_t *link = link_of(0);
    uint64_t before = link->epoch;
    int64_t refused = as_metric_value(&assay_metrics[ASSAY_METRIC_REFUSED_CALLS]);
    as_sim_kill(world.sim, world.store_nets[0]);
    uint32_t asked = 0;
    const uint64_t seconds = 20, end_us = as_loop_now_us(world.loop) + seconds * 1000000;
    while (as_loop_now_us(world.loop) < end_us) {
        put_result_t result;
        assay_put_t *put;
        asked++;
        if (put_start(&world, 1, 100000, &result, &put) == AS_OK) {
            assert_true(world_run(&world, &result.done));
            assert_int_not_equal(result.status, AS_OK);
        }
        world_pass(&world, 5000);
    }
    uint64_t attempts = link->epoch - before;
    // 50, 100, 200, 400 ms and then every 800 ms
    assert_in_range(attempts, 5, 5 + seconds * 1000000 / MOST_US);
    assert_true(asked > 1000);
    assert_true(as_metric_value(&assay_metrics[ASSAY_METRIC_REFUSED_CALLS]) - refused > 1000);
}

static void one_call_probes_and_the_others_do_not_wait(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 2);
    assay_link_t *link = link_of(0);
    as_sim_stop(world.sim, world.store_nets[0]);
    assay_link_fail(link, AS_ERR_PEER_LOST);
    pass_down(link);
    uint64_t before = link->epoch;
    put_result_t results[8];
    assay_put_t *put;
    assert_int_equal(put_start(&world, 2, 5000000, &results[0], &put), AS_OK);
    for (uint32_t i = 1; i < 8; i++) {
        assert_int_equal(put_start(&world, 2 + i, 5000000, &results[i], &put), AS_ERR_UNREACHABLE);
    }
    assert_int_equal(link->epoch, before + 1);
    as_sim_resume(world.sim, world.store_nets[0]);
    assert_true(world_run(&world, &results[0].done));
    assert_int_equal(results[0].status, AS_OK);
    assert_int_equal(link->failures, 0); // it answered: as if nothing had been
    assert_int_equal(put_block(&world, 3), AS_OK);
    uint64_t now_us = as_loop_now_us(world.loop);
    assay_link_fail(link, AS_ERR_PEER_LOST);
    assert_int_equal(link->down_until_us - now_us, FIRST_US);
}

static void a_connected_store_that_answers_nothing_is_given_up(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 3);
    const assay_link_t *link = link_of(0);
    as_sim_stop(world.sim, world.store_nets[0]);
    for (uint32_t i = 0; i < 2; i++) { // one answer may be lost
        assert_int_equal(link->state, LINK_READY);
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_ERR_NOT_FOUND);
    }
    assert_int_equal(link->state, LINK_DOWN);
    uint64_t began_us = as_loop_now_us(world.loop);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_ERR_NOT_FOUND);
    assert_true(as_loop_now_us(world.loop) - began_us < 1000);
    as_sim_resume(world.sim, world.store_nets[0]);
    pass_down(link);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_OK);
}

// Its memory was offered to a store, which is gone before it has said anything.
static void a_store_that_goes_before_it_has_taken_our_memory_is_forgotten(void **state)
{
    (void)state;
    world_options_t options = options_of(true);
    options.messages = true;
    options.shape = (as_shape_t){2, 2, 2, 16, 8, AS_ELEMENT_F16}; // blocks come with their messages
    world_open(&world, &options);
    put_chain(&world, 1);
    as_sim_stop(world.sim, world.store_nets[0]);
    assert_int_equal(put_block(&world, 1), AS_ERR_DEADLINE);
    assert_int_equal(link_of(0)->state, LINK_READY); // one answer may be lost
    assert_int_equal(link_of(0)->stage, LINK_STAGE_ASKED);
    assay_client_set_stores(world.client, NULL, 0);
    assert_null(world.client->links);
}

static void a_put_that_is_not_answered_counts_too(void **state)
{
    (void)state;
    begin();
    put_chain(&world, 2); // from now on blocks are taken from the stage
    assert_int_equal(link_of(0)->stage, LINK_STAGE_SHARED);
    as_sim_stop(world.sim, world.store_nets[0]);
    for (uint32_t i = 2; i <= 3; i++) {
        assert_int_equal(link_of(0)->state, LINK_READY);
        assert_int_equal(put_block(&world, i), AS_ERR_DEADLINE);
    }
    assert_int_equal(link_of(0)->state, LINK_DOWN);
    as_sim_resume(world.sim, world.store_nets[0]);
}

// Another store comes up at the address of one that is gone.
static void the_address_passes_to_another_store(bool sim)
{
    static world_net_t which;
    world_options_t options = options_of(sim);
    world_open(&world, &options);
    put_chain(&world, 3);
    char address[ASSAY_ADDRESS_BYTES_MAX];
    snprintf(address, sizeof(address), "%s", kvs_store_address(world.stores[0]));
    kvs_store_free(world.stores[0]);
    which = (world_net_t){&world, 0, false};
    options.store.loop = world.loop;
    options.store.net_alloc = world_net_alloc;
    options.store.net_ctx = &which;
    options.store.data_address = address;
    options.store.instance_id[0] = 77;
    assert_int_equal(kvs_store_alloc(&options.store, &world.stores[0]), AS_OK);
    assert_string_equal(kvs_store_address(world.stores[0]), address);
    int64_t strangers = as_metric_value(&assay_metrics[ASSAY_METRIC_STRANGERS]);
    for (uint32_t i = 0; i < 40; i++) { // the scheduler has not told of it yet
        assert_int_not_equal(put_block(&world, 0), AS_OK);
        assert_int_not_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_OK);
        world_pass(&world, 10000);
    }
    kvs_stat_t stat;
    kvs_store_stat(world.stores[0], &stat);
    assert_int_equal(stat.blocks + stat.reservations + stat.misses, 0); // it was asked nothing
    assert_int_equal(as_metric_value(&assay_metrics[ASSAY_METRIC_STRANGERS]), strangers + 1);
    world_tell_stores(&world); // now it has
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_ERR_NOT_FOUND);
    put_chain(&world, 3);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 3}).status, AS_OK);
}

static void another_store_at_the_address_is_another_store(void **state)
{
    (void)state;
    the_address_passes_to_another_store(true);
}

static void another_store_at_the_address_is_another_store_over_ucx(void **state)
{
    (void)state;
    the_address_passes_to_another_store(false);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_dead_store_is_asked_less_and_less_often),
        TEST(one_call_probes_and_the_others_do_not_wait),
        TEST(a_connected_store_that_answers_nothing_is_given_up),
        TEST(a_store_that_goes_before_it_has_taken_our_memory_is_forgotten),
        TEST(a_put_that_is_not_answered_counts_too),
        TEST(another_store_at_the_address_is_another_store),
        TEST(another_store_at_the_address_is_another_store_over_ucx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
