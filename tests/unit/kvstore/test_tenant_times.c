// SPDX-License-Identifier: Apache-2.0
// A block of another tenant takes as long to be asked for, or put, as one that nobody has: in RAM, on disk
// only, and by each answer of a put. What is compared are medians and 90th percentiles. Two sets of keys take
// turns in being there, question by question and round by round, and what counts is the median of the rounds: so
// neither a machine that is busy now and then nor the keys themselves make a difference, and a leak, which is in
// every round, does.
#include "../client/disk_world.h"

#include <time.h>

#define SET        32u // keys
#define ROUNDS     16u
#define PAIRS      75u // of questions, in a round
#define PUTS       4u  // in a question
#define OWNER      1u
#define STRANGER   2u
#define MEDIAN_PPM 20000  // as much as they may differ by
#define P90_PPM    300000 // where a machine's noise lies

static int64_t loose =
    1; // times as much, and a quarter of the rounds: times of a sanitized build say little
static as_key_t keys[2][SET];
static uint64_t there_ns[PAIRS], absent_ns[PAIRS];

typedef struct question {
    void (*ask)(uint32_t n); // number n of a round
    void (*prepare)(void);   // for the stranger, before a round; may be NULL
    void (*after)(uint32_t n);
    bool on_disk; // and not in RAM
} question_t;

static uint64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void use(uint32_t set)
{
    memcpy(world.keys, keys[set], sizeof(keys[set]));
}

static int begin(void **state)
{
    (void)state;
    disk_world_begin(AS_LOG_ERROR + 1);
    world_options_t options = disk_world_options(64u << 20);
    world_open(&world, &options);
    for (uint32_t set = 0; set < 2; set++) {
        world_use_namespace(&world, set == 0 ? "one" : "other");
        memcpy(keys[set], world.keys, sizeof(keys[set]));
    }
    return 0;
}

// ---- what is timed

static void look_for_all(uint32_t n)
{
    (void)n;
    fetch_result_t result = fetch_chain(&world, (fetch_ask_t){.count = SET});
    assert_int_equal(result.status, AS_ERR_NOT_FOUND);
}

static void put_some(uint32_t n, as_status_t expected)
{
    for (uint32_t i = 0; i < PUTS; i++) {
        assert_int_equal(put_block(&world, (n * PUTS + i) % SET), expected);
    }
}

static void put_new(uint32_t n)
{
    put_some(n, AS_OK);
}

static void forget(uint32_t n)
{
    for (uint32_t i = 0; i < PUTS; i++) {
        kvs_store_drop(world.stores[0], &world.keys[(n * PUTS + i) % SET], STRANGER);
    }
}

static void put_again(uint32_t n)
{
    put_some(n, AS_ERR_EXISTS);
}

static void put_other_bytes(uint32_t n)
{
    world.twist = 2;
    put_some(n, AS_ERR_CONFLICT);
    world.twist = 0;
}

static void have_both_sets(void)
{
    for (uint32_t set = 0; set < 2; set++) {
        use(set);
        put_chain(&world, SET);
    }
}

// ---- comparing

// The owner has one set, nobody the other, and the stranger what the question is to find of its own.
static void prepare(uint32_t set, const question_t *question)
{
    kvs_store_drop_all(world.stores[0]);
    world_let_go(&world);
    use(set);
    world.tenant = OWNER;
    world.twist = 1; // other bytes than the stranger's
    world.durable = question->on_disk;
    put_chain(&world, SET);
    for (uint32_t i = 0; question->on_disk && i < SET; i++) {
        kvs_index_t *index = world.stores[0]->index;
        kvs_index_doom(index,
                       kvs_index_find(index, &world.keys[i], kvs_realm(OWNER, AS_WIRE_FULL)));
    }
    world.tenant = STRANGER;
    world.twist = 0;
    world.durable = false;
    if (question->prepare) {
        question->prepare();
    }
}

static uint64_t time_one(const question_t *question, uint32_t set, uint32_t n)
{
    use(set);
    uint64_t began_ns = wall_ns();
    question->ask(n);
    uint64_t took_ns = wall_ns() - began_ns;
    if (question->after) {
        question->after(n);
    }
    return took_ns;
}

