// SPDX-License-Identifier: Apache-2.0
// Stage "fetch": blocks of a chain, into the caller's buffer, in layer order, each extent checked
// as it arrives.
//
//   LOCATING -> READING -> ENDING -> ENDED
//
//   LOCATING  every store is asked (locate.c); ends when all have answered or their time is over,
//             and no other store is left that may have what they lack.
//   READING   extents arrive (read.c). A layer is handed out when all its extents are here and
//             every layer before it has been. A block of which an extent cannot be had is asked of
//             the next store that may have it (locate.c), where its other extents go on. When
//             there is none, it is a hole: the limit sinks to that block.
//   ENDING    what on_done will say is decided; bytes may still arrive in the buffer, so on_done
//             waits for those.
//   ENDED     on_done was called; waits for callbacks of the network that refer to the fetch but
//             to no memory of the caller.
//
// on_done comes once, and by the deadline (of the stores: lease.c): reads that are only asked for are forgotten, and a store
// whose bytes are on their way and do not come loses its connection, which ends them. Callbacks
// come from the loop, never from inside of start, release or cancel: these only post.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/log.h"

// Bytes that are on their way when a fetch ends before its deadline may take this long to arrive.
#define END_GRACE_US 100000u

static void on_timer(void *ctx);
static void on_pump(void *ctx);

// ---- making one

// How many layers of each block are brought.
static uint32_t layers_of(const assay_fetch_args_t *args)
{
    return args->layer_count ? args->layer_count : args->shape.layers - args->first_layer;
}

static size_t stored_bytes_of(const assay_client_t *client, const assay_fetch_args_t *args)
{
    return as_extent_bytes(&args->shape) + (client->cipher ? AS_CIPHER_EXTRA_BYTES : 0);
}

