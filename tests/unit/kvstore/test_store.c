// SPDX-License-Identifier: Apache-2.0
// A store fed with raw messages: every type truncated to every length and with every byte changed;
// leases of others; allocation failures.
#include "../common/capture.h"
#include "raw_peer.h"

// One message of each type that a client may say, as sound as it can be.
static size_t sound_message(uint32_t type, uint8_t header[512], uint8_t payload[sizeof(block)],
                            size_t *payload_bytes)
{
    memset(header, 0, 512);
    *payload_bytes = 0;
    const as_wire_head_t head = as_wire_head(type, 9);
    memcpy(header, &head, sizeof(head));
    if (type == AS_WIRE_HELLO) {
        ((as_wire_hello_t *)(void *)header)->role = AS_WIRE_CLIENT;
    } else if (type == AS_WIRE_LOCATE) {
        as_wire_locate_t ask = {head, 1, 5000, AS_WIRE_FULL, 0};
        as_key_t key = key_of(1);
        memcpy(header, &ask, sizeof(ask));
        memcpy(payload, &key, *payload_bytes = sizeof(key));
    } else if (type == AS_WIRE_READ) {
        as_wire_read_t ask = {head, lease, 1, 0, {{9, 0, 1, 0, 1}}};
        memcpy(header, &ask, sizeof(ask));
    } else if (type == AS_WIRE_RENEW) {
        as_wire_renew_t ask = {head, lease, 5000, 0};
        memcpy(header, &ask, sizeof(ask));
    } else if (type == AS_WIRE_PUT) {
        as_wire_put_t ask = put_of(77);
        memcpy(header, &ask, as_wire_put_bytes(LAYERS));
        memcpy(payload, block, *payload_bytes = sizeof(block));
        return as_wire_put_bytes(LAYERS);
    } else if (type == AS_WIRE_ATTEND) {
        const float queries[QUERIES] = {1.0f};
        as_wire_attend_t ask = attend_of(queries);
        memcpy(header, &ask, as_wire_attend_bytes(1));
        memcpy(payload, queries, *payload_bytes = sizeof(queries));
        return as_wire_attend_bytes(1);
    } else if (type == AS_WIRE_SHARE) {
        as_wire_share_t ask = {head, sizeof(block), as_shared_name(&stage)};
        memcpy(header, &ask, sizeof(ask));
    } else {
        as_wire_release_t ask = {head, lease};
        memcpy(header, &ask, sizeof(ask));
    }
    return as_wire_bytes(type);
}

static const uint32_t questions[] = {AS_WIRE_HELLO, AS_WIRE_LOCATE, AS_WIRE_READ,  AS_WIRE_RELEASE,
                                     AS_WIRE_SHARE, AS_WIRE_PUT,    AS_WIRE_RENEW, AS_WIRE_ATTEND};

static void every_truncated_header_ends_the_connection_and_nothing_else(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++) {
        uint8_t header[512], payload[sizeof(block)];
        size_t payload_bytes, whole = sound_message(questions[q], header, payload, &payload_bytes);
        for (size_t bytes = 0; bytes < whole; bytes++) {
            connect_anew();
            sound_message(questions[q], header, payload, &payload_bytes);
            uint32_t before = lost;
            say(header, bytes, payload, payload_bytes);
            assert_int_equal(lost, before + 1);
        }
    }
    as_log_set_level(AS_LOG_INFO);
    expect_nothing_held();
}

static void every_changed_byte_is_survived(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++) {
        uint8_t header[512], payload[sizeof(block)];
        size_t payload_bytes, whole = sound_message(questions[q], header, payload, &payload_bytes);
        for (size_t at = 0; at < whole; at++) {
            for (int value = 0; value < 3; value++) {
                connect_anew();
                kvs_store_drop_all(store);
                put(1);
                locate(1);
                sound_message(questions[q], header, payload, &payload_bytes);
                header[at] = value == 0   ? (uint8_t)(header[at] ^ 1)
                             : value == 1 ? 0xff
                                          : (uint8_t)(header[at] + 0x80);
                say(header, whole, payload, payload_bytes);
                expect_nothing_held();
            }
        }
    }
    as_log_set_level(AS_LOG_INFO);
    connect_anew(); // it still serves
    kvs_store_drop_all(store);
    put(1);
}

