// SPDX-License-Identifier: Apache-2.0
// ATTEND by itself, from raw messages: what is asked for wrongly is refused or ends the connection, what
// cannot be done in time is BUSY, and whatever ends early holds nothing. The attention itself is compared in
// tests/unit/client/test_attend.c.
#include "kvstore/store.h"
#include "raw_peer.h"

static float queries[QUERIES];

static uint32_t say_attend(const as_wire_attend_t *ask, size_t payload_bytes)
{
    last_status = UINT32_MAX;
    say(ask, as_wire_attend_bytes(ask->piece_count), queries, payload_bytes);
    return last_status;
}

// The peer of a store that has block 1, with a lease.
static as_wire_attend_t ready(void)
{
    connect_anew();
    kvs_store_drop_all(store);
    put(1);
    locate(1);
    for (uint32_t i = 0; i < QUERIES; i++) {
        queries[i] = (float)i / 16.0f - 1.0f;
    }
    return attend_of(queries);
}

static void a_sound_question_is_answered_with_partials(void **state)
{
    (void)state;
    as_wire_attend_t ask = ready();
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_OK);
    assert_int_equal(data_bytes, 2 * (16 + 2) * sizeof(float));
    expect_nothing_held();
}

static void what_does_not_fit_is_refused_and_the_connection_stays(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    const as_wire_attend_t sound = ready();
    as_wire_attend_t ask = sound;
    ask.numerics[0]++;
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_UNSUPPORTED);
    ask = sound;
    ask.layer = LAYERS;
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_INVALID);
    ask = sound;
    ask.kv_heads = 1; // an extent would be half as long
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_INVALID);
    ask = sound;
    ask.q_heads = 1;
    ask.kv_heads = 2;
    assert_int_equal(say_attend(&ask, sizeof(queries) / 2), AS_WIRE_INVALID);
    ask = sound;
    ask.scale = (float)(1e30 * 1e30);
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_INVALID);
    ask = sound;
    ask.lease_id++;
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_LEASE);
    ask = sound;
    ask.pieces[0].index_first = 1; // the lease is of one block
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_LEASE);
    ask = sound;
    ask.crc++;
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_CHECKSUM);
    ask = sound;
    ask.piece_count = 200;
    for (uint32_t p = 0; p < ask.piece_count; p++) {
        ask.pieces[p] = (as_wire_chain_piece_t){0, 2};
    }
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_LIMIT);
    assert_int_equal(lost, 0);
    assert_int_equal(say_attend(&sound, sizeof(queries)), AS_WIRE_OK);
    as_log_set_level(AS_LOG_INFO);
    expect_nothing_held();
}

static void what_no_client_says_ends_the_connection(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    for (int which = 0; which < 8; which++) {
        as_wire_attend_t ask = ready();
        size_t payload_bytes = sizeof(queries);
        switch (which) {
        case 0:
            ask.rows = 0;
            break;
        case 1:
            ask.rows = UINT32_MAX;
            break;
        case 2:
            ask.q_heads = UINT32_MAX;
            break;
        case 3:
            ask.dim = UINT32_MAX;
            break;
        case 4:
            payload_bytes -= 4;
            break;
        case 5:
            ask.pieces[0].index_count = 0;
            break;
        case 6:
            ask.pieces[0].index_first = AS_WIRE_KEYS_MAX;
            break;
        default:
            ask.piece_count = 0;
        }
        uint32_t before = lost;
        say_attend(&ask, payload_bytes);
        assert_int_equal(lost, before + 1);
    }
    as_log_set_level(AS_LOG_INFO);
    expect_nothing_held();
}

static void another_connection_cannot_use_a_lease(void **state)
{
    (void)state;
    as_wire_attend_t ask = ready();
    as_conn_t *first = conn;
    conn = NULL;
    connect_anew();
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_LEASE);
    as_net_close(first);
    expect_nothing_held();
}

// All of one turn: the first is computed, the others wait, until their time is over or their connection is.
static void whatever_waits_ends_with_its_lease_and_its_connection(void **state)
{
    (void)state;
    for (int by_lease = 0; by_lease < 2; by_lease++) {
        as_wire_attend_t ask = ready();
        for (uint32_t i = 0; i < 10; i++) {
            ask.head.request = 100 + i;
            assert_int_equal(as_net_send(conn, &ask, as_wire_attend_bytes(1), queries,
                                         sizeof(queries), on_sent, NULL),
                             AS_OK);
        }
        if (by_lease) {
            const as_wire_release_t release = {as_wire_head(AS_WIRE_RELEASE, 0), lease};
            say(&release, sizeof(release), NULL, 0);
        }
        expect_nothing_held();
    }
}

static void of_one_connection_it_takes_as_many_as_it_leaves_to_others(void **state)
{
    (void)state;
    as_wire_attend_t ask = ready();
    uint32_t before = answers;
    int64_t refused = as_metric_value(&kvs_metrics[KVS_METRIC_ATTENDS_REFUSED]);
    for (uint32_t i = 0; i < 40; i++) { // half of 64 is its share, while none is answered
        ask.head.request = 100 + i;
        assert_int_equal(as_net_send(conn, &ask, as_wire_attend_bytes(1), queries, sizeof(queries),
                                     on_sent, NULL),
                         AS_OK);
    }
    settle();
    assert_int_equal(answers, before + 40); // each has one, of either kind
    int64_t busy = as_metric_value(&kvs_metrics[KVS_METRIC_ATTENDS_REFUSED]) - refused;
    assert_in_range(busy, 0, 8);
    expect_nothing_held();
}

static void without_threads_it_is_unsupported(void **state)
{
    (void)state;
    kvs_store_free(store);
    kvs_store_options_t options = defaults();
    options.attend_threads = 0;
    assert_int_equal(kvs_store_alloc(&options, &store), AS_OK);
    as_wire_attend_t ask = ready();
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_UNSUPPORTED);
    expect_nothing_held();
}

static void for_want_of_memory_it_is_busy(void **state)
{
    (void)state;
    as_wire_attend_t ask = ready();
    uint32_t before = answers;
    assert_int_equal(
        as_net_send(conn, &ask, as_wire_attend_bytes(1), queries, sizeof(queries), on_sent, NULL),
        AS_OK);
    as_mem_fail_nth(1); // the job's
    for (uint32_t i = 0; i < 100 && answers == before; i++) {
        as_loop_run_once(loop, true);
    }
    as_mem_fail_nth(0);
    assert_int_equal(last_status, AS_WIRE_BUSY);
    assert_int_equal(say_attend(&ask, sizeof(queries)), AS_WIRE_OK);
    expect_nothing_held();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sound_question_is_answered_with_partials),
        TEST(what_does_not_fit_is_refused_and_the_connection_stays),
        TEST(what_no_client_says_ends_the_connection),
        TEST(another_connection_cannot_use_a_lease),
        TEST(whatever_waits_ends_with_its_lease_and_its_connection),
        TEST(of_one_connection_it_takes_as_many_as_it_leaves_to_others),
        TEST(without_threads_it_is_unsupported),
        TEST(for_want_of_memory_it_is_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
