// SPDX-License-Identifier: Apache-2.0
// Fetching a chain of 64 blocks of SmolLM2's shape (94 MB in extents of 48 KiB) from a store in
// another process, over shared memory and over TCP, checksums on and off; and, as the limit of any
// copy, memcpy of as many bytes in this process. Prints a line of JSON for each; fetch.py sets them
// beside ucx_perftest.
//
//     bench_fetch [REPEATS]
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "common/mem.h"
#include "kvstore/kvstore.h"

#define BLOCKS      64u
#define REPEATS_MAX 1000u
#define NODE_ID     1u

static const as_shape_t shape = {30, 9, 3, 64, 64, AS_ELEMENT_F16};

typedef struct bench {
    as_loop_t *loop;
    assay_client_t *client;
    as_key_t ns;
    as_key_t keys[BLOCKS];
    uint8_t *buffer;
    assay_fetch_t *fetch;
    bool done;
    as_status_t status;
} bench_t;

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static void check(as_status_t status, const char *what)
{
    if (status != AS_OK) {
        fprintf(stderr, "bench_fetch: %s: %s\n", what, as_status_str(status));
        exit(1);
    }
}

// ---- the store's process

static void serve(int to_parent)
{
    as_loop_t *loop;
    kvs_store_t *store;
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    check(as_loop_alloc_uv(&loop), "loop");
    options.loop = loop;
    options.net_alloc = net_alloc;
    options.instance_id[0] = NODE_ID;
    options.ram_bytes = (size_t)256 << 20;
    check(kvs_store_alloc(&options, &store), "store");
    dprintf(to_parent, "%s\n", kvs_store_address(store));
    as_loop_run(loop); // until killed
    exit(0);
}

static pid_t server_start(char *address, size_t bytes)
{
    int out[2];
    if (pipe(out) != 0) {
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(out[0]);
        serve(out[1]);
    }
    close(out[1]);
    FILE *from = fdopen(out[0], "r");
    if (!from || !fgets(address, (int)bytes, from)) {
        check(AS_ERR_UNREACHABLE, "store process");
    }
    address[strcspn(address, "\n")] = '\0';
    fclose(from);
    return pid;
}

// ---- the client

static void run_until_done(bench_t *bench)
{
    while (!bench->done) {
        as_loop_run_once(bench->loop, true);
    }
    bench->done = false;
    check(bench->status, "transfer");
}

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)node_id;
    bench_t *bench = ctx;
    bench->status = status == AS_ERR_EXISTS ? AS_OK : status;
    bench->done = true;
}

static void put_all(bench_t *bench)
{
    uint8_t *block = malloc(as_block_bytes(&shape));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        for (size_t b = 0, bytes = as_block_bytes(&shape); b < bytes; b++) {
            block[b] = (uint8_t)(b * 31 + i);
        }
        const assay_put_args_t args = {.shape = shape,
                                       .namespace_key = bench->ns,
                                       .key = bench->keys[i],
                                       .parent = i > 0 ? bench->keys[i - 1] : bench->ns,
                                       .run_key = bench->keys[i / AS_RUN_BLOCKS * AS_RUN_BLOCKS],
                                       .token_count = shape.block_tokens,
                                       .block = block,
                                       .deadline_us = 10000000,
                                       .on_done = on_put,
                                       .ctx = bench};
        assay_put_t *put;
        check(assay_put_start(bench->client, &args, &put), "put");
        run_until_done(bench);
    }
    free(block);
}

static void on_located(void *ctx, uint32_t block_count)
{
    (void)ctx;
    check(block_count == BLOCKS ? AS_OK : AS_ERR_NOT_FOUND, "locate");
}

static void on_layer(void *ctx, uint32_t layer)
{
    (void)ctx;
    (void)layer;
}

static void on_done(void *ctx, as_status_t status, uint32_t hole)
{
    (void)hole;
    bench_t *bench = ctx;
    bench->status = status;
    bench->done = true;
}

