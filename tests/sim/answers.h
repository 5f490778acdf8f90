// SPDX-License-Identifier: Apache-2.0
// What simulations of answers share: waiting for one, and that nothing is left of it.
#ifndef SIM_ANSWERS_H
#define SIM_ANSWERS_H

#include "../unit/gpuworker/worker_fixture.h"
#include "common/log.h"
#include "gpuworker/engine.h"
#include "gpuworker/worker_internal.h"
#include "world.h"

static inline gpw_worker_t *worker_of(const world_t *world)
{
    return world->workers[0].worker;
}

static inline void run_to_end(world_t *world, const answer_t *answer)
{
    uint64_t until_us = as_loop_now_us(world->loop) + 30000000;
    while (!answer->finished && as_loop_now_us(world->loop) < until_us) {
        as_loop_run_once(world->loop, true);
    }
    assert_true(answer->finished);
}

// By workers, and by the stores that run. Leases and puts of before must have run out.
static inline void check_nothing_is_held(const world_t *world)
{
    for (uint32_t w = 0; w < world->options.workers; w++) {
        const gpw_engine_t *engine = world->workers[w].worker->engine;
        assert_true(gpw_worker_idle(world->workers[w].worker));
        assert_null(engine->first);
        assert_int_equal(engine->sessions, 0);
        assert_int_equal(engine->device.used_bytes, 0);
        assert_int_equal(engine->device.reserved_bytes, 0);
    }
    assert_int_equal(gpw_metric_value(GPW_METRIC_RESERVED_BYTES), 0); // and that is told
    for (uint32_t s = 0; s < world->options.stores; s++) {
        if (world->stores[s].store) {
            kvs_stat_t stat;
            kvs_store_stat(world->stores[s].store, &stat);
            assert_int_equal(stat.leases + stat.pins + stat.reservations + stat.dying, 0);
        }
    }
}

#endif
