// SPDX-License-Identifier: Apache-2.0
// Which extents are asked for next, and how many at a time (read.c brings them).
//
// Every part of a fetch goes through its own blocks, layer by layer, as far as the caller's slots
// are free; so all stores work at once and the first layers come first. A bounded number of bytes is
// under way on each link (window.c), which fetches share by how urgent they are; what is less urgent
// takes no room from what is more.
#include "client/internal.h"

// How many of `left` neighbours one read brings: as many as are worth it, in pieces of about the
// same length.
static uint32_t run_of(const assay_part_t *part, uint32_t left)
{
    size_t extent_bytes = part->fetch->stored_bytes;
    size_t bytes = part->link->rkey ? GET_BYTES_TARGET : ASK_BYTES_TARGET;
    uint32_t most = (uint32_t)(bytes / extent_bytes);
    if (!part->link->rkey && !part->fetch->by_block && most > ASK_BLOCKS_LARGE) {
        uint32_t few = (uint32_t)(ASK_BYTES_MANY / extent_bytes);
        most = few > ASK_BLOCKS_LARGE ? few : ASK_BLOCKS_LARGE;
    }
    most = most == 0 ? 1 : most > AS_WIRE_EXTENTS_MAX ? AS_WIRE_EXTENTS_MAX : most;
    uint32_t pieces = (left + most - 1) / most;
    return (left + pieces - 1) / pieces;
}

// An extent of the present layer: this part is to bring it.
static bool is_wanted(const assay_part_t *part, uint32_t position)
{
    const assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[position];
    return block < fetch->limit && fetch->blocks[block].part == part &&
           !fetch->here[(size_t)block * fetch->args.shape.layers + part->layer];
}

// Neighbours from the part's position on: next to each other in the question, in the chain and in
// the buffer.
static uint32_t neighbours(const assay_part_t *part)
{
    const assay_fetch_t *fetch = part->fetch;
    uint32_t first = part->position, end = first + 1;
    bool joined = fetch->args.block_stride == fetch->extent_bytes && !part->link->rkey;
    while (joined && end < part->count &&
           part->blocks[end] == part->blocks[first] + (end - first) && is_wanted(part, end)) {
        end++;
    }
    return end - first;
}

// Layers of the block at the part's position that are missing, from the part's layer on.
static uint32_t missing_layers(const assay_part_t *part)
{
    const assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[part->position], end = part->layer + 1;
    const bool *here = &fetch->here[(size_t)block * fetch->args.shape.layers];
    while (end < fetch->layer_end && !here[end]) {
        end++;
    }
    return end - part->layer;
}

static void advance(assay_part_t *part, uint32_t count, uint32_t layer_count)
{
    if (part->fetch->by_block) {
        part->layer += layer_count;
        if (part->layer == part->fetch->layer_end) {
            part->layer = part->fetch->layer_first;
            part->position++;
        }
        return;
    }
    part->position += count;
    if (part->position == part->count) {
        part->position = 0;
        part->layer++;
    }
}

// Goes to the next extent that is wanted and whose slot is free. False: every such slot is taken.
static bool seek(assay_part_t *part)
{
    const assay_fetch_t *fetch = part->fetch;
    uint32_t slots = fetch->args.layer_slots;
    while (part->layer < fetch->layer_end && part->position < part->count) {
        if (part->layer - fetch->layer_first >= slots && !fetch->released[part->layer - slots]) {
            return false;
        }
        if (is_wanted(part, part->position)) {
            return true;
        }
        bool ours = fetch->blocks[part->blocks[part->position]].part == part;
        advance(part, 1, ours ? 1 : fetch->layer_end - part->layer);
    }
    return false;
}

// The store's classes have the same numbers.
_Static_assert((int)ASSAY_URGENCY_PREFIX == AS_WIRE_PREFIX &&
                   (int)ASSAY_URGENCY_VERIFY == AS_WIRE_VERIFY &&
                   (int)ASSAY_URGENCY_KVFETCH == AS_WIRE_KVFETCH &&
                   (int)ASSAY_URGENCY_COUNT == AS_WIRE_CLASS_COUNT,
               "urgency as on the wire");

uint32_t assay_urgency_weight(assay_urgency_t urgency)
{
    static const uint32_t weights[ASSAY_URGENCY_COUNT] = {1, 4, 16};
    return weights[urgency];
}

// A fetch's share of what a link may have in flight.
static size_t share_bytes(const assay_part_t *part)
{
    const assay_client_t *client = part->fetch->client;
    return assay_window_bytes(part->link) / client->fetch_weights *
           assay_urgency_weight(part->fetch->args.urgency);
}

// Whether so much has arrived that asking for more is worth a message.
static bool is_low(const assay_part_t *part)
{
    return part->outstanding == 0 || part->outstanding_bytes <= share_bytes(part) / 4 * 3;
}

// What is less urgent takes no room from it.
static bool has_room(const assay_part_t *part)
{
    const assay_link_t *link = part->link;
    size_t bytes = 0;
    for (uint32_t i = part->fetch->args.urgency; i < ASSAY_URGENCY_COUNT; i++) {
        bytes += link->urgent_bytes[i];
    }
    bool is_within =
        bytes < assay_window_bytes(link) && part->outstanding_bytes < share_bytes(part);
    return link->reads_in_flight < link->asks_max && (part->outstanding == 0 || is_within);
}

// Starts one read. False: no room for more now.
static bool start_one(assay_part_t *part)
{
    const assay_fetch_t *fetch = part->fetch;
    if (!has_room(part)) {
        return false;
    }
    uint32_t count = fetch->by_block ? 1 : run_of(part, neighbours(part));
    uint32_t layer_count = fetch->by_block ? run_of(part, missing_layers(part)) : 1;
    if (!assay_read_start(part, count, layer_count)) {
        return false;
    }
    advance(part, count, layer_count);
    if (part->link->asking.ask_count == AS_WIRE_ASKS_MAX) {
        assay_read_flush(part->link);
    }
    return true;
}

// True: there is more to copy in the next turn.
static bool pump_part(assay_part_t *part, size_t *budget_bytes)
{
    assay_fetch_t *fetch = part->fetch;
    if (!part->answered || (!part->link->local && !is_low(part))) {
        return false; // it is not known yet what it has, or it has enough to do
    }
    while (fetch->state == FETCH_READING && seek(part)) {
        if (!assay_link_is(part->link, part->epoch)) {
            assay_fetch_lost(part, part->blocks[part->position], AS_ERR_PEER_LOST);
        } else if (!part->link->local) {
            if (!start_one(part)) {
                return false;
            }
        } else if (*budget_bytes == 0) {
            return true;
        } else {
            *budget_bytes -=
                fetch->extent_bytes < *budget_bytes ? fetch->extent_bytes : *budget_bytes;
            assay_read_copy(part);
            advance(part, 1, 1);
        }
    }
    return false;
}

void assay_read_pump(assay_fetch_t *fetch)
{
    size_t budget_bytes = COPY_BYTES_TURN;
    bool more = false;
    assay_read_again(fetch);
    for (assay_part_t *part = fetch->parts; part && fetch->state == FETCH_READING;
         part = part->next) {
        more |= pump_part(part, &budget_bytes);
        assay_read_flush(part->link);
    }
    if (more) {
        as_loop_post(fetch->client->options.loop, &fetch->pump);
    }
}
