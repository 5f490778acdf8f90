// SPDX-License-Identifier: Apache-2.0
// The data plane over UCX when something goes wrong: peers killed, stopped, closing or not there,
// strange bytes, full queues, no memory.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include "net_client.h"
#include "common/mem.h"

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
    kill(client->peer.pid, SIGCONT); // it takes them and says nothing
    uint64_t before_us = as_loop_now_us(client->loop);
    RUN_UNTIL(client, client->sent == COUNT);
    assert_true(as_loop_now_us(client->loop) - before_us < 2000000);
    assert_int_equal(client->lost, 0);
}

static void a_connection_whose_peer_takes_no_messages_is_deaf(void **state)
{
    client_t *client = *state;
    enum { COUNT = 1000000 };
    const ask_t ask = {ASK_SILENCE, 0, 0};
    as_status_t status = AS_OK;
    warm_up(client);
    kill(client->peer.pid, SIGSTOP);
    while (client_ask(client, ask, pattern(), MIB / 16) ==
           AS_OK) { // until it has all its operations
    }
    assert_int_equal(as_net_send(client->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL),
                     AS_ERR_BUSY);
    assert_false(as_conn_is_deaf(client->conn)); // not by its messages
    client_turn_to(client, client->peer.address);
    kill(client->peer.pid, SIGCONT);
    warm_up(client);
    kill(client->peer.pid, SIGSTOP);
    for (uint32_t i = 0; i < COUNT && status == AS_OK; i++) {
        status = as_net_send(client->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL);
        if (i % 64 == 0) {
            as_loop_run_once(client->loop, false);
        }
    }
    assert_int_equal(status, AS_ERR_BUSY);
    assert_true(as_conn_is_deaf(client->conn));
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
    client_turn_to(client, as_net_address(server.net));
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
    client_turn_to(client, client->peer.address);
    warm_up(client);
    assert_int_equal(client->lost, 0);
}

static void every_failed_allocation_is_an_error_and_leaves_nothing_behind(void **state)
{
    client_t *client = *state;
    const as_net_handlers_t handlers = {client, on_accept, on_message, on_lost, NULL};
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

#define KILLS 30u // of 500 on a busy machine some would

// In shared memory all senders of a host write into one queue of the receiver. One that is killed, or
// stopped, between taking a place in it and filling it would silence all the others.
static void a_peer_that_is_killed_while_it_sends_silences_nobody_else(void **state)
{
    client_t *client = *state;
    static unsigned char out[4u << 10];
    client->bytes = malloc(1024 * sizeof(out));
    client->close_on_lost = false;
    warm_up(client);
    as_conn_t *witness = client->conn;
    for (uint32_t n = 0; n < KILLS; n++) {
        peer_t victim;
        peer_start(&victim);
        as_timer_start(client->deadline, DEADLINE_US);
        assert_int_equal(as_net_connect(client->net, victim.address, &client->conn), AS_OK);
        unsigned lost = client->lost;
        client->received = client->bytes_used = 0;
        for (uint32_t i = 0; i < 400; i++) {
            assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, i, 0}, out, sizeof(out)), AS_OK);
        }
        RUN_UNTIL(client, client->received > n * 37 % 390);
        kill(victim.pid, n % 4 == 3 ? SIGSTOP : SIGKILL);
        // Whatever it has sent comes, and then the witness is heard.
        client->bytes_used = 0;
        as_net_close(client->conn);
        client->conn = witness;
        client->received = 0;
        client->ids[0] = 0;
        assert_int_equal(client_ask(client, (ask_t){ASK_ECHO, 1000 + n, 0}, NULL, 0), AS_OK);
        RUN_UNTIL(client, client->answer.id == 1000 + n);
        client->lost = lost;
        peer_end(&victim);
    }
}

bool ucx_send_is_ours(void);

// Else this process would end by an assertion of UCX's, or copy all that it sends.
static void sends_of_this_program_outlive_peers_that_are_gone(void **state)
{
    (void)state;
    assert_true(ucx_send_is_ours());
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        NET_TEST(calls_beyond_the_limits_are_refused),
        NET_TEST(a_connection_to_a_closed_port_is_lost_as_unreachable),
        NET_TEST(closing_cancels_what_is_in_flight_from_the_loop),
        NET_TEST(freeing_a_net_with_a_stopped_peer_cancels_and_does_not_wait),
        NET_TEST(a_peer_killed_in_mid_transfer_fails_what_is_in_flight_and_then_is_lost_once),
        NET_TEST(a_peer_killed_with_its_queues_full_is_lost_all_the_same),
        NET_TEST(what_waited_for_a_stopped_peer_goes_on_when_it_runs_again),
        NET_TEST(a_connection_whose_peer_takes_no_messages_is_deaf),
        NET_TEST(a_connection_to_a_stopped_peer_can_be_closed_and_freed),
        NET_TEST(a_peer_that_closes_is_lost),
        NET_TEST(a_connection_may_be_closed_by_its_message_handler),
        NET_TEST(closing_before_the_connection_is_made_is_fine),
        NET_TEST(a_client_that_goes_is_lost_to_the_server),
        NET_TEST(bytes_of_another_protocol_do_no_harm),
        NET_TEST(a_peer_that_is_killed_while_it_sends_silences_nobody_else),
        cmocka_unit_test(sends_of_this_program_outlive_peers_that_are_gone),
        NET_TEST(every_failed_allocation_is_an_error_and_leaves_nothing_behind),
    };
    return NET_MAIN(argc, argv, "net_ucx_faults", tests);
}