static as_status_t args_check(const assay_client_t *client, const assay_fetch_args_t *args,
                              bool locate_only)
{
    bool sound = args->keys && args->block_count > 0 && args->deadline_us > 0 && args->on_located &&
                 args->on_done && args->urgency < ASSAY_URGENCY_COUNT;
    if (sound && args->block_count > AS_CHAIN_BLOCKS_MAX) {
        return AS_ERR_LIMIT;
    }
    if (!sound || locate_only) {
        return sound ? AS_OK : AS_ERR_INVALID;
    }
    as_status_t status = as_shape_check(&args->shape);
    if (status != AS_OK) {
        return status;
    }
    size_t extent_bytes = as_extent_bytes(&args->shape);
    if (stored_bytes_of(client, args) > AS_WIRE_EXTENT_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    uint32_t layers = layers_of(args);
    if (args->first_layer >= args->shape.layers ||
        layers > args->shape.layers - args->first_layer ||
        (args->statuses && (args->layer_slots != layers || args->layer_stride != extent_bytes))) {
        return AS_ERR_INVALID;
    }
    if (args->buffers) {
        bool whole = args->layer_slots == layers && args->layer_stride == extent_bytes;
        return whole && args->on_layer ? AS_OK : AS_ERR_INVALID;
    }
    bool by_layer = args->block_stride == 0 || args->block_stride == extent_bytes;
    bool fits =
        by_layer ? args->layer_stride >= args->block_count * extent_bytes || args->layer_slots == 1
                 : args->layer_stride >= extent_bytes && args->layer_slots == layers &&
                       args->block_stride >= args->layer_slots * args->layer_stride;
    bool slots = args->layer_slots > 0 && args->layer_slots <= layers;
    return args->buffer && args->on_layer && slots && fits ? AS_OK : AS_ERR_INVALID;
}

static as_status_t fill(assay_fetch_t *fetch, const assay_fetch_args_t *args)
{
    uint32_t layers = fetch->locate_only ? 0 : args->shape.layers;
    size_t blocks = args->block_count;
    fetch->candidates_max = assay_candidates_max(fetch->client);
    size_t each = sizeof(assay_block_t) + sizeof(as_key_t) +
                  fetch->candidates_max * sizeof(uint64_t) +
                  layers * (sizeof(uint32_t) + sizeof(bool));
    size_t bytes = blocks * each + layers * (sizeof(uint32_t) + sizeof(bool));
    fetch->arena = as_mem_zalloc(1, bytes);
    if (!fetch->arena) {
        return AS_ERR_NO_MEMORY;
    }
    fetch->blocks = fetch->arena;
    fetch->candidates = (uint64_t *)(void *)(fetch->blocks + blocks);
    fetch->keys = (as_key_t *)(void *)(fetch->candidates + blocks * fetch->candidates_max);
    fetch->crcs = (uint32_t *)(void *)(fetch->keys + blocks);
    fetch->layers = fetch->crcs + blocks * layers;
    fetch->released = (bool *)(void *)(fetch->layers + layers);
    fetch->here = fetch->released + layers;
    assay_client_names(fetch->client, args->keys, blocks, fetch->keys);
    assay_candidates_list(fetch, args->node_ids);
    return assay_locate_plan(fetch);
}

static void fetch_free(assay_fetch_t *fetch)
{
    assay_client_t *client = fetch->client;
    as_loop_unpost(client->options.loop, &fetch->pump);
    as_timer_free(fetch->timer);
    for (assay_part_t *part = fetch->parts, *next; part; part = next) {
        next = part->next;
        assay_link_put(part->link);
        as_mem_free(part);
    }
    assay_attend_free(fetch->attend);
    as_mem_free(fetch->copied);
    as_mem_free(fetch->arena);
    as_mem_free(fetch);
}

as_status_t assay_fetch_begin(assay_client_t *client, const assay_fetch_args_t *args,
                              bool locate_only, assay_fetch_t **fetch_p)
{
    as_status_t status = args_check(client, args, locate_only);
    if (status != AS_OK || client->closing) {
        return status != AS_OK ? status : AS_ERR_CANCELLED;
    }
    if (client->fetch_count == client->options.fetches_max) {
        return AS_ERR_BUSY;
    }
    assay_fetch_t *fetch = as_mem_zalloc(1, sizeof(*fetch));
    if (!fetch) {
        return AS_ERR_NO_MEMORY;
    }
    fetch->client = client;
    fetch->args = *args;
    fetch->locate_only = locate_only;
    fetch->pump = (as_task_t){.fn = on_pump, .ctx = fetch};
    fetch->extent_bytes = locate_only ? 0 : as_extent_bytes(&args->shape);
    fetch->stored_bytes = fetch->extent_bytes + (client->cipher ? AS_CIPHER_EXTRA_BYTES : 0);
    if (fetch->args.block_stride == 0) {
        fetch->args.block_stride = fetch->extent_bytes;
    }
    fetch->by_block = args->buffers || args->statuses ||
                      (fetch->args.block_stride != fetch->extent_bytes &&
                       args->layer_stride == fetch->extent_bytes);
    fetch->layer_first = locate_only ? 0 : args->first_layer;
    fetch->layer_end = locate_only ? 0 : args->first_layer + layers_of(args);
    fetch->next_layer = fetch->layer_first;
    fetch->began_us = fetch->found_us = assay_now_us(client);
    fetch->deadline_us = args->deadline_us < UINT64_MAX - fetch->began_us
                             ? fetch->began_us + args->deadline_us
                             : UINT64_MAX;
    fetch->locate_until_us = fetch->began_us + client->options.connect_timeout_us;
    status = as_timer_alloc(client->options.loop, on_timer, fetch, &fetch->timer);
    if (status == AS_OK) {
        status = fill(fetch, args);
    }
    if (status != AS_OK) {
        fetch_free(fetch);
        return status;
    }
    for (uint32_t b = 0; args->statuses && b < args->block_count; b++) {
        args->statuses[b] = AS_ERR_NOT_FOUND;
    }
    fetch->next = client->fetches;
    if (client->fetches) {
        client->fetches->prev = fetch;
    }
    client->fetches = fetch;
    client->fetch_count++;
    client->fetch_weights += assay_urgency_weight(args->urgency);
    assay_locate_start(fetch);
    on_timer(fetch); // starts the timer
    as_loop_post(client->options.loop, &fetch->pump);
    *fetch_p = fetch;
    return AS_OK;
}

as_status_t assay_fetch_start(assay_client_t *client, const assay_fetch_args_t *args,
                              assay_fetch_t **fetch_p)
{
    return assay_fetch_begin(client, args, false, fetch_p);
}

as_status_t assay_locate(assay_client_t *client, const assay_fetch_args_t *args,
                         assay_fetch_t **fetch_p)
{
    return assay_fetch_begin(client, args, true, fetch_p);
}

uint64_t assay_fetch_bytes(const assay_fetch_t *fetch)
{
    return fetch->bytes;
}

bool assay_fetch_is_busy(const assay_fetch_t *fetch)
{
    uint32_t b = 0;
    while (b < fetch->args.block_count && fetch->blocks[b].part) {
        b++;
    }
    return b < fetch->args.block_count && fetch->blocks[b].busy;
}

void assay_fetch_nodes(const assay_fetch_t *fetch, uint64_t *node_ids, uint32_t count)
{
    for (uint32_t b = 0; b < count && b < fetch->args.block_count; b++) {
        const assay_part_t *part = fetch->blocks[b].part;
        node_ids[b] = part ? part->link->store.node_id : 0;
    }
}

uint8_t *assay_fetch_place(const assay_fetch_t *fetch, uint32_t block, uint32_t layer)
{
    size_t slot = (layer - fetch->layer_first) % fetch->args.layer_slots;
    return fetch->args.buffers ? (uint8_t *)fetch->args.buffers[block] + slot * fetch->extent_bytes
                               : (uint8_t *)fetch->args.buffer + slot * fetch->args.layer_stride +
                                     (size_t)block * fetch->args.block_stride;
}

// ---- located

// Blocks to bring: those from the first without a hole, or all that are there.
static uint32_t count_located(assay_fetch_t *fetch)
{
    as_status_t *statuses = fetch->args.statuses;
    uint32_t count = 0;
    for (uint32_t b = 0; b < fetch->args.block_count && (statuses || count == b); b++) {
        bool is_here = fetch->blocks[b].part != NULL;
        count += is_here;
        if (statuses && is_here && fetch->locate_only) {
            statuses[b] = AS_OK;
        }
    }
    return count;
}

static void located(assay_fetch_t *fetch)
{
    uint32_t count = count_located(fetch);
    as_metric_add(&assay_metrics[ASSAY_METRIC_LOCATED_HITS], count);
    as_metric_add(&assay_metrics[ASSAY_METRIC_LOCATED_MISSES], fetch->args.block_count - count);
    fetch->state = FETCH_READING;
    fetch->limit = fetch->args.statuses ? fetch->args.block_count : count;
    for (uint32_t b = 0; b < fetch->args.block_count; b++) {
        assay_block_t *block = &fetch->blocks[b];
        block->is_hole = !block->part;
        if (fetch->args.statuses && block->is_hole && block->busy) {
            fetch->args.statuses[b] = AS_ERR_BUSY;
        }
    }
    fetch->missing = (uint64_t)count * assay_fetch_layers(fetch);
    for (uint32_t layer = fetch->layer_first; layer < fetch->layer_end; layer++) {
        fetch->layers[layer] = count;
    }
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        part->progress_us = assay_now_us(fetch->client);
    }
    fetch->calling = true;
    fetch->args.on_located(fetch->args.ctx, count);
    fetch->calling = false;
    if (fetch->state != FETCH_READING) {
        return; // cancelled from there
    }
    if (fetch->locate_only || count == 0) {
        bool told = fetch->locate_only || fetch->args.statuses;
        as_status_t missed = assay_fetch_is_busy(fetch) ? AS_ERR_BUSY : AS_ERR_NOT_FOUND;
        assay_fetch_end(fetch, told ? AS_OK : missed, count);
        return;
    }
    on_timer(fetch); // from here it watches for stalls
    as_loop_post(fetch->client->options.loop, &fetch->pump);
}

