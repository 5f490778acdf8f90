// SPDX-License-Identifier: Apache-2.0
// The other stores: which there are, where the copies of a block belong, and handing one to them.
//
// The scheduler's answers tell the stores. Those that are alive and do not drain are where blocks are
// placed, this one among them, by the client's own rule (client/place.c): so every store computes
// which ones have the copies of a block, and where one is missing.
//
// A block is handed over by an ordinary put of the client library, with the checksums that it was
// stored with. A store that has it says EXISTS, and nothing is sent; so handing over is also how a
// store asks whether others have a block, and two that hand over the same one send it once. Where
// stores ask for tokens, each signs one of its own, with the cluster's key.
#include <string.h>

#include "client/client.h"
#include "common/assert.h"
#include "common/log.h"
#include "kvstore/disk/image.h"
#include "kvstore/store.h"

#define PUSH_DEADLINE_US 5000000u // of one block
#define TOKEN_S          600u     // that a token of ours holds
#define TOKEN_RENEW_US   60000000u

typedef struct push {
    kvs_store_t *store;
    kvs_block_t *block;     // pinned; NULL: of an image
    uint32_t wanted, asked; // copies
    assay_put_copies_t each;
    kvs_push_done_fn done;
    void *ctx;
} push_t;

struct kvs_peers {
    assay_store_t members[ASSAY_STORES_MAX]; // where blocks are placed
    uint32_t count;
    uint64_t present[ASSAY_STORES_MAX]; // all that are not dead
    uint32_t present_count;
    bool doubtful; // one of them is suspect
    uint32_t replicas;
    assay_client_t *client;  // made when it is first needed
    uint64_t token_renew_us; // the client is given a new token then, or when another key signs
    uint32_t token_signer;
    as_pool_t *pushes;
    uint32_t under_way; // pushes
};

as_status_t kvs_peers_alloc(kvs_store_t *store)
{
    kvs_peers_t *peers = as_mem_zalloc(1, sizeof(*peers));
    if (!peers) {
        return AS_ERR_NO_MEMORY;
    }
    store->peers = peers;
    peers->replicas = 1;
    return as_pool_alloc("kvs pushes", sizeof(push_t), KVS_PUSHES_MAX, &peers->pushes);
}

void kvs_peers_free(kvs_store_t *store)
{
    kvs_peers_t *peers = store->peers;
    if (!peers) {
        return;
    }
    assay_client_free(peers->client); // what is under way is called back now
    AS_ASSERT(peers->under_way == 0);
    as_pool_free(peers->pushes);
    as_mem_free(peers);
    store->peers = NULL;
}

// ---- which there are

// The client puts to the others only.
static void tell_client(kvs_store_t *store)
{
    const kvs_peers_t *peers = store->peers;
    assay_store_t others[ASSAY_STORES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < peers->count; i++) {
        if (peers->members[i].node_id != store->node_id) {
            others[count++] = peers->members[i];
        }
    }
    if (peers->client) {
        assay_client_set_stores(peers->client, others, count);
    }
}

static void add_member(kvs_peers_t *peers, const Assay__StoreNode *node)
{
    size_t bytes = strlen(node->data_address) + 1;
    if (peers->count < ASSAY_STORES_MAX && bytes <= ASSAY_ADDRESS_BYTES_MAX) {
        assay_store_t *member = &peers->members[peers->count++];
        *member = (assay_store_t){.node_id = node->node_id, .capacity_bytes = node->capacity_bytes};
        memcpy(member->data_address, node->data_address, bytes);
    }
}

// Who of `ids` is not in `others`.
static bool has_gone(const uint64_t *ids, uint32_t count, const uint64_t *others,
                     uint32_t other_count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = 0;
        while (at < other_count && others[at] != ids[i]) {
            at++;
        }
        if (at == other_count) {
            return true;
        }
    }
    return false;
}

static uint32_t member_ids(const kvs_peers_t *peers, uint64_t *ids)
{
    for (uint32_t i = 0; i < peers->count; i++) {
        ids[i] = peers->members[i].node_id;
    }
    return peers->count;
}

// Other stores admit us as a peer, which names the tenant of each block.
static void token_renew(kvs_store_t *store)
{
    kvs_peers_t *peers = store->peers;
    uint64_t now_us = as_loop_now_us(store->options.loop);
    as_token_sealed_t token;
    bool due = now_us >= peers->token_renew_us || kvs_admit_signer(store) != peers->token_signer;
    if (due && kvs_admit_peer(store, TOKEN_S, &token)) {
        assay_client_set_token(peers->client, &token);
        peers->token_signer = kvs_admit_signer(store);
        peers->token_renew_us = now_us + TOKEN_RENEW_US;
    }
}

