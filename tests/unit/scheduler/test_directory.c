// SPDX-License-Identifier: Apache-2.0
// The directory against an obvious model of itself, and at its limits.
#include "tests/unit/scheduler/harness.h"

#define KEYS       600
#define SLOTS      40
#define OPERATIONS 200000

typedef struct model {
    sch_directory_t *directory;
    harness_t random;
    uint8_t keys[KEYS][32];
    uint8_t holds[KEYS][SLOTS]; // kinds, of the slots that are alive
    uint16_t slots[SLOTS];      // real slot of each model slot
} model_t;

static uint32_t pick(model_t *m, uint32_t count)
{
    return (uint32_t)(harness_random(&m->random) % count);
}

static uint32_t holders_count(const model_t *m, uint32_t key)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        count += m->holds[key][i] != 0;
    }
    return count;
}

static void check_key(const model_t *m, uint32_t key)
{
    const sch_entry_t *entry = sch_directory_find(m->directory, m->keys[key]);
    uint32_t seen = 0;
    for (uint32_t i = 0; entry && i < SCH_HOLDERS_MAX && entry->holders[i]; i++) {
        if (i > 0) {
            assert_true(entry->holders[i - 1] >> 2 < entry->holders[i] >> 2);
        }
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            if (m->slots[slot] == entry->holders[i] >> 2) {
                assert_int_equal(m->holds[key][slot], entry->holders[i] & 3);
                seen++;
            }
        }
    }
    assert_int_equal(seen, holders_count(m, key));
}

static void do_add(model_t *m)
{
    uint32_t key = pick(m, KEYS), slot = pick(m, SLOTS);
    unsigned kind = 1 + pick(m, 2);
    as_status_t status = sch_directory_add(m->directory, m->keys[key], m->slots[slot], kind);
    if (m->holds[key][slot] & kind) {
        assert_int_equal(status, AS_ERR_EXISTS);
    } else if (m->holds[key][slot] == 0 && holders_count(m, key) == SCH_HOLDERS_MAX) {
        assert_int_equal(status, AS_ERR_LIMIT);
    } else {
        assert_int_equal(status, AS_OK);
        m->holds[key][slot] |= (uint8_t)kind;
    }
    check_key(m, key);
}

static void do_remove(model_t *m)
{
    uint32_t key = pick(m, KEYS), slot = pick(m, SLOTS);
    unsigned kind = 1 + pick(m, 2);
    as_status_t status = sch_directory_remove(m->directory, m->keys[key], m->slots[slot], kind);
    assert_int_equal(status, m->holds[key][slot] & kind ? AS_OK : AS_ERR_NOT_FOUND);
    m->holds[key][slot] &= (uint8_t)~kind;
    check_key(m, key);
}

static void do_drop(model_t *m)
{
    uint32_t slot = pick(m, SLOTS);
    sch_directory_slot_drop(m->directory, m->slots[slot]);
    assert_int_equal(sch_directory_slot_take(m->directory, &m->slots[slot]), AS_OK);
    for (uint32_t key = 0; key < KEYS; key++) {
        m->holds[key][slot] = 0;
    }
}

static void check_all(model_t *m)
{
    while (sch_directory_sweep(m->directory, 100)) {
    }
    size_t blocks = 0;
    for (uint32_t key = 0; key < KEYS; key++) {
        check_key(m, key);
        uint32_t count = holders_count(m, key);
        blocks += count > 0;
        assert_true(count > 0 || !sch_directory_find(m->directory, m->keys[key]));
    }
    assert_int_equal(sch_directory_blocks(m->directory), blocks);
}

// homes: of how many different homes the keys are; few make long runs of probing.
static void run_model(uint32_t homes, uint64_t seed)
{
    model_t *m = calloc(1, sizeof(*m));
    harness_seed(&m->random, seed);
    assert_int_equal(sch_directory_alloc(64u << 10, seed, &m->directory), AS_OK);
    for (uint32_t i = 0; i < SLOTS; i++) {
        assert_int_equal(sch_directory_slot_take(m->directory, &m->slots[i]), AS_OK);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        uint64_t parts[4] = {i % homes, i, harness_random(&m->random), 0};
        memcpy(m->keys[i], parts, sizeof(parts));
    }
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        uint32_t what = pick(m, 1000);
        if (what < 500) {
            do_add(m);
        } else if (what < 990) {
            do_remove(m);
        } else if (what < 995) {
            do_drop(m);
        } else {
            sch_directory_sweep(m->directory, pick(m, 300));
        }
        if (i % 20000 == 0) {
            check_all(m);
        }
    }
    check_all(m);
    sch_directory_free(m->directory);
    free(m);
}