void assay_fetch_answered(assay_fetch_t *fetch)
{
    assay_locate_again(fetch);
    if (fetch->parts_open == 0 && !fetch->renewing) {
        located(fetch);
    }
}

// ---- arrivals and holes

void assay_fetch_arrived(assay_fetch_t *fetch, uint32_t block, uint32_t layer)
{
    bool *here = &fetch->here[(size_t)block * fetch->args.shape.layers + layer];
    AS_ASSERT(!*here);
    *here = true;
    fetch->wait_us = 0;
    fetch->bytes += fetch->extent_bytes;
    as_metric_add(&assay_metrics[ASSAY_METRIC_FETCHED_BYTES], (int64_t)fetch->extent_bytes);
    bool whole = ++fetch->blocks[block].arrived == assay_fetch_layers(fetch);
    as_metric_add(&assay_metrics[ASSAY_METRIC_RESCUED], whole && fetch->blocks[block].tries > 1);
    AS_ASSERT(fetch->layers[layer] > 0);
    fetch->layers[layer]--;
    if (block >= fetch->limit || fetch->blocks[block].is_hole) {
        return;
    }
    fetch->missing--;
    if (fetch->args.statuses && whole) {
        fetch->args.statuses[block] = AS_OK;
    }
}

// Of a fetch whose blocks count each for itself: this one is not to be had, the others go on.
static void leave_out(assay_fetch_t *fetch, uint32_t block, as_status_t status)
{
    if (!fetch->blocks[block].is_hole) {
        fetch->args.statuses[block] = status;
        fetch->missing -= assay_fetch_layers(fetch) - fetch->blocks[block].arrived;
        fetch->blocks[block].is_hole = true;
        fetch->blocks[block].part = NULL;
    }
}

