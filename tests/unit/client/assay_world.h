// SPDX-License-Identifier: Apache-2.0
// What the tests of libassay share: a scheduler and a store on a thread of their own, over real gRPC
// and UCX, which can be held up; a disk for the store, where a test wants one; and a chain of blocks.
#ifndef ASSAY_WORLD_H
#define ASSAY_WORLD_H

#include "client/assay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kvstore/store.h"
#include "scheduler/scheduler.h"
#include "tests/unit/common/temporary_folder.h"

#define BLOCKS 20u

typedef struct cluster {
    as_loop_t *loop;
    pthread_t thread;
    sch_scheduler_t *scheduler;
    as_rpc_server_t *server;
    kvs_store_t *store;
    as_rpc_client_t *client;
    kvs_report_t *report;
    char address[64];
    as_task_t hold;
    sem_t held, go_on;
    bool is_held;
    char folder[TEMPORARY_FOLDER_BYTES]; // of the store's disk; "": none
} cluster_t;

static cluster_t cluster;
static assay_t *assay;
static const assay_shape_t shape = {4, 4, 2, 16, 16, 2};
static uint8_t namespace_key[32], keys[BLOCKS * 32];
static size_t block_bytes;

static inline as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                                    as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static inline void *run(void *ctx)
{
    as_loop_run(ctx);
    return NULL;
}

static inline void cluster_start(void)
{
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    sem_init(&cluster.held, 0, 0);
    sem_init(&cluster.go_on, 0, 0);
    assert_int_equal(as_loop_alloc_uv(&cluster.loop), AS_OK);
    options.loop = cluster.loop;
    options.net_alloc = net_alloc;
    options.ram_bytes = 16u << 20;
    options.disk_directory = cluster.folder[0] ? cluster.folder : NULL;
    options.disk_bytes = 32u << 20;
    assert_int_equal(kvs_store_alloc(&options, &cluster.store), AS_OK);
    assert_int_equal(sch_scheduler_alloc(cluster.loop, &sch_options_default, &cluster.scheduler),
                     AS_OK);
    assert_int_equal(as_rpc_server_alloc(cluster.loop, "127.0.0.1:0", NULL, &cluster.server),
                     AS_OK);
    assert_int_equal(as_rpc_server_add(cluster.server, sch_scheduler_service(cluster.scheduler)),
                     AS_OK);
    assert_int_equal(as_rpc_server_start(cluster.server), AS_OK);
    snprintf(cluster.address, sizeof(cluster.address), "%s", as_rpc_server_address(cluster.server));
    assert_int_equal(as_rpc_client_alloc(cluster.loop, cluster.address,
                                         &assay__scheduler__descriptor, NULL, &cluster.client),
                     AS_OK);
    const kvs_report_options_t report = {.store = cluster.store, .scheduler = cluster.client};
    assert_int_equal(kvs_report_alloc(&report, &cluster.report), AS_OK);
    while (!kvs_report_is_settled(cluster.report)) {
        as_loop_run_once(cluster.loop, true);
    }
    assert_int_equal(pthread_create(&cluster.thread, NULL, run, cluster.loop), 0);
}

static inline void cluster_stop(void)
{
    as_loop_stop(cluster.loop);
    pthread_join(cluster.thread, NULL);
    as_rpc_client_free(cluster.client);
    kvs_report_free(cluster.report);
    as_rpc_server_free(cluster.server);
    sch_scheduler_free(cluster.scheduler);
    kvs_store_free(cluster.store);
    as_loop_free(cluster.loop);
}

// The whole cluster stands still, as if its processes were stopped, until cluster_go_on.
static inline void on_hold(void *ctx)
{
    (void)ctx;
    sem_post(&cluster.held);
    sem_wait(&cluster.go_on);
}

static inline void cluster_hold(void)
{
    cluster.hold = (as_task_t){.fn = on_hold};
    as_loop_post(cluster.loop, &cluster.hold);
    sem_wait(&cluster.held);
    cluster.is_held = true;
}

static inline void cluster_go_on(void)
{
    cluster.is_held = false;
    sem_post(&cluster.go_on);
}

// The store forgets a block, while the cluster stands still.
static inline void cluster_drop(const uint8_t key[32])
{
    as_key_t dropped;
    memcpy(dropped.bytes, key, sizeof(dropped));
    cluster_hold();
    bool was_there = kvs_store_drop(cluster.store, &dropped, 0);
    cluster_go_on();
    assert_true(was_there);
}

// So many blocks, which were put, are on the store's disk and no longer in its RAM.
static inline void cluster_leave_on_disk(uint32_t count)
{
    for (uint64_t on_disk = 0; on_disk < count; sched_yield()) {
        kvs_stat_t stat;
        cluster_hold();
        kvs_store_stat(cluster.store, &stat);
        on_disk = stat.pins == 0 && stat.leases == 0 ? stat.disk_blocks : 0;
        if (on_disk < count) {
            cluster_go_on();
        }
    }
    kvs_index_t *index = cluster.store->index;
    for (uint32_t queue = 0; queue < KVS_QUEUES; queue++) {
        for (kvs_block_t *block; (block = kvs_index_oldest(index, queue)) != NULL;) {
            kvs_index_evict(index, block);
        }
    }
    cluster_go_on();
}

static inline int begin(void **state)
{
    (void)state;
    int32_t tokens[BLOCKS * 16];
    uint8_t fingerprint[32] = {1, 2, 3};
    for (size_t i = 0; i < BLOCKS * 16; i++) {
        tokens[i] = (int32_t)(i % 97);
    }
    block_bytes = 4 * 2 * 2 * 16 * 16 * 2;
    assert_int_equal(assay_namespace(fingerprint, &shape, "test", NULL, namespace_key), ASSAY_OK);
    assert_int_equal(assay_chain(namespace_key, tokens, BLOCKS * 16, 16, keys, BLOCKS), BLOCKS);
    cluster_start();
    const assay_config_t config = {.scheduler = cluster.address};
    assert_int_equal(assay_open(&config, &assay), ASSAY_OK);
    return 0;
}

static inline int end(void **state)
{
    (void)state;
    if (cluster.is_held) { // a test that failed
        cluster_go_on();
    }
    assay_close(assay);
    cluster_stop();
    return 0;
}

static inline int begin_with_disk(void **state)
{
    temporary_folder_make(cluster.folder);
    return begin(state);
}

static inline int end_with_disk(void **state)
{
    end(state);
    int failed = temporary_folder_remove(cluster.folder);
    cluster.folder[0] = '\0';
    return failed;
}

static inline void fill(uint8_t *block, uint32_t index)
{
    for (size_t i = 0; i < block_bytes; i++) {
        block[i] = (uint8_t)(i * 3 + index * 41 + (i >> 8));
    }
}

static inline void put_all(uint32_t count)
{
    uint8_t *block = malloc(block_bytes);
    for (uint32_t i = 0; i < count; i++) {
        fill(block, i);
        assert_int_equal(assay_put(assay, &shape, namespace_key, keys, i, block), ASSAY_OK);
    }
    fill(block, 0);
    assert_int_equal(assay_put(assay, &shape, namespace_key, keys, 0, block), ASSAY_EXISTS);
    free(block);
}

#endif