static void it_equals_the_model_with_spread_keys(void **state)
{
    (void)state;
    run_model(KEYS, 1);
}

static void it_equals_the_model_with_crowded_keys(void **state)
{
    (void)state;
    run_model(7, 2);
}

static void a_full_table_refuses_and_goes_on(void **state)
{
    (void)state;
    sch_directory_t *directory;
    uint16_t slot;
    assert_int_equal(sch_directory_alloc(256u << 10, 3, &directory), AS_OK);
    assert_int_equal(sch_directory_slot_take(directory, &slot), AS_OK);
    size_t max = sch_directory_blocks_max(directory);
    uint64_t key[4] = {0};
    for (key[0] = 1; key[0] <= max; key[0]++) {
        assert_int_equal(sch_directory_add(directory, (uint8_t *)key, slot, SCH_FULL), AS_OK);
    }
    assert_int_equal(sch_directory_add(directory, (uint8_t *)key, slot, SCH_FULL), AS_ERR_LIMIT);
    key[0] = 1;
    assert_int_equal(sch_directory_add(directory, (uint8_t *)key, slot, SCH_SEALED), AS_OK);
    // What a dropped slot held makes room once it is swept.
    sch_directory_slot_drop(directory, slot);
    assert_int_equal(sch_directory_slot_take(directory, &slot), AS_OK);
    while (sch_directory_sweep(directory, 1000)) {
    }
    assert_int_equal(sch_directory_blocks(directory), 0);
    key[0] = max + 1;
    assert_int_equal(sch_directory_add(directory, (uint8_t *)key, slot, SCH_FULL), AS_OK);
    sch_directory_free(directory);
}

static void keys_of_one_home_are_bounded(void **state)
{
    (void)state;
    sch_directory_t *directory;
    uint16_t slot;
    assert_int_equal(sch_directory_alloc(1u << 20, 4, &directory), AS_OK);
    assert_int_equal(sch_directory_slot_take(directory, &slot), AS_OK);
    uint32_t taken = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t key[4] = {42, i, 0, 0};
        taken += sch_directory_add(directory, (uint8_t *)key, slot, SCH_FULL) == AS_OK;
    }
    assert_int_equal(taken, 1024); // the longest probe
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t key[4] = {42, i, 0, 0};
        assert_int_equal(sch_directory_find(directory, (uint8_t *)key) != NULL, i < taken);
    }
    sch_directory_free(directory);
}

static void slots_run_out_and_come_back(void **state)
{
    (void)state;
    sch_directory_t *directory;
    uint16_t slot = 0;
    assert_int_equal(sch_directory_alloc(64u << 10, 5, &directory), AS_OK);
    for (uint32_t i = 0; i < SCH_SLOTS_MAX; i++) {
        assert_int_equal(sch_directory_slot_take(directory, &slot), AS_OK);
    }
    assert_int_equal(sch_directory_slot_take(directory, &slot), AS_ERR_LIMIT);
    sch_directory_slot_drop(directory, 77);
    assert_int_equal(sch_directory_slot_take(directory, &slot), AS_ERR_LIMIT);
    while (sch_directory_sweep(directory, 1u << 20)) {
    }
    assert_int_equal(sch_directory_slot_take(directory, &slot), AS_OK);
    assert_int_equal(slot, 77);
    sch_directory_free(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_equals_the_model_with_spread_keys),
        cmocka_unit_test(it_equals_the_model_with_crowded_keys),
        cmocka_unit_test(a_full_table_refuses_and_goes_on),
        cmocka_unit_test(keys_of_one_home_are_bounded),
        cmocka_unit_test(slots_run_out_and_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
