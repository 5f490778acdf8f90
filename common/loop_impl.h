// SPDX-License-Identifier: Apache-2.0
// What the two loops share: the heads of their objects and the table of operations that loop.c
// dispatches to.
#ifndef AS_LOOP_IMPL_H
#define AS_LOOP_IMPL_H

#include "common/loop.h"

#define AS_LOOP_MAGIC  0x706f6f6c5f736100ull // "\0as_loop"
#define AS_TIMER_MAGIC 0x656d69745f736100ull // "\0as_time"

typedef struct as_loop_ops {
    void (*free)(as_loop_t *loop);
    uint64_t (*now_us)(const as_loop_t *loop);
    void (*run)(as_loop_t *loop);
    bool (*run_once)(as_loop_t *loop, bool wait);
    void (*stop)(as_loop_t *loop);
    void (*post)(as_loop_t *loop, as_task_t *task);
    void (*unpost)(as_loop_t *loop, as_task_t *task);
    as_status_t (*timer_alloc)(as_loop_t *loop, as_timer_t **timer_p);
    void (*timer_start)(as_timer_t *timer, uint64_t delay_us);
    void (*timer_stop)(as_timer_t *timer);
    void (*timer_free)(as_timer_t *timer);
    struct uv_loop_s *(*uv)(as_loop_t *loop);
} as_loop_ops_t;

// First member of each implementation's loop.
struct as_loop {
    uint64_t magic;
    const as_loop_ops_t *ops;
    uint32_t timer_count; // allocated and not freed
};

// First member of each implementation's timer.
struct as_timer {
    uint64_t magic;
    as_loop_t *loop;
    as_loop_fn fn;
    void *ctx;
};

#endif
