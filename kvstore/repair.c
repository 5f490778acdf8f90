// SPDX-License-Identifier: Apache-2.0
// Stage "repair": when a store has gone, blocks that had a copy there get another one.
//
//   IDLE -> WAITING -> IN_RAM_FIRST -> IN_RAM_REST -> ON_DISK -> IDLE
//
//   WAITING       for the list of stores to settle: a scheduler that has just started knows only some.
//   IN_RAM_FIRST  blocks for which this store is the best (by placement, of those that are there): it
//                 sees to it that the others which should have a copy do.
//   IN_RAM_REST   after a pause, the others: the best store for them may have lost them. Where it has
//                 not, all copies are there by now, and asking is all that it costs.
//   ON_DISK       those that are on disk only, read one at a time.
//
// Asking is handing over (peers.c): a store that has the block says so and nothing is sent. So the
// first holder by rank does the work, no copy is sent twice, and nobody keeps a list of who has what.
// A store that is full and has evicted the block lately refuses it, and is not asked again (copies.c).
// What is sent and asked is paced, all copies of a block counted. When the stores change meanwhile, it goes all the way round
// from where it was: so that stores which come and go do not keep it among the same first blocks. While there
// are fewer stores than copies, it is owed, and done once there are more.
#include <string.h>

#include "common/log.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "kvstore/pace.h"
#include "kvstore/store.h"

#define LOOKS_MAX   4096u // entries of the index in one turn
#define UNDER_WAY   4u
#define ASK_BYTES   4096u // of the rate, that a question costs
#define BUSY_US     10000u
#define RETRIES_MAX 6u // until the next change; each waits twice as long as the one before

typedef enum phase { IDLE, WAITING, IN_RAM_FIRST, IN_RAM_REST, ON_DISK } phase_t;

struct kvs_repair {
    kvs_store_t *store;
    as_timer_t *timer;
    phase_t phase;
    bool owed; // some block may have too few copies
    bool stopped;
    phase_t round;      // where it is: one of the last three
    uint32_t cursor;    // of the index, or of the disk
    phase_t from_round; // where it began
    uint32_t from_cursor;
    bool around; // it has been at the end since
    uint32_t under_way;
    uint32_t failed, retries;
    uint64_t began_us;
    uint64_t pending; // blocks of which nothing is known yet, about
    uint64_t repaired, bytes, kept;
    kvs_pace_t pace;
    kvs_spec_t spec; // on its way from disk
    void *image;     // NULL: none is
};

static uint64_t now(const kvs_repair_t *repair)
{
    return as_loop_now_us(repair->store->options.loop);
}

static void set_pending(kvs_repair_t *repair, uint64_t pending)
{
    repair->pending = pending;
    as_metric_set(&kvs_metrics[KVS_METRIC_REPAIR_PENDING], (int64_t)pending);
}

// ---- rounds

static void wait_for_peers(kvs_repair_t *repair, uint64_t us)
{
    repair->phase = WAITING;
    set_pending(repair, 0);
    as_timer_start(repair->timer, us);
}

static void turn_after(kvs_repair_t *repair, uint64_t bytes)
{
    if (repair->phase > WAITING && !repair->stopped) {
        uint64_t rate = repair->store->options.repair_bytes_per_second;
        as_timer_start(repair->timer, kvs_pace_spend(&repair->pace, bytes, rate, now(repair)));
    }
}

static void begin(kvs_repair_t *repair)
{
    kvs_store_t *store = repair->store;
    kvs_disk_stat_t disk;
    bool can = kvs_peers_replicas(store) > 1 && kvs_peers_others(store) > 0 &&
               store->options.repair_bytes_per_second > 0 && !kvs_drain_is_on(store) &&
               !kvs_peers_doubtful(store);
    if (!can) {
        repair->phase = IDLE; // owed still, until the next change
        return;
    }
    kvs_tier_stat(store, &disk);
    uint64_t in_ram = kvs_index_count(store->index, KVS_SEALED);
    repair->phase = repair->from_round = repair->round;
    repair->from_cursor = repair->cursor;
    repair->around = false;
    repair->began_us = now(repair);
    repair->failed = 0;
    repair->repaired = repair->bytes = repair->kept = 0;
    set_pending(repair, in_ram > disk.blocks ? in_ram : disk.blocks);
    turn_after(repair, 0);
}

