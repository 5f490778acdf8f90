// SPDX-License-Identifier: Apache-2.0
// The ports that UCX opens by itself: which hosts the kernel lets in, and what a peer shows for it at the data port.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include "net_crowd.h"
#include "common/net_ucx.h"

// ---- UCX's own ports

static int door_of(const as_net_t *net, struct sockaddr_storage *address)
{
    const ucx_net_t *ucx = (const ucx_net_t *)net;
    socklen_t bytes = sizeof(*address);
    for (unsigned i = 0; i < ucx->doors.count; i++) {
        assert_int_equal(getsockname(ucx->doors.fds[i], (struct sockaddr *)address, &bytes), 0);
        const struct sockaddr_in *in4 = (const struct sockaddr_in *)address;
        if (in4->sin_family == AF_INET && in4->sin_addr.s_addr == htonl(INADDR_LOOPBACK)) {
            return ucx->doors.fds[i];
        }
    }
    return -1;
}

// Whether a connection from that host of loopback comes about.
static bool is_let_in(uint32_t host, const struct sockaddr_storage *to)
{
    const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
    const struct timeval patience = {.tv_usec = 100000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof(from)), 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    bool in = connect(fd, (const struct sockaddr *)to, sizeof(struct sockaddr_in)) == 0;
    assert_true(in || errno == EINPROGRESS);
    close(fd);
    return in;
}

static struct in6_addr loopback(uint32_t host)
{
    struct sockaddr_storage address = {.ss_family = AF_INET};
    struct in6_addr mapped;
    ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(host);
    ucx_sockaddr_host(&address, &mapped);
    return mapped;
}

static void ports_of_ucx_let_in_hosts_of_peers_only(void **state)
{
    client_t *client = *state;
    struct sockaddr_storage door;
    client_t server;
    server_init(&server, client, "127.0.0.1:0");
    assert_true(door_of(server.net, &door) >= 0);
    assert_false(is_let_in(INADDR_LOOPBACK, &door));
    client_turn_to(client, as_net_address(server.net));
    assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, server.received == 1);
    assert_true(is_let_in(INADDR_LOOPBACK, &door));
    assert_false(is_let_in(INADDR_LOOPBACK + 1, &door));
    client_turn_to(client, client->peer.address);
    RUN_UNTIL(client, server.lost == 1);
    for (unsigned i = 0; i < 100 && is_let_in(INADDR_LOOPBACK, &door); i++) {
        as_loop_run_once(client->loop, false);
    }
    assert_false(is_let_in(INADDR_LOOPBACK, &door));
    warm_up(client);
    client_fini(&server, false);
}

// UCX connects two of one host by loopback, whichever address the data port was reached by.
static void a_peer_of_this_host_may_come_by_loopback(void **state)
{
    client_t *client = *state;
    struct in6_addr hosts[UCX_HELLO_HOSTS_MAX];
    unsigned count = ucx_hosts_of_ours(hosts), i = 0;
    while (i < count && !IN6_IS_ADDR_V4MAPPED(&hosts[i])) {
        i++;
    }
    if (i == count) {
        skip(); // a machine of loopback alone
    }
    client_t server;
    server_init(&server, client, "0.0.0.0:0");
    const uint8_t *host = hosts[i].s6_addr + 12;
    char text[32];
    snprintf(text, sizeof(text), "%u.%u.%u.%u%s", host[0], host[1], host[2], host[3],
             strrchr(as_net_address(server.net), ':'));
    client_turn_to(client, text);
    assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, server.received == 1);
    client_turn_to(client, client->peer.address);
    RUN_UNTIL(client, server.lost == 1);
    warm_up(client);
    client_fini(&server, false);
}

static void what_ucx_cannot_connect_by_is_refused(void **state)
{
    client_t *client = *state;
    const ucx_net_t *net = (ucx_net_t *)client->net;
    client_t server;
    as_conn_t *conn;
    client_init(&server, client->loop);
    server.close_on_lost = true;
    assert_true(net->doors.four && !net->doors.six);
    assert_int_equal(as_net_connect(client->net, "[::1]:9", &conn), AS_ERR_UNSUPPORTED);
    assert_int_equal(as_net_listen(server.net, "[::]:0"), AS_ERR_UNSUPPORTED);
    ucx_guest_t guest = {.count = 0};
    const struct in6_addr six = {{{0xfd, [15] = 1}}};
    ucx_guest_add((ucx_net_t *)client->net, &guest, &six);
    assert_int_equal(guest.count, 0); // it could come to no port
    // Of a name's addresses the one that does.
    assert_int_equal(as_net_listen(server.net, "localhost:0"), AS_OK);
    client_turn_to(client, as_net_address(server.net));
    assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, 0, 0}, NULL, 0), AS_OK);
    RUN_UNTIL(client, server.received == 1);
    client_turn_to(client, client->peer.address);
    RUN_UNTIL(client, server.lost == 1);
    warm_up(client);
    client_fini(&server, false);
}

