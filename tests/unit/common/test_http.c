// SPDX-License-Identifier: Apache-2.0
// The HTTP server: whole answers, refusals, its life, and the metrics port.
#include "http_fixture.h"

// ---- Whole answers

static void a_get_is_answered(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "GET /now?a=b&c HTTP/1.1\r\nHost: x\r\nx-test: value\r\n\r\n");
    await_text(fd, "\r\n\r\nat once");
    assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
    assert_non_null(strstr(answer, "Content-Type: text/plain\r\n"));
    assert_non_null(strstr(answer, "Content-Length: 7\r\n"));
    assert_string_equal(last_method, "GET");
    assert_string_equal(last_path, "/now");
    assert_string_equal(last_header, "value");
    assert_int_equal(last_body_bytes, 0);
    close(fd);
}

static void a_body_arrives_whole_and_terminated(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n{\"a\"");
    turn(fd, POLLIN, deadline_us());
    assert_int_equal(requests_seen, 0);
    send_bytes(fd, ": \0\"b\"}", 7);
    await_text(fd, "at once");
    assert_int_equal(last_body_bytes, 11);
    assert_memory_equal(last_body, "{\"a\": \0\"b\"}", 12);
    close(fd);
}

static void a_body_may_be_taken_and_outlives_its_request(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    await_text(fd, "taken");
    assert_non_null(taken_body);
    assert_string_equal(taken_body, "hello");
    as_mem_free(taken_body);
    clear_answer();
    send_text(fd, GET("/take"));
    await_text(fd, "taken");
    assert_null(taken_body);
    close(fd);
}

static void a_chunked_body_arrives_whole(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd,
              "POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    send_text(fd, "4\r\ndefg\r\n0\r\n\r\n");
    await_text(fd, "at once");
    assert_string_equal(last_body, "abcdefg");
    close(fd);
}

static void an_answer_may_come_later(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, GET("/later"));
    for (int i = 0; i < 20; i++) {
        turn(fd, POLLIN, deadline_us());
    }
    assert_true(receive_some(fd));
    assert_int_equal(answer_bytes, 0);
    as_http_request_set_user(held[0], &loop);
    assert_ptr_equal(as_http_request_user(held[0]), &loop);
    as_http_request_t *request = held[0];
    forget(request);
    reply_text(request, 429, "try later");
    await_text(fd, "try later");
    assert_int_equal(strncmp(answer, "HTTP/1.1 429 ", 13), 0);
    close(fd);
}

static void answers_go_to_their_own_clients_in_any_order(void **state)
{
    (void)state;
    int first = connect_client(), second = connect_client();
    request_and_hold(first, GET("/1"));
    as_http_request_t *request_1 = held[0];
    request_and_hold(second, GET("/2"));
    as_http_request_t *request_2 = held[1];
    held_count = 0;
    reply_text(request_2, 200, "two");
    reply_text(request_1, 200, "one");
    clear_answer();
    await_text(first, "\r\n\r\none");
    clear_answer();
    await_text(second, "\r\n\r\ntwo");
    close(first);
    close(second);
}

static void a_connection_is_kept_for_the_next_request(void **state)
{
    (void)state;
    int fd = connect_client();
    for (int i = 1; i <= 5; i++) {
        clear_answer();
        request_and_hold(fd, GET("/again"));
        as_http_request_t *request = held[0];
        held_count = 0;
        reply_text(request, 200, "kept");
        await_text(fd, "kept");
        assert_int_equal(requests_seen, i);
    }
    clear_answer();
    send_text(fd, GET("/now") GET("/now")); // pipelined
    await_text(fd, "at once");
    await(&requests_seen, 7);
    close(fd);
}

static void head_gets_headers_only(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "HEAD /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    await_end(fd);
    assert_non_null(strstr(answer, "Content-Length: 7\r\n"));
    assert_null(strstr(answer, "at once"));
    close(fd);
}

static void a_large_answer_arrives_whole(void **state)
{
    (void)state;
    const size_t bytes = 3 << 20;
    char *body = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        body[i] = (char)('a' + i % 23);
    }
    int fd = connect_client();
    clear_answer();
    request_and_hold(fd, "GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    as_http_request_t *request = held[0];
    held_count = 0;
    as_http_reply(request, 200, "application/octet-stream", body, bytes);
    memset(body, 0, bytes); // copied
    await_end(fd);
    const char *at = strstr(answer, "\r\n\r\n") + 4;
    assert_int_equal(answer_bytes - (size_t)(at - answer), bytes);
    for (size_t i = 0; i < bytes; i += 997) {
        assert_int_equal(at[i], 'a' + i % 23);
    }
    free(body);
    close(fd);
}

