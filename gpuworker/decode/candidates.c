// SPDX-License-Identifier: Apache-2.0
// What a request's compressor could be, and what became of those that were chosen.
#include "gpuworker/decode/candidates.h"

#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "gpuworker/decode/riders.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/stored.h"

static uint32_t methods(const gpw_engine_t *engine)
{
    return engine->candidates.chooser.count;
}

// NULL: plain decoding.
static const gpw_compressor_t *compressor_of(const gpw_engine_t *engine, uint32_t method)
{
    return method + 1 < methods(engine) ? engine->compressors + method : NULL;
}

// Its count: a method that is in no table.
static uint32_t method_of(const gpw_engine_t *engine, const gpw_compressor_t *compressor)
{
    uint32_t method = 0;
    while (method < methods(engine) && compressor_of(engine, method) != compressor) {
        method++;
    }
    return method;
}

as_status_t gpw_candidates_init(gpw_engine_t *engine)
{
    gpw_candidates_t *candidates = &engine->candidates;
    uint32_t count = 0;
    for (const gpw_compressor_t *c = engine->compressors; c->name; c++, count++) {
        AS_ASSERT(count + 2 < GPW_METHODS_MAX); // with plain decoding, and one that is in no table
        gpw_segment_options_t options = {.params = &c->params,
                                         .shape = engine->shape,
                                         .ops = engine->options.ops,
                                         .blocks_max = 1};
        gpw_segment_t *segment = NULL;
        as_status_t status = c->open(&options, &segment);
        if (status == AS_OK) {
            c->close(segment);
            candidates->supported |= 1ull << count;
        } else if (status != AS_ERR_UNSUPPORTED) {
            return status;
        }
    }
    // Names are those of the table, then "none".
    gpw_chooser_init(&candidates->chooser, gpw_compressor_names(0), count + 1);
    return AS_OK;
}

// ---- What fits ---------------------------------------------------------------------------------

static void set_method(gpw_request_t *request, uint32_t method)
{
    request->compressor = compressor_of(request->engine, method);
    request->keep_full = !request->compressor;
}

static bool is_supported(const gpw_engine_t *engine, uint32_t method)
{
    return compressor_of(engine, method) ? engine->candidates.supported >> method & 1
                                         : !engine->options.swap_full_cache;
}

uint64_t gpw_candidates_bytes_min(gpw_request_t *request)
{
    const gpw_compressor_t *compressor = request->compressor;
    bool keep_full = request->keep_full;
    if (!request->chosen.wanted) {
        return gpw_request_bytes_max(request);
    }
    uint64_t least = UINT64_MAX;
    for (uint32_t m = 0; m < methods(request->engine); m++) {
        set_method(request, m);
        uint64_t bytes =
            is_supported(request->engine, m) ? gpw_request_bytes_max(request) : UINT64_MAX;
        least = bytes < least ? bytes : least;
    }
    request->compressor = compressor;
    request->keep_full = keep_full;
    return least;
}

// Of a segment whose size the text decides what it was so far.
static uint64_t resident_bytes(const gpw_request_t *request, uint32_t method)
{
    const gpw_engine_t *engine = request->engine;
    uint64_t bytes = gpw_request_resident_bytes(request);
    double each = engine->candidates.chooser.method[method].bytes_per_token;
    const gpw_compressor_t *c = request->compressor;
    if (!c || !(c->flags & GPW_COMPRESSOR_DATA_SIZED) || each <= 0) {
        return bytes;
    }
    uint64_t most = gpw_request_segment_bytes(request);
    uint64_t expected = (uint64_t)(each * request->tokens_max);
    return expected < most ? bytes - most + expected : bytes;
}

// ---- What is there already ---------------------------------------------------------------------

// The chain of the request: what is known of it before it is admitted.
typedef struct chain {
    uint32_t blocks;  // full ones of the prompt, with keys at engine->block_keys
    uint32_t sharers; // sessions that have at least half of it in common
    uint32_t prefix;  // blocks that stores are known to have, in whatever form
    uint32_t held[GPW_METHODS_MAX];
    uint32_t stored[GPW_METHODS_MAX]; // blocks in the method's form
} chain_t;

static bool is_shareable(const gpw_compressor_t *compressor)
{
    return compressor && compressor->slot && compressor->flags & GPW_COMPRESSOR_QUERY_FREE;
}

// Whether the form of so many blocks spares the fetch of the full ones (decode/prefix.h).
static bool is_form_enough(const gpw_request_t *request, uint32_t blocks)
{
    const gpw_engine_t *engine = request->engine;
    uint32_t behind = request->token_count - blocks * engine->shape.block_tokens;
    return engine->options.store_sealed && engine->options.push_down != GPW_PUSH_DOWN_OFF &&
           behind <= request->horizon.max + 1;
}

static void look_at_forms(const gpw_request_t *request, chain_t *chain)
{
    const gpw_engine_t *engine = request->engine;
    for (uint32_t m = 0; m < methods(engine); m++) {
        uint32_t blocks =
            gpw_forms_blocks(&engine->candidates.forms, engine->block_keys, chain->blocks, m);
        chain->prefix = blocks > chain->prefix ? blocks : chain->prefix;
        chain->stored[m] = is_form_enough(request, blocks) ? blocks : 0;
    }
}

