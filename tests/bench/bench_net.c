// SPDX-License-Identifier: Apache-2.0
// Throughput of the data plane between two processes, by size, over TCP and over shared memory,
// beside ucx_perftest on the same transport in the same minute.
//
//   send      messages with payload, one way, as ucx_perftest's ucp_am_bw does it
//   fetch     a small request each, answered by a message with payload into a buffer of its own
//   get       one-sided reads (shared memory)
//   pointer   memcpy from the peer's memory (shared memory)
//
// Usage: bench_net [seconds per point]. The machine's other load hits both sides; each figure is
// the best of three.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net.h"
#include "tests/bench/clock.h"

#define IN_FLIGHT   16u
#define ROUNDS      4u
#define BYTES_MAX   ((size_t)1 << 20)
#define PORT_TEXT   "13597"
#define SECONDS_STR "0.2"

enum { OP_FETCH = 1, OP_SINK, OP_FLUSH, OP_KEY };

typedef struct ask {
    uint32_t op;
    uint32_t slot;
    uint64_t value; // bytes of a fetch, count of a flush, address of the memory
} ask_t;

typedef struct bench {
    as_loop_t *loop;
    as_net_t *net;
    as_conn_t *conn;
    unsigned char *memory; // the peer's pool, or where payloads go
    as_net_mem_t *mem;
    as_net_rkey_t *rkey;
    uint64_t remote;
    unsigned char key[AS_NET_RKEY_BYTES_MAX];
    size_t key_bytes;
    // client
    pid_t peer;
    double cpu_per_gb; // of the latest measurement, both processes
    const char *mode;
    size_t size;
    unsigned in_flight;
    uint64_t end_us;
    uint64_t started, finished;
    bool flushed;
    // peer
    uint64_t sunk, flush_at;
} bench_t;

static void die(const char *what)
{
    fprintf(stderr, "bench_net: %s\n", what);
    exit(1);
}

static void must(as_status_t status, const char *what)
{
    if (status != AS_OK) {
        fprintf(stderr, "bench_net: %s: %s\n", what, as_status_str(status));
        exit(1);
    }
}

static void ignore_done(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)ctx;
    (void)status;
    as_net_close(conn);
}

// ---- the peer

static void peer_check_flush(bench_t *peer)
{
    if (peer->flush_at > 0 && peer->sunk == peer->flush_at) {
        const ask_t answer = {OP_FLUSH, 0, 0};
        peer->flush_at = 0;
        peer->sunk = 0;
        must(as_net_send(peer->conn, &answer, sizeof(answer), NULL, 0, NULL, NULL), "flush");
    }
}

static void peer_sunk(void *ctx, as_status_t status)
{
    must(status, "sink");
    bench_t *peer = ctx;
    peer->sunk++;
    peer_check_flush(peer);
}

static void peer_on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    bench_t *peer = ctx;
    ask_t ask;
    memcpy(&ask, msg->header, sizeof(ask));
    if (ask.op == OP_FETCH) {
        must(as_net_send(conn, &ask, sizeof(ask), peer->memory, ask.value, ignore_done, peer),
             "answer");
    } else if (ask.op == OP_SINK) {
        must(as_net_msg_recv(msg, peer->memory, peer_sunk, peer), "receive");
    } else if (ask.op == OP_FLUSH) {
        peer->flush_at = ask.value;
        peer_check_flush(peer);
    } else {
        ask.value = (uint64_t)(uintptr_t)peer->memory;
        must(as_net_mem_pack(peer->mem, peer->key, &peer->key_bytes), "pack");
        must(as_net_send(conn, &ask, sizeof(ask), peer->key, peer->key_bytes, ignore_done, peer),
             "key");
    }
}

static void peer_on_accept(void *ctx, as_conn_t *conn)
{
    ((bench_t *)ctx)->conn = conn;
}

