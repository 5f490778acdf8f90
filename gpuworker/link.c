// SPDX-License-Identifier: Apache-2.0
// The link between the engine's loop and the io loop.
//
// Fields are grouped by the thread that owns them. The few that cross while both run are atomic;
// the rest crosses by a post, which orders memory. A post of a task that is still queued does
// nothing, but what was written before it is seen by the run that is still to come (common/loop.h).
#include "gpuworker/link.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

#define NOT_LOCATED UINT32_MAX

struct gpw_link {
    as_loop_t *engine_loop, *io_loop;
    assay_client_t *client;
    gpw_cluster_t *cluster;
    gpw_transfer_t *first; // engine thread: all that live
};

struct gpw_transfer {
    gpw_link_t *link;
    gpw_transfer_params_t params; // constant after start
    as_key_t *keys;
    uint64_t *node_ids;
    // engine
    gpw_transfer_t *next, *previous;
    gpw_transfer_news_t news;
    // io
    assay_fetch_t *fetch;
    assay_attend_t *attend;
    assay_put_t *put;
    uint64_t call_id;
    bool running, ended;
    uint32_t layers_released;
    // io writes, engine reads
    _Atomic uint32_t located, layers;
    _Atomic uint64_t bytes;
    const assay_attend_piece_t *pieces; // with a layer that was answered
    uint32_t piece_count;
    gpw_transfer_news_t end; // written before `done` is posted
    uint64_t *route_nodes;
    // engine writes, io reads
    _Atomic uint32_t release;
    uint32_t attend_layer, attend_rows; // of the attend_task that was posted last
    const float *attend_q;
    as_task_t begin_task, release_task, attend_task, cancel_task, retire_task; // run on the io loop
    as_task_t news_task, done_task, retired_task; // run on the engine's loop
};

// ---- On the engine's loop ----------------------------------------------------------------------

static void take_progress(gpw_transfer_t *t)
{
    uint32_t located = atomic_load(&t->located);
    if (t->params.kind != GPW_TRANSFER_ROUTE && located != NOT_LOCATED) {
        t->news.located = true;
        t->news.located_blocks = located;
    }
    uint32_t layers = atomic_load(&t->layers);
    if (t->params.kind == GPW_TRANSFER_ATTEND && layers > t->news.layers) {
        t->news.pieces = t->pieces;
        t->news.piece_count = t->piece_count;
    }
    t->news.layers = layers;
    t->news.bytes = atomic_load(&t->bytes);
}

static void on_news(void *ctx)
{
    gpw_transfer_t *t = ctx;
    take_progress(t);
    t->params.on_news(t->params.ctx, t);
}

static void on_done(void *ctx)
{
    gpw_transfer_t *t = ctx;
    take_progress(t);
    t->news.done = true;
    t->news.status = t->end.status;
    t->news.hole_block = t->end.hole_block;
    t->news.bytes = t->end.bytes;
    t->news.node_id = t->end.node_id;
    t->news.load_us = t->end.load_us;
    if (t->params.kind == GPW_TRANSFER_ROUTE) {
        t->news.located_blocks = t->end.located_blocks;
        t->news.node_ids = t->route_nodes;
    }
    t->params.on_news(t->params.ctx, t);
}

static void transfer_free(gpw_transfer_t *t)
{
    gpw_transfer_t **from = t->previous ? &t->previous->next : &t->link->first;
    *from = t->next;
    if (t->next) {
        t->next->previous = t->previous;
    }
    as_mem_free(t->route_nodes);
    as_mem_free(t->keys);
    as_mem_free(t->node_ids);
    as_mem_free(t);
}

static void on_retired(void *ctx)
{
    transfer_free(ctx);
}

// ---- On the io loop ----------------------------------------------------------------------------

static void io_end(gpw_transfer_t *t, as_status_t status)
{
    AS_ASSERT(!t->ended);
    t->ended = true;
    t->running = false;
    t->end.status = status;
    as_loop_post(t->link->engine_loop, &t->done_task);
}

static void io_located(void *ctx, uint32_t block_count)
{
    gpw_transfer_t *t = ctx;
    atomic_store(&t->located, block_count);
    as_loop_post(t->link->engine_loop, &t->news_task);
}

