// SPDX-License-Identifier: Apache-2.0
// Stage "serve": LOCATE. The blocks that it names are found and leased, and their places told.
//
//   FREE -> receiving its keys -> [waiting ->] being answered -> FREE
//
// It waits for blocks that are on disk only (promote.c), and for room for its answer: no longer than
// KVS_LOCATE_WAIT_US, then it is answered with what is there. A block that is to come is told as BUSY: its
// client asks again, for as long as it has time.
//
// Those that wait have turns: the n-th of a connection has its turn with the n-th of every other, so one
// that asks for much waits longer than one that asks for little.
#include "kvstore/locate.h"

#include <string.h>

#include "common/assert.h"
#include "common/fault.h"
#include "common/log.h"

// A block from disk that found no room is tried again so soon: leases end, and nobody tells.
#define AGAIN_US 2000u
// Of those that wait, so many are looked at for which there is no room: those behind them may be
// smaller, or of owners that have room, and a turn stays short.
#define BLOCKED_MAX 8u

static void on_wake(void *ctx);
static void on_again(void *ctx);

as_status_t kvs_locates_alloc(kvs_store_t *store)
{
    const size_t keys = AS_WIRE_KEYS_MAX * sizeof(as_key_t);
    const size_t held = AS_WIRE_KEYS_MAX * sizeof(kvs_block_t *);
    const size_t each = keys + held + AS_WIRE_KEYS_MAX;
    kvs_locates_t *locates = as_mem_zalloc(1, sizeof(*locates));
    if (!locates) {
        return AS_ERR_NO_MEMORY;
    }
    store->locates = locates;
    locates->wake = (as_task_t){.fn = on_wake, .ctx = store};
    locates->memory =
        as_mem_alloc(KVS_LOCATES_MAX * each + KVS_ANSWERS_MAX * AS_WIRE_LOCATED_BYTES_MAX);
    if (!locates->memory) {
        return AS_ERR_NO_MEMORY;
    }
    uint8_t *at = locates->memory;
    for (uint32_t i = 0; i < KVS_LOCATES_MAX; i++, at += each) {
        kvs_locate_t *locate = &locates->slots[i];
        locate->keys = (as_key_t *)(void *)at;
        locate->held = (kvs_block_t **)(void *)(at + keys);
        locate->sought = at + keys + held;
        locate->next = locates->unused;
        locates->unused = locate;
        locates->left++;
    }
    for (; locates->answers_left < KVS_ANSWERS_MAX; at += AS_WIRE_LOCATED_BYTES_MAX) {
        locates->answers[locates->answers_left++] = at;
    }
    as_status_t status = as_timer_alloc(store->options.loop, on_again, store, &locates->again);
    return status == AS_OK ? kvs_promotions_alloc(store) : status;
}

void kvs_locates_free(kvs_store_t *store)
{
    kvs_locates_t *locates = store->locates;
    if (locates) {
        as_timer_free(locates->again);
        as_loop_unpost(store->options.loop, &locates->wake);
        as_mem_free(locates->memory);
        as_mem_free(locates);
        store->locates = NULL;
    }
}

// ---- their life

static kvs_locate_t *locate_take(kvs_conn_t *conn, const as_wire_locate_t *ask, uint32_t tenant)
{
    kvs_locates_t *locates = conn->store->locates;
    kvs_locate_t *locate = conn->locates < locates->left ? locates->unused : NULL;
    if (locate) {
        locates->unused = locate->next;
        locates->left--;
        conn->locates++;
        locate->conn = conn;
        locate->header = *ask;
        locate->header.tenant = tenant;
        locate->cold = locate->blocked = false;
        locate->promoting = locate->held_count = 0;
        kvs_conn_hold(conn);
    }
    return locate;
}

static void wait_no_more(kvs_locate_t *locate)
{
    kvs_locate_t **link = &locate->conn->store->locates->first;
    kvs_promote_end(locate);
    if (!locate->waiting) {
        return;
    }
    while (*link != locate) {
        link = &(*link)->next;
    }
    *link = locate->next;
    locate->waiting = false;
    locate->conn->locates_waiting--;
}