static int peer_main(void)
{
    static bench_t peer;
    const as_net_handlers_t handlers = {&peer, peer_on_accept, peer_on_message, on_lost, NULL};
    must(as_loop_alloc_uv(&peer.loop), "loop");
    must(as_net_alloc_ucx(peer.loop, &handlers, &peer.net), "net");
    must(as_net_listen(peer.net, "127.0.0.1:0"), "listen");
    must(as_net_mem_alloc(peer.net, BYTES_MAX, (void **)&peer.memory, &peer.mem), "memory");
    memset(peer.memory, 1, BYTES_MAX);
    printf("%s\n", as_net_address(peer.net));
    fflush(stdout);
    as_loop_run(peer.loop);
    return 0;
}

// ---- the client

static void start_one(bench_t *bench, unsigned slot);

static void finished_one(bench_t *bench, unsigned slot)
{
    bench->finished++;
    bench->in_flight--;
    if (as_loop_now_us(bench->loop) < bench->end_us) {
        start_one(bench, slot);
    }
}

static void on_done(void *ctx, as_status_t status)
{
    must(status, "operation");
    bench_t *bench = ctx;
    // Of equal operations on distinct slots the oldest is done first, or it does not matter.
    finished_one(bench, (unsigned)(bench->finished % IN_FLIGHT));
}

static void client_on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)conn;
    bench_t *bench = ctx;
    ask_t answer;
    memcpy(&answer, msg->header, sizeof(answer));
    if (answer.op == OP_FETCH) {
        must(as_net_msg_recv(msg, bench->memory + answer.slot * bench->size, on_done, bench),
             "receive");
    } else if (answer.op == OP_KEY) {
        bench->remote = answer.value;
        bench->key_bytes = msg->data_bytes;
        must(as_net_msg_recv(msg, bench->key, ignore_done, bench), "receive");
    } else {
        bench->flushed = true;
    }
}

static void start_one(bench_t *bench, unsigned slot)
{
    bench->in_flight++;
    bench->started++;
    if (strcmp(bench->mode, "fetch") == 0) {
        const ask_t ask = {OP_FETCH, slot, bench->size};
        must(as_net_send(bench->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL), "ask");
    } else if (strcmp(bench->mode, "send") == 0) {
        const ask_t ask = {OP_SINK, slot, 0};
        must(
            as_net_send(bench->conn, &ask, sizeof(ask), bench->memory, bench->size, on_done, bench),
            "send");
    } else {
        must(as_net_get(bench->conn, bench->rkey, bench->remote, bench->memory + slot * bench->size,
                        bench->size, on_done, bench),
             "get");
    }
}

static void flush(bench_t *bench)
{
    const ask_t ask = {OP_FLUSH, 0, bench->started};
    bench->flushed = false;
    must(as_net_send(bench->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL), "flush");
    while (!bench->flushed) {
        as_loop_run_once(bench->loop, true);
    }
}

static double measure_pointer(bench_t *bench, uint64_t duration_us)
{
    const void *pointer;
    must(as_net_rkey_ptr(bench->rkey, bench->remote, &pointer), "pointer");
    uint64_t begin_us = as_loop_now_us(bench->loop);
    uint64_t now_us = begin_us, count = 0;
    bench->finished = 0;
    while (now_us - begin_us < duration_us) {
        memcpy(bench->memory + count % IN_FLIGHT * bench->size, pointer, bench->size);
        bench->finished = ++count;
        now_us = as_loop_now_us(bench->loop);
    }
    return (double)(count * bench->size) / (double)(now_us - begin_us) / 1e3;
}

static double measure_once(bench_t *bench, uint64_t duration_us)
{
    if (strcmp(bench->mode, "pointer") == 0) {
        return measure_pointer(bench, duration_us);
    }
    uint64_t begin_us = as_loop_now_us(bench->loop);
    bench->end_us = begin_us + duration_us;
    bench->started = bench->finished = 0;
    for (unsigned slot = 0; slot < IN_FLIGHT; slot++) {
        start_one(bench, slot);
    }
    while (bench->in_flight > 0) {
        as_loop_run_once(bench->loop, true);
    }
    if (strcmp(bench->mode, "send") == 0) {
        flush(bench);
    }
    uint64_t took_us = as_loop_now_us(bench->loop) - begin_us;
    return (double)(bench->finished * bench->size) / (double)took_us / 1e3;
}

