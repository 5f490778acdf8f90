// SPDX-License-Identifier: Apache-2.0
// Locating: every store that may hold blocks of the chain is asked at once, and what it leases is
// noted.
//
// A block is asked of its candidates (candidates.c), one after the other: of the next one when the
// one before does not have it, cannot be reached or, later, fails to give it. Each round asks all
// stores at once. What a store says is bounded and compared with the shape before it is believed.
//
// A store that has a block and cannot give it now (it is busy, or brings it from disk) is asked again
// after a moment, when nobody else has it: as long as that brings blocks, and for half of the fetch's time
// at most, since what was found is still to be read.
//
// The lease counts from when the question was sent, so by our clock it ends before it ends at the
// store.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/log.h"

// ---- planning

// It brings nothing, and nothing refers to it any more.
static bool is_over(const assay_part_t *part)
{
    bool is_used =
        !part->answered || part->sending || part->silent || part->answer || part->outstanding > 0;
    for (uint32_t i = 0; !is_used && i < part->count; i++) {
        is_used = part->fetch->blocks[part->blocks[i]].part == part;
    }
    return !is_used;
}

// One that asked this link before; NULL: there is none to be used again.
static assay_part_t *part_reuse(assay_fetch_t *fetch, assay_link_t *link)
{
    assay_part_t *part = fetch->parts;
    while (part && (part->link != link || !is_over(part))) {
        part = part->next;
    }
    if (part) {
        assay_lease_give(part);
        *part = (assay_part_t){.fetch = fetch,
                               .next = part->next,
                               .link = link,
                               .blocks = part->blocks,
                               .keys = part->keys,
                               .layer = fetch->layer_first};
    }
    return part;
}

// A part for `link`, without blocks yet. NULL: there is no memory.
static assay_part_t *part_make(assay_fetch_t *fetch, assay_link_t *link)
{
    size_t bytes = sizeof(assay_part_t) + AS_WIRE_KEYS_MAX * (sizeof(as_key_t) + sizeof(uint32_t));
    assay_part_t *part = as_mem_zalloc(1, bytes);
    if (!part) {
        return NULL;
    }
    part->fetch = fetch;
    part->link = link;
    part->layer = fetch->layer_first;
    part->keys = (as_key_t *)(void *)(part + 1);
    part->blocks = (uint32_t *)(void *)(part->keys + AS_WIRE_KEYS_MAX);
    assay_link_get(link);
    if (fetch->last_part) {
        fetch->last_part->next = part;
    } else {
        fetch->parts = part;
    }
    fetch->last_part = part;
    return part;
}

// Lists for one store what it is asked, in parts of at most AS_WIRE_KEYS_MAX.
static as_status_t list_for(assay_fetch_t *fetch, assay_link_t *const *targets, assay_link_t *link)
{
    assay_part_t *part = NULL;
    for (uint32_t i = 0; i < fetch->args.block_count; i++) {
        if (targets[i] != link && targets[i] != &assay_everyone) {
            continue;
        }
        if (!part || part->count == AS_WIRE_KEYS_MAX) {
            part = part_reuse(fetch, link);
            part = part ? part : part_make(fetch, link);
            if (!part) {
                return AS_ERR_NO_MEMORY;
            }
        }
        part->blocks[part->count] = i;
        part->keys[part->count++] = fetch->keys[i];
        fetch->blocks[i].asked++;
    }
    return AS_OK;
}

// Makes the parts that ask the next candidate of each block before `end` that nobody has and nobody
// is asked for. *asked_p: there is one.
static as_status_t plan(assay_fetch_t *fetch, uint32_t end, bool *asked_p)
{
    assay_client_t *client = fetch->client;
    assay_link_t **targets = as_mem_zalloc(fetch->args.block_count, sizeof(*targets));
    if (!targets) {
        return AS_ERR_NO_MEMORY;
    }
    *asked_p = false;
    fetch->seeking = false;
    for (uint32_t i = 0; i < end; i++) {
        const assay_block_t *block = &fetch->blocks[i];
        if (!block->part && !block->is_hole && block->asked == 0) {
            // Bytes that its last store still sends must not fall on those of the next.
            fetch->seeking |= block->reads > 0;
            targets[i] = block->reads == 0 ? assay_candidates_next(fetch, i) : NULL;
            *asked_p |= targets[i] != NULL;
        }
    }
    as_status_t status = AS_OK;
    for (assay_link_t *link = client->links; *asked_p && link && status == AS_OK;
         link = link->next) {
        status = link->member ? list_for(fetch, targets, link) : AS_OK;
    }
    as_mem_free(targets);
    return status;
}