// ---- Refusals

static void post_zeros(int fd, size_t bytes, const char *header)
{
    static char zeros[65536];
    char head[256];
    snprintf(head, sizeof(head), "POST /now HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n",
             header, bytes);
    send_text(fd, head);
    for (size_t sent = 0; sent < bytes; sent += sizeof(zeros)) {
        size_t left = bytes - sent;
        send_bytes(fd, zeros, left < sizeof(zeros) ? left : sizeof(zeros));
    }
}

static void a_body_at_the_limit_is_taken(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    post_zeros(fd, AS_HTTP_BODY_BYTES_MAX, "");
    await_text(fd, "at once");
    assert_int_equal(last_body_bytes, AS_HTTP_BODY_BYTES_MAX);
    close(fd);
}

static void a_body_over_the_limit_is_refused_and_the_next_request_works(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    post_zeros(fd, AS_HTTP_BODY_BYTES_MAX + 1, "");
    await_text(fd, "request body is larger than 8388608 bytes");
    assert_int_equal(strncmp(answer, "HTTP/1.1 413 ", 13), 0);
    assert_int_equal(requests_seen, 0);
    clear_answer();
    send_text(fd, GET("/now"));
    await_text(fd, "at once");
    close(fd);
}

static void a_chunked_body_over_the_limit_is_refused(void **state)
{
    (void)state;
    static char chunk[1 << 16];
    int fd = connect_client();
    clear_answer();
    memset(chunk, 'x', sizeof(chunk));
    send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t sent = 0; sent <= AS_HTTP_BODY_BYTES_MAX; sent += sizeof(chunk)) {
        send_text(fd, "10000\r\n");
        send_bytes(fd, chunk, sizeof(chunk));
        send_text(fd, "\r\n");
    }
    send_text(fd, "0\r\n\r\n");
    await_text(fd, "HTTP/1.1 413 ");
    assert_int_equal(requests_seen, 0);
    close(fd);
}

static void a_client_that_asks_first_is_refused_before_it_sends(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(
        fd,
        "POST /now HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 8388609\r\n\r\n");
    await_end(fd);
    assert_int_equal(strncmp(answer, "HTTP/1.1 413 ", 13), 0);
    close(fd);
}

static void a_body_without_any_measure_is_refused_at_once(void **state)
{
    (void)state;
    int fd = connect_client();
    clear_answer();
    send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nx");
    await_end(fd);
    assert_int_equal(strncmp(answer, "HTTP/1.1 413 ", 13), 0);
    close(fd);
}

// What one server on the way takes for the body and another for the next request.
static void a_request_with_two_measures_is_refused_with_its_connection(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 50\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "transfer-encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    };
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        int fd = connect_client();
        clear_answer();
        uint32_t before = requests_seen;
        send_text(fd, "POST /now HTTP/1.1\r\nHost: x\r\n");
        send_text(fd, headers[i]);
        send_text(fd, "\r\n0\r\n\r\nGET /now HTTP/1.1\r\nHost: x\r\n\r\n");
        await_end(fd);
        assert_int_equal(strncmp(answer, "HTTP/1.1 400 ", 13), 0);
        assert_null(strstr(answer, "at once")); // the second was not served
        assert_int_equal(requests_seen, before);
        close(fd);
    }
}

static void malformed_requests_get_an_error_or_the_end_and_the_server_goes_on(void **state)
{
    (void)state;
    static char long_line[200000];
    memset(long_line, 'a', sizeof(long_line) - 1);
    memcpy(long_line, "GET /", 5);
    static const char *const bad[] = {
        "nonsense\r\n\r\n",
        "GET\r\n\r\n",
        "GET /now HTTP/1.1\r\n\r\n", // no host
        "GET /now HTTP/9.9\r\nHost: x\r\n\r\n",
        "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        "POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "\x16\x03\x01\x02\r\n\r\n", // TLS to a plain port
        long_line,
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int fd = connect_client();
        clear_answer();
        send_text(fd, bad[i]);
        shutdown(fd, SHUT_WR); // what still waits for more gets the end
        await_end(fd);
        bool error =
            strncmp(answer, "HTTP/1.1 4", 10) == 0 || strncmp(answer, "HTTP/1.1 5", 10) == 0;
        if (answer_bytes > 0 && !error && strncmp(answer, "HTTP/1.0 4", 10) != 0) {
            fail_msg("request %zu was answered: %s", i, answer);
        }
        close(fd);
    }
    assert_int_equal(requests_seen, 0);
    int fd = connect_client();
    clear_answer();
    send_text(fd, GET("/now"));
    await_text(fd, "at once");
    close(fd);
}

