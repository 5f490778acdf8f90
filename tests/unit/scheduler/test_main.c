// SPDX-License-Identifier: Apache-2.0
// The assay-scheduler program itself: ready line, service, signals, exit codes, and a restart that
// nodes find again. It lies beside this test; where it was not built, the tests are skipped.
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/rpc.h"
#include "tests/unit/scheduler/harness.h"

#define SECOND_US 1000000ull

typedef struct program {
    pid_t pid;
    FILE *out;
    char line[512];
    char rpc[128];
} program_t;

static const char *program_path(void)
{
    static char path[4096];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 32);
    assert_true(bytes > 0);
    path[bytes] = '\0';
    strcat(dirname(path), "/assay-scheduler");
    return path;
}

static void program_start(program_t *program, const char *const *arguments)
{
    if (access(program_path(), X_OK) != 0) {
        skip();
    }
    const char *argv[16] = {program_path()};
    for (int i = 0; arguments[i]; i++) {
        argv[i + 1] = arguments[i];
    }
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    program->pid = fork();
    assert_true(program->pid >= 0);
    if (program->pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(ends[1]);
    program->out = fdopen(ends[0], "r");
    if (!fgets(program->line, sizeof(program->line), program->out)) {
        program->line[0] = '\0';
    }
    json_t *ready = json_loads(program->line, 0, NULL);
    const char *rpc = json_string_value(json_object_get(ready, "rpc"));
    snprintf(program->rpc, sizeof(program->rpc), "%s", rpc ? rpc : "");
    json_decref(ready);
}

// Its exit code, or 256 and the signal that ended it.
static int program_wait(program_t *program)
{
    int status;
    assert_int_equal(waitpid(program->pid, &status, 0), program->pid);
    fclose(program->out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

typedef struct outcome {
    bool done;
    as_status_t status;
} outcome_t;

static void on_done(void *ctx, as_status_t status, const ProtobufCMessage *reply)
{
    (void)reply;
    *(outcome_t *)ctx = (outcome_t){true, status};
}

static as_status_t stat_once(as_loop_t *loop, as_rpc_client_t *client)
{
    outcome_t outcome = {0};
    Assay__StatRequest request = ASSAY__STAT_REQUEST__INIT;
    assert_int_equal(
        as_rpc_call(client, "Stat", &request.base, 10 * SECOND_US, on_done, &outcome, NULL), AS_OK);
    while (!outcome.done) {
        as_loop_run_once(loop, true);
    }
    return outcome.status;
}

static as_status_t stat_patiently(as_loop_t *loop, as_rpc_client_t *client)
{
    uint64_t end_us = as_loop_now_us(loop) + 20 * SECOND_US;
    as_status_t status;
    do {
        status = stat_once(loop, client);
    } while (status == AS_ERR_UNREACHABLE && as_loop_now_us(loop) < end_us);
    return status;
}

static void it_says_ready_serves_and_stops_at_sigterm(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        program_t program;
        program_start(&program, (const char *[]){"--listen=127.0.0.1:0", NULL});
        assert_non_null(strstr(program.line, "\"ready\":\"assay-scheduler\""));
        as_loop_t *loop;
        as_rpc_client_t *client;
        assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
        assert_int_equal(
            as_rpc_client_alloc(loop, program.rpc, &assay__scheduler__descriptor, NULL, &client),
            AS_OK);
        assert_int_equal(stat_once(loop, client), AS_OK);
        kill(program.pid, signals[i]);
        assert_int_equal(program_wait(&program), 0);
        as_rpc_client_free(client);
        as_loop_free(loop);
    }
}

static void a_killed_scheduler_can_be_restarted_at_its_address(void **state)
{
    (void)state;
    program_t program, second, third;
    program_start(&program, (const char *[]){"--listen=127.0.0.1:0", NULL});
    as_loop_t *loop;
    as_rpc_client_t *client;
    assert_int_equal(as_loop_alloc_uv(&loop), AS_OK);
    assert_int_equal(
        as_rpc_client_alloc(loop, program.rpc, &assay__scheduler__descriptor, NULL, &client),
        AS_OK);
    assert_int_equal(stat_once(loop, client), AS_OK);
    char listen[160];
    snprintf(listen, sizeof(listen), "--listen=%s", program.rpc);
    program_start(&second, (const char *[]){listen, NULL});
    assert_int_equal(program_wait(&second), 1); // the address is taken
    kill(program.pid, SIGKILL);
    assert_int_equal(program_wait(&program), 256 + SIGKILL);
    assert_int_not_equal(stat_once(loop, client), AS_OK);
    program_start(&third, (const char *[]){listen, NULL});
    assert_string_equal(third.rpc, program.rpc);
    assert_int_equal(stat_patiently(loop, client), AS_OK);
    kill(third.pid, SIGTERM);
    assert_int_equal(program_wait(&third), 0);
    as_rpc_client_free(client);
    as_loop_free(loop);
}

static void wrong_options_exit_with_2(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"--listen=127.0.0.1:0", "--dead-ms=1"},
        {"--log-level=loud", NULL},
        {"--fault=nothing=1", NULL},
        {"--tls-ca=/dev/null", NULL},
        {"stray", NULL},
        {"--suspect-ms=0", NULL},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        program_t program;
        program_start(&program, (const char *[]){wrong[i][0], wrong[i][1], NULL});
        assert_int_equal(program_wait(&program), 2);
        assert_string_equal(program.line, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_ready_serves_and_stops_at_sigterm),
        cmocka_unit_test(a_killed_scheduler_can_be_restarted_at_its_address),
        cmocka_unit_test(wrong_options_exit_with_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