static void another_connection_cannot_use_a_lease(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    locate(1);
    uint64_t its = lease;
    const as_wire_read_t read = {as_wire_head(AS_WIRE_READ, 0), its, 1, 0, {{6, 0, 2, 0, 1}}};
    const as_wire_renew_t renew = {as_wire_head(AS_WIRE_RENEW, 7), its, 1000, 0};
    say(&renew, sizeof(renew), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_OK);
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_OK);
    assert_int_equal(data_bytes, sizeof(block));
    as_conn_t *first = conn;
    conn = NULL;
    connect_anew();
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_LEASE);
    say(&renew, sizeof(renew), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_LEASE);
    as_net_close(first);
    expect_nothing_held();
}

static void a_peer_of_another_version_is_told_as_one_and_told_ours(void **state)
{
    (void)state;
    static capture_t capture;
    char expected[100];
    snprintf(expected, sizeof(expected),
             "speaks version %u of the data plane, and this store version %u:", AS_WIRE_VERSION - 1,
             AS_WIRE_VERSION);
    as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    hello.head.version--;
    connect_anew();
    uint32_t before = answers, lost_before = lost;
    capture_begin(&capture);
    say(&hello, 40, NULL, 0);                      // it need not be as long as ours
    assert_int_equal(last_status, AS_WIRE_DENIED); // in a header of ours
    say(&hello, 40, NULL, 0);
    const char *said = capture_end(&capture);
    assert_int_equal(answers, before + 1);
    assert_int_equal(lost, lost_before + 1);
    const char *first = strstr(said, expected);
    assert_non_null(first);
    assert_null(strstr(first + 1, expected));
    assert_null(strstr(said, "malformed"));
}

static void a_read_of_an_unknown_class_ends_the_connection(void **state)
{
    (void)state;
    connect_anew();
    put(1);
    locate(1);
    as_wire_read_t read = {
        as_wire_head(AS_WIRE_READ, 0), lease, 1, AS_WIRE_CLASS_COUNT - 1, {{6, 0, 2, 0, 1}}};
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(last_status, AS_WIRE_OK);
    uint32_t before = answers;
    read.urgency++;
    say(&read, sizeof(read), NULL, 0);
    assert_int_equal(answers, before);
    assert_null(conn);
    expect_nothing_held();
}

static void a_store_whose_index_is_full_evicts_before_its_memory_is(void **state)
{
    (void)state;
    kvs_store_free(store);
    kvs_store_options_t options = defaults();
    options.blocks_max = 40;
    assert_int_equal(kvs_store_alloc(&options, &store), AS_OK);
    connect_anew();
    for (uint8_t n = 1; n < 200; n++) {
        put(n);
    }
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    assert_true(stat.ram_bytes_used < stat.ram_bytes_max / 2);
    assert_in_range(stat.blocks, 30, 39);
    expect_nothing_held();
}

static void the_failure_of_each_allocation_at_start_is_survived(void **state)
{
    (void)state;
    as_log_set_level(AS_LOG_ERROR);
    as_mem_fail_nth(0);
    uint32_t failed = 0;
    for (uint64_t n = 1; n < 200; n++) {
        kvs_store_options_t options = defaults();
        kvs_store_t *other = NULL;
        options.data_address = "other:1";
        options.net_ctx = (void *)(uintptr_t) "other";
        as_mem_fail_nth(n);
        as_status_t status = kvs_store_alloc(&options, &other);
        as_mem_fail_nth(0);
        kvs_store_free(other);
        if (status == AS_OK) {
            break;
        }
        assert_int_equal(status, AS_ERR_NO_MEMORY);
        failed++;
    }
    as_log_set_level(AS_LOG_INFO);
    assert_true(failed >= 8 && failed < 199);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_truncated_header_ends_the_connection_and_nothing_else),
        TEST(every_changed_byte_is_survived),
        TEST(a_peer_of_another_version_is_told_as_one_and_told_ours),
        TEST(a_read_of_an_unknown_class_ends_the_connection),
        TEST(another_connection_cannot_use_a_lease),
        TEST(a_store_whose_index_is_full_evicts_before_its_memory_is),
        TEST(the_failure_of_each_allocation_at_start_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
