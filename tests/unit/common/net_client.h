// SPDX-License-Identifier: Apache-2.0
// The client side of the tests of the UCX data plane: it counts what it is told, and fails a test
// that waits too long.
//
// Every test program runs twice: with every transport, and again as a process of its own with
// UCX_TLS naming TCP alone, since UCX reads its settings once.
#ifndef NET_CLIENT_H
#define NET_CLIENT_H

#include "net_peer.h"

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

static inline void on_deadline(void *ctx)
{
    ((client_t *)ctx)->expired = true;
}

static inline void on_done(void *ctx, as_status_t status)
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

static inline void on_received(void *ctx, as_status_t status)
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

static inline void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
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

static inline void on_accept(void *ctx, as_conn_t *conn)
{
    client_t *client = ctx;
    client->accepted++;
    if (!client->conn) {
        client->conn = conn;
    }
}

static inline void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
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

static inline void client_init(client_t *client, as_loop_t *loop)
{
    memset(client, 0, sizeof(*client));
    const as_net_handlers_t handlers = {client, on_accept, on_message, on_lost, NULL};
    client->loop = loop;
    if (!loop) {
        assert_int_equal(as_loop_alloc_uv(&client->loop), AS_OK);
    }
    assert_int_equal(as_timer_alloc(client->loop, on_deadline, client, &client->deadline), AS_OK);
    as_timer_start(client->deadline, DEADLINE_US);
    assert_int_equal(as_net_alloc_ucx(client->loop, &handlers, &client->net), AS_OK);
}

static inline void client_fini(client_t *client, bool free_loop)
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

static inline as_status_t client_ask(client_t *client, ask_t ask, const void *bytes, size_t count)
{
    client->in_start = true;
    as_status_t status =
        as_net_send(client->conn, &ask, sizeof(ask), bytes, count, on_done, client);
    client->in_start = false;
    return status;
}

static inline int setup(void **state)
{
    client_t *client = malloc(sizeof(*client));
    client_init(client, NULL);
    peer_start(&client->peer);
    assert_int_equal(as_net_connect(client->net, client->peer.address, &client->conn), AS_OK);
    *state = client;
    return 0;
}

static inline int teardown(void **state)
{
    client_fini(*state, true);
    free(*state);
    return 0;
}

static inline bool tcp_only(void)
{
    const char *tls = getenv("UCX_TLS");
    return tls && strcmp(tls, "tcp,self") == 0;
}

// One round trip: the connection is made.
static inline void warm_up(client_t *client)
{
    unsigned before = client->received;
    assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, client->received > before);
    RUN_UNTIL(client, client->sent > 0);
    client->sent = client->received = 0;
}

static inline int run_tcp_only(void)
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

// Leaves the peer that it is connected to for another.
static inline void client_turn_to(client_t *client, const char *address)
{
    as_net_close(client->conn);
    assert_int_equal(as_net_connect(client->net, address, &client->conn), AS_OK);
}

// Runs the tests with all transports and, in another process, with TCP alone; or is the peer.
static inline int net_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests,
                           size_t count)
{
    char tcp_name[64];
    pattern(); // made before there are threads
    if (argc > 1 && strcmp(argv[1], "peer") == 0) {
        return peer_main();
    }
    snprintf(tcp_name, sizeof(tcp_name), "%s tcp", name);
    int failed = _cmocka_run_group_tests(tcp_only() ? tcp_name : name, tests, count, NULL, NULL);
    return tcp_only() ? failed : failed + run_tcp_only();
}

#define NET_MAIN(argc, argv, name, tests)                                                          \
    net_main(argc, argv, name, tests, sizeof(tests) / sizeof((tests)[0]))

// Another net that listens, and closes what is lost.
static inline void server_init(client_t *server, const client_t *client, const char *address)
{
    client_init(server, client->loop);
    server->close_on_lost = true;
    assert_int_equal(as_net_listen(server->net, address), AS_OK);
}

#endif
