// SPDX-License-Identifier: Apache-2.0
// Moving extents: by pointer from shared memory, by one-sided reads, or by asking the store to send
// them.
//
// What comes next is decided in pump.c. By pointer an extent is copied and checksummed in one pass,
// a bounded number of bytes in each turn of the loop. Else reads are kept in flight. By message, one
// READ asks for many, since a small message costs as much as a large one; each has its own answer.
// Small neighbours share one, and a large extent comes in pieces: what comes with its message is
// checksummed as it is copied into the buffer. A network that would rather not cut them has large
// answers received where they belong.
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
#include "common/mem.h"

static void on_asked_failed(void *owner, as_status_t status);
static void on_data(void *owner, const void *header, as_net_msg_t *msg);
static void on_arrived(void *ctx, as_status_t status);

// ---- reads

static size_t read_bytes(const assay_read_t *read)
{
    return (size_t)read->count * read->layer_count * read->part->fetch->stored_bytes;
}

// Where its bytes arrive: in the caller's buffer or, of encrypted extents, beside it. NULL: there is no
// memory.
static uint8_t *read_place(assay_read_t *read)
{
    const assay_part_t *part = read->part;
    if (!part->fetch->client->cipher) {
        return assay_fetch_place(part->fetch, part->blocks[read->position], read->layer);
    }
    if (!read->stage) {
        read->stage = as_mem_alloc(read_bytes(read));
    }
    return read->stage;
}

// They are here and are not waited for any longer.
static void note_arrived(assay_read_t *read, size_t bytes)
{
    assay_part_t *part = read->part;
    assay_link_t *link = part->link;
    read->arrived_bytes += bytes;
    part->outstanding_bytes -= bytes;
    if (link->epoch == read->epoch) {
        link->bytes_in_flight -= bytes;
        link->urgent_bytes[part->fetch->args.urgency] -= bytes;
        assay_window_came(read, bytes);
        assay_rate_arrived(link, bytes);
        assay_rate_end(link, assay_now_us(link->client), link->bytes_in_flight == 0);
    }
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
    if (part->outstanding++ == part->refused) { // the only one that something is to come of
        part->progress_us = assay_now_us(fetch->client);
    }
    part->outstanding_bytes += read_bytes(read);
    for (uint32_t i = 0; i < count; i++) {
        fetch->blocks[part->blocks[read->position + i]].reads++;
    }
    assay_window_asked(read);
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
    size_t left_bytes = read_bytes(read) - read->arrived_bytes;
    part->outstanding--;
    part->refused -= read->state == READ_REFUSED;
    part->outstanding_bytes -= left_bytes;
    for (uint32_t i = 0; i < read->count; i++) {
        fetch->blocks[part->blocks[read->position + i]].reads--;
    }
    if (part->link->epoch == read->epoch) {
        part->link->reads_in_flight--;
        part->link->bytes_in_flight -= left_bytes;
        part->link->urgent_bytes[fetch->args.urgency] -= left_bytes;
        if (left_bytes > 0) {
            assay_rate_end(part->link, assay_now_us(fetch->client),
                           part->link->bytes_in_flight == 0);
        }
    }
    as_mem_free(read->stage);
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
        if (read->state == READ_REFUSED) {
            read_give(read);
        } else if (read->state == READ_ASKED) {
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

// Into the caller's buffer.
static bool decrypt(assay_part_t *part, uint32_t block, uint32_t layer, const uint8_t *from)
{
    const assay_fetch_t *fetch = part->fetch;
    const as_cipher_extent_t extent = {fetch->keys[block], layer, fetch->extent_bytes};
    if (as_cipher_decrypt(fetch->client->cipher, &extent, from,
                          assay_fetch_place(fetch, block, layer)) == AS_OK) {
        return true;
    }
    AS_ERROR("client", "layer %u of block %u from %s is not what was encrypted: not used", layer,
             fetch->args.first_block + block, part->link->store.data_address);
    as_metric_add(&assay_metrics[ASSAY_METRIC_CIPHER_FAILURES], 1);
    return false;
}

// One extent is here, in the caller's buffer or encrypted in `from`; `crc` is what its bytes sum to.
static void take_extent(assay_part_t *part, uint32_t position, uint32_t layer, uint32_t crc,
                        uint8_t *from)
{
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[position];
    if (as_fault(AS_FAULT_fetch_extent_corrupt)) {
        uint8_t *bytes = from ? from : assay_fetch_place(fetch, block, layer);
        bytes[fetch->extent_bytes / 2] ^= 1;
        crc = as_crc32c(0, bytes, fetch->stored_bytes);
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
    if (from && !decrypt(part, block, layer, from)) {
        assay_fetch_lost(part, block, AS_ERR_CHECKSUM);
        return;
    }
    assay_fetch_arrived(fetch, block, layer);
}

// Encrypted extents, one after the other.
static void take_encrypted(assay_read_t *read, uint8_t *from)
{
    assay_part_t *part = read->part;
    const assay_fetch_t *fetch = part->fetch;
    for (uint32_t i = 0; i < read->count; i++) {
        for (uint32_t l = 0; l < read->layer_count && fetch->state == FETCH_READING; l++) {
            take_extent(part, read->position + i, read->layer + l,
                        as_crc32c(0, from, fetch->stored_bytes), from);
            from += fetch->stored_bytes;
        }
    }
}

// Takes the extents of a read in order: those of `from`, or those that are in their place already.
static void take_read(assay_read_t *read, const uint8_t *from)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    if (fetch->client->cipher) {
        take_encrypted(read, read->stage);
        note_arrived(read, read_bytes(read));
        return;
    }
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
            take_extent(part, position, layer, crc, NULL);
        }
    }
    note_arrived(read, read_bytes(read));
}

