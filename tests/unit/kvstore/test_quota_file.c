// SPDX-License-Identifier: Apache-2.0
// Quotas from a file: what is taken and refused, and a store that has them from the start, of owners and
// of all owners of a tenant.
#include "../client/disk_world.h"

#include "kvstore/quota_file.h"
#include "tests/unit/common/capture.h"

#define IMAGE_BYTES 12288u // of the blocks of a small world
#define KEY         "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static kvs_quota_rows_t rows;
static char why[KVS_QUOTA_WHY_BYTES];
static char path[] = "/tmp/assay_quota_XXXXXX";

static as_status_t parse(const char *text)
{
    return kvs_quota_rows_parse(text, strlen(text), &rows, why);
}

static void a_file_is_read_line_by_line(void **state)
{
    (void)state;
    assert_int_equal(parse("# comment\n\n 7\t*  10GiB\r\n7 " KEY " 512MiB\n0 " KEY " 4096"), AS_OK);
    assert_int_equal(rows.count, 3);
    assert_true(rows.rows[0].is_total && rows.rows[0].owner.tenant == 7);
    assert_int_equal(rows.rows[0].bytes, 10ull << 30);
    assert_true(!rows.rows[1].is_total && rows.rows[1].bytes == 512u << 20);
    assert_int_equal(rows.rows[1].owner.namespace_key.bytes[1], 0x11);
    assert_true(rows.rows[2].owner.tenant == 0 && rows.rows[2].bytes == 4096);
    assert_int_equal(rows.rows[2].line, 5);
    assert_int_equal(parse(""), AS_OK);
    assert_int_equal(rows.count, 0);
}

static void a_wrong_line_is_named_with_what_is_right(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"7 *", "line 1 must be TENANT NAMESPACE BYTES"},
        {"\n7 * 1GiB 2", "line 2 must be"},
        {"x * 1GiB", "begins with no tenant"},
        {"4294967296 * 1GiB", "begins with no tenant"},
        {"-1 * 1GiB", "begins with no tenant"},
        {"1 abc 1GiB", "names no namespace"},
        {"1 * 0", "ends with no size above 0"},
        {"1 * 1GB", "ends with no size"},
        {"1 * 99999999999999999999", "ends with no size"},
        {"1 * 1G\n2 * 1G\n1 * 2G", "line 3 is of the same as line 1"},
        {"1 " KEY " 1G\n1 " KEY " 1G", "line 2 is of the same as line 1"},
        {"1 " KEY KEY " 1G", "line 1 must be"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(parse(wrong[i].text), AS_ERR_INVALID);
        if (!strstr(why, wrong[i].says)) {
            fail_msg("case %zu says: %s", i, why);
        }
    }
    static char many[KVS_QUOTA_FILE_BYTES];
    for (uint32_t i = 0, at = 0; i <= KVS_QUOTA_ROWS_MAX; i++) {
        at += (uint32_t)snprintf(many + at, sizeof(many) - at, "%u * 1G\n", i);
    }
    assert_int_equal(parse(many), AS_ERR_LIMIT);
    assert_non_null(strstr(why, "line 513 is one quota too many"));
}

// ---- in a store

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR);
    return 0;
}

static void put_all(const char *numerics, uint32_t count)
{
    world_use_namespace(&world, numerics);
    for (uint32_t n = 0; n < count; n++) {
        as_status_t status = put_until_it_fits(&world, n);
        assert_true(status == AS_OK || status == AS_ERR_EXISTS);
    }
}

static size_t bytes_of(const char *numerics)
{
    world_use_namespace(&world, numerics);
    kvs_accounts_t *accounts = kvs_index_accounts(world.stores[0]->index);
    uint32_t at = kvs_account_find(accounts, &(kvs_owner_t){world.namespace_key, 0});
    return at == KVS_ACCOUNT_NONE ? 0 : kvs_account_at(accounts, at)->bytes / IMAGE_BYTES;
}

static size_t total(void)
{
    return kvs_quota_total(kvs_index_accounts(world.stores[0]->index), 0)->bytes / IMAGE_BYTES;
}

