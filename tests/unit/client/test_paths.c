// SPDX-License-Identifier: Apache-2.0
// Every fault of a read, on every path (paths.h): what is handed out is right, what is not to be had
// is a miss and ends in time, nothing stays held, and the next read is as if nothing had been.
#include "paths.h"

#include <fcntl.h>
#include <unistd.h>

#include "kvstore/disk/state.h"
#include "kvstore/evict.h"

#define VICTIM   3u // of the chain
#define LEASE_US 20000u
#define LATE_US  1000000u    // of a machine
#define OTHERS   (2 * CHAIN) // blocks that come while the chain is read

static kvs_stat_t stat_of_server(void)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[server], &stat);
    return stat;
}

// ---- what comes after a fault

// What was missed is put again, as whoever computes it again does.
static void the_next_read_is_whole(way_t way)
{
    as_fault_clear();
    for (uint32_t i = 0; i < CHAIN; i++) {
        as_status_t status = put_block(&world, i);
        assert_true(status == AS_OK || status == AS_ERR_EXISTS);
    }
    assert_int_equal(read_chain(way), CHAIN);
    world_let_go(&world);
}

// All but the victim, where blocks count each for itself; else what lies before it, but for a ring,
// whose layers were not whole.
static void expect_hole(const reading_t *reading)
{
    uint32_t hits = reading_hits(reading);
    if (reading->way == EACH) {
        assert_int_equal(hits, CHAIN - 1);
    } else if (reading->way == RING && reading->status != AS_OK) {
        assert_int_equal(hits, 0);
    } else {
        assert_int_equal(hits, VICTIM);
    }
}

// ---- blocks that are not there, or not what is asked for

static void a_sound_chain_is_read_whole(way_t way)
{
    assert_int_equal(read_chain(way), CHAIN);
    uint64_t promoted = stat_now().promotions;
    assert_int_equal(read_chain(way), CHAIN); // now from memory, where it came from disk
    assert_int_equal(stat_now().promotions, promoted);
    the_next_read_is_whole(way);
}

static void a_dropped_block_is_missed(way_t way)
{
    assert_true(kvs_store_drop(world.stores[server], &world.keys[VICTIM], 0));
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    reading_end(&reading);
    expect_hole(&reading);
    the_next_read_is_whole(way);
}

static void a_block_whose_time_is_over_is_missed(way_t way)
{
    for (uint32_t i = 0; i < world.store_count; i++) {
        kvs_store_drop(world.stores[i], &world.keys[VICTIM], 0);
    }
    world_let_go(&world);
    world.ttl_ms = 20;
    assert_int_equal(put_block(&world, VICTIM), AS_OK);
    world.ttl_ms = 0;
    world_pass(&world, 21000);
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    reading_end(&reading);
    expect_hole(&reading);
    the_next_read_is_whole(way);
}

static void blocks_of_another_shape_are_missed(way_t way)
{
    const as_shape_t shapes[] = {{4, 4, 2, 16, 16, AS_ELEMENT_F32},
                                 {4, 4, 2, 32, 16, AS_ELEMENT_F16},
                                 {4, 4, 2, 32, 8, AS_ELEMENT_F16}, // as many bytes
                                 {5, 4, 2, 16, 16, AS_ELEMENT_F16}};
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        reading_t reading = {0};
        reading_begin(&reading, way, 0, &shapes[i]);
        assert_int_equal(reading_end(&reading), 0);
    }
    the_next_read_is_whole(way);
}

// ---- bytes that change

static void a_byte_that_changes_on_its_way_is_a_miss(way_t way)
{
    for (uint64_t nth = 1; nth <= 5; nth += 2) {
        as_fault_arm(AS_FAULT_fetch_extent_corrupt, nth);
        reading_t reading = {0};
        reading_begin(&reading, way, 0, NULL);
        uint32_t hits = reading_end(&reading);
        assert_true(way == EACH ? hits == CHAIN - 1 : reading.status == AS_ERR_CHECKSUM);
    }
    the_next_read_is_whole(way);
}

static void a_store_that_sends_a_wrong_byte_is_found_out(way_t way)
{
    as_fault_arm(AS_FAULT_serve_read_corrupt, 2);
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    uint32_t hits = reading_end(&reading);
    assert_int_equal(as_fault_fired(AS_FAULT_serve_read_corrupt), 1);
    assert_true(way == EACH ? hits == CHAIN - 1 : reading.status == AS_ERR_CHECKSUM);
    the_next_read_is_whole(way);
}

