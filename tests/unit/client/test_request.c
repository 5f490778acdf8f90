// SPDX-License-Identifier: Apache-2.0
// The requests of libassay: batches, layers, operations that are waited for, polled and cancelled,
// bounds, deadlines, figures.
#include "tests/unit/client/assay_world.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "common/fault.h"

#define LAYERS 4u

static size_t extent_bytes(void)
{
    return block_bytes / LAYERS;
}

static assay_request_t request_of(uint32_t kind, uint32_t count)
{
    return (assay_request_t){.kind = kind,
                             .keys = keys,
                             .count = count,
                             .shape = kind == ASSAY_KIND_EXISTS ? NULL : &shape,
                             .namespace_key = kind == ASSAY_KIND_PUT ? namespace_key : NULL};
}

static void assert_block(const uint8_t *bytes, uint32_t index)
{
    uint8_t *block = malloc(block_bytes);
    fill(block, index);
    assert_memory_equal(bytes, block, block_bytes);
    free(block);
}

// ---- batches

static void every_key_of_a_batch_has_a_result_of_its_own(void **state)
{
    (void)state;
    static const uint32_t asked[] = {3, 17, 0, 18, 11};
    put_all(12);
    uint8_t some[5 * 32];
    void *blocks[5];
    int32_t results[5];
    for (uint32_t i = 0; i < 5; i++) {
        memcpy(some + i * 32, keys + asked[i] * 32, 32);
        blocks[i] = calloc(1, block_bytes);
    }
    assay_request_t request = request_of(ASSAY_KIND_GET, 5);
    request.keys = some;
    request.blocks = blocks;
    request.results = results;
    uint32_t hit = 99;
    assert_int_equal(assay_run(assay, &request, &hit), ASSAY_MISS);
    assert_int_equal(hit, 1);
    for (uint32_t i = 0; i < 5; i++) {
        bool stored = asked[i] < 12;
        assert_int_equal(results[i], stored ? ASSAY_OK : ASSAY_MISS);
        if (stored) {
            assert_block(blocks[i], asked[i]);
        }
    }
    request = request_of(ASSAY_KIND_EXISTS, 5);
    request.keys = some;
    memset(results, 7, sizeof(results));
    request.results = results;
    assert_int_equal(assay_run(assay, &request, &hit), ASSAY_OK);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(results[i], asked[i] < 12 ? ASSAY_OK : ASSAY_MISS);
        free(blocks[i]);
    }
}

static void a_damaged_block_of_a_batch_is_the_only_miss(void **state)
{
    (void)state;
    put_all(12);
    uint8_t *buffer = calloc(12, block_bytes);
    int32_t results[12];
    assay_request_t request = request_of(ASSAY_KIND_GET, 12);
    request.buffer = buffer;
    request.results = results;
    as_fault_arm(AS_FAULT_fetch_extent_corrupt, 7);
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_MISS);
    as_fault_clear();
    uint32_t missed = 0;
    for (uint32_t i = 0; i < 12; i++) {
        missed += results[i] == ASSAY_MISS;
        if (results[i] == ASSAY_OK) {
            assert_block(buffer + i * block_bytes, i);
        }
    }
    assert_int_equal(missed, 1);
    free(buffer);
}

static void many_blocks_are_put_at_once_and_their_place_in_the_chain_is_kept(void **state)
{
    (void)state;
    uint8_t *buffer = calloc(BLOCKS, block_bytes);
    int32_t results[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        fill(buffer + i * block_bytes, i);
    }
    put_all(4);
    assay_request_t request = request_of(ASSAY_KIND_PUT, BLOCKS);
    request.first = 2;
    request.buffer = buffer + 2 * block_bytes;
    request.results = results;
    uint32_t hit = 0;
    assert_int_equal(assay_run(assay, &request, &hit), ASSAY_OK);
    assert_int_equal(hit, BLOCKS - 2);
    for (uint32_t i = 0; i < BLOCKS - 2; i++) {
        assert_int_equal(results[i], i < 2 ? ASSAY_EXISTS : ASSAY_OK);
    }
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_EXISTS);
    memset(buffer, 0, BLOCKS * block_bytes);
    assert_int_equal(assay_get(assay, &shape, keys, BLOCKS, buffer, &hit), ASSAY_OK);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_block(buffer + i * block_bytes, i);
    }
    free(buffer);
}

