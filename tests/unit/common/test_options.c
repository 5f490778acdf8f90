// SPDX-License-Identifier: Apache-2.0
// Options: the sources and their order, strict values, and messages that say what is wrong and what
// would be right.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "capture.h"
#include "common/mem.h"
#include "common/options.h"

static capture_t capture;

static bool verbose;
static int64_t port, pool_bytes, timeout_us;
static double ratio;
static const char *name;
static const char **stores;

static as_option_t table[] = {
    {.name = "verbose",
     .type = AS_OPTION_BOOL,
     .value = &verbose,
     .fallback = "false",
     .help = "say more"},
    {.name = "data-port",
     .type = AS_OPTION_INT,
     .value = &port,
     .fallback = "0",
     .metavar = "PORT",
     .help = "port of the data plane",
     .min = 0,
     .max = 65535},
    {.name = "pool-bytes",
     .type = AS_OPTION_BYTES,
     .value = &pool_bytes,
     .fallback = "64MiB",
     .metavar = "BYTES",
     .help = "memory of the pool",
     .min = 4096,
     .max = 1e15},
    {.name = "fetch-timeout",
     .type = AS_OPTION_DURATION,
     .value = &timeout_us,
     .fallback = "250ms",
     .metavar = "DURATION",
     .help = "when a fetch gives up"},
    {.name = "ratio",
     .type = AS_OPTION_DOUBLE,
     .value = &ratio,
     .fallback = "0.5",
     .metavar = "RATIO",
     .help = "a ratio",
     .min = 0,
     .max = 1},
    {.name = "name",
     .type = AS_OPTION_STRING,
     .value = &name,
     .metavar = "NAME",
     .help = "its name"},
    {.name = "store",
     .type = AS_OPTION_LIST,
     .value = &stores,
     .metavar = "ADDRESS",
     .help = "stores"},
};
enum { NAME = 5 };
static const as_options_t options = {.program = "assay-test",
                                     .summary = "tests options.",
                                     .usage = "[OPTIONS] FILE",
                                     .table = table,
                                     .count = sizeof(table) / sizeof(table[0])};

static char *argv[64];
static int argc, rest;
static as_options_outcome_t outcome;
static const char *printed;

// Splits a line at spaces into argv and parses it.
static as_status_t parse(const char *line)
{
    static char copy[4096];
    snprintf(copy, sizeof(copy), "assay-test %s", line);
    argc = 0;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    argv[argc] = NULL;
    rest = -1;
    capture_begin(&capture);
    as_status_t status = as_options_parse(&options, argc, argv, &rest, &outcome);
    printed = capture_end(&capture);
    return status;
}

static const char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/assay-options-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static as_status_t parse_with_file(const char *text, const char *line)
{
    char whole[4096];
    const char *path = write_file(text);
    snprintf(whole, sizeof(whole), "--config=%s %s", path, line);
    as_status_t status = parse(whole);
    unlink(path);
    return status;
}

static int reset(void **state)
{
    (void)state;
    verbose = false;
    port = pool_bytes = timeout_us = -1;
    ratio = -1;
    name = NULL;
    stores = NULL;
    table[NAME].required = false;
    static const char *const variables[] = {"VERBOSE", "DATA_PORT", "POOL_BYTES", "RATIO",
                                            "NAME",    "STORE",     "CONFIG"};
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        char variable[64];
        snprintf(variable, sizeof(variable), "ASSAY_%s", variables[i]);
        unsetenv(variable);
    }
    return 0;
}

static void defaults_hold_where_nothing_is_said(void **state)
{
    (void)state;
    assert_int_equal(parse(""), AS_OK);
    assert_int_equal(outcome, AS_OPTIONS_RUN);
    assert_false(verbose);
    assert_int_equal(port, 0);
    assert_int_equal(pool_bytes, 64 << 20);
    assert_int_equal(timeout_us, 250000);
    assert_true(ratio == 0.5);
    assert_null(name); // no default: left alone
    assert_int_equal(rest, 1);
    assert_string_equal(printed, "");
}