static void write_file(const char *format, unsigned long blocks)
{
    char hex[65], text[256];
    as_key_hex(&world.namespace_key, hex);
    snprintf(text, sizeof(text), format, blocks * IMAGE_BYTES, hex, blocks * IMAGE_BYTES);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void open_store(void)
{
    world_options_t options = world_defaults(true);
    options.store.ram_bytes = (size_t)100 * IMAGE_BYTES;
    options.store.quota_file = path;
    world_open(&world, &options);
}

static void a_tenant_has_no_more_than_its_total(void **state)
{
    (void)state;
    write_file("0 * %lu\n", 30);
    open_store();
    put_all("one", 25);
    put_all("two", 40);
    put_all("three", 10);
    assert_true(total() <= 30 && total() >= 26);
    assert_int_equal(bytes_of("one") + bytes_of("two") + bytes_of("three"), total());
    assert_true(bytes_of("one") > 0 && bytes_of("two") > 0 && bytes_of("three") > 0);
    assert_int_equal(stat_now().evictions, 0);
    write_file("0 * %lu\n", 10); // less than there is
    kvs_store_reload(world.stores[0]);
    world_pass(&world, 10000);
    assert_true(total() <= 10);
    write_file("# none\n", 0);
    kvs_store_reload(world.stores[0]);
    assert_null(kvs_quota_total(kvs_index_accounts(world.stores[0]->index), 0));
    put_all("two", 60);
    assert_true(bytes_of("two") >= 60);
    assert_nothing_is_held(&world);
}

static void a_bad_file_leaves_what_is_in_force(void **state)
{
    (void)state;
    world_use_namespace(&world, "ours");
    write_file("0 * %lu\n0 %s %lu\n", 20);
    open_store();
    put_all("ours", 60);
    assert_true(bytes_of("ours") <= 20);
    write_file("0 * 1GiB\n0 * 2GiB\n", 0);
    capture_t capture;
    capture_begin(&capture);
    kvs_store_reload(world.stores[0]);
    assert_non_null(strstr(capture_end(&capture), "line 2 is of the same as line 1"));
    put_all("ours", 60);
    assert_true(bytes_of("ours") <= 20);
    assert_int_equal(as_metric_value(&kvs_metrics[KVS_METRIC_QUOTA_ROWS]), 2);
    unlink(path);
    kvs_store_reload(world.stores[0]);
    put_all("ours", 30);
    assert_true(bytes_of("ours") <= 20);
}

static void a_file_that_asks_for_no_further_account_is_taken_when_there_is_none(void **state)
{
    (void)state;
    world_use_namespace(&world, "ours");
    write_file("0 * %lu\n0 %s %lu\n", 20);
    open_store();
    world_use_namespace(&world, "ours");
    kvs_accounts_t *accounts = kvs_index_accounts(world.stores[0]->index);
    kvs_owner_t owner = {.tenant = 7};
    for (uint32_t n = 0; kvs_quota_set(accounts, &owner, 1) == AS_OK; n++) {
        memcpy(owner.namespace_key.bytes, &n, sizeof(n));
    }
    assert_false(kvs_accounts_have_room(accounts, 1));
    int64_t refused = as_metric_value(&kvs_metrics[KVS_METRIC_QUOTAS_REFUSED]);
    kvs_store_reload(world.stores[0]);
    write_file("0 * %lu\n0 %s %lu\n", 30);
    kvs_store_reload(world.stores[0]);
    assert_int_equal(as_metric_value(&kvs_metrics[KVS_METRIC_QUOTAS_REFUSED]), refused);
    owner = (kvs_owner_t){world.namespace_key, 0};
    assert_int_equal(kvs_quota_of(accounts, kvs_account_find(accounts, &owner)), 30 * IMAGE_BYTES);
    world_use_namespace(&world, "another");
    write_file("0 * %lu\n0 %s %lu\n", 10);
    kvs_store_reload(world.stores[0]);
    assert_int_equal(as_metric_value(&kvs_metrics[KVS_METRIC_QUOTAS_REFUSED]), refused + 1);
    assert_int_equal(kvs_quota_of(accounts, kvs_account_find(accounts, &owner)), 30 * IMAGE_BYTES);
}

static int make_path(void **state)
{
    (void)state;
    int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_path(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_line_by_line),
        cmocka_unit_test(a_wrong_line_is_named_with_what_is_right),
        cmocka_unit_test_setup_teardown(a_tenant_has_no_more_than_its_total, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(a_bad_file_leaves_what_is_in_force, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(
            a_file_that_asks_for_no_further_account_is_taken_when_there_is_none, begin,
            disk_world_end),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
