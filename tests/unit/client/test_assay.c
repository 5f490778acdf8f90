// SPDX-License-Identifier: Apache-2.0
// libassay against a scheduler and a store on a thread of their own, over real gRPC and UCX.
#include "client/assay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kvstore/kvstore.h"
#include "scheduler/scheduler.h"

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
} cluster_t;

static cluster_t cluster;
static assay_t *assay;
static const assay_shape_t shape = {4, 4, 2, 16, 16, 2};
static uint8_t namespace_key[32], keys[BLOCKS * 32];
static size_t block_bytes;

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static void *run(void *ctx)
{
    as_loop_run(ctx);
    return NULL;
}

static void cluster_start(void)
{
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    assert_int_equal(as_loop_alloc_uv(&cluster.loop), AS_OK);
    options.loop = cluster.loop;
    options.net_alloc = net_alloc;
    options.ram_bytes = 16u << 20;
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

static void cluster_stop(void)
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

static int begin(void **state)
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

static int end(void **state)
{
    (void)state;
    assay_close(assay);
    cluster_stop();
    return 0;
}

static void fill(uint8_t *block, uint32_t index)
{
    for (size_t i = 0; i < block_bytes; i++) {
        block[i] = (uint8_t)(i * 3 + index * 41 + (i >> 8));
    }
}

static void put_all(uint32_t count)
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

static void blocks_that_were_put_exist_and_are_got_in_order(void **state)
{
    (void)state;
    put_all(12);
    uint32_t hit = 99;
    assert_int_equal(assay_exists(assay, keys, BLOCKS, &hit), ASSAY_OK);
    assert_int_equal(hit, 12);
    uint8_t *buffer = calloc(BLOCKS, block_bytes), *block = malloc(block_bytes);
    assert_int_equal(assay_get(assay, &shape, keys, BLOCKS, buffer, &hit), ASSAY_MISS);
    assert_int_equal(hit, 12);
    assert_int_equal(assay_get(assay, &shape, keys, 12, buffer, &hit), ASSAY_OK);
    for (uint32_t i = 0; i < 12; i++) {
        fill(block, i);
        assert_memory_equal(buffer + i * block_bytes, block, block_bytes);
    }
    free(block);
    free(buffer);
}

static void nothing_stored_is_a_miss(void **state)
{
    (void)state;
    uint32_t hit = 99;
    uint8_t *buffer = malloc(block_bytes);
    assert_int_equal(assay_exists(assay, keys, 1, &hit), ASSAY_OK);
    assert_int_equal(hit, 0);
    assert_int_equal(assay_get(assay, &shape, keys, 1, buffer, &hit), ASSAY_MISS);
    assert_int_equal(hit, 0);
    free(buffer);
}

static void wrong_arguments_are_named(void **state)
{
    (void)state;
    uint32_t hit;
    uint8_t byte;
    assay_shape_t wrong = shape;
    wrong.element_bytes = 3;
    assert_int_equal(assay_exists(assay, keys, 0, &hit), ASSAY_INVALID);
    assert_int_equal(assay_get(assay, &wrong, keys, 1, &byte, &hit), ASSAY_INVALID);
    assert_non_null(strstr(assay_last_error(), "shape"));
    assert_int_equal(assay_put(assay, &wrong, namespace_key, keys, 0, &byte), ASSAY_INVALID);
    const assay_config_t config = {0};
    assay_t *other;
    assert_int_equal(assay_open(&config, &other), ASSAY_INVALID);
    assert_non_null(strstr(assay_last_error(), "scheduler"));
}

static void without_a_scheduler_open_says_unreachable(void **state)
{
    (void)state;
    const assay_config_t config = {.scheduler = "127.0.0.1:1", .timeout_ms = 300};
    assay_t *other;
    assert_int_equal(assay_open(&config, &other), ASSAY_UNREACHABLE);
    assert_non_null(strstr(assay_last_error(), "127.0.0.1:1"));
}

static void *hammer(void *ctx)
{
    uint8_t *buffer = malloc(12 * block_bytes);
    for (int i = 0; i < 20; i++) {
        uint32_t hit = 0;
        if (assay_get(assay, &shape, keys, 12, buffer, &hit) != ASSAY_OK || hit != 12) {
            *(int *)ctx = 1;
        }
    }
    free(buffer);
    return NULL;
}

static void many_threads_may_call_at_once(void **state)
{
    (void)state;
    put_all(12);
    pthread_t threads[4];
    int failed[4] = {0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, &failed[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(failed[i], 0);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(blocks_that_were_put_exist_and_are_got_in_order),
        TEST(nothing_stored_is_a_miss),
        TEST(wrong_arguments_are_named),
        TEST(without_a_scheduler_open_says_unreachable),
        TEST(many_threads_may_call_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
