// SPDX-License-Identifier: Apache-2.0
// The HTTP server: headers of an answer, the form of refusals, and the time a request may take to
// arrive.
#include "http_fixture.h"

#define RECEIVE_SECONDS AS_HTTP_RECEIVE_SECONDS_MIN

static const char *refuse_as_json(void *ctx, int code, const char *text, char *body,
                                  size_t bytes_max)
{
    assert_ptr_equal(ctx, &loop);
    snprintf(body, bytes_max, "{\"code\":%d,\"text\":\"%s\"}", code, text);
    return "application/json";
}

static int open_impatient_server(void **state)
{
    as_http_options_t options = server_options("127.0.0.1:0", 16);
    (void)state;
    options.receive_seconds = RECEIVE_SECONDS;
    options.handlers.on_refuse = refuse_as_json;
    start_with(&options);
    return 0;
}

#define IMPATIENT_TEST(name)                                                                       \
    cmocka_unit_test_setup_teardown(name, open_impatient_server, close_server)

// ---- Headers

static void an_answer_has_the_headers_that_were_added(void **state)
{
    (void)state;
    int fd = connect_client();
    for (int i = 0; i < 2; i++) { // the second request begins without those of the first
        clear_answer();
        request_and_hold(fd, GET("/later"));
        as_http_request_t *request = held[0];
        forget(request);
        if (i == 0) {
            char name[] = "Retry-After", value[] = "7";
            assert_int_equal(as_http_request_add_header(request, name, value), AS_OK);
            name[0] = value[0] = 'X'; // copied
            assert_int_equal(as_http_request_add_header(request, "Allow", "GET, HEAD"), AS_OK);
        }
        reply_text(request, 429, "try later");
        await_text(fd, "try later");
        assert_int_equal(strstr(answer, "\r\nRetry-After: 7\r\n") != NULL, i == 0);
        assert_int_equal(strstr(answer, "\r\nAllow: GET, HEAD\r\n") != NULL, i == 0);
        assert_non_null(strstr(answer, "\r\nContent-Type: text/plain\r\n"));
    }
    close(fd);
}

static void a_stream_has_the_headers_that_were_added(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/stream"));
    assert_int_equal(as_http_request_add_header(held[0], "Cache-Control", "no-cache"), AS_OK);
    assert_int_equal(as_http_stream_begin(held[0], 200, "text/plain"), AS_OK);
    as_http_stream_end(held[0]);
    forget(held[0]);
    await_text(fd, "0\r\n\r\n");
    assert_non_null(strstr(answer, "\r\nCache-Control: no-cache\r\n"));
    close(fd);
}

static void a_header_that_could_break_the_answer_is_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "x"},
        {"A b", "x"},
        {"A:", "x"},
        {"A\r\nB", "x"},
        {"A", ""},
        {"A", "x\r\nSet-Cookie: y"},
        {"A", "x\ny"},
        {"A", "\x7f"},
        {"Content-Length", "5"},
        {"connection", "x"},
        {"content-type", "x"},
        {"Transfer-Encoding", "chunked"},
    };
    static char large[AS_HTTP_HEADER_BYTES_MAX + 1];
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/later"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(as_http_request_add_header(held[0], bad[i][0], bad[i][1]), AS_ERR_INVALID);
    }
    memset(large, 'x', sizeof(large) - 1);
    assert_int_equal(as_http_request_add_header(held[0], "A", large), AS_ERR_LIMIT);
    as_mem_fail_nth(1);
    assert_int_equal(as_http_request_add_header(held[0], "A", "x"), AS_ERR_NO_MEMORY);
    as_mem_fail_nth(0);
    for (uint32_t i = 0; i < AS_HTTP_HEADERS_MAX; i++) {
        assert_int_equal(as_http_request_add_header(held[0], "X-Many", "x"), AS_OK);
    }
    assert_int_equal(as_http_request_add_header(held[0], "X-Many", "x"), AS_ERR_LIMIT);
    reply_text(held[0], 200, "whole");
    forget(held[0]);
    await_text(fd, "\r\n\r\nwhole");
    close(fd);
}

// ---- Refusals

static void await_refusal(int fd, const char *status, const char *body)
{
    await_end(fd);
    assert_int_equal(strncmp(answer, status, strlen(status)), 0);
    assert_non_null(strstr(answer, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(answer, body));
}

static void a_refusal_has_the_form_that_the_handlers_give_it(void **state)
{
    (void)state;
    static char piece[1 << 16];
    static const char early[] = "POST /now HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                                "Content-Length: 8388609\r\n\r\n";
    int fd = connect_client();
    clear_answer();
    send_text(fd, early);
    await_refusal(fd, "HTTP/1.1 413 ", "{\"code\":413,\"text\":\"request body is larger than");
    close(fd);
    fd = connect_client();
    clear_answer();
    send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                  "Content-Length: 8454144\r\n\r\n");
    for (int i = 0; i < 129; i++) {
        send_bytes(fd, piece, sizeof(piece));
    }
    await_refusal(fd, "HTTP/1.1 413 ", "{\"code\":413,\"text\":\"request body is larger than");
    close(fd);
}