void assay_fetch_lost(assay_part_t *part, uint32_t block, as_status_t status)
{
    assay_fetch_t *fetch = part->fetch;
    assay_block_t *lost = &fetch->blocks[block];
    if (fetch->state != FETCH_READING || block >= fetch->limit || lost->part != part) {
        return;
    }
    lost->part = NULL;
    lost->lost = true;
    lost->status = status;
    if (status != AS_ERR_BUSY) {
        assay_candidates_fail(fetch, block, part->link->store.node_id);
    }
    fetch->seeking = true;
    as_loop_post(fetch->client->options.loop, &fetch->pump);
}

void assay_fetch_hole(assay_fetch_t *fetch, uint32_t block, as_status_t status)
{
    if (fetch->state != FETCH_READING || block >= fetch->limit) {
        return;
    }
    AS_INFO("client", "block %u of %u could not be fetched: %s", fetch->args.first_block + block,
            fetch->args.first_block + fetch->args.block_count, as_status_str(status));
    if (fetch->args.statuses) {
        leave_out(fetch, block, status);
        return;
    }
    fetch->holed = true;
    fetch->status = status;
    fetch->limit = block;
    fetch->missing = 0;
    for (uint32_t b = 0; b < block; b++) {
        fetch->missing += assay_fetch_layers(fetch) - fetch->blocks[b].arrived;
    }
    if (block == 0 || fetch->attend || fetch->args.layer_slots < assay_fetch_layers(fetch)) {
        assay_fetch_end(fetch, status, block);
    }
}

static void hand_out(assay_fetch_t *fetch)
{
    while (fetch->state == FETCH_READING && !fetch->holed && !fetch->calling &&
           !fetch->args.statuses && fetch->next_layer < fetch->layer_end &&
           fetch->layers[fetch->next_layer] == 0) {
        uint32_t layer = fetch->next_layer++;
        fetch->calling = true;
        fetch->args.on_layer(fetch->args.ctx, layer);
        fetch->calling = false;
    }
    assay_fetch_keep_time(fetch);
}

void assay_fetch_release(assay_fetch_t *fetch, uint32_t layer)
{
    if (layer < fetch->args.shape.layers && layer < fetch->next_layer &&
        fetch->state == FETCH_READING) {
        fetch->released[layer] = true;
        assay_fetch_keep_time(fetch);
        as_loop_post(fetch->client->options.loop, &fetch->pump);
    }
}

