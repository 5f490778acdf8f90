// SPDX-License-Identifier: Apache-2.0
// Puts, as raw messages: in part, with wrong checksums, of a block that is there or is being written,
// out of the writer's memory, past their limits.
#include "raw_peer.h"

#define LARGE_BYTES 16384u // of a block that does not come with its message

static uint8_t large[LARGE_BYTES]; // zeros

static void expect_nothing_stored(void)
{
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.blocks + stat.ram_bytes_used + stat.reservations, 0);
}

static void a_wrong_checksum_is_refused_and_the_key_is_free_again(void **state)
{
    (void)state;
    connect_anew();
    const as_wire_put_t ask = put_of(1);
    block[EXTENT_BYTES + 5] ^= 4;
    assert_int_equal(status_of(&ask, sizeof(block)), AS_WIRE_CHECKSUM);
    expect_nothing_stored();
    put(1);
}

static void a_block_that_arrives_in_part_is_never_found(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    for (size_t bytes = 0; bytes < sizeof(block); bytes += 7) { // what came may be its first piece
        connect_anew();
        const as_wire_put_t ask = put_of(1);
        assert_int_equal(status_of(&ask, bytes), bytes == 0 ? AS_WIRE_INVALID : UINT32_MAX);
        kvs_stat_t stat;
        kvs_store_stat(store, &stat);
        assert_int_equal(stat.blocks, 0);
        as_net_close(conn);
        conn = NULL;
        settle();
        expect_nothing_stored();
    }
    connect_anew();
    as_log_set_level(AS_LOG_INFO);
    put(1);
    locate(1);
    expect_nothing_held();
}

// Of a large block the announcement alone is here for a second, until the bytes that the store asks for
// come.
static as_wire_put_t large_put_of(uint8_t n)
{
    as_wire_put_t ask = put_of(n);
    ask.extent_bytes = LARGE_BYTES / LAYERS;
    for (uint32_t l = 0; l < LAYERS; l++) {
        ask.crcs[l] = as_crc32c(0, large + l * ask.extent_bytes, ask.extent_bytes);
    }
    return ask;
}

static uint64_t reservations(void)
{
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    return stat.reservations;
}

static void announce_large_slowly(uint8_t n, uint64_t reservations_then, uint64_t us)
{
    const as_wire_put_t ask = large_put_of(n);
    const as_sim_faults_t slow = {.delay_us_min = us, .delay_us_max = us};
    assert_int_equal(
        as_net_send(conn, &ask, as_wire_put_bytes(LAYERS), large, LARGE_BYTES, on_sent, NULL),
        AS_OK);
    as_sim_set_faults(sim, &slow);
    while (reservations() < reservations_then) {
        assert_true(as_loop_run_once(loop, true));
    }
    as_sim_set_faults(sim, &(as_sim_faults_t){0});
}

static void announce_large(uint8_t n, uint64_t reservations_then)
{
    announce_large_slowly(n, reservations_then, 1000000);
}

static uint32_t status_of_large(const as_wire_put_t *ask)
{
    last_status = UINT32_MAX;
    say(ask, as_wire_put_bytes(LAYERS), large, LARGE_BYTES);
    return last_status;
}

static void a_second_put_is_told_whether_its_bytes_are_the_same(void **state)
{
    (void)state;
    connect_anew();
    for (int sealed = 0; sealed < 2; sealed++) { // first while another writer is at it
        if (sealed) {
            for (int wait = 0; wait < 20; wait++) {
                settle();
            }
        } else {
            announce_large(1, 1);
        }
        assert_int_equal(reservations(), !sealed);
        as_wire_put_t again = large_put_of(1);
        assert_int_equal(status_of_large(&again), AS_WIRE_EXISTS);
        again.flags = AS_WIRE_DURABLE; // there is no disk, or nothing to make durable yet
        assert_int_equal(status_of_large(&again), AS_WIRE_FAILED);
        again.flags = AS_WIRE_COPY; // a writer may yet give up
        assert_int_equal(status_of_large(&again), sealed ? AS_WIRE_EXISTS : AS_WIRE_BUSY);
        again.flags = 8;
        assert_int_equal(status_of_large(&again), AS_WIRE_INVALID);
        again.flags = 0;
        again.crcs[1] ^= 0x80000000u;
        assert_int_equal(status_of_large(&again), AS_WIRE_CONFLICT);
    }
    as_wire_put_t shape = large_put_of(1);
    shape.tokens = 15;
    assert_int_equal(status_of_large(&shape), AS_WIRE_CONFLICT);
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.conflicts, 3);
    locate(1); // what was there first stays
    expect_nothing_held();
}

