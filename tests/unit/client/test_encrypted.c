// SPDX-License-Identifier: Apache-2.0
// A client that encrypts, on every way of reading: what stores hold is not what it puts, and what a
// store changed is a miss, also where the checksums are right.
#include "world.h"

#include "client/internal.h"
#include "common/checksum.h"
#include "common/log.h"
#include "kvstore/store.h"

static world_t world;
static bool by_messages;

static const as_shape_t shapes[] = {{4, 4, 2, 16, 16, AS_ELEMENT_F16},     // many in a message
                                    {2, 16, 16, 128, 64, AS_ELEMENT_F16}}; // alone, or in pieces

static void use_key(uint8_t first)
{
    const uint8_t key[AS_CIPHER_KEY_BYTES] = {first, 2, 3};
    as_cipher_t *cipher = NULL;
    if (first) {
        assert_int_equal(as_cipher_alloc(key, &cipher), AS_OK);
    }
    assay_client_take_cipher(world.client, cipher);
}

static void begin(bool simulated, uint32_t shape)
{
    world_options_t options = world_defaults(simulated);
    options.messages = by_messages;
    options.shape = shapes[shape];
    as_log_set_level(AS_LOG_ERROR + 1);
    world_open(&world, &options);
    use_key(1);
}

static int end(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

static kvs_block_t *stored(uint32_t block)
{
    as_key_t name;
    assay_client_names(world.client, &world.keys[block], 1, &name);
    return kvs_index_find(world.stores[0]->index, &name, AS_WIRE_FULL);
}

static as_status_t fetch(uint32_t count)
{
    return fetch_chain(&world, (fetch_ask_t){.count = count}).status;
}

static void round_trips(bool simulated)
{
    for (uint32_t shape = 0; shape < 2; shape++) {
        begin(simulated, shape);
        size_t extent_bytes = as_extent_bytes(&world.shape);
        put_chain(&world, 6);
        assert_int_equal(fetch(6), AS_OK);
        uint8_t *plain = malloc(as_block_bytes(&world.shape));
        world_fill(&world, 2, plain);
        const kvs_block_t *block = stored(2);
        assert_int_equal(block->extent_bytes, extent_bytes + AS_CIPHER_EXTRA_BYTES);
        for (uint32_t layer = 0; layer < world.shape.layers; layer++) {
            assert_memory_not_equal(kvs_index_extent(world.stores[0]->index, block, layer),
                                    plain + layer * extent_bytes, 16);
        }
        assert_null(kvs_index_find(world.stores[0]->index, &world.keys[2], AS_WIRE_FULL));
        free(plain);
        assert_int_equal(put_block(&world, 2), AS_ERR_EXISTS); // the same bytes, so no conflict
        assert_int_equal(
            fetch_chain(&world, (fetch_ask_t){.first = 1, .count = 4, .slots = 1}).status, AS_OK);
        world_let_go(&world);
        if (shape == 0) {
            world_close(&world);
        }
    }
}

static void simulated_reads_are_right(void **state)
{
    (void)state;
    round_trips(true);
}

static void reads_are_right(void **state)
{
    (void)state;
    round_trips(false);
}

static void who_has_another_key_or_none_meets_nothing(void **state)
{
    (void)state;
    begin(true, 0);
    put_chain(&world, 3);
    use_key(2);
    assert_int_equal(fetch(3), AS_ERR_NOT_FOUND);
    world.twist = 1; // other bytes: of no consequence to the first
    assert_int_equal(put_block(&world, 0), AS_OK);
    use_key(0);
    assert_int_equal(fetch(3), AS_ERR_NOT_FOUND);
    assert_int_equal(put_block(&world, 0), AS_OK);
    use_key(1);
    assert_int_equal(fetch(3), AS_OK);
    assert_int_equal(put_block(&world, 0), AS_ERR_CONFLICT); // now it is of consequence
}

// As a store does that makes its checksums right.
static void change(uint32_t block, uint32_t layer, const uint8_t *bytes)
{
    kvs_index_t *index = world.stores[0]->index;
    kvs_block_t *at = stored(block);
    uint8_t *extent = kvs_index_extent(index, at, layer);
    memcpy(extent, bytes, at->extent_bytes);
    kvs_index_crcs(index, at)[layer] = as_crc32c(0, extent, at->extent_bytes);
}

static void what_a_store_changed_is_a_miss(void **state)
{
    (void)state;
    begin(true, 0);
    put_chain(&world, 3);
    kvs_index_t *index = world.stores[0]->index;
    size_t bytes = stored(0)->extent_bytes;
    uint8_t *kept = malloc(bytes), *changed = malloc(bytes);
    int64_t before = as_metric_value(&assay_metrics[ASSAY_METRIC_CIPHER_FAILURES]);
    memcpy(kept, kvs_index_extent(index, stored(1), 2), bytes);
    memcpy(changed, kept, bytes);
    changed[bytes / 2] ^= 4;
    change(1, 2, changed);
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 3});
    assert_int_equal(result.status, AS_ERR_CHECKSUM);
    assert_int_equal(result.hole, 1);
    change(1, 2, kvs_index_extent(index, stored(1), 3)); // of another layer
    assert_int_equal(fetch(3), AS_ERR_CHECKSUM);
    change(1, 2, kvs_index_extent(index, stored(0), 2)); // of another block
    assert_int_equal(fetch(3), AS_ERR_CHECKSUM);
    assert_true(as_metric_value(&assay_metrics[ASSAY_METRIC_CIPHER_FAILURES]) >= before + 3);
    change(1, 2, kept);
    assert_int_equal(fetch(3), AS_OK);
    free(kept);
    free(changed);
}