static void io_layer(void *ctx, uint32_t layer)
{
    gpw_transfer_t *t = ctx;
    AS_ASSERT(layer == atomic_load(&t->layers));
    atomic_store(&t->layers, layer + 1);
    as_loop_post(t->link->engine_loop, &t->news_task);
}

static void io_fetch_done(void *ctx, as_status_t status, uint32_t hole_block)
{
    gpw_transfer_t *t = ctx;
    t->end.hole_block = hole_block;
    t->end.bytes = t->fetch ? assay_fetch_bytes(t->fetch) : 0;
    if (t->node_ids) {
        size_t full = t->params.load_block_bytes;
        t->end.load_us = assay_client_load_us(t->link->client, t->node_ids, t->params.block_count,
                                              full ? full : as_block_bytes(&t->params.shape));
    }
    io_end(t, status);
}

static void io_attended(void *ctx, uint32_t layer, const assay_attend_piece_t *pieces,
                        uint32_t count)
{
    gpw_transfer_t *t = ctx;
    AS_ASSERT(layer == t->attend_layer);
    t->pieces = pieces;
    t->piece_count = count;
    atomic_store(&t->bytes, assay_attend_bytes(t->attend));
    atomic_fetch_add(&t->layers, 1);
    as_loop_post(t->link->engine_loop, &t->news_task);
}

static void io_attend_done(void *ctx, as_status_t status, uint32_t hole_block)
{
    gpw_transfer_t *t = ctx;
    t->end.hole_block = hole_block;
    t->end.bytes = assay_attend_bytes(t->attend);
    io_end(t, status);
}

static void io_put_done(void *ctx, as_status_t status, uint64_t node_id)
{
    gpw_transfer_t *t = ctx;
    t->end.node_id = node_id;
    io_end(t, status);
}

static void io_route_done(void *ctx, as_status_t status, uint32_t hit_blocks,
                          const uint64_t *node_ids)
{
    gpw_transfer_t *t = ctx;
    if (status == AS_OK && hit_blocks > 0) {
        t->route_nodes = as_mem_alloc(hit_blocks * sizeof(uint64_t));
        if (t->route_nodes) {
            memcpy(t->route_nodes, node_ids, hit_blocks * sizeof(uint64_t));
            t->end.located_blocks = hit_blocks;
            t->end.load_us = t->link->client
                                 ? assay_client_load_us(t->link->client, node_ids, hit_blocks,
                                                        as_block_bytes(&t->params.shape))
                                 : 0;
        }
    }
    io_end(t, status);
}

static as_status_t io_begin_fetch(gpw_transfer_t *t, uint64_t deadline_us)
{
    const gpw_transfer_params_t *p = &t->params;
    assay_fetch_args_t args = {.shape = p->shape,
                               .keys = t->keys,
                               .node_ids = p->load_block_bytes ? NULL : t->node_ids,
                               .first_block = p->first_block,
                               .block_count = p->block_count,
                               .deadline_us = deadline_us,
                               .urgency = p->urgency,
                               .buffer = p->buffer,
                               .layer_stride = p->layer_stride,
                               .layer_slots = p->layer_slots,
                               .on_located = io_located,
                               .on_layer = io_layer,
                               .on_done = io_fetch_done,
                               .ctx = t};
    return assay_fetch_start(t->link->client, &args, &t->fetch);
}

static as_status_t io_begin_attend(gpw_transfer_t *t, uint64_t deadline_us)
{
    const gpw_transfer_params_t *p = &t->params;
    assay_attend_args_t args = {.shape = p->shape,
                                .keys = t->keys,
                                .node_ids = t->node_ids,
                                .block_count = p->block_count,
                                .scale = p->scale,
                                .rows_max = p->rows_max,
                                .deadline_us = deadline_us,
                                .buffer = p->buffer,
                                .buffer_bytes = p->buffer_bytes,
                                .on_located = io_located,
                                .on_layer = io_attended,
                                .on_done = io_attend_done,
                                .ctx = t};
    return assay_attend_start(t->link->client, &args, &t->attend);
}