static double measure(bench_t *bench, const char *mode, size_t size, double seconds)
{
    bench->mode = mode;
    bench->size = size;
    measure_once(bench, 20000); // warms up
    double before = cpu_seconds(0) + cpu_seconds(bench->peer);
    double rate = measure_once(bench, (uint64_t)(seconds * 1e6));
    double used = cpu_seconds(0) + cpu_seconds(bench->peer) - before;
    bench->cpu_per_gb = used * 1e9 / ((double)bench->finished * (double)size);
    return rate;
}

// ---- ucx_perftest

static pid_t perftest_start(const char *wait, size_t size, const char *test, int out)
{
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    char bytes[32], count[32];
    snprintf(bytes, sizeof(bytes), "%zu", size);
    size_t iterations = ((size_t)128 << 20) / size;
    snprintf(count, sizeof(count), "%zu", iterations > 20000 ? 20000 : iterations);
    dup2(out, 1);
    if (!wait) {
        execlp("stdbuf", "stdbuf", "-oL", "ucx_perftest", "-p", PORT_TEXT, (char *)NULL);
    } else {
        execlp("ucx_perftest", "ucx_perftest", "127.0.0.1", "-p", PORT_TEXT, "-t", test, "-s",
               bytes, "-n", count, "-w", "100", "-e", "-f", "-v", "-E", wait, (char *)NULL);
    }
    _exit(127);
}

// GB/s, or 0 when there is no ucx_perftest or it fails. `wait` is "poll" or "sleep": polling is the
// faster on an idle machine, and starves itself where other processes want the cores.
static double perftest(const char *test, const char *wait, size_t size)
{
    int out[2], server_out[2];
    char line[256], last[256] = "";
    if (pipe(out) != 0 || pipe(server_out) != 0) {
        die("pipe");
    }
    pid_t server = perftest_start(NULL, size, test, server_out[1]);
    close(server_out[1]);
    FILE *from_server = fdopen(server_out[0], "r");
    // "Waiting for connection...", once it listens; nothing, when it has ended.
    bool listens = fgets(line, sizeof(line), from_server) != NULL;
    pid_t client = listens ? perftest_start(wait, size, test, out[1]) : -1;
    close(out[1]);
    FILE *from = fdopen(out[0], "r");
    while (fgets(line, sizeof(line), from)) {
        memcpy(last, line, sizeof(last));
    }
    fclose(from);
    if (client > 0) {
        waitpid(client, NULL, 0);
    }
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    fclose(from_server);
    double fields[8] = {
        0}; // iterations, three latencies, average and overall MB/s, two message rates
    if (sscanf(last, "%lf,%lf,%lf,%lf,%lf,%lf", &fields[0], &fields[1], &fields[2], &fields[3],
               &fields[4], &fields[5]) != 6) {
        return 0;
    }
    return fields[5] * 1048576.0 / 1e9;
}

// ---- one transport

static void connect_peer(bench_t *bench, FILE *from)
{
    char address[64];
    if (!fgets(address, sizeof(address), from)) {
        die("the peer did not start");
    }
    address[strcspn(address, "\n")] = '\0';
    must(as_net_connect(bench->net, address, &bench->conn), "connect");
    const ask_t ask = {OP_KEY, 0, 0};
    must(as_net_send(bench->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL), "ask");
    while (bench->key_bytes == 0) {
        as_loop_run_once(bench->loop, true);
    }
    for (int i = 0; i < 10; i++) {
        as_loop_run_once(bench->loop, false);
    }
    must(as_net_rkey_unpack(bench->conn, bench->key, bench->key_bytes, &bench->rkey), "unpack");
}

typedef struct best {
    double rate, cpu;
} best_t;

static void improve(best_t *best, double rate, double cpu)
{
    best->rate = rate > best->rate ? rate : best->rate;
    best->cpu = best->cpu == 0 || cpu < best->cpu ? cpu : best->cpu;
}

