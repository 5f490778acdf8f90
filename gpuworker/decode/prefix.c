// SPDX-License-Identifier: Apache-2.0
// A stored prefix that need not be fetched before the first token: its sealed form.
#include "gpuworker/decode/prefix.h"

#include <string.h>

#include "gpuworker/decode/pushdown.h"
#include "gpuworker/engine.h"
#include "gpuworker/resident/stored.h"

// Whether stores may have the sealed form, of this shape.
static bool is_stored_sealed(const gpw_request_t *request, as_shape_t *shape_p)
{
    const gpw_engine_t *engine = request->engine;
    return engine->options.store_sealed && !request->sealed_missed &&
           gpw_stored_shape(request->compressor, &engine->shape, shape_p);
}

bool gpw_prefix_is_pushed(const gpw_request_t *request, uint32_t blocks)
{
    uint32_t rows = request->token_count - blocks * request->engine->shape.block_tokens;
    if (!request->compressor || !request->verify || rows > request->horizon.max + 1) {
        return false;
    }
    as_shape_t shape;
    bool sealed = is_stored_sealed(request, &shape);
    if (!sealed && (gpw_observe_window(request) || gpw_request_keeps_blocks(request))) {
        return false; // the rows' queries are to be observed where keys are; or the blocks to be kept
    }
    return gpw_push_prefix_pays(request, blocks, rows, sealed);
}

bool gpw_prefix_is_unsealed(const gpw_request_t *request)
{
    return request->sealed.segment && request->sealed.blocks < request->blocks.stored;
}

// ---- The sealed form ---------------------------------------------------------------------------

static as_status_t fetch_sealed(gpw_request_t *request, const as_shape_t *shape)
{
    gpw_engine_t *engine = request->engine;
    uint32_t count = request->blocks.stored;
    if (!gpw_streams_may_begin(request)) {
        return AS_ERR_BUSY;
    }
    uint32_t slots = gpw_swap_ring_slots(engine);
    slots = slots < shape->layers ? slots : shape->layers;
    size_t stride = count * as_extent_bytes(shape);
    as_status_t status = gpw_stream_open(request, slots * stride);
    if (status != AS_OK) {
        return status;
    }
    gpw_stream_t *stream = request->swap.stream;
    stream->layer_slots = slots;
    stream->layer_stride = stride;
    const gpw_stream_range_t range = {.count = count, .sealed = request->compressor};
    const gpw_transfer_params_t params = {.kind = GPW_TRANSFER_FETCH,
                                          .shape = *shape,
                                          .buffer = stream->ring,
                                          .layer_stride = stride,
                                          .layer_slots = slots,
                                          .urgency = ASSAY_URGENCY_VERIFY};
    return gpw_stream_begin(request, &range, &params);
}

static as_status_t start(gpw_request_t *request)
{
    as_shape_t shape;
    return is_stored_sealed(request, &shape)
               ? fetch_sealed(request, &shape)
               : gpw_swap_start(request, 0, request->blocks.stored, NULL);
}

static void take_layer(gpw_request_t *request, uint32_t layer)
{
    const gpw_stream_t *stream = request->swap.stream;
    const gpw_sealed_t *sealed = &request->sealed;
    const uint8_t *from = stream->ring + (layer % stream->layer_slots) * stream->layer_stride;
    for (uint32_t b = 0; b < request->blocks.stored; b++) {
        if (!stream->sealed) {
            sealed->compressor->seal(sealed->segment, layer, b,
                                     gpw_swap_extent(&request->swap, b, layer));
            continue;
        }
        size_t bytes;
        uint8_t *slot = *sealed->compressor->slot(sealed->segment, b, &bytes);
        memcpy(slot + layer * stream->extent_bytes, from + b * stream->extent_bytes,
               stream->extent_bytes);
    }
}

// All layers were taken.
static gpw_turn_t finish(gpw_request_t *request)
{
    gpw_sealed_t *sealed = &request->sealed;
    if (request->swap.stream->sealed) {
        sealed->compressor->adopt(sealed->segment, request->blocks.stored);
        gpw_metric_add(GPW_METRIC_SEALED_FETCHED_BLOCKS_TOTAL, request->blocks.stored);
        gpw_candidates_stored(request, 0, request->blocks.stored, true);
    }
    sealed->blocks = request->blocks.stored;
    gpw_swap_end(request);
    return GPW_TURN_AGAIN;
}

// Without the sealed form it is made of the full blocks; without these everything begins again.
static gpw_turn_t missed(gpw_request_t *request)
{
    bool was_sealed = request->swap.stream->sealed;
    bool refused = gpw_swap_is_refused(request);
    gpw_swap_end(request);
    if (refused) {
        return GPW_TURN_AGAIN;
    }
    if (!was_sealed) {
        request->usage.recomputed_blocks += request->blocks.stored;
        gpw_metric_add(GPW_METRIC_RECOMPUTED_BLOCKS_TOTAL, request->blocks.stored);
        return gpw_request_restart(request);
    }
    request->sealed_missed = true;
    gpw_candidates_stored(request, 0, request->blocks.stored, false);
    return GPW_TURN_AGAIN;
}

gpw_turn_t gpw_prefix_seal_turn(gpw_request_t *request)
{
    gpw_swap_t *swap = &request->swap;
    if (!swap->stream && gpw_swap_is_too_early(request)) {
        return GPW_TURN_WAIT;
    }
    if (!swap->stream) {
        as_status_t status = start(request);
        if (status == AS_OK) { // while the first layer is on its way
            status = gpw_sealed_reserve(&request->sealed, request->blocks.stored);
            return status == AS_OK
                       ? GPW_TURN_WAIT
                       : gpw_request_fail(request, status, "no memory for the sealed segment");
        }
        return status == AS_ERR_BUSY ? GPW_TURN_WAIT : gpw_request_restart(request);
    }
    uint32_t layers = swap->stream->layers, hole = 0;
    while (swap->released < layers) {
        switch (gpw_swap_layer(request, swap->released, &hole)) {
        case GPW_SWAP_READY:
            take_layer(request, swap->released);
            gpw_swap_release(request, swap->released + 1);
            break;
        case GPW_SWAP_FAILED:
            return missed(request);
        default:
            return GPW_TURN_WAIT;
        }
    }
    return finish(request);
}
