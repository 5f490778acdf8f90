// SPDX-License-Identifier: Apache-2.0
// The step RECOMPUTE: a pass over the tokens of lost blocks, whose K and V are held again
// afterwards.
//
// What lies before the hole is brought by a swap of its own; should that fail too, the hole moves
// forward, and after TRIES failures to the beginning: then nothing is needed from anyone. So it
// ends, whatever the stores do.
#include "gpuworker/decode/recompute.h"

#include "common/assert.h"
#include "common/log.h"
#include "gpuworker/engine.h"

#define TRIES 3u

static void let_go(gpw_request_t *request)
{
    gpw_pass_end(request);
    gpw_swap_end(request);
    if (request->long_forward) {
        gpw_engine_give_forward(request->engine, request->long_forward);
        request->long_forward = NULL;
    }
}

gpw_turn_t gpw_recompute_from(gpw_request_t *request, uint32_t hole)
{
    gpw_blocks_t *blocks = &request->blocks;
    uint32_t from = request->swap_failures + 1 < TRIES ? hole : 0;
    AS_ASSERT(from < blocks->stored);
    if (request->recompute_to == 0) {
        request->recompute_to = blocks->stored;
    }
    request->swap_failures++;
    uint64_t bytes = (uint64_t)(blocks->stored - from) * as_block_bytes(&blocks->shape);
    AS_DEBUG("recompute", "request %llu blocks %u to %u are lost", (unsigned long long)request->id,
             from, request->recompute_to);
    if (!gpw_budget_reserve(&request->budget, bytes)) {
        return gpw_request_restart(request);
    }
    as_status_t status = gpw_blocks_hold(blocks, from);
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for recomputed blocks");
    }
    request->recompute_from = from;
    return gpw_request_go(request, GPW_STEP_RECOMPUTE);
}

static gpw_turn_t complete(gpw_request_t *request, const float *logits, uint32_t count)
{
    (void)logits;
    (void)count;
    uint32_t blocks = request->recompute_to - request->recompute_from;
    let_go(request);
    gpw_blocks_filled(&request->blocks);
    request->recompute_to = 0;
    request->usage.recomputed_blocks += blocks;
    gpw_metric_add(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL, blocks);
    gpw_publish_pump(request);
    return gpw_request_go(request, GPW_STEP_SWAP);
}

static gpw_turn_t failed(gpw_request_t *request, uint32_t hole)
{
    bool refused = gpw_swap_is_refused(request);
    let_go(request);
    return refused ? GPW_TURN_AGAIN : gpw_recompute_from(request, hole);
}

static const gpw_pass_kind_t recompute_pass = {.full = true,
                                               .logits = GPW_LOGITS_NONE,
                                               .attend = gpw_pass_attend_full,
                                               .complete = complete,
                                               .failed = failed};

static gpw_turn_t begin(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    gpw_forward_slot_t *slot = request->forward;
    uint32_t size = engine->shape.block_tokens;
    uint32_t rows = (request->recompute_to - request->recompute_from) * size;
    if (rows > slot->rows_max) {
        if (!request->long_forward) {
            request->long_forward = gpw_engine_take_forward(engine, true);
        }
        slot = request->long_forward;
        if (!slot) {
            return GPW_TURN_WAIT;
        }
    }
    uint32_t first;
    uint32_t count = gpw_swap_range(request, request->recompute_from, &first);
    if (count > 0 && gpw_swap_is_too_early(request)) {
        return GPW_TURN_WAIT;
    }
    if (count > 0) {
        as_status_t status = gpw_swap_start(request, first, count, NULL);
        if (status == AS_ERR_BUSY) {
            return GPW_TURN_WAIT;
        }
        if (status != AS_OK) {
            return gpw_request_fail(request, status, "no memory to bring the cache");
        }
    }
    return gpw_pass_begin(request, &recompute_pass, slot, request->recompute_from * size, rows);
}

gpw_turn_t gpw_recompute_turn(gpw_request_t *request)
{
    return request->passing ? gpw_pass_turn(request) : begin(request);
}