static as_status_t io_begin_put(gpw_transfer_t *t, uint64_t deadline_us)
{
    const gpw_transfer_params_t *p = &t->params;
    assay_put_args_t args = {.shape = p->shape,
                             .namespace_key = p->namespace_key,
                             .key = t->keys[0],
                             .parent = p->parent,
                             .run_key = p->run_key,
                             .token_count = p->shape.block_tokens,
                             .block = p->block,
                             .deadline_us = deadline_us,
                             .on_done = io_put_done,
                             .ctx = t};
    return assay_put_start(t->link->client, &args, &t->put);
}

static as_status_t io_begin_route(gpw_transfer_t *t, uint64_t deadline_us)
{
    gpw_route_args_t args = {.namespace_key = t->params.namespace_key,
                             .keys = t->keys,
                             .key_count = t->params.block_count,
                             .block_tokens = t->params.shape.block_tokens,
                             .prompt_tokens = t->params.prompt_tokens,
                             .deadline_us = deadline_us,
                             .done = io_route_done,
                             .ctx = t};
    return gpw_cluster_route(t->link->cluster, &args, &t->call_id);
}

static as_status_t begin_by_kind(gpw_transfer_t *t, uint64_t deadline_us)
{
    switch (t->params.kind) {
    case GPW_TRANSFER_FETCH:
        return io_begin_fetch(t, deadline_us);
    case GPW_TRANSFER_ATTEND:
        return io_begin_attend(t, deadline_us);
    case GPW_TRANSFER_PUT:
        return io_begin_put(t, deadline_us);
    default:
        return io_begin_route(t, deadline_us);
    }
}

static void io_begin(void *ctx)
{
    gpw_transfer_t *t = ctx;
    uint64_t now_us = as_loop_now_us(t->link->io_loop);
    if (t->params.deadline_us <= now_us) {
        io_end(t, AS_ERR_DEADLINE);
        return;
    }
    as_status_t status = begin_by_kind(t, t->params.deadline_us - now_us);
    if (status != AS_OK) {
        io_end(t, status);
        return;
    }
    t->running = true;
}

static void io_release(void *ctx)
{
    gpw_transfer_t *t = ctx;
    uint32_t release = atomic_load(&t->release);
    for (; t->running && t->layers_released < release; t->layers_released++) {
        assay_fetch_release(t->fetch, t->layers_released);
    }
}

static void io_attend(void *ctx)
{
    gpw_transfer_t *t = ctx;
    if (t->running) {
        assay_attend_layer(t->attend, t->attend_layer, t->attend_rows, t->attend_q);
    }
}

static void io_cancel(void *ctx)
{
    gpw_transfer_t *t = ctx;
    if (!t->running) {
        return;
    }
    switch (t->params.kind) {
    case GPW_TRANSFER_FETCH:
        assay_fetch_cancel(t->fetch);
        break;
    case GPW_TRANSFER_ATTEND:
        assay_attend_cancel(t->attend);
        break;
    case GPW_TRANSFER_PUT:
        assay_put_cancel(t->put);
        break;
    case GPW_TRANSFER_ROUTE:
        gpw_cluster_route_cancel(t->link->cluster, t->call_id);
        break;
    }
}

static void io_retire(void *ctx)
{
    gpw_transfer_t *t = ctx;
    as_loop_post(t->link->engine_loop, &t->retired_task);
}

// ---- The engine's calls ------------------------------------------------------------------------

static bool copy_arrays(gpw_transfer_t *t)
{
    const gpw_transfer_params_t *p = &t->params;
    size_t count = p->kind == GPW_TRANSFER_PUT ? 1 : p->block_count;
    t->keys = as_mem_alloc(count * sizeof(as_key_t));
    if (!t->keys) {
        return false;
    }
    memcpy(t->keys, p->keys, count * sizeof(as_key_t));
    if (p->node_ids) {
        t->node_ids = as_mem_alloc(count * sizeof(uint64_t));
        if (!t->node_ids) {
            return false;
        }
        memcpy(t->node_ids, p->node_ids, count * sizeof(uint64_t));
    }
    return true;
}