static void a_durable_put_needs_a_disk_and_says_so(void **state)
{
    (void)state;
    uint8_t *block = malloc(block_bytes);
    fill(block, 0);
    assay_request_t request = request_of(ASSAY_KIND_PUT, 1);
    request.flags = ASSAY_DURABLE;
    request.buffer = block;
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_FAILED);
    assert_non_null(strstr(assay_last_error(), "--disk"));
    free(block);
}

// ---- layers

static void some_layers_are_brought_and_checked_like_all(void **state)
{
    (void)state;
    put_all(12);
    uint8_t *buffer = calloc(12, block_bytes), *block = malloc(block_bytes);
    for (uint32_t flags = 0; flags <= ASSAY_PREFIX; flags++) {
        for (uint32_t first = 0; first < LAYERS; first++) {
            for (uint32_t count = 1; first + count <= LAYERS; count++) {
                assay_request_t request = request_of(ASSAY_KIND_GET, 12);
                request.flags = flags;
                request.first_layer = first;
                request.layer_count = count;
                request.buffer = buffer;
                memset(buffer, 0xee, 12 * block_bytes);
                uint32_t hit = 0;
                assert_int_equal(assay_run(assay, &request, &hit), ASSAY_OK);
                assert_int_equal(hit, 12);
                size_t bytes = count * extent_bytes();
                for (uint32_t i = 0; i < 12; i++) {
                    fill(block, i);
                    assert_memory_equal(buffer + i * bytes, block + first * extent_bytes(), bytes);
                }
                assert_int_equal(buffer[12 * block_bytes - 1],
                                 count == LAYERS ? block[block_bytes - 1] : 0xee);
            }
        }
    }
    assay_request_t request = request_of(ASSAY_KIND_GET, 12);
    request.flags = ASSAY_PREFIX | ASSAY_URGENT;
    request.first_layer = 2;
    request.layer_count = 1;
    request.buffer = buffer;
    as_fault_arm(AS_FAULT_fetch_extent_corrupt, 6);
    uint32_t hit = 0;
    assert_int_equal(assay_run(assay, &request, &hit), ASSAY_MISS);
    as_fault_clear();
    assert_int_equal(hit, 5);
    request.first_layer = 3;
    request.layer_count = 2;
    assert_int_equal(assay_run(assay, &request, &hit), ASSAY_INVALID);
    assert_non_null(strstr(assay_last_error(), "the shape has 4"));
    free(block);
    free(buffer);
}

// ---- operations

typedef struct seen {
    sem_t done;
    atomic_int calls, result, nested;
} seen_t;

static void on_done(void *ctx, assay_op_t *op, int result)
{
    seen_t *seen = ctx;
    uint32_t hit;
    seen->nested = assay_exists(assay, keys, 1, &hit); // would wait for its own thread
    seen->result = result;
    seen->calls++;
    assert_int_equal(assay_op_result(op), result);
    sem_post(&seen->done);
}

