// SPDX-License-Identifier: Apache-2.0
// A block that is put in pieces, by a writer that keeps to the rules and by others.
#include "tests/unit/kvstore/raw_peer.h"

#define FIRST_BYTES 1000u // within the first layer

static void put_first(uint8_t n)
{
    connect_anew();
    const as_wire_put_t ask = put_of(n);
    assert_int_equal(status_of(&ask, FIRST_BYTES), UINT32_MAX); // not answered yet
}

// The piece from `offset` on; returns what the store has answered since.
static uint32_t piece(size_t offset, size_t bytes)
{
    const as_wire_piece_t ask = {as_wire_head(AS_WIRE_PIECE, 2), offset};
    last_status = UINT32_MAX;
    say(&ask, sizeof(ask), bytes > 0 ? block + offset % sizeof(block) : NULL, bytes);
    return last_status;
}

static uint32_t place_status(uint8_t n)
{
    const as_wire_locate_t ask = {as_wire_head(AS_WIRE_LOCATE, 5), 1, 5000, AS_WIRE_FULL, 0};
    as_key_t key = key_of(n);
    lease = 0;
    say(&ask, sizeof(ask), &key, sizeof(key));
    return lease != 0 ? AS_WIRE_OK : AS_WIRE_NOT_FOUND;
}

static void a_block_is_here_when_all_its_pieces_are(void **state)
{
    (void)state;
    put_first(1);
    assert_int_equal(piece(FIRST_BYTES, 2000), UINT32_MAX); // into the second layer
    assert_int_equal(place_status(1), AS_WIRE_NOT_FOUND);
    assert_int_equal(piece(3000, sizeof(block) - 3000), AS_WIRE_OK);
    locate(1);
    const as_wire_read_t read = {
        as_wire_head(AS_WIRE_READ, 0), lease, 1, 0, {{6, 0, LAYERS, 0, 1}}};
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(data_bytes, sizeof(block));
    assert_memory_equal(data, block, sizeof(block));
    expect_nothing_held();
}

static void what_does_not_follow_ends_the_put(void **state)
{
    (void)state;
    static const struct {
        size_t offset, bytes;
    } wrong[] = {{FIRST_BYTES + 1, 100},                      // a gap
                 {FIRST_BYTES - 1, 100},                      // an overlap
                 {0, FIRST_BYTES},                            // again
                 {FIRST_BYTES, sizeof(block)},                // more than the block
                 {FIRST_BYTES, 0},                            // nothing
                 {(size_t)0 - sizeof(block), sizeof(block)}}; // round the end of the numbers
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        put_first(1);
        static uint8_t more[2 * sizeof(block)];
        const as_wire_piece_t ask = {as_wire_head(AS_WIRE_PIECE, 2), wrong[i].offset};
        last_status = UINT32_MAX;
        say(&ask, sizeof(ask), wrong[i].bytes > 0 ? more : NULL, wrong[i].bytes);
        assert_int_equal(last_status, AS_WIRE_INVALID);
        assert_int_equal(piece(FIRST_BYTES, sizeof(block) - FIRST_BYTES), UINT32_MAX);
        assert_int_equal(place_status(1), AS_WIRE_NOT_FOUND);
        assert_non_null(conn);
        expect_nothing_held();
    }
}

static void a_damaged_piece_is_found_with_its_layer(void **state)
{
    (void)state;
    put_first(1);
    block[1500] ^= 1;
    assert_int_equal(piece(FIRST_BYTES, 2000), AS_WIRE_CHECKSUM);
    assert_int_equal(piece(3000, sizeof(block) - 3000), UINT32_MAX); // nobody waits for it
    assert_int_equal(place_status(1), AS_WIRE_NOT_FOUND);
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.checksum_failures, 1);
    expect_nothing_held();
}

static void a_piece_of_no_put_is_ignored(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    assert_int_equal(piece(0, 100), UINT32_MAX);
    const as_wire_put_t again = put_of(1);
    assert_int_equal(status_of(&again, FIRST_BYTES), AS_WIRE_EXISTS); // at the first piece
    assert_int_equal(piece(FIRST_BYTES, sizeof(block) - FIRST_BYTES), UINT32_MAX);
    assert_non_null(conn);
    expect_nothing_held();
}

static void a_piece_of_another_connection_is_ignored(void **state)
{
    (void)state;
    put_first(1);
    as_conn_t *first = conn;
    conn = NULL;
    connect_anew();
    assert_int_equal(piece(FIRST_BYTES, sizeof(block) - FIRST_BYTES), UINT32_MAX);
    assert_int_equal(place_status(1), AS_WIRE_NOT_FOUND);
    as_net_close(first);
    expect_nothing_held();
}

static void a_put_whose_pieces_stop_coming_is_let_go(void **state)
{
    (void)state;
    put_first(1);
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.reservations, 1);
    uint64_t end_us = as_loop_now_us(loop) + defaults().reservation_us + 200000;
    last_status = UINT32_MAX;
    while (as_loop_now_us(loop) < end_us) {
        settle();
    }
    assert_int_equal(last_status, AS_WIRE_LEASE);
    kvs_store_stat(store, &stat);
    assert_int_equal(stat.reservations, 0);
    assert_int_equal(piece(FIRST_BYTES, sizeof(block) - FIRST_BYTES), UINT32_MAX);
    put_first(2);
    expect_nothing_held(); // its connection ends in the middle
}

static void two_blocks_may_come_by_turns(void **state)
{
    (void)state;
    connect_anew();
    as_wire_put_t one = put_of(1), two = put_of(2);
    two.head.request = 3;
    assert_int_equal(status_of(&one, FIRST_BYTES), UINT32_MAX);
    assert_int_equal(status_of(&two, 2 * FIRST_BYTES), UINT32_MAX);
    assert_int_equal(piece(FIRST_BYTES, sizeof(block) - FIRST_BYTES), AS_WIRE_OK);
    const as_wire_piece_t rest = {as_wire_head(AS_WIRE_PIECE, 3), 2 * FIRST_BYTES};
    last_status = UINT32_MAX;
    say(&rest, sizeof(rest), block + 2 * FIRST_BYTES, sizeof(block) - 2 * FIRST_BYTES);
    assert_int_equal(last_status, AS_WIRE_OK);
    locate(1);
    locate(2);
    expect_nothing_held();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_block_is_here_when_all_its_pieces_are),
        TEST(what_does_not_follow_ends_the_put),
        TEST(a_damaged_piece_is_found_with_its_layer),
        TEST(a_piece_of_no_put_is_ignored),
        TEST(a_piece_of_another_connection_is_ignored),
        TEST(a_put_whose_pieces_stop_coming_is_let_go),
        TEST(two_blocks_may_come_by_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
