// SPDX-License-Identifier: Apache-2.0
// What the tests of the HTTP server share: a server whose handler answers "/now" at once and holds
// every other request for the test, and a client over plain sockets. Both are on one thread: the
// client's sockets do not block, and every wait turns the loop.
#ifndef TEST_HTTP_FIXTURE_H
#define TEST_HTTP_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"

#define WAIT_US_MAX  20000000u
#define HELD_MAX     64
#define ANSWER_BYTES (32u << 20)

static as_loop_t *loop;
static as_http_t *http;
static as_http_request_t *held[HELD_MAX]; // given to the handler and not answered
static int held_count;
static int requests_seen, aborts_seen;
static char last_method[32], last_path[256], last_header[256];
static size_t last_body_bytes;
static char *last_body;
static char *taken_body; // of /take

// ---- The handler

static inline void reply_text(as_http_request_t *request, int code, const char *text)
{
    as_http_reply(request, code, "text/plain", text, strlen(text));
}

static inline void on_request(void *ctx, as_http_request_t *request, const as_http_call_t *call)
{
    assert_ptr_equal(ctx, &loop);
    requests_seen++;
    snprintf(last_method, sizeof(last_method), "%s", call->method);
    snprintf(last_path, sizeof(last_path), "%s", call->path);
    const char *header = as_http_request_header(request, "X-Test");
    snprintf(last_header, sizeof(last_header), "%s", header ? header : "(none)");
    assert_true((call->body == NULL) == (call->body_bytes == 0));
    free(last_body);
    last_body_bytes = call->body_bytes;
    last_body = malloc(last_body_bytes + 1);
    memcpy(last_body, call->body ? call->body : "", last_body_bytes + 1); // with its NUL
    if (strcmp(call->path, "/now") == 0) {
        reply_text(request, 200, "at once");
    } else if (strcmp(call->path, "/take") == 0) {
        taken_body = as_http_request_take_body(request);
        reply_text(request, 200, "taken");
    } else if (strcmp(call->path, "/free") == 0) {
        held[held_count++] = request;
        as_http_free(http); // aborts this one, too
        http = NULL;
    } else {
        assert_true(held_count < HELD_MAX);
        held[held_count++] = request;
    }
}

static inline void forget(as_http_request_t *request)
{
    for (int i = 0; i < held_count; i++) {
        if (held[i] == request) {
            held[i] = held[--held_count];
            return;
        }
    }
    fail_msg("a request ended that was not held");
}

static inline void on_abort(void *ctx, as_http_request_t *request)
{
    assert_ptr_equal(ctx, &loop);
    aborts_seen++;
    forget(request);
}

static inline as_http_options_t server_options(const char *address, uint32_t connections_max)
{
    return (as_http_options_t){
        .address = address,
        .connections_max = connections_max,
        .handlers = {.ctx = &loop, .on_request = on_request, .on_abort = on_abort},
    };
}

static inline void start_with(const as_http_options_t *options)
{
    held_count = requests_seen = aborts_seen = 0;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(as_http_alloc(loop, options, &http), AS_OK);
}

static inline void start(uint32_t connections_max)
{
    const as_http_options_t options = server_options("127.0.0.1:0", connections_max);
    start_with(&options);
}

static inline int open_server(void **state)
{
    (void)state;
    start(16);
    return 0;
}

static inline int close_server(void **state)
{
    (void)state;
    as_http_free(http);
    http = NULL;
    assert_int_equal(held_count, 0);
    as_loop_free(loop);
    free(last_body);
    last_body = NULL;
    return 0;
}

// ---- The client

static inline int connect_to(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static inline int connect_client(void)
{
    return connect_to(as_http_address(http));
}

static inline uint64_t deadline_us(void)
{
    return as_loop_now_us(loop) + WAIT_US_MAX;
}

// Turns the loop once; waits a moment for either side when neither has anything.
static inline void turn(int fd, short events, uint64_t deadline)
{
    assert_true(as_loop_now_us(loop) < deadline);
    as_loop_run_once(loop, false);
    struct pollfd pollfd = {.fd = fd, .events = events};
    poll(&pollfd, fd >= 0, 1);
}

static inline void send_bytes(int fd, const char *data, size_t bytes)
{
    uint64_t deadline = deadline_us();
    while (bytes > 0) {
        ssize_t sent = send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            return; // the server hung up: the test sees it on reading
        }
        data += sent > 0 ? sent : 0;
        bytes -= sent > 0 ? (size_t)sent : 0;
        if (bytes > 0) {
            turn(fd, POLLOUT, deadline);
        }
    }
}

static inline void send_text(int fd, const char *text)
{
    send_bytes(fd, text, strlen(text));
}

static char answer[ANSWER_BYTES];
static size_t answer_bytes;

// Reads what is there. False at the end of the connection.
static inline bool receive_some(int fd)
{
    ssize_t got = recv(fd, answer + answer_bytes, sizeof(answer) - 1 - answer_bytes, MSG_DONTWAIT);
    if (got > 0) {
        answer_bytes += (size_t)got;
        answer[answer_bytes] = '\0';
    }
    return got > 0 || (got < 0 && errno == EAGAIN);
}

static inline void clear_answer(void)
{
    answer_bytes = 0;
    answer[0] = '\0';
}

// Waits until the answer holds the text.
static inline void await_text(int fd, const char *text)
{
    uint64_t deadline = deadline_us();
    while (!strstr(answer, text)) {
        turn(fd, POLLIN, deadline);
        if (!receive_some(fd) && !strstr(answer, text)) {
            fail_msg("connection ended before '%s': %s", text, answer);
        }
    }
}

static inline void await_end(int fd)
{
    uint64_t deadline = deadline_us();
    while (receive_some(fd)) {
        turn(fd, POLLIN, deadline);
    }
}

static inline void await(const int *counter, int value)
{
    uint64_t deadline = deadline_us();
    while (*counter < value) {
        turn(-1, 0, deadline);
    }
    assert_int_equal(*counter, value);
}

static inline void request_and_hold(int fd, const char *text)
{
    int before = held_count;
    send_text(fd, text);
    await(&held_count, before + 1);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_server, close_server)

#endif
