// SPDX-License-Identifier: Apache-2.0
// The data port of the UCX data plane: hellos as bytes, strangers at the port, and which of two
// nets' connections belong together.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "net_crowd.h"
#include "common/log.h"
#include "common/net_ucx.h"
#include "common/net_ucx_hello.h"

// ---- hellos

static ucx_hello_t connect_hello(unsigned hosts, unsigned credential_bytes)
{
    ucx_hello_t hello = {.version = UCX_HELLO_VERSION,
                         .kind = UCX_HELLO_CONNECT,
                         .port = 9,
                         .host_count = (uint16_t)hosts,
                         .credential_bytes = (uint16_t)credential_bytes};
    for (unsigned i = 0; i < hosts; i++) {
        memset(&hello.hosts[i], (int)i + 1, sizeof(hello.hosts[i]));
    }
    memset(hello.credential, 'c', credential_bytes);
    return hello;
}

static void a_hello_is_read_as_it_was_written(void **state)
{
    (void)state;
    const ucx_hello_t hellos[] = {
        connect_hello(0, 0),
        connect_hello(UCX_HELLO_HOSTS_MAX, AS_NET_CREDENTIAL_BYTES_MAX),
        {UCX_HELLO_VERSION, UCX_HELLO_ACCEPT, 65535, 0, 1, 0, {{{{7}}}}, {0}},
        {UCX_HELLO_VERSION, UCX_HELLO_REFUSE, 0, UCX_REFUSAL_DENIED, 0, 0, {{{{0}}}}, {0}}};
    unsigned char bytes[UCX_HELLO_BYTES_MAX + 1] = {0};
    ucx_hello_t hello;
    for (unsigned i = 0; i < sizeof(hellos) / sizeof(hellos[0]); i++) {
        size_t count = ucx_hello_write(&hellos[i], bytes);
        assert_in_range(count, UCX_HELLO_HEAD_BYTES + 4, UCX_HELLO_BYTES_MAX);
        assert_int_equal(ucx_hello_parse(bytes, count, &hello), UCX_HELLO_WHOLE);
        assert_memory_equal(&hello, &hellos[i], sizeof(hello));
        for (size_t cut = 0; cut < count; cut++) {
            assert_int_equal(ucx_hello_parse(bytes, cut, &hello), UCX_HELLO_PART);
        }
        assert_int_equal(ucx_hello_parse(bytes, count + 1, &hello), UCX_HELLO_BROKEN);
    }
}

static void no_flipped_bit_of_a_hello_goes_unseen(void **state)
{
    (void)state;
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    const ucx_hello_t written = connect_hello(2, 72);
    ucx_hello_t hello;
    size_t count = ucx_hello_write(&written, bytes);
    for (size_t bit = 0; bit < count * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_not_equal(ucx_hello_parse(bytes, count, &hello), UCX_HELLO_WHOLE);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(ucx_hello_parse(bytes, count, &hello), UCX_HELLO_WHOLE);
}

static void what_cannot_be_said_is_broken(void **state)
{
    (void)state;
    ucx_hello_t hellos[] = {connect_hello(0, 0), connect_hello(0, 0), connect_hello(0, 0),
                            connect_hello(0, 0), connect_hello(1, 0), connect_hello(0, 1),
                            connect_hello(0, 0), connect_hello(0, 0)};
    hellos[0].kind = 0;
    hellos[1].kind = UCX_HELLO_REFUSE + 1;
    hellos[2].port = 0;
    hellos[3].kind = UCX_HELLO_ACCEPT;
    hellos[3].port = 0;
    hellos[4].kind = hellos[6].kind = hellos[7].kind = UCX_HELLO_REFUSE;
    hellos[4].refusal = UCX_REFUSAL_BUSY; // with a host
    hellos[5].kind = UCX_HELLO_ACCEPT;    // with a credential
    hellos[7].refusal = UCX_REFUSAL_VERSION + 1;
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    ucx_hello_t hello;
    for (unsigned i = 0; i < sizeof(hellos) / sizeof(hellos[0]); i++) {
        size_t count = ucx_hello_write(&hellos[i], bytes);
        assert_int_equal(ucx_hello_parse(bytes, count, &hello), UCX_HELLO_BROKEN);
    }
}

// ---- strangers

static int knock_at(const char *at)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(strrchr(at, ':') + 1)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static int knock(const client_t *client)
{
    return knock_at(client->peer.address);
}

// Waits until the peer has closed; true if it answered with bytes before.
static bool is_shut(int fd)
{
    const struct timeval patience = {.tv_sec = 30};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char bytes[256];
    ssize_t count, all = 0;
    while ((count = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
        all += count;
    }
    assert_true(count == 0 || errno == ECONNRESET);
    close(fd);
    return all > 0;
}

// -1: somebody has that port.
static int listen_at(uint32_t host, uint16_t port, struct sockaddr_storage *address)
{
    struct sockaddr_in *in4 = (struct sockaddr_in *)address;
    socklen_t bytes = sizeof(*in4);
    memset(address, 0, sizeof(*address));
    in4->sin_family = AF_INET;
    in4->sin_addr.s_addr = htonl(host);
    in4->sin_port = htons(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)address, bytes) != 0 || listen(fd, 1) != 0) {
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)address, &bytes), 0);
    return fd;
}