// The victim's image on disk, from byte `at` on.
static int open_image(size_t at, off_t *offset_p)
{
    const kvs_disk_t *disk = kvs_tier_disk(world.stores[0]);
    uint32_t entry = kvs_table_find(disk, &world.keys[VICTIM], AS_WIRE_FULL);
    assert_int_not_equal(entry, KVS_DISK_NONE);
    const kvs_record_t *record = &disk->entries[entry].record;
    char name[128];
    snprintf(name, sizeof(name), "%s/segments/%08u.seg", directory, record->segment);
    int fd = open(name, O_RDWR);
    assert_true(fd >= 0);
    *offset_p = (off_t)(record->offset + at);
    return fd;
}

// In the layers that every way reads.
static void flip_where_it_lies(void)
{
    size_t at = as_extent_bytes(&world.shape) + 77;
    if (path.tier != FROM_DISK) {
        kvs_index_t *index = world.stores[server]->index;
        kvs_block_t *block = kvs_index_find(index, &world.keys[VICTIM], AS_WIRE_FULL);
        kvs_index_extent(index, block, 0)[at] ^= 16;
        return;
    }
    off_t offset;
    int fd = open_image(at, &offset);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static void a_byte_that_changes_where_it_lies_is_a_miss(way_t way)
{
    flip_where_it_lies();
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    reading_end(&reading);
    expect_hole(&reading);
    kvs_store_scrub(world.stores[server], 1u << 30); // memory's is found so
    kvs_scrub_stat_t scrub;
    do {
        world_pass(&world, 1000);
        kvs_store_scrub_stat(world.stores[server], &scrub);
    } while (scrub.running);
    assert_int_equal(scrub.bad_ram_blocks, path.tier != FROM_DISK);
    the_next_read_is_whole(way);
}

// As a write that ended early leaves it: behind some byte is what was there before.
static void a_block_torn_on_disk_is_a_miss(way_t way)
{
    size_t whole = as_block_bytes(&world.shape) + world.shape.layers * sizeof(uint32_t);
    for (size_t at = 0; at < whole; at += whole / 7) {
        static const uint8_t before[16384];
        off_t offset;
        path_fill();
        int fd = open_image(at, &offset);
        assert_int_equal(pwrite(fd, before, whole - at, offset), whole - at);
        close(fd);
        reading_t reading = {0};
        reading_begin(&reading, way, 0, NULL);
        reading_end(&reading);
        expect_hole(&reading);
    }
    the_next_read_is_whole(way);
}

static void a_disk_that_cannot_be_read_is_a_miss(way_t way)
{
    as_fault_arm(AS_FAULT_disk_read_fails, 3);
    reading_t reading = {0};
    reading_begin(&reading, way, 0, NULL);
    uint32_t hits = reading_end(&reading);
    assert_int_equal(as_fault_fired(AS_FAULT_disk_read_fails), 1);
    assert_true(way == EACH ? hits == CHAIN - 1 : hits < CHAIN);
    the_next_read_is_whole(way);
}

// ---- leases

static void drop_everything(void)
{
    for (uint32_t i = 0; i < world.store_count; i++) {
        kvs_store_drop_all(world.stores[i]);
    }
}

static void a_block_dropped_while_it_is_read_stays_until_it_is(way_t way)
{
    reading_t reading = {.at_located = drop_everything};
    reading_begin(&reading, way, 0, NULL);
    assert_int_equal(reading_end(&reading), CHAIN);
    assert_int_equal(reading.status, AS_OK);
    assert_int_equal(read_chain(way), 0);
    the_next_read_is_whole(way);
}

static put_result_t others[OTHERS];

// All that may go does, and what is put then takes its place.
static void make_room_for_others(void)
{
    kvs_store_t *store = world.stores[server];
    uint64_t evicted = 0;
    while (kvs_evict_some(store->index, store->pool, 0, &evicted)) {
    }
    for (uint32_t i = 0; i < OTHERS; i++) {
        assay_put_t *put;
        as_status_t status =
            put_start(&world, CHAIN + i, world_deadline_us(&world), &others[i], &put);
        assert_int_equal(status, AS_OK);
    }
}

static void blocks_that_are_read_outlive_an_eviction_of_all_others(way_t way)
{
    for (uint32_t i = CHAIN + OTHERS; i < CHAIN + 2 * OTHERS; i++) {
        assert_int_equal(put_block(&world, i), AS_OK);
    }
    path_write(CHAIN + OTHERS);
    uint64_t before = stat_of_server().blocks;
    reading_t reading = {.at_located = make_room_for_others};
    reading_begin(&reading, way, 0, NULL);
    assert_int_equal(reading_end(&reading), CHAIN);
    assert_int_equal(reading.status, AS_OK);
    for (uint32_t i = 0; i < OTHERS; i++) {
        assert_true(world_run(&world, &others[i].done));
        assert_int_equal(others[i].status, AS_OK);
    }
    assert_int_equal(before, OTHERS + (path.tier == FROM_DISK ? 0 : CHAIN));
    assert_in_range(stat_of_server().blocks, CHAIN, CHAIN + OTHERS); // those went
    the_next_read_is_whole(way);
}

// Other bytes lie there now, whoever had leased it.
static void overwrite_the_pool(void)
{
    kvs_store_t *store = world.stores[server];
    for (uint32_t i = 0; i < CHAIN; i++) {
        kvs_block_t *block = kvs_index_find(store->index, &world.keys[i], AS_WIRE_FULL);
        memset(kvs_index_extent(store->index, block, 0), 0x5a, as_block_bytes(&world.shape));
    }
}

// As SIGSTOP would: time goes by, and the lease ends.
static void sleep_too_long(void)
{
    clock_ahead_us += 3 * LEASE_US / 2;
    overwrite_the_pool();
}

static void a_reader_that_slept_through_its_lease_hands_out_nothing_wrong(way_t way)
{
    reading_t reading = {.at_located = path.sim ? NULL : sleep_too_long};
    reading_begin(&reading, way, 0, NULL);
    if (path.sim) {
        assert_true(world_run(&world, &reading.located));
        as_sim_stop(world.sim, world.client_net);
        world_pass(&world, 3 * LEASE_US);
        overwrite_the_pool();
        as_sim_resume(world.sim, world.client_net);
    }
    assert_int_equal(reading_end(&reading), 0);
    world_let_go(&world);
}

// It holds its slots for much longer than a lease, while everything is dropped and other blocks come.
static uint32_t hold_a_ring(as_status_t *status_p)
{
    reading_t reading = {.hold = true};
    reading_begin(&reading, RING, 0, NULL);
    while (reading.layers < 2 && !reading.done) {
        as_loop_run_once(world.loop, true);
    }
    drop_everything();
    world_pass(&world, 10 * LEASE_US);
    for (uint32_t i = CHAIN; i < 4 * CHAIN; i++) {
        assert_int_equal(put_block(&world, i), AS_OK);
    }
    reading.hold = false;
    if (!reading.done) {
        assay_fetch_release(reading.fetch, 0);
        assay_fetch_release(reading.fetch, 1);
    }
    uint32_t hits = reading_end(&reading);
    *status_p = reading.status;
    world_let_go(&world);
    return hits;
}

static void a_ring_held_longer_than_the_lease_is_right(way_t way)
{
    (void)way;
    as_status_t status;
    uint32_t hits = hold_a_ring(&status);
    bool late = !path.sim && status == AS_ERR_LEASE; // a machine too slow for such leases
    assert_int_equal(hits, late ? 0 : CHAIN);
}

static void a_ring_whose_lease_is_not_renewed_is_ended(way_t way)
{
    (void)way;
    as_status_t status;
    as_fault_arm_chance(AS_FAULT_serve_renew_drop, 1000000, 1);
    assert_int_equal(hold_a_ring(&status), 0);
    assert_int_equal(status, AS_ERR_LEASE);
}

// ---- stores that do not answer

// By how much a deadline may be missed: a turn of the loop, or what a busy machine may be late by.
static void expect_in_time(uint64_t began_us, uint64_t deadline_us)
{
    uint64_t took_us = as_loop_now_us(world.loop) - began_us;
    assert_in_range(took_us, 0, deadline_us + (path.sim ? 1000 : LATE_US));
}

// The `nth` of these answers never comes.
static void expect_end_without(as_fault_site_t site, uint64_t nth, way_t way, reading_t *reading)
{
    const uint64_t deadline_us = 60000;
    as_fault_arm(site, nth);
    uint64_t began_us = as_loop_now_us(world.loop);
    reading_begin(reading, way, deadline_us, NULL);
    reading_end(reading);
    expect_in_time(began_us, deadline_us);
    assert_int_equal(as_fault_fired(site), 1);
    assert_int_equal(reading->status, AS_ERR_DEADLINE);
    the_next_read_is_whole(way);
}

static void a_question_that_is_not_answered_ends_by_the_deadline(way_t way)
{
    reading_t reading = {0};
    expect_end_without(AS_FAULT_serve_locate_drop, path.tier == FROM_COPY ? 2 : 1, way, &reading);
    assert_int_equal(reading_hits(&reading), 0);
}

static void an_extent_that_is_not_sent_ends_by_the_deadline(way_t way)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        reading_t reading = {0};
        expect_end_without(AS_FAULT_serve_read_drop, nth, way, &reading);
        assert_true(reading_hits(&reading) < CHAIN);
    }
}

