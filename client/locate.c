// SPDX-License-Identifier: Apache-2.0
// Locating: every store that may hold blocks of the chain is asked at once, and what it leases is
// noted.
//
// A block is asked of the node that the caller names, else of the node where its run is placed.
// Where the fetch begins inside a run, the key that places the run is not known: those few blocks
// are asked of every store, and the first that has one serves it. So are keys that need be no
// chain. What a store says is bounded and compared with the shape before it is believed.
//
// The lease counts from when the question was sent, so by our clock it ends before it ends at the
// store.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/log.h"

// ---- planning

// Who is asked for block i: a link, or NULL for all.
static assay_link_t *target_of(const assay_fetch_t *fetch, const uint64_t *node_ids, uint32_t i)
{
    const assay_client_t *client = fetch->client;
    assay_link_t *link = node_ids && node_ids[i] != 0 ? assay_link_find(client, node_ids[i]) : NULL;
    uint32_t in_run = (uint32_t)((fetch->args.first_block + (uint64_t)i) % AS_RUN_BLOCKS);
    if (!link && in_run <= i && !fetch->args.statuses) {
        link = assay_link_find(client, assay_client_place(client, &fetch->keys[i - in_run]));
    }
    return link;
}

// Lists for one store what it is asked, in parts of at most AS_WIRE_KEYS_MAX. Without parts it only
// counts.
static uint32_t list_for(assay_fetch_t *fetch, assay_link_t *const *targets, assay_link_t *link,
                         assay_part_t *parts, uint32_t *total)
{
    uint32_t part_count = 0, in_part = AS_WIRE_KEYS_MAX;
    for (uint32_t i = 0; i < fetch->args.block_count; i++) {
        if (targets[i] && targets[i] != link) {
            continue;
        }
        if (in_part == AS_WIRE_KEYS_MAX) {
            in_part = 0;
            part_count++;
        }
        if (parts) {
            assay_part_t *part = &parts[part_count - 1];
            part->fetch = fetch;
            part->link = link;
            part->blocks[in_part] = i;
            part->keys[in_part] = fetch->keys[i];
            part->count = in_part + 1;
        }
        in_part++;
        (*total)++;
    }
    return part_count;
}

static as_status_t make_parts(assay_fetch_t *fetch, assay_link_t *const *targets)
{
    assay_client_t *client = fetch->client;
    uint32_t part_count = 0, total = 0;
    for (assay_link_t *link = client->links; link; link = link->next) {
        part_count += link->member ? list_for(fetch, targets, link, NULL, &total) : 0;
    }
    if (part_count == 0) {
        return AS_OK;
    }
    size_t each = sizeof(assay_part_t) + AS_WIRE_KEYS_MAX * (sizeof(as_key_t) + sizeof(uint32_t));
    fetch->parts = as_mem_zalloc(part_count, each);
    if (!fetch->parts) {
        return AS_ERR_NO_MEMORY;
    }
    as_key_t *keys = (as_key_t *)(void *)(fetch->parts + part_count);
    uint32_t *blocks = (uint32_t *)(void *)(keys + (size_t)part_count * AS_WIRE_KEYS_MAX);
    for (uint32_t i = 0; i < part_count; i++) {
        fetch->parts[i].keys = keys + (size_t)i * AS_WIRE_KEYS_MAX;
        fetch->parts[i].blocks = blocks + (size_t)i * AS_WIRE_KEYS_MAX;
    }
    for (assay_link_t *link = client->links; link; link = link->next) {
        uint32_t listed =
            link->member ? list_for(fetch, targets, link, &fetch->parts[fetch->part_count], &total)
                         : 0;
        for (uint32_t i = 0; i < listed; i++) {
            assay_link_get(link);
        }
        fetch->part_count += listed;
    }
    AS_ASSERT(fetch->part_count == part_count);
    return AS_OK;
}

as_status_t assay_locate_plan(assay_fetch_t *fetch, const uint64_t *node_ids)
{
    assay_link_t **targets = as_mem_zalloc(fetch->args.block_count, sizeof(*targets));
    if (!targets) {
        return AS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < fetch->args.block_count; i++) {
        targets[i] = target_of(fetch, node_ids, i);
    }
    as_status_t status = make_parts(fetch, targets);
    as_mem_free(targets);
    return status;
}

// ---- asking

static void on_keys_sent(void *ctx, as_status_t status)
{
    (void)status;
    assay_fetch_t *fetch = ctx;
    fetch->ops--;
    assay_fetch_settle(fetch);
}