static void locate_give(kvs_locate_t *locate)
{
    kvs_conn_t *conn = locate->conn;
    kvs_locates_t *locates = conn->store->locates;
    wait_no_more(locate);
    if (locate->answer) {
        locates->answers[locates->answers_left++] = locate->answer;
        locate->answer = NULL;
        conn->answers--;
        kvs_locates_wake(conn->store);
    }
    locate->conn = NULL;
    locate->next = locates->unused;
    locates->unused = locate;
    locates->left++;
    conn->locates--;
    kvs_conn_drop(conn);
}

// Refused, as a whole; its client asks again.
static void refuse(kvs_conn_t *conn, uint64_t request, as_status_t status)
{
    const as_wire_located_t reply = {.head = as_wire_head(AS_WIRE_LOCATED, request),
                                     .status = as_wire_status_of(status)};
    as_metric_add(&kvs_metrics[KVS_METRIC_BUSY], 1);
    kvs_conn_reply(conn, &reply, sizeof(reply));
}

// ---- answering

// A block on disk only: found by a question without a lease, which is only a look.
static const kvs_spec_t *look_on_disk(const kvs_locate_t *locate, uint32_t i)
{
    return locate->header.lease_ms == 0
               ? kvs_tier_find(locate->conn->store, &locate->keys[i], kvs_locate_realm(locate))
               : NULL;
}

// Finds the blocks and leases them; an error leaves none leased.
static as_status_t locate_find(kvs_locate_t *locate, kvs_block_t **blocks, as_wire_located_t *reply)
{
    kvs_conn_t *conn = locate->conn;
    kvs_store_t *store = conn->store;
    uint32_t hits = 0, misses = 0;
    bool any = false;
    for (uint32_t i = 0; i < locate->header.key_count; i++) {
        kvs_expire_key(store, &locate->keys[i], kvs_locate_realm(locate));
        blocks[i] = kvs_index_find(store->index, &locate->keys[i], kvs_locate_realm(locate));
        any |= blocks[i] != NULL;
        if (blocks[i] || look_on_disk(locate, i)) {
            hits++;
        } else {
            misses += !kvs_promote_is_to_come(locate, i);
        }
    }
    kvs_count(&store->counted.hits, KVS_METRIC_HITS, hits);
    kvs_count(&store->counted.misses, KVS_METRIC_MISSES, misses);
    if (!any || locate->header.lease_ms == 0) {
        return AS_OK;
    }
    uint64_t lease_us = kvs_lease_time_us(store, locate->header.lease_ms);
    uint64_t now_us = as_loop_now_us(store->options.loop);
    as_status_t status =
        kvs_lease_begin(store->leases, &conn->leases, blocks, locate->header.key_count,
                        now_us + lease_us + kvs_lease_grace_us(lease_us), &reply->lease_id);
    if (status == AS_OK) {
        reply->lease_ms = (uint32_t)(lease_us / 1000);
        kvs_store_watch(store);
    }
    return status;
}

// Where a block lies is told only to who may read it there: it depends on the blocks of all tenants.
static uint64_t address_of(const kvs_conn_t *conn, const kvs_block_t *block)
{
    return conn->rights & AS_TOKEN_DIRECT
               ? (uint64_t)(uintptr_t)kvs_index_extent(conn->store->index, block, 0)
               : 0;
}

// Of a block that is not in RAM.
static as_wire_place_t place_without(const kvs_locate_t *locate, uint32_t i)
{
    const kvs_spec_t *on_disk = look_on_disk(locate, i);
    if (on_disk) {
        return (as_wire_place_t){.status = AS_WIRE_OK,
                                 .layers = on_disk->layers,
                                 .extent_bytes = on_disk->extent_bytes,
                                 .tokens = on_disk->tokens};
    }
    bool is_to_come = kvs_promote_is_to_come(locate, i);
    return (as_wire_place_t){.status = is_to_come ? AS_WIRE_BUSY : AS_WIRE_NOT_FOUND};
}