static void operations_end_with_a_callback_and_can_be_waited_for_and_polled(void **state)
{
    (void)state;
    put_all(12);
    uint8_t *buffer = calloc(10 * 12, block_bytes);
    assay_op_t *ops[10];
    seen_t seen = {0};
    sem_init(&seen.done, 0, 0);
    assay_request_t request = request_of(ASSAY_KIND_GET, 12);
    request.on_done = on_done;
    request.ctx = &seen;
    for (uint32_t i = 0; i < 10; i++) {
        request.buffer = buffer + i * 12 * block_bytes;
        assert_int_equal(assay_start(assay, &request, &ops[i]), ASSAY_OK);
    }
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(assay_op_wait(ops[i], 10000), ASSAY_OK);
        assert_int_equal(assay_op_result(ops[i]), ASSAY_OK);
        assert_int_equal(assay_op_hit(ops[i]), 12);
        assert_string_equal(assay_op_error(ops[i]), "");
        assert_block(buffer + (i * 12 + 11) * block_bytes, 11);
        assay_op_cancel(ops[i]); // too late: nothing
        assert_int_equal(assay_op_result(ops[i]), ASSAY_OK);
        assay_op_free(ops[i]);
    }
    assert_int_equal(seen.calls, 10);
    assert_int_equal(seen.nested, ASSAY_INVALID);
    // Without a handle the callback alone tells.
    assert_int_equal(assay_start(assay, &request, NULL), ASSAY_OK);
    for (int i = 0; i < 11; i++) {
        sem_wait(&seen.done);
    }
    assert_int_equal(seen.result, ASSAY_OK);
    sem_destroy(&seen.done);
    free(buffer);
}

static void an_operation_is_cancelled_at_every_stage(void **state)
{
    (void)state;
    put_all(12);
    uint8_t *buffer = calloc(BLOCKS, block_bytes);
    for (uint32_t kind = ASSAY_KIND_EXISTS; kind <= ASSAY_KIND_PUT; kind++) {
        assay_request_t request = request_of(kind, BLOCKS);
        int32_t results[BLOCKS];
        request.results = results;
        request.buffer = kind == ASSAY_KIND_EXISTS ? NULL : buffer;
        cluster_hold();
        assay_op_t *op;
        assert_int_equal(assay_start(assay, &request, &op), ASSAY_OK);
        assert_int_equal(assay_op_wait(op, 20), ASSAY_TIMEOUT);
        assert_int_equal(assay_op_result(op), ASSAY_PENDING);
        assay_op_cancel(op);
        assay_op_cancel(op);
        assert_int_equal(assay_op_wait(op, 5000), ASSAY_CANCELLED); // while all stands still
        assert_int_equal(results[BLOCKS - 1], ASSAY_CANCELLED);
        cluster_go_on();
        assay_op_free(op);
    }
    uint32_t hit; // and the client is as good as before
    assert_int_equal(assay_get(assay, &shape, keys, 12, buffer, &hit), ASSAY_OK);
    // Cancelled at any moment, it ends once, with one of two results.
    for (int i = 0; i < 200; i++) {
        assay_request_t request = request_of(ASSAY_KIND_GET, 12);
        request.buffer = buffer;
        assay_op_t *op;
        assert_int_equal(assay_start(assay, &request, &op), ASSAY_OK);
        int result = assay_op_wait(op, (uint32_t)i % 3);
        assay_op_cancel(op);
        result = assay_op_wait(op, 10000);
        assert_true(result == ASSAY_OK || result == ASSAY_CANCELLED);
        assay_op_free(op);
    }
    free(buffer);
}

static void each_call_has_its_own_deadline(void **state)
{
    (void)state;
    put_all(12);
    uint8_t *buffer = calloc(BLOCKS, block_bytes);
    cluster_hold();
    for (uint32_t kind = ASSAY_KIND_EXISTS; kind <= ASSAY_KIND_PUT; kind++) {
        assay_request_t request = request_of(kind, BLOCKS);
        request.buffer = kind == ASSAY_KIND_EXISTS ? NULL : buffer;
        request.timeout_ms = 60;
        uint64_t began_us = as_loop_now_us(cluster.loop);
        assert_int_equal(assay_run(assay, &request, NULL), ASSAY_TIMEOUT);
        assert_true(as_loop_now_us(cluster.loop) - began_us < 5000000);
        assert_non_null(strstr(assay_last_error(), "in time"));
    }
    cluster_go_on();
    free(buffer);
}

