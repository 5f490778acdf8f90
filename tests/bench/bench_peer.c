// SPDX-License-Identifier: Apache-2.0
// The fastest client that we can write for Redis and memcached, which bench_store is set beside: one
// connection, requests pipelined without a pause, values received straight into place, nothing
// looked at twice. Redis speaks RESP, memcached its meta commands. Prints a line of JSON.
//
//     bench_peer redis|memcached HOST:PORT|/SOCKET get|set BYTES SET_MIB DEPTH SECONDS PID
//
// PID is the server's, for the processor time that it uses. The values are set first.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/bench/clock.h"

#define HEAD_BYTES  128u
#define BATCH       16u // requests of one writev
#define INPUT_BYTES (64u << 10)
#define TAIL        "\r\n"

typedef struct peer {
    bool redis, set;
    int fd;
    size_t bytes;
    uint32_t keys, depth;
    uint8_t *values; // `depth` of them: where they are received, or sent from
    uint64_t asked, answered, misses;
    uint64_t next_key;
    // being sent
    char heads[BATCH][HEAD_BYTES];
    struct iovec out[BATCH * 3];
    uint32_t out_at, out_count;
    // being received
    uint8_t input[INPUT_BYTES];
    size_t have, at;
    size_t value_left; // of the value that arrives, its "\r\n" not counted
    size_t tail_left;
    uint8_t *value_to;
} peer_t;