static void what_is_too_large_once_encrypted_is_refused_before_it_is_sent(void **state)
{
    (void)state;
    begin(true, 0);
    world.shape = (as_shape_t){1, 32, 32, 256, 256, AS_ELEMENT_F32};
    assert_int_equal(as_extent_bytes(&world.shape), AS_WIRE_EXTENT_BYTES_MAX);
    put_result_t put;
    assay_put_t *handle;
    fetch_result_t result;
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &put, &handle), AS_ERR_LIMIT);
    assert_int_equal(fetch_begin(&world, (fetch_ask_t){.count = 1}, &result), AS_ERR_LIMIT);
}

static void any_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    begin(true, 0);
    put_chain(&world, 2);
    for (uint64_t n = 1; n < 60; n++) {
        fetch_result_t result;
        as_mem_fail_nth(n);
        as_status_t status = fetch_begin(&world, (fetch_ask_t){.count = 2}, &result);
        if (status == AS_OK) {
            assert_true(world_run(&world, &result.done));
            assert_int_equal(result.wrong, 0);
            fetch_free(&result);
        }
        put_result_t put;
        assay_put_t *handle;
        if (put_start(&world, 1, world_deadline_us(&world), &put, &handle) == AS_OK) {
            assert_true(world_run(&world, &put.done));
        }
        as_mem_fail_nth(0);
    }
    assert_int_equal(fetch(2), AS_OK);
}

#define TEST(name) cmocka_unit_test_teardown(name, end)

int main(int argc, char **argv)
{
    const struct CMUnitTest simulated[] = {
        TEST(simulated_reads_are_right),
        TEST(who_has_another_key_or_none_meets_nothing),
        TEST(what_a_store_changed_is_a_miss),
        TEST(what_is_too_large_once_encrypted_is_refused_before_it_is_sent),
        TEST(any_failed_allocation_is_an_error_and_leaks_nothing),
    };
    const struct CMUnitTest over_ucx[] = {TEST(reads_are_right)};
    if (argc > 1) {
        return cmocka_run_group_tests_name("over UCX by TCP", over_ucx, NULL, NULL);
    }
    int failed = cmocka_run_group_tests_name("one-sided reads", simulated, NULL, NULL);
    by_messages = true;
    failed += cmocka_run_group_tests_name("messages", simulated, NULL, NULL);
    failed += cmocka_run_group_tests_name("over UCX", over_ucx, NULL, NULL);
    return failed > 0 ? failed : world_again_by_tcp(argv[0]);
}