enum { UNREACHABLE = 8 };

// Peers behind a firewall, for a second. Returns how many were answered all the same.
static unsigned connect_unreachable_ones(client_t *client)
{
    crowd_t crowds[UNREACHABLE];
    unsigned answered = 0;
    for (unsigned i = 0; i < UNREACHABLE; i++) {
        crowd_init(&crowds[i], client);
        ucx_doors_t *doors = &((ucx_net_t *)crowds[i].net)->doors;
        assert_true(doors->count > 0);
        doors->count = 0; // shut, and not to be opened
        crowd_connect(&crowds[i], 0);
        crowd_ask(&crowds[i], 0);
    }
    uint64_t begun_us = as_loop_now_us(client->loop);
    while (as_loop_now_us(client->loop) - begun_us < 1000000) {
        as_loop_run_once(client->loop, false);
    }
    for (unsigned i = 0; i < UNREACHABLE; i++) {
        answered += crowds[i].received;
        as_net_free(crowds[i].net);
    }
    return answered;
}

// Which side connects to the other's port is UCX's choice by their numbers: one time in nine none of ours is
// connected to.
static void a_peer_whose_own_port_is_out_of_reach_stalls_nobody(void **state)
{
    client_t *client = *state;
    unsigned answered = UNREACHABLE;
    warm_up(client);
    for (unsigned i = 0; i < 3 && answered == UNREACHABLE; i++) {
        uint64_t begun_us = as_loop_now_us(client->loop);
        answered = connect_unreachable_ones(client);
        warm_up(client);
        assert_true(as_loop_now_us(client->loop) - begun_us < 4000000);
    }
}

static void more_hosts_than_a_filter_takes_open_the_ports(void **state)
{
    client_t *client = *state;
    ucx_net_t *net = (ucx_net_t *)client->net;
    struct sockaddr_storage door;
    assert_true(door_of(client->net, &door) >= 0);
    warm_up(client);
    static ucx_guest_t guests[UCX_HOSTS_MAX + 1];
    memset(guests, 0, sizeof(guests));
    const unsigned room = UCX_HOSTS_MAX - UCX_GUEST_HOSTS_MAX; // beside the peer's
    for (unsigned i = 0; i < room; i++) {
        const struct in6_addr host = loopback(INADDR_LOOPBACK + 10 + i);
        ucx_guest_add(net, &guests[i], &host);
    }
    ucx_doors_update(net);
    for (unsigned i = 0; i < room;
         i += i % 100 == 0 && i > 0 ? 1 : 99) { // there are chunks of them
        assert_true(is_let_in(INADDR_LOOPBACK + 10 + i, &door));
    }
    assert_true(is_let_in(INADDR_LOOPBACK + 10 + room - 1, &door));
    assert_false(is_let_in(INADDR_LOOPBACK + 10 + room + 9, &door));
    for (unsigned i = room; i <= UCX_HOSTS_MAX; i++) {
        const struct in6_addr host = loopback(INADDR_LOOPBACK + 10 + i);
        ucx_guest_add(net, &guests[i], &host);
    }
    ucx_doors_update(net);
    assert_true(is_let_in(INADDR_LOOPBACK + 10 + UCX_HOSTS_MAX + 9, &door));
    for (unsigned i = 0; i <= UCX_HOSTS_MAX; i++) {
        ucx_guest_leave(net, &guests[i]);
    }
    ucx_doors_update(net);
    assert_false(is_let_in(INADDR_LOOPBACK + 10, &door));
    warm_up(client);
}

