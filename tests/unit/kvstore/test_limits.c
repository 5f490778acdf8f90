// SPDX-License-Identifier: Apache-2.0
// A store and what its operator decides: pins, quotas of owners, purging a namespace.
#include "../client/disk_world.h"

#include "common/rpc_internal.h"
#include "common/rpc_peer.h"
#include "proto/kvstore.pb-c.h"
#include "tests/unit/common/capture.h"

#define IMAGE_BYTES 12288u // of the blocks of a small world

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR);
    return 0;
}

static bool is_here(uint32_t n)
{
    return kvs_index_find(world.stores[0]->index, &world.keys[n], AS_WIRE_FULL) != NULL;
}

static uint32_t count_here(uint32_t blocks)
{
    uint32_t here = 0;
    for (uint32_t n = 0; n < blocks; n++) {
        here += is_here(n);
    }
    return here;
}

static world_options_t small_pool(uint32_t blocks)
{
    world_options_t options = world_defaults(true);
    options.store.ram_bytes = (size_t)blocks * IMAGE_BYTES;
    return options;
}

static const kvs_owner_t *owner_now(void)
{
    static kvs_owner_t owner;
    owner = (kvs_owner_t){world.namespace_key, 0};
    return &owner;
}

static void a_quota_takes_its_owners_blocks_only(void **state)
{
    (void)state;
    world_options_t options = small_pool(60);
    options.store.quota_bytes = 20 * IMAGE_BYTES;
    world_open(&world, &options);
    world_use_namespace(&world, "quiet");
    put_chain(&world, 15);
    world_use_namespace(&world, "loud");
    for (uint32_t n = 0; n < 60; n++) {
        assert_int_equal(put_until_it_fits(&world, n), AS_OK);
        uint32_t account =
            kvs_account_find(kvs_index_accounts(world.stores[0]->index), owner_now());
        assert_true(kvs_account_at(kvs_index_accounts(world.stores[0]->index), account)->bytes <=
                    20 * IMAGE_BYTES);
    }
    assert_true(count_here(60) <= 20 && count_here(60) >= 17);
    world_use_namespace(&world, "quiet");
    assert_int_equal(count_here(15), 15);
    assert_int_equal(stat_now().evictions, 0);
    assert_true(stat_now().quota_evictions >= 40);
    assert_nothing_is_held(&world);
}

static void a_quota_of_ones_own_holds_at_once(void **state)
{
    (void)state;
    world_options_t options = small_pool(60);
    world_open(&world, &options);
    put_chain(&world, 40);
    assert_int_equal(kvs_store_set_quota(world.stores[0], owner_now(), 10 * IMAGE_BYTES), AS_OK);
    world_pass(&world, 10000);
    assert_int_equal(count_here(40), 9); // the low mark
    assert_int_equal(kvs_store_set_quota(world.stores[0], owner_now(), IMAGE_BYTES - 1), AS_OK);
    world_pass(&world, 10000);
    assert_int_equal(count_here(40), 0);
    assert_int_equal(put_block(&world, 0), AS_ERR_LIMIT); // will never fit
    assert_int_equal(kvs_store_set_quota(world.stores[0], owner_now(), KVS_QUOTA_NONE), AS_OK);
    put_chain(&world, 40);
    assert_int_equal(count_here(40), 40);
}

static uint32_t pin_all(uint32_t count, kvs_guard_t guard)
{
    uint32_t pinned = 0;
    for (uint32_t n = 0; n < count; n++) {
        as_status_t status = kvs_store_pin(world.stores[0], &world.keys[n], 0, guard);
        assert_true(status == AS_OK || status == AS_ERR_LIMIT);
        pinned += status == AS_OK;
    }
    return pinned;
}

static void pinned_blocks_outlive_a_flood(void **state)
{
    (void)state;
    world_options_t options = small_pool(40);
    world_open(&world, &options);
    world_use_namespace(&world, "pinned");
    put_chain(&world, 6);
    assert_int_equal(pin_all(6, KVS_GUARD_HARD), 6);
    world_use_namespace(&world, "softly");
    put_chain(&world, 6);
    assert_int_equal(pin_all(6, KVS_GUARD_SOFT), 6);
    world_use_namespace(&world, "flood");
    for (uint32_t n = 0; n < WORLD_BLOCKS_MAX; n++) {
        assert_int_equal(put_until_it_fits(&world, n), AS_OK);
    }
    world_use_namespace(&world, "another flood");
    for (uint32_t n = 0; n < 36; n++) {
        assert_int_equal(put_until_it_fits(&world, n), AS_OK);
        assert_int_equal(kvs_store_pin(world.stores[0], &world.keys[n], 0, KVS_GUARD_SOFT), AS_OK);
    }
    world_use_namespace(&world, "pinned");
    assert_int_equal(count_here(6), 6);
    world_use_namespace(&world, "softly");
    assert_int_equal(count_here(6), 0); // nothing else could go, and they were the oldest
    assert_true(kvs_store_unpin_all(world.stores[0]) > 20);
    assert_int_equal(stat_now().hard_bytes + stat_now().soft_bytes, 0);
}