static void die(const char *what)
{
    fprintf(stderr, "bench_peer: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static int dial(const char *address)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in remote = {.sin_family = AF_INET};
    const char *colon = strrchr(address, ':');
    bool is_local = address[0] == '/';
    int fd = socket(is_local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    int failed;
    if (is_local) {
        snprintf(local.sun_path, sizeof(local.sun_path), "%s", address);
        failed = connect(fd, (const struct sockaddr *)&local, sizeof(local));
    } else {
        remote.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        remote.sin_port = htons((uint16_t)strtoul(colon ? colon + 1 : address, NULL, 10));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        failed = connect(fd, (const struct sockaddr *)&remote, sizeof(remote));
    }
    if (failed) {
        die("cannot connect");
    }
    return fd;
}

// ---- requests

static size_t write_head(const peer_t *peer, bool set, char *head)
{
    unsigned key = (unsigned)(peer->next_key % peer->keys);
    int length;
    if (peer->redis && set) {
        length = snprintf(head, HEAD_BYTES, "*3\r\n$3\r\nSET\r\n$12\r\nk%011u\r\n$%zu\r\n", key,
                          peer->bytes);
    } else if (peer->redis) {
        length = snprintf(head, HEAD_BYTES, "*2\r\n$3\r\nGET\r\n$12\r\nk%011u\r\n", key);
    } else if (set) {
        length = snprintf(head, HEAD_BYTES, "ms k%011u %zu\r\n", key, peer->bytes);
    } else {
        length = snprintf(head, HEAD_BYTES, "mg k%011u v\r\n", key);
    }
    return (size_t)length;
}

// Fills the vector that is sent with as many requests as the depth allows, half of it at least.
static void ask_more(peer_t *peer, bool set, uint64_t limit)
{
    uint64_t room = peer->depth - (peer->asked - peer->answered);
    if (peer->out_count > 0 || (room < (peer->depth + 1) / 2 && peer->asked != peer->answered)) {
        return;
    }
    peer->out_at = 0;
    for (uint32_t i = 0; i < BATCH && i < room && peer->asked < limit; i++) {
        struct iovec *out = &peer->out[peer->out_count++];
        *out = (struct iovec){peer->heads[i], write_head(peer, set, peer->heads[i])};
        if (set) {
            uint8_t *value = peer->values + peer->asked % peer->depth * peer->bytes;
            peer->out[peer->out_count++] = (struct iovec){value, peer->bytes};
            peer->out[peer->out_count++] = (struct iovec){(void *)(uintptr_t)TAIL, 2};
        }
        peer->asked++;
        peer->next_key++;
    }
}

static void send_some(peer_t *peer)
{
    const struct msghdr message = {.msg_iov = peer->out + peer->out_at,
                                   .msg_iovlen = peer->out_count - peer->out_at};
    ssize_t sent = sendmsg(peer->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        die("sending");
    }
    for (size_t left = sent > 0 ? (size_t)sent : 0; left > 0;) {
        struct iovec *out = &peer->out[peer->out_at];
        size_t part = left < out->iov_len ? left : out->iov_len;
        out->iov_base = (uint8_t *)out->iov_base + part;
        out->iov_len -= part;
        left -= part;
        peer->out_at += out->iov_len == 0;
    }
    if (peer->out_at == peer->out_count) {
        peer->out_at = peer->out_count = 0;
    }
}

// ---- answers

// One line of an answer: an end, or a value of so many bytes to come.
static void take_line(peer_t *peer, const char *line)
{
    bool value = peer->redis ? line[0] == '$' && line[1] != '-' : strncmp(line, "VA ", 3) == 0;
    bool done = peer->redis ? strncmp(line, "+OK", 3) == 0 : strncmp(line, "HD", 2) == 0;
    bool missed = peer->redis ? strncmp(line, "$-1", 3) == 0 : strncmp(line, "EN", 2) == 0;
    if (value) {
        peer->value_left = strtoul(line + (peer->redis ? 1 : 3), NULL, 10);
        peer->value_to = peer->values + peer->answered % peer->depth * peer->bytes;
        peer->tail_left = 2;
        errno = 0;
        if (peer->value_left != peer->bytes) {
            die("a value of another length");
        }
    } else if (done || missed) {
        peer->answered++;
        peer->misses += missed;
    } else {
        fprintf(stderr, "bench_peer: the server says: %s\n", line);
        exit(1);
    }
}

static void take_input(peer_t *peer)
{
    while (peer->at < peer->have) {
        uint8_t *from = peer->input + peer->at;
        size_t left = peer->have - peer->at;
        if (peer->value_left > 0) {
            size_t part = left < peer->value_left ? left : peer->value_left;
            memcpy(peer->value_to, from, part);
            peer->value_to += part;
            peer->value_left -= part;
            peer->at += part;
        } else if (peer->tail_left > 0) {
            peer->tail_left--;
            peer->at++;
            peer->answered += peer->tail_left == 0;
        } else {
            uint8_t *end = memchr(from, '\n', left);
            if (!end) {
                break;
            }
            *end = '\0';
            peer->at += (size_t)(end - from) + 1;
            take_line(peer, (const char *)from);
        }
    }
    memmove(peer->input, peer->input + peer->at, peer->have - peer->at);
    peer->have -= peer->at;
    peer->at = 0;
}

// What is missing of a value goes straight into place; what follows it, into the input buffer.
static void receive_some(peer_t *peer)
{
    struct iovec in[2] = {{peer->value_to, peer->value_left},
                          {peer->input + peer->have, INPUT_BYTES - peer->have}};
    bool direct = peer->value_left > 0;
    struct msghdr message = {.msg_iov = direct ? in : in + 1, .msg_iovlen = direct ? 2 : 1};
    ssize_t got = recvmsg(peer->fd, &message, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        die("the server closed the connection");
    }
    if (got < 0) {
        return;
    }
    size_t placed = (size_t)got < peer->value_left ? (size_t)got : peer->value_left;
    peer->value_to += placed;
    peer->value_left -= placed;
    peer->have += (size_t)got - placed;
    take_input(peer);
}

// Asks until `limit` requests were made or `seconds` have passed, and takes all answers.
static void run(peer_t *peer, bool set, uint64_t limit, double seconds)
{
    double end = now_s() + seconds;
    peer->asked = peer->answered = peer->misses = 0;
    bool over = false;
    while (!over || peer->answered < peer->asked || peer->out_count > 0) {
        over = over || now_s() >= end || peer->asked >= limit;
        if (!over) {
            ask_more(peer, set, limit);
        }
        struct pollfd ready = {peer->fd, (short)(POLLIN | (peer->out_count > 0 ? POLLOUT : 0)), 0};
        if (poll(&ready, 1, 30000) == 0) {
            errno = 0;
            die("the server says nothing for 30 s");
        }
        if (ready.revents & POLLIN) {
            receive_some(peer);
        }
        if (ready.revents & POLLOUT) {
            send_some(peer);
        }
    }
}

int main(int argc, char **argv)
{
    static peer_t peer;
    if (argc != 9) {
        fprintf(stderr, "usage: bench_peer redis|memcached HOST:PORT|/SOCKET get|set BYTES SET_MIB "
                        "DEPTH SECONDS PID\n");
        return 2;
    }
    peer.redis = strcmp(argv[1], "redis") == 0;
    peer.set = strcmp(argv[3], "set") == 0;
    peer.bytes = strtoul(argv[4], NULL, 10);
    peer.depth = (uint32_t)strtoul(argv[6], NULL, 10);
    if (peer.bytes == 0 || peer.depth == 0) {
        fprintf(stderr, "bench_peer: BYTES and DEPTH must be positive\n");
        return 2;
    }
    peer.keys = (uint32_t)((strtoul(argv[5], NULL, 10) << 20) / peer.bytes);
    peer.keys = peer.keys == 0 ? 1 : peer.keys;
    double seconds = strtod(argv[7], NULL);
    pid_t pid = (pid_t)strtol(argv[8], NULL, 10);
    peer.values = as_mem_aligned(4096, peer.depth * peer.bytes);
    if (!peer.values) {
        die("memory");
    }
    memset(peer.values, 'x', peer.depth * peer.bytes);
    peer.fd = dial(argv[2]);
    run(&peer, true, peer.keys, 60);
    run(&peer, peer.set, UINT64_MAX, seconds < 1 ? seconds / 2 : 0.5); // fills the caches
    double cpu = cpu_seconds(pid), own = cpu_seconds(0), began = now_s();
    run(&peer, peer.set, UINT64_MAX, seconds);
    double took = now_s() - began, moved = (double)peer.answered * (double)peer.bytes;
    printf("{\"peer\":\"%s\",\"op\":\"%s\",\"block_bytes\":%zu,\"seconds\":%.3f,\"bytes\":%.0f,"
           "\"gb_per_s\":%.3f,\"misses\":%llu,\"store_cpu_s\":%.4f,\"own_cpu_s\":%.4f}\n",
           argv[1], argv[3], peer.bytes, took, moved, moved / took * 1e-9,
           (unsigned long long)peer.misses, cpu_seconds(pid) - cpu, cpu_seconds(0) - own);
    close(peer.fd);
    as_mem_free(peer.values);
    return 0;
}