// ---- ending

// It ends early: what each block that did not come in time is told.
static void note_unfinished(assay_fetch_t *fetch, as_status_t status)
{
    for (uint32_t b = 0; b < fetch->args.block_count; b++) {
        if (!fetch->blocks[b].is_hole) {
            as_status_t *own = &fetch->args.statuses[b];
            *own = *own == AS_OK ? AS_OK : status;
        }
    }
}

void assay_fetch_end(assay_fetch_t *fetch, as_status_t status, uint32_t hole)
{
    if (fetch->state >= FETCH_ENDING) {
        return;
    }
    assay_locate_give_up(fetch, UINT64_MAX);
    if (fetch->args.statuses && status != AS_OK) {
        note_unfinished(fetch, status);
    }
    fetch->state = FETCH_ENDING;
    fetch->status = status;
    fetch->hole = status == AS_OK ? 0 : hole;
    assay_read_forget(fetch);
    if (fetch->attend) {
        assay_attend_forget(fetch->attend);
    }
    as_timer_start(fetch->timer, END_GRACE_US);
    as_loop_post(fetch->client->options.loop,
                 &fetch->pump); // on_done comes from there, or from a later callback
}

// The first block of which an extent is missing: what was handed out layer by layer is not taken
// back by it.
static uint32_t first_missing(const assay_fetch_t *fetch)
{
    uint32_t block = 0;
    while (block < fetch->limit && fetch->blocks[block].arrived == assay_fetch_layers(fetch)) {
        block++;
    }
    return block;
}

static void fetch_done(assay_fetch_t *fetch)
{
    assay_client_t *client = fetch->client;
    AS_ASSERT(!fetch->reads);
    assay_lease_release(fetch);
    as_timer_stop(fetch->timer);
    fetch->state = FETCH_ENDED;
    client->fetch_count--;
    client->fetch_weights -= assay_urgency_weight(fetch->args.urgency);
    bool whole = fetch->status == AS_OK || fetch->status == AS_ERR_CANCELLED;
    as_metric_add(&assay_metrics[ASSAY_METRIC_HOLES], !whole);
    if (!fetch->attend) {
        as_metric_observe(&assay_metrics[ASSAY_METRIC_FETCH_US],
                          assay_now_us(client) - fetch->began_us);
    }
    fetch->calling = true;
    fetch->args.on_done(fetch->args.ctx, fetch->status, fetch->hole);
    fetch->calling = false;
}

void assay_fetch_settle(assay_fetch_t *fetch)
{
    assay_client_t *client = fetch->client;
    if (fetch->calling) {
        return; // whoever called settles it
    }
    hand_out(fetch);
    if (fetch->state == FETCH_READING && fetch->missing == 0 && !fetch->locate_only) {
        assay_fetch_end(fetch, fetch->holed ? fetch->status : AS_OK, fetch->limit);
    }
    if (fetch->state == FETCH_ENDING && fetch->arriving == 0) {
        fetch_done(fetch);
    }
    if (fetch->state != FETCH_ENDED || fetch->ops > 0) {
        return;
    }
    if (fetch->next) {
        fetch->next->prev = fetch->prev;
    }
    if (fetch->prev) {
        fetch->prev->next = fetch->next;
    } else {
        client->fetches = fetch->next;
    }
    fetch_free(fetch);
}

static void on_pump(void *ctx)
{
    assay_fetch_t *fetch = ctx;
    if (fetch->state == FETCH_LOCATING && fetch->parts_open == 0) {
        assay_fetch_answered(fetch);
    }
    if (fetch->state == FETCH_READING && fetch->seeking) {
        assay_locate_again(fetch);
    }
    if (fetch->state == FETCH_READING && fetch->attend) {
        assay_attend_pump(fetch->attend);
    } else if (fetch->state == FETCH_READING) {
        assay_read_pump(fetch);
    }
    assay_fetch_settle(fetch);
}

