// SPDX-License-Identifier: Apache-2.0
// The client's token over UCX: renewed without a gap, refused with a reason; and tenants on disk.
#include "disk_world.h"

#include <sys/stat.h>

static char keys[64], token_file[64];

static int begin(void **state)
{
    (void)state;
    memset(&world, 0, sizeof(world));
    disk_world_begin(AS_LOG_ERROR);
    snprintf(keys, sizeof(keys), "%s/keys", directory);
    snprintf(token_file, sizeof(token_file), "%s/token", directory);
    return 0;
}

static void write_keys(void)
{
    temporary_file_write(keys,
                         "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n");
}

static as_token_sealed_t token_of(uint32_t tenant, uint32_t rights, uint64_t ttl_s)
{
    as_cluster_keys_t read;
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    as_token_sealed_t sealed;
    as_token_t token = {
        .tenant = tenant, .rights = rights, .not_after_s = as_token_now_s() + ttl_s};
    assert_int_equal(as_cluster_keys_read(keys, &read, why), AS_OK);
    assert_int_equal(as_token_sign(&read, &token, &sealed), AS_OK);
    return sealed;
}

static void open_world(void)
{
    world_options_t options = world_defaults(false);
    options.store.cluster_key = keys;
    options.client.retry_after_us = 100000;
    write_keys();
    world_open(&world, &options);
}

static void without_a_token_nothing_is_had_and_with_one_all_at_once(void **state)
{
    (void)state;
    open_world();
    as_log_set_level((as_log_level_t)(AS_LOG_ERROR + 1)); // errors are what is made
    assert_int_equal(put_block(&world, 0), AS_ERR_DENIED);
    as_token_sealed_t token = token_of(7, AS_TOKEN_READ | AS_TOKEN_WRITE, 60);
    assay_client_set_token(world.client, &token); // no wait for the next try
    put_chain(&world, 4);
    assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).status, AS_OK);
    world_pass(&world, 100000); // leases are given back behind the fetch
    assert_nothing_is_held(&world);
}

static void a_token_is_renewed_while_blocks_are_read(void **state)
{
    (void)state;
    open_world();
    as_token_sealed_t token = token_of(7, AS_TOKEN_READ | AS_TOKEN_WRITE, 2);
    char text[AS_TOKEN_TEXT_BYTES];
    as_token_format(&token, text);
    temporary_file_write(token_file, text);
    assert_int_equal(assay_client_use_token_file(world.client, token_file), AS_OK);
    put_chain(&world, 4);
    token = token_of(7, AS_TOKEN_READ, 60);
    as_token_format(&token, text);
    temporary_file_write(token_file, text);
    uint64_t until_us = as_loop_now_us(world.loop) + 4000000;
    while (as_loop_now_us(world.loop) < until_us) { // past the end of the first
        assert_int_equal(fetch_chain(&world, (fetch_ask_t){.count = 4}).status, AS_OK);
        world_pass(&world, 50000);
    }
    assert_int_equal(stat_now().denied, 0);
    assert_int_equal(put_block(&world, 5), AS_ERR_DENIED); // the new one is for reading
}

static void a_token_that_comes_while_a_store_is_connected_is_said(void **state)
{
    (void)state;
    open_world();
    as_token_sealed_t token = token_of(7, AS_TOKEN_READ | AS_TOKEN_WRITE, 2);
    put_result_t result;
    assay_put_t *put;
    assay_client_set_token(world.client, &token);
    assert_int_equal(put_start(&world, 0, world_deadline_us(&world), &result, &put), AS_OK);
    token = token_of(7, AS_TOKEN_READ | AS_TOKEN_WRITE, 60);
    assay_client_set_token(world.client, &token);
    assert_true(world_run(&world, &result.done));
    assert_int_equal(result.status, AS_OK);
    world_pass(&world, 3500000); // past the end of the first
    assert_int_equal(stat_now().denied, 0);
}

static void a_store_that_is_gone_is_not_one_that_denies(void **state)
{
    (void)state;
    open_world();
    as_log_set_level((as_log_level_t)(AS_LOG_ERROR + 1)); // errors are what is made
    assert_int_equal(put_block(&world, 0), AS_ERR_DENIED);
    assert_true(assay_client_is_denied(world.client));
    world_store_lose(&world, 0);
    world_pass(&world, 300000); // until it is tried again
    assert_int_not_equal(put_block(&world, 0), AS_OK);
    assert_false(assay_client_is_denied(world.client));
}

static void a_file_without_a_token_is_told(void **state)
{
    (void)state;
    open_world();
    as_log_set_level((as_log_level_t)(AS_LOG_ERROR + 1)); // errors are what is made
    assert_int_equal(assay_client_use_token_file(world.client, token_file), AS_ERR_CONFIG);
    temporary_file_write(token_file, "secret");
    assert_int_equal(assay_client_use_token_file(world.client, token_file), AS_ERR_CONFIG);
}

// An open store lets everybody name tenants.
static void tenants_share_a_disk_and_nothing_on_it(void **state)
{
    (void)state;
    world_options_t options = disk_world_options(32u << 20);
    world_open(&world, &options);
    world.durable = true;
    world.tenant = 1;
    put_chain(&world, 6);
    world.tenant = 2;
    world.twist = 1; // other bytes, by the same keys
    put_chain(&world, 3);
    world.twist = 0;
    start_again(&options);
    assert_int_equal(stat_now().disk_blocks, 9);
    world.tenant = 3;
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = 6});
    assert_int_equal(result.status, AS_ERR_NOT_FOUND);
    assert_int_equal(stat_now().promotions, 0); // it did not even look
    assert_int_equal(stat_now().hits, 0);
    world.tenant = 1;
    result = fetch_chain(&world, (fetch_ask_t){.count = 6});
    assert_int_equal(result.status, AS_OK);
    assert_int_equal(stat_now().promotions, 6);
    assert_true(kvs_store_drop(world.stores[0], &world.keys[0], 2));
    assert_false(kvs_store_drop(world.stores[0], &world.keys[0], 2));
    start_again(&options);
    assert_int_equal(stat_now().disk_blocks, 8);
    result = fetch_chain(&world, (fetch_ask_t){.count = 6});
    assert_int_equal(result.status, AS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_a_token_nothing_is_had_and_with_one_all_at_once,
                                        begin, disk_world_end),
        cmocka_unit_test_setup_teardown(a_token_is_renewed_while_blocks_are_read, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(a_token_that_comes_while_a_store_is_connected_is_said,
                                        begin, disk_world_end),
        cmocka_unit_test_setup_teardown(a_store_that_is_gone_is_not_one_that_denies, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(a_file_without_a_token_is_told, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(tenants_share_a_disk_and_nothing_on_it, begin,
                                        disk_world_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