as_status_t assay_locate_plan(assay_fetch_t *fetch)
{
    bool asked;
    return plan(fetch, fetch->args.block_count, &asked);
}

// ---- asking

static void on_keys_sent(void *ctx, as_status_t status)
{
    (void)status;
    assay_part_t *part = ctx;
    part->sending = false;
    part->fetch->ops--;
    assay_fetch_settle(part->fetch);
}

static as_status_t send_locate(assay_call_t *call)
{
    assay_part_t *part = call->owner;
    assay_fetch_t *fetch = part->fetch;
    uint64_t now_us = assay_now_us(fetch->client);
    uint64_t lease_ms = fetch->deadline_us > now_us ? (fetch->deadline_us - now_us) / 1000 + 1 : 1;
    const as_wire_locate_t ask = {
        .tenant = part->fetch->args.tenant,
        .head = as_wire_head(AS_WIRE_LOCATE, assay_call_id(call)),
        .key_count = part->count,
        .lease_ms = fetch->locate_only                ? 0
                    : lease_ms < AS_WIRE_LEASE_MS_MAX ? (uint32_t)lease_ms
                                                      : AS_WIRE_LEASE_MS_MAX,
        .kind = AS_WIRE_FULL,
    };
    part->epoch = part->link->epoch;
    part->asked_us = now_us;
    as_status_t status = as_net_send(part->link->conn, &ask, sizeof(ask), part->keys,
                                     part->count * sizeof(as_key_t), on_keys_sent, part);
    part->sending = status == AS_OK;
    fetch->ops += status == AS_OK;
    return status;
}

// The answer is taken, or will not come.
static void part_end(assay_part_t *part)
{
    assay_fetch_t *fetch = part->fetch;
    AS_ASSERT(!part->answered && fetch->parts_open > 0);
    part->call = NULL;
    part->waits = false;
    part->answered = true;
    fetch->parts_open--;
    for (uint32_t i = 0; i < part->count; i++) {
        assay_block_t *block = &fetch->blocks[part->blocks[i]];
        if (--block->asked > 0) {
            continue;
        }
        if (block->everywhere == ASK_UNDER_WAY) {
            block->everywhere = ASK_DONE;
        }
        fetch->seeking |= !block->part;
    }
}

static void part_close(assay_part_t *part)
{
    assay_fetch_t *fetch = part->fetch;
    part_end(part);
    if (fetch->state == FETCH_LOCATING && fetch->parts_open == 0) {
        assay_fetch_answered(fetch);
    } else if (fetch->state == FETCH_READING) {
        as_loop_post(fetch->client->options.loop, &fetch->pump);
    }
}

// The store is not to be asked: what it may have, another may have too.
static void part_fail(assay_part_t *part, as_status_t status)
{
    assay_fetch_t *fetch = part->fetch;
    AS_DEBUG("client", "not located at %s: %s", part->link->store.data_address,
             as_status_str(status));
    for (uint32_t i = 0; i < part->count; i++) {
        assay_block_t *block = &fetch->blocks[part->blocks[i]];
        block->lost = true;
        block->busy |= status == AS_ERR_BUSY;
        block->status = status;
    }
}

// For what was asked since then.
static bool has_patience(const assay_fetch_t *fetch, uint64_t since_us)
{
    uint64_t now_us = assay_now_us(fetch->client);
    since_us = since_us > fetch->found_us ? since_us : fetch->found_us;
    bool has_time = fetch->state == FETCH_READING ||
                    now_us - fetch->began_us < (fetch->deadline_us - fetch->began_us) / 2;
    return has_time && now_us - since_us < fetch->client->options.connect_timeout_us / 2;
}

static void part_wait(assay_part_t *part)
{
    part->call = NULL;
    part->waits = true;
    assay_fetch_later(part->fetch);
}

// Whether it has a block that no other store is left to be asked for.
static bool is_last_resort(const assay_part_t *part)
{
    bool any = false;
    for (uint32_t i = 0; i < part->count; i++) {
        any |= !assay_candidates_are_left(part->fetch, part->blocks[i]);
    }
    return any;
}

static void on_part_failed(void *owner, as_status_t status)
{
    assay_part_t *part = owner;
    if (status == AS_ERR_BUSY && is_last_resort(part) &&
        has_patience(part->fetch, part->begun_us)) {
        part_wait(part);
        return;
    }
    part_fail(part, status);
    part_close(part);
}

// ---- the answer

// Whether a copy promises for the layers that came from another what that one did.
static bool agrees(const assay_fetch_t *fetch, uint32_t block, const uint8_t *crcs)
{
    uint32_t layers = fetch->args.shape.layers;
    const size_t first = (size_t)block * layers;
    for (uint32_t layer = 0; fetch->blocks[block].arrived > 0 && layer < layers; layer++) {
        if (fetch->here[first + layer] &&
            memcmp(&fetch->crcs[first + layer], crcs + layer * sizeof(uint32_t),
                   sizeof(uint32_t)) != 0) {
            return false;
        }
    }
    return true;
}