static double ratio(double ours, double theirs)
{
    return theirs > 0 ? ours / theirs : 0;
}

static void run_size(bench_t *bench, size_t size, double seconds)
{
    enum { SEND, FETCH, GET, POINTER, MODES };
    static const char *const modes[MODES] = {"send", "fetch", "get", "pointer"};
    best_t ours[MODES] = {{0, 0}}, am = {0, 0}, perf_get = {0, 0};
    bool shared = as_conn_caps(bench->conn) & AS_NET_CAP_ONESIDED;
    for (unsigned round = 0; round < ROUNDS; round++) {
        const char *wait = round % 2 ? "poll" : "sleep";
        improve(&am, perftest("ucp_am_bw", wait, size), 0);
        improve(&perf_get, shared ? perftest("ucp_get", wait, size) : 0, 0);
        for (unsigned mode = 0; mode < (shared ? MODES : GET); mode++) {
            double rate = measure(bench, modes[mode], size, seconds);
            improve(&ours[mode], rate, bench->cpu_per_gb);
        }
    }
    printf("%9zu", size);
    for (unsigned mode = 0; mode < MODES; mode++) {
        printf(" %6.2f %5.2f", ours[mode].rate, ours[mode].cpu);
    }
    printf(" | %7.2f %7.2f | %7.2f %8.2f %7.2f\n", am.rate, perf_get.rate,
           ratio(ours[SEND].rate, am.rate), ratio(ours[FETCH].rate, am.rate),
           ratio(ours[GET].rate, perf_get.rate));
    fflush(stdout);
}

static void run_transport(bench_t *bench, double seconds)
{
    static const size_t sizes[] = {4096, 49152, 65536, 262144, 1048576};
    printf("transport %s, %u in flight; GB/s, and CPU seconds a GB of both processes; best of %u\n",
           as_conn_transport(bench->conn), IN_FLIGHT, ROUNDS);
    printf("%9s %12s %12s %12s %12s | %7s %7s | %s\n", "bytes", "send cpu", "fetch cpu", "get cpu",
           "pointer cpu", "perf am", "get", "send/am fetch/am get/get");
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        run_size(bench, sizes[i], seconds);
    }
}

static int client_main(double seconds)
{
    int out[2];
    if (pipe(out) != 0) {
        die("pipe");
    }
    pid_t peer = fork();
    if (peer == 0) {
        dup2(out[1], 1);
        execl("/proc/self/exe", "bench_net", "peer", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    static bench_t bench;
    const as_net_handlers_t handlers = {&bench, peer_on_accept, client_on_message, on_lost, NULL};
    must(as_loop_alloc_uv(&bench.loop), "loop");
    must(as_net_alloc_ucx(bench.loop, &handlers, &bench.net), "net");
    bench.memory = aligned_alloc(4096, IN_FLIGHT * BYTES_MAX);
    memset(bench.memory, 2, IN_FLIGHT * BYTES_MAX);
    FILE *from = fdopen(out[0], "r");
    bench.peer = peer;
    connect_peer(&bench, from);
    run_transport(&bench, seconds);
    as_net_close(bench.conn);
    as_net_rkey_free(bench.rkey);
    as_net_free(bench.net);
    as_loop_free(bench.loop);
    free(bench.memory);
    fclose(from);
    kill(peer, SIGKILL);
    waitpid(peer, NULL, 0);
    return 0;
}

// UCX reads its settings once, so each transport is a process of its own.
static int run_with(const char *tls, const char *seconds)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (tls) {
            setenv("UCX_TLS", tls, 1);
        }
        execl("/proc/self/exe", "bench_net", "client", seconds, (char *)NULL);
        _exit(127);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "peer") == 0) {
        return peer_main();
    }
    if (argc > 2 && strcmp(argv[1], "client") == 0) {
        return client_main(atof(argv[2]));
    }
    const char *seconds = argc > 1 ? argv[1] : SECONDS_STR;
    return run_with("tcp,self", seconds) + run_with(NULL, seconds);
}