static int ascending(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return first < second ? -1 : first > second;
}

static int64_t ppm_of(uint64_t a, uint64_t b)
{
    return ((int64_t)a - (int64_t)b) * 1000000 / (int64_t)b;
}

static int ascending_ppm(const void *a, const void *b)
{
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return first < second ? -1 : first > second;
}

static void time_round(const question_t *question, uint32_t round)
{
    uint32_t there = round % 2;
    prepare(there, question);
    for (uint32_t n = 0; n < PAIRS; n++) {
        bool first = (n + round / 2) % 2; // of the two
        absent_ns[n] = first ? time_one(question, 1 - there, n) : 0;
        there_ns[n] = time_one(question, there, n);
        absent_ns[n] = first ? absent_ns[n] : time_one(question, 1 - there, n);
    }
    qsort(there_ns, PAIRS, sizeof(there_ns[0]), ascending);
    qsort(absent_ns, PAIRS, sizeof(absent_ns[0]), ascending);
}

static void expect_no_difference(const question_t *question)
{
    int64_t median[ROUNDS], p90[ROUNDS];
    uint32_t rounds = loose > 1 ? ROUNDS / 4 : ROUNDS;
    for (uint32_t round = 0; round < rounds; round++) {
        time_round(question, round);
        median[round] = ppm_of(there_ns[PAIRS / 2], absent_ns[PAIRS / 2]);
        p90[round] = ppm_of(there_ns[PAIRS * 9 / 10], absent_ns[PAIRS * 9 / 10]);
    }
    qsort(median, rounds, sizeof(median[0]), ascending_ppm);
    qsort(p90, rounds, sizeof(p90[0]), ascending_ppm);
    int64_t by = median[rounds / 2], by_p90 = p90[rounds / 2];
    printf("where another tenant has it, longer by %.2f %% (median), %.2f %% (90th percentile) of "
           "%.1f us\n",
           (double)by / 1e4, (double)by_p90 / 1e4, (double)absent_ns[PAIRS / 2] / 1e3);
    assert_in_range(by + loose * MEDIAN_PPM, 0, 2 * loose * MEDIAN_PPM);
    assert_in_range(by_p90 + loose * P90_PPM, 0, 2 * loose * P90_PPM);
}

static void another_tenants_block_in_ram_is_looked_for_as_long_as_none(void **state)
{
    (void)state;
    expect_no_difference(&(question_t){.ask = look_for_all});
}

static void another_tenants_block_on_disk_is_looked_for_as_long_as_none(void **state)
{
    (void)state;
    expect_no_difference(&(question_t){.ask = look_for_all, .on_disk = true});
    assert_int_equal(stat_now().promotions, 0);
}

static void a_block_that_another_tenant_has_is_put_as_fast_as_a_new_one(void **state)
{
    (void)state;
    expect_no_difference(&(question_t){.ask = put_new, .after = forget});
}

static void that_another_tenant_has_it_too_is_not_seen_from_exists(void **state)
{
    (void)state;
    expect_no_difference(&(question_t){.ask = put_again, .prepare = have_both_sets});
}

static void that_another_tenant_has_it_too_is_not_seen_from_conflict(void **state)
{
    (void)state;
    expect_no_difference(&(question_t){.ask = put_other_bytes, .prepare = have_both_sets});
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, disk_world_end)

int main(void)
{
    loose = getenv("ASSAY_TEST_SANITIZED") ? 10 : 1;
    const struct CMUnitTest tests[] = {
        TEST(another_tenants_block_in_ram_is_looked_for_as_long_as_none),
        TEST(another_tenants_block_on_disk_is_looked_for_as_long_as_none),
        TEST(a_block_that_another_tenant_has_is_put_as_fast_as_a_new_one),
        TEST(that_another_tenant_has_it_too_is_not_seen_from_exists),
        TEST(that_another_tenant_has_it_too_is_not_seen_from_conflict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