as_status_t gpw_transfer_start(gpw_link_t *link, const gpw_transfer_params_t *params,
                               gpw_transfer_t **transfer_p)
{
    AS_ASSERT(params->kind == GPW_TRANSFER_ROUTE ? link->cluster != NULL : link->client != NULL);
    AS_ASSERT(params->kind == GPW_TRANSFER_PUT || params->block_count > 0);
    gpw_transfer_t *t = as_mem_zalloc(1, sizeof(*t));
    if (!t) {
        return AS_ERR_NO_MEMORY;
    }
    t->link = link;
    t->params = *params;
    if (!copy_arrays(t)) {
        as_mem_free(t->keys);
        as_mem_free(t->node_ids);
        as_mem_free(t);
        return AS_ERR_NO_MEMORY;
    }
    atomic_init(&t->located, NOT_LOCATED);
    t->begin_task = (as_task_t){.fn = io_begin, .ctx = t};
    t->release_task = (as_task_t){.fn = io_release, .ctx = t};
    t->attend_task = (as_task_t){.fn = io_attend, .ctx = t};
    t->cancel_task = (as_task_t){.fn = io_cancel, .ctx = t};
    t->retire_task = (as_task_t){.fn = io_retire, .ctx = t};
    t->news_task = (as_task_t){.fn = on_news, .ctx = t};
    t->done_task = (as_task_t){.fn = on_done, .ctx = t};
    t->retired_task = (as_task_t){.fn = on_retired, .ctx = t};
    t->next = link->first;
    if (t->next) {
        t->next->previous = t;
    }
    link->first = t;
    *transfer_p = t;
    as_loop_post(link->io_loop, &t->begin_task);
    return AS_OK;
}

const gpw_transfer_news_t *gpw_transfer_news(const gpw_transfer_t *transfer)
{
    return &transfer->news;
}

void gpw_transfer_release(gpw_transfer_t *t, uint32_t layers)
{
    atomic_store(&t->release, layers);
    as_loop_post(t->link->io_loop, &t->release_task);
}

void gpw_transfer_attend(gpw_transfer_t *t, uint32_t layer, uint32_t rows, const float *q)
{
    t->attend_layer = layer;
    t->attend_rows = rows;
    t->attend_q = q;
    as_loop_post(t->link->io_loop, &t->attend_task);
}

void gpw_transfer_cancel(gpw_transfer_t *t)
{
    as_loop_post(t->link->io_loop, &t->cancel_task);
}

void gpw_transfer_retire(gpw_transfer_t *t)
{
    AS_ASSERT(t->news.done);
    as_loop_post(t->link->io_loop, &t->retire_task);
}

as_status_t gpw_link_alloc(as_loop_t *engine_loop, as_loop_t *io_loop, assay_client_t *client,
                           gpw_cluster_t *cluster, gpw_link_t **link_p)
{
    gpw_link_t *link = as_mem_zalloc(1, sizeof(*link));
    if (!link) {
        return AS_ERR_NO_MEMORY;
    }
    *link = (gpw_link_t){engine_loop, io_loop, client, cluster, NULL};
    *link_p = link;
    return AS_OK;
}

// The loops may still run for others after the worker is gone.
static void unpost_all(gpw_transfer_t *t)
{
    as_task_t *io[] = {&t->begin_task, &t->release_task, &t->attend_task, &t->cancel_task,
                       &t->retire_task};
    as_task_t *engine[] = {&t->news_task, &t->done_task, &t->retired_task};
    for (size_t i = 0; i < sizeof(io) / sizeof(io[0]); i++) {
        as_loop_unpost(t->link->io_loop, io[i]);
    }
    for (size_t i = 0; i < sizeof(engine) / sizeof(engine[0]); i++) {
        as_loop_unpost(t->link->engine_loop, engine[i]);
    }
}

void gpw_link_free(gpw_link_t *link)
{
    if (!link) {
        return;
    }
    while (link->first) {
        unpost_all(link->first);
        transfer_free(link->first);
    }
    as_mem_free(link);
}

bool gpw_link_has_client(const gpw_link_t *link)
{
    return link->client != NULL;
}

bool gpw_link_has_scheduler(const gpw_link_t *link)
{
    return link->cluster != NULL;
}
