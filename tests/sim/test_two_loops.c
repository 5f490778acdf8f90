// SPDX-License-Identifier: Apache-2.0
// The engine on a thread of its own, as in the daemon: real loops, real UCX, a real store. What the
// simulation cannot show is here: the hand-over between the two threads (run it under the thread
// sanitizer).
#include <pthread.h> // not threads.h: the thread sanitizer does not see its threads
#include <sched.h>

#include "../unit/gpuworker/worker_fixture.h"
#include "client/client.h"
#include "common/log.h"
#include "gpuworker/resident/compressor.h"
#include "kvstore/kvstore.h"

#define WAIT_US 60000000u // no step may wait longer

static gpw_push_down_t push_down; // of the workers that follow

typedef struct pair {
    as_loop_t *io, *engine;
    pthread_t thread;
    kvs_store_t *store;
    assay_client_t *client;
    gpw_worker_t *worker;
} pair_t;

static as_status_t net_alloc(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p)
{
    (void)ctx;
    return as_net_alloc_ucx(loop, handlers, net_p);
}

static void *engine_main(void *ctx)
{
    as_loop_run(ctx);
    return NULL;
}

static void open_store(pair_t *pair)
{
    kvs_store_options_t options;
    kvs_store_options_init(&options);
    options.loop = pair->io;
    options.net_alloc = net_alloc;
    options.ram_bytes = 16u << 20;
    options.instance_id[0] = 1;
    assert_int_equal(kvs_store_alloc(&options, &pair->store), AS_OK);
    assay_client_options_t client;
    assay_client_options_init(&client);
    client.loop = pair->io;
    client.net_alloc = net_alloc;
    assert_int_equal(assay_client_alloc(&client, &pair->client), AS_OK);
    assay_store_t store = {.node_id = kvs_store_node_id(pair->store), .capacity_bytes = 1u << 24};
    snprintf(store.data_address, sizeof(store.data_address), "%s", kvs_store_address(pair->store));
    assay_client_set_stores(pair->client, &store, 1);
}

static void pair_open(pair_t *pair, const gpw_model_t *model)
{
    assert_int_equal(as_loop_alloc_uv(&pair->io), AS_OK);
    assert_int_equal(as_loop_alloc_uv(&pair->engine), AS_OK);
    open_store(pair);
    gpw_worker_options_t options = rig_options(model, 16);
    options.io_loop = pair->io;
    options.engine_loop = pair->engine;
    options.client = pair->client;
    options.threads = 2;
    options.push_down = push_down;
    assert_int_equal(gpw_worker_alloc(&options, &pair->worker), AS_OK);
    assert_int_equal(pthread_create(&pair->thread, NULL, engine_main, pair->engine), 0);
}

static void pair_close(pair_t *pair)
{
    as_loop_stop(pair->engine);
    pthread_join(pair->thread, NULL);
    assay_client_free(pair->client);
    gpw_worker_free(pair->worker);
    kvs_store_free(pair->store);
    as_loop_free(pair->engine);
    as_loop_free(pair->io);
}

static void wait_idle(pair_t *pair)
{
    uint64_t give_up_us = as_loop_now_us(pair->io) + WAIT_US;
    while (!gpw_worker_idle(pair->worker)) {
        as_loop_run_once(pair->io, false);
        sched_yield();
        assert_true(as_loop_now_us(pair->io) < give_up_us);
    }
}

static gpw_request_params_t long_request(int32_t *prompt)
{
    prompt_make(prompt, 300, 0, 77);
    gpw_request_params_t params = request_params(prompt, 300, 120);
    params.horizon = 8;
    params.horizon_set = true;
    return params;
}

static void answers_are_the_same_across_two_threads_and_a_store(void **state)
{
    (void)state;
    static int32_t prompt[300];
    static answer_t expected;
    gpw_model_t *model = tiny_load(4);
    gpw_request_params_t params = long_request(prompt);
    rig_t rig = rig_open(rig_options(model, 16));
    answer_submit(rig.worker, &params, &expected);
    rig_run(&rig);
    rig_close(&rig);

    pair_t pair;
    pair_open(&pair, model);
    const char *compressors[64] = {"none"};
    uint32_t compressor_count = 1;
    for (EACH_TRIED_COMPRESSOR(c)) {
        assert_true(compressor_count < 64);
        compressors[compressor_count++] = c->name;
    }
    uint32_t count = 2 * compressor_count;
    answer_t *answers = calloc(count, sizeof(*answers));
    assert_non_null(answers);
    for (uint32_t i = 0; i < count; i++) {
        params.compressor = compressors[i % compressor_count];
        answer_submit(pair.worker, &params, &answers[i]);
        if (i % 2 == 0) {
            wait_idle(&pair);
        }
    }
    wait_idle(&pair);
    uint64_t swapped = 0, pushed = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(answers[i].status, AS_OK);
        answer_compare(&answers[i], &expected, compressors[i % compressor_count]);
        swapped += answers[i].usage.swapped_bytes;
        pushed += answers[i].usage.pushed_verifications;
    }
    assert_int_equal(answers[0].usage.cached_tokens, 0);
    assert_int_equal(answers[count - 1].usage.cached_tokens, 288);
    assert_true(push_down == GPW_PUSH_DOWN_ON ? pushed > 0 : swapped > 0 && pushed == 0);
    free(answers);
    pair_close(&pair);
    gpw_model_free(model);
}

static void cancels_from_the_other_thread_end_every_request(void **state)
{
    (void)state;
    static int32_t prompt[300];
    static answer_t answers[16];
    gpw_model_t *model = tiny_load(4);
    gpw_request_params_t params = long_request(prompt);
    params.compressor = "kivi2";
    pair_t pair;
    pair_open(&pair, model);
    for (int i = 0; i < 16; i++) {
        answer_submit(pair.worker, &params, &answers[i]);
        for (int spin = 0; spin < i * 40; spin++) {
            as_loop_run_once(pair.io, false);
        }
        gpw_worker_cancel(pair.worker, answers[i].id);
    }
    wait_idle(&pair);
    for (int i = 0; i < 16; i++) {
        assert_true(answers[i].finished);
        assert_true(answers[i].status == AS_ERR_CANCELLED || answers[i].status == AS_OK);
    }
    pair_close(&pair);
    gpw_model_free(model);
}

static void a_worker_may_go_in_mid_request(void **state)
{
    (void)state;
    static int32_t prompt[300];
    gpw_model_t *model = tiny_load(4);
    gpw_request_params_t params = long_request(prompt);
    params.compressor = "streaming";
    for (int spins = 0; spins < 400; spins += 57) {
        static answer_t answers[3];
        pair_t pair;
        pair_open(&pair, model);
        for (int i = 0; i < 3; i++) {
            answer_submit(pair.worker, &params, &answers[i]);
        }
        for (int spin = 0; spin < spins; spin++) {
            as_loop_run_once(pair.io, false);
        }
        pair_close(&pair);
        for (int i = 0; i < 3; i++) {
            assert_true(answers[i].finished);
        }
    }
    gpw_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_across_two_threads_and_a_store),
        cmocka_unit_test(cancels_from_the_other_thread_end_every_request),
        cmocka_unit_test(a_worker_may_go_in_mid_request),
    };
    int failed = cmocka_run_group_tests_name("swap", tests, NULL, NULL);
    push_down = GPW_PUSH_DOWN_ON;
    return failed + cmocka_run_group_tests_name("push down", tests, NULL, NULL);
}