// A put does not wait for whether a store could map the client's memory.
static void a_stage_that_nobody_answers_for_is_not_waited_for(way_t way)
{
    path_reopen();
    as_fault_arm(AS_FAULT_stage_answer_drop, 1);
    uint64_t began_us = as_loop_now_us(world.loop);
    put_chain(&world, CHAIN);
    expect_in_time(began_us, 60000);
    assert_int_equal(as_fault_fired(AS_FAULT_stage_answer_drop), 1);
    path_fill();
    the_next_read_is_whole(way);
}

static void a_store_lost_while_it_is_read_from_is_a_miss(way_t way)
{
    reading_t reading = {0};
    const as_sim_faults_t slow = {.delay_us_min = 10, .delay_us_max = 500};
    if (path.sim) {
        as_sim_set_faults(world.sim, &slow);
    }
    reading_begin(&reading, way, 0, NULL);
    assert_true(world_run(&world, &reading.located));
    for (uint32_t turns = 0; turns < 3 * way && !reading.done; turns++) {
        as_loop_run_once(world.loop, true);
    }
    world_store_lose(&world, server);
    reading_end(&reading);
    assert_int_equal(read_chain(way), 0);
    path_reopen();
    path_fill();
    the_next_read_is_whole(way);
}

static void a_store_that_is_stopped_costs_the_deadline_at_most(way_t way)
{
    const uint64_t deadline_us = 100000;
    for (uint32_t located = 0; located < 2; located++) {
        reading_t reading = {0};
        uint64_t began_us = as_loop_now_us(world.loop);
        if (!located) {
            as_sim_stop(world.sim, world.store_nets[server]);
        }
        reading_begin(&reading, way, deadline_us, NULL);
        if (located) {
            assert_true(world_run(&world, &reading.located));
            as_sim_stop(world.sim, world.store_nets[server]);
        }
        reading_end(&reading);
        assert_true(as_loop_now_us(world.loop) - began_us <= deadline_us + 1000);
        as_sim_resume(world.sim, world.store_nets[server]);
        world_pass(&world, 2000000);
    }
    the_next_read_is_whole(way);
}

