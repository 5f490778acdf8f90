// SPDX-License-Identifier: Apache-2.0
// The stage: memory that stores on this host map, and out of which they copy the blocks that are put.
//
// A block is copied onto the stage in the pass that sums it, and its place is free again when every
// store has answered. Of one that a store has not answered, which may be reading it yet, the place rests
// for LINGER_US: later the store has given up, or finds that the bytes are not the ones that were
// promised. Where there is no room, or the store is on another host, the bytes go by message.
#include "client/internal.h"
#include "common/log.h"

#define PIECES_MAX 256u
#define LINGER_US  10000000u
#define ALIGN      4096u

// Pieces in use or at rest, by their place.
typedef struct piece {
    size_t offset, bytes;
    bool used;
    uint64_t free_us; // when not used
} piece_t;

struct assay_stage {
    as_shared_t shared;
    uint32_t count;
    piece_t pieces[PIECES_MAX];
};

static assay_stage_t *stage_of(assay_client_t *client)
{
    size_t bytes = client->options.stage_bytes;
    if (client->stage || client->stage_failed || bytes == 0 || !as_shared_is_allowed()) {
        return client->stage;
    }
    assay_stage_t *stage = as_mem_zalloc(1, sizeof(*stage));
    client->stage_failed = !stage || as_shared_alloc(&stage->shared, bytes) != AS_OK;
    if (!client->stage_failed && as_shared_back(&stage->shared) != AS_OK) {
        client->stage_failed = true;
        as_shared_free(&stage->shared);
    }
    if (client->stage_failed) {
        AS_WARN("client", "no %zu bytes of shared memory: puts go by messages", bytes);
        as_mem_free(stage);
        return NULL;
    }
    client->stage = stage;
    return stage;
}

void assay_stage_free(assay_client_t *client)
{
    if (client->stage) {
        as_shared_free(&client->stage->shared);
        as_mem_free(client->stage);
        client->stage = NULL;
    }
}

// ---- offering it to a store

static as_status_t send_share(assay_call_t *call)
{
    const assay_stage_t *stage = call->link->client->stage;
    const as_wire_share_t ask = {.head = as_wire_head(AS_WIRE_SHARE, assay_call_id(call)),
                                 .bytes = stage->shared.bytes,
                                 .name = as_shared_name(&stage->shared)};
    return as_net_send(call->link->conn, &ask, sizeof(ask), NULL, 0, NULL, NULL);
}

static void on_shared(void *owner, const void *header, as_net_msg_t *msg)
{
    (void)msg;
    assay_link_t *link = owner;
    link->sharing = NULL;
    if (((const as_wire_result_t *)header)->status == AS_WIRE_OK) {
        link->stage = LINK_STAGE_SHARED;
    }
}

static void on_share_failed(void *owner, as_status_t status)
{
    (void)status; // the connection is gone: the next one is asked anew
    ((assay_link_t *)owner)->sharing = NULL;
}

bool assay_stage_offer(assay_link_t *link)
{
    if (link->state == LINK_READY && link->stage == LINK_STAGE_UNKNOWN) {
        link->stage = LINK_STAGE_ASKED; // once on a connection
        const assay_call_params_t params = {link, AS_WIRE_SHARED, send_share, on_shared,
                                            on_share_failed};
        if (stage_of(link->client) && assay_call_start(link, &params, &link->sharing) != AS_OK) {
            link->sharing = NULL;
            link->stage = LINK_STAGE_UNKNOWN; // with the next put
        }
    }
    return link->state == LINK_READY && link->stage == LINK_STAGE_SHARED;
}

// ---- its pieces

static void sweep(assay_stage_t *stage, uint64_t now_us)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stage->count; i++) {
        const piece_t *piece = &stage->pieces[i];
        if (piece->used || piece->free_us > now_us) {
            stage->pieces[kept++] = *piece;
        }
    }
    stage->count = kept;
}

// The first gap: so the same lines of the caches are used again and again.
void *assay_stage_take(assay_client_t *client, size_t bytes)
{
    assay_stage_t *stage = client->stage;
    size_t offset = 0, whole = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!stage || whole > stage->shared.bytes) {
        return NULL;
    }
    sweep(stage, assay_now_us(client));
    uint32_t at = 0;
    while (at < stage->count && stage->pieces[at].offset - offset < whole) {
        offset = stage->pieces[at].offset + stage->pieces[at].bytes;
        at++;
    }
    if (stage->count == PIECES_MAX || stage->shared.bytes - offset < whole) {
        return NULL;
    }
    for (uint32_t i = stage->count++; i > at; i--) {
        stage->pieces[i] = stage->pieces[i - 1];
    }
    stage->pieces[at] = (piece_t){.offset = offset, .bytes = whole, .used = true};
    return (uint8_t *)stage->shared.memory + offset;
}

uint64_t assay_stage_offset(const assay_client_t *client, const void *block)
{
    return (uint64_t)((const uint8_t *)block - (const uint8_t *)client->stage->shared.memory);
}

void assay_stage_give(assay_client_t *client, const void *block, bool may_be_read)
{
    assay_stage_t *stage = client->stage;
    uint64_t offset = assay_stage_offset(client, block);
    for (uint32_t i = 0; i < stage->count; i++) {
        piece_t *piece = &stage->pieces[i];
        if (piece->used && piece->offset == offset) {
            piece->used = false;
            piece->free_us = may_be_read ? assay_now_us(client) + LINGER_US : 0;
        }
    }
}