// Notes a block that the store has; what does not fit the shape or the store's own memory is not
// there.
static void take_place(assay_part_t *part, uint32_t position, const as_wire_place_t *place,
                       const uint8_t *crcs)
{
    assay_fetch_t *fetch = part->fetch;
    const as_shape_t *shape = &fetch->args.shape;
    assay_block_t *block = &fetch->blocks[part->blocks[position]];
    if (place->status != AS_WIRE_OK) {
        block->busy |= place->status == AS_WIRE_BUSY;
        block->status = block->busy ? AS_ERR_BUSY : block->status;
        return;
    }
    if (!fetch->locate_only) {
        uint64_t bytes = (uint64_t)shape->layers * fetch->stored_bytes;
        const assay_link_t *link = part->link;
        bool fits = place->layers == shape->layers && place->extent_bytes == fetch->stored_bytes &&
                    place->tokens == shape->block_tokens &&
                    place->crc_first <= part->located.crc_count &&
                    shape->layers <= part->located.crc_count - place->crc_first &&
                    place->address >= link->pool_address && bytes <= link->pool_bytes &&
                    place->address - link->pool_address <= link->pool_bytes - bytes;
        if (!fits) {
            AS_WARN("client", "block %u at %s is not of the shape asked for: taken as a miss",
                    part->blocks[position], link->store.data_address);
            return;
        }
        crcs += (size_t)place->crc_first * sizeof(uint32_t);
        if (!agrees(fetch, part->blocks[position], crcs)) {
            AS_WARN("client", "block %u at %s has other checksums than its first copy: not used",
                    part->blocks[position], link->store.data_address);
            return;
        }
    }
    if (!assay_candidates_take(fetch, part->blocks[position], part->link->store.node_id)) {
        return;
    }
    if (!fetch->locate_only) {
        memcpy(&fetch->crcs[(size_t)part->blocks[position] * shape->layers], crcs,
               shape->layers * sizeof(uint32_t));
    }
    block->part = part;
    block->busy = false;
    if (!block->found) { // else it was lost where it was found, which must not go on for ever
        block->found = true;
        fetch->found_us = assay_now_us(fetch->client);
        fetch->wait_us = 0;
    }
    block->position = position;
    block->address = place->address;
}

static void take_answer(assay_part_t *part, const uint8_t *data)
{
    const as_wire_located_t *located = &part->located;
    const uint8_t *crcs = data + located->key_count * sizeof(as_wire_place_t);
    for (uint32_t i = 0; i < located->key_count; i++) {
        as_wire_place_t place;
        memcpy(&place, data + i * sizeof(place), sizeof(place));
        take_place(part, i, &place, crcs);
    }
}

static void on_answer_here(void *ctx, as_status_t status)
{
    assay_part_t *part = ctx;
    assay_fetch_t *fetch = part->fetch;
    fetch->ops--;
    if (!part->answered) { // else it came too late; its lease is given back at the end
        if (status != AS_OK) {
            part_fail(part, status);
        } else if (fetch->state < FETCH_ENDING) {
            take_answer(part, part->answer);
        }
        part_close(part);
    }
    as_mem_free(part->answer);
    part->answer = NULL;
    assay_fetch_settle(fetch);
}

static void on_located(void *owner, const void *header, as_net_msg_t *msg)
{
    assay_part_t *part = owner;
    assay_fetch_t *fetch = part->fetch;
    memcpy(&part->located, header, sizeof(part->located));
    const as_wire_located_t *located = &part->located;
    if (located->status != AS_WIRE_OK) {
        part->link->denied |= located->status == AS_WIRE_DENIED;
        on_part_failed(part, as_wire_status_to(located->status));
        return;
    }
    size_t bytes = (size_t)located->key_count * sizeof(as_wire_place_t) +
                   (size_t)located->crc_count * sizeof(uint32_t);
    if (located->key_count != part->count || located->crc_count > part->count * AS_LAYERS_MAX ||
        msg->data_bytes != bytes) {
        assay_link_t *link = part->link;
        on_part_failed(part, AS_ERR_PROTOCOL);
        assay_link_fail(link, AS_ERR_PROTOCOL);
        return;
    }
    assay_rate_located(part->link, assay_now_us(fetch->client) - part->asked_us);
    part->lease_id = located->lease_id;
    assay_lease_take(part, located->lease_ms, part->asked_us);
    if (msg->data) {
        take_answer(part, msg->data);
        part_close(part);
        return;
    }
    part->call = NULL;
    part->answer = as_mem_alloc(bytes);
    as_status_t status =
        part->answer ? as_net_msg_recv(msg, part->answer, on_answer_here, part) : AS_ERR_NO_MEMORY;
    if (status != AS_OK) {
        as_mem_free(part->answer);
        part->answer = NULL;
        on_part_failed(part, status);
        return;
    }
    fetch->ops++;
}