// ---- answers that come late

// A read is given up after some turns, and another begins at once, with other memory and maybe the same
// slots for its questions: each keeps its own bytes.
static void answers_to_a_read_that_was_given_up_harm_no_other(way_t way)
{
    for (uint32_t turns = 0; turns < 12; turns++) {
        reading_t first = {0}, second = {0};
        reading_begin(&first, way, 0, NULL);
        for (uint32_t n = 0; n < turns && !first.done; n++) {
            as_loop_run_once(world.loop, true);
        }
        if (!first.done) {
            assay_fetch_cancel(first.fetch);
        }
        reading_begin(&second, way, 0, NULL);
        assert_true(world_run(&world, &first.done));
        uint8_t *then = malloc(first.bytes);
        memcpy(then, first.buffer, first.bytes);
        assert_int_equal(reading_end(&second), CHAIN);
        world_let_go(&world);
        assert_memory_equal(then, first.buffer, first.bytes);
        assert_int_equal(first.wrong, 0);
        free(then);
        reading_free(&first);
    }
    the_next_read_is_whole(way);
}

// ---- all of them on all paths

static bool on_disk(way_t way)
{
    (void)way;
    return path.tier == FROM_DISK;
}

static bool memory_is_shared(way_t way) // with what is put; one way of reading will do
{
    return way == WHOLE && (path.sim || reads_memory);
}

