// SPDX-License-Identifier: Apache-2.0
// Operators' pins and the accounts of owners: the index against a model under random use.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "kvstore/evict.h"
#include "kvstore/index.h"
#include "proto/wire.h"

#define BLOCKS  48u
#define ENTRIES (2 * BLOCKS) // each may name a parent that is not here
#define KEYS    240u
#define OWNERS  3u // block n is of owner n % OWNERS, and its parent, too

typedef struct entry {
    uint32_t parent; // 0: the namespace
    bool sealed;
    uint32_t pins;
    kvs_guard_t guard;
} entry_t;

static struct {
    kvs_pool_t *pool;
    kvs_index_t *index;
    entry_t entries[KEYS + 1];
    uint32_t sealed;
    uint32_t owner; // whose blocks may go; OWNERS: everybody's
    uint64_t soft_evicted;
} model;

static as_key_t model_key(uint32_t n)
{
    as_key_t key = {{0}};
    uint32_t mixed = n * 0x9e3779b9u;
    memcpy(key.bytes, &n, sizeof(n));
    memcpy(key.bytes + 4, &mixed, sizeof(mixed));
    return key;
}

static as_key_t owner_key(uint32_t owner)
{
    return model_key(1000 + owner);
}

static kvs_block_t *model_find(uint32_t n)
{
    as_key_t key = model_key(n);
    return kvs_index_find(model.index, &key, AS_WIRE_FULL);
}

static bool has_child(uint32_t n)
{
    for (uint32_t i = 1; i <= KEYS; i++) {
        if (model.entries[i].sealed && model.entries[i].parent == n) {
            return true;
        }
    }
    return false;
}

static void on_model_event(void *ctx, kvs_event_t event, const kvs_spec_t *spec)
{
    (void)ctx;
    uint32_t n;
    memcpy(&n, spec->key.bytes, sizeof(n));
    entry_t *entry = &model.entries[n];
    model.sealed += event == KVS_BLOCK_ADDED ? 1u : UINT32_MAX;
    entry->sealed = event == KVS_BLOCK_ADDED;
    if (event == KVS_BLOCK_ADDED) {
        return;
    }
    assert_true(model.owner == OWNERS || n % OWNERS == model.owner);
    assert_true(entry->pins == 0 && entry->guard != KVS_GUARD_HARD && !has_child(n));
    if (entry->guard == KVS_GUARD_SOFT) { // nothing else could go
        model.soft_evicted++;
        for (uint32_t i = 1; i <= KEYS; i++) {
            const entry_t *other = &model.entries[i];
            bool is_asked = model.owner == OWNERS || i % OWNERS == model.owner;
            assert_false(is_asked && i != entry->parent && other->sealed && other->pins == 0 &&
                         other->guard == KVS_GUARD_NONE && !has_child(i));
        }
    }
    entry->guard = KVS_GUARD_NONE;
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static int model_begin(void **state)
{
    (void)state;
    memset(&model, 0, sizeof(model));
    model.owner = OWNERS;
    if (kvs_pool_alloc(BLOCKS * KVS_POOL_GRAIN_BYTES, ENTRIES, &model.pool) != AS_OK) {
        return -1;
    }
    const kvs_index_options_t options = {ENTRIES, NULL, model.pool};
    if (kvs_index_alloc(&options, &model.index) != AS_OK) {
        return -1;
    }
    kvs_index_set_listener(model.index, on_model_event, NULL);
    uint64_t seed = 3;
    for (uint32_t n = 1; n <= KEYS; n++) { // chains of one owner, and forks
        uint32_t back = OWNERS * (1 + next_random(&seed) % 3);
        model.entries[n].parent = next_random(&seed) % 6 == 0 || n <= back ? 0 : n - back;
    }
    return 0;
}

static int model_end(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= KEYS; n++) { // of a test that failed
        for (; model.entries[n].pins > 0; model.entries[n].pins--) {
            kvs_index_unpin(model.index, model_find(n));
        }
    }
    kvs_index_free(model.index);
    kvs_pool_free(model.pool);
    return 0;
}

static void model_seal(uint32_t n)
{
    uint32_t parent = model.entries[n].parent;
    kvs_block_t *block;
    as_key_t owner = owner_key(n % OWNERS);
    const kvs_spec_t spec = {.key = model_key(n),
                             .parent = parent ? model_key(parent) : owner,
                             .namespace_key = owner,
                             .kind = AS_WIRE_FULL,
                             .layers = 1,
                             .extent_bytes = 64,
                             .tokens = 16};
    if (kvs_index_reserve(model.index, &spec, &block) == AS_OK) {
        kvs_index_fill(model.index, block);
        kvs_index_seal(model.index, block, 0);
    }
}

