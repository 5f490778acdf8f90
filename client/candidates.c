// SPDX-License-Identifier: Apache-2.0
// Who may have a block, in the order in which they are asked: the node that the caller names, then
// the nodes of its copies by placement, and one more, where a copy was or will be when the set of
// stores has just changed. That last one is asked only when a store failed, not when all said no:
// a block that is stored nowhere must not cost more questions than it has copies.
//
// Where a fetch begins inside a run, or its keys need be no chain, the key that places a run is not
// known. Those blocks are asked of every store, once; the first that has one serves it, and the others that do are its
// next candidates.
#include "client/internal.h"

assay_link_t assay_everyone;

uint32_t assay_candidates_max(const assay_client_t *client)
{
    return client->replicas + 2;
}

static uint64_t *candidates_of(assay_fetch_t *fetch, uint32_t block)
{
    return &fetch->candidates[(size_t)block * fetch->candidates_max];
}

// The candidate's number, or NO_BLOCK.
static uint32_t number_of(assay_fetch_t *fetch, uint32_t block, uint64_t node_id)
{
    const uint64_t *candidates = candidates_of(fetch, block);
    for (uint32_t i = 0; i < fetch->blocks[block].candidates; i++) {
        if (candidates[i] == node_id) {
            return i;
        }
    }
    return NO_BLOCK;
}

static bool add(assay_fetch_t *fetch, uint32_t block, uint64_t node_id)
{
    assay_block_t *b = &fetch->blocks[block];
    if (b->candidates == fetch->candidates_max || number_of(fetch, block, node_id) != NO_BLOCK) {
        return false;
    }
    candidates_of(fetch, block)[b->candidates++] = node_id;
    return true;
}

void assay_candidates_list(assay_fetch_t *fetch, const uint64_t *node_ids)
{
    const assay_client_t *client = fetch->client;
    uint64_t ranked[ASSAY_REPLICAS_MAX + 1];
    uint32_t count = 0;
    for (uint32_t i = 0; i < fetch->args.block_count; i++) {
        assay_block_t *block = &fetch->blocks[i];
        uint32_t in_run = (uint32_t)((fetch->args.first_block + (uint64_t)i) % AS_RUN_BLOCKS);
        block->placed = in_run <= i && !fetch->args.statuses;
        if (in_run == 0) {
            count = assay_client_rank(client, &fetch->keys[i], ranked, client->replicas + 1);
        }
        if (node_ids && assay_link_find(client, node_ids[i])) {
            add(fetch, i, node_ids[i]);
        }
        for (uint32_t j = 0; block->placed && j < count && j < client->replicas; j++) {
            add(fetch, i, ranked[j]);
        }
        block->sure = block->candidates;
        if (block->placed && count > client->replicas) {
            add(fetch, i, ranked[client->replicas]);
        }
    }
}

static void count_fallback(as_status_t status)
{
    as_metric_add(&assay_metrics[status == AS_OK             ? ASSAY_METRIC_FALLBACKS_MISSING
                                 : status == AS_ERR_CHECKSUM ? ASSAY_METRIC_FALLBACKS_CHECKSUM
                                 : status == AS_ERR_LEASE    ? ASSAY_METRIC_FALLBACKS_LEASE
                                                             : ASSAY_METRIC_FALLBACKS_STORE],
                  1);
}

_Static_assert(ASSAY_REPLICAS_MAX + 2 <= 16, "a bit of `bad` for each candidate");

static bool is_bad(const assay_block_t *block, uint32_t candidate)
{
    return (block->bad >> candidate & 1) != 0;
}

assay_link_t *assay_candidates_next(assay_fetch_t *fetch, uint32_t block)
{
    assay_block_t *b = &fetch->blocks[block];
    while (b->tries < (b->lost ? b->candidates : b->sure)) {
        if (is_bad(b, b->tries)) {
            b->tries++;
            continue;
        }
        assay_link_t *link = assay_link_find(fetch->client, candidates_of(fetch, block)[b->tries]);
        if (b->tries++ > 0) {
            count_fallback(b->status);
        }
        if (link) {
            return link;
        }
        b->lost = true; // it has left the cluster
    }
    if (!b->placed && b->everywhere == ASK_NOT) {
        b->everywhere = ASK_UNDER_WAY;
        return &assay_everyone;
    }
    return NULL;
}

bool assay_candidates_are_left(const assay_fetch_t *fetch, uint32_t block)
{
    const assay_block_t *b = &fetch->blocks[block];
    uint32_t i = b->tries;
    while (i < b->sure && is_bad(b, i)) {
        i++;
    }
    return i < b->sure;
}

void assay_candidates_fail(assay_fetch_t *fetch, uint32_t block, uint64_t node_id)
{
    uint32_t number = number_of(fetch, block, node_id);
    if (number != NO_BLOCK) {
        fetch->blocks[block].bad |= (uint16_t)(1u << number);
    }
}

bool assay_candidates_take(assay_fetch_t *fetch, uint32_t block, uint64_t node_id)
{
    assay_block_t *b = &fetch->blocks[block];
    // Bytes that its last store still sends must not fall on those of the next: that one is asked later.
    bool is_free = !b->part && b->reads == 0;
    if (b->everywhere == ASK_UNDER_WAY) {
        if (number_of(fetch, block, node_id) < b->tries) {
            return false; // it has failed before
        }
        bool added = add(fetch, block, node_id);
        b->sure = b->candidates;
        b->tries += added && is_free;
    }
    return is_free;
}