static double fetch_once(bench_t *bench)
{
    const assay_fetch_args_t args = {.shape = shape,
                                     .keys = bench->keys,
                                     .block_count = BLOCKS,
                                     .deadline_us = 20000000,
                                     .buffer = bench->buffer,
                                     .layer_stride = BLOCKS * as_extent_bytes(&shape),
                                     .layer_slots = shape.layers,
                                     .on_located = on_located,
                                     .on_layer = on_layer,
                                     .on_done = on_done,
                                     .ctx = bench};
    uint64_t began_us = as_loop_now_us(bench->loop);
    check(assay_fetch_start(bench->client, &args, &bench->fetch), "fetch");
    run_until_done(bench);
    return (double)(as_loop_now_us(bench->loop) - began_us) * 1e-6;
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

static double memcpy_once(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t extent_bytes = as_extent_bytes(&shape);
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (size_t at = 0; at < bytes; at += extent_bytes) {
        memcpy(to + at, from + at, extent_bytes);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    __asm__ volatile("" : : "r"(to) : "memory");
    return (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) * 1e-9;
}

static void measure_memcpy(uint32_t repeats)
{
    static double seconds[REPEATS_MAX];
    size_t bytes = BLOCKS * as_block_bytes(&shape);
    uint8_t *from = as_mem_aligned(4096, bytes), *to = as_mem_aligned(4096, bytes);
    check(from && to ? AS_OK : AS_ERR_NO_MEMORY, "memory");
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (uint32_t i = 0; i < repeats; i++) {
        seconds[i] = memcpy_once(to, from, bytes);
    }
    qsort(seconds, repeats, sizeof(seconds[0]), ascending);
    printf("{\"bench\":\"memcpy\",\"bytes\":%zu,\"gb_per_s_median\":%.3f}\n", bytes,
           (double)bytes / seconds[repeats / 2] * 1e-9);
    as_mem_free(to);
    as_mem_free(from);
}

static void measure(bench_t *bench, const char *transport, bool checksums, uint32_t repeats)
{
    static double seconds[REPEATS_MAX];
    fetch_once(bench);
    for (uint32_t i = 0; i < repeats; i++) {
        seconds[i] = fetch_once(bench);
    }
    qsort(seconds, repeats, sizeof(seconds[0]), ascending);
    double bytes = (double)BLOCKS * (double)as_block_bytes(&shape);
    printf("{\"bench\":\"fetch\",\"transport\":\"%s\",\"checksums\":%s,\"bytes\":%.0f,\"extent_"
           "bytes\":%zu,"
           "\"repeats\":%u,\"gb_per_s_median\":%.3f,\"gb_per_s_best\":%.3f}\n",
           transport, checksums ? "true" : "false", bytes, as_extent_bytes(&shape), repeats,
           bytes / seconds[repeats / 2] * 1e-9, bytes / seconds[0] * 1e-9);
    fflush(stdout);
}

static void run_client(const char *transport, bool checksums, uint32_t repeats, const char *address)
{
    bench_t bench = {0};
    assay_client_options_t options;
    assay_client_options_init(&options);
    check(as_loop_alloc_uv(&bench.loop), "loop");
    options.loop = bench.loop;
    options.net_alloc = net_alloc;
    options.verify_checksums = checksums;
    check(assay_client_alloc(&options, &bench.client), "client");
    assay_store_t store = {.node_id = NODE_ID, .capacity_bytes = 1};
    snprintf(store.data_address, sizeof(store.data_address), "%s", address);
    assay_client_set_stores(bench.client, &store, 1);
    const as_namespace_t ns = {.shape = shape, .numerics_id = "bench"};
    as_namespace_key(&ns, &bench.ns);
    int32_t tokens[BLOCKS * 64] = {0};
    as_chain_keys(&bench.ns, tokens, BLOCKS * 64, 64, bench.keys, BLOCKS);
    bench.buffer = as_mem_aligned(4096, BLOCKS * as_block_bytes(&shape));
    put_all(&bench);
    measure(&bench, transport, checksums, repeats);
    assay_client_free(bench.client);
    as_loop_free(bench.loop);
    as_mem_free(bench.buffer);
}

// UCX reads its settings once in a process: each transport has a process of its own, and that one
// forks the store.
static int run_transport(const char *transport, const char *tls, uint32_t repeats)
{
    pid_t pid = fork();
    if (pid == 0) {
        char address[64];
        setenv("UCX_TLS", tls, 1);
        pid_t server = server_start(address, sizeof(address));
        run_client(transport, true, repeats, address);
        run_client(transport, false, repeats, address);
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    uint32_t repeats = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20;
    if (repeats == 0 || repeats > REPEATS_MAX) {
        fprintf(stderr, "bench_fetch: REPEATS must be between 1 and %u\n", REPEATS_MAX);
        return 2;
    }
    measure_memcpy(repeats);
    int failed = run_transport("shm", "all", repeats);
    return run_transport("tcp", "tcp", repeats) || failed;
}
