// SPDX-License-Identifier: Apache-2.0
// PUBLISH: full blocks are put to stores behind the request; and the step in which a finished
// request waits for the last.
//
// A block stays held until a store has acknowledged it. A put that no store takes is counted, and
// the session tries again later, ever more rarely; a finished request does not try again.
#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/stored.h"

#define BACKOFF_US_MIN 50000u   // after a put that failed
#define BACKOFF_US_MAX 5000000u // a session without stores asks this rarely

static void on_news(void *ctx, gpw_transfer_t *transfer);

static bool wants_put(const gpw_request_t *request, uint32_t b)
{
    const gpw_block_t *block = &request->blocks.block[b];
    return block->memory && !block->node_id && !block->publishing && !block->lossy &&
           !block->hollow;
}

// Full blocks of exact K and V.
static uint32_t exact_blocks(const gpw_request_t *request)
{
    uint32_t tokens = request->blocks.tokens;
    if (!request->verify && tokens > request->exact_tokens) {
        tokens = request->exact_tokens;
    }
    return tokens / request->blocks.shape.block_tokens;
}

bool gpw_publish_pending(const gpw_request_t *request)
{
    if (!request->cached || !gpw_link_has_client(request->engine->link)) {
        return false;
    }
    for (uint32_t b = request->blocks.stored; b < exact_blocks(request); b++) {
        if (wants_put(request, b)) {
            return true;
        }
    }
    return false;
}

// Of every block of this model, so once is enough.
static void warn_too_large(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    if (!engine->warned_block_too_large) {
        engine->warned_block_too_large = true;
        AS_WARN("publish",
                "a store is smaller than a block and caches nothing of this model, block_bytes "
                "%llu: give it more --ram",
                (unsigned long long)as_block_bytes(&request->blocks.shape));
    }
}

static void put_failed(gpw_request_t *request, as_status_t status)
{
    gpw_engine_t *engine = request->engine;
    if (status == AS_ERR_CANCELLED) {
        return;
    }
    if (status == AS_ERR_LIMIT) {
        warn_too_large(request);
    }
    if (status != AS_ERR_BUSY) {
        request->publish_failures++;
        gpw_metric_add(GPW_METRIC_PUBLISH_DROPPED_BLOCKS_TOTAL, 1);
    }
    uint64_t backoff_us = 2 * request->publish_backoff_us;
    backoff_us = backoff_us < BACKOFF_US_MIN ? BACKOFF_US_MIN : backoff_us;
    request->publish_backoff_us = backoff_us < BACKOFF_US_MAX ? backoff_us : BACKOFF_US_MAX;
    request->publish_retry_us = as_loop_now_us(engine->loop) + request->publish_backoff_us;
    gpw_engine_wake_at(engine, request->publish_retry_us);
}

// What a put of a full block came to.
static void full_done(gpw_request_t *request, uint32_t b, const gpw_transfer_news_t *news)
{
    gpw_block_t *block = &request->blocks.block[b];
    block->publishing = false;
    if (news->status == AS_OK || news->status == AS_ERR_EXISTS) {
        uint64_t bytes = news->status == AS_OK ? as_block_bytes(&request->blocks.shape) : 0;
        block->node_id = news->node_id;
        request->publish_failures = 0;
        request->publish_backoff_us = 0;
        request->usage.published_bytes += bytes;
        gpw_metric_add(GPW_METRIC_PUBLISHED_BYTES_TOTAL, (int64_t)bytes);
    } else {
        put_failed(request, news->status);
    }
}

// The sealed form of a block whose full form a store has taken; one that is not taken is not missed before
// somebody asks for it, and then made of the full blocks.
static void start_sealed(gpw_request_t *request, gpw_put_t *put)
{
    const gpw_engine_t *engine = request->engine;
    const gpw_blocks_t *blocks = &request->blocks;
    const gpw_compressor_t *compressor = request->compressor;
    uint32_t b = put->block, run = b / AS_RUN_BLOCKS * AS_RUN_BLOCKS;
    as_key_t namespace_key, key, parent, run_key;
    gpw_transfer_params_t params = {.kind = GPW_TRANSFER_PUT,
                                    .on_news = on_news,
                                    .ctx = put,
                                    .deadline_us = as_loop_now_us(engine->loop) +
                                                   engine->options.put_deadline_us};
    if (!engine->options.store_sealed || !request->verify ||
        !gpw_stored_shape(compressor, &blocks->shape, &params.shape)) {
        return;
    }
    uint8_t *sealed = gpw_stored_pack(compressor, &blocks->shape, engine->options.ops, b,
                                      blocks->block[b].memory);
    gpw_stored_key(compressor, &blocks->namespace_key, &namespace_key);
    gpw_stored_key(compressor, &blocks->block[b].key, &key);
    gpw_stored_key(compressor, b ? &blocks->block[b - 1].key : &blocks->namespace_key, &parent);
    gpw_stored_key(compressor, &blocks->block[run].key, &run_key);
    params.namespace_key = namespace_key;
    params.keys = &key;
    params.parent = parent;
    params.run_key = run_key;
    params.block = sealed;
    if (!sealed || gpw_transfer_start(engine->link, &params, &put->transfer) != AS_OK) {
        as_mem_free(sealed);
        return;
    }
    put->sealed = sealed;
    request->puts_used++;
}