// One that came in pieces is whole.
static void take_pieces(assay_read_t *read)
{
    assay_part_t *part = read->part;
    const assay_fetch_t *fetch = part->fetch;
    bool sums = read->scattered && fetch->client->options.verify_checksums;
    take_extent(part, read->position, read->layer,
                sums ? as_crc32c(0, read_place(read), fetch->stored_bytes) : read->crc,
                read->stage);
}

static bool is_piece(const assay_read_t *read, size_t offset, const as_net_msg_t *msg)
{
    size_t extent_bytes = read->part->fetch->stored_bytes;
    return read->count * read->layer_count == 1 && msg->data && offset <= extent_bytes &&
           msg->data_bytes <= extent_bytes - offset &&
           msg->data_bytes <= extent_bytes - read->arrived_bytes;
}

// Pieces that come in order are summed as they are copied, others all together. That they do not
// overlap is the store's word: then the sum tells.
static void take_piece(assay_read_t *read, size_t offset, const as_net_msg_t *msg)
{
    uint8_t *to = read_place(read);
    read->scattered |= offset != read->arrived_bytes;
    read->crc = as_crc32c_copy(read->crc, to + offset, msg->data, msg->data_bytes);
    note_arrived(read, msg->data_bytes);
}

// ---- by pointer

void assay_read_copy(assay_part_t *part)
{
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[part->position];
    const uint8_t *from = part->link->local +
                          (fetch->blocks[block].address - part->link->pool_address) +
                          (size_t)part->layer * fetch->stored_bytes;
    if (fetch->client->cipher && !fetch->copied) {
        fetch->copied = as_mem_alloc(fetch->stored_bytes);
        if (!fetch->copied) {
            assay_fetch_lost(part, block, AS_ERR_NO_MEMORY);
            return;
        }
    }
    // What is decrypted must not change meanwhile, so it is copied, too.
    uint8_t *to = fetch->copied ? fetch->copied : assay_fetch_place(fetch, block, part->layer);
    assay_rate_begin(part->link, assay_now_us(fetch->client));
    uint32_t crc = as_crc32c_copy(0, to, from, fetch->stored_bytes);
    assay_rate_arrived(part->link, fetch->stored_bytes);
    assay_rate_end(part->link, assay_now_us(fetch->client), true);
    if (!assay_lease_holds(part)) {
        assay_fetch_lost(part, block, AS_ERR_LEASE);
        return;
    }
    take_extent(part, part->position, part->layer, crc, fetch->copied);
}

// ---- by one-sided read

static as_status_t start_get(assay_read_t *read)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    uint32_t block = part->blocks[read->position];
    uint64_t address = fetch->blocks[block].address + (uint64_t)read->layer * fetch->stored_bytes;
    uint8_t *to = read_place(read);
    read->state = READ_ARRIVING;
    as_status_t status = to ? as_net_get(part->link->conn, part->link->rkey, address, to,
                                         read_bytes(read), on_arrived, read)
                            : AS_ERR_NO_MEMORY;
    fetch->arriving += status == AS_OK;
    return status;
}

// ---- by message

void assay_read_flush(assay_link_t *link)
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
    as_status_t status = assay_call_start(read->part->link, &params, &read->call);
    if (status == AS_OK) {
        read->call->in_pieces = true;
    }
    return status;
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

// The read has ended; unless the store has kept to the protocol, so does the connection.
static void end_data(assay_read_t *read, as_status_t status)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    if (status != AS_OK) {
        lose_read(read, status);
    }
    read_give(read);
    wake_all(fetch);
    if (status == AS_ERR_PROTOCOL) {
        assay_link_fail(part->link, status);
    }
}

// The store has no room to answer, and nobody else has its blocks: it is asked again, as long as a store
// that says nothing would be waited for. False: it is not.
static bool wait_again(assay_read_t *read)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    uint64_t now_us = assay_now_us(fetch->client);
    bool left = read->arrived_bytes > 0;
    for (uint32_t i = 0; i < read->count; i++) {
        left |= assay_candidates_are_left(fetch, part->blocks[read->position + i]);
    }
    read->refused_us = read->refused_us == 0 ? now_us : read->refused_us;
    if (left || fetch->state != FETCH_READING ||
        now_us - read->refused_us >= fetch->client->options.stall_timeout_us) {
        return false;
    }
    read->state = READ_REFUSED;
    part->refused++;
    assay_fetch_later(fetch);
    return true;
}