static void no_more_are_in_flight_than_allowed(void **state)
{
    (void)state;
    assay_t *small;
    const assay_config_t config = {.scheduler = cluster.address, .in_flight_max = 2};
    assert_int_equal(assay_open(&config, &small), ASSAY_OK);
    cluster_hold();
    assay_request_t request = request_of(ASSAY_KIND_EXISTS, 4);
    assay_op_t *ops[2], *more;
    assert_int_equal(assay_start(small, &request, &ops[0]), ASSAY_OK);
    assert_int_equal(assay_start(small, &request, &ops[1]), ASSAY_OK);
    assert_int_equal(assay_start(small, &request, &more), ASSAY_BUSY);
    assert_non_null(strstr(assay_last_error(), "in_flight_max"));
    assay_stats_t stats;
    assert_int_equal(assay_stats(small, &stats, sizeof(stats)), ASSAY_OK);
    assert_int_equal(stats.in_flight, 2);
    assert_int_equal(stats.operations, 2);
    assert_int_equal(stats.operations_busy, 1);
    cluster_go_on();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(assay_op_wait(ops[i], 10000), ASSAY_OK);
        assay_op_free(ops[i]);
    }
    assert_int_equal(assay_run(small, &request, NULL), ASSAY_OK);
    assay_close(small);
}

static void closing_ends_what_is_in_flight(void **state)
{
    (void)state;
    assay_t *other;
    const assay_config_t config = {.scheduler = cluster.address};
    assert_int_equal(assay_open(&config, &other), ASSAY_OK);
    uint8_t *buffer = calloc(3 * BLOCKS, block_bytes);
    assay_op_t *ops[3];
    cluster_hold();
    for (uint32_t kind = ASSAY_KIND_EXISTS; kind <= ASSAY_KIND_PUT; kind++) {
        assay_request_t request = request_of(kind, BLOCKS);
        request.buffer =
            kind == ASSAY_KIND_EXISTS ? NULL : buffer + (kind - 1) * BLOCKS * block_bytes;
        assert_int_equal(assay_start(other, &request, &ops[kind - 1]), ASSAY_OK);
    }
    assay_close(other);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(assay_op_wait(ops[i], 0), ASSAY_CANCELLED);
        assay_op_free(ops[i]); // outlives its client
    }
    cluster_go_on();
    free(buffer);
}

// ---- memory and figures

static void memory_is_registered_once_and_must_be_writable(void **state)
{
    (void)state;
    put_all(12);
    size_t bytes = 12 * block_bytes;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(assay_buffer_register(assay, memory, bytes), ASSAY_OK);
    unsigned char resident[1];
    assert_int_equal(mincore(memory + (bytes - 1) / 4096 * 4096, 1, resident), 0);
    assert_int_equal(resident[0] & 1, 1);
    assert_int_equal(assay_buffer_register(assay, memory + bytes - 1, 1), ASSAY_INVALID);
    assay_stats_t stats;
    assert_int_equal(assay_stats(assay, &stats, sizeof(stats)), ASSAY_OK);
    assert_int_equal(stats.buffer_bytes, bytes);
    uint32_t hit;
    assert_int_equal(assay_get(assay, &shape, keys, 12, memory, &hit), ASSAY_OK);
    assert_block(memory + 5 * block_bytes, 5);
    assert_int_equal(assay_buffer_unregister(assay, memory + 1), ASSAY_INVALID);
    assert_int_equal(assay_buffer_unregister(assay, memory), ASSAY_OK);
    assert_int_equal(assay_buffer_unregister(assay, memory), ASSAY_INVALID);
    assert_int_equal(mprotect(memory, bytes, PROT_READ), 0);
    assert_int_equal(assay_buffer_register(assay, memory, bytes), ASSAY_INVALID);
    assert_non_null(strstr(assay_last_error(), "cannot be written"));
    assert_int_equal(assay_stats(assay, &stats, sizeof(stats)), ASSAY_OK);
    assert_int_equal(stats.buffer_bytes, 0);
    munmap(memory, bytes);
}

