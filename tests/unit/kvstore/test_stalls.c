// SPDX-License-Identifier: Apache-2.0
// A peer that takes nothing of what it asked for is closed, whatever it sends meanwhile; one that takes some
// of it, or is slow to write, is not.
#include "kvstore/store.h"

#include "tests/unit/kvstore/raw_peer.h"

#define SLOW_US 8000000u // between the pieces of a writer that is slow, and in its time

static void pass(uint64_t us)
{
    uint64_t end_us = as_loop_now_us(loop) + us;
    while (as_loop_now_us(loop) < end_us) {
        settle();
    }
}

// The simulated network lets go of an answer at once: so one more is pretended.
static void begin_untaken(void)
{
    connect_anew();
    put(1);
    locate(1);
    kvs_conn_hold(store->conns);
    kvs_conn_await(store->conns);
}

// The pretended one leaves the network with its connection, before the peer hears of that.
static void end_untaken(kvs_conn_t *served)
{
    kvs_conn_awaited(served, false);
    kvs_conn_drop(served);
}

static void say_release(void)
{
    const as_wire_release_t release = {as_wire_head(AS_WIRE_RELEASE, 3), lease ^ 1};
    say(&release, sizeof(release), NULL, 0);
}

static void say_piece(size_t offset, size_t bytes)
{
    const as_wire_piece_t piece = {as_wire_head(AS_WIRE_PIECE, 2), offset};
    say(&piece, sizeof(piece), bytes > 0 ? block + offset : NULL, bytes);
}

static void say_read(uint64_t of_lease)
{
    const as_wire_read_t read = {
        as_wire_head(AS_WIRE_READ, 0), of_lease, 1, 0, {{6, 0, LAYERS, 0, 1}}};
    say(&read, sizeof(read), NULL, 0);
}

static void who_takes_nothing_is_closed_whatever_it_sends(void **state)
{
    (void)state;
    begin_untaken();
    kvs_conn_t *served = store->conns;
    uint64_t began_us = as_loop_now_us(loop), end_us = began_us + 2 * store->options.stall_us;
    while (store->conns && as_loop_now_us(loop) < end_us) {
        say_release();
        say_piece(0, 0);
        say_read(lease ^ 1);
    }
    assert_null(store->conns);
    assert_in_range(as_loop_now_us(loop), began_us + store->options.stall_us,
                    began_us + store->options.stall_us + 1000000);
    end_untaken(served);
    expect_nothing_held();
}

static void who_takes_now_and_then_stays(void **state)
{
    (void)state;
    begin_untaken();
    for (uint64_t us = 0; us < 3 * store->options.stall_us; us += store->options.stall_us / 2) {
        locate(1);
        say_read(lease);
        assert_int_equal(last_status, AS_WIRE_OK);
        pass(store->options.stall_us / 2);
        assert_non_null(store->conns);
    }
    end_untaken(store->conns);
    expect_nothing_held();
}

// Only writes: nothing is sent to it for minutes but that a put is stored.
static void who_writes_slowly_in_pieces_stays(void **state)
{
    (void)state;
    connect_anew();
    uint64_t end_us = as_loop_now_us(loop) + 3 * store->options.stall_us;
    for (uint8_t n = 1; as_loop_now_us(loop) < end_us; n++) {
        const as_wire_put_t ask = put_of(n);
        assert_int_equal(status_of(&ask, 1000), UINT32_MAX);
        pass(SLOW_US / 2);
        say_piece(1000, 1000);
        pass(SLOW_US / 2);
        say_piece(2000, sizeof(block) - 2000);
        assert_int_equal(last_status, AS_WIRE_OK);
    }
    assert_int_equal(lost, 0);
    expect_nothing_held();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_takes_nothing_is_closed_whatever_it_sends),
        TEST(who_takes_now_and_then_stays),
        TEST(who_writes_slowly_in_pieces_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
