// SPDX-License-Identifier: Apache-2.0
// Two stores have each block, and one of them fails, on every path and by every way of reading (paths.h):
// what was asked for is there all the same, whole and right.
#include "paths.h"

#include "client/internal.h"

static int64_t metric(assay_metric_t which)
{
    return as_metric_value(&assay_metrics[which]);
}

// Both have the chain.
static void fill_both(void)
{
    for (uint32_t i = 0; i < world.store_count; i++) {
        kvs_store_drop_all(world.stores[i]);
    }
    world_let_go(&world);
    put_chain(&world, CHAIN);
    for (uint32_t i = 0; i < world.store_count; i++) {
        kvs_stat_t stat;
        kvs_store_stat(world.stores[i], &stat);
        assert_int_equal(stat.blocks, CHAIN);
    }
}

// The store that the chain is read from first, where it is placed.
static uint32_t first_store(void)
{
    return 1 - server;
}

static void must_be_whole(reading_t *reading)
{
    assert_int_equal(reading_end(reading), CHAIN);
    assert_int_equal(reading->status, AS_OK);
}

static void read_whole(way_t way)
{
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    must_be_whole(&reading);
}

// Extent `nth` that arrives has another byte.
static void an_extent_that_arrives_damaged(way_t way)
{
    uint32_t extents = CHAIN * way_shapes[way].layer_count;
    for (uint64_t nth = 1; nth <= extents; nth += 5) {
        int64_t fallbacks = metric(ASSAY_METRIC_FALLBACKS_CHECKSUM);
        int64_t rescued = metric(ASSAY_METRIC_RESCUED);
        as_fault_arm(AS_FAULT_fetch_extent_corrupt, nth);
        read_whole(way);
        assert_int_equal(metric(ASSAY_METRIC_FALLBACKS_CHECKSUM), fallbacks + 1);
        assert_int_equal(metric(ASSAY_METRIC_RESCUED), rescued + 1);
    }
}

static void an_extent_that_is_sent_damaged(way_t way)
{
    int64_t rescued = metric(ASSAY_METRIC_RESCUED);
    as_fault_arm(AS_FAULT_serve_read_corrupt, 2);
    read_whole(way);
    assert_int_equal(as_fault_fired(AS_FAULT_serve_read_corrupt), 1);
    assert_true(metric(ASSAY_METRIC_RESCUED) > rescued);
}

// In each store, of other blocks, in layers that every way reads.
static void bytes_that_flipped_in_both_stores(way_t way)
{
    int64_t rescued = metric(ASSAY_METRIC_RESCUED);
    for (uint32_t i = 0; i < CHAIN; i++) {
        kvs_index_t *index = world.stores[i % 2]->index;
        kvs_block_t *block = kvs_index_find(index, &world.keys[i], AS_WIRE_FULL);
        kvs_index_extent(index, block, 1)[77 + i] ^= 16;
    }
    read_whole(way);
    int64_t some = metric(ASSAY_METRIC_RESCUED) - rescued;
    assert_true(way == EACH ? some <= CHAIN
                            : some == CHAIN / 2); // those ask all, and take who answers first
}

static void blocks_that_either_store_has_lost(way_t way)
{
    for (uint32_t i = 0; i < CHAIN; i++) {
        assert_true(kvs_store_drop(world.stores[i % 2], &world.keys[i], 0));
    }
    int64_t missing = metric(ASSAY_METRIC_FALLBACKS_MISSING);
    read_whole(way);
    assert_true(way == EACH || metric(ASSAY_METRIC_FALLBACKS_MISSING) > missing);
}

// As soon as it has said what it has, or a little later.
static void a_store_that_is_lost_while_it_is_read_from(way_t way)
{
    for (uint32_t turns = 0; turns < 6; turns += 2) {
        reading_t reading = {0};
        reading_begin(&reading, way, 0, NULL);
        assert_true(world_run(&world, &reading.located));
        for (uint32_t i = 0; i < turns && !reading.done; i++) {
            as_loop_run_once(world.loop, true);
        }
        world_store_lose(&world, first_store());
        must_be_whole(&reading);
        read_whole(way); // and from the other alone
        path_reopen();
        fill_both();
    }
}

// A store that is connected and says nothing is waited for as long as the client is told to.
static void hurry(bool much)
{
    assay_client_options_t *options = &world.client->options;
    options->connect_timeout_us = options->stall_timeout_us =
        much || path.sim ? 200000 : PATIENCE_US;
}

static void one_answer_is_dropped(way_t way, as_fault_site_t site)
{
    hurry(true);
    as_fault_arm(site, 1);
    int64_t rescued = metric(ASSAY_METRIC_RESCUED);
    read_whole(way);
    assert_int_equal(as_fault_fired(site), 1);
    assert_true(site != AS_FAULT_serve_read_drop || metric(ASSAY_METRIC_RESCUED) > rescued);
    hurry(false);
    path_reopen();
}

static void a_question_that_one_store_does_not_answer(way_t way)
{
    one_answer_is_dropped(way, AS_FAULT_serve_locate_drop);
}

static void an_extent_that_one_store_does_not_send(way_t way)
{
    one_answer_is_dropped(way, AS_FAULT_serve_read_drop);
}

// ---- all of them on all paths

static const fault_t losses[] = {
    FAULT(an_extent_that_arrives_damaged),
    FAULT_WHERE(an_extent_that_is_sent_damaged, bytes_are_sent),
    FAULT(bytes_that_flipped_in_both_stores),
    FAULT(blocks_that_either_store_has_lost),
    FAULT(a_store_that_is_lost_while_it_is_read_from),
    FAULT(a_question_that_one_store_does_not_answer),
    FAULT_WHERE(an_extent_that_one_store_does_not_send, bytes_are_sent),
};

static int begin(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    path_open(0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    as_log_set_level(AS_LOG_INFO);
    return 0;
}

static int run_path(const char *over)
{
    const faults_t both = {losses, COUNT(losses), begin, fill_both, end};
    return run_faults(over, &both);
}

int main(int argc, char **argv)
{
    path.tier = FROM_COPY;
    if (argc > 1) { // again, since UCX reads its settings once
        return run_path("by TCP");
    }
    path.sim = reads_memory = true;
    int failed = run_path("simulated, one-sided");
    path.messages = true;
    reads_memory = false;
    failed += run_path("simulated, by messages");
    path.sim = path.messages = false;
    reads_memory = true;
    failed += run_path("by shared memory");
    return failed > 0 ? failed : world_again_by_tcp(argv[0]);
}