void kvs_peers_set(kvs_store_t *store, Assay__StoreNode *const *nodes, size_t count)
{
    kvs_peers_t *peers = store->peers;
    uint64_t members[ASSAY_STORES_MAX], placed[ASSAY_STORES_MAX], present[ASSAY_STORES_MAX];
    uint32_t present_count = 0, before = member_ids(peers, members);
    bool drains = false;
    peers->count = 0;
    peers->doubtful = false;
    for (size_t i = 0; i < count && present_count < ASSAY_STORES_MAX; i++) {
        const Assay__StoreNode *node = nodes[i];
        present[present_count++] = node->node_id;
        peers->doubtful |= node->state == ASSAY__NODE_STATE__NODE_STATE_SUSPECT;
        drains |= node->node_id == store->node_id && node->draining;
        if (node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE && !node->draining) {
            add_member(peers, node);
        }
    }
    uint32_t after = member_ids(peers, placed);
    bool changed =
        has_gone(members, before, placed, after) || has_gone(placed, after, members, before);
    bool lost = has_gone(peers->present, peers->present_count, present, present_count);
    memcpy(peers->present, present, present_count * sizeof(present[0]));
    peers->present_count = present_count;
    tell_client(store);
    if (peers->client) {
        token_renew(store); // links that lie idle are not to end by it
    }
    kvs_drain_on_peers(store, drains);
    kvs_repair_on_peers(store, changed, lost);
}

void kvs_peers_set_replicas(kvs_store_t *store, uint32_t replicas)
{
    replicas = replicas > 0 ? replicas : 1; // 0: a scheduler that knows of none
    store->peers->replicas = replicas < ASSAY_REPLICAS_MAX ? replicas : ASSAY_REPLICAS_MAX;
}

uint32_t kvs_peers_replicas(const kvs_store_t *store)
{
    return store->peers->replicas;
}

uint32_t kvs_peers_others(const kvs_store_t *store)
{
    const kvs_peers_t *peers = store->peers;
    uint32_t others = 0;
    for (uint32_t i = 0; i < peers->count; i++) {
        others += peers->members[i].node_id != store->node_id;
    }
    return others;
}

bool kvs_peers_all_drain(const kvs_store_t *store)
{
    const kvs_peers_t *peers = store->peers;
    return peers->present_count > 1 && !peers->doubtful && kvs_peers_others(store) == 0;
}

bool kvs_peers_doubtful(const kvs_store_t *store)
{
    return store->peers->doubtful;
}

static as_key_t key_of_place(uint64_t place)
{
    as_key_t key = {{0}};
    memcpy(key.bytes, &place, sizeof(place)); // as_key_hash of it is the place
    return key;
}

kvs_share_t kvs_peers_share(const kvs_store_t *store, uint64_t place)
{
    const kvs_peers_t *peers = store->peers;
    uint64_t ids[ASSAY_STORES_MAX];
    const as_key_t key = key_of_place(place);
    uint32_t ranked = assay_rank(peers->members, peers->count, &key, ids, ASSAY_STORES_MAX);
    uint32_t rank = 0;
    while (rank < ranked && ids[rank] != store->node_id) {
        rank++;
    }
    bool is_placed = rank < ranked && rank < peers->replicas && !kvs_drain_is_on(store);
    return (kvs_share_t){rank, is_placed ? peers->replicas - 1 : peers->replicas};
}

// ---- handing a block over

static as_status_t client_make(kvs_store_t *store)
{
    assay_client_options_t options;
    assay_client_options_init(&options);
    options.loop = store->options.loop;
    options.net_alloc = store->options.net_alloc;
    options.net_ctx = store->options.peer_net_ctx;
    options.puts_max = KVS_PUSHES_MAX;
    options.fetches_max = 1;
    as_status_t status = assay_client_alloc(&options, &store->peers->client);
    if (status == AS_OK) {
        tell_client(store);
    }
    return status;
}

// Of all copies: what may be tried again goes before what a store has decided.
static as_status_t push_status(const push_t *push, as_status_t of_put)
{
    uint32_t kept = 0, dropped = 0, refused = 0;
    for (uint32_t i = 0; i < push->each.count; i++) {
        as_status_t status = push->each.statuses[i];
        kept += status == AS_OK || status == AS_ERR_EXISTS;
        dropped += status == AS_ERR_NOT_FOUND;
        refused += status == AS_ERR_CONFLICT || status == AS_ERR_LIMIT;
    }
    uint32_t decided = kept + dropped + refused;
    if (decided < push->wanted) {
        return decided > 0 ? AS_ERR_BUSY : of_put; // some store did not take it
    }
    return dropped > 0 ? AS_ERR_NOT_FOUND : of_put;
}