static void model_evict(size_t goal_blocks)
{
    uint64_t evicted = 0;
    uint32_t before = model.sealed, calls = 0;
    while (kvs_evict_some(model.index, model.pool, goal_blocks * KVS_POOL_GRAIN_BYTES, &evicted)) {
        assert_true(++calls < 64);
    }
    assert_int_equal(evicted, before - model.sealed);
}

static uint32_t account_of(uint32_t owner)
{
    const kvs_owner_t key = {owner_key(owner), 0};
    return kvs_account_find(kvs_index_accounts(model.index), &key);
}

static void model_evict_owner(uint32_t owner, size_t goal_blocks)
{
    uint32_t account = account_of(owner), calls = 0;
    uint64_t evicted = 0;
    if (account == KVS_ACCOUNT_NONE) {
        return;
    }
    model.owner = owner;
    kvs_quota_want(kvs_index_accounts(model.index), account, goal_blocks * KVS_POOL_GRAIN_BYTES);
    while (kvs_evict_account(model.index, account, &evicted)) {
        assert_true(++calls < 64);
    }
    kvs_quota_done(kvs_index_accounts(model.index), account);
    model.owner = OWNERS;
}

static void model_use(uint32_t n, kvs_block_t *block, uint64_t *seed)
{
    entry_t *entry = &model.entries[n];
    switch (next_random(seed) % 8) {
    case 0:
        kvs_index_pin(model.index, block);
        entry->pins++;
        break;
    case 1:
        entry->guard = (kvs_guard_t)(next_random(seed) % 3);
        kvs_index_guard(model.index, block, entry->guard);
        break;
    case 2:
    case 3:
        kvs_index_lease(model.index, block);
        kvs_index_unlease(model.index, block);
        break;
    case 4:
        entry->guard = KVS_GUARD_NONE;
        kvs_index_guard(model.index, block, KVS_GUARD_NONE);
        break;
    default:
        if (entry->pins > 0) {
            entry->pins--;
            kvs_index_unpin(model.index, block);
        }
    }
}

static void model_check(void)
{
    size_t bytes[OWNERS] = {0}, guarded[3] = {0};
    for (uint32_t n = 1; n <= KEYS; n++) {
        kvs_block_t *block = model_find(n);
        assert_int_equal(block != NULL, model.entries[n].sealed);
        bytes[n % OWNERS] += block ? KVS_POOL_GRAIN_BYTES : 0;
        guarded[model.entries[n].guard] += block ? kvs_block_bytes(block) : 0;
    }
    for (uint32_t owner = 0; owner < OWNERS; owner++) {
        uint32_t account = account_of(owner);
        kvs_accounts_t *accounts = kvs_index_accounts(model.index);
        assert_int_equal(account == KVS_ACCOUNT_NONE ? 0 : kvs_account_at(accounts, account)->bytes,
                         bytes[owner]);
    }
    assert_int_equal(kvs_index_guarded_bytes(model.index, KVS_GUARD_SOFT), guarded[1]);
    assert_int_equal(kvs_index_guarded_bytes(model.index, KVS_GUARD_HARD), guarded[2]);
}

static void pins_and_owners_are_kept_apart_under_random_use(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (uint32_t i = 0; i < 60000; i++) {
        uint32_t n = 1 + next_random(&seed) % KEYS;
        kvs_block_t *block = model_find(n);
        if (block) {
            model_use(n, block, &seed);
        } else if (model.sealed < BLOCKS) {
            model_seal(n);
        } else if (next_random(&seed) % 2) {
            model_evict(BLOCKS - 1 - next_random(&seed) % 16);
        } else {
            model_evict_owner(next_random(&seed) % OWNERS, next_random(&seed) % 8);
        }
        if (i % 97 == 0) {
            model_check();
        }
    }
    assert_true(model.soft_evicted > 100); // it came to that
    for (uint32_t n = 1; n <= KEYS; n++) {
        kvs_block_t *block = model_find(n);
        for (; block && model.entries[n].pins > 0; model.entries[n].pins--) {
            kvs_index_unpin(model.index, block);
        }
    }
    model_evict(0);
    model_check();
    for (uint32_t n = 1; n <= KEYS; n++) { // hard pins are left, and what leads to them
        assert_true(!model.entries[n].sealed || model.entries[n].guard == KVS_GUARD_HARD ||
                    has_child(n));
    }
}