// Where all calls of the client are under way, it waits for one.
static void part_ask(assay_part_t *part)
{
    const assay_call_params_t params = {part, AS_WIRE_LOCATED, send_locate, on_located,
                                        on_part_failed};
    part->waits = false;
    part->asked_us = assay_now_us(part->fetch->client);
    as_status_t status = assay_call_start(part->link, &params, &part->call);
    if (status == AS_ERR_BUSY && has_patience(part->fetch, part->begun_us)) {
        part_wait(part);
    } else if (status != AS_OK) {
        part_fail(part, status);
        part_end(part);
    }
}

void assay_locate_start(assay_fetch_t *fetch)
{
    uint64_t now_us = assay_now_us(fetch->client); // of all: they are one question
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        if (part->begun) {
            continue;
        }
        part->begun = true;
        part->begun_us = now_us;
        fetch->parts_open++;
        part_ask(part);
    }
}

// Nobody has it, and nobody is left to be asked.
static bool is_nowhere(const assay_block_t *block)
{
    return !block->part && !block->is_hole && block->asked == 0 && block->reads == 0;
}

// Where blocks count as a chain, nothing behind the first that is surely missing is worth a wait.
static bool waits_for_busy(const assay_fetch_t *fetch, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++) {
        if (is_nowhere(&fetch->blocks[i]) && (fetch->blocks[i].busy || !fetch->args.statuses)) {
            return fetch->blocks[i].busy;
        }
    }
    return false;
}

// All candidates of the blocks that one of them was too busy for are to be asked again, but for those
// that a block could not be read from.
static void renew(assay_fetch_t *fetch)
{
    fetch->renewing = false;
    for (uint32_t i = 0; i < fetch->args.block_count; i++) {
        assay_block_t *block = &fetch->blocks[i];
        if (is_nowhere(block) && block->busy) {
            block->busy = false;
            block->tries = 0;
            block->everywhere = ASK_NOT;
            fetch->seeking = true;
        }
    }
}

void assay_locate_retry(assay_fetch_t *fetch)
{
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        if (part->waits) {
            part_ask(part);
        }
    }
    if (fetch->renewing) {
        renew(fetch);
    }
}

static void find_holes(assay_fetch_t *fetch)
{
    for (uint32_t i = 0; fetch->state == FETCH_READING && i < fetch->limit; i++) {
        const assay_block_t *block = &fetch->blocks[i];
        if (is_nowhere(block) && !(block->busy && fetch->renewing)) {
            assay_fetch_hole(fetch, i, block->status != AS_OK ? block->status : AS_ERR_NOT_FOUND);
        }
    }
}

void assay_locate_again(assay_fetch_t *fetch)
{
    bool reading = fetch->state == FETCH_READING, asked = true;
    uint32_t end = reading ? fetch->limit : fetch->args.block_count;
    as_status_t status = AS_OK;
    if (fetch->parts_open == 0) {
        fetch->locate_until_us =
            assay_now_us(fetch->client) + fetch->client->options.connect_timeout_us;
    }
    // Once more where the next candidate cannot even be asked.
    while (fetch->seeking && asked && status == AS_OK) {
        status = plan(fetch, end, &asked);
        assay_locate_start(fetch);
    }
    if (waits_for_busy(fetch, end) && has_patience(fetch, fetch->began_us)) {
        fetch->renewing = true;
        assay_fetch_later(fetch);
    }
    if (reading) {
        find_holes(fetch);
    }
}

void assay_locate_give_up(assay_fetch_t *fetch, uint64_t begun_us)
{
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        if (!part->begun || part->answered || part->begun_us > begun_us) {
            continue;
        }
        if (part->call) {
            assay_call_drop(part->call);
        }
        part->silent = !part->waits;
        if (part->silent) {
            assay_rate_waited(part->link, assay_now_us(fetch->client) - part->asked_us);
        }
        part_fail(part, part->waits ? AS_ERR_BUSY : AS_ERR_DEADLINE);
        part_end(part);
    }
    for (assay_part_t *part = fetch->parts; part; part = part->next) { // a link may fail by it
        if (part->silent) {
            part->silent = false;
            assay_link_silent(part->link, part->begun_us, part->asked_us);
        }
    }
}
