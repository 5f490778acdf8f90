// SPDX-License-Identifier: Apache-2.0
// Log lines: their form, their levels, and that what they quote cannot forge another line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <regex.h>
#include <stdbool.h>
#include <time.h>

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

static void a_line_that_comes_again_and_again_is_written_now_and_then(void **state)
{
    (void)state;
    unsigned long infos = as_log_count(AS_LOG_INFO);
    capture_begin(&capture);
    for (unsigned i = 0; i < 1000; i++) {
        AS_INFO("x", "flood %u", i);
    }
    AS_INFO("x", "another call");
    const char *text = capture_end(&capture);
    assert_in_range(count(text, "flood"), 200, 260); // more where this took seconds
    assert_int_equal(count(text, "another call\n"), 1);
    assert_int_equal(as_log_count(AS_LOG_INFO), infos + 1001);
}

static void what_was_left_out_is_counted_in_the_next_line(void **state)
{
    (void)state;
    const struct timespec pause = {0, 1000000};
    const char *text = "";
    capture_begin(&capture);
    for (unsigned i = 0; i < 300; i++) {
        AS_WARN("x", "again");
    }
    for (unsigned i = 0; i < 1200; i++) { // until there is room for one more
        nanosleep(&pause, NULL);
        if (i % 100 == 99) {
            AS_WARN("x", "again");
        }
    }
    text = capture_end(&capture);
    assert_true(matches(text, "warn x: again \\(and [1-9][0-9]* more like it\\)\n"));
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
        cmocka_unit_test(debug_is_off_by_default),
        cmocka_unit_test(a_quoted_newline_cannot_forge_a_line),
        cmocka_unit_test(a_long_message_is_cut_and_says_so),
        cmocka_unit_test(logging_leaves_errno_alone),
        cmocka_unit_test(levels_are_parsed_by_name_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