static void flags_take_values_after_a_space_or_an_equals_sign(void **state)
{
    (void)state;
    assert_int_equal(parse("--data-port 7 --pool-bytes=2GiB --fetch-timeout 10s --verbose "
                           "--ratio=0.25 --name n=1"),
                     AS_OK);
    assert_int_equal(port, 7);
    assert_int_equal(pool_bytes, 2ll << 30);
    assert_int_equal(timeout_us, 10000000);
    assert_true(verbose);
    assert_true(ratio == 0.25);
    assert_string_equal(name, "n=1");
    assert_int_equal(parse("--verbose=false --name="), AS_OK);
    assert_false(verbose);
    assert_string_equal(name, "");
}

static void a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(void **state)
{
    (void)state;
    static const char file[] =
        "{\"data-port\": 1, \"ratio\": 0.125, \"name\": \"file\", \"pool-bytes\": \"1MiB\"}";
    setenv("ASSAY_DATA_PORT", "2", 1);
    setenv("ASSAY_NAME", "environment", 1);
    assert_int_equal(parse_with_file(file, "--data-port=3"), AS_OK);
    assert_int_equal(port, 3);
    assert_string_equal(name, "environment");
    assert_true(ratio == 0.125);
    assert_int_equal(pool_bytes, 1 << 20);
    assert_int_equal(timeout_us, 250000);
}

static void the_config_file_may_be_named_in_the_environment(void **state)
{
    (void)state;
    const char *path = write_file("{\"data-port\": 9}");
    setenv("ASSAY_CONFIG", path, 1);
    assert_int_equal(parse(""), AS_OK);
    assert_int_equal(port, 9);
    unlink(path);
}

static void a_program_that_starts_others_clears_what_was_meant_for_it(void **state)
{
    (void)state;
    const char *path = write_file("{\"data-port\": 9}");
    setenv("ASSAY_CONFIG", path, 1);
    setenv("ASSAY_NAME", "mine", 1);
    setenv("ASSAY_OTHER", "theirs", 1);
    assert_int_equal(parse(""), AS_OK);
    as_options_clear_environment(&options);
    assert_null(getenv("ASSAY_CONFIG"));
    assert_null(getenv("ASSAY_NAME"));
    assert_string_equal(getenv("ASSAY_OTHER"), "theirs");
    assert_string_equal(name, "mine"); // what was parsed stays
    unsetenv("ASSAY_OTHER");
    unlink(path);
}

static void an_empty_variable_is_not_set(void **state)
{
    (void)state;
    setenv("ASSAY_DATA_PORT", "", 1);
    assert_int_equal(parse(""), AS_OK);
    assert_int_equal(port, 0);
}

static void lists_add_up_within_a_source_and_replace_across(void **state)
{
    (void)state;
    setenv("ASSAY_STORE", "x:1", 1);
    assert_int_equal(parse("--store a:1,b:2 --store=c:3"), AS_OK);
    assert_string_equal(stores[0], "a:1");
    assert_string_equal(stores[1], "b:2");
    assert_string_equal(stores[2], "c:3");
    assert_null(stores[3]);
    assert_int_equal(parse(""), AS_OK);
    assert_string_equal(stores[0], "x:1");
    assert_null(stores[1]);
    unsetenv("ASSAY_STORE");
    assert_int_equal(parse_with_file("{\"store\": [\"f:1\", \"g:2\"]}", ""), AS_OK);
    assert_string_equal(stores[1], "g:2");
    assert_null(stores[2]);
    assert_int_equal(parse("--store="), AS_OK);
    assert_null(stores[0]);
}