static void look_at_chain(const gpw_request_t *request, chain_t *chain)
{
    gpw_engine_t *engine = request->engine;
    uint32_t size = engine->shape.block_tokens;
    *chain = (chain_t){.blocks = as_chain_keys(&request->namespace_key, request->tokens,
                                               request->token_count, size, engine->block_keys,
                                               engine->options.context_max / size)};
    uint32_t half = (chain->blocks + 1) / 2;
    for (const gpw_request_t *r = engine->first; half > 0 && r; r = r->next) {
        if (r == request || !r->holds_session || !r->cached || r->blocks.keyed < half ||
            !as_key_equal(&r->blocks.block[half - 1].key, &engine->block_keys[half - 1])) {
            continue;
        }
        uint32_t method = method_of(engine, r->compressor);
        chain->sharers += r->verify && r->compressor;
        chain->held[method] += is_shareable(r->compressor);
    }
    look_at_forms(request, chain);
}

// ---- The question ------------------------------------------------------------------------------

static uint32_t sessions_wanted(const gpw_engine_t *engine)
{
    uint32_t count = 0, most = engine->options.sessions_max;
    for (const gpw_request_t *r = engine->first; r; r = r->next) {
        count += !r->finished;
    }
    return count < most ? count : most;
}

static double swap_us(const gpw_request_t *request, uint64_t worst, uint32_t sessions)
{
    const gpw_engine_t *engine = request->engine;
    const gpw_worker_options_t *options = &engine->options;
    bool pushed = options->push_down == GPW_PUSH_DOWN_ON;
    bool keeps = options->keep_while_room && sessions * worst <= options->cache_bytes_max;
    uint32_t tokens = (request->token_count + request->tokens_max) / 2;
    return pushed || keeps || !gpw_link_has_client(engine->link)
               ? 0
               : gpw_swap_link_us(engine, tokens / engine->shape.block_tokens);
}

// Of what stores have of the prompt: all of it whole, but for what they have in the method's form.
static double fetch_us(const gpw_request_t *request, const chain_t *chain, uint32_t method)
{
    const gpw_engine_t *engine = request->engine;
    uint32_t stored = chain->stored[method];
    as_shape_t form;
    double share = 1;
    if (stored > 0 && gpw_stored_shape(request->compressor, &engine->shape, &form)) {
        share = (double)as_block_bytes(&form) / (double)as_block_bytes(&engine->shape);
    }
    return gpw_swap_link_us(engine, chain->prefix - stored) +
           share * gpw_swap_link_us(engine, stored);
}

static void consider(gpw_request_t *request, const chain_t *chain, uint32_t method,
                     gpw_chooser_ask_t *ask)
{
    const gpw_engine_t *engine = request->engine;
    gpw_candidate_t *candidate = &ask->candidate[method];
    set_method(request, method);
    uint64_t worst = gpw_request_bytes_max(request), most = engine->options.cache_bytes_max;
    if (!is_supported(engine, method) || worst > most) {
        return;
    }
    uint64_t own = resident_bytes(request, method);
    if (chain->held[method] > 0 && request->tokens_max > 0) { // the chain's blocks are there
        uint64_t shared = gpw_request_segment_bytes(request) * chain->blocks *
                          engine->shape.block_tokens / request->tokens_max;
        own -= shared < own ? shared : own;
    }
    uint32_t size = engine->shape.block_tokens, stored = chain->stored[method];
    uint32_t sealed = gpw_sealed_target(&engine->shape, request->token_count);
    candidate->possible = true;
    candidate->bytes = own;
    candidate->sessions = 1 + (uint32_t)((most - worst) / (own > 0 ? own : 1));
    candidate->swap_us = swap_us(request, worst, ask->load.sessions);
    candidate->fetch_us = fetch_us(request, chain, method);
    candidate->seal_tokens = request->compressor && sealed > stored ? (sealed - stored) * size : 0;
    candidate->held = chain->held[method];
}

// Plain decoding gives nothing back while it lasts: room for all that may come, or nothing else fits.
static void consider_plain(gpw_request_t *request, const chain_t *chain, gpw_chooser_ask_t *ask)
{
    const gpw_engine_t *engine = request->engine;
    uint32_t plain = methods(engine) - 1;
    bool others = false;
    for (uint32_t m = 0; m < plain; m++) {
        others |= ask->candidate[m].possible;
    }
    consider(request, chain, plain, ask);
    gpw_candidate_t *candidate = &ask->candidate[plain];
    candidate->possible &= !others || candidate->sessions >= engine->options.sessions_max;
}