static void a_put_whose_bytes_do_not_come_ends_by_its_deadline(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    connect_anew();
    announce_large(1, 1);
    as_sim_stop(sim, peer);
    for (int wait = 0; wait < 110; wait++) { // 11 s: a put has 10
        settle();
    }
    assert_int_equal(reservations(), 1);     // the network may yet write
    for (int wait = 0; wait < 600; wait++) { // its connection is closed
        settle();
    }
    as_log_set_level(AS_LOG_INFO);
    expect_nothing_stored();
    as_sim_resume(sim, peer);
    connect_anew();
    put(1);
}

// One that asks for other things meanwhile is alive, and keeps back what it has announced all the same.
static void what_is_announced_and_never_comes_is_not_kept_for_ever(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    connect_anew();
    announce_large_slowly(1, 1, 10000000000);
    for (int wait = 0; wait < 900 && conn; wait++) {
        settle();
        if (wait % 100 == 0 && conn) {
            locate(1);
        }
    }
    as_log_set_level(AS_LOG_INFO);
    assert_null(conn);
    expect_nothing_stored();
}

static uint32_t status_of_share(uint64_t bytes, const as_shared_name_t *name)
{
    const as_wire_share_t ask = {as_wire_head(AS_WIRE_SHARE, 3), bytes, *name};
    last_status = UINT32_MAX;
    say(&ask, sizeof(ask), NULL, 0);
    return last_status;
}

static as_wire_put_t staged_put_of(uint8_t n, uint64_t offset)
{
    as_wire_put_t ask = put_of(n);
    ask.flags = AS_WIRE_STAGED;
    ask.offset = offset;
    return ask;
}

static void a_block_is_taken_out_of_the_memory_of_its_writer(void **state)
{
    (void)state;
    connect_anew();
    uint8_t *memory = stage.memory;
    const as_shared_name_t name = as_shared_name(&stage);
    as_wire_put_t ask = staged_put_of(1, 64);
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID); // nothing is shared yet
    assert_int_equal(status_of_share(stage.bytes, &name), AS_WIRE_OK);
    memcpy(memory + 64, block, sizeof(block));
    assert_int_equal(status_of(&ask, sizeof(block)), AS_WIRE_INVALID); // it comes twice
    ask.offset = stage.bytes - sizeof(block) + 1;
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID);
    ask.offset = UINT64_MAX - 100;
    assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID);
    ask.offset = 63; // other bytes than were promised
    assert_int_equal(status_of(&ask, 0), AS_WIRE_CHECKSUM);
    expect_nothing_stored();
    ask.offset = 64;
    assert_int_equal(status_of(&ask, 0), AS_WIRE_OK);
    memset(memory, 0, stage.bytes); // it was copied
    locate(1);
    const as_wire_read_t read = {as_wire_head(AS_WIRE_READ, 0), lease, 1, 0, {{6, 0, 2, 0, 1}}};
    say(&read, sizeof(read), NULL, 0);
    assert_memory_equal(data, block, sizeof(block));
    assert_int_equal(status_of_share(stage.bytes, &name), UINT32_MAX); // once on a connection
    assert_null(conn);
    expect_nothing_held();
}

