// SPDX-License-Identifier: Apache-2.0
// Moving extents: by pointer from shared memory, by one-sided reads, or by asking the store to send
// them.
//
// Every part of a fetch goes through its own blocks, layer by layer, as far as the caller's slots
// are free; so all stores work at once and the first layers come first. By pointer an extent is
// copied and checksummed in one pass, a bounded number of bytes in each turn of the loop. Else
// reads are kept in flight, a bounded number of bytes on each link. By message, one READ asks for
// many, since a small message costs as much as a large one; each has its own answer, small enough
// to come with its bytes, which are checksummed as they are copied into the buffer. Small
// neighbours share an answer. Larger extents are received where they belong.
//
// Where the bytes came without the store's doing, the lease is looked at after they are here: by
// our clock it ends before the store's, so a lease that still holds proves that nothing was reused
// meanwhile. The checksum is compared in every case. A read is ASKED until its bytes are on their
// way; from then on only their end, or the end of the connection, lets go of the caller's buffer.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/checksum.h"
#include "common/fault.h"
#include "common/log.h"

static void on_asked_failed(void *owner, as_status_t status);
static void on_data(void *owner, const void *header, as_net_msg_t *msg);
static void on_arrived(void *ctx, as_status_t status);

// ---- reads

static size_t read_bytes(const assay_read_t *read)
{
    return (size_t)read->count * read->layer_count * read->part->fetch->extent_bytes;
}

static assay_read_t *read_take(assay_part_t *part, uint32_t count, uint32_t layer_count)
{
    assay_fetch_t *fetch = part->fetch;
    assay_read_t *read = as_pool_take(fetch->client->reads);
    if (!read) {
        return NULL;
    }
    *read = (assay_read_t){.part = part,
                           .next = fetch->reads,
                           .position = part->position,
                           .count = count,
                           .layer = part->layer,
                           .layer_count = layer_count,
                           .epoch = part->epoch};
    if (fetch->reads) {
        fetch->reads->prev = read;
    }
    fetch->reads = read;
    if (part->outstanding++ == 0) {
        part->progress_us = assay_now_us(fetch->client);
    }
    part->outstanding_bytes += read_bytes(read);
    for (uint32_t i = 0; i < count; i++) {
        fetch->blocks[part->blocks[read->position + i]].reads++;
    }
    part->link->reads_in_flight++;
    part->link->bytes_in_flight += read_bytes(read);
    part->link->urgent_bytes[fetch->args.urgency] += read_bytes(read);
    assay_rate_begin(part->link, assay_now_us(fetch->client));
    return read;
}

static void read_give(assay_read_t *read)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    if (read->next) {
        read->next->prev = read->prev;
    }
    if (read->prev) {
        read->prev->next = read->next;
    } else {
        fetch->reads = read->next;
    }
    part->outstanding--;
    part->outstanding_bytes -= read_bytes(read);
    for (uint32_t i = 0; i < read->count; i++) {
        fetch->blocks[part->blocks[read->position + i]].reads--;
    }
    if (part->link->epoch == read->epoch) {
        part->link->reads_in_flight--;
        part->link->bytes_in_flight -= read_bytes(read);
        part->link->urgent_bytes[fetch->args.urgency] -= read_bytes(read);
        assay_rate_end(part->link, assay_now_us(fetch->client), part->link->bytes_in_flight == 0);
    }
    as_pool_give(fetch->client->reads, read);
}

// None of it comes from this store.
static void lose_read(const assay_read_t *read, as_status_t status)
{
    for (uint32_t i = 0; i < read->count; i++) {
        assay_fetch_lost(read->part, read->part->blocks[read->position + i], status);
    }
}

// There is room on a link: whoever waits for it may go on, this fetch last.
static void wake_all(assay_fetch_t *own)
{
    assay_client_t *client = own->client;
    for (assay_fetch_t *fetch = client->fetches; fetch; fetch = fetch->next) {
        if (fetch != own && fetch->state == FETCH_READING) {
            as_loop_post(client->options.loop, &fetch->pump);
        }
    }
    as_loop_post(client->options.loop, &own->pump);
}

void assay_read_forget(assay_fetch_t *fetch)
{
    bool some = fetch->reads != NULL;
    for (assay_read_t *read = fetch->reads, *next; read; read = next) {
        next = read->next;
        if (read->state == READ_ASKED) {
            assay_call_drop(read->call);
            assay_rate_reset(read->part->link); // nobody waits to see how long it takes
            read_give(read);
        }
    }
    if (some) {
        wake_all(fetch);
    }
}

// ---- checking

