// SPDX-License-Identifier: Apache-2.0
// The HTTP server's streams, readers that are slow, and clients that leave.
#include "http_fixture.h"

// ---- Clients that leave

static void a_client_that_leaves_while_we_work_is_noticed_without_an_answer(void **state)
{
    (void)state;
    int fd = connect_client();
    request_and_hold(fd, GET("/work"));
    close(fd);
    await(&aborts_seen, 1);
    assert_int_equal(held_count, 0);
}

static void a_client_that_resets_is_noticed(void **state)
{
    (void)state;
    int fd = connect_client();
    struct linger linger = {.l_onoff = 1};
    request_and_hold(fd, GET("/work"));
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    close(fd);
    await(&aborts_seen, 1);
}

static void a_client_that_leaves_in_mid_body_never_reaches_the_handler(void **state)
{
    (void)state;
    int fd = connect_client();
    send_text(fd, "POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
    turn(fd, POLLIN, deadline_us());
    close(fd);
    for (int i = 0; i < 20; i++) {
        turn(-1, 0, deadline_us());
    }
    assert_int_equal(requests_seen, 0);
    assert_int_equal(aborts_seen, 0);
}

static void a_client_that_leaves_in_mid_stream_is_aborted_once(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/stream"));
    assert_int_equal(as_http_stream_begin(held[0], 200, "text/event-stream"), AS_OK);
    assert_int_equal(as_http_stream_write(held[0], "data: 1\n\n", 9), AS_OK);
    await_text(fd, "data: 1\n\n");
    close(fd);
    await(&aborts_seen, 1);
    for (int i = 0; i < 20; i++) {
        turn(-1, 0, deadline_us());
    }
    assert_int_equal(aborts_seen, 1);
}

static void a_client_that_leaves_while_much_waits_is_aborted_once(void **state)
{
    (void)state;
    static char piece[1 << 16];
    int fd = connect_client();
    request_and_hold(fd, GET("/stream"));
    assert_int_equal(as_http_stream_begin(held[0], 200, "text/plain"), AS_OK);
    uint64_t deadline = deadline_us();
    while (as_http_stream_write(held[0], piece, sizeof(piece)) == AS_OK) {
        as_loop_run_once(loop, false);
        assert_true(as_loop_now_us(loop) < deadline);
    }
    close(fd);
    await(&aborts_seen, 1);
}

static void an_answered_request_is_not_aborted(void **state)
{
    (void)state;
    int fd = connect_client();
    request_and_hold(fd, GET("/work"));
    as_http_request_t *request = held[0];
    held_count = 0;
    reply_text(request, 200, "x");
    close(fd);
    for (int i = 0; i < 20; i++) {
        turn(-1, 0, deadline_us());
    }
    assert_int_equal(aborts_seen, 0);
}

// ---- Streams

static void a_stream_arrives_piece_by_piece(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, "GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    as_http_request_t *request = held[0];
    assert_int_equal(as_http_stream_begin(request, 200, "text/event-stream"), AS_OK);
    await_text(fd, "Content-Type: text/event-stream\r\n");
    for (int i = 0; i < 20; i++) {
        char piece[32];
        snprintf(piece, sizeof(piece), "data: %d\n\n", i);
        assert_int_equal(as_http_stream_write(request, piece, strlen(piece)), AS_OK);
        await_text(fd, piece); // before anything else is written: not held back
    }
    held_count = 0;
    as_http_stream_end(request);
    await_end(fd);
    assert_non_null(strstr(answer, "Transfer-Encoding: chunked\r\n"));
    assert_string_equal(answer + answer_bytes - 5, "0\r\n\r\n");
    close(fd);
}

static void a_stream_may_be_written_and_ended_within_the_handlers_turn(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/stream"));
    as_http_request_t *request = held[0];
    held_count = 0;
    assert_int_equal(as_http_stream_begin(request, 200, "text/plain"), AS_OK);
    assert_int_equal(as_http_stream_write(request, "all", 3), AS_OK);
    as_http_stream_end(request);
    await_text(fd, "0\r\n\r\n");
    assert_non_null(strstr(answer, "3\r\nall\r\n"));
    clear_answer();
    send_text(fd, GET("/now")); // and the connection is kept
    await_text(fd, "at once");
    close(fd);
}

static void an_empty_stream_ends(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/stream"));
    as_http_request_t *request = held[0];
    held_count = 0;
    assert_int_equal(as_http_stream_begin(request, 200, "text/plain"), AS_OK);
    as_http_stream_end(request);
    await_text(fd, "\r\n\r\n0\r\n\r\n");
    close(fd);
}

static void a_stream_to_an_old_client_ends_with_the_connection(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, "GET /stream HTTP/1.0\r\n\r\n");
    as_http_request_t *request = held[0];
    held_count = 0;
    assert_int_equal(as_http_stream_begin(request, 200, "text/plain"), AS_OK);
    assert_int_equal(as_http_stream_write(request, "plain", 5), AS_OK);
    as_http_stream_end(request);
    await_end(fd);
    assert_string_equal(answer + answer_bytes - 9, "\r\n\r\nplain");
    close(fd);
}