// Each block of a chain is held by the one below it, and the order is such that every turn of one walks
// through all of those again: none of that is a turn of theirs.
static void a_chain_that_is_walked_again_and_again_does_not_hide_who_may_go(void **state)
{
    (void)state;
    static const uint32_t order[] = {15, 30, 12, 33, 9, 36, 6, 39, 3, 60, 90, 18};
    static const uint32_t pinned[] = {30, 33, 36, 39, 18};
    for (uint32_t n = 0; n <= KEYS; n++) {
        model.entries[n].parent = n > 3 && n <= 18 ? n - 3 : 0;
    }
    for (uint32_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        model_seal(order[i]);
    }
    for (uint32_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++) {
        kvs_index_pin(model.index, model_find(pinned[i]));
        model.entries[pinned[i]].pins++;
    }
    kvs_index_guard(model.index, model_find(60), KVS_GUARD_SOFT);
    model.entries[60].guard = KVS_GUARD_SOFT;
    model_evict_owner(0, model.sealed - 1);
    assert_false(model.entries[90].sealed); // the one that nothing holds
    assert_true(model.entries[60].sealed);
    assert_int_equal(model.sealed, 11);
}

static void accounts_end_with_their_last_block_and_are_bounded(void **state)
{
    (void)state;
    kvs_accounts_t *accounts;
    assert_int_equal(kvs_accounts_alloc(2, &accounts), AS_OK);
    // Two namespaces, and one of them of another tenant too.
    const kvs_owner_t a = {model_key(1), 0}, b = {model_key(2), 1}, c = {model_key(2), 2};
    uint32_t of_a, of_b, of_c;
    assert_int_equal(kvs_account_charge(accounts, &a, 10, &of_a), AS_OK);
    assert_int_equal(kvs_account_charge(accounts, &b, 10, &of_b), AS_OK);
    assert_int_equal(kvs_account_charge(accounts, &c, 10, &of_c), AS_ERR_BUSY);
    assert_int_equal(kvs_quota_set(accounts, &c, 5), AS_ERR_BUSY);
    kvs_account_refund(accounts, of_b, 10);
    assert_int_equal(kvs_account_find(accounts, &b), KVS_ACCOUNT_NONE);
    assert_int_equal(kvs_quota_set(accounts, &c, 5), AS_OK);
    of_c = kvs_account_find(accounts, &c);
    assert_int_equal(kvs_quota_of(accounts, of_c), 5);
    assert_true(kvs_quota_of(accounts, of_a) == KVS_QUOTA_NONE);
    kvs_quota_set_default(accounts, 7);
    assert_int_equal(kvs_quota_of(accounts, of_a), 7);
    assert_int_equal(kvs_quota_set(accounts, &c, KVS_QUOTA_NONE), AS_OK);
    assert_int_equal(kvs_account_find(accounts, &c), KVS_ACCOUNT_NONE);
    kvs_quota_want(accounts, of_a, 0);
    kvs_account_refund(accounts, of_a, 10);
    assert_int_equal(kvs_account_find(accounts, &a), of_a); // it is being evicted
    kvs_quota_done(accounts, of_a);
    assert_int_equal(kvs_account_find(accounts, &a), KVS_ACCOUNT_NONE);
    kvs_accounts_free(accounts);
}

static void a_tenant_has_at_most_as_many_accounts_as_it_leaves(void **state)
{
    (void)state;
    kvs_accounts_t *accounts;
    assert_int_equal(kvs_accounts_alloc(64, &accounts), AS_OK);
    uint32_t at[64], count = 0;
    for (uint32_t tenant = 0; tenant < 5; tenant++) { // 32 of 64, then half of what is left
        kvs_owner_t owner = {model_key(0), tenant};
        uint32_t own = 0;
        while (kvs_account_charge(accounts, &owner, 1, &at[count + own]) == AS_OK) {
            owner.namespace_key = model_key(++own);
        }
        assert_int_equal(own, 32u >> tenant);
        assert_false(kvs_account_may_open(accounts, &owner));
        owner.namespace_key = model_key(0); // one that is there is no further one
        assert_true(kvs_account_may_open(accounts, &owner));
        count += own;
    }
    assert_int_equal(count, 62);
    for (uint32_t i = 0; i < count; i++) {
        kvs_account_refund(accounts, at[i], 1);
    }
    assert_true(kvs_accounts_have_room(accounts, 64) && !kvs_accounts_have_room(accounts, 65));
    for (uint32_t tenant = 0; tenant < 64; tenant++) { // tenants, too, are as many as accounts
        const kvs_owner_t owner = {model_key(tenant), 100 + tenant};
        assert_int_equal(kvs_account_charge(accounts, &owner, 1, &at[0]), AS_OK);
    }
    kvs_accounts_free(accounts);
}

int main(void)
{
    as_siphash_own_known();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pins_and_owners_are_kept_apart_under_random_use,
                                        model_begin, model_end),
        cmocka_unit_test_setup_teardown(
            a_chain_that_is_walked_again_and_again_does_not_hide_who_may_go, model_begin,
            model_end),
        cmocka_unit_test(accounts_end_with_their_last_block_and_are_bounded),
        cmocka_unit_test(a_tenant_has_at_most_as_many_accounts_as_it_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
