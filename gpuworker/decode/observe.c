// SPDX-License-Identifier: Apache-2.0
// What a query-aware compressor gets to see of a prefill.
#include "gpuworker/decode/observe.h"

#include <math.h>
#include <string.h>

#include "gpuworker/engine.h"

uint32_t gpw_observe_window(const gpw_request_t *request)
{
    const gpw_compressor_t *compressor = request->compressor;
    return compressor && compressor->observe ? compressor->params.window_tokens : 0;
}

static size_t q_bytes(const gpw_request_t *request)
{
    const as_shape_t *shape = &request->engine->shape;
    return (size_t)gpw_observe_window(request) * shape->q_heads * shape->head_dim * sizeof(float);
}

static size_t lse_bytes(const gpw_request_t *request)
{
    return (size_t)gpw_observe_window(request) * request->engine->shape.q_heads * sizeof(float);
}

uint64_t gpw_observe_bytes(const gpw_request_t *request)
{
    return q_bytes(request) + lse_bytes(request);
}

as_status_t gpw_observe_begin(gpw_request_t *request, uint32_t pass_rows)
{
    gpw_observer_t *observer = &request->observer;
    uint32_t window = gpw_observe_window(request);
    if (window == 0) {
        return AS_OK;
    }
    observer->rows = window < pass_rows ? window : pass_rows;
    observer->q = gpw_budget_alloc(&request->budget, q_bytes(request));
    observer->lse = gpw_budget_alloc(&request->budget, lse_bytes(request));
    return observer->q && observer->lse ? AS_OK : AS_ERR_NO_MEMORY;
}

void gpw_observe_end(gpw_request_t *request)
{
    gpw_observer_t *observer = &request->observer;
    gpw_budget_free(&request->budget, observer->q, q_bytes(request));
    gpw_budget_free(&request->budget, observer->lse, lse_bytes(request));
    memset(observer, 0, sizeof(*observer));
}

void gpw_observe_rows(gpw_request_t *request, const gpw_observed_rows_t *rows)
{
    const as_shape_t *shape = &request->engine->shape;
    const gpw_observer_t *observer = &request->observer;
    uint32_t first = request->pass.rows - observer->rows; // of the pass
    size_t width = (size_t)shape->q_heads * shape->head_dim;
    for (uint32_t r = 0; r < rows->rows; r++) {
        if (rows->row0 + r < first) {
            continue;
        }
        uint32_t to = rows->row0 + r - first;
        memcpy(observer->q + to * width, rows->q + r * width, width * sizeof(float));
        memcpy(observer->lse + (size_t)to * shape->q_heads, rows->lse + (size_t)r * shape->q_heads,
               shape->q_heads * sizeof(float));
    }
}

void gpw_observe_layer(gpw_request_t *request, uint32_t layer)
{
    gpw_engine_t *engine = request->engine;
    const gpw_pass_t *pass = &request->pass;
    uint32_t tokens = pass->position + pass->rows;
    krn_page_t *pages = engine->batch.scratch.pages;
    for (uint32_t b = 0; b * engine->shape.block_tokens < tokens; b++) {
        pages[b] = gpw_page(&engine->shape, gpw_pass_extent(request, b, layer), b);
    }
    gpw_segment_observe_t args = {
        .pool = engine->pool,
        .layer = layer,
        .tokens = tokens,
        .rows = request->observer.rows,
        .scale = 1.0f / sqrtf((float)engine->shape.head_dim),
        .q = request->observer.q,
        .lse = request->observer.lse,
        .pages = pages,
        .rope = &engine->options.model->rope,
        .scratch = engine->observe_scratch,
    };
    request->sealed.compressor->observe(request->sealed.segment, &args);
    gpw_sealed_recount(&request->sealed);
}