static void hard_pins_have_a_share_of_the_pool(void **state)
{
    (void)state;
    world_options_t options = small_pool(40);
    options.store.pin_percent = 20;
    world_open(&world, &options);
    put_chain(&world, 30);
    size_t each = as_block_bytes(&world.shape);
    assert_int_equal(pin_all(30, KVS_GUARD_HARD), 8 * IMAGE_BYTES / each);
    assert_int_equal(stat_now().hard_bytes, 8 * IMAGE_BYTES / each * each);
    assert_int_equal(pin_all(30, KVS_GUARD_SOFT), 30);
    assert_int_equal(stat_now().hard_bytes, 0);
    assert_int_equal(kvs_store_pin(world.stores[0], &world.keys[30], 0, KVS_GUARD_HARD),
                     AS_ERR_NOT_FOUND);
    assert_true(
        kvs_store_drop(world.stores[0], &world.keys[29], 0)); // a pin is against eviction only
    assert_int_equal(stat_now().soft_bytes, 29 * each);
}

// ---- the admin service

static struct {
    bool called, failed;
    uint64_t count, missing, refused;
    uint64_t quota_bytes;
} told;

static void on_pin(const Assay__StorePinReply *reply, void *ctx)
{
    (void)ctx;
    told.called = true;
    told.failed = !reply;
    told.count = reply ? reply->pinned : 0;
    told.missing = reply ? reply->missing : 0;
    told.refused = reply ? reply->refused : 0;
}

static void on_unpin(const Assay__StoreUnpinReply *reply, void *ctx)
{
    (void)ctx;
    told.called = true;
    told.failed = !reply;
    told.count = reply ? reply->unpinned : 0;
}

static void on_drop(const Assay__StoreDropReply *reply, void *ctx)
{
    (void)ctx;
    told.called = true;
    told.failed = !reply;
    told.count = reply ? reply->dropped : 0;
}

static void on_quota(const Assay__StoreQuotaReply *reply, void *ctx)
{
    (void)ctx;
    told.called = true;
    told.failed = !reply;
    told.count = reply ? reply->n_accounts : 0;
    told.quota_bytes = reply && reply->n_accounts == 1 ? reply->accounts[0]->quota_bytes : 0;
}

static void the_admin_service_pins_and_unpins(void **state)
{
    (void)state;
    world_options_t options = small_pool(40);
    options.store.pin_percent = 20;
    world_open(&world, &options);
    put_chain(&world, 30);
    ProtobufCService *service = kvs_admin_service(world.stores[0]);
    ProtobufCBinaryData keys[31];
    for (uint32_t n = 0; n < 31; n++) {
        keys[n] = (ProtobufCBinaryData){32, world.keys[n].bytes};
    }
    Assay__StorePinRequest pin = ASSAY__STORE_PIN_REQUEST__INIT;
    pin.keys = keys;
    pin.n_keys = 31;
    pin.level = ASSAY__PIN_LEVEL__PIN_LEVEL_HARD;
    assay__store__pin(service, &pin, on_pin, NULL);
    assert_true(told.called && !told.failed);
    assert_int_equal(told.count, 8 * IMAGE_BYTES / as_block_bytes(&world.shape));
    assert_int_equal(told.missing, 1);
    assert_int_equal(told.count + told.refused, 30);
    Assay__StoreUnpinRequest unpin = ASSAY__STORE_UNPIN_REQUEST__INIT;
    assay__store__unpin(service, &unpin, on_unpin, NULL);
    assert_int_equal(told.count, 30 - told.refused);
    assert_int_equal(stat_now().hard_bytes, 0);
}

static void the_admin_service_shows_and_sets_quotas(void **state)
{
    (void)state;
    world_options_t options = small_pool(60);
    world_open(&world, &options);
    put_chain(&world, 5);
    world_use_namespace(&world, "other");
    put_chain(&world, 5);
    ProtobufCService *service = kvs_admin_service(world.stores[0]);
    Assay__StoreQuotaRequest quota = ASSAY__STORE_QUOTA_REQUEST__INIT;
    assay__store__quota(service, &quota, on_quota, NULL);
    assert_int_equal(told.count, 2);
    quota.namespace_key = (ProtobufCBinaryData){32, world.namespace_key.bytes};
    quota.set = true;
    quota.bytes = 2 * IMAGE_BYTES;
    assay__store__quota(service, &quota, on_quota, NULL);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.quota_bytes, 2 * IMAGE_BYTES);
    world_pass(&world, 10000);
    assert_int_equal(count_here(5), 1);
    quota.set = false;
    quota.reset = true;
    assay__store__quota(service, &quota, on_quota, NULL);
    assert_int_equal(told.quota_bytes, 0);
    Assay__StoreDropRequest drop = ASSAY__STORE_DROP_REQUEST__INIT;
    drop.namespace_key = (ProtobufCBinaryData){32, world.namespace_key.bytes};
    assay__store__drop(service, &drop, on_drop, NULL);
    assert_int_equal(told.count, 1);
    assert_int_equal(stat_now().blocks, 5);
}

static uint32_t refusals;
static as_status_t refusal;

