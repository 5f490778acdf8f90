// SPDX-License-Identifier: Apache-2.0
// Route: the longest prefix of a chain of which live stores hold every block, in runs of equal
// holders, and the worker that is best for it.
//
// A run ends where the set of holders changes. It could be extended while some holder is common to
// all, but then replicas would be given away for fewer, longer runs, and one node would serve what
// the placement has spread.
//
// A store that drains is named where no other holds the block: it will end, but still serves.
//
// Score of a worker: tokens of the prompt whose sealed segment it holds, less the tokens of work
// that wait there. The fetch of the rest takes about as long at every worker, so it is left out.
// Only a holder of the first block can hold a sealed prefix: an entry's holders are all candidates.
//
// The table does not fit in the processor's caches: PREFETCH_BLOCKS lookups are kept in flight.
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "scheduler/scheduler.h"

#define PREFETCH_BLOCKS 16u
#define KEY_BYTES       32u

struct sch_router {
    const sch_directory_t *directory;
    sch_cluster_t *cluster;
    sch_node_t *nodes[SCH_SLOTS_MAX]; // NULL: not to be chosen
    bool stores[SCH_SLOTS_MAX];       // a live store
    bool draining[SCH_SLOTS_MAX];
    sch_run_t runs[AS_CHAIN_BLOCKS_MAX];
};

// Workers that hold the sealed prefix so far.
typedef struct sealed {
    uint32_t count;
    uint16_t slots[SCH_HOLDERS_MAX];
    uint32_t blocks[SCH_HOLDERS_MAX];
} sealed_t;

as_status_t sch_router_alloc(const sch_directory_t *directory, sch_cluster_t *cluster,
                             sch_router_t **router_p)
{
    sch_router_t *router = as_mem_zalloc(1, sizeof(*router));
    if (!router) {
        return AS_ERR_NO_MEMORY;
    }
    router->directory = directory;
    router->cluster = cluster;
    *router_p = router;
    return AS_OK;
}

void sch_router_free(sch_router_t *router)
{
    as_mem_free(router);
}

void sch_router_set_slot(sch_router_t *router, uint16_t slot, sch_node_t *node)
{
    AS_ASSERT(slot < SCH_SLOTS_MAX);
    bool usable = node && node->state == ASSAY__NODE_STATE__NODE_STATE_ALIVE;
    router->nodes[slot] = usable ? node : NULL;
    router->stores[slot] = usable && node->role == ASSAY__ROLE__ROLE_STORE;
    router->draining[slot] = usable && node->draining;
}

sch_node_t *sch_router_node(const sch_router_t *router, uint16_t slot)
{
    return router->nodes[slot];
}

static uint32_t full_holders_of(const sch_router_t *router, const sch_entry_t *entry, bool draining,
                                uint16_t slots[SCH_HOLDERS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SCH_HOLDERS_MAX && entry->holders[i]; i++) {
        uint16_t slot = entry->holders[i] >> 2;
        slots[count] = slot;
        count += (entry->holders[i] & SCH_FULL) != 0 && router->stores[slot] &&
                 router->draining[slot] == draining;
    }
    return count;
}

// The live stores that hold the entry's block in full, ascending.
static uint32_t full_holders(const sch_router_t *router, const sch_entry_t *entry,
                             uint16_t slots[SCH_HOLDERS_MAX])
{
    uint32_t count = full_holders_of(router, entry, false, slots);
    return count > 0 ? count : full_holders_of(router, entry, true, slots);
}

static bool holds_sealed(const sch_entry_t *entry, uint16_t slot)
{
    for (uint32_t i = 0; i < SCH_HOLDERS_MAX && entry->holders[i]; i++) {
        if (entry->holders[i] >> 2 == slot) {
            return (entry->holders[i] & SCH_SEALED) != 0;
        }
    }
    return false;
}

static void sealed_begin(const sch_router_t *router, const sch_entry_t *entry, sealed_t *sealed)
{
    for (uint32_t i = 0; i < SCH_HOLDERS_MAX && entry->holders[i]; i++) {
        uint16_t slot = entry->holders[i] >> 2;
        if ((entry->holders[i] & SCH_SEALED) && router->nodes[slot] && !router->stores[slot]) {
            sealed->slots[sealed->count++] = slot;
        }
    }
}

// Counts block number `block` for those that hold all before it. False: nobody does any more.
static bool sealed_extend(sealed_t *sealed, uint32_t block, const sch_entry_t *entry)
{
    bool any = false;
    for (uint32_t i = 0; i < sealed->count; i++) {
        if (sealed->blocks[i] == block && holds_sealed(entry, sealed->slots[i])) {
            sealed->blocks[i]++;
            any = true;
        }
    }
    return any;
}

static void run_extend(sch_router_t *router, sch_route_t *route, const uint16_t *slots,
                       uint32_t count)
{
    sch_run_t *run = route->run_count ? &router->runs[route->run_count - 1] : NULL;
    if (!run || run->holder_count != count ||
        memcmp(run->slots, slots, count * sizeof(slots[0])) != 0) {
        run = &router->runs[route->run_count++];
        run->first_block = route->hit_blocks;
        run->block_count = 0;
        run->holder_count = count;
        memcpy(run->slots, slots, count * sizeof(slots[0]));
    }
    run->block_count++;
    route->hit_blocks++;
}

