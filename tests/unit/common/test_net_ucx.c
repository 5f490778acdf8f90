// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX, between real processes: once with every transport, once with TCP alone.
//
// The second run is this program again, with UCX_TLS set, since UCX reads its settings once.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <netinet/in.h>

#include "net_peer.h"
#include "common/mem.h"

#define DEADLINE_US 60000000u // sanitizers on a busy machine
#define MIB         ((size_t)1 << 20)

typedef struct client {
    as_loop_t *loop;
    as_timer_t *deadline;
    as_net_t *net;
    as_conn_t *conn;
    peer_t peer;
    bool expired;
    bool in_start; // a start call is running
    unsigned sent, failed, received, lost, accepted;
    as_status_t last_error, lost_status;
    unsigned failed_before_lost;
    uint32_t ids[1024]; // in order of arrival
    ask_t answer;
    unsigned char *bytes; // where payloads go, one after the other
    size_t bytes_used;
    size_t last_bytes;
    bool close_on_message, close_on_lost;
} client_t;

static void on_deadline(void *ctx)
{
    ((client_t *)ctx)->expired = true;
}

static void on_done(void *ctx, as_status_t status)
{
    client_t *client = ctx;
    assert_false(client->in_start);
    if (status == AS_OK) {
        client->sent++;
    } else {
        client->failed++;
        client->last_error = status;
    }
}

static void on_received(void *ctx, as_status_t status)
{
    client_t *client = ctx;
    assert_false(client->in_start);
    if (status == AS_OK) {
        client->received++;
    } else {
        client->failed++;
        client->last_error = status;
    }
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    client_t *client = ctx;
    assert_false(client->in_start);
    assert_int_equal(msg->header_bytes, sizeof(ask_t));
    memcpy(&client->answer, msg->header, sizeof(ask_t));
    if (client->close_on_message) {
        as_net_close(conn);
        client->conn = NULL;
        client->received++;
        return;
    }
    client->last_bytes = msg->data_bytes;
    if (msg->data_bytes == 0) {
        client->ids[client->received++ % 1024] = client->answer.id;
        return;
    }
    client->in_start = true;
    assert_int_equal(as_net_msg_recv(msg, client->bytes + client->bytes_used, on_received, client),
                     AS_OK);
    assert_int_equal(as_net_msg_recv(msg, client->bytes, on_received, client), AS_ERR_INVALID);
    client->in_start = false;
    client->bytes_used += msg->data_bytes;
}

static void on_accept(void *ctx, as_conn_t *conn)
{
    client_t *client = ctx;
    client->accepted++;
    if (!client->conn) {
        client->conn = conn;
    }
}

static void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    client_t *client = ctx;
    client->lost++;
    client->lost_status = status;
    client->failed_before_lost = client->failed;
    if (client->close_on_lost) {
        as_net_close(conn);
        client->conn = NULL;
    }
}

static void client_init(client_t *client, as_loop_t *loop)
{
    memset(client, 0, sizeof(*client));
    const as_net_handlers_t handlers = {client, on_accept, on_message, on_lost};
    client->loop = loop;
    if (!loop) {
        assert_int_equal(as_loop_alloc_uv(&client->loop), AS_OK);
    }
    assert_int_equal(as_timer_alloc(client->loop, on_deadline, client, &client->deadline), AS_OK);
    as_timer_start(client->deadline, DEADLINE_US);
    assert_int_equal(as_net_alloc_ucx(client->loop, &handlers, &client->net), AS_OK);
}

static void client_fini(client_t *client, bool free_loop)
{
    as_net_free(client->net);
    as_timer_free(client->deadline);
    if (free_loop) {
        as_loop_free(client->loop);
    }
    free(client->bytes);
    peer_end(&client->peer);
}

// Runs the loop until `condition`; fails the test at the deadline.
#define RUN_UNTIL(client, condition)                                                               \
    while (!(condition)) {                                                                         \
        assert_false((client)->expired);                                                           \
        as_loop_run_once((client)->loop, true);                                                    \
    }

static as_status_t client_ask(client_t *client, ask_t ask, const void *bytes, size_t count)
{
    client->in_start = true;
    as_status_t status =
        as_net_send(client->conn, &ask, sizeof(ask), bytes, count, on_done, client);
    client->in_start = false;
    return status;
}

static int setup(void **state)
{
    client_t *client = malloc(sizeof(*client));
    client_init(client, NULL);
    peer_start(&client->peer);
    assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
    *state = client;
    return 0;
}

static int teardown(void **state)
{
    client_fini(*state, true);
    free(*state);
    return 0;
}

static bool tcp_only(void)
{
    const char *tls = getenv("UCX_TLS");
    return tls && strcmp(tls, "tcp,self") == 0;
}