void assay_fetch_cancel(assay_fetch_t *fetch)
{
    if (fetch->state >= FETCH_ENDING) {
        return;
    }
    assay_fetch_end(fetch, AS_ERR_CANCELLED, 0);
}

// Bytes that are on their way into the caller's buffer do not come in time: only the end of the
// connection stops them.
static void cut_arriving(assay_fetch_t *fetch)
{
    if (fetch->attend) {
        assay_attend_cut(fetch->attend);
    }
    for (assay_read_t *read = fetch->reads; read;) {
        if (read->state == READ_ARRIVING && assay_link_is(read->part->link, read->epoch)) {
            assay_link_fail(read->part->link, AS_ERR_DEADLINE);
            read = fetch->reads; // the list has changed
        } else {
            read = read->next;
        }
    }
}

void assay_fetch_later(assay_fetch_t *fetch)
{
    if (fetch->again_us != 0 || fetch->state >= FETCH_ENDING) {
        return;
    }
    uint64_t now_us = assay_now_us(fetch->client);
    uint64_t wait_us = fetch->wait_us > 0 ? fetch->wait_us * 2 : BUSY_AGAIN_US;
    fetch->wait_us = wait_us < BUSY_AGAIN_US_MAX ? wait_us : BUSY_AGAIN_US_MAX;
    fetch->again_us =
        now_us + fetch->wait_us < fetch->deadline_us ? now_us + fetch->wait_us : fetch->deadline_us;
    uint64_t left_us = fetch->again_us > now_us ? fetch->again_us - now_us : 0;
    // Something else may be due before; the timer sees to it.
    as_timer_start(fetch->timer, left_us < BUSY_AGAIN_US ? left_us : BUSY_AGAIN_US);
}

// Also starts itself anew, for whatever comes next.
static void on_timer(void *ctx)
{
    assay_fetch_t *fetch = ctx;
    uint64_t now_us = assay_now_us(fetch->client);
    if (fetch->state == FETCH_ENDING) {
        cut_arriving(fetch);
        if (fetch->arriving > 0) {
            as_timer_start(fetch->timer, END_GRACE_US); // until they have ended
        }
        return;
    }
    assay_fetch_keep_time(fetch);
    if (now_us >= fetch->deadline_us) {
        bool reading = fetch->state == FETCH_READING;
        uint32_t hole = reading && fetch->args.layer_slots == assay_fetch_layers(fetch)
                            ? first_missing(fetch)
                            : 0;
        assay_fetch_end(fetch, AS_ERR_DEADLINE, hole);
        cut_arriving(fetch);
        return;
    }
    if (fetch->again_us != 0 && now_us >= fetch->again_us) {
        fetch->again_us = 0;
        assay_locate_retry(fetch);
        as_loop_post(fetch->client->options.loop, &fetch->pump);
    }
    uint64_t until_us = fetch->deadline_us;
    if (fetch->state == FETCH_LOCATING) {
        if (now_us >= fetch->locate_until_us) {
            assay_locate_give_up(fetch, now_us);
            assay_fetch_answered(fetch);
            if (fetch->state != FETCH_LOCATING) {
                return;
            }
        }
        until_us = fetch->locate_until_us < until_us ? fetch->locate_until_us : until_us;
        until_us = assay_lease_renew(fetch, now_us, until_us);
    } else if (fetch->state == FETCH_READING) {
        assay_read_check_stalls(fetch, now_us);
        uint64_t patience_us = fetch->client->options.connect_timeout_us;
        assay_locate_give_up(fetch, now_us > patience_us ? now_us - patience_us : 0);
        as_loop_post(fetch->client->options.loop, &fetch->pump);
        uint64_t next_us = now_us + fetch->client->options.stall_timeout_us / 4 + 1;
        until_us = assay_lease_renew(fetch, now_us, next_us < until_us ? next_us : until_us);
    }
    if (fetch->state < FETCH_ENDING) {
        until_us = fetch->again_us != 0 && fetch->again_us < until_us ? fetch->again_us : until_us;
        as_timer_start(fetch->timer, until_us > now_us ? until_us - now_us : 0);
    }
}
