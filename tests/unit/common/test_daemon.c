// SPDX-License-Identifier: Apache-2.0
// What every daemon has: options for logs, faults and TLS, and signals.
#include "tests/unit/common/certificates.h"

#include <signal.h>
#include <unistd.h>

#include "common/daemon.h"
#include "common/fault.h"
#include "common/log.h"
#include "tests/unit/common/capture.h"

static as_daemon_flags_t flags;
static char folder[32];
static capture_t capture;
static const char *said;

static const as_option_t table[] = {AS_DAEMON_OPTIONS(flags), AS_OPERATORS_OPTION(flags)};
static const as_options_t options = {
    .program = "test-daemon",
    .summary = "Tests.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

#define ARGUMENTS_MAX 4

// `said` is what it wrote to stderr.
static as_status_t parse(const char *const arguments[ARGUMENTS_MAX])
{
    char *argv[ARGUMENTS_MAX + 2] = {"test-daemon"};
    int argc = 1;
    as_options_outcome_t outcome;
    memset(&flags, 0, sizeof(flags));
    for (int i = 0; i < ARGUMENTS_MAX && arguments[i]; i++) {
        argv[argc++] = (char *)arguments[i];
    }
    capture_begin(&capture);
    as_status_t status = as_daemon_parse(&options, argc, argv, &flags, &outcome);
    said = capture_end(&capture);
    return status;
}

static as_status_t parse_tls(const char *ca, const char *cert, const char *key)
{
    static char text[3][160];
    snprintf(text[0], sizeof(text[0]), "--tls-ca=%s/%s", folder, ca);
    snprintf(text[1], sizeof(text[1]), "--tls-cert=%s/%s", folder, cert);
    snprintf(text[2], sizeof(text[2]), "--tls-key=%s/%s", folder, key);
    return parse((const char *[ARGUMENTS_MAX]){text[0], text[1], text[2]});
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/assay_daemon_XXXXXX");
    assert_non_null(mkdtemp(folder));
    make_certificates(folder);
    return 0;
}

static int remove_folder(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

static void log_level_and_faults_act_at_once(void **state)
{
    (void)state;
    char fault[64];
    snprintf(fault, sizeof(fault), "--fault=%s=1", as_fault_name(0));
    assert_int_equal(parse((const char *[ARGUMENTS_MAX]){"--log-level=error", fault}), AS_OK);
    assert_true(as_fault(0));
    as_fault_clear();
    as_log_set_level(AS_LOG_INFO);
    assert_null(flags.use_tls);
}

static void a_wrong_option_is_refused_with_what_is_right(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"--log-level=loud", "--log-level loud: must be debug, info, warn or error"},
        {"--fault=nothing=1", "--fault nothing=1: must be site=nth"},
        {"stray", "unexpected argument 'stray'"},
        {"--tls-ca=/dev/null", "--tls-cert is missing"},
        {"--operator=chief", "--operator chief: must be given with mutual TLS"},
        {"--operator=", "--operator '': must be a certificate's common name"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(parse((const char *[ARGUMENTS_MAX]){wrong[i][0]}), AS_ERR_CONFIG);
        assert_non_null(strstr(said, wrong[i][1]));
        assert_non_null(strstr(said, "test-daemon: "));
    }
}

static void good_certificates_are_taken(void **state)
{
    (void)state;
    assert_int_equal(parse_tls("ca.pem", "server.pem", "server.key"), AS_OK);
    assert_ptr_equal(flags.use_tls, &flags.tls);
    assert_string_equal(said, "");
    assert_int_equal(parse_tls("stranger.pem", "stranger.pem", "stranger.key"), AS_OK);
}

static void a_wrong_certificate_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *ca, *cert, *key, *says;
    } wrong[] = {
        {"nobody.pem", "server.pem", "server.key", "--tls-ca"},
        {"ca.key", "server.pem", "server.key", "holds no certificate in PEM"},
        {"ca.pem", "nobody.pem", "server.key", "No such file"},
        {"ca.pem", "server.key", "server.key", "holds no certificate in PEM"},
        {"ca.pem", "server.pem", "nobody.key", "No such file"},
        {"ca.pem", "server.pem", "server.pem", "holds no private key in PEM"},
        {"ca.pem", "server.pem", "locked.key", "or an encrypted one"},
        {"ca.pem", "server.pem", "client.key", "is not the key of the certificate"},
        {"ca.pem", "stranger.pem", "stranger.key", "is not accepted by --tls-ca"},
        {"ca.pem", "old.pem", "server.key", "certificate has expired"},
    };
    char command[512];
    snprintf(command, sizeof(command),
             "openssl pkey -aes256 -passout pass:x -in %s/server.key -out %s/locked.key && "
             "openssl x509 -req -days -1 -in %s/server.csr -CA %s/ca.pem -CAkey %s/ca.key "
             "-CAcreateserial -out %s/old.pem 2>/dev/null",
             folder, folder, folder, folder, folder, folder);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(parse_tls(wrong[i].ca, wrong[i].cert, wrong[i].key), AS_ERR_CONFIG);
        assert_null(flags.use_tls);
        if (!strstr(said, wrong[i].says)) {
            fail_msg("case %zu said: %s", i, said);
        }
    }
}

static int signals_seen, reloads_seen;

static void on_end(void *ctx, int number)
{
    assert_true(number == SIGTERM || number == SIGINT);
    signals_seen++;
    as_loop_stop(ctx);
}

static void on_reload(void *ctx)
{
    reloads_seen++;
    as_loop_stop(ctx);
}

static void signals_come_on_the_loop(void **state)
{
    (void)state;
    as_loop_t *loop;
    as_daemon_signals_t *signals;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    const as_daemon_handlers_t handlers = {on_end, on_reload, loop};
    assert_int_equal(as_daemon_signals_alloc(loop, &handlers, &signals), AS_OK);
    for (int i = 0; i < 2; i++) {
        kill(getpid(), i == 0 ? SIGTERM : SIGINT);
        as_loop_run(loop);
        assert_int_equal(signals_seen, i + 1);
    }
    kill(getpid(), SIGHUP);
    as_loop_run(loop);
    assert_int_equal(reloads_seen, 1);
    kill(getpid(), SIGPIPE); // ignored
    as_daemon_signals_free(signals);
    as_daemon_signals_free(NULL);
    as_loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_level_and_faults_act_at_once),
        cmocka_unit_test(a_wrong_option_is_refused_with_what_is_right),
        cmocka_unit_test(good_certificates_are_taken),
        cmocka_unit_test(a_wrong_certificate_is_refused_with_the_reason),
        cmocka_unit_test(signals_come_on_the_loop),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