// One round trip: the connection is made.
static void warm_up(client_t *client)
{
    unsigned before = client->received;
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, client->received > before);
    RUN_UNTIL(client, client->sent > 0);
    client->sent = client->received = 0;
}

// ---- tests

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
    assert_non_null(strstr(as_conn_transport(client->conn), "posix"));
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

static void calls_beyond_the_limits_are_refused(void **state)
{
    client_t *client = *state;
    static const unsigned char big[AS_NET_HEADER_BYTES_MAX + 1];
    assert_int_equal(as_net_send(client->conn, big, sizeof(big), NULL, 0, NULL, NULL),
                     AS_ERR_LIMIT);
    assert_int_equal(as_net_send(client->conn, big, 1, big, 1, NULL, NULL), AS_ERR_INVALID);
    warm_up(client);
    kill(client->peer.pid, SIGSTOP);
    unsigned char *out = calloc(1, MIB);
    unsigned started = 0;
    as_status_t status;
    while ((status = client_ask(client, (ask_t){ASK_ECHO, 0, 0}, out, MIB)) == AS_OK) {
        started++;
        assert_true(started < 100000);
    }
    assert_int_equal(status, AS_ERR_BUSY);
    as_net_close(client->conn);
    RUN_UNTIL(client, client->failed + client->sent == started);
    assert_int_equal(client->last_error, AS_ERR_CANCELLED);
    free(out);
}

static void a_connection_to_a_closed_port_is_lost_as_unreachable(void **state)
{
    client_t *client = *state;
    as_net_close(client->conn);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0); // bound, not listening
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    char text[32];
    snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(address.sin_port));
    assert_int_equal(as_net_connect(client->net, text, &client->conn), AS_OK);
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 0, 0}, text, sizeof(text)), AS_OK);
    assert_int_equal(client->lost, 0);
    RUN_UNTIL(client, client->lost == 1);
    assert_int_equal(client->lost_status, AS_ERR_UNREACHABLE);
    assert_int_equal(client->failed, 1);
    assert_int_equal(client->last_error, AS_ERR_UNREACHABLE);
    assert_int_equal(client->failed_before_lost, 1);
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 0, 0}, text, sizeof(text)),
                     AS_ERR_UNREACHABLE);
    as_net_close(client->conn);
    close(fd);
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

static void closing_cancels_what_is_in_flight_from_the_loop(void **state)
{
    client_t *client = *state;
    warm_up(client);
    kill(client->peer.pid, SIGSTOP); // so that nothing can complete
    unsigned char *out = calloc(1, 4 * MIB);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, 4 * MIB), AS_OK);
    }
    as_loop_run_once(client->loop, false);
    client->in_start = true;
    as_net_close(client->conn);
    client->in_start = false;
    assert_int_equal(client->failed, 0);
    RUN_UNTIL(client, client->failed == 10);
    assert_int_equal(client->last_error, AS_ERR_CANCELLED);
    assert_int_equal(client->lost, 0);
    free(out);
}

static void freeing_a_net_with_a_stopped_peer_cancels_and_does_not_wait(void **state)
{
    client_t *client = *state;
    warm_up(client);
    kill(client->peer.pid, SIGSTOP);
    unsigned char *out = calloc(1, 4 * MIB);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, 4 * MIB), AS_OK);
    }
    uint64_t before_us = as_loop_now_us(client->loop);
    as_net_free(client->net);
    client->net = NULL;
    assert_int_equal(client->failed, 10);
    assert_int_equal(client->last_error, AS_ERR_CANCELLED);
    assert_true(as_loop_now_us(client->loop) - before_us < 1000000);
    free(out);
}

static void
a_peer_killed_in_mid_transfer_fails_what_is_in_flight_and_then_is_lost_once(void **state)
{
    client_t *client = *state;
    client->bytes = malloc(64 * MIB);
    unsigned char *out = calloc(1, 4 * MIB);
    warm_up(client);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, 4 * MIB), AS_OK);
    }
    RUN_UNTIL(client, client->received >= 1);
    kill(client->peer.pid, SIGSTOP); // so that the next cannot complete
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 0, 0}, out, 4 * MIB), AS_OK);
    as_loop_run_once(client->loop, false);
    uint64_t before_us = as_loop_now_us(client->loop);
    kill(client->peer.pid, SIGKILL);
    RUN_UNTIL(client, client->lost == 1);
    assert_true(as_loop_now_us(client->loop) - before_us < 2000000);
    assert_int_equal(client->lost_status, AS_ERR_PEER_LOST);
    unsigned ended = client->sent;
    assert_true(client->failed > 0);
    assert_int_equal(client->failed_before_lost, client->failed);
    assert_int_equal(client->last_error, AS_ERR_PEER_LOST);
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 0, 0}, NULL, 0), AS_ERR_PEER_LOST);
    for (unsigned i = 0; i < 20; i++) {
        as_loop_run_once(client->loop, false);
    }
    assert_int_equal(client->lost, 1);
    assert_int_equal(client->sent, ended);
    as_net_close(client->conn);
    free(out);
}