static void end(kvs_repair_t *repair)
{
    kvs_store_t *store = repair->store;
    uint64_t wait_us = store->options.repair_wait_us << repair->retries;
    if (repair->repaired + repair->failed > 0) {
        AS_INFO("repair",
                "%llu blocks (%llu MiB) were given another copy, %llu had theirs, %u were "
                "not taken",
                (unsigned long long)repair->repaired, (unsigned long long)repair->bytes >> 20,
                (unsigned long long)repair->kept, repair->failed);
    }
    set_pending(repair, repair->failed);
    repair->round = IN_RAM_FIRST;
    repair->cursor = 0;
    if (repair->failed > 0 && repair->retries++ < RETRIES_MAX) {
        wait_for_peers(repair, wait_us);
        return;
    }
    repair->owed = repair->failed > 0 || kvs_peers_others(store) + 1 < kvs_peers_replicas(store);
    repair->phase = IDLE;
}

// Whether asking again may help: not where the other store has its reasons. What was dropped there lately
// may have been put again; else it is soon dropped here, too.
static bool may_go_later(as_status_t status)
{
    return status != AS_OK && status != AS_ERR_EXISTS && status != AS_ERR_CONFLICT &&
           status != AS_ERR_LIMIT;
}

static void on_pushed(void *ctx, kvs_block_t *block, as_status_t status, uint32_t sent)
{
    kvs_repair_t *repair = ctx;
    size_t one = block ? kvs_block_bytes(block) : kvs_image_crcs_at(&repair->spec);
    uint64_t bytes = (uint64_t)one * sent;
    repair->under_way--;
    if (status == AS_OK) {
        repair->repaired++;
        repair->bytes += bytes;
        kvs_count(&repair->store->counted.repaired_blocks, KVS_METRIC_REPAIRED_BLOCKS, 1);
        kvs_count(&repair->store->counted.repaired_bytes, KVS_METRIC_REPAIRED_BYTES, bytes);
    }
    repair->kept += status == AS_ERR_EXISTS;
    repair->failed += may_go_later(status);
    set_pending(repair, repair->pending > 0 ? repair->pending - 1 : 0);
    if (!block) {
        as_mem_free(repair->image);
        repair->image = NULL;
    }
    turn_after(repair, bytes);
}

// ---- RAM

static bool is_wanted(const kvs_repair_t *repair, const kvs_block_t *block)
{
    if (block->state != KVS_SEALED || block->kind != AS_WIRE_FULL) {
        return false;
    }
    const kvs_share_t share = kvs_peers_share(repair->store, block->place);
    return share.copies > 0 && (share.rank == 0) == (repair->phase == IN_RAM_FIRST);
}

// Where this round ends.
static uint32_t end_of(const kvs_repair_t *repair, uint32_t last)
{
    return repair->around && repair->round == repair->from_round ? repair->from_cursor : last;
}

// Whether there is more of this round.
static bool ram_turn(kvs_repair_t *repair)
{
    kvs_store_t *store = repair->store;
    uint32_t end_at = end_of(repair, kvs_index_blocks_max(store->index));
    for (uint32_t looks = 0; looks < LOOKS_MAX && repair->cursor < end_at; looks++) {
        kvs_block_t *block = kvs_index_at(store->index, repair->cursor);
        if (is_wanted(repair, block)) {
            as_status_t status = kvs_push(store, block, 0, on_pushed, repair);
            repair->under_way += status == AS_OK;
            // Not found: its time to live is over.
            repair->failed +=
                status != AS_OK && status != AS_ERR_BUSY && status != AS_ERR_NOT_FOUND;
            repair->cursor += status != AS_ERR_BUSY;
            break;
        }
        repair->cursor++;
    }
    return repair->cursor < end_at;
}

// ---- disk

static void on_read(void *ctx, as_status_t status)
{
    kvs_repair_t *repair = ctx;
    bool is_there = kvs_tier_find(repair->store, &repair->spec.key, kvs_realm_of(&repair->spec));
    bool goes_on = status == AS_OK && is_there && !repair->stopped && repair->phase == ON_DISK;
    const kvs_push_image_t push = {&repair->spec, repair->image, 0, on_pushed, repair};
    if (goes_on && kvs_push_image(repair->store, &push) == AS_OK) {
        return;
    }
    repair->failed += goes_on;
    repair->under_way--;
    as_mem_free(repair->image);
    repair->image = NULL;
    turn_after(repair, 0);
}