static void on_refused(as_rpc_pending_t *pending, as_status_t status, const char *text)
{
    (void)pending;
    (void)text;
    refusals += status == AS_ERR_DENIED;
    refusal = status;
}

static void all_blocks_are_not_those_of_one_tenant(void **state)
{
    (void)state;
    as_rpc_pending_t asker = {.fail = on_refused};
    world_options_t options = small_pool(40);
    world_open(&world, &options);
    put_chain(&world, 5);
    Assay__StoreDropRequest drop = ASSAY__STORE_DROP_REQUEST__INIT;
    drop.tenant = 7;
    assay__store__drop(kvs_admin_service(world.stores[0]), &drop, NULL, &asker);
    assert_int_equal(refusal, AS_ERR_INVALID);
    assert_int_equal(stat_now().blocks, 5);
}

static void who_is_denied_again_and_again_is_one_line_a_second(void **state)
{
    (void)state;
    static const char *const operators[] = {"chief", NULL};
    as_rpc_pending_t nobody = {.fail = on_refused};
    world_options_t options = small_pool(40);
    world_open(&world, &options);
    Assay__StoreScrubRequest scrub = ASSAY__STORE_SCRUB_REQUEST__INIT;
    scrub.start = true;
    as_log_set_level(AS_LOG_WARN);
    as_rpc_set_operators(operators);
    unsigned long before = as_log_count(AS_LOG_WARN);
    capture_t capture;
    capture_begin(&capture);
    for (uint32_t i = 0; i < 9; i++) {
        assay__store__scrub(kvs_admin_service(world.stores[0]), &scrub, NULL, &nobody);
        world_pass(&world, i == 7 ? 1100000 : 1000);
    }
    const char *said = capture_end(&capture);
    as_rpc_set_operators(NULL);
    assert_int_equal(refusals, 9);
    assert_int_equal(as_log_count(AS_LOG_WARN) - before, 2);
    assert_non_null(strstr(said, "nobody of --operator (and 0 more"));
    assert_non_null(strstr(said, "nobody of --operator (and 7 more"));
}

// Of a tenant with a namespace for every block, and of quotas for the rest.
static void the_last_account_is_no_reason_to_evict(void **state)
{
    (void)state;
    world_options_t options = small_pool(40);
    world_open(&world, &options);
    put_chain(&world, 20);
    kvs_accounts_t *accounts = kvs_index_accounts(world.stores[0]->index);
    kvs_owner_t owner = {.tenant = 7};
    uint32_t n = 0, at;
    while (kvs_account_charge(accounts, &owner, 0, &at) == AS_OK) {
        n++;
        memcpy(owner.namespace_key.bytes, &n, sizeof(n));
    }
    assert_int_equal(n, kvs_accounts_max(accounts) / 2);
    world_use_namespace(&world, "of another tenant");
    assert_int_equal(put_block(&world, 0), AS_OK);
    while (kvs_quota_set(accounts, &owner, 1) == AS_OK) {
        n++;
        memcpy(owner.namespace_key.bytes, &n, sizeof(n));
    }
    assert_int_equal(put_block(&world, 1), AS_OK);
    world_use_namespace(&world, "one too many");
    assert_int_equal(put_block(&world, 0), AS_ERR_BUSY);
    world_pass(&world, 10000);
    assert_int_equal(stat_now().evictions, 0);
    assert_int_equal(stat_now().blocks, 22);
}

static void a_purge_forgets_one_namespace(void **state)
{
    (void)state;
    world_options_t options = disk_world_options(32u << 20);
    world_open(&world, &options);
    world.durable = true;
    put_chain(&world, 12);
    const kvs_owner_t old = *owner_now();
    world_use_namespace(&world, "next weights");
    put_chain(&world, 9);
    const kvs_owner_t again = *owner_now();
    assert_int_equal(kvs_store_purge(world.stores[0], &old), 12);
    assert_int_equal(kvs_store_purge(world.stores[0], &old), 0);
    assert_int_equal(count_here(9), 9);
    assert_int_equal(stat_now().purged, 12);
    assert_int_equal(stat_now().disk_blocks, 9);
    kvs_store_free(world.stores[0]);
    assert_int_equal(world_store_start(&world, 0, &options.store), AS_OK);
    assert_int_equal(stat_now().disk_blocks, 9); // also after a start
    assert_int_equal(kvs_store_purge(world.stores[0], &again), 9);
    assert_int_equal(stat_now().disk_blocks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_quota_takes_its_owners_blocks_only, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(a_quota_of_ones_own_holds_at_once, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(pinned_blocks_outlive_a_flood, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(hard_pins_have_a_share_of_the_pool, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(the_admin_service_pins_and_unpins, begin, disk_world_end),
        cmocka_unit_test_setup_teardown(the_admin_service_shows_and_sets_quotas, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(all_blocks_are_not_those_of_one_tenant, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(who_is_denied_again_and_again_is_one_line_a_second, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(the_last_account_is_no_reason_to_evict, begin,
                                        disk_world_end),
        cmocka_unit_test_setup_teardown(a_purge_forgets_one_namespace, begin, disk_world_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