static void sealed_done(gpw_request_t *request, gpw_put_t *put, const gpw_transfer_news_t *news)
{
    as_shape_t shape;
    bool taken = news->status == AS_OK &&
                 gpw_stored_shape(request->compressor, &request->blocks.shape, &shape);
    uint64_t bytes = taken ? as_block_bytes(&shape) : 0;
    if (news->status == AS_OK || news->status == AS_ERR_EXISTS) {
        gpw_candidates_stored(request, put->block, 1, true);
    }
    request->usage.published_bytes += bytes;
    gpw_metric_add(GPW_METRIC_SEALED_PUBLISHED_BYTES_TOTAL, (int64_t)bytes);
    as_mem_free(put->sealed);
    put->sealed = NULL;
}

static void on_news(void *ctx, gpw_transfer_t *transfer)
{
    gpw_put_t *put = ctx;
    gpw_request_t *request = put->request;
    const gpw_transfer_news_t *news = gpw_transfer_news(transfer);
    if (!news->done) {
        return;
    }
    bool full = !put->sealed;
    bool taken = news->status == AS_OK || news->status == AS_ERR_EXISTS;
    if (full) {
        full_done(request, put->block, news);
    } else {
        sealed_done(request, put, news);
    }
    gpw_transfer_retire(transfer);
    put->transfer = NULL;
    request->puts_used--;
    if (full && taken) {
        start_sealed(request, put);
    }
    if (!request->finished) {
        gpw_publish_pump(request);
    }
    if (request->finished || request->step == GPW_STEP_ADMIT) {
        gpw_request_wake(request);
    }
}

static as_status_t start(gpw_request_t *request, gpw_put_t *put, uint32_t b)
{
    gpw_engine_t *engine = request->engine;
    gpw_blocks_t *blocks = &request->blocks;
    uint32_t run = b / AS_RUN_BLOCKS * AS_RUN_BLOCKS;
    gpw_transfer_params_t params = {
        .kind = GPW_TRANSFER_PUT,
        .on_news = on_news,
        .ctx = put,
        .deadline_us = as_loop_now_us(engine->loop) + engine->options.put_deadline_us,
        .shape = blocks->shape,
        .namespace_key = blocks->namespace_key,
        .keys = &blocks->block[b].key,
        .parent = b ? blocks->block[b - 1].key : blocks->namespace_key,
        .run_key = blocks->block[run].key,
        .block = blocks->block[b].memory,
    };
    as_status_t status = gpw_transfer_start(engine->link, &params, &put->transfer);
    if (status == AS_OK) {
        put->request = request;
        put->block = b;
        blocks->block[b].publishing = true;
        request->puts_used++;
    }
    return status;
}

void gpw_publish_pump(gpw_request_t *request)
{
    if (!request->cached || !gpw_link_has_client(request->engine->link) ||
        as_loop_now_us(request->engine->loop) < request->publish_retry_us) {
        return;
    }
    uint32_t full = exact_blocks(request);
    gpw_blocks_key(&request->blocks, request->tokens, full * request->blocks.shape.block_tokens);
    uint32_t slot = 0;
    for (uint32_t b = request->blocks.stored; b < full && request->puts_used < GPW_PUTS_MAX; b++) {
        if (!wants_put(request, b)) {
            continue;
        }
        while (request->puts[slot].transfer) {
            slot++;
        }
        if (start(request, &request->puts[slot], b) != AS_OK) {
            return;
        }
    }
}

void gpw_publish_cancel(gpw_request_t *request)
{
    for (uint32_t p = 0; p < GPW_PUTS_MAX; p++) {
        if (request->puts[p].transfer) {
            gpw_transfer_cancel(request->puts[p].transfer);
        }
    }
}

// ---- The step ----------------------------------------------------------------------------------

// True while puts are in flight or about to be.
static bool lingers(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    uint64_t now_us = as_loop_now_us(engine->loop);
    if (request->finish_status != AS_OK || request->publish_failures > 0 ||
        now_us >= request->linger_until_us) {
        return false;
    }
    gpw_publish_pump(request);
    bool waits = now_us < request->publish_retry_us && gpw_publish_pending(request);
    if (request->puts_used == 0 && !waits) {
        return false;
    }
    bool retry_first = waits && request->publish_retry_us < request->linger_until_us;
    gpw_engine_wake_at(engine, retry_first ? request->publish_retry_us : request->linger_until_us);
    return true;
}

gpw_turn_t gpw_publish_turn(gpw_request_t *request)
{
    if (request->released || lingers(request)) {
        return GPW_TURN_WAIT;
    }
    if (gpw_request_moving(request)) {
        gpw_publish_cancel(request);
        return GPW_TURN_WAIT;
    }
    gpw_request_release(request);
    request->released = true; // the engine frees it once the io loop has said goodbye
    return GPW_TURN_WAIT;
}
