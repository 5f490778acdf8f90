// SPDX-License-Identifier: Apache-2.0
// The processes of a cluster on this machine: started in order, ended in reverse.
//
// The daemons stand beside this program's own file. Each is a child in a process group of its own
// (so that a terminal's Ctrl-C reaches the starter alone, which then ends them in order) and asks
// the kernel for SIGTERM should the starter die. Each says on stdout, in one line of JSON, that it
// is ready and where; its log goes to <run dir>/<name>.log. SIGCHLD is blocked, so that waiting for
// a child has a deadline and no race.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/assert.h"
#include "common/mem.h"

#define ARGUMENTS_MAX   24
#define READY_BYTES_MAX 2048
#define GRACE_MS        20000 // daemons drain for up to 15 s
#define KILLED_MS       5000
#define LOG_TAIL_BYTES  1500

typedef struct arguments {
    char *argv[ARGUMENTS_MAX + 1];
    int count;
    bool failed; // out of memory
} arguments_t;

static void add(arguments_t *arguments, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add(arguments_t *arguments, const char *format, ...)
{
    va_list args, again;
    AS_ASSERT(arguments->count < ARGUMENTS_MAX);
    va_start(args, format);
    va_copy(again, args);
    int bytes = vsnprintf(NULL, 0, format, args) + 1;
    char *text = bytes > 0 ? as_mem_alloc((size_t)bytes) : NULL;
    if (text) {
        vsnprintf(text, (size_t)bytes, format, again);
        arguments->argv[arguments->count++] = text;
        arguments->argv[arguments->count] = NULL;
    }
    arguments->failed |= !text;
    va_end(again);
    va_end(args);
}

// Where it is given.
static void add_text(arguments_t *arguments, const char *name, const char *value)
{
    if (value) {
        add(arguments, "--%s=%s", name, value);
    }
}

static void add_number(arguments_t *arguments, const char *name, int64_t value)
{
    if (value > 0) {
        add(arguments, "--%s=%lld", name, (long long)value);
    }
}

static void arguments_fini(arguments_t *arguments)
{
    for (int i = 0; i < arguments->count; i++) {
        as_mem_free(arguments->argv[i]);
    }
}

// What every daemon has.
static void add_common(arguments_t *arguments, const cli_cluster_options_t *options)
{
    add(arguments, "--log-level=%s", options->log_level);
    if (cli_tls.ca_file) {
        add(arguments, "--tls-ca=%s", cli_tls.ca_file);
        add(arguments, "--tls-cert=%s", cli_tls.cert_file);
        add(arguments, "--tls-key=%s", cli_tls.key_file);
    }
}

// ---- Start one

bool cli_own_folder(char path[CLI_PATH_BYTES])
{
    ssize_t length = readlink("/proc/self/exe", path, CLI_PATH_BYTES - 64);
    if (length <= 0) {
        cli_complain("cannot find out where this program is: %s", strerror(errno));
        return false;
    }
    path[length] = '\0';
    *strrchr(path, '/') = '\0';
    return true;
}

static void log_path(const char *run_dir, const cli_node_t *node, char path[CLI_PATH_BYTES + 64])
{
    snprintf(path, CLI_PATH_BYTES + 64, "%.950s/%s.log", run_dir, node->name);
}

typedef struct child_files {
    int stdout_fd;
    const char *log;
    pid_t parent;
} child_files_t;

_Noreturn static void become(const char *binary, char *const *argv, const child_files_t *files)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int log_fd = open(files->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool wired = dup2(files->stdout_fd, STDOUT_FILENO) >= 0 && dup2(log_fd, STDERR_FILENO) >= 0 &&
                 dup2(null_fd, STDIN_FILENO) >= 0;
    if (wired && getppid() == files->parent) { // else the parent died before prctl
        execv(binary, argv);
        dprintf(STDERR_FILENO, "cannot run %s: %s\n", binary, strerror(errno));
    }
    _exit(127);
}

static bool fork_child(cli_node_t *node, const arguments_t *arguments, const char *run_dir)
{
    char folder[CLI_PATH_BYTES], binary[CLI_PATH_BYTES + 128], log[CLI_PATH_BYTES + 64];
    int pipe_fds[2];
    if (!cli_own_folder(folder)) {
        return false;
    }
    if (arguments->failed || pipe2(pipe_fds, O_CLOEXEC) != 0) {
        cli_complain("cannot start %s: %s", node->name,
                     arguments->failed ? "out of memory" : strerror(errno));
        return false;
    }
    snprintf(binary, sizeof(binary), "%s/%s", folder, arguments->argv[0]);
    log_path(run_dir, node, log);
    const child_files_t files = {pipe_fds[1], log, getpid()};
    node->pid = fork();
    if (node->pid == 0) {
        become(binary, arguments->argv, &files);
    }
    close(pipe_fds[1]);
    node->ready_fd = pipe_fds[0];
    if (node->pid < 0) {
        node->pid = 0;
        cli_complain("cannot start %s: %s", node->name, strerror(errno));
        return false;
    }
    return true;
}

// Frees the arguments.
static bool spawn(cli_node_t *node, arguments_t *arguments, const char *run_dir)
{
    bool started = fork_child(node, arguments, run_dir);
    arguments_fini(arguments);
    return started;
}

static cli_node_t *add_node(cli_cluster_t *cluster, const char *role, int64_t number)
{
    AS_ASSERT(cluster->node_count < CLI_NODES_MAX);
    cli_node_t *node = &cluster->nodes[cluster->node_count++];
    memset(node, 0, sizeof(*node));
    node->ready_fd = -1;
    snprintf(node->role, sizeof(node->role), "%s", role);
    if (number > 0) {
        snprintf(node->name, sizeof(node->name), "%s-%lld", role, (long long)number);
    } else {
        snprintf(node->name, sizeof(node->name), "%s", role);
    }
    return node;
}

// ---- Ready

static void print_log_tail(const char *run_dir, const cli_node_t *node)
{
    char path[CLI_PATH_BYTES + 64], tail[LOG_TAIL_BYTES + 1];
    log_path(run_dir, node, path);
    FILE *file = fopen(path, "rb");
    if (!file) {
        return;
    }
    if (fseek(file, -LOG_TAIL_BYTES, SEEK_END) != 0) {
        rewind(file);
    }
    size_t count = fread(tail, 1, LOG_TAIL_BYTES, file);
    fclose(file);
    tail[count] = '\0';
    fprintf(stderr, "%s%s", tail, count > 0 && tail[count - 1] != '\n' ? "\n" : "");
    fprintf(stderr, "(the whole log is %s)\n", path);
}

static void describe_end(int status, char *out, size_t bytes)
{
    if (WIFSIGNALED(status)) {
        snprintf(out, bytes, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else {
        snprintf(out, bytes, "exit code %d", WEXITSTATUS(status));
    }
}

static bool interrupted(void)
{
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGINT) || sigismember(&pending, SIGTERM) ||
           sigismember(&pending, SIGHUP);
}

// Reads the first line of the child's stdout. False: it ended, or the deadline passed; a message
// was printed.
static bool read_ready(cli_node_t *node, const char *run_dir, double deadline_ms,
                       char line[READY_BYTES_MAX])
{
    size_t count = 0;
    while (cli_now_ms() < deadline_ms && !interrupted() && count < READY_BYTES_MAX - 1) {
        struct pollfd poll_fd = {.fd = node->ready_fd, .events = POLLIN};
        if (poll(&poll_fd, 1, 100) <= 0) {
            continue;
        }
        ssize_t got = read(node->ready_fd, line + count, READY_BYTES_MAX - 1 - count);
        if (got <= 0) {
            int status = 0;
            char end[80];
            waitpid(node->pid, &status, 0);
            node->pid = 0;
            describe_end(status, end, sizeof(end));
            cli_complain("%s ended before it was ready (%s); the end of its log:", node->name, end);
            print_log_tail(run_dir, node);
            return false;
        }
        count += (size_t)got;
        line[count] = '\0';
        if (memchr(line, '\n', count)) {
            return true;
        }
    }
    if (!interrupted()) {
        cli_complain("%s was not ready in time; the end of its log:", node->name);
        print_log_tail(run_dir, node);
    }
    return false;
}

static bool wait_ready(cli_node_t *node, const char *run_dir, double deadline_ms)
{
    char line[READY_BYTES_MAX];
    if (!read_ready(node, run_dir, deadline_ms, line)) {
        return false;
    }
    json_t *ready = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    const struct {
        const char *name;
        char *out;
    } addresses[] = {{"rpc", node->rpc}, {"data", node->data}, {"http", node->http}};
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        const char *text = json_string_value(json_object_get(ready, addresses[i].name));
        snprintf(addresses[i].out, CLI_ADDRESS_BYTES, "%s", text ? text : "");
    }
    bool known = json_is_string(json_object_get(ready, "ready"));
    json_decref(ready);
    if (!known) {
        cli_complain("%s did not say that it is ready, but: %.200s", node->name, line);
    }
    return known;
}

// ---- Start all

static bool start_scheduler(const cli_cluster_options_t *options, cli_cluster_t *cluster,
                            double deadline_ms)
{
    arguments_t arguments = {.count = 0};
    cli_node_t *node = add_node(cluster, "scheduler", 0);
    add(&arguments, "assay-scheduler");
    add(&arguments, "--listen=127.0.0.1:0");
    add(&arguments, "--http=127.0.0.1:0");
    add_number(&arguments, "replicas", options->replicas);
    add_text(&arguments, "cluster-key", options->cluster_key);
    add_common(&arguments, options);
    return spawn(node, &arguments, options->run_dir) &&
           wait_ready(node, options->run_dir, deadline_ms);
}

static bool start_store(const cli_cluster_options_t *options, cli_cluster_t *cluster,
                        int64_t number)
{
    arguments_t arguments = {.count = 0};
    cli_node_t *node = add_node(cluster, "store", number);
    add(&arguments, "assay-kvstore");
    add(&arguments, "--scheduler=%s", cluster->nodes[0].rpc);
    add(&arguments, "--data-address=127.0.0.1:0");
    add(&arguments, "--rpc-address=127.0.0.1:0");
    add(&arguments, "--http-address=127.0.0.1:0");
    add(&arguments, "--ram=%lld", (long long)options->ram_bytes);
    if (options->disk) {
        add(&arguments, "--disk=%s/%s", options->disk, node->name);
    }
    add_number(&arguments, "disk-size", options->disk_bytes);
    add_text(&arguments, "cluster-key", options->cluster_key);
    add_text(&arguments, "quota-file", options->quota_file);
    add(&arguments, "--drain-timeout=0s"); // all end together: there is nobody to hand to
    add(&arguments, "--name=%s", node->name);
    add_common(&arguments, options);
    return spawn(node, &arguments, options->run_dir);
}

static bool start_worker(const cli_cluster_options_t *options, cli_cluster_t *cluster,
                         int64_t number)
{
    arguments_t arguments = {.count = 0};
    cli_node_t *node = add_node(cluster, "worker", number);
    int64_t port = options->port ? options->port + number - 1 : 0;
    add(&arguments, "assay-gpuworker");
    add(&arguments, "--model=%s", options->model);
    add(&arguments, "--scheduler=%s", cluster->nodes[0].rpc);
    add(&arguments, "--listen=127.0.0.1:%lld", (long long)port);
    add(&arguments, "--data-interface=lo");
    add(&arguments, "--name=%s", node->name);
    add(&arguments, "--threads=%lld", (long long)options->threads);
    add(&arguments, "--context=%lld", (long long)options->context);
    add_text(&arguments, "compressor", options->compressor);
    add_text(&arguments, "full-cache", options->full_cache);
    add_text(&arguments, "draft-model", options->draft_model);
    add_text(&arguments, "calibration", options->calibration);
    add_text(&arguments, "token", options->token);
    add_text(&arguments, "encrypt-key-file", options->encrypt_key_file);
    add_number(&arguments, "device-memory", options->device_bytes);
    add_number(&arguments, "sessions", options->sessions);
    add_number(&arguments, "queue", options->queue);
    if (options->horizon >= 0) {
        add(&arguments, "--horizon=%lld", (long long)options->horizon);
    }
    add_common(&arguments, options);
    return spawn(node, &arguments, options->run_dir);
}

static bool wait_all(const cli_cluster_options_t *options, cli_cluster_t *cluster, uint32_t first,
                     double deadline_ms)
{
    for (uint32_t i = first; i < cluster->node_count; i++) {
        if (!wait_ready(&cluster->nodes[i], options->run_dir, deadline_ms)) {
            return false;
        }
    }
    return true;
}

bool cli_cluster_start(const cli_cluster_options_t *options, cli_cluster_t *cluster)
{
    sigset_t child;
    double deadline_ms = cli_now_ms() + options->start_seconds * 1e3;
    memset(cluster, 0, sizeof(*cluster));
    cluster->pid = getpid();
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    bool started = start_scheduler(options, cluster, deadline_ms);
    for (int64_t i = 1; started && i <= options->stores; i++) {
        started = start_store(options, cluster, i);
    }
    started = started && wait_all(options, cluster, 1, deadline_ms);
    uint32_t first_worker = cluster->node_count;
    for (int64_t i = 1; started && i <= options->workers; i++) {
        started = start_worker(options, cluster, i);
    }
    started = started && wait_all(options, cluster, first_worker, deadline_ms);
    if (!started) {
        cli_cluster_stop(cluster);
    }
    return started;
}

// ---- End

// Waits for one child until the deadline. True when it has ended; *good_p is cleared if not by exit
// code 0.
static bool wait_end(cli_node_t *node, double deadline_ms, bool *good_p)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        int status;
        pid_t ended = waitpid(node->pid, &status, WNOHANG);
        if (ended == node->pid) {
            bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
            if (!good) {
                char end[80];
                describe_end(status, end, sizeof(end));
                cli_complain("%s ended badly: %s", node->name, end);
            }
            *good_p &= good;
            node->pid = 0;
            return true;
        }
        if (ended < 0) {
            node->pid = 0;
            return true;
        }
        if (cli_now_ms() >= deadline_ms) {
            return false;
        }
        const struct timespec wait = {.tv_nsec = 50000000};
        sigtimedwait(&child, NULL, &wait);
    }
}

