// SPDX-License-Identifier: Apache-2.0
// The step VERIFY: one pass of the last token and its drafts over the full cache; what agrees
// leaves, and one more.
//
// Row j's logits are those of plain decoding at its position, since its inputs are the tokens that
// plain decoding would have chosen up to there: as long as every draft before it agreed. The commit
// rule: the K and V of this pass, which lie behind blocks.tokens already, become the cache by
// moving blocks.tokens over the inputs of the emitted tokens. The last emitted token has no K and V
// yet: it is the first row of the next verification.
//
// The pass goes through the layers as its swap brings them, in the batch's lane STREAM; or waits for
// the stores' answers layer by layer (decode/pushdown.c). It owns its forward slot's rows and the
// blocks behind blocks.tokens until `commit`, or until `failed` throws both away: a hole in its own
// blocks is a RECOMPUTE; one in blocks that only another rider needs, and a client with too many
// fetches in flight, a SWAP anew; a store that does not attend a SWAP instead of a push-down. The drafts stay in all three, so nothing is drafted twice.
#include "common/assert.h"
#include "gpuworker/decode/proposals.h"
#include "gpuworker/decode/pushdown.h"
#include "gpuworker/decode/recompute.h"
#include "gpuworker/engine.h"

// Emits what row `row` chose. True to go on with the next row: it was the draft, and there is
// another.
static bool emit_row(gpw_request_t *request, uint32_t row, const float *logits, bool *complete_p)
{
    uint32_t base = request->pass.position + 1; // tokens[base + j] is draft j
    int32_t draft = request->tokens[base + row];
    int32_t token = gpw_reply_choose(request, logits, base + row);
    *complete_p = gpw_reply_token(request, token, logits);
    bool agrees = row < request->draft_count && token == draft;
    request->usage.accepted_tokens += agrees;
    return agrees && !*complete_p;
}

static void trace(const gpw_request_t *request, uint32_t tokens)
{
    const gpw_engine_t *engine = request->engine;
    bool pushed = gpw_swap_is_pushed(&request->swap);
    const gpw_trace_span_t span = {.lane = pushed ? GPW_TRACE_PUSH_DOWN : GPW_TRACE_VERIFY,
                                   .session = request->id,
                                   .begin_us = request->round.verify_us,
                                   .end_us = as_loop_now_us(engine->loop),
                                   .noun = "tokens",
                                   .amount = tokens};
    gpw_trace_add(engine->trace, &span);
}

// The cache takes the K and V of what was emitted, and the next round begins.
static gpw_turn_t commit(gpw_request_t *request, bool is_complete)
{
    uint32_t drafted = request->draft_count;
    uint32_t accepted = request->usage.accepted_tokens - request->accepted_before;
    gpw_horizon_outcome_t outcome = {.drafted = drafted,
                                     .accepted = accepted,
                                     .draft_us = request->round.draft_us,
                                     .verify_us = request->pass.busy_us,
                                     .draft_attend_us = request->round.draft_attend_us,
                                     .verify_attend_us = request->pass.attend_us};
    trace(request, accepted + 1);
    gpw_proposals_learn(request, request->tokens[request->pass.position + 1], accepted);
    gpw_pass_end(request);
    gpw_push_done(request);
    gpw_swap_end(request);
    request->blocks.tokens = request->token_count - 1;
    gpw_blocks_key(&request->blocks, request->tokens, request->blocks.tokens);
    request->draft_count = 0;
    request->swap_failures = 0;
    request->usage.drafted_tokens += drafted;
    request->usage.verifications++;
    gpw_metric_add(GPW_METRIC_DRAFTED_TOKENS_TOTAL, drafted);
    gpw_metric_add(GPW_METRIC_ACCEPTED_TOKENS_TOTAL, accepted);
    gpw_horizon_learn(&request->horizon, &outcome);
    gpw_candidates_learn(request, &outcome);
    gpw_round_end(request, accepted + 1);
    gpw_reply_flush(request);
    return is_complete ? gpw_reply_complete(request) : gpw_request_go(request, GPW_STEP_SEAL);
}

// Tokens of these rows up to the first that disagrees.
static gpw_turn_t complete(gpw_request_t *request, const float *logits, uint32_t count)
{
    uint32_t vocab = request->engine->options.model->vocab;
    bool more = true, is_complete = false;
    for (uint32_t i = 0; i < count && more; i++) {
        more = emit_row(request, request->pass.logits_row + i, logits + (size_t)i * vocab,
                        &is_complete);
    }
    if (more && gpw_pass_more_logits(request, count)) {
        return GPW_TURN_COMPUTE;
    }
    return commit(request, is_complete);
}

static gpw_turn_t failed(gpw_request_t *request, uint32_t hole)
{
    if (gpw_swap_is_pushed(&request->swap)) {
        return gpw_push_failed(request);
    }
    bool is_own = hole < request->swap.end_block, refused = gpw_swap_is_refused(request);
    gpw_pass_end(request);
    gpw_swap_end(request);
    if (refused || !is_own) { // another session's block is missing
        return gpw_request_go(request, GPW_STEP_SWAP);
    }
    return gpw_recompute_from(request, hole);
}

static const gpw_pass_kind_t verify_pass = {.full = true,
                                            .logits = GPW_LOGITS_ALL,
                                            .attend = gpw_pass_attend_full,
                                            .complete = complete,
                                            .failed = failed};

static gpw_turn_t begin(gpw_request_t *request)
{
    uint32_t rows = request->draft_count + 1;
    as_status_t status = gpw_blocks_cover(&request->blocks, request->blocks.tokens + rows);
    if (status != AS_OK) {
        return gpw_request_fail(request, status, "no memory for the tail");
    }
    AS_ASSERT(request->blocks.tokens == request->token_count - 1);
    request->accepted_before = request->usage.accepted_tokens;
    request->round.verify_us = as_loop_now_us(request->engine->loop);
    gpw_turn_t turn =
        gpw_pass_begin(request, &verify_pass, request->forward, request->blocks.tokens, rows);
    return gpw_swap_is_pushed(&request->swap) ? gpw_pass_turn(request) : turn;
}

gpw_turn_t gpw_verify_turn(gpw_request_t *request)
{
    return request->passing ? gpw_pass_turn(request) : begin(request);
}