static void positional_arguments_are_left_at_the_end(void **state)
{
    (void)state;
    assert_int_equal(parse("one --data-port 5 two - --verbose -- --three"), AS_OK);
    assert_int_equal(port, 5);
    assert_int_equal(argc - rest, 4);
    assert_string_equal(argv[rest], "one");
    assert_string_equal(argv[rest + 1], "two");
    assert_string_equal(argv[rest + 2], "-");
    assert_string_equal(argv[rest + 3], "--three");
}

static void sizes_are_powers_of_1024(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {{"4096", 4096},         {"4096B", 4096},       {"64KiB", 65536},
                 {"64K", 65536},         {"512M", 512ll << 20}, {"512MiB", 512ll << 20},
                 {"2GiB", 2ll << 30},    {"3G", 3ll << 30},     {"100T", 100ll << 40},
                 {"100TiB", 100ll << 40}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[64];
        snprintf(line, sizeof(line), "--pool-bytes=%s", cases[i].text);
        assert_int_equal(parse(line), AS_OK);
        assert_int_equal(pool_bytes, cases[i].bytes);
    }
}

static void times_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {{"0", 0},          {"1500us", 1500},
                 {"250ms", 250000}, {"10s", 10000000},
                 {"2m", 120000000}, {"1h", 3600000000ll},
                 {"0s", 0},         {"2562047788h", 2562047788ll * 3600000000ll}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[64];
        snprintf(line, sizeof(line), "--fetch-timeout=%s", cases[i].text);
        assert_int_equal(parse(line), AS_OK);
        assert_int_equal(timeout_us, cases[i].us);
    }
}

// The line must be refused, with a message that holds both texts, and nothing else on stdout.
static void assert_refused(const char *line, const char *first, const char *second)
{
    assert_int_equal(parse(line), AS_ERR_INVALID);
    if (!strstr(printed, first) || !strstr(printed, second)) {
        fail_msg("'%s' was answered with: %s", line, printed);
    }
    assert_ptr_equal(strchr(printed, '\n'), printed + strlen(printed) - 1); // one line
    assert_int_equal(rest, -1);
}

static void a_bad_value_is_refused_with_the_accepted_form(void **state)
{
    (void)state;
    static const char *const whole[] = {
        "", "x", "1x", "1.5", "0x10", "+1", "--1", "1,000", "9223372036854775808", "-1", "65536"};
    static const char *const sizes[] = {"",      "x",        "1KB",  "1k",
                                        "1.5G",  "-1K",      "1 K",  "K",
                                        "4KiBx", "8388608T", "4095", "9223372036854775807K"};
    static const char *const times[] = {"",   "1",   "s",    "1sec", "1.5s", "-1ms", "99999999999h",
                                        "1S", "1 s", "1m30s"};
    static const char *const numbers[] = {"",     "x",      "nan",  "inf",   "0x1p-1",
                                          "0.5x", "1.0001", "-0.1", "1e999", "."};
    static const char *const bools[] = {"", "yes", "1", "True"}, *const lists[] = {",", "a,", ",a",
                                                                                   "a,,b"};
    static const struct {
        const char *option, *accepted;
        const char *const *values;
        size_t count;
    } kinds[] = {
        {"data-port", "whole number, from 0 to 65535", whole, sizeof(whole) / sizeof(char *)},
        {"pool-bytes", "a size such as 4096, 64KiB, 512M or 2GiB", sizes,
         sizeof(sizes) / sizeof(char *)},
        {"fetch-timeout", "a time with its unit, such as", times, sizeof(times) / sizeof(char *)},
        {"ratio", "a number, from 0 to 1", numbers, sizeof(numbers) / sizeof(char *)},
        {"verbose", "true or false", bools, 4},
        {"store", "separated by commas", lists, 4}};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (size_t i = 0; i < kinds[k].count; i++) {
            // A space cannot pass through the splitting above, so argv is made by hand.
            char flag[128], quoted[128];
            snprintf(flag, sizeof(flag), "--%s=%s", kinds[k].option, kinds[k].values[i]);
            snprintf(quoted, sizeof(quoted), "--%s: '%s' (flag)", kinds[k].option,
                     kinds[k].values[i]);
            char *arguments[] = {"assay-test", flag, NULL};
            capture_begin(&capture);
            as_status_t status = as_options_parse(&options, 2, arguments, &rest, &outcome);
            printed = capture_end(&capture);
            if (status != AS_ERR_INVALID || !strstr(printed, quoted) ||
                !strstr(printed, kinds[k].accepted)) {
                fail_msg("%s gave status %d and: %s", flag, (int)status, printed);
            }
        }
    }
}