static void connections_over_the_limit_wait_until_one_ends(void **state)
{
    (void)state;
    as_http_free(http);
    as_loop_free(loop);
    start(2);
    int first = connect_client(), second = connect_client();
    request_and_hold(first, GET("/1"));
    request_and_hold(second, GET("/2"));
    int third = connect_client(); // in the backlog
    send_text(third, GET("/now"));
    for (int i = 0; i < 30; i++) {
        turn(-1, 0, deadline_us());
    }
    assert_int_equal(requests_seen, 2);
    close(first);
    await(&aborts_seen, 1);
    clear_answer();
    await_text(third, "at once");
    close(second);
    close(third);
    await(&aborts_seen, 2);
}

// ---- Life

static void freeing_the_server_aborts_what_is_open(void **state)
{
    (void)state;
    int waiting = connect_client(), streaming = connect_client(), idle = connect_client();
    request_and_hold(waiting, GET("/1"));
    request_and_hold(streaming, GET("/2"));
    assert_int_equal(as_http_stream_begin(held[1], 200, "text/plain"), AS_OK);
    assert_int_equal(as_http_stream_write(held[1], "x", 1), AS_OK);
    send_text(idle, "POST /3 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
    turn(idle, POLLIN, deadline_us());
    as_http_free(http);
    http = NULL;
    assert_int_equal(aborts_seen, 2);
    assert_int_equal(held_count, 0);
    clear_answer();
    await_end(waiting);
    await_end(idle);
    close(waiting);
    close(streaming);
    close(idle);
}

static void the_server_may_be_freed_by_its_handler(void **state)
{
    (void)state;
    int other = connect_client(), fd = connect_client();
    request_and_hold(other, GET("/wait"));
    send_text(fd, GET("/free"));
    uint64_t deadline = deadline_us();
    while (http) {
        turn(-1, 0, deadline);
    }
    assert_int_equal(aborts_seen, 2);
    clear_answer();
    await_end(fd);
    close(other);
    close(fd);
}

static void an_address_that_cannot_be_used_is_refused(void **state)
{
    (void)state;
    as_http_options_t options = server_options(as_http_address(http), 4);
    as_http_t *second = NULL;
    assert_int_equal(as_http_alloc(loop, &options, &second), AS_ERR_IO); // taken
    assert_int_equal(as_http_check_address(options.address), AS_ERR_IO);
    assert_int_equal(as_http_check_address("127.0.0.1:0"), AS_OK);
    static const char *const bad[] = {
        "", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80"};
    unsigned long errors = as_log_count(AS_LOG_ERROR);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        options.address = bad[i];
        assert_int_equal(as_http_alloc(loop, &options, &second), AS_ERR_INVALID);
        assert_int_equal(as_http_check_address(bad[i]), AS_ERR_INVALID);
    }
    assert_int_equal(as_log_count(AS_LOG_ERROR), errors + 2 * sizeof(bad) / sizeof(bad[0]));
    assert_null(second);
    as_loop_t *sim;
    assert_int_equal(as_loop_alloc_sim(&sim), AS_OK);
    options.address = "127.0.0.1:0";
    assert_int_equal(as_http_alloc(sim, &options, &second), AS_ERR_UNSUPPORTED);
    as_loop_free(sim);
}

static void the_failure_of_each_allocation_of_a_start_is_survived(void **state)
{
    (void)state;
    uint64_t n = 0;
    as_status_t status = AS_ERR_NO_MEMORY;
    as_http_t *second;
    while (status != AS_OK) {
        as_mem_fail_nth(++n);
        status = as_http_alloc_metrics(loop, "127.0.0.1:0", NULL, NULL, &second);
        assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
        assert_true(n < 100);
    }
    as_mem_fail_nth(0);
    assert_true(n > 2);
    as_http_free(second);
}

// Each failure may cost its own request, never the server.
static void the_failure_of_each_allocation_of_a_request_is_survived(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 6; n++) {
        int fd = connect_client();
        clear_answer();
        as_mem_fail_nth(n);
        send_text(
            fd,
            "POST /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc");
        await_end(fd);
        as_mem_fail_nth(0);
        assert_true(answer_bytes == 0 || strncmp(answer, "HTTP/1.1 503 ", 13) == 0 ||
                    strstr(answer, "at once"));
        close(fd);
    }
    assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0); // more than a request allocates
}

