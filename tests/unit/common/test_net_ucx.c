// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX, between real processes: messages, memory, threads.
#include <fcntl.h>
#include <pthread.h>

#include "net_client.h"

static void a_payload_of_any_size_comes_back_the_same(void **state)
{
    client_t *client = *state;
    static const size_t sizes[] = {0,     1,      100,     4096,     8191, 9000,
                                   65536, 100003, 3 * MIB, 64 * MIB, 100,  1};
    client->bytes = malloc(64 * MIB);
    unsigned char *out = malloc(64 * MIB);
    fill(out, 64 * MIB);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        client->bytes_used = 0;
        memset(client->bytes, 0, sizes[i]);
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, sizes[i]), AS_OK);
        RUN_UNTIL(client, client->received == i + 1 && client->sent == i + 1);
        assert_int_equal(client->answer.id, i);
        assert_int_equal(client->last_bytes, sizes[i]);
        assert_true(matches(client->bytes, sizes[i]));
    }
    assert_int_equal(client->lost + client->failed, 0);
    free(out);
}

static void a_thousand_small_messages_arrive_in_order(void **state)
{
    client_t *client = *state;
    for (uint32_t i = 0; i < 1000; i++) {
        as_status_t status;
        while ((status = client_ask(client, (ask_t){ASK_ECHO, i, 0}, NULL, 0)) == AS_ERR_BUSY) {
            as_loop_run_once(client->loop, true);
            assert_false(client->expired);
        }
        assert_int_equal(status, AS_OK);
    }
    RUN_UNTIL(client, client->received == 1000 && client->sent == 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(client->ids[i], i);
    }
}

// What is sent without a payload may wait for others.
static void ask_small(const client_t *client, uint32_t what, uint32_t id)
{
    const ask_t ask = {what, id, 0};
    assert_int_equal(as_net_send(client->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL), AS_OK);
}

static void messages_with_and_without_payload_keep_their_order(void **state)
{
    client_t *client = *state;
    enum { COUNT = 900, EACH = 1000 };
    unsigned char out[EACH];
    fill(out, EACH);
    for (uint32_t i = 0; i < COUNT; i++) {
        if (i % 70 == 69) {
            assert_int_equal(client_ask(client, (ask_t){ASK_DROP, i, 0}, out, EACH), AS_OK);
        } else {
            ask_small(client, ASK_ECHO, i);
        }
    }
    RUN_UNTIL(client, client->received == COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(client->ids[i], i);
    }
}

static void what_is_said_before_a_close_is_heard(void **state)
{
    client_t *client = *state;
    for (uint32_t i = 0; i < 40; i++) {
        ask_small(client, ASK_ECHO, i);
    }
    ask_small(client, ASK_CLOSE, 40); // the peer closes before its answers have left
    RUN_UNTIL(client, client->lost == 1);
    assert_int_equal(client->received, 40);
}

static void many_large_messages_in_flight_all_arrive(void **state)
{
    client_t *client = *state;
    enum { COUNT = 48 };
    client->bytes = malloc(COUNT * MIB);
    unsigned char *out = malloc(MIB);
    fill(out, MIB);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, MIB), AS_OK);
    }
    RUN_UNTIL(client, client->received == COUNT && client->sent == COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(matches(client->bytes + i * MIB, MIB));
    }
    free(out);
}

static void a_payload_that_is_not_taken_is_dropped(void **state)
{
    client_t *client = *state;
    unsigned char *out = malloc(4 * MIB);
    fill(out, 4 * MIB);
    assert_int_equal(client_ask(client, (ask_t){ASK_DROP, 1, 0}, out, 4 * MIB), AS_OK);
    assert_int_equal(client_ask(client, (ask_t){ASK_DROP, 2, 0}, out, 10), AS_OK);
    RUN_UNTIL(client, client->received == 2 && client->sent == 2);
    assert_int_equal(client->lost, 0);
    free(out);
}