static void a_message_names_the_source(void **state)
{
    (void)state;
    setenv("ASSAY_DATA_PORT", "many", 1);
    assert_refused("", "assay-test: --data-port: 'many' (environment)", "from 0 to 65535");
    unsetenv("ASSAY_DATA_PORT");
    assert_int_equal(parse_with_file("{\n \"name\": \"data-port\",\n \"data-port\": 70000\n}", ""),
                     AS_ERR_INVALID);
    assert_non_null(strstr(printed, "--data-port: '70000' (/tmp/assay-options-"));
    assert_non_null(strstr(printed, " line 3)"));
}

static void a_value_that_is_overridden_is_checked_too(void **state)
{
    (void)state;
    setenv("ASSAY_DATA_PORT", "x", 1);
    assert_refused("--data-port=1", "'x' (environment)", "whole number");
}

static void unknown_flags_are_refused_with_the_nearest_name(void **state)
{
    (void)state;
    assert_refused("--data-prot=1", "unknown option '--data-prot=1'", "did you mean --data-port?");
    assert_refused("--nothing-like-it", "unknown option '--nothing-like-it'", "--help lists all");
    assert_refused("-v", "unknown option '-v'", "--help");
    assert_refused("--=1", "unknown option '--=1'", "--help");
}

static void a_flag_without_its_value_is_refused(void **state)
{
    (void)state;
    assert_refused("--data-port", "--data-port needs a value", "--data-port=PORT");
    assert_refused("--config", "--config needs a value", "--config=FILE");
}

static void a_required_option_is_asked_for(void **state)
{
    (void)state;
    table[NAME].required = true;
    assert_refused("", "--name is required", "ASSAY_NAME");
    assert_int_equal(parse("--name=x"), AS_OK);
    setenv("ASSAY_NAME", "y", 1);
    assert_int_equal(parse(""), AS_OK);
    unsetenv("ASSAY_NAME");
    assert_int_equal(parse_with_file("{\"name\": \"z\"}", ""), AS_OK);
    assert_string_equal(name, "z");
}

static void a_bad_file_is_refused_with_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\n\"data-port\": }", "line 2"},
        {"[1]", "must be one JSON object"},
        {"", "line 1"},
        {"{\"data-port\": 1,\n\n\"data-prot\": 1}", "line 3: unknown option \"data-prot\""},
        {"{\"data-port\": 1, \"data-port\": 2}", "duplicate"},
        {"{\"data-port\": {\"data-port\": 1}}", "--data-port: '{\"data-port\":1}'"},
        {"{\"data-port\": [1]}", "--data-port: '[1]'"},
        {"{\"data-port\": null}", "--data-port: 'null'"},
        {"{\"data-port\": 1.5}", "--data-port: '1.5'"},
        {"{\"fetch-timeout\": 250}", "a time with its unit"},
        {"{\"name\": 5}", "--name: '5'"},
        {"{\"store\": []}", "--store: '[]'"},
        {"{\"store\": [1]}", "--store: '[1]'"},
        {"{\"name\": \"a\\u0000b\"}", "\\u0000"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        as_status_t status = parse_with_file(cases[i].text, "");
        if (status != AS_ERR_INVALID || !strstr(printed, cases[i].message)) {
            fail_msg("%s gave status %d and: %s", cases[i].text, (int)status, printed);
        }
    }
    assert_int_equal(parse("--config=/nonexistent/file"), AS_ERR_IO);
    assert_non_null(strstr(printed, "cannot open /nonexistent/file"));
    assert_int_equal(parse("--config=/"), AS_ERR_IO);
}