static bool disk_turn(kvs_repair_t *repair)
{
    kvs_store_t *store = repair->store;
    const kvs_spec_t *spec = NULL;
    bool ram_is_done = repair->from_round == IN_RAM_FIRST && repair->from_cursor == 0;
    for (uint32_t looks = 0; looks < LOOKS_MAX; looks++) {
        bool is_end = repair->cursor >= end_of(repair, UINT32_MAX);
        spec = is_end ? NULL : kvs_tier_next(store, &repair->cursor);
        if (!spec) {
            return false;
        }
        const kvs_block_t *block = kvs_index_find(store->index, &spec->key, kvs_realm_of(spec));
        bool is_in_ram = ram_is_done && block && block->sealed_us < repair->began_us; // looked at
        if (!is_in_ram && spec->kind == AS_WIRE_FULL &&
            kvs_peers_share(store, spec->place).copies > 0) {
            break;
        }
        spec = NULL;
    }
    repair->spec = spec ? *spec : (kvs_spec_t){0};
    repair->image =
        spec ? as_mem_aligned(KVS_POOL_GRAIN_BYTES, kvs_image_bytes(&repair->spec)) : NULL;
    as_status_t status = repair->image ? kvs_disk_read(kvs_tier_disk(store), &repair->spec,
                                                       repair->image, on_read, repair)
                                       : AS_ERR_NO_MEMORY;
    if (status == AS_OK) {
        repair->under_way++;
    } else if (spec) {
        as_mem_free(repair->image);
        repair->image = NULL;
        repair->failed += status != AS_ERR_NOT_FOUND; // gone meanwhile
    }
    return true;
}

// ---- turns

static void next_round(kvs_repair_t *repair)
{
    bool is_over = repair->around && repair->round == repair->from_round;
    bool pauses = repair->round == IN_RAM_FIRST;
    repair->around |= repair->round == ON_DISK;
    repair->round = repair->round == ON_DISK ? IN_RAM_FIRST : repair->round + 1;
    repair->cursor = 0;
    if (is_over) {
        end(repair);
        return;
    }
    repair->phase = repair->round;
    if (pauses) { // others hear of a loss up to a heartbeat later
        as_timer_start(repair->timer, 2 * repair->store->options.repair_wait_us);
    } else {
        turn_after(repair, 0);
    }
}

static void on_timer(void *ctx)
{
    kvs_repair_t *repair = ctx;
    if (repair->phase == WAITING) {
        begin(repair);
        return;
    }
    if (repair->phase == IDLE || (repair->phase == ON_DISK && repair->image)) {
        return; // when it is here
    }
    if (repair->under_way >= UNDER_WAY) {
        as_timer_start(repair->timer, BUSY_US);
        return;
    }
    bool more = repair->phase == ON_DISK ? disk_turn(repair) : ram_turn(repair);
    if (more) {
        turn_after(repair, repair->under_way > 0 ? ASK_BYTES : 0);
    } else if (repair->under_way > 0) {
        as_timer_start(repair->timer, BUSY_US); // the last of this round
    } else {
        next_round(repair);
    }
}

void kvs_repair_on_peers(kvs_store_t *store, bool changed, bool lost)
{
    kvs_repair_t *repair = store->repair;
    repair->owed |= lost || kvs_peers_others(store) + 1 < kvs_peers_replicas(store);
    if (repair->owed && (changed || lost)) {
        repair->retries = 0;
        wait_for_peers(repair, store->options.repair_wait_us);
    }
}

as_status_t kvs_repair_alloc(kvs_store_t *store)
{
    kvs_repair_t *repair = as_mem_zalloc(1, sizeof(*repair));
    if (!repair) {
        return AS_ERR_NO_MEMORY;
    }
    store->repair = repair;
    repair->store = store;
    repair->round = IN_RAM_FIRST;
    return as_timer_alloc(store->options.loop, on_timer, repair, &repair->timer);
}

void kvs_repair_stop(kvs_store_t *store)
{
    kvs_repair_t *repair = store->repair;
    if (repair && repair->timer) { // else the store is half made
        repair->stopped = true;
        repair->phase = IDLE;
        as_timer_stop(repair->timer);
    }
}

void kvs_repair_free(kvs_store_t *store)
{
    kvs_repair_t *repair = store->repair;
    if (repair) {
        as_timer_free(repair->timer);
        as_mem_free(repair->image);
        as_mem_free(repair);
        store->repair = NULL;
    }
}

uint64_t kvs_repair_pending(const kvs_store_t *store)
{
    return store->repair->pending;
}