static as_net_rkey_t *fetch_key(client_t *client)
{
    client->bytes = malloc(AS_NET_RKEY_BYTES_MAX);
    client->bytes_used = 0;
    assert_int_equal(as_conn_caps(client->conn), 0);
    assert_int_equal(client_ask(client, (ask_t){ASK_KEY, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, client->received == 1 && client->sent == 1);
    as_net_rkey_t *rkey;
    assert_int_equal(as_net_rkey_unpack(client->conn, client->bytes, client->bytes_used, &rkey),
                     AS_OK);
    return rkey;
}

static void memory_on_the_same_host_is_read_without_the_peer(void **state)
{
    client_t *client = *state;
    if (tcp_only()) {
        skip();
    }
    as_net_rkey_t *rkey = fetch_key(client);
    assert_int_equal(as_conn_caps(client->conn), AS_NET_CAP_ONESIDED);
    assert_string_equal(as_conn_transport(client->conn), "tcp"); // not the messages
    uint64_t address = client->answer.address;
    kill(client->peer.pid, SIGSTOP);
    const void *pointer;
    assert_int_equal(as_net_rkey_ptr(rkey, address, &pointer), AS_OK);
    assert_true(matches(pointer, POOL_BYTES));
    unsigned char *copy = malloc(POOL_BYTES);
    client->sent = 0;
    client->in_start = true;
    assert_int_equal(as_net_get(client->conn, rkey, address, copy, POOL_BYTES, on_done, client),
                     AS_OK);
    client->in_start = false;
    RUN_UNTIL(client, client->sent == 1);
    assert_true(matches(copy, POOL_BYTES));
    // Out of its bounds nothing is read.
    assert_int_equal(as_net_get(client->conn, rkey, address + 1, copy, POOL_BYTES, on_done, client),
                     AS_ERR_INVALID);
    assert_int_equal(as_net_get(client->conn, rkey, address - 1, copy, 1, on_done, client),
                     AS_ERR_INVALID);
    assert_int_equal(as_net_get(client->conn, rkey, UINT64_MAX, copy, 2, on_done, client),
                     AS_ERR_INVALID);
    assert_int_equal(as_net_rkey_ptr(rkey, address + POOL_BYTES, &pointer), AS_ERR_INVALID);
    // The pointer stays good when the peer is dead and the connection closed.
    assert_int_equal(as_net_rkey_ptr(rkey, address, &pointer), AS_OK);
    client->close_on_lost = true;
    peer_end(&client->peer);
    RUN_UNTIL(client, client->lost == 1);
    assert_true(matches(pointer, POOL_BYTES));
    as_net_rkey_free(rkey);
    free(copy);
}

static void reads_that_a_transport_would_emulate_are_refused(void **state)
{
    client_t *client = *state;
    if (!tcp_only()) {
        skip();
    }
    as_net_rkey_t *rkey = fetch_key(client);
    assert_int_equal(as_conn_caps(client->conn), 0);
    assert_string_equal(as_conn_transport(client->conn), "tcp");
    const void *pointer;
    char byte;
    assert_int_equal(as_net_rkey_ptr(rkey, client->answer.address, &pointer), AS_ERR_UNSUPPORTED);
    assert_int_equal(
        as_net_get(client->conn, rkey, client->answer.address, &byte, 1, on_done, client),
        AS_ERR_UNSUPPORTED);
    as_net_rkey_free(rkey);
}

static void a_malformed_remote_key_is_refused(void **state)
{
    client_t *client = *state;
    as_net_rkey_t *rkey = fetch_key(client);
    as_net_rkey_free(rkey);
    size_t count = client->bytes_used;
    for (size_t cut = 0; cut < count; cut += 7) {
        assert_int_equal(as_net_rkey_unpack(client->conn, client->bytes, cut, &rkey),
                         AS_ERR_PROTOCOL);
    }
    client->bytes[0] ^= 1;
    assert_int_equal(as_net_rkey_unpack(client->conn, client->bytes, count, &rkey),
                     AS_ERR_PROTOCOL);
}

static void a_malformed_address_is_refused(void **state)
{
    client_t *client = *state;
    as_conn_t *conn;
    assert_int_equal(as_net_connect(client->net, "127.0.0.1", &conn), AS_ERR_INVALID);
    assert_int_equal(as_net_connect(client->net, ":7", &conn), AS_ERR_INVALID);
    assert_int_equal(as_net_connect(client->net, "127.0.0.1:x", &conn), AS_ERR_INVALID);
    assert_int_equal(as_net_listen(client->net, ""), AS_ERR_INVALID);
    assert_null(as_net_address(client->net));
}

static void a_gathered_payload_arrives_as_one(void **state)
{
    client_t *client = *state;
    static const size_t sizes[] = {3000, 4 * MIB}; // eager, rendezvous
    client->bytes = malloc(4 * MIB);
    unsigned char *out = malloc(4 * MIB);
    fill(out, 4 * MIB);
    for (unsigned i = 0; i < 4; i++) { // the first while connecting
        size_t size = sizes[i % 2];
        const as_net_iov_t iov[3] = {
            {out, 1}, {out + 1, size / 2}, {out + 1 + size / 2, size - size / 2 - 1}};
        const ask_t ask = {ASK_ECHO, i, 0};
        client->bytes_used = 0;
        memset(client->bytes, 0, size);
        assert_int_equal(as_net_sendv(client->conn, &ask, sizeof(ask), iov, 3, on_done, client),
                         AS_OK);
        RUN_UNTIL(client, client->received == i + 1 && client->sent == i + 1);
        assert_int_equal(client->last_bytes, size);
        assert_true(matches(client->bytes, size));
    }
    free(out);
}

// More than a peer may have under way: those that were not taken have let go.
static void what_is_offered_and_not_taken_is_done_for_its_sender(void **state)
{
    client_t *client = *state;
    warm_up(client);
    unsigned char out[3000];
    fill(out, sizeof(out));
    unsigned before = client->sent;
    for (unsigned i = 1; i <= 2000; i++) {
        const ask_t ask = {ASK_DROP, i, 0};
        assert_int_equal(
            as_net_offer(client->conn, &ask, sizeof(ask), out, sizeof(out), on_done, client),
            AS_OK);
        RUN_UNTIL(client, client->sent == before + i);
    }
}

static unsigned count_descriptors(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 4096; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static void connections_that_come_and_go_leave_nothing_behind(void **state)
{
    client_t *client = *state;
    warm_up(client);
    unsigned before = 0;
    for (unsigned i = 0; i < 60; i++) {
        client_turn_to(client, client->peer.address);
        warm_up(client);
        if (i == 9) { // pools have grown
            before = count_descriptors();
        }
    }
    assert_in_range(count_descriptors(), 1, before + 5);
}

static void registered_memory_is_zero_and_page_aligned(void **state)
{
    client_t *client = *state;
    static const unsigned char zero[4096];
    for (size_t bytes = 1; bytes <= 16 * MIB; bytes *= 16) {
        void *memory;
        as_net_mem_t *mem;
        assert_int_equal(as_net_mem_alloc(client->net, bytes, &memory, &mem), AS_OK);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        for (size_t at = 0; at < bytes; at += sizeof(zero)) {
            size_t some = bytes - at < sizeof(zero) ? bytes - at : sizeof(zero);
            assert_memory_equal((char *)memory + at, zero, some);
        }
        memset(memory, 0xa5, bytes);
        as_net_mem_free(mem);
    }
}

static void *thread_main(void *arg)
{
    client_t client;
    client_init(&client, NULL);
    client.bytes = malloc(16 * MIB);
    unsigned char *out = malloc(MIB);
    fill(out, MIB);
    assert_int_equal(as_net_connect(client.net, arg, &client.conn), AS_OK);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(client_ask(&client, (ask_t){ASK_ECHO, i, 0}, out, MIB), AS_OK);
    }
    RUN_UNTIL(&client, client.received == 16 && client.sent == 16);
    assert_true(matches(client.bytes + 15 * MIB, MIB));
    as_net_close(client.conn);
    client_fini(&client, true);
    free(out);
    return NULL;
}

static void nets_on_several_threads_do_not_disturb_each_other(void **state)
{
    client_t *client = *state;
    pthread_t threads[3];
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, client->peer.address), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        NET_TEST(a_payload_of_any_size_comes_back_the_same),
        NET_TEST(a_thousand_small_messages_arrive_in_order),
        NET_TEST(messages_with_and_without_payload_keep_their_order),
        NET_TEST(what_is_said_before_a_close_is_heard),
        NET_TEST(many_large_messages_in_flight_all_arrive),
        NET_TEST(what_is_offered_and_not_taken_is_done_for_its_sender),
        NET_TEST(a_payload_that_is_not_taken_is_dropped),
        NET_TEST(memory_on_the_same_host_is_read_without_the_peer),
        NET_TEST(reads_that_a_transport_would_emulate_are_refused),
        NET_TEST(a_malformed_remote_key_is_refused),
        NET_TEST(a_malformed_address_is_refused),
        NET_TEST(a_gathered_payload_arrives_as_one),
        NET_TEST(connections_that_come_and_go_leave_nothing_behind),
        NET_TEST(registered_memory_is_zero_and_page_aligned),
        NET_TEST(nets_on_several_threads_do_not_disturb_each_other),
    };
    return NET_MAIN(argc, argv, "net_ucx", tests);
}