static void a_peer_killed_with_its_queues_full_is_lost_all_the_same(void **state)
{
    client_t *client = *state;
    enum { COUNT = 700 };
    unsigned char *out = calloc(1, MIB);
    warm_up(client);
    kill(client->peer.pid, SIGSTOP);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, MIB), AS_OK);
        as_loop_run_once(client->loop, false);
    }
    kill(client->peer.pid, SIGKILL);
    RUN_UNTIL(client, client->lost == 1);
    assert_int_equal(client->failed, COUNT);
    assert_int_equal(client->failed_before_lost, COUNT);
    assert_int_equal(client->last_error, AS_ERR_PEER_LOST);
    as_net_close(client->conn);
    free(out);
}

static void what_waited_for_a_stopped_peer_goes_on_when_it_runs_again(void **state)
{
    client_t *client = *state;
    enum { COUNT = 1000 };
    unsigned char out[2000] = {0};
    warm_up(client);
    kill(client->peer.pid, SIGSTOP);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, i, 0}, out, sizeof(out)), AS_OK);
    }
    uint64_t end_us = as_loop_now_us(client->loop) + 100000;
    while (as_loop_now_us(client->loop) < end_us) {
        as_loop_run_once(client->loop, false);
    }
    assert_true(client->sent < COUNT || tcp_only());
    kill(client->peer.pid, SIGCONT); // it takes them and says nothing
    uint64_t before_us = as_loop_now_us(client->loop);
    RUN_UNTIL(client, client->sent == COUNT);
    assert_true(as_loop_now_us(client->loop) - before_us < 2000000);
    assert_int_equal(client->lost, 0);
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
        as_net_close(client->conn);
        assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
        warm_up(client);
        if (i == 9) { // pools have grown
            before = count_descriptors();
        }
    }
    assert_in_range(count_descriptors(), 1, before + 5);
}

static void a_connection_to_a_stopped_peer_can_be_closed_and_freed(void **state)
{
    client_t *client = *state;
    as_net_close(client->conn);
    kill(client->peer.pid, SIGSTOP);
    assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 1, 0}, "x", 1), AS_OK);
    uint64_t end_us = as_loop_now_us(client->loop) + 50000;
    while (as_loop_now_us(client->loop) < end_us) {
        as_loop_run_once(client->loop, false);
    }
    assert_int_equal(client->failed + client->lost, 0);
    as_net_close(client->conn);
    RUN_UNTIL(client, client->failed == 1);
    assert_int_equal(client->last_error, AS_ERR_CANCELLED);
    assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 1, 0}, "x", 1), AS_OK);
    uint64_t before_us = as_loop_now_us(client->loop);
    as_net_free(client->net);
    client->net = NULL;
    assert_int_equal(client->failed, 2);
    assert_true(as_loop_now_us(client->loop) - before_us < 1000000);
}

static void a_peer_that_closes_is_lost(void **state)
{
    client_t *client = *state;
    warm_up(client);
    client->close_on_lost = true;
    assert_int_equal(client_ask(client, (ask_t){ASK_CLOSE, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, client->lost == 1);
    assert_int_equal(client->lost_status, AS_ERR_PEER_LOST);
}

static void a_connection_may_be_closed_by_its_message_handler(void **state)
{
    client_t *client = *state;
    client->close_on_message = true;
    unsigned char *out = calloc(1, 2 * MIB);
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 1, 0}, out, 2 * MIB), AS_OK);
    RUN_UNTIL(client, client->received == 1 && client->sent + client->failed == 1);
    // The peer lives on.
    client->close_on_message = false;
    client->received = client->sent = 0;
    assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
    warm_up(client);
    assert_int_equal(client->lost, 0);
    free(out);
}

static void closing_before_the_connection_is_made_is_fine(void **state)
{
    client_t *client = *state;
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 1, 0}, "x", 1), AS_OK);
    as_net_close(client->conn);
    RUN_UNTIL(client, client->failed == 1);
    assert_int_equal(client->last_error, AS_ERR_CANCELLED);
    assert_int_equal(client->lost, 0);
}

static void a_client_that_goes_is_lost_to_the_server(void **state)
{
    client_t *client = *state;
    client_t server;
    client_init(&server, client->loop);
    assert_int_equal(as_net_listen(server.net, "127.0.0.1:0"), AS_OK);
    assert_int_equal(as_net_listen(server.net, "127.0.0.1:0"), AS_ERR_INVALID);
    as_net_close(client->conn);
    assert_int_equal(as_net_connect(client->net, as_net_address(server.net), &client->conn), AS_OK);
    assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, 1, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, server.received == 1);
    assert_int_equal(server.accepted, 1);
    as_net_close(client->conn);
    server.close_on_lost = true;
    RUN_UNTIL(client, server.lost == 1);
    assert_int_equal(server.lost_status, AS_ERR_PEER_LOST);
    client_fini(&server, false);
}

