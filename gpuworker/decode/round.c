// SPDX-License-Identifier: Apache-2.0
// A round of one session.
#include "gpuworker/decode/round.h"

#include "gpuworker/decode/riders.h"
#include "gpuworker/engine.h"

// Draft steps before a draft's end at which its swap begins: they hide the way of its first layers.
#define EARLY_STEPS 4u
#define LAST_PART   4u   // of a draft: what is left behind it is not worth a swap of its own
#define NEWEST      0.25 // weight of the newest round

static uint32_t swap_blocks(const gpw_request_t *request)
{
    uint32_t first;
    return gpw_swap_range(request, request->blocks.stored, &first);
}

double gpw_round_exposed(const gpw_engine_t *engine)
{
    double layers = engine->shape.layers;
    double hidden = engine->options.overlap ? engine->options.swap_ring_layers : 0;
    return hidden < layers ? 1 - hidden / layers : 0;
}

static gpw_horizon_load_t load_of(const gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    bool pushed = engine->options.push_down == GPW_PUSH_DOWN_ON;
    gpw_horizon_load_t load;
    gpw_riders_load(request, &load);
    load.swap_us = pushed ? 0 : gpw_swap_link_us(engine, swap_blocks(request));
    load.exposed = gpw_round_exposed(engine);
    load.riders = load.swap_us > 0 ? load.riders : 1;
    return load;
}

// One that knows nothing begins with what is known on its chain, or of its compressor.
static void follow(gpw_request_t *request)
{
    const gpw_request_t *like = gpw_riders_like(request);
    gpw_horizon_t known;
    if (like) {
        gpw_horizon_follow(&request->horizon, &like->horizon);
    }
    if (gpw_candidates_expect(request, &known)) {
        gpw_horizon_follow(&request->horizon, &known);
    }
}

void gpw_round_begin(gpw_request_t *request)
{
    gpw_round_t *round = &request->round;
    uint32_t left = gpw_request_drafts_left(request);
    gpw_horizon_load_t load = load_of(request);
    follow(request);
    uint32_t target = gpw_horizon_get(&request->horizon, &load);
    round->begin_us = as_loop_now_us(request->engine->loop);
    round->draft_us = 0;
    round->draft_attend_us = 0;
    uint32_t most = request->horizon.max < left ? request->horizon.max : left;
    bool is_last = request->horizon.adaptive && left == most && left <= target + target / LAST_PART;
    round->wanted = target < left && !is_last ? target : left;
    round->limit = request->horizon.adaptive ? most : round->wanted;
    round->target = gpw_riders_target(request);
    round->expected_us = gpw_horizon_round_us(&request->horizon, &load, round->target);
    round->expected_tokens = gpw_horizon_yield(&request->horizon, round->target);
    uint32_t steps = round->target > EARLY_STEPS ? round->target - EARLY_STEPS : 0;
    gpw_swap_book(request, round->begin_us + (uint64_t)(round->step_us * steps));
}

bool gpw_round_wants_swap(const gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    return engine->options.overlap && !request->swap.stream &&
           request->draft_count + EARLY_STEPS >= request->round.target &&
           as_loop_now_us(engine->loop) >= request->swap_retry_us;
}

bool gpw_round_is_drafted(const gpw_request_t *request)
{
    const gpw_round_t *round = &request->round;
    if (request->draft_count >= round->limit) {
        return true;
    }
    if (request->draft_count < round->target) {
        return false;
    }
    if (!request->swap.stream) {
        return swap_blocks(request) == 0 || !request->engine->options.overlap;
    }
    return request->swap.stream->pushed || gpw_swap_is_here(request);
}

void gpw_round_drafted(gpw_request_t *request)
{
    gpw_round_t *round = &request->round;
    if (request->draft_count == 0) {
        return;
    }
    uint64_t now_us = as_loop_now_us(request->engine->loop);
    double step_us = (double)(now_us - round->begin_us) / request->draft_count;
    const gpw_trace_span_t span = {.lane = GPW_TRACE_DRAFT,
                                   .session = request->id,
                                   .begin_us = round->begin_us,
                                   .end_us = now_us,
                                   .noun = "tokens",
                                   .amount = request->draft_count};
    gpw_trace_add(request->engine->trace, &span);
    round->step_us =
        round->step_us > 0 ? round->step_us + NEWEST * (step_us - round->step_us) : step_us;
}

void gpw_round_end(gpw_request_t *request, uint32_t tokens)
{
    const gpw_round_t *round = &request->round;
    if (!request->compressor || round->expected_us <= 0) {
        return;
    }
    uint64_t us = as_loop_now_us(request->engine->loop) - round->begin_us;
    gpw_metric_add(GPW_METRIC_ROUND_EXPECTED_US_TOTAL, (int64_t)round->expected_us);
    gpw_metric_add(GPW_METRIC_ROUND_US_TOTAL, (int64_t)us);
    gpw_metric_add(GPW_METRIC_ROUND_EXPECTED_TOKENS_TOTAL, (int64_t)(round->expected_tokens + 0.5));
    gpw_metric_add(GPW_METRIC_ROUND_TOKENS_TOTAL, tokens);
}
