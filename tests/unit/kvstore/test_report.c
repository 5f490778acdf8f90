// SPDX-License-Identifier: Apache-2.0
// What a store tells a scheduler: a real scheduler that is there, restarts, is away and comes back.
#include "tests/unit/client/world.h"

#include "scheduler/scheduler.h"

static world_t world;
static sch_scheduler_t *scheduler;
static as_rpc_server_t *server;
static as_rpc_client_t *client;
static kvs_report_t *report;

static void scheduler_start(void)
{
    assert_int_equal(sch_scheduler_alloc(world.loop, &sch_options_default, &scheduler), AS_OK);
    assert_int_equal(as_rpc_server_alloc_sim(world.sim, "scheduler:1", &server), AS_OK);
    assert_int_equal(as_rpc_server_add(server, sch_scheduler_service(scheduler)), AS_OK);
    assert_int_equal(as_rpc_server_start(server), AS_OK);
}

static void scheduler_stop(void)
{
    as_rpc_server_free(server);
    sch_scheduler_free(scheduler);
}

static void report_start(void)
{
    assert_int_equal(as_rpc_client_alloc_sim(world.sim, "store0", "scheduler:1",
                                             &assay__scheduler__descriptor, &client),
                     AS_OK);
    const kvs_report_options_t options = {
        .store = world.stores[0], .scheduler = client, .name = "one"};
    assert_int_equal(kvs_report_alloc(&options, &report), AS_OK);
}

static int begin(void **state)
{
    (void)state;
    const world_options_t options = world_defaults(true);
    world_open(&world, &options);
    scheduler_start();
    report_start();
    return 0;
}

static int end(void **state)
{
    (void)state;
    as_rpc_client_free(client);
    kvs_report_free(report);
    scheduler_stop();
    world_close(&world);
    return 0;
}

// How many of the chain's first `count` blocks the directory knows.
static uint32_t known(uint32_t count)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        const sch_entry_t *entry = sch_directory_find(scheduler->directory, world.keys[i].bytes);
        found += entry != NULL && entry->holders[0] != 0;
    }
    return found;
}

static void blocks_become_known_and_leave_again(void **state)
{
    (void)state;
    put_chain(&world, 20);
    world_pass(&world, 500000);
    assert_true(kvs_report_is_settled(report));
    assert_int_equal(known(30), 20);
    assert_true(kvs_store_drop(world.stores[0], &world.keys[7], 0));
    world_pass(&world, 500000);
    assert_int_equal(known(30), 19);
    assert_null(sch_directory_find(scheduler->directory, world.keys[7].bytes));
}

static void a_restarted_scheduler_is_told_everything_again(void **state)
{
    (void)state;
    put_chain(&world, 20);
    world_pass(&world, 500000);
    scheduler_stop();
    assert_int_equal(put_block(&world, 20), AS_OK); // while it is away
    scheduler_start();
    world_pass(&world, 10000000);
    assert_true(kvs_report_is_settled(report));
    assert_int_equal(known(30), 21);
}

static void what_happened_while_the_scheduler_was_away_is_told_later(void **state)
{
    (void)state;
    put_chain(&world, 10);
    world_pass(&world, 500000);
    as_sim_rpc_set_down(world.sim, "scheduler", true);
    for (uint32_t i = 10; i < 20; i++) {
        assert_int_equal(put_block(&world, i), AS_OK); // the store serves all the same
    }
    kvs_store_drop(world.stores[0], &world.keys[3], 0);
    world_pass(&world, 30000000);
    assert_false(kvs_report_is_settled(report));
    as_sim_rpc_set_down(world.sim, "scheduler", false);
    world_pass(&world, 20000000);
    assert_true(kvs_report_is_settled(report));
    assert_int_equal(known(30), 19);
}

static void lost_answers_are_repaired(void **state)
{
    (void)state;
    const as_sim_faults_t plan = {.loss_ppm = 200000, .delay_us_min = 10, .delay_us_max = 2000};
    world_pass(&world, 500000);
    put_chain(&world, 5);
    as_sim_set_faults(world.sim, &plan);
    uint32_t dropped = 0;
    for (uint32_t i = 0; i < 5; i++) {
        dropped += kvs_store_drop(world.stores[0], &world.keys[i], 0);
        world_pass(&world, 3000000);
    }
    const as_sim_faults_t none = {.delay_us_min = 10, .delay_us_max = 100};
    as_sim_set_faults(world.sim, &none);
    world_pass(&world, 30000000);
    assert_int_equal(dropped, 5);
    assert_true(kvs_report_is_settled(report));
    assert_int_equal(known(5), 0);
}

static void a_report_can_end_before_it_has_joined(void **state)
{
    (void)state;
    as_rpc_client_free(client);
    kvs_report_free(report);
    report_start(); // and begin again
    put_chain(&world, 3);
    world_pass(&world, 500000);
    assert_int_equal(known(3), 3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(blocks_become_known_and_leave_again),
        TEST(a_restarted_scheduler_is_told_everything_again),
        TEST(what_happened_while_the_scheduler_was_away_is_told_later),
        TEST(lost_answers_are_repaired),
        TEST(a_report_can_end_before_it_has_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