// One extent is in the buffer; `crc` is what its bytes sum to.
static void take_extent(assay_part_t *part, uint32_t position, uint32_t layer, uint32_t crc)
{
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[position];
    uint8_t *bytes = assay_fetch_place(fetch, block, layer);
    if (as_fault(AS_FAULT_fetch_extent_corrupt)) {
        bytes[fetch->extent_bytes / 2] ^= 1;
        crc = as_crc32c(0, bytes, fetch->extent_bytes);
    }
    uint32_t promised = fetch->crcs[(size_t)block * fetch->args.shape.layers + layer];
    if (fetch->client->options.verify_checksums && crc != promised) {
        AS_WARN("client", "layer %u of block %u from %s has checksum %08x, promised %08x: not used",
                layer, fetch->args.first_block + block, part->link->store.data_address, crc,
                promised);
        as_metric_add(&assay_metrics[ASSAY_METRIC_CHECKSUM_FAILURES], 1);
        assay_fetch_lost(part, block, AS_ERR_CHECKSUM);
        return;
    }
    assay_fetch_arrived(fetch, block, layer);
}

// Takes the extents of a read in order: those of `from`, or those that are in the buffer already.
static void take_read(assay_read_t *read, const uint8_t *from)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    assay_rate_arrived(part->link, read_bytes(read));
    for (uint32_t i = 0; i < read->count; i++) {
        for (uint32_t l = 0; l < read->layer_count && fetch->state == FETCH_READING; l++) {
            uint32_t position = read->position + i, layer = read->layer + l;
            uint8_t *to = assay_fetch_place(fetch, part->blocks[position], layer);
            uint32_t crc = 0;
            if (from) {
                crc = as_crc32c_copy(0, to, from, fetch->extent_bytes);
                from += fetch->extent_bytes;
            } else if (fetch->client->options.verify_checksums) {
                crc = as_crc32c(0, to, fetch->extent_bytes);
            }
            take_extent(part, position, layer, crc);
        }
    }
}

// ---- by pointer

static void copy_extent(assay_part_t *part)
{
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[part->position];
    const uint8_t *from = part->link->local +
                          (fetch->blocks[block].address - part->link->pool_address) +
                          (size_t)part->layer * fetch->extent_bytes;
    uint8_t *to = assay_fetch_place(fetch, block, part->layer);
    assay_rate_begin(part->link, assay_now_us(fetch->client));
    uint32_t crc = as_crc32c_copy(0, to, from, fetch->extent_bytes);
    assay_rate_arrived(part->link, fetch->extent_bytes);
    assay_rate_end(part->link, assay_now_us(fetch->client), true);
    if (!assay_lease_holds(part)) {
        assay_fetch_lost(part, block, AS_ERR_LEASE);
        return;
    }
    take_extent(part, part->position, part->layer, crc);
}

// ---- by one-sided read

static as_status_t start_get(assay_read_t *read)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[read->position];
    uint64_t address = fetch->blocks[block].address + (uint64_t)read->layer * fetch->extent_bytes;
    read->state = READ_ARRIVING;
    as_status_t status = as_net_get(part->link->conn, part->link->rkey, address,
                                    assay_fetch_place(fetch, block, read->layer),
                                    read->layer_count * fetch->extent_bytes, on_arrived, read);
    fetch->arriving += status == AS_OK;
    return status;
}

// ---- by message

// Sends what was asked since the last time.
static void flush_asks(assay_link_t *link)
{
    as_wire_read_t *asking = &link->asking;
    uint32_t count = asking->ask_count;
    if (count == 0 || link->state != LINK_READY) {
        return;
    }
    asking->head = as_wire_head(AS_WIRE_READ, 0);
    memset(&asking->asks[count], 0, (AS_WIRE_ASKS_MAX - count) * sizeof(asking->asks[0]));
    as_status_t status = as_net_send(link->conn, asking, sizeof(*asking), NULL, 0, NULL, NULL);
    asking->ask_count = 0;
    if (status != AS_OK) {
        assay_link_fail(link, status); // they would never be answered
    }
}

static as_status_t add_ask(assay_call_t *call)
{
    const assay_read_t *read = call->owner;
    as_wire_read_t *asking = &call->link->asking;
    AS_ASSERT(asking->ask_count < AS_WIRE_ASKS_MAX);
    asking->lease_id = read->part->lease_id;
    asking->urgency = read->part->fetch->args.urgency;
    asking->asks[asking->ask_count++] = (as_wire_ask_t){
        .request = assay_call_id(call),
        .layer_first = (uint16_t)read->layer,
        .layer_count = (uint16_t)read->layer_count,
        .index_first = (uint16_t)read->position,
        .index_count = (uint16_t)read->count,
    };
    return AS_OK;
}

static as_status_t start_ask(assay_read_t *read)
{
    const assay_call_params_t params = {read, AS_WIRE_DATA, add_ask, on_data, on_asked_failed};
    read->state = READ_ASKED;
    return assay_call_start(read->part->link, &params, &read->call);
}

