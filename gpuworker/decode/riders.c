// SPDX-License-Identifier: Apache-2.0
// Sessions on one chain are verified in one swap.
#include "gpuworker/decode/riders.h"

#include <string.h>

#include "gpuworker/engine.h"

#define OWN_BLOCKS_MAX 16u // that a session holds behind what it has in common with others
#define STEPS_MORE     4u  // that a rider may draft while the first layers come

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t rest(uint32_t of, uint32_t done)
{
    return of > done ? of - done : 0;
}

// Whether the chains of both are the same up to block `end`. A key stands for all before it.
static bool is_common(const gpw_request_t *a, const gpw_request_t *b, uint32_t end)
{
    return end > 0 && end <= a->blocks.keyed && end <= b->blocks.keyed &&
           memcmp(&a->blocks.block[end - 1].key, &b->blocks.block[end - 1].key, sizeof(as_key_t)) ==
               0;
}

static bool is_verified(const gpw_request_t *request)
{
    return request->verify && request->compressor && request->holds_session && request->cached;
}

// Whether drafts of these lengths are of sessions that can stay in step.
static bool is_like(uint32_t one, uint32_t other)
{
    return 2 * one >= other && 2 * other >= one;
}

// Whether it wants its swap soon enough to come along in one of so many blocks, which `leader` begins:
// before that is over, or with half of its draft; or it is the leader's like: then it comes whatever it
// has drafted, and is in step from then on. A verification costs by its rows, so a short one wastes
// little.
static bool is_due(const gpw_request_t *r, const gpw_request_t *leader, uint32_t blocks)
{
    if (!is_verified(r) || r->swap.stream) {
        return false;
    }
    if (r->step == GPW_STEP_SWAP) {
        return as_loop_now_us(r->engine->loop) >= r->swap_retry_us;
    }
    if (r->step != GPW_STEP_DRAFT || !r->drafting) {
        return false;
    }
    uint32_t steps = rest(r->round.target, r->draft_count);
    return is_like(leader->round.wanted, r->round.wanted) ||
           2 * (r->draft_count + STEPS_MORE) >= r->round.target ||
           steps * r->round.step_us <= gpw_swap_link_us(r->engine, blocks);
}

// Whether both have a chain of stored blocks in common, as far as they have both.
static bool is_sharer_of(const gpw_request_t *r, const gpw_request_t *request)
{
    uint32_t a = r->blocks.stored, b = request->blocks.stored;
    return is_verified(r) && is_common(request, r, a < b ? a : b);
}

// Sessions that draft and verify by turns.
static bool takes_turns(const gpw_request_t *r)
{
    return r->holds_session && r->step >= GPW_STEP_SEAL && r->step <= GPW_STEP_RECOMPUTE;
}

// Whether one before it in the list is verified in the same swap.
static bool has_leader(const gpw_request_t *request)
{
    const gpw_request_t *r = request->engine->first;
    while (r != request && !(takes_turns(r) && is_sharer_of(r, request))) {
        r = r->next;
    }
    return r != request;
}

void gpw_riders_load(const gpw_request_t *request, gpw_horizon_load_t *load)
{
    const gpw_engine_t *engine = request->engine;
    bool shared = engine->options.shared_verification;
    *load = (gpw_horizon_load_t){0};
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        if (takes_turns(r)) {
            load->sessions++;
            load->swaps += !(shared && is_verified(r) && has_leader(r));
            load->riders += r == request || (shared && is_sharer_of(r, request));
        }
    }
}

const gpw_request_t *gpw_riders_like(const gpw_request_t *request)
{
    const gpw_request_t *found = NULL;
    for (const gpw_request_t *r = request->engine->first; r; r = r->next) {
        bool alike = r != request && r->compressor == request->compressor && takes_turns(r);
        bool knows_more = !found || r->horizon.tried > found->horizon.tried;
        found = alike && knows_more && is_sharer_of(r, request) ? r : found;
    }
    return found;
}

// Whether `r` drafts on the chain of `request`, as long as that wants to, and its swap has not begun.
static bool drafts_beside(const gpw_request_t *r, const gpw_request_t *request)
{
    return r != request && is_sharer_of(r, request) && r->step == GPW_STEP_DRAFT && r->drafting &&
           !r->swap.stream && is_like(r->round.wanted, request->round.wanted);
}