bool cli_cluster_stop(cli_cluster_t *cluster)
{
    bool good = true;
    double deadline_ms = cli_now_ms() + GRACE_MS;
    // Workers first: they may still publish to the stores, and ask the scheduler.
    for (uint32_t i = cluster->node_count; i-- > 0;) {
        cli_node_t *node = &cluster->nodes[i];
        bool peers_too = i > 0 && strcmp(cluster->nodes[i - 1].role, node->role) == 0;
        if (node->pid > 0) {
            kill(node->pid, SIGTERM);
        }
        if (peers_too) {
            continue; // its like are told before any is waited for
        }
        for (uint32_t j = i; j < cluster->node_count; j++) {
            cli_node_t *told = &cluster->nodes[j];
            if (told->pid > 0 && !wait_end(told, deadline_ms, &good)) {
                cli_complain("%s (pid %d) does not end: killing it", told->name, (int)told->pid);
                kill(told->pid, SIGKILL);
                wait_end(told, cli_now_ms() + KILLED_MS, &good);
            }
        }
    }
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (cluster->nodes[i].ready_fd >= 0) {
            close(cluster->nodes[i].ready_fd);
            cluster->nodes[i].ready_fd = -1;
        }
    }
    return good;
}

uint32_t cli_cluster_reap(cli_cluster_t *cluster, const char *run_dir)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        cli_node_t *node = &cluster->nodes[i];
        int status;
        if (node->pid > 0 && waitpid(node->pid, &status, WNOHANG) == node->pid) {
            char end[80];
            describe_end(status, end, sizeof(end));
            cli_complain("%s (pid %d) has died: %s; the end of its log:", node->name,
                         (int)node->pid, end);
            print_log_tail(run_dir, node);
            node->pid = 0;
            count++;
        }
    }
    return count;
}

void cli_cluster_forget(const cli_cluster_t *cluster, const char *run_dir)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        char path[CLI_PATH_BYTES + 64];
        log_path(run_dir, &cluster->nodes[i], path);
        unlink(path);
    }
    rmdir(run_dir); // stays where someone has put something into it
}