// Writes places and checksums behind each other; returns their bytes.
static size_t locate_write(const kvs_locate_t *locate, kvs_block_t *const *blocks,
                           as_wire_located_t *reply)
{
    const kvs_store_t *store = locate->conn->store;
    uint8_t *places = locate->answer;
    uint8_t *crcs = places + locate->header.key_count * sizeof(as_wire_place_t);
    for (uint32_t i = 0; i < locate->header.key_count; i++) {
        const kvs_block_t *block = blocks[i];
        as_wire_place_t place;
        if (block) {
            place = (as_wire_place_t){
                .status = AS_WIRE_OK,
                .layers = block->layers,
                .extent_bytes = block->extent_bytes,
                .tokens = block->tokens,
                .address = address_of(locate->conn, block),
                .crc_first = reply->crc_count,
            };
            memcpy(crcs + reply->crc_count * sizeof(uint32_t), kvs_index_crcs(store->index, block),
                   block->layers * sizeof(uint32_t));
            reply->crc_count += block->layers;
        } else {
            place = place_without(locate, i);
        }
        memcpy(places + i * sizeof(place), &place, sizeof(place));
    }
    reply->key_count = locate->header.key_count;
    return locate->header.key_count * sizeof(as_wire_place_t) + reply->crc_count * sizeof(uint32_t);
}

static void on_located_sent(void *ctx, as_status_t status)
{
    kvs_locate_t *locate = ctx;
    kvs_conn_awaited(locate->conn, status == AS_OK);
    locate_give(locate);
}

// False: its connection is gone, or was denied since it asked.
static bool may_be_answered(const kvs_locate_t *locate)
{
    const kvs_conn_t *conn = locate->conn;
    bool is_its_own = conn->rights & AS_TOKEN_PEER || locate->header.tenant == conn->tenant;
    return conn->net && conn->greeted && is_its_own;
}

// False: there is no room for the answer now.
static bool locate_answer(kvs_locate_t *locate)
{
    kvs_conn_t *conn = locate->conn;
    kvs_locates_t *locates = conn->store->locates;
    if (!may_be_answered(locate)) {
        locate_give(locate);
        return true;
    }
    if (conn->answers >= locates->answers_left) {
        return false;
    }
    // One that was warm held nothing while it waited: what is on disk only by now is to come.
    if (locate->waiting && !locate->cold) {
        kvs_promote_begin(locate);
    }
    locate->answer = locates->answers[--locates->answers_left];
    conn->answers++;
    kvs_block_t *blocks[AS_WIRE_KEYS_MAX];
    as_wire_located_t reply = {.head = as_wire_head(AS_WIRE_LOCATED, locate->header.head.request)};
    as_status_t status = locate_find(locate, blocks, &reply);
    if (status != AS_OK) {
        refuse(conn, locate->header.head.request, status);
        locate_give(locate);
        return true;
    }
    size_t bytes = locate_write(locate, blocks, &reply);
    wait_no_more(locate); // what it held is leased
    kvs_conn_await(conn);
    if (as_net_send(conn->net, &reply, sizeof(reply), locate->answer, bytes, on_located_sent,
                    locate) != AS_OK) {
        kvs_conn_awaited(conn, false);
        kvs_lease_end(conn->store->leases, &conn->leases, reply.lease_id);
        locate_give(locate);
    }
    return true;
}

// ---- waiting

static void wait_turn(kvs_locate_t *locate)
{
    kvs_conn_t *conn = locate->conn;
    kvs_locates_t *locates = conn->store->locates;
    locate->waiting = true;
    locate->wait_until_us = as_loop_now_us(conn->store->options.loop) + KVS_LOCATE_WAIT_US;
    locate->turn = (locates->first ? locates->first->turn : 0) + conn->locates_waiting++;
    kvs_locate_t **link = &locates->first;
    while (*link && (*link)->turn <= locate->turn) {
        link = &(*link)->next;
    }
    locate->next = *link;
    *link = locate;
    kvs_store_watch(conn->store);
    kvs_locates_wake(conn->store);
}