static void a_stream_to_a_head_request_ends_with_an_abort(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, "HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(as_http_stream_begin(held[0], 200, "text/plain"), AS_OK);
    await_text(fd, "\r\n\r\n");
    await(&aborts_seen, 1);
    close(fd);
}

// Removes the chunk heads and adds up what is left.
static size_t chunked_bytes(const char *at)
{
    size_t total = 0;
    for (;;) {
        char *end;
        size_t bytes = strtoul(at, &end, 16);
        assert_memory_equal(end, "\r\n", 2);
        if (bytes == 0) {
            return total;
        }
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(end[2 + i], (char)('a' + (total + i) % 25));
        }
        total += bytes;
        at = end + 2 + bytes + 2;
    }
}

static void a_slow_reader_makes_the_writer_wait_and_loses_nothing(void **state)
{
    (void)state;
    static char piece[50000];
    int fd = connect_client();
    size_t written = 0;
    clear_answer();
    request_and_hold(fd, "GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    as_http_request_t *request = held[0];
    assert_int_equal(as_http_stream_begin(request, 200, "text/plain"), AS_OK);
    as_status_t status = AS_OK;
    for (int calm = 0; calm < 50;) { // until nothing moves for 50 turns
        for (size_t i = 0; i < sizeof(piece); i++) {
            piece[i] = (char)('a' + (written + i) % 25);
        }
        status = as_http_stream_write(request, piece, written < 28000000 ? sizeof(piece) : 0);
        written += status == AS_OK && written < 28000000 ? sizeof(piece) : 0;
        calm = status == AS_ERR_BUSY ? calm + 1 : 0;
        as_loop_run_once(loop, false);
        assert_true(written < 28000000); // the limit must come first
    }
    assert_int_equal(status, AS_ERR_BUSY);
    assert_int_equal(aborts_seen, 0);
    held_count = 0;
    as_http_stream_end(request);
    await_end(fd);
    assert_int_equal(chunked_bytes(strstr(answer, "\r\n\r\n") + 4), written);
    close(fd);
}

static void a_write_larger_than_the_buffer_is_refused(void **state)
{
    (void)state;
    char *large = calloc(1, (1 << 20) + 1);
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/stream"));
    as_http_request_t *request = held[0];
    held_count = 0;
    assert_int_equal(as_http_stream_begin(request, 200, "text/plain"), AS_OK);
    assert_int_equal(as_http_stream_write(request, large, (1 << 20) + 1), AS_ERR_LIMIT);
    assert_int_equal(as_http_stream_write(request, large, 1 << 20), AS_OK);
    as_http_stream_end(request);
    await_text(fd, "\r\n\r\n");
    close(fd);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_client_that_leaves_while_we_work_is_noticed_without_an_answer),
        TEST(a_client_that_resets_is_noticed),
        TEST(a_client_that_leaves_in_mid_body_never_reaches_the_handler),
        TEST(a_client_that_leaves_in_mid_stream_is_aborted_once),
        TEST(a_client_that_leaves_while_much_waits_is_aborted_once),
        TEST(an_answered_request_is_not_aborted),
        TEST(a_stream_arrives_piece_by_piece),
        TEST(a_stream_may_be_written_and_ended_within_the_handlers_turn),
        TEST(an_empty_stream_ends),
        TEST(a_stream_to_an_old_client_ends_with_the_connection),
        TEST(a_stream_to_a_head_request_ends_with_an_abort),
        TEST(a_slow_reader_makes_the_writer_wait_and_loses_nothing),
        TEST(a_write_larger_than_the_buffer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