static void a_file_that_is_too_large_is_refused(void **state)
{
    (void)state;
    char *text = malloc((1 << 20) + 100);
    memset(text, ' ', (1 << 20) + 99);
    text[0] = '{';
    text[(1 << 20) + 98] = '}';
    text[(1 << 20) + 99] = '\0';
    assert_int_equal(parse_with_file(text, ""), AS_ERR_LIMIT);
    assert_non_null(strstr(printed, "is larger than 1048576 bytes"));
    free(text);
}

static void help_lists_every_option_with_its_default(void **state)
{
    (void)state;
    assert_int_equal(parse("--help"), AS_OK);
    assert_int_equal(outcome, AS_OPTIONS_EXIT);
    assert_non_null(
        strstr(printed, "assay-test: tests options.\n\nUsage: assay-test [OPTIONS] FILE\n"));
    for (size_t i = 0; i < options.count; i++) {
        char flag[64];
        snprintf(flag, sizeof(flag), "  --%s", table[i].name);
        assert_non_null(strstr(printed, flag));
        assert_non_null(strstr(printed, table[i].help));
    }
    assert_non_null(strstr(printed, "memory of the pool (default 64MiB)"));
    assert_int_equal(parse("-h"), AS_OK);
    assert_int_equal(outcome, AS_OPTIONS_EXIT);
}

static void help_answers_even_where_something_is_missing_or_wrong_in_the_environment(void **state)
{
    (void)state;
    table[NAME].required = true;
    setenv("ASSAY_DATA_PORT", "x", 1);
    assert_int_equal(parse("--help"), AS_OK);
    assert_int_equal(parse("--version"), AS_OK);
}

static void version_is_the_program_and_its_number(void **state)
{
    (void)state;
    assert_int_equal(parse("--version"), AS_OK);
    assert_int_equal(outcome, AS_OPTIONS_EXIT);
    assert_string_equal(printed, "assay-test " AS_VERSION "\n");
}

static void the_failure_of_each_allocation_is_survived(void **state)
{
    (void)state;
    uint64_t n = 0;
    as_status_t status = AS_ERR_NO_MEMORY;
    while (status != AS_OK) {
        as_mem_fail_nth(++n);
        status = parse_with_file("{\"store\": [\"f:1\", \"g:2\"]}", "a --name=x --store=y,z b");
        assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
        assert_true(status == AS_OK || strstr(printed, "out of memory"));
        assert_true(n < 1000);
    }
    as_mem_fail_nth(0);
    assert_true(n > 8);
    assert_string_equal(stores[1], "z");
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults_hold_where_nothing_is_said),
        TEST(flags_take_values_after_a_space_or_an_equals_sign),
        TEST(a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default),
        TEST(the_config_file_may_be_named_in_the_environment),
        TEST(a_program_that_starts_others_clears_what_was_meant_for_it),
        TEST(an_empty_variable_is_not_set),
        TEST(lists_add_up_within_a_source_and_replace_across),
        TEST(positional_arguments_are_left_at_the_end),
        TEST(sizes_are_powers_of_1024),
        TEST(times_have_units),
        TEST(a_bad_value_is_refused_with_the_accepted_form),
        TEST(a_message_names_the_source),
        TEST(a_value_that_is_overridden_is_checked_too),
        TEST(unknown_flags_are_refused_with_the_nearest_name),
        TEST(a_flag_without_its_value_is_refused),
        TEST(a_required_option_is_asked_for),
        TEST(a_bad_file_is_refused_with_its_line),
        TEST(a_file_that_is_too_large_is_refused),
        TEST(help_lists_every_option_with_its_default),
        TEST(help_answers_even_where_something_is_missing_or_wrong_in_the_environment),
        TEST(version_is_the_program_and_its_number),
        TEST(the_failure_of_each_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
