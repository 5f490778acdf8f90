// SPDX-License-Identifier: Apache-2.0
// libassay against a scheduler and a store on a thread of their own, over real gRPC and UCX.
#include "tests/unit/client/assay_world.h"

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
    int32_t token = 1;
    assert_int_equal(assay_chain(namespace_key, &token, 1, 0, keys, 1), 0);
    assert_int_equal(assay_chain(namespace_key, &token, 1, 257, keys, 1), 0);
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