// The whole answer, in one message.
static void take_answer(assay_read_t *read, as_net_msg_t *msg)
{
    assay_fetch_t *fetch = read->part->fetch;
    bool encrypted = fetch->client->cipher != NULL;
    uint8_t *to = !msg->data || encrypted ? read_place(read) : NULL;
    as_status_t status = to || (msg->data && !encrypted) ? AS_OK : AS_ERR_NO_MEMORY;
    if (status == AS_OK && msg->data) {
        if (encrypted) {
            memcpy(to, msg->data, msg->data_bytes);
        }
        take_read(read, msg->data);
        end_data(read, AS_OK);
        return;
    }
    if (status == AS_OK) {
        status = as_net_msg_recv(msg, to, on_arrived, read);
    }
    fetch->arriving += status == AS_OK;
    if (status != AS_OK) {
        end_data(read, status);
    }
}

static void on_data(void *owner, const void *header, as_net_msg_t *msg)
{
    assay_read_t *read = owner;
    assay_fetch_t *fetch = read->part->fetch;
    const as_wire_data_t *data = header;
    as_status_t status = as_wire_status_to(data->status);
    bool whole = read->arrived_bytes == 0 && msg->data_bytes == read_bytes(read);
    bool piece =
        status == AS_OK && !whole && msg->data_bytes > 0 && is_piece(read, data->offset, msg);
    if (status == AS_OK || status == AS_ERR_BUSY) {
        read->part->progress_us = assay_now_us(fetch->client);
    }
    bool lacks = piece && !read_place(read); // memory
    if (piece && !lacks) {
        take_piece(read, data->offset, msg);
        if (read->arrived_bytes < read_bytes(read)) {
            wake_all(fetch);
            return;
        }
    }
    assay_call_drop(read->call);
    read->call = NULL;
    if (status == AS_ERR_BUSY && msg->data_bytes == 0 && wait_again(read)) {
        return;
    }
    read->state = READ_ARRIVING; // nothing is to be forgotten any more
    if (piece) {
        if (!lacks) {
            take_pieces(read);
        }
        end_data(read, lacks ? AS_ERR_NO_MEMORY : AS_OK);
    } else if (status == AS_OK && whole) {
        take_answer(read, msg);
    } else {
        bool sound = status != AS_OK && msg->data_bytes == 0;
        end_data(read, sound ? status : AS_ERR_PROTOCOL);
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

// ---- starting and watching

bool assay_read_start(assay_part_t *part, uint32_t count, uint32_t layer_count)
{
    assay_fetch_t *fetch = part->fetch;
    assay_read_t *read = read_take(part, count, layer_count);
    if (!read) {
        assay_fetch_later(fetch); // all of the client's are under way
        return false;
    }
    as_status_t status = part->link->rkey ? start_get(read) : start_ask(read);
    if (status == AS_ERR_BUSY) {
        assay_fetch_later(fetch);
    } else if (status != AS_OK) {
        lose_read(read, status);
    }
    if (status != AS_OK) {
        read_give(read);
    }
    return status == AS_OK;
}

// It fits into the READ that is being filled, if any: that carries one lease and so many asks.
static bool fits(const assay_read_t *read)
{
    const as_wire_read_t *asking = &read->part->link->asking;
    return asking->ask_count == 0 ||
           (asking->ask_count < AS_WIRE_ASKS_MAX && asking->lease_id == read->part->lease_id);
}

static void ask_again(assay_read_t *read)
{
    assay_part_t *part = read->part;
    assay_fetch_t *fetch = part->fetch;
    uint64_t now_us = assay_now_us(fetch->client);
    as_status_t status =
        assay_link_is(part->link, read->epoch) ? start_ask(read) : AS_ERR_PEER_LOST;
    read->state = status == AS_OK ? READ_ASKED : READ_REFUSED;
    if (status == AS_OK) {
        part->progress_us = part->outstanding == part->refused ? now_us : part->progress_us;
        part->refused--;
    } else if (status == AS_ERR_BUSY &&
               now_us - read->refused_us < fetch->client->options.stall_timeout_us) {
        assay_fetch_later(fetch); // all calls of the client are under way
    } else {
        lose_read(read, status);
        read_give(read);
    }
}

void assay_read_again(assay_fetch_t *fetch)
{
    assay_read_t *read = fetch->reads;
    while (read && fetch->again_us == 0) {
        assay_read_t *next = read->next;
        if (read->state == READ_REFUSED && !fits(read)) {
            assay_read_flush(read->part->link);
            next = fetch->reads; // a link that fails changes the list
        } else if (read->state == READ_REFUSED) {
            ask_again(read);
        }
        read = next;
    }
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        assay_read_flush(part->link);
    }
}

void assay_read_check_stalls(assay_fetch_t *fetch, uint64_t now_us)
{
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        bool stalled = part->outstanding > part->refused &&
                       now_us - part->progress_us >= fetch->client->options.stall_timeout_us;
        if (stalled && assay_link_is(part->link, part->epoch)) {
            assay_link_fail(part->link, AS_ERR_DEADLINE);
        }
    }
}
