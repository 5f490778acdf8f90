// SPDX-License-Identifier: Apache-2.0
// Allocation that fails where a test wants it, and pools that hold their limit and find misuse.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/mem.h"

static void the_nth_allocation_fails_and_only_that(void **state)
{
    (void)state;
    as_mem_fail_nth(3);
    void *first = as_mem_alloc(8), *second = as_mem_zalloc(2, 8), *third = as_mem_alloc(8),
         *fourth = as_mem_alloc(8);
    assert_non_null(first);
    assert_non_null(second);
    assert_null(third);
    assert_non_null(fourth);
    assert_int_equal(as_mem_fail_nth(0), 4);
    as_mem_free(first);
    as_mem_free(second);
    as_mem_free(fourth);
}

static void every_kind_of_allocation_can_fail(void **state)
{
    (void)state;
    void *kept = as_mem_alloc(16);
    as_mem_fail_nth(1);
    assert_null(as_mem_alloc(16));
    as_mem_fail_nth(1);
    assert_null(as_mem_zalloc(1, 16));
    as_mem_fail_nth(1);
    assert_null(as_mem_realloc(kept, 32)); // and kept stays valid
    as_mem_fail_nth(1);
    assert_null(as_mem_aligned(64, 64));
    as_mem_fail_nth(1);
    assert_null(as_mem_strdup("text"));
    as_mem_free(kept);
}

static void zalloc_is_zeroed_and_refuses_an_overflow(void **state)
{
    (void)state;
    uint8_t *bytes = as_mem_zalloc(100, 3);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(bytes[i], 0);
    }
    as_mem_free(bytes);
    assert_null(as_mem_zalloc(SIZE_MAX / 2, 3));
}

static void nothing_is_something_that_can_be_freed(void **state)
{
    (void)state;
    void *a = as_mem_alloc(0), *b = as_mem_zalloc(0, 8), *c = as_mem_aligned(64, 0);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    as_mem_free(a);
    as_mem_free(b);
    as_mem_free(c);
    as_mem_free(NULL);
}

static void aligned_memory_is_aligned(void **state)
{
    (void)state;
    void *memory = as_mem_aligned(4096, 100);
    assert_int_equal((uintptr_t)memory % 4096, 0);
    as_mem_free(memory);
}

static void a_pool_gives_its_count_and_then_null(void **state)
{
    (void)state;
    as_pool_t *pool;
    void *objects[5];
    assert_int_equal(as_pool_alloc("test", 24, 5, &pool), AS_OK);
    for (uint32_t i = 0; i < 5; i++) {
        objects[i] = as_pool_take(pool);
        assert_non_null(objects[i]);
        assert_int_equal(as_pool_used(pool), i + 1);
        memset(objects[i], 0xff, 24);
        for (uint32_t j = 0; j < i; j++) {
            assert_true(objects[i] != objects[j]);
        }
    }
    assert_null(as_pool_take(pool));
    as_pool_give(pool, objects[2]);
    uint8_t *again = as_pool_take(pool);
    assert_ptr_equal(again, objects[2]);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(again[i], 0);
    }
    for (uint32_t i = 0; i < 5; i++) {
        as_pool_give(pool, objects[i]);
    }
    assert_int_equal(as_pool_used(pool), 0);
    as_pool_free(pool);
}

static void a_pool_refuses_impossible_sizes(void **state)
{
    (void)state;
    as_pool_t *pool = NULL;
    assert_int_equal(as_pool_alloc("test", 0, 5, &pool), AS_ERR_INVALID);
    assert_int_equal(as_pool_alloc("test", 8, 0, &pool), AS_ERR_INVALID);
    assert_int_equal(as_pool_alloc("test", SIZE_MAX - 8, 2, &pool), AS_ERR_LIMIT);
    assert_int_equal(as_pool_alloc("test", SIZE_MAX / 4, 1u << 20, &pool), AS_ERR_LIMIT);
    assert_null(pool);
}

static void a_pool_survives_the_failure_of_each_allocation(void **state)
{
    (void)state;
    as_pool_t *pool = NULL;
    as_status_t status = AS_ERR_NO_MEMORY;
    uint64_t n = 0;
    while (status != AS_OK) {
        as_mem_fail_nth(++n);
        status = as_pool_alloc("test", 8, 4, &pool);
        assert_true(status == AS_OK || status == AS_ERR_NO_MEMORY);
        assert_true(n < 100);
    }
    as_mem_fail_nth(0);
    assert_true(n > 1);
    as_pool_free(pool);
}

static void give_twice(as_pool_t *pool)
{
    void *object = as_pool_take(pool);
    as_pool_give(pool, object);
    as_pool_give(pool, object);
}

static void give_foreign(as_pool_t *pool)
{
    char foreign[64];
    as_pool_give(pool, foreign);
}

static void give_inside(as_pool_t *pool)
{
    as_pool_give(pool, (char *)as_pool_take(pool) + 8);
}

static void free_with_one_out(as_pool_t *pool)
{
    (void)!as_pool_take(pool);
    as_pool_free(pool);
}

// Runs misuse in a child, whose last words are not for the test's log, and expects it to abort.
static void assert_aborts(void (*misuse)(as_pool_t *pool))
{
    as_pool_t *pool;
    assert_int_equal(as_pool_alloc("test", 24, 5, &pool), AS_OK);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        misuse(pool);
        _exit(0);
    }
    int ended;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT);
    as_pool_free(pool);
}

static void a_pool_aborts_on_misuse(void **state)
{
    (void)state;
    assert_aborts(give_twice);
    assert_aborts(give_foreign);
    assert_aborts(give_inside);
    assert_aborts(free_with_one_out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nth_allocation_fails_and_only_that),
        cmocka_unit_test(every_kind_of_allocation_can_fail),
        cmocka_unit_test(zalloc_is_zeroed_and_refuses_an_overflow),
        cmocka_unit_test(nothing_is_something_that_can_be_freed),
        cmocka_unit_test(aligned_memory_is_aligned),
        cmocka_unit_test(a_pool_gives_its_count_and_then_null),
        cmocka_unit_test(a_pool_refuses_impossible_sizes),
        cmocka_unit_test(a_pool_survives_the_failure_of_each_allocation),
        cmocka_unit_test(a_pool_aborts_on_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