// UCX listens on each interface at a port that the kernel picks, which may be that of its listener at
// another address. A gate before the wrong one lets in no peer's connections at all.
static void a_gate_stands_before_its_own_address(void **state)
{
    (void)state;
    struct sockaddr_storage one, two;
    int first = -1, second = -1;
    for (unsigned i = 0; i < 100 && second < 0; i++) {
        close(first);
        first = listen_at(INADDR_LOOPBACK + 1, 0, &one);
        second = listen_at(INADDR_LOOPBACK, ucx_sockaddr_port(&one), &two);
    }
    assert_true(first >= 0 && first < second);
    assert_int_equal(ucx_gate_find(&two), second);
    assert_int_equal(ucx_gate_find(&one), first);
    close(first);
    close(second);
}

static void whatever_a_stranger_sends_only_closes_its_connection(void **state)
{
    client_t *client = *state;
    warm_up(client);
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    const ucx_hello_t good = connect_hello(1, 20);
    unsigned seed = 1;
    for (unsigned i = 0; i < 200; i++) {
        size_t count = i % 2 ? UCX_HELLO_HEAD_BYTES : 1 + (size_t)rand_r(&seed) % sizeof(bytes);
        memset(bytes, 0, sizeof(bytes)); // zeros, which UCX's own listener takes for a length
        if (i % 5 == 1) {
            for (size_t k = 0; k < count; k++) {
                bytes[k] = (unsigned char)rand_r(&seed);
            }
        } else if (i % 5 == 2) {
            count = ucx_hello_write(&good, bytes);
            bytes[i % count] ^= (unsigned char)(1 + (unsigned)rand_r(&seed) % 255);
        } else if (i % 5 == 3) { // the magic of UCX's own transport
            memcpy(bytes, "\x78\x56\x34\x12\xbe\xba\xfe\xca", 8);
        } else if (i % 5 == 4) {
            count = i % ucx_hello_write(&good, bytes);
        }
        int fd = knock(client);
        assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
        shutdown(fd, SHUT_WR);
        is_shut(fd);
    }
    warm_up(client);
    assert_int_equal(client->lost, 0);
}

static void a_peer_of_another_version_is_told_ours(void **state)
{
    client_t *client = *state;
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    const ucx_hello_t hello = connect_hello(0, 0);
    size_t count = ucx_hello_write(&hello, bytes);
    bytes[4] = UCX_HELLO_VERSION + 1;
    int fd = knock(client);
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
    assert_true(is_shut(fd));
    warm_up(client);
}

static void strangers_who_say_nothing_do_not_keep_peers_out(void **state)
{
    client_t *client = *state;
    int fds[300];
    for (unsigned i = 0; i < 300; i++) {
        fds[i] = knock(client);
        assert_int_equal(send(fds[i], "A", 1, MSG_NOSIGNAL), 1);
    }
    client_turn_to(client, client->peer.address);
    uint64_t before_us = as_loop_now_us(client->loop);
    warm_up(client);
    assert_true(as_loop_now_us(client->loop) - before_us < 3000000);
    for (unsigned i = 0; i < 300; i++) {
        assert_false(is_shut(fds[i])); // the last ones by the deadline
    }
    warm_up(client);
    assert_int_equal(client->lost, 0);
}