// ---- The time a request may take

// Sends one byte at each turn that brings time, until the answer begins. Returns how long it took.
static uint64_t drip(int fd, const char *bytes, size_t count)
{
    uint64_t begun = as_loop_now_us(loop), next = 0, deadline = deadline_us();
    for (size_t sent = 0; answer_bytes == 0 && receive_some(fd);) {
        if (as_loop_now_us(loop) >= next) {
            next = as_loop_now_us(loop) + 50000;
            send_bytes(fd, bytes + sent++ % count, 1);
        }
        turn(fd, POLLIN, deadline);
    }
    return as_loop_now_us(loop) - begun;
}

static void assert_cut(int fd, uint64_t took_us)
{
    await_refusal(fd, "HTTP/1.1 408 Request Timeout\r\n",
                  "{\"code\":408,\"text\":\"request was not complete within 2 seconds");
    assert_non_null(strstr(answer, "\r\nConnection: close\r\n"));
    assert_true(took_us >= RECEIVE_SECONDS * 1000000 - 100000);
    assert_int_equal(requests_seen, 0);
}

static void a_header_that_drips_is_cut(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "GET /now HTTP/1.1\r\nHost: x\r\nX-Long: ");
    assert_cut(fd, drip(fd, "a", 1));
    close(fd);
}

static void a_body_that_drips_is_cut(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    assert_cut(fd, drip(fd, "b", 1));
    close(fd);
}

static void a_chunked_body_that_drips_is_cut_on_a_kept_connection(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, GET("/now"));
    await_text(fd, "at once");
    requests_seen = 0;
    clear_answer();
    send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_cut(fd, drip(fd, "1\r\nx\r\n", 6));
    close(fd);
}

// Work and answers may take as long as they take, and a new request has its time from its own
// beginning.
static void what_is_being_answered_is_not_cut(void **state)
{
    (void)state;
    int waiting = connect_client(), streaming = connect_client(), slow = connect_client();
    request_and_hold(waiting, GET("/later"));
    request_and_hold(streaming, GET("/stream"));
    as_http_request_t *later = held[0], *stream = held[1];
    assert_int_equal(as_http_stream_begin(stream, 200, "text/plain"), AS_OK);
    clear_answer();
    send_text(slow, "GET /now HTTP/1.1\r\nHost: x\r\n");
    drip(slow, "X", 1); // as a clock: it is cut, the others are not
    assert_int_equal(strncmp(answer, "HTTP/1.1 408 ", 13), 0);
    for (uint64_t end = as_loop_now_us(loop) + 500000; as_loop_now_us(loop) < end;) {
        turn(-1, 0, deadline_us());
    }
    assert_int_equal(aborts_seen, 0);
    assert_int_equal(as_http_stream_write(stream, "streamed", 8), AS_OK);
    as_http_stream_end(stream);
    reply_text(later, 200, "waited");
    held_count = 0;
    clear_answer();
    await_text(streaming, "streamed\r\n0\r\n\r\n");
    clear_answer();
    await_text(waiting, "waited");
    clear_answer();
    send_text(waiting, GET("/now"));
    await_text(waiting, "at once");
    close(waiting);
    close(streaming);
    close(slow);
}

// Neither the timer nor the list outlives the server.
static void a_server_may_end_while_requests_arrive(void **state)
{
    (void)state;
    int first = connect_client(), second = connect_client();
    send_text(first, "GET /n");
    send_text(second, "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        turn(-1, 0, deadline_us());
    }
    as_http_free(http);
    http = NULL;
    clear_answer();
    await_end(first);
    await_end(second);
    assert_int_equal(answer_bytes, 0);
    close(first);
    close(second);
}

// Without memory for its time a connection is not served, and the next one is.
static void a_connection_without_memory_is_closed(void **state)
{
    (void)state;
    as_mem_fail_nth(1);
    int fd = connect_client();
    clear_answer();
    send_text(fd, GET("/now"));
    await_end(fd);
    as_mem_fail_nth(0);
    assert_int_equal(answer_bytes, 0);
    close(fd);
    fd = connect_client();
    send_text(fd, GET("/now"));
    await_text(fd, "at once");
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_answer_has_the_headers_that_were_added),
        TEST(a_stream_has_the_headers_that_were_added),
        TEST(a_header_that_could_break_the_answer_is_refused),
        IMPATIENT_TEST(a_refusal_has_the_form_that_the_handlers_give_it),
        IMPATIENT_TEST(a_header_that_drips_is_cut),
        IMPATIENT_TEST(a_body_that_drips_is_cut),
        IMPATIENT_TEST(a_chunked_body_that_drips_is_cut_on_a_kept_connection),
        IMPATIENT_TEST(what_is_being_answered_is_not_cut),
        IMPATIENT_TEST(a_server_may_end_while_requests_arrive),
        TEST(a_connection_without_memory_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