// Walks the chain until no store has the next block, and no worker its sealed form.
static void walk(sch_router_t *router, const sch_route_query_t *query, sch_route_t *route,
                 sealed_t *sealed)
{
    bool full_on = true, sealed_on = true;
    for (uint32_t i = 0; i < query->key_count && i < PREFETCH_BLOCKS; i++) {
        sch_directory_prefetch(router->directory, query->keys + (size_t)i * KEY_BYTES);
    }
    for (uint32_t block = 0; block < query->key_count && (full_on || sealed_on); block++) {
        if (block + PREFETCH_BLOCKS < query->key_count) {
            sch_directory_prefetch(router->directory,
                                   query->keys + (size_t)(block + PREFETCH_BLOCKS) * KEY_BYTES);
        }
        const sch_entry_t *entry =
            sch_directory_find(router->directory, query->keys + (size_t)block * KEY_BYTES);
        if (!entry) {
            return;
        }
        uint16_t slots[SCH_HOLDERS_MAX];
        uint32_t count = full_on ? full_holders(router, entry, slots) : 0;
        full_on = count > 0;
        if (full_on) {
            run_extend(router, route, slots, count);
        }
        if (block == 0) {
            sealed_begin(router, entry, sealed);
        }
        sealed_on = sealed_on && sealed_extend(sealed, block, entry);
    }
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

// Least loaded first. Load is as old as a heartbeat, so equals are common: those come in an order
// that differs from run to run, and the readers of one chain spread over its holders.
static void run_sort(const sch_router_t *router, const sch_route_query_t *query, sch_run_t *run)
{
    uint64_t salt;
    memcpy(&salt, query->keys + (size_t)run->first_block * KEY_BYTES, sizeof(salt));
    uint64_t loads[SCH_HOLDERS_MAX], ties[SCH_HOLDERS_MAX];
    for (uint32_t i = 0; i < run->holder_count; i++) {
        uint16_t slot = run->slots[i];
        const sch_node_t *node = router->nodes[slot];
        uint64_t load = node->queued_bytes, tie = mix(node->id ^ salt);
        uint32_t at = i;
        while (at > 0 && (loads[at - 1] > load || (loads[at - 1] == load && ties[at - 1] > tie))) {
            loads[at] = loads[at - 1];
            ties[at] = ties[at - 1];
            run->slots[at] = run->slots[at - 1];
            at--;
        }
        loads[at] = load;
        ties[at] = tie;
        run->slots[at] = slot;
    }
}

typedef struct choice {
    sch_node_t *worker;
    uint32_t sealed_blocks;
    int64_t score;
} choice_t;

static int64_t score(const sch_node_t *worker, uint32_t sealed_blocks, uint32_t block_tokens)
{
    int64_t queued =
        worker->queued_tokens < INT64_MAX / 2 ? (int64_t)worker->queued_tokens : INT64_MAX / 2;
    return (int64_t)sealed_blocks * block_tokens - queued;
}

static uint32_t sealed_blocks_of(const sealed_t *sealed, const sch_node_t *worker)
{
    for (uint32_t i = 0; i < sealed->count; i++) {
        if (sealed->slots[i] == worker->slot) {
            return sealed->blocks[i];
        }
    }
    return 0;
}

static void consider(choice_t *best, sch_node_t *worker, uint32_t sealed_blocks,
                     uint32_t block_tokens)
{
    int64_t value = score(worker, sealed_blocks, block_tokens);
    if (!best->worker || value > best->score) {
        *best = (choice_t){worker, sealed_blocks, value};
    }
}

static void choose_worker(sch_router_t *router, const sch_route_query_t *query,
                          const sealed_t *sealed, sch_route_t *route)
{
    sch_node_t *asker = query->asker;
    choice_t best = {0};
    for (uint32_t i = 0; i < sealed->count; i++) {
        sch_node_t *worker = router->nodes[sealed->slots[i]];
        if (!asker || sch_node_same_results(worker, asker)) {
            consider(&best, worker, sealed->blocks[i], query->block_tokens);
        }
    }
    sch_node_t *idle = sch_cluster_idle_worker(router->cluster, asker);
    if (idle) {
        consider(&best, idle, sealed_blocks_of(sealed, idle), query->block_tokens);
    }
    if (asker) {
        uint32_t blocks = sealed_blocks_of(sealed, asker);
        int64_t own = score(asker, blocks, query->block_tokens);
        if (!best.worker || best.score < own + SCH_MOVE_TOKENS_MIN) {
            best = (choice_t){asker, blocks, own};
        }
    }
    route->worker = best.worker;
    route->worker_sealed_blocks = best.sealed_blocks;
}

void sch_router_route(sch_router_t *router, const sch_route_query_t *query, sch_route_t *route)
{
    AS_ASSERT(query->key_count <= AS_CHAIN_BLOCKS_MAX);
    memset(route, 0, sizeof(*route));
    route->runs = router->runs;
    sealed_t sealed = {0};
    walk(router, query, route, &sealed);
    for (uint32_t i = 0; i < route->run_count; i++) {
        run_sort(router, query, &router->runs[i]);
    }
    choose_worker(router, query, &sealed, route);
}