// The memory for a socket's options was 20 KiB before Linux 6.8, and a filter replaces one that is there.
static void as_many_hosts_fit_into_the_memory_of_older_kernels(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNET) != 0) {
            _exit(77);
        }
        int limit = open("/proc/sys/net/core/optmem_max", O_WRONLY | O_CLOEXEC);
        ssize_t written = write(limit, "20480", 5);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        static struct in6_addr hosts[UCX_HOSTS_MAX];
        static struct sockaddr_storage admitted[UCX_ADMITTED_MAX];
        for (unsigned i = 0; i < UCX_HOSTS_MAX; i++) {
            hosts[i] = loopback(0xc0a80001 + i);
        }
        for (unsigned i = 0; i < UCX_ADMITTED_MAX; i++) {
            struct sockaddr_in6 *six = (struct sockaddr_in6 *)&admitted[i];
            *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(60000)};
            memset(&six->sin6_addr, 0xfd, sizeof(six->sin6_addr));
        }
        bool all = (limit < 0 || written == 5) && fd >= 0;
        for (unsigned i = 0; i < 2 && all; i++) {
            all = ucx_gate_set_hosts(fd, hosts, UCX_HOSTS_MAX) == AS_OK;
        }
        for (unsigned i = 0; i < 2 && all; i++) {
            all = ucx_gate_set(fd, admitted, UCX_ADMITTED_MAX) == AS_OK;
        }
        _exit(all ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip(); // it takes rights
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

// A connection of IPv6 from a port of its own, which is told before it is tried.
static bool is_six_let_in(int listener, const struct sockaddr_in6 *to, unsigned port_off)
{
    const struct timeval patience = {.tv_usec = 100000};
    struct sockaddr_storage from = {0};
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&from;
    socklen_t bytes = sizeof(*six);
    *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)six, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)six, &bytes), 0);
    six->sin6_port = htons((uint16_t)(ntohs(six->sin6_port) ^ port_off));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    assert_int_equal(ucx_gate_set(listener, &from, 1), AS_OK);
    bool in = connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0;
    close(fd);
    return in;
}

static void hosts_of_ipv6_are_told_apart(void **state)
{
    (void)state;
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t bytes = sizeof(at);
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, bytes) != 0) {
        close(listener);
        skip(); // a machine without IPv6
    }
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
    const struct in6_addr other = {{{0xfd, [15] = 1}}};
    const struct in6_addr hosts[] = {other, at.sin6_addr};
    for (unsigned i = 1; i <= 2; i++) {
        const struct timeval patience = {.tv_usec = 100000};
        int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        assert_int_equal(ucx_gate_set_hosts(listener, hosts, i), AS_OK);
        assert_int_equal(connect(fd, (struct sockaddr *)&at, bytes) == 0, i == 2);
        close(fd);
    }
    assert_true(is_six_let_in(listener, &at, 0));
    assert_false(is_six_let_in(listener, &at, 1));
    close(listener);
}

// ---- credentials

static bool knock_is_right(void *ctx, const void *credential, size_t bytes)
{
    (void)ctx;
    return bytes == 4 && memcmp(credential, "good", 4) == 0;
}

static void who_shows_no_good_credential_is_let_in_nowhere(void **state)
{
    client_t *client = *state;
    struct sockaddr_storage door;
    client_t server;
    server_init(&server, client, "127.0.0.1:0");
    server.net->handlers.on_knock = knock_is_right;
    assert_true(door_of(server.net, &door) >= 0);
    static const char *const shown[] = {"", "bad!", "good"};
    for (unsigned i = 0; i < 3; i++) {
        as_net_set_credential(client->net, shown[i], strlen(shown[i]));
        client_turn_to(client, as_net_address(server.net));
        assert_int_equal(client_ask(client, (ask_t){ASK_SILENCE, i, 0}, NULL, 0), AS_OK);
        unsigned lost = client->lost;
        RUN_UNTIL(client, client->lost == lost + 1 || server.received == 1);
        assert_int_equal(server.received, i == 2);
        if (i < 2) {
            assert_int_equal(client->lost_status, AS_ERR_DENIED);
            assert_false(is_let_in(INADDR_LOOPBACK, &door));
        }
    }
    as_net_set_credential(client->net, "", 0);
    client_turn_to(client, client->peer.address);
    warm_up(client);
    client_fini(&server, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        NET_TEST(ports_of_ucx_let_in_hosts_of_peers_only),
        NET_TEST(a_peer_of_this_host_may_come_by_loopback),
        NET_TEST(what_ucx_cannot_connect_by_is_refused),
        NET_TEST(a_peer_whose_own_port_is_out_of_reach_stalls_nobody),
        NET_TEST(more_hosts_than_a_filter_takes_open_the_ports),
        cmocka_unit_test(as_many_hosts_fit_into_the_memory_of_older_kernels),
        cmocka_unit_test(hosts_of_ipv6_are_told_apart),
        NET_TEST(who_shows_no_good_credential_is_let_in_nowhere),
    };
    return NET_MAIN(argc, argv, "net_ucx_doors", tests);
}
