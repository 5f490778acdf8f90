// SPDX-License-Identifier: Apache-2.0
// Many transfers at once. Pipes stand for a disk that takes as long as the test wants.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "kvstore/disk/io.h"

#define OPS (KVS_IO_DEPTH + 8)

static kvs_io_t *io;

typedef struct slow {
    int pipes[OPS][2];
    char bytes[OPS];
    kvs_io_op_t ops[OPS];
    _Atomic uint32_t ready; // operations that the source may give
    _Atomic uint32_t given;
    uint32_t done;
    uint32_t given_at_done; // when the last was done
    void (*on_done)(struct slow *slow, uint32_t which);
} slow_t;

static void let_read(const slow_t *slow, uint32_t which)
{
    assert_int_equal(write(slow->pipes[which][1], "x", 1), 1);
}

static kvs_io_op_t *next(void *ctx)
{
    slow_t *slow = ctx;
    return slow->given < slow->ready ? &slow->ops[slow->given++] : NULL;
}

static void on_done(void *ctx, kvs_io_op_t *op)
{
    slow_t *slow = ctx;
    assert_int_equal(op->error, 0);
    slow->done++;
    slow->given_at_done = slow->given;
    slow->on_done(slow, (uint32_t)(op - slow->ops));
}

static int begin(void **state)
{
    static slow_t slow;
    slow = (slow_t){0};
    *state = &slow;
    for (uint32_t i = 0; i < OPS; i++) {
        if (pipe(slow.pipes[i]) != 0) {
            return -1;
        }
        slow.ops[i] = (kvs_io_op_t){.fd = slow.pipes[i][0], .buffer = &slow.bytes[i], .bytes = 1};
    }
    return kvs_io_alloc(&io) == AS_OK ? 0 : -1;
}

static int end(void **state)
{
    const slow_t *slow = *state;
    for (uint32_t i = 0; i < OPS; i++) {
        close(slow->pipes[i][0]);
        close(slow->pipes[i][1]);
    }
    kvs_io_free(io);
    return 0;
}

static void let_the_first(slow_t *slow, uint32_t which)
{
    if (which == 1) {
        let_read(slow, 0);
    }
}

static void *give_another(void *ctx)
{
    slow_t *slow = ctx;
    while (slow->given == 0) {
        sched_yield();
    }
    let_read(slow, 1);
    slow->ready = 2;
    kvs_io_wake(io);
    return NULL;
}

// The first ends only when the second, which comes while the first is waited for, is done.
static void what_comes_while_others_are_waited_for_goes_at_once(void **state)
{
    slow_t *slow = *state;
    pthread_t thread;
    if (!kvs_io_is_parallel(io)) {
        skip();
    }
    slow->ready = 1;
    slow->on_done = let_the_first;
    assert_int_equal(pthread_create(&thread, NULL, give_another, slow), 0);
    while (slow->done < 2) {
        kvs_io_run(io, &(kvs_io_source_t){next, on_done, slow});
    }
    pthread_join(thread, NULL);
}

static void let_the_next(slow_t *slow, uint32_t which)
{
    (void)which;
    if (slow->done < OPS) {
        let_read(slow, slow->done);
    }
}

static void none_waits(slow_t *slow, uint32_t which)
{
    (void)which;
    uint32_t room = slow->done + KVS_IO_DEPTH;
    assert_int_equal(slow->given_at_done, room < OPS ? room : OPS); // as many as may are in flight
    let_the_next(slow, which);
}

static void as_many_as_may_are_always_in_flight(void **state)
{
    slow_t *slow = *state;
    if (!kvs_io_is_parallel(io)) {
        skip();
    }
    slow->ready = OPS;
    slow->on_done = none_waits;
    let_read(slow, 0);
    kvs_io_run(io, &(kvs_io_source_t){next, on_done, slow});
    assert_int_equal(slow->done, OPS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_comes_while_others_are_waited_for_goes_at_once, begin,
                                        end),
        cmocka_unit_test_setup_teardown(as_many_as_may_are_always_in_flight, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
