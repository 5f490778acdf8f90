// SPDX-License-Identifier: Apache-2.0
// Log lines: their form, their levels, and that what they quote cannot forge another line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <regex.h>
#include <stdbool.h>

#include "capture.h"
#include "common/log.h"

static capture_t capture;

static bool matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int result = regexec(&regex, text, 0, NULL, 0);
    regfree(&regex);
    return result == 0;
}

static void a_line_has_time_level_component_and_message(void **state)
{
    (void)state;
    capture_begin(&capture);
    AS_WARN("net", "peer %s lost after us %d", "a:1", 42);
    const char *text = capture_end(&capture);
    assert_true(matches(text, "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                              "warn net: peer a:1 lost after us 42\n$"));
}

static void lines_below_the_level_are_neither_written_nor_counted(void **state)
{
    (void)state;
    unsigned long infos = as_log_count(AS_LOG_INFO), errors = as_log_count(AS_LOG_ERROR);
    as_log_set_level(AS_LOG_ERROR);
    capture_begin(&capture);
    AS_INFO("x", "quiet");
    AS_ERROR("x", "loud");
    const char *text = capture_end(&capture);
    as_log_set_level(AS_LOG_INFO);
    assert_null(strstr(text, "quiet"));
    assert_non_null(strstr(text, "error x: loud"));
    assert_int_equal(as_log_count(AS_LOG_INFO), infos);
    assert_int_equal(as_log_count(AS_LOG_ERROR), errors + 1);
}

static unsigned count(const char *text, const char *what)
{
    unsigned found = 0;
    while ((text = strstr(text, what))) {
        found++;
        text += strlen(what);
    }
    return found;
}

static int64_t clock_ms;

static int64_t injected_ms(void)
{
    return clock_ms;
}

static void say_again(unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        AS_INFO("x", "flood %u", i);
    }
}

static void a_line_that_comes_again_and_again_is_written_now_and_then(void **state)
{
    (void)state;
    unsigned long infos = as_log_count(AS_LOG_INFO);
    as_log_set_clock(injected_ms);
    capture_begin(&capture);
    say_again(1000);
    AS_INFO("x", "another call");
    clock_ms += 10000;
    say_again(1000);
    clock_ms += 499;
    say_again(1);
    clock_ms += 1;
    say_again(1);
    const char *text = capture_end(&capture);
    as_log_set_clock(NULL);
    assert_int_equal(count(text, "flood"), 100 + 20 + 1);
    assert_int_equal(count(text, "another call\n"), 1);
    assert_int_equal(as_log_count(AS_LOG_INFO), infos + 122);
}

static void what_was_left_out_is_counted_in_the_next_line(void **state)
{
    (void)state;
    as_log_set_clock(injected_ms);
    capture_begin(&capture);
    say_again(103);
    clock_ms += 1000;
    say_again(2);
    const char *text = capture_end(&capture);
    as_log_set_clock(NULL);
    assert_int_equal(count(text, "more like it"), 1);
    assert_true(matches(text, "info x: flood 99\n[^\n]* info x: flood 0 \\(and 3 more like it\\)\n"
                              "[^\n]* info x: flood 1\n$"));
}

static void a_long_line_leaves_room_for_how_many_were_left_out(void **state)
{
    (void)state;
    static char word[4096];
    memset(word, 'w', sizeof(word) - 1);
    as_log_set_clock(injected_ms);
    say_again(100);
    capture_begin(&capture);
    for (unsigned i = 0; i < 102; i++) {
        clock_ms += i == 101 ? 500 : 0;
        AS_INFO("x", "%s", i < 101 ? "" : word);
    }
    const char *text = capture_end(&capture);
    as_log_set_clock(NULL);
    assert_true(matches(text, "www\\.\\.\\. \\(and 1 more like it\\)\n$"));
}

static void what_is_told_once_in_a_while_says_how_often_it_was_not(void **state)
{
    (void)state;
    as_log_due_t due = {0};
    uint64_t untold = 99;
    assert_true(as_log_is_due(&due, 0, 1000, &untold)); // at the very beginning of a clock, too
    assert_int_equal(untold, 0);
    for (uint64_t now_us = 1; now_us < 8; now_us++) {
        assert_false(as_log_is_due(&due, now_us, 1000, &untold));
    }
    assert_true(as_log_is_due(&due, 1001, 1000, &untold));
    assert_int_equal(untold, 7);
    assert_false(as_log_is_due(&due, 2000, 1000, NULL));
    assert_true(as_log_is_due(&due, 2001, 1000, NULL));
}

static void debug_is_off_by_default(void **state)
{
    (void)state;
    capture_begin(&capture);
    AS_DEBUG("x", "hidden");
    assert_string_equal(capture_end(&capture), "");
}

static void a_quoted_newline_cannot_forge_a_line(void **state)
{
    (void)state;
    capture_begin(&capture);
    AS_INFO("http", "path %s", "/a\n2026 error store: gone\x1b[31m\r\x7f");
    const char *text = capture_end(&capture);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    assert_non_null(strstr(text, "/a?2026 error store: gone?[31m??\n"));
}

static void a_long_message_is_cut_and_says_so(void **state)
{
    (void)state;
    char message[10000];
    memset(message, 'm', sizeof(message) - 1);
    message[sizeof(message) - 1] = '\0';
    capture_begin(&capture);
    AS_INFO("x", "%s", message);
    const char *text = capture_end(&capture);
    size_t length = strlen(text);
    assert_in_range(length, 1000, 4096); // one write to a pipe stays whole up to 4096
    assert_string_equal(text + length - 5, "m...\n");
}

static void logging_leaves_errno_alone(void **state)
{
    (void)state;
    capture_begin(&capture);
    errno = ENOSPC;
    AS_INFO("x", "y");
    int error = errno;
    capture_end(&capture);
    assert_int_equal(error, ENOSPC);
}

static void levels_are_parsed_by_name_only(void **state)
{
    (void)state;
    as_log_level_t level = AS_LOG_ERROR;
    assert_int_equal(as_log_parse_level("debug", &level), 1);
    assert_int_equal(level, AS_LOG_DEBUG);
    assert_int_equal(as_log_parse_level("warn", &level), 1);
    assert_int_equal(level, AS_LOG_WARN);
    assert_int_equal(as_log_parse_level("Warn", &level), 0);
    assert_int_equal(as_log_parse_level("", &level), 0);
    assert_int_equal(level, AS_LOG_WARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_component_and_message),
        cmocka_unit_test(lines_below_the_level_are_neither_written_nor_counted),
        cmocka_unit_test(a_line_that_comes_again_and_again_is_written_now_and_then),
        cmocka_unit_test(what_was_left_out_is_counted_in_the_next_line),
        cmocka_unit_test(a_long_line_leaves_room_for_how_many_were_left_out),
        cmocka_unit_test(what_is_told_once_in_a_while_says_how_often_it_was_not),
        cmocka_unit_test(debug_is_off_by_default),
        cmocka_unit_test(a_quoted_newline_cannot_forge_a_line),
        cmocka_unit_test(a_long_message_is_cut_and_says_so),
        cmocka_unit_test(logging_leaves_errno_alone),
        cmocka_unit_test(levels_are_parsed_by_name_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