static void make_ask(gpw_request_t *request, gpw_chooser_ask_t *ask)
{
    const gpw_engine_t *engine = request->engine;
    chain_t chain;
    look_at_chain(request, &chain);
    *ask = (gpw_chooser_ask_t){.prompt_tokens = request->token_count,
                               .answer_tokens = request->params.max_tokens,
                               .horizon = request->horizon.max,
                               .horizon_fixed = !request->horizon.adaptive};
    ask->load.sessions = sessions_wanted(engine);
    ask->load.riders = engine->options.shared_verification ? chain.sharers + 1 : 1;
    ask->load.exposed = gpw_round_exposed(engine);
    for (uint32_t m = 0; m + 1 < methods(engine); m++) {
        consider(request, &chain, m, ask);
    }
    consider_plain(request, &chain, ask);
}

// ---- The choice --------------------------------------------------------------------------------

static void report(const gpw_request_t *request, const gpw_pick_t *pick)
{
    const gpw_engine_t *engine = request->engine;
    gpw_metric_method_add(GPW_METHOD_CHOSEN, pick->method, 1);
    gpw_metric_method_add(GPW_METHOD_TRIED, pick->method, pick->reason == GPW_PICK_TRIAL);
    for (uint32_t m = 0; m < methods(engine); m++) {
        if (pick->rates[m] > 0 && pick->timed) {
            gpw_metric_method_set(GPW_METHOD_EXPECTED, m, (int64_t)(1e3 * pick->rates[m] + 0.5));
        }
    }
    const gpw_trace_span_t span = {.lane = GPW_TRACE_CHOOSE,
                                   .session = request->id,
                                   .begin_us = request->submitted_us,
                                   .end_us = as_loop_now_us(engine->loop),
                                   .noun = request->usage.compressor,
                                   .amount = (uint64_t)pick->rates[pick->method]};
    gpw_trace_add(engine->trace, &span);
    AS_DEBUG("chooser", "request %llu: %s", (unsigned long long)request->id, request->usage.chosen);
}

void gpw_candidates_choose(gpw_request_t *request)
{
    gpw_chooser_t *chooser = &request->engine->candidates.chooser;
    if (!request->chosen.wanted) {
        return;
    }
    gpw_chooser_ask_t ask;
    gpw_pick_t pick;
    make_ask(request, &ask);
    bool found = gpw_chooser_pick(chooser, &ask, &pick);
    AS_ASSERT(found); // one fitted when it was submitted
    set_method(request, pick.method);
    request->chosen.wanted = false;
    request->chosen.trial = pick.reason == GPW_PICK_TRIAL;
    request->chosen.method = pick.method;
    request->usage.compressor = chooser->names[pick.method];
    gpw_chooser_explain(chooser, &pick, request->usage.chosen);
    report(request, &pick);
}

// ---- What is learned ---------------------------------------------------------------------------

// False: there is nothing to learn of such a session.
static bool is_lesson(const gpw_request_t *request, uint32_t *method_p)
{
    *method_p = method_of(request->engine, request->compressor);
    return *method_p < methods(request->engine) && (request->compressor || request->keep_full);
}

void gpw_candidates_learn(gpw_request_t *request, const gpw_horizon_outcome_t *outcome)
{
    gpw_lesson_t lesson = {.context_tokens = request->blocks.tokens,
                           .taught = request->chosen.taught,
                           .outcome = *outcome};
    if (is_lesson(request, &lesson.method)) {
        gpw_chooser_t *chooser = &request->engine->candidates.chooser;
        request->chosen.taught += gpw_chooser_learn(chooser, &lesson);
    }
}

void gpw_candidates_sealed(gpw_request_t *request, uint32_t tokens)
{
    gpw_sealing_t sealing = {.tokens = tokens,
                             .bytes = request->sealed.bytes + request->sealed.shared_bytes,
                             .us = request->chosen.sealing_us};
    request->chosen.sealing_us = 0;
    if (request->sealed.segment && is_lesson(request, &sealing.method)) {
        gpw_chooser_sealed(&request->engine->candidates.chooser, &sealing);
    }
}

void gpw_candidates_end(gpw_request_t *request, bool complete)
{
    gpw_chooser_t *chooser = &request->engine->candidates.chooser;
    if (request->chosen.trial) {
        request->chosen.trial = false;
        gpw_chooser_end_trial(chooser, request->chosen.method);
    }
    if (complete) {
        gpw_chooser_answered(chooser, request->usage.completion_tokens);
    }
}

bool gpw_candidates_expect(const gpw_request_t *request, gpw_horizon_t *horizon)
{
    uint32_t method;
    return is_lesson(request, &method) &&
           gpw_chooser_expect(&request->engine->candidates.chooser, method, request->blocks.tokens,
                              horizon);
}

void gpw_candidates_stored(gpw_request_t *request, uint32_t first, uint32_t count, bool there)
{
    gpw_forms_t *forms = &request->engine->candidates.forms;
    uint32_t method;
    if (!is_lesson(request, &method)) {
        return;
    }
    for (uint32_t b = first; b < first + count; b++) {
        if (there) {
            gpw_forms_note(forms, &request->blocks.block[b].key, b, method);
        } else {
            gpw_forms_forget(forms, &request->blocks.block[b].key, 1, method);
        }
    }
}
