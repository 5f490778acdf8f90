// SPDX-License-Identifier: Apache-2.0
// What the tests of the UCX data plane share: a loop with a deadline, and a peer process that
// serves.
//
// The peer is the test program itself, run again with "peer" as its argument; it prints its address
// and serves until it is killed or its standard input ends.
#ifndef NET_PEER_H
#define NET_PEER_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net.h"

#define POOL_BYTES ((size_t)8 << 20)

// What a request asks of the peer.
enum { ASK_ECHO = 1, ASK_KEY, ASK_DROP, ASK_CLOSE, ASK_SILENCE };

typedef struct ask {
    uint32_t what;
    uint32_t id;
    uint64_t address; // in the answer to ASK_KEY
} ask_t;

#define PATTERN_BYTES ((size_t)1 << 16)

// Test payloads repeat this; no two of its 256-byte lines are the same.
static inline const unsigned char *pattern(void)
{
    static unsigned char bytes[PATTERN_BYTES];
    for (size_t i = 0; !bytes[0] && i < PATTERN_BYTES; i++) {
        bytes[PATTERN_BYTES - 1 - i] = (unsigned char)(i * 131 + (i >> 8) * 7 + 3);
    }
    return bytes;
}

static inline void fill(unsigned char *bytes, size_t count)
{
    for (size_t at = 0; at < count; at += PATTERN_BYTES) {
        memcpy(bytes + at, pattern(), count - at < PATTERN_BYTES ? count - at : PATTERN_BYTES);
    }
}

static inline int matches(const unsigned char *bytes, size_t count)
{
    int same = 1;
    for (size_t at = 0; at < count && same; at += PATTERN_BYTES) {
        size_t some = count - at < PATTERN_BYTES ? count - at : PATTERN_BYTES;
        same = memcmp(bytes + at, pattern(), some) == 0;
    }
    return same;
}

// ---- the peer process

typedef struct peer_reply {
    ask_t ask;
    as_conn_t *conn;
    unsigned char *bytes;
    size_t count;
} peer_reply_t;

typedef struct peer_state {
    as_loop_t *loop;
    as_net_t *net;
    void *pool;
    as_net_mem_t *mem;
} peer_state_t;

static void peer_sent(void *ctx, as_status_t status)
{
    (void)status;
    peer_reply_t *reply = ctx;
    free(reply->bytes);
    free(reply);
}

static void peer_received(void *ctx, as_status_t status)
{
    peer_reply_t *reply = ctx;
    if (status == AS_OK && reply->count == 0 &&
        as_net_send(reply->conn, &reply->ask, sizeof(reply->ask), NULL, 0, NULL, NULL) == AS_OK) {
        peer_sent(reply, AS_OK);
    } else if (status != AS_OK ||
               as_net_send(reply->conn, &reply->ask, sizeof(reply->ask), reply->bytes, reply->count,
                           peer_sent, reply) != AS_OK) {
        peer_sent(reply, status);
    }
}

static void peer_on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    peer_state_t *peer = ctx;
    peer_reply_t *reply = calloc(1, sizeof(*reply));
    if (msg->header_bytes != sizeof(ask_t)) {
        abort();
    }
    memcpy(&reply->ask, msg->header, sizeof(ask_t));
    reply->conn = conn;
    if (reply->ask.what == ASK_ECHO) {
        reply->count = msg->data_bytes;
        reply->bytes = malloc(reply->count + 1);
        if (as_net_msg_recv(msg, reply->bytes, peer_received, reply) != AS_OK) {
            peer_sent(reply, AS_OK);
        }
        return;
    }
    if (reply->ask.what == ASK_KEY) {
        reply->ask.address = (uint64_t)(uintptr_t)peer->pool;
        reply->bytes = malloc(AS_NET_RKEY_BYTES_MAX);
        if (as_net_mem_pack(peer->mem, reply->bytes, &reply->count) != AS_OK) {
            abort();
        }
        peer_received(reply, AS_OK);
        return;
    }
    if (reply->ask.what == ASK_DROP) {
        peer_received(reply, AS_OK);
        return;
    }
    if (reply->ask.what == ASK_CLOSE) {
        as_net_close(conn);
    }
    free(reply);
}

static void peer_on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    (void)conn;
}

static void peer_on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)ctx;
    (void)status;
    as_net_close(conn);
}

static int peer_main(void)
{
    peer_state_t peer = {0};
    const as_net_handlers_t handlers = {&peer, peer_on_accept, peer_on_message, peer_on_lost, NULL};
    if (as_loop_alloc_uv(&peer.loop) != AS_OK ||
        as_net_alloc_ucx(peer.loop, &handlers, &peer.net) != AS_OK ||
        as_net_listen(peer.net, "127.0.0.1:0") != AS_OK ||
        as_net_mem_alloc(peer.net, POOL_BYTES, &peer.pool, &peer.mem) != AS_OK) {
        return 1;
    }
    fill(peer.pool, POOL_BYTES);
    printf("%s\n", as_net_address(peer.net));
    fflush(stdout);
    as_loop_run(peer.loop); // until killed
    return 0;
}

// ---- its parent

typedef struct peer {
    pid_t pid;
    char address[64];
} peer_t;

static inline void peer_start(peer_t *peer)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    peer->pid = fork();
    if (peer->pid == 0) {
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL); // it goes with a test that is killed
        execl("/proc/self/exe", "test_net_ucx", "peer", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *from = fdopen(out[0], "r");
    assert_non_null(from);
    assert_non_null(fgets(peer->address, sizeof(peer->address), from));
    peer->address[strcspn(peer->address, "\n")] = '\0';
    fclose(from);
}

static inline void peer_end(peer_t *peer)
{
    if (peer->pid > 0) {
        kill(peer->pid, SIGKILL);
        waitpid(peer->pid, NULL, 0);
        peer->pid = 0;
    }
}

#endif