static void figures_count_what_was_done(void **state)
{
    (void)state;
    put_all(12);
    uint8_t *buffer = calloc(BLOCKS, block_bytes);
    uint32_t hit;
    assert_int_equal(assay_get(assay, &shape, keys, BLOCKS, buffer, &hit), ASSAY_MISS);
    assay_stats_t stats;
    assert_int_equal(assay_stats(assay, &stats, sizeof(stats)), ASSAY_OK);
    assert_int_equal(stats.blocks_put, 12);
    assert_int_equal(stats.bytes_put, 12 * block_bytes);
    assert_int_equal(stats.blocks_existed, 1);
    assert_int_equal(stats.blocks_got, 12);
    assert_int_equal(stats.bytes_got, 12 * block_bytes);
    assert_int_equal(stats.blocks_missed, BLOCKS - 12);
    assert_int_equal(stats.stores, 1);
    assert_int_equal(stats.in_flight, 0);
    // A caller that knows fewer members gets those, one that knows more gets zeros.
    struct {
        assay_stats_t stats;
        uint64_t more;
    } wide;
    memset(&wide, 0xff, sizeof(wide));
    assert_int_equal(assay_stats(assay, &wide.stats, sizeof(wide)), ASSAY_OK);
    assert_int_equal(wide.more, 0);
    memset(&wide, 0xff, sizeof(wide));
    assert_int_equal(assay_stats(assay, &wide.stats, 8), ASSAY_OK);
    assert_int_equal(wide.stats.operations, stats.operations);
    assert_true(wide.stats.operations_busy == UINT64_MAX);
    free(buffer);
}

static void loading_is_weighed_against_computing_again(void **state)
{
    (void)state;
    put_all(12);
    assay_prediction_t prediction = {0};
    assert_int_equal(assay_predict(assay, &shape, keys, BLOCKS, 1e9, &prediction), ASSAY_OK);
    assert_int_equal(prediction.hit, 12);
    assert_int_equal(prediction.load_us, 0); // nothing was loaded yet: try
    assert_int_equal(prediction.load, 1);
    assert_int_equal(prediction.recompute_us, 0);
    uint8_t *buffer = calloc(12, block_bytes);
    assay_store_info_t store = {0};
    uint32_t count = 0;
    for (int i = 0; i < 1000 && store.bytes_per_s == 0; i++) {
        uint32_t hit;
        assert_int_equal(assay_get(assay, &shape, keys, 12, buffer, &hit), ASSAY_OK);
        assert_int_equal(assay_stores(assay, &store, sizeof(store), 1, &count), ASSAY_OK);
        assert_int_equal(count, 1);
    }
    assert_true(store.bytes_per_s > 0 && store.locate_us > 0 && store.connected);
    assert_int_equal(store.node_id, kvs_store_node_id(cluster.store));
    assert_int_equal(assay_predict(assay, &shape, keys, BLOCKS, 1e-3, &prediction), ASSAY_OK);
    assert_true(prediction.load_us > 0 && prediction.load == 1);
    assert_true(prediction.recompute_us == 12 * 16 * 1000000000ull);
    assert_int_equal(assay_predict(assay, &shape, keys, BLOCKS, 1e12, &prediction), ASSAY_OK);
    assert_true(prediction.load_us > 0 && prediction.load == 0);
    assert_int_equal(assay_predict(assay, &shape, keys, BLOCKS, 0, &prediction), ASSAY_INVALID);
    // The same of keys that are no chain, without waiting.
    assay_request_t request = request_of(ASSAY_KIND_EXISTS, BLOCKS);
    request.shape = &shape;
    assay_op_t *op;
    assert_int_equal(assay_start(assay, &request, &op), ASSAY_OK);
    assert_int_equal(assay_op_wait(op, 10000), ASSAY_OK);
    assert_true(assay_op_load_us(op) > 0);
    assay_op_free(op);
    free(buffer);
}

static uint64_t promotions(void)
{
    kvs_stat_t stat;
    cluster_hold();
    kvs_store_stat(cluster.store, &stat);
    cluster_go_on();
    return stat.promotions;
}