uint32_t gpw_riders_target(gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    uint32_t wanted = request->round.wanted, left = wanted, room = wanted;
    if (!engine->options.shared_verification) {
        return wanted;
    }
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        if (drafts_beside(r, request)) {
            left = lesser(left, rest(r->round.target, r->draft_count));
            room = lesser(room, rest(r->round.limit, r->draft_count));
        }
    }
    uint32_t steps = lesser((left + wanted + 1) / 2, room);
    for (gpw_request_t *r = engine->first; r; r = r->next) {
        if (drafts_beside(r, request) && r->draft_count + steps > r->round.target) {
            r->round.target = r->draft_count + steps;
        }
    }
    return steps > 0 ? steps : lesser(wanted, 1);
}

static bool is_shared(const gpw_request_t *request)
{
    const gpw_engine_t *engine = request->engine;
    bool swaps = request->step == GPW_STEP_DRAFT || request->step == GPW_STEP_SWAP;
    return engine->options.shared_verification && is_verified(request) && swaps;
}

// One whose range has ours in common with it.
static bool has_reader_of(const gpw_stream_t *stream, const gpw_request_t *request, uint32_t first,
                          uint32_t end)
{
    for (const gpw_request_t *r = stream->readers; r; r = r->swap.next_reader) {
        if (r->swap.first_block <= first && r->swap.end_block >= end &&
            is_common(r, request, end)) {
            return true;
        }
    }
    return false;
}

static void ride(gpw_request_t *request, gpw_stream_t *stream, uint32_t first, uint32_t count)
{
    gpw_stream_join(stream, request);
    request->swap.first_block = first;
    request->swap.end_block = first + count;
    gpw_metric_add(GPW_METRIC_SHARED_SWAPS_TOTAL, 1);
}

bool gpw_riders_board(gpw_request_t *request, uint32_t first, uint32_t count)
{
    for (gpw_stream_t *s = request->engine->streams.first; is_shared(request) && s; s = s->next) {
        if (s->pushed || s->prefix || s->released > 0 || gpw_transfer_news(s->transfer)->done ||
            !has_reader_of(s, request, first, first + count)) {
            continue;
        }
        ride(request, s, first, count);
        return true;
    }
    return false;
}

void gpw_riders_widen(const gpw_request_t *request, gpw_stream_range_t *range)
{
    range->chain = request;
    for (const gpw_request_t *r = request->engine->first; is_shared(request) && r; r = r->next) {
        uint32_t end = range->first + range->count, first;
        uint32_t count = gpw_swap_range(r, r->blocks.stored, &first);
        if (r != request && first == range->first && count > range->count &&
            is_common(request, r, end) && is_due(r, request, count)) {
            range->chain = r;
            range->count = count;
        }
    }
}

void gpw_riders_join(gpw_request_t *request, const gpw_stream_range_t *range)
{
    gpw_stream_t *stream = request->swap.stream;
    for (gpw_request_t *r = request->engine->first; is_shared(request) && r; r = r->next) {
        uint32_t first;
        uint32_t count = gpw_swap_range(r, r->blocks.stored, &first);
        if (r == request || count == 0 || first < range->first ||
            first + count > range->first + range->count ||
            !is_common(range->chain, r, first + count) || !is_due(r, request, range->count)) {
            continue;
        }
        ride(r, stream, first, count);
        uint32_t most = r->draft_count + STEPS_MORE;
        r->round.target = r->round.target < most ? r->round.target : most;
        gpw_request_wake(r);
    }
}

// The longest chain that another session has in common with this one, in blocks.
static uint32_t common_blocks(const gpw_request_t *request)
{
    uint32_t most = 0;
    for (const gpw_request_t *r = request->engine->first; r; r = r->next) {
        if (r == request || !is_verified(r)) {
            continue;
        }
        uint32_t common = most, beyond = request->blocks.keyed + 1;
        while (beyond - common > 1) {
            uint32_t middle = common + (beyond - common) / 2;
            *(is_common(request, r, middle) ? &common : &beyond) = middle;
        }
        most = common;
    }
    return most;
}

uint32_t gpw_riders_drop_limit(const gpw_request_t *request, uint32_t limit)
{
    if (!request->engine->options.shared_verification || !is_verified(request)) {
        return limit;
    }
    uint32_t common = common_blocks(request);
    return common > 0 && common < limit && limit - common <= OWN_BLOCKS_MAX ? common : limit;
}