static void memory_that_is_not_the_writers_is_not_mapped(void **state)
{
    (void)state;
    const as_shared_name_t right = as_shared_name(&stage);
    as_shared_name_t name = right;
    name.secret[0] ^= 1;
    const struct {
        uint64_t bytes;
        const as_shared_name_t *name;
        uint32_t status;
    } shares[] = {{stage.bytes, &name, AS_WIRE_NOT_FOUND},
                  {stage.bytes + 1, &right, AS_WIRE_NOT_FOUND},
                  {0, &right, AS_WIRE_LIMIT},
                  {UINT64_MAX, &right, AS_WIRE_LIMIT}};
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        connect_anew();
        assert_int_equal(status_of_share(shares[i].bytes, shares[i].name), shares[i].status);
        const as_wire_put_t ask = staged_put_of(1, 0);
        assert_int_equal(status_of(&ask, 0), AS_WIRE_INVALID);
        assert_int_equal(status_of_share(stage.bytes, &right), UINT32_MAX); // once on a connection
        assert_null(conn);
    }
}

// More in one turn of the loop than it has free: it evicts as it takes them.
static void a_full_store_takes_a_burst_of_puts(void **state)
{
    (void)state;
    connect_anew();
    for (uint32_t n = 0; n < 400; n++) {
        as_wire_put_t ask = put_of(1);
        ask.key = (as_key_t){{1, (uint8_t)n, (uint8_t)(n >> 8)}};
        assert_int_equal(
            as_net_send(conn, &ask, as_wire_put_bytes(LAYERS), block, sizeof(block), on_sent, NULL),
            AS_OK);
    }
    uint32_t before = answers;
    while (answers < before + 400) {
        assert_true(as_loop_run_once(loop, true));
        assert_int_equal(last_status, AS_WIRE_OK);
    }
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_true(stat.evictions > 100 && stat.blocks > 100);
    // A block that is larger than what eviction leaves free.
    static const uint8_t whole[200 << 10];
    as_wire_put_t ask = put_of(2);
    ask.extent_bytes = sizeof(whole) / LAYERS;
    ask.crcs[0] = ask.crcs[1] = as_crc32c(0, whole, ask.extent_bytes);
    assert_true(stat.ram_bytes_max - stat.ram_bytes_used < sizeof(whole));
    say(&ask, as_wire_put_bytes(LAYERS), whole, sizeof(whole));
    assert_int_equal(last_status, AS_WIRE_OK);
}

static void past_their_limits_puts_and_leases_are_busy(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    for (uint8_t n = 0; n < 4;
         n++) { // half of them: a connection leaves as many as it has, of leases too
        announce_large((uint8_t)(100 + n), 1 + n);
    }
    const as_wire_put_t more = put_of(108);
    assert_int_equal(status_of(&more, sizeof(block)), AS_WIRE_BUSY);
    const as_wire_locate_t ask = {as_wire_head(AS_WIRE_LOCATE, 5), 1, 60000, AS_WIRE_FULL, 0};
    as_key_t key = key_of(1);
    for (int n = 0; n < 5; n++) {
        say(&ask, sizeof(ask), &key, sizeof(key));
        assert_int_equal(last_status, n < 4 ? AS_WIRE_OK : AS_WIRE_BUSY);
    }
    expect_nothing_held();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_wrong_checksum_is_refused_and_the_key_is_free_again),
        TEST(a_block_that_arrives_in_part_is_never_found),
        TEST(a_second_put_is_told_whether_its_bytes_are_the_same),
        TEST(a_put_whose_bytes_do_not_come_ends_by_its_deadline),
        TEST(what_is_announced_and_never_comes_is_not_kept_for_ever),
        TEST(a_block_is_taken_out_of_the_memory_of_its_writer),
        TEST(memory_that_is_not_the_writers_is_not_mapped),
        TEST(a_full_store_takes_a_burst_of_puts),
        TEST(past_their_limits_puts_and_leases_are_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