static void what_is_on_disk_only_exists_and_stays_there(void **state)
{
    (void)state;
    put_all(12);
    cluster_leave_on_disk(12);
    uint32_t hit = 99;
    int32_t results[BLOCKS];
    assert_int_equal(assay_exists(assay, keys, BLOCKS, &hit), ASSAY_OK);
    assert_int_equal(hit, 12);
    assay_request_t request = request_of(ASSAY_KIND_EXISTS, BLOCKS);
    request.results = results;
    assert_int_equal(assay_run(assay, &request, &hit), ASSAY_OK);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(results[i], i < 12 ? ASSAY_OK : ASSAY_MISS);
    }
    assay_prediction_t prediction = {0};
    assert_int_equal(assay_predict(assay, &shape, keys, BLOCKS, 1e9, &prediction), ASSAY_OK);
    assert_int_equal(prediction.hit, 12);
    assert_int_equal(promotions(), 0);
    uint8_t *buffer = calloc(12, block_bytes);
    assert_int_equal(assay_get(assay, &shape, keys, 12, buffer, &hit), ASSAY_OK);
    for (uint32_t i = 0; i < 12; i++) {
        assert_block(buffer + i * block_bytes, i);
    }
    assert_int_equal(promotions(), 12);
    free(buffer);
}

static void other_bytes_under_a_key_are_a_conflict(void **state)
{
    (void)state;
    put_all(1);
    uint8_t *block = malloc(block_bytes);
    fill(block, 7);
    assert_int_equal(assay_put(assay, &shape, namespace_key, keys, 0, block), ASSAY_CONFLICT);
    assert_non_null(strstr(assay_last_error(), "other bytes"));
    free(block);
}

static void what_this_version_does_not_know_is_refused(void **state)
{
    (void)state;
    assay_t *other;
    assay_config_t config = {.scheduler = cluster.address};
    config.reserved[8] = 1;
    assert_int_equal(assay_open(&config, &other), ASSAY_INVALID);
    assert_non_null(strstr(assay_last_error(), "= {0}"));
    assay_request_t request = request_of(ASSAY_KIND_EXISTS, 1);
    request.reserved[0] = 1;
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_INVALID);
    request = request_of(ASSAY_KIND_EXISTS, 1);
    request.flags = 1u << 9;
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_INVALID);
    request = request_of(ASSAY_KIND_EXISTS, 1);
    request.ttl_ms = 1;
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_INVALID);
    request = request_of(9, 1);
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_INVALID);
    request = request_of(ASSAY_KIND_GET, 1);
    assert_int_equal(assay_run(assay, &request, NULL), ASSAY_INVALID);
    assert_non_null(strstr(assay_last_error(), "buffer"));
    assert_string_equal(assay_result_name(ASSAY_TIMEOUT), "timeout");
    assert_string_equal(assay_result_name(ASSAY_PENDING), "pending");
    assert_string_equal(assay_result_name(77), "unknown");
    assert_int_equal(assay_block_bytes(&shape), block_bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_key_of_a_batch_has_a_result_of_its_own),
        TEST(a_damaged_block_of_a_batch_is_the_only_miss),
        TEST(many_blocks_are_put_at_once_and_their_place_in_the_chain_is_kept),
        TEST(a_durable_put_needs_a_disk_and_says_so),
        TEST(some_layers_are_brought_and_checked_like_all),
        TEST(operations_end_with_a_callback_and_can_be_waited_for_and_polled),
        TEST(an_operation_is_cancelled_at_every_stage),
        TEST(each_call_has_its_own_deadline),
        TEST(no_more_are_in_flight_than_allowed),
        TEST(closing_ends_what_is_in_flight),
        TEST(memory_is_registered_once_and_must_be_writable),
        TEST(figures_count_what_was_done),
        TEST(loading_is_weighed_against_computing_again),
        cmocka_unit_test_setup_teardown(what_is_on_disk_only_exists_and_stays_there,
                                        begin_with_disk, end_with_disk),
        TEST(other_bytes_under_a_key_are_a_conflict),
        TEST(what_this_version_does_not_know_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