static bool simulated(way_t way) // tests/cluster stops real ones
{
    (void)way;
    return path.sim;
}

static bool in_a_ring(way_t way) // the others do not wait for their caller
{
    return way == RING;
}

static const fault_t faults[] = {
    FAULT(a_sound_chain_is_read_whole),
    FAULT(a_dropped_block_is_missed),
    FAULT(a_block_whose_time_is_over_is_missed),
    FAULT(blocks_of_another_shape_are_missed),
    FAULT(a_byte_that_changes_on_its_way_is_a_miss),
    FAULT_WHERE(a_store_that_sends_a_wrong_byte_is_found_out, bytes_are_sent),
    FAULT(a_byte_that_changes_where_it_lies_is_a_miss),
    FAULT_WHERE(a_block_torn_on_disk_is_a_miss, on_disk),
    FAULT_WHERE(a_disk_that_cannot_be_read_is_a_miss, on_disk),
    FAULT(a_block_dropped_while_it_is_read_stays_until_it_is),
    FAULT(blocks_that_are_read_outlive_an_eviction_of_all_others),
    FAULT(a_question_that_is_not_answered_ends_by_the_deadline),
    FAULT_WHERE(an_extent_that_is_not_sent_ends_by_the_deadline, bytes_are_sent),
    FAULT_WHERE(a_stage_that_nobody_answers_for_is_not_waited_for, memory_is_shared),
    FAULT(a_store_lost_while_it_is_read_from_is_a_miss),
    FAULT_WHERE(a_store_that_is_stopped_costs_the_deadline_at_most, simulated),
    FAULT(answers_to_a_read_that_was_given_up_harm_no_other),
};

// Of leases that end soon.
static const fault_t lease_faults[] = {
    FAULT(a_reader_that_slept_through_its_lease_hands_out_nothing_wrong),
    FAULT_WHERE(a_ring_held_longer_than_the_lease_is_right, in_a_ring),
    FAULT_WHERE(a_ring_whose_lease_is_not_renewed_is_ended, in_a_ring),
};

static int open_with(uint64_t lease_us)
{
    disk_world_begin(AS_LOG_ERROR + 1); // of what is damaged here, the scrubber tells
    path_open(lease_us);
    return 0;
}

static int open_group(void **state)
{
    (void)state;
    return open_with(0);
}

static int open_lease_group(void **state)
{
    (void)state;
    int failed = open_with(LEASE_US);
    if (!path.sim) {
        clock_inject(world.loop);
    }
    return failed;
}

static int run_path(tier_t tier, const char *over)
{
    static const char *const tiers[TIERS] = {"memory", "disk", "the second copy"};
    char name[64];
    path.tier = tier;
    snprintf(name, sizeof(name), "from %s, %s", tiers[tier], over);
    const faults_t usual = {faults, COUNT(faults), open_group, path_fill, disk_world_end};
    const faults_t leases = {lease_faults, COUNT(lease_faults), open_lease_group, path_fill,
                             disk_world_end};
    return run_faults(name, &usual) + run_faults(name, &leases);
}

int main(int argc, char **argv)
{
    if (argc > 1) { // again, since UCX reads its settings once
        return run_path(FROM_MEMORY, "by TCP") + run_path(FROM_DISK, "by TCP") +
               run_path(FROM_COPY, "by TCP");
    }
    path.sim = reads_memory = true;
    int failed = run_path(FROM_MEMORY, "simulated, one-sided");
    failed += run_path(FROM_COPY, "simulated, one-sided");
    path.messages = true;
    reads_memory = false;
    failed += run_path(FROM_MEMORY, "simulated, by messages");
    failed += run_path(FROM_COPY, "simulated, by messages");
    path = (path_t){0};
    reads_memory = true;
    failed += run_path(FROM_MEMORY, "by shared memory") + run_path(FROM_DISK, "by shared memory") +
              run_path(FROM_COPY, "by shared memory");
    if (failed > 0) {
        return failed;
    }
    return world_again_by_tcp(argv[0]);
}