static as_status_t send_locate(assay_call_t *call)
{
    assay_part_t *part = call->owner;
    assay_fetch_t *fetch = part->fetch;
    uint64_t now_us = assay_now_us(fetch->client);
    uint64_t lease_ms = fetch->deadline_us > now_us ? (fetch->deadline_us - now_us) / 1000 + 1 : 1;
    const as_wire_locate_t ask = {
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
                                     part->count * sizeof(as_key_t), on_keys_sent, fetch);
    fetch->ops += status == AS_OK;
    return status;
}

static void part_close(assay_part_t *part)
{
    assay_fetch_t *fetch = part->fetch;
    AS_ASSERT(!part->answered && fetch->parts_open > 0);
    part->call = NULL;
    part->answered = true;
    fetch->parts_open--;
    if (fetch->parts_open == 0 && fetch->state == FETCH_LOCATING) {
        assay_fetch_located(fetch);
    }
}

static void on_part_failed(void *owner, as_status_t status)
{
    assay_part_t *part = owner;
    AS_DEBUG("client", "not located at %s: %s", part->link->store.data_address,
             as_status_str(status));
    part_close(part);
}

// ---- the answer

// Notes a block that the store has; what does not fit the shape or the store's own memory is not
// there.
static void take_place(assay_part_t *part, uint32_t position, const as_wire_place_t *place,
                       const uint8_t *crcs)
{
    assay_fetch_t *fetch = part->fetch;
    const as_shape_t *shape = &fetch->args.shape;
    assay_block_t *block = &fetch->blocks[part->blocks[position]];
    if (place->status != AS_WIRE_OK || block->part) {
        return;
    }
    if (!fetch->locate_only) {
        uint64_t bytes = (uint64_t)shape->layers * fetch->extent_bytes;
        const assay_link_t *link = part->link;
        bool fits = place->layers == shape->layers && place->extent_bytes == fetch->extent_bytes &&
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
        memcpy(&fetch->crcs[(size_t)part->blocks[position] * shape->layers],
               crcs + (size_t)place->crc_first * sizeof(uint32_t),
               shape->layers * sizeof(uint32_t));
    }
    block->part = part;
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
        if (status == AS_OK && fetch->state == FETCH_LOCATING) {
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
        on_part_failed(part, as_wire_status_to(located->status));
        return;
    }
    size_t bytes = (size_t)located->key_count * sizeof(as_wire_place_t) +
                   (size_t)located->crc_count * sizeof(uint32_t);
    if (located->key_count != part->count || located->crc_count > part->count * AS_LAYERS_MAX ||
        msg->data_bytes != bytes) {
        assay_link_t *link = part->link;
        part_close(part);
        assay_link_fail(link, AS_ERR_PROTOCOL);
        return;
    }
    part->lease_id = located->lease_id;
    part->lease_until_us = part->asked_us + (uint64_t)located->lease_ms * 1000;
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

void assay_locate_start(assay_fetch_t *fetch)
{
    fetch->parts_open = fetch->part_count;
    for (uint32_t i = 0; i < fetch->part_count; i++) {
        assay_part_t *part = &fetch->parts[i];
        const assay_call_params_t params = {part, AS_WIRE_LOCATED, send_locate, on_located,
                                            on_part_failed};
        if (assay_call_start(part->link, &params, &part->call) != AS_OK) {
            part->call = NULL;
            part->answered = true;
            fetch->parts_open--;
        }
    }
}

void assay_locate_give_up(assay_fetch_t *fetch)
{
    for (uint32_t i = 0; i < fetch->part_count; i++) {
        assay_part_t *part = &fetch->parts[i];
        if (part->answered) {
            continue;
        }
        if (part->call) {
            assay_call_drop(part->call);
            part->call = NULL;
        }
        part->answered = true;
        fetch->parts_open--;
    }
}

void assay_locate_release(assay_fetch_t *fetch)
{
    for (uint32_t i = 0; i < fetch->part_count; i++) {
        assay_part_t *part = &fetch->parts[i];
        if (part->lease_id != 0 && assay_link_is(part->link, part->epoch)) {
            const as_wire_release_t release = {as_wire_head(AS_WIRE_RELEASE, 0), part->lease_id};
            as_status_t status =
                as_net_send(part->link->conn, &release, sizeof(release), NULL, 0, NULL, NULL);
            (void)status; // else it ends by its deadline
        }
        part->lease_id = 0;
    }
}