void kvs_locates_wake(kvs_store_t *store)
{
    if (store->locates->first) {
        as_loop_post(store->options.loop, &store->locates->wake);
    }
}

// What it waits for is brought, as far as there is room. Where there was none, what wakes the others has
// made none: to look for it each time, over all that is held, would take the loop.
static kvs_promoted_t bring(kvs_locate_t *locate, uint32_t blocked)
{
    if (!may_be_answered(locate)) {
        return KVS_PROMOTED_ALL;
    }
    if (locate->blocked || blocked >= BLOCKED_MAX) {
        return KVS_PROMOTED_BLOCKED;
    }
    kvs_promoted_t promoted = kvs_promote_some(locate);
    locate->blocked =
        promoted == KVS_PROMOTED_BLOCKED && !kvs_promotions_are_full(locate->conn->store);
    return promoted;
}

static void on_wake(void *ctx)
{
    kvs_store_t *store = ctx;
    kvs_locates_t *locates = store->locates;
    uint32_t blocked = 0;
    locates->crowded = false;
    for (kvs_locate_t *locate = locates->first, *next; locate; locate = next) {
        next = locate->next;
        kvs_promoted_t promoted = bring(locate, blocked);
        blocked += promoted == KVS_PROMOTED_BLOCKED;
        if (promoted == KVS_PROMOTED_ALL) {
            locates->crowded |= !locate_answer(locate);
        }
    }
    if (blocked > 0 && !locates->is_again_due) {
        locates->is_again_due = true;
        as_timer_start(locates->again, AGAIN_US);
    }
}

static void on_again(void *ctx)
{
    kvs_store_t *store = ctx;
    store->locates->is_again_due = false;
    for (kvs_locate_t *locate = store->locates->first; locate; locate = locate->next) {
        locate->blocked = false;
    }
    on_wake(store);
}

bool kvs_locates_sweep(kvs_store_t *store, uint64_t now_us)
{
    for (kvs_locate_t *locate = store->locates->first, *next; locate; locate = next) {
        next = locate->next;
        if (locate->wait_until_us <= now_us && !locate_answer(locate)) {
            refuse(locate->conn, locate->header.head.request, AS_ERR_BUSY);
            locate_give(locate);
        }
    }
    return store->locates->first != NULL;
}

void kvs_locates_stop(kvs_store_t *store)
{
    while (store->locates && store->locates->first) {
        locate_give(store->locates->first);
    }
}

// ---- LOCATE

static void on_locate_keys(void *ctx, as_status_t status)
{
    kvs_locate_t *locate = ctx;
    kvs_conn_t *conn = locate->conn;
    kvs_conn_awaited(conn, false);
    if (status != AS_OK || !conn->net || as_fault(AS_FAULT_serve_locate_drop)) {
        locate_give(locate);
        return;
    }
    kvs_promote_begin(locate);
    bool is_next = !locate->cold && !conn->store->locates->crowded;
    if (!is_next || !locate_answer(locate)) {
        wait_turn(locate);
    }
}

void kvs_locate_serve(kvs_conn_t *conn, const as_wire_locate_t *ask, as_net_msg_t *msg)
{
    if (ask->key_count == 0 || ask->key_count > AS_WIRE_KEYS_MAX ||
        msg->data_bytes != ask->key_count * sizeof(as_key_t) ||
        (ask->kind != AS_WIRE_FULL && ask->kind != AS_WIRE_SEALED)) {
        kvs_conn_offend(conn, "a malformed LOCATE");
        return;
    }
    uint32_t tenant;
    if (!kvs_admit_tenant(conn, ask->tenant, &tenant)) {
        kvs_conn_offend(conn, "a LOCATE in the name of a tenant");
        return;
    }
    kvs_locate_t *locate = locate_take(conn, ask, tenant);
    if (locate && as_net_msg_recv(msg, locate->keys, on_locate_keys, locate) == AS_OK) {
        kvs_conn_await(conn);
        return;
    }
    if (locate) {
        locate_give(locate);
    }
    refuse(conn, ask->head.request, AS_ERR_BUSY);
}