// ---- The metrics port

static bool is_ready(void *ctx)
{
    return *(bool *)ctx;
}

static void ask_metrics(as_http_t *metrics, const char *text)
{
    int fd = connect_to(as_http_address(metrics));
    clear_answer();
    send_text(fd, text);
    await_end(fd);
    close(fd);
}

#define GET_CLOSE(path) "GET " path " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

static void set_to_nine(void *ctx)
{
    as_metric_set(ctx, 9);
}

static void the_metrics_port_answers_scrapers_and_probes(void **state)
{
    (void)state;
    static as_metric_t metric = {
        .name = "assay_test_asked_total", .help = "asked", .type = AS_METRIC_COUNTER};
    bool ready = false;
    as_http_t *metrics;
    as_metric_register(&metric, 1);
    as_metric_add(&metric, 3);
    assert_int_equal(as_http_alloc_metrics(loop, "127.0.0.1:0", is_ready, &ready, &metrics), AS_OK);
    ask_metrics(metrics, GET_CLOSE("/metrics"));
    assert_non_null(strstr(answer, "Content-Type: text/plain; version=0.0.4"));
    assert_non_null(
        strstr(answer, "# TYPE assay_test_asked_total counter\nassay_test_asked_total 3\n"));
    as_http_metrics_refresh_by(metrics, set_to_nine, &metric);
    ask_metrics(metrics, GET_CLOSE("/metrics"));
    assert_non_null(strstr(answer, "\nassay_test_asked_total 9\n"));
    ask_metrics(metrics, GET_CLOSE("/livez"));
    assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
    ask_metrics(metrics, GET_CLOSE("/readyz"));
    assert_int_equal(strncmp(answer, "HTTP/1.1 503 ", 13), 0);
    ready = true;
    ask_metrics(metrics, GET_CLOSE("/readyz"));
    assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
    ask_metrics(metrics, GET_CLOSE("/other"));
    assert_int_equal(strncmp(answer, "HTTP/1.1 404 ", 13), 0);
    ask_metrics(metrics, GET_CLOSE("/metrics%00x")); // an escaped end of text ends no path
    assert_int_equal(strncmp(answer, "HTTP/1.1 404 ", 13), 0);
    ask_metrics(metrics, GET_CLOSE("/%6detrics"));
    assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
    ask_metrics(metrics, "DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(strncmp(answer, "HTTP/1.1 405 ", 13), 0);
    assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
    as_http_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_get_is_answered),
        TEST(a_body_arrives_whole_and_terminated),
        TEST(a_body_may_be_taken_and_outlives_its_request),
        TEST(a_chunked_body_arrives_whole),
        TEST(an_answer_may_come_later),
        TEST(answers_go_to_their_own_clients_in_any_order),
        TEST(a_connection_is_kept_for_the_next_request),
        TEST(head_gets_headers_only),
        TEST(a_large_answer_arrives_whole),
        TEST(a_body_at_the_limit_is_taken),
        TEST(a_body_over_the_limit_is_refused_and_the_next_request_works),
        TEST(a_chunked_body_over_the_limit_is_refused),
        TEST(a_client_that_asks_first_is_refused_before_it_sends),
        TEST(a_body_without_any_measure_is_refused_at_once),
        TEST(a_request_with_two_measures_is_refused_with_its_connection),
        TEST(malformed_requests_get_an_error_or_the_end_and_the_server_goes_on),
        TEST(connections_over_the_limit_wait_until_one_ends),
        TEST(freeing_the_server_aborts_what_is_open),
        TEST(the_server_may_be_freed_by_its_handler),
        TEST(an_address_that_cannot_be_used_is_refused),
        TEST(the_failure_of_each_allocation_of_a_start_is_survived),
        TEST(the_failure_of_each_allocation_of_a_request_is_survived),
        TEST(the_metrics_port_answers_scrapers_and_probes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