// Its connection failed, with many others': the fetch is settled from the loop.
static void on_asked_failed(void *owner, as_status_t status)
{
    assay_read_t *read = owner;
    assay_fetch_t *fetch = read->part->fetch;
    lose_read(read, status);
    read_give(read);
    wake_all(fetch);
}

static void on_data(void *owner, const void *header, as_net_msg_t *msg)
{
    assay_read_t *read = owner;
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[read->position];
    as_status_t status = as_wire_status_to(((const as_wire_data_t *)header)->status);
    bool sound = msg->data_bytes == (status == AS_OK ? read_bytes(read) : 0);
    read->call = NULL;
    read->state = READ_ARRIVING; // nothing is to be forgotten any more
    if (status == AS_OK && sound && msg->data) {
        part->progress_us = assay_now_us(fetch->client);
        take_read(read, msg->data);
    } else if (status == AS_OK && sound) {
        fetch->arriving++;
        status =
            as_net_msg_recv(msg, assay_fetch_place(fetch, block, read->layer), on_arrived, read);
        if (status == AS_OK) {
            return;
        }
        fetch->arriving--;
    }
    if (status != AS_OK || !sound) {
        lose_read(read, sound ? status : AS_ERR_PROTOCOL);
    }
    read_give(read);
    wake_all(fetch);
    if (!sound) {
        assay_link_fail(part->link, AS_ERR_PROTOCOL);
    }
}

static void on_arrived(void *ctx, as_status_t status)
{
    assay_read_t *read = ctx;
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    fetch->arriving--;
    part->progress_us = assay_now_us(fetch->client);
    if (status == AS_OK && part->link->rkey && !assay_lease_holds(part)) {
        status = AS_ERR_LEASE;
    }
    if (fetch->state == FETCH_READING) {
        if (status == AS_OK) {
            take_read(read, NULL);
        } else {
            lose_read(read, status);
        }
    }
    read_give(read);
    wake_all(fetch);
    assay_fetch_settle(fetch);
}

// ---- what is next

// How many of `left` neighbours one read brings: as many as are worth it, in pieces of about the
// same length.
static uint32_t run_of(const assay_part_t *part, uint32_t left)
{
    size_t bytes = part->link->rkey ? GET_BYTES_TARGET : ASK_BYTES_TARGET;
    uint32_t most = (uint32_t)(bytes / part->fetch->extent_bytes);
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
    return client->options.bytes_in_flight_max / client->fetch_weights *
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
    const assay_client_t *client = part->fetch->client;
    const assay_link_t *link = part->link;
    size_t bytes = 0;
    for (uint32_t i = part->fetch->args.urgency; i < ASSAY_URGENCY_COUNT; i++) {
        bytes += link->urgent_bytes[i];
    }
    bool is_within =
        bytes < client->options.bytes_in_flight_max && part->outstanding_bytes < share_bytes(part);
    return link->reads_in_flight < link->asks_max && (part->outstanding == 0 || is_within);
}

// Starts one read. False: no room for more now.
static bool start_one(assay_part_t *part)
{
    assay_fetch_t *fetch = part->fetch;
    assay_link_t *link = part->link;
    if (!has_room(part)) {
        return false;
    }
    uint32_t block = part->blocks[part->position];
    uint32_t count = fetch->by_block ? 1 : run_of(part, neighbours(part));
    uint32_t layer_count = fetch->by_block ? run_of(part, missing_layers(part)) : 1;
    assay_read_t *read = read_take(part, count, layer_count);
    if (!read) {
        assay_fetch_hole(fetch, block, AS_ERR_BUSY);
        return false;
    }
    as_status_t status = link->rkey ? start_get(read) : start_ask(read);
    if (status != AS_OK) {
        lose_read(read, status);
        read_give(read);
        return false;
    }
    advance(part, count, layer_count);
    if (link->asking.ask_count == AS_WIRE_ASKS_MAX) {
        flush_asks(link);
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
            copy_extent(part);
            advance(part, 1, 1);
        }
    }
    return false;
}

void assay_read_pump(assay_fetch_t *fetch)
{
    size_t budget_bytes = COPY_BYTES_TURN;
    bool more = false;
    for (assay_part_t *part = fetch->parts; part && fetch->state == FETCH_READING;
         part = part->next) {
        more |= pump_part(part, &budget_bytes);
        flush_asks(part->link);
    }
    if (more) {
        as_loop_post(fetch->client->options.loop, &fetch->pump);
    }
}

void assay_read_check_stalls(assay_fetch_t *fetch, uint64_t now_us)
{
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        bool stalled = part->outstanding > 0 &&
                       now_us - part->progress_us >= fetch->client->options.stall_timeout_us;
        if (stalled && assay_link_is(part->link, part->epoch)) {
            assay_link_fail(part->link, AS_ERR_DEADLINE);
        }
    }
}