static void who_was_heard_makes_no_room_for_who_says_nothing(void **state)
{
    client_t *client = *state;
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    const ucx_hello_t hello = connect_hello(0, 0);
    const size_t count = ucx_hello_write(&hello, bytes);
    warm_up(client);
    uint64_t begun_us = as_loop_now_us(client->loop);
    int heard = knock(client), fds[200];
    assert_int_equal(send(heard, bytes, count, MSG_NOSIGNAL), count);
    assert_true(recv(heard, bytes, sizeof(bytes), 0) > 0);
    for (unsigned i = 0; i < 200; i++) {
        fds[i] = knock(client);
    }
    assert_false(is_shut(fds[0])); // for the last of them
    char byte;
    ssize_t got = recv(heard, &byte, 1, MSG_DONTWAIT);
    if (as_loop_now_us(client->loop) - begun_us < 4000000) { // else it may be its deadline
        assert_int_equal(got, -1);
    }
    close(heard);
    for (unsigned i = 1; i < 200; i++) {
        close(fds[i]);
    }
    warm_up(client);
}

static void a_crowd_of_strangers_does_not_fill_the_log(void **state)
{
    client_t *client = *state;
    client_t server;
    server_init(&server, client, "127.0.0.1:0");
    as_log_set_clock(NULL); // what other tests have said is forgotten
    unsigned long before = as_log_count(AS_LOG_WARN);
    uint64_t begun_us = as_loop_now_us(client->loop);
    char byte;
    for (unsigned i = 0; i < 600; i++) {
        int fd = knock_at(as_net_address(server.net));
        assert_int_equal(send(fd, "GET / HTTP/1.0", 14, MSG_NOSIGNAL), 14);
        while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
            as_loop_run_once(client->loop, false);
        }
        close(fd);
    }
    uint64_t seconds = (as_loop_now_us(client->loop) - begun_us) / 1000000 + 1;
    assert_in_range(as_log_count(AS_LOG_WARN) - before, 1, 102 + 20 * seconds);
    client_fini(&server, false);
}

// UCX's connection may have come through the gate when its socket is given up. Its hosts are not let in then, so it would
// wait for ever.
static void a_connection_that_comes_too_late_is_refused(void **state)
{
    client_t *client = *state;
    client_t server;
    client_init(&server, NULL);
    const ucx_net_t *net = (ucx_net_t *)server.net;
    assert_int_equal(as_net_listen(server.net, "127.0.0.1:0"), AS_OK);
    client_turn_to(client, as_net_address(server.net));
    while (ucx_list_is_empty(&net->half_open) || !net->doors.refs[0]) { // until it is answered
        as_loop_run_once(client->loop, false);
        as_loop_run_once(server.loop, false);
    }
    uint64_t begun_us = as_loop_now_us(client->loop);
    while (as_loop_now_us(client->loop) - begun_us < 100000) {
        as_loop_run_once(client->loop, false);
    }
    ucx_socket_close((ucx_socket_t *)net->half_open.next);
    while (client->lost == 0) {
        assert_false(client->expired || server.accepted > 0);
        as_loop_run_once(client->loop, false);
        as_loop_run_once(server.loop, false);
    }
    assert_int_equal(client->lost_status, AS_ERR_UNREACHABLE);
    client_turn_to(client, client->peer.address);
    warm_up(client);
    client_fini(&server, true);
}

// A listener that answers a client of ours with whatever it likes.
static void answer_with(client_t *client, const void *bytes, size_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, address_bytes), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &address_bytes), 0);
    char text[32];
    snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(address.sin_port));
    client_turn_to(client, text);
    int fd = accept(listener, NULL, NULL);
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
    shutdown(fd, SHUT_WR);
    unsigned before = client->lost;
    RUN_UNTIL(client, client->lost == before + 1);
    close(fd);
    close(listener);
}