static void on_put(void *ctx, as_status_t status, uint64_t node_id)
{
    (void)node_id;
    const push_t push = *(push_t *)ctx;
    kvs_store_t *store = push.store;
    as_pool_give(store->peers->pushes, ctx);
    store->peers->under_way--;
    push.done(push.ctx, push.block, push_status(&push, status), push.each.sent);
    if (push.block) {
        kvs_index_unpin(store->index, push.block);
    }
}

static push_t *push_make(kvs_store_t *store, const kvs_spec_t *spec, as_status_t *status_p)
{
    kvs_peers_t *peers = store->peers;
    if (spec->expires_us != 0 && kvs_expiry_left_us(store, spec->expires_us) == 0) {
        *status_p = AS_ERR_NOT_FOUND;
        return NULL;
    }
    *status_p = peers->client ? AS_OK : client_make(store);
    push_t *push = *status_p == AS_OK ? as_pool_take(peers->pushes) : NULL;
    if (!push && *status_p == AS_OK) {
        *status_p = AS_ERR_BUSY;
    }
    return push;
}

// What a store that is about to end says of a block.
static uint32_t flags_of(const kvs_block_t *block)
{
    uint32_t pin = block->guard == KVS_GUARD_HARD   ? AS_WIRE_PIN_HARD
                   : block->guard == KVS_GUARD_SOFT ? AS_WIRE_PIN_SOFT
                                                    : 0;
    return pin | (block->heat > 0 ? AS_WIRE_HOT : 0);
}

static as_status_t push_start(push_t *push, const kvs_spec_t *spec, const uint8_t *image)
{
    kvs_store_t *store = push->store;
    kvs_peers_t *peers = store->peers;
    uint64_t left_ms = (kvs_expiry_left_us(store, spec->expires_us) + 999) / 1000;
    if (spec->expires_us != 0 && left_ms == 0) { // a time to live of 0 would be for ever
        as_pool_give(peers->pushes, push);
        return AS_ERR_NOT_FOUND;
    }
    const assay_put_args_t args = {
        .shape = {spec->layers, 1, 1, 16, spec->tokens, AS_ELEMENT_F16},
        .namespace_key = spec->namespace_key,
        .key = spec->key,
        .parent = spec->parent,
        .run_key = key_of_place(spec->place),
        .token_count = spec->tokens,
        .block = image,
        .crcs = (const uint32_t *)(const void *)(image + kvs_image_crcs_at(spec)),
        .extent_bytes = spec->extent_bytes,
        .copy_flags = push->block && kvs_drain_is_on(store) ? flags_of(push->block) : 0,
        .tenant = spec->tenant,
        .ttl_ms = left_ms < UINT32_MAX ? (uint32_t)left_ms : UINT32_MAX,
        .replicas = push->asked,
        .each_p = &push->each,
        .deadline_us = PUSH_DEADLINE_US,
        .on_done = on_put,
        .ctx = push,
    };
    assay_put_t *put;
    token_renew(store);
    as_status_t status = assay_put_start(peers->client, &args, &put);
    if (status == AS_OK) {
        peers->under_way++;
    } else {
        as_pool_give(peers->pushes, push);
    }
    return status;
}

static uint32_t copies_of(const kvs_store_t *store, const kvs_spec_t *spec)
{
    uint32_t others = kvs_peers_others(store), copies = kvs_peers_share(store, spec->place).copies;
    return copies < others ? copies : others;
}

static push_t push_of(kvs_store_t *store, const kvs_spec_t *spec, uint32_t spare)
{
    uint32_t copies = copies_of(store, spec), others = kvs_peers_others(store);
    uint32_t asked = copies + spare < others ? copies + spare : others;
    return (push_t){.store = store, .wanted = copies, .asked = asked};
}

as_status_t kvs_push(kvs_store_t *store, kvs_block_t *block, uint32_t spare, kvs_push_done_fn done,
                     void *ctx)
{
    as_status_t status;
    const kvs_spec_t spec = kvs_index_spec(store->index, block);
    push_t *push = push_make(store, &spec, &status);
    if (!push) {
        return status;
    }
    *push = push_of(store, &spec, spare);
    push->block = block;
    push->done = done;
    push->ctx = ctx;
    status = push_start(push, &spec, kvs_index_extent(store->index, block, 0));
    if (status == AS_OK) {
        kvs_index_pin(store->index, block);
    }
    return status;
}

as_status_t kvs_push_image(kvs_store_t *store, const kvs_push_image_t *params)
{
    as_status_t status;
    push_t *push = push_make(store, params->spec, &status);
    if (!push) {
        return status;
    }
    *push = push_of(store, params->spec, params->spare);
    push->done = params->done;
    push->ctx = params->ctx;
    return push_start(push, params->spec, params->image);
}
