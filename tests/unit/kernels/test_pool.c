// SPDX-License-Identifier: Apache-2.0
// The pool: every index runs once, jobs do not leak into each other, idle helpers sleep, and a
// failed allocation leaves nothing behind.
#include <stdatomic.h>
#include <sched.h>

#include "kernels/internal.h"
#include "tests/unit/kernels/support.h"

#define COUNT_MAX 500

typedef struct tally {
    atomic_uint runs[COUNT_MAX];
    atomic_uint stamp;
    uint32_t expected_stamp;
    atomic_uint wrong;
} tally_t;

static void tally_item(void *ctx, uint32_t index)
{
    tally_t *tally = ctx;

    atomic_fetch_add(&tally->runs[index], 1);
    if (atomic_load(&tally->stamp) != tally->expected_stamp)
        atomic_fetch_add(&tally->wrong, 1);
    *(volatile char *)krn_pool_scratch() = (char)index;
    ((volatile char *)krn_pool_scratch())[KRN_SCRATCH_BYTES - 1] = (char)index;
}

static void test_every_index_runs_exactly_once_job_after_job(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        static tally_t tallies[2];
        krn_pool_t *pool;
        assert_int_equal(krn_pool_alloc(threads, &pool), AS_OK);
        assert_int_equal(krn_pool_threads(pool), threads);
        for (uint32_t job = 0; job < 3000; job++) {
            tally_t *tally = &tallies[job % 2]; // a late thread would write into the other
            uint32_t count = random_below(job % 8 == 0 ? COUNT_MAX : 6);
            memset(tally, 0, sizeof *tally);
            atomic_store(&tally->stamp, job);
            tally->expected_stamp = job;
            krn_pool_run(pool, count, tally_item, tally);
            atomic_store(&tally->stamp, UINT32_MAX); // whoever still runs would see it
            for (uint32_t i = 0; i < COUNT_MAX; i++)
                assert_int_equal(atomic_load(&tally->runs[i]), i < count);
            assert_int_equal(atomic_load(&tally->wrong), 0);
        }
        krn_pool_free(pool);
    }
}

static void meet_item(void *ctx, uint32_t index)
{
    atomic_uint *arrived = ctx;

    (void)index;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2)
        sched_yield();
}

// True when `count` helpers sleep within two seconds.
static int helpers_sleep(krn_pool_t *pool, uint32_t count)
{
    time_t deadline = time(NULL) + 2;

    while (krn_pool_sleepers(pool) != count && time(NULL) < deadline)
        sched_yield();
    return krn_pool_sleepers(pool) == count;
}

static void test_idle_helpers_go_to_sleep(void **state)
{
    krn_pool_t *pool;
    atomic_uint arrived = 0;

    (void)state;
    assert_int_equal(krn_pool_alloc(4, &pool), AS_OK);
    assert_true(helpers_sleep(pool, 3));
    krn_pool_run(pool, 2, meet_item, &arrived);
    assert_true(helpers_sleep(pool, 3));
    krn_pool_free(pool);
}

// Two items that wait for each other end only if two threads run them.
static void test_sleeping_and_spinning_helpers_come_to_a_job(void **state)
{
    krn_pool_t *pool;

    (void)state;
    assert_int_equal(krn_pool_alloc(2, &pool), AS_OK);
    for (int i = 0; i < 200; i++) {
        atomic_uint arrived = 0;
        if (i % 2)
            assert_true(helpers_sleep(pool, 1));
        krn_pool_run(pool, 2, meet_item, &arrived);
        assert_int_equal(atomic_load(&arrived), 2);
    }
    krn_pool_free(pool);
}

static void test_each_failed_allocation_gives_no_memory(void **state)
{
    krn_pool_t *pool = NULL;

    (void)state;
    assert_int_equal(krn_pool_alloc(0, &pool), AS_ERR_INVALID);
    assert_int_equal(krn_pool_alloc(100000, &pool), AS_ERR_INVALID);
    for (uint64_t n = 1;; n++) {
        as_mem_fail_nth(n);
        as_status_t status = krn_pool_alloc(3, &pool);
        as_mem_fail_nth(0);
        if (status == AS_OK)
            break;
        assert_int_equal(status, AS_ERR_NO_MEMORY);
        assert_null(pool);
        assert_true(n < 10);
    }
    krn_pool_free(pool);
    krn_pool_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_index_runs_exactly_once_job_after_job),
        cmocka_unit_test(test_idle_helpers_go_to_sleep),
        cmocka_unit_test(test_sleeping_and_spinning_helpers_come_to_a_job),
        cmocka_unit_test(test_each_failed_allocation_gives_no_memory),
    };
    return cmocka_run_group_tests(tests, seed_setup, NULL);
}