static void a_listener_of_another_kind_is_no_peer(void **state)
{
    client_t *client = *state;
    unsigned char bytes[UCX_HELLO_BYTES_MAX];
    ucx_hello_t hello = connect_hello(0, 0);
    answer_with(client, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    assert_int_equal(client->lost_status, AS_ERR_UNREACHABLE);
    answer_with(client, "", 0);
    assert_int_equal(client->lost_status, AS_ERR_UNREACHABLE);
    answer_with(client, bytes, ucx_hello_write(&hello, bytes));
    assert_int_equal(client->lost_status, AS_ERR_UNREACHABLE);
    hello = (ucx_hello_t){.kind = UCX_HELLO_REFUSE, .refusal = UCX_REFUSAL_BUSY};
    answer_with(client, bytes, ucx_hello_write(&hello, bytes));
    assert_int_equal(client->lost_status, AS_ERR_UNREACHABLE);
    hello.refusal = UCX_REFUSAL_DENIED;
    answer_with(client, bytes, ucx_hello_write(&hello, bytes));
    assert_int_equal(client->lost_status, AS_ERR_DENIED);
    size_t count = ucx_hello_write(&hello, bytes);
    bytes[4] = UCX_HELLO_VERSION + 1;
    answer_with(client, bytes, count);
    assert_int_equal(client->lost_status, AS_ERR_PROTOCOL); // it was reached
    client_turn_to(client, client->peer.address);
    warm_up(client);
}

// ---- which connections belong together

static void connections_of_two_nets_made_at_once_are_told_apart(void **state)
{
    client_t *client = *state;
    crowd_t crowd;
    crowd_init(&crowd, client);
    for (unsigned i = 0; i < CROWD; i++) {
        crowd_connect(&crowd, i);
        crowd_ask(&crowd, i);
    }
    RUN_UNTIL(client, crowd.received == CROWD);
    for (unsigned i = 0; i < CROWD; i += 2) { // the end of one is not the end of another
        as_net_close(crowd.conns[i]);
    }
    for (unsigned i = 1; i < CROWD; i += 2) {
        crowd_ask(&crowd, i);
    }
    RUN_UNTIL(client, crowd.received == CROWD + CROWD / 2);
    for (unsigned i = 0; i < CROWD; i++) {
        assert_int_equal(crowd.answers[i], 1 + i % 2);
    }
    assert_int_equal(crowd.wrong + crowd.lost, 0);
    as_net_free(crowd.net);
    warm_up(client);
}

static void connections_given_up_half_way_do_not_confuse_later_ones(void **state)
{
    client_t *client = *state;
    crowd_t crowd;
    crowd_init(&crowd, client);
    unsigned seed = 7;
    for (unsigned round = 0; round < 200; round++) {
        crowd_connect(&crowd, 0);
        for (unsigned turns = (unsigned)rand_r(&seed) % 12; turns > 0; turns--) {
            as_loop_run_once(client->loop, false);
        }
        as_net_close(crowd.conns[0]);
        if (round % 10 == 9) {
            crowd_connect(&crowd, 1);
            crowd_ask(&crowd, 1);
            RUN_UNTIL(client, crowd.answers[1] == round / 10 + 1);
            as_net_close(crowd.conns[1]);
        }
    }
    assert_int_equal(crowd.lost, 0);
    as_net_free(crowd.net);
    warm_up(client);
}

static void a_listening_peer_keeps_nothing_of_connections_that_ended(void **state)
{
    client_t *client = *state;
    client_t server;
    server_init(&server, client, "127.0.0.1:0");
    int highest[2] = {0, 0}; // while pools grow, and then
    for (unsigned i = 0; i < 60; i++) {
        client_turn_to(client, as_net_address(server.net));
        assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, i, 0}, NULL, 0), AS_OK);
        RUN_UNTIL(client, server.received == i + 1 && server.lost == i);
        int fd = open("/dev/null", O_RDONLY); // the lowest free
        close(fd);
        highest[i / 30] = fd > highest[i / 30] ? fd : highest[i / 30];
    }
    assert_in_range(highest[1], 1, highest[0] + 8);
    client_fini(&server, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_is_read_as_it_was_written),
        cmocka_unit_test(no_flipped_bit_of_a_hello_goes_unseen),
        cmocka_unit_test(what_cannot_be_said_is_broken),
        cmocka_unit_test(a_gate_stands_before_its_own_address),
        NET_TEST(whatever_a_stranger_sends_only_closes_its_connection),
        NET_TEST(a_peer_of_another_version_is_told_ours),
        NET_TEST(strangers_who_say_nothing_do_not_keep_peers_out),
        NET_TEST(who_was_heard_makes_no_room_for_who_says_nothing),
        NET_TEST(a_crowd_of_strangers_does_not_fill_the_log),
        NET_TEST(a_connection_that_comes_too_late_is_refused),
        NET_TEST(a_listener_of_another_kind_is_no_peer),
        NET_TEST(connections_of_two_nets_made_at_once_are_told_apart),
        NET_TEST(connections_given_up_half_way_do_not_confuse_later_ones),
        NET_TEST(a_listening_peer_keeps_nothing_of_connections_that_ended),
    };
    return NET_MAIN(argc, argv, "net_ucx_port", tests);
}