static void bytes_of_another_protocol_do_no_harm(void **state)
{
    client_t *client = *state;
    warm_up(client);
    unsigned port = (unsigned)atoi(strrchr(client->peer.address, ':') + 1);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", "\x16\x03\x01",
                                        "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
    for (unsigned i = 0; i < 4; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        assert_int_equal(send(fd, texts[i], strlen(texts[i]), MSG_NOSIGNAL), strlen(texts[i]));
        close(fd);
    }
    warm_up(client);
    as_net_close(client->conn);
    assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
    warm_up(client);
    assert_int_equal(client->lost, 0);
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

static void every_failed_allocation_is_an_error_and_leaves_nothing_behind(void **state)
{
    client_t *client = *state;
    const as_net_handlers_t handlers = {client, on_accept, on_message, on_lost};
    unsigned failures = 0;
    for (uint64_t n = 1;; n++) {
        as_net_t *net = NULL;
        as_conn_t *conn;
        void *memory;
        as_net_mem_t *mem;
        as_mem_fail_nth(n);
        as_status_t status = as_net_alloc_ucx(client->loop, &handlers, &net);
        if (status == AS_OK) {
            status = as_net_connect(net, client->peer.address, &conn);
        }
        if (status == AS_OK) {
            status = as_net_send(conn, "x", 1, NULL, 0, NULL, NULL);
        }
        if (status == AS_OK) {
            status = as_net_mem_alloc(net, 4096, &memory, &mem);
            if (status == AS_OK) {
                as_net_mem_free(mem);
            }
        }
        as_mem_fail_nth(0);
        as_net_free(net);
        if (status == AS_OK) {
            break;
        }
        assert_true(status == AS_ERR_NO_MEMORY || status == AS_ERR_BUSY);
        failures++;
    }
    assert_true(failures >= 6);
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

static int run_tcp_only(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("UCX_TLS", "tcp,self", 1);
        execl("/proc/self/exe", "test_net_ucx", (char *)NULL);
        _exit(127);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

#define NET_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    pattern(); // made before there are threads
    if (argc > 1 && strcmp(argv[1], "peer") == 0) {
        return peer_main();
    }
    const struct CMUnitTest tests[] = {
        NET_TEST(a_payload_of_any_size_comes_back_the_same),
        NET_TEST(a_thousand_small_messages_arrive_in_order),
        NET_TEST(many_large_messages_in_flight_all_arrive),
        NET_TEST(a_payload_that_is_not_taken_is_dropped),
        NET_TEST(memory_on_the_same_host_is_read_without_the_peer),
        NET_TEST(reads_that_a_transport_would_emulate_are_refused),
        NET_TEST(a_malformed_remote_key_is_refused),
        NET_TEST(calls_beyond_the_limits_are_refused),
        NET_TEST(a_connection_to_a_closed_port_is_lost_as_unreachable),
        NET_TEST(a_malformed_address_is_refused),
        NET_TEST(closing_cancels_what_is_in_flight_from_the_loop),
        NET_TEST(freeing_a_net_with_a_stopped_peer_cancels_and_does_not_wait),
        NET_TEST(a_peer_killed_in_mid_transfer_fails_what_is_in_flight_and_then_is_lost_once),
        NET_TEST(a_peer_killed_with_its_queues_full_is_lost_all_the_same),
        NET_TEST(what_waited_for_a_stopped_peer_goes_on_when_it_runs_again),
        NET_TEST(a_gathered_payload_arrives_as_one),
        NET_TEST(connections_that_come_and_go_leave_nothing_behind),
        NET_TEST(a_connection_to_a_stopped_peer_can_be_closed_and_freed),
        NET_TEST(a_peer_that_closes_is_lost),
        NET_TEST(a_connection_may_be_closed_by_its_message_handler),
        NET_TEST(closing_before_the_connection_is_made_is_fine),
        NET_TEST(a_client_that_goes_is_lost_to_the_server),
        NET_TEST(bytes_of_another_protocol_do_no_harm),
        NET_TEST(registered_memory_is_zero_and_page_aligned),
        NET_TEST(every_failed_allocation_is_an_error_and_leaves_nothing_behind),
        NET_TEST(nets_on_several_threads_do_not_disturb_each_other),
    };
    int failed =
        cmocka_run_group_tests_name(tcp_only() ? "net_ucx tcp" : "net_ucx", tests, NULL, NULL);
    return tcp_only() ? failed : failed + run_tcp_only();
}
