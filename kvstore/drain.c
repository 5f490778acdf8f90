// SPDX-License-Identifier: Apache-2.0
// Stage "drain": a store that is about to end hands its blocks to other stores.
//
//   OFF -> TELLING -> HANDING -> PARTING -> OVER
//
//   TELLING  the scheduler is told, so that nothing more is placed here; its answer says who is left.
//            From now on PUT is refused. Reads are served until the end.
//   HANDING  blocks go out, pinned ones, then most recently used ones first and none before its parents,
//            as many at a time as may be under way. What a store could not take is tried again with the
//            next round, and when nothing was taken for a while at one more store: one that the
//            scheduler takes for alive may be out of reach from here. Readers find it where it is by the scheduler's directory.
//   PARTING  all is handed over, or the time is over, or there is nobody to hand to. Readers get a
//            moment to let go of what they read; the scheduler is told that this store is gone.
//   OVER     the owner is told, and ends the store.
//
// How hot a block is, and what operators have pinned, goes along (copies.c); what is pinned goes first.
// What a block's other stores have already they say (peers.c): so only what has too few copies is sent.
// What they refuse for good (dropped there lately, too large, other bytes) is not tried again.
// Blocks that are on disk only stay there, for a later start; or, where that is asked for, are read one by
// one and handed over after those in RAM, in such rounds, too: the store will not be started again.
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "kvstore/store.h"

#define TELL_US   1000000u // without an answer of the scheduler what was known before counts
#define ROUND_US  100000u  // between two rounds
#define SPARE_US  3000000u // nobody has taken anything for so long: others are asked, too
#define STALL_US  6000000u // nobody has taken anything for so long: nobody will
#define PART_US   1000000u // for readers, and whoever watches
#define LOOK_US   20000u
#define UNDER_WAY 8u
#define BYTES_MAX (16u << 20) // of those under way; one block may be larger
#define LOOKS_MAX 4096u       // blocks begun with in one turn of the loop

typedef enum phase { OFF, TELLING, HANDING, PARTING, OVER } phase_t;

struct kvs_drain {
    kvs_store_t *store;
    phase_t phase;
    kvs_drain_stat_t stat;
    as_timer_t *timer;
    uint8_t *placed; // by id of the index: other stores have it
    uint32_t *order; // ids of the index; of the disk, places in the tier
    uint32_t count, next;
    uint32_t again; // of this round: the first so many of `order` are to be tried again
    uint32_t spare; // stores that are asked beside those where blocks belong
    uint32_t under_way;
    size_t under_way_bytes;
    uint64_t began_us, handing_us, until_us, progress_us, parting_us;
    bool listing_late; // what was sealed since handing_us, at late_us
    uint64_t late_us;
    uint64_t looked_us; // when somebody last asked how far it is
    bool told_leaving;
    // Blocks that are on disk only.
    bool with_disk, disk_is_on, stopped;
    uint64_t disk_blocks, disk_bytes; // of them in the stat
    kvs_spec_t spec;                  // of the image
    void *image;                      // NULL: none is under way
    uint32_t image_at;                // in the tier
};

static uint64_t now(const kvs_drain_t *drain)
{
    return as_loop_now_us(drain->store->options.loop);
}

// ---- the order

typedef struct used {
    uint32_t id;
    uint32_t used;
    uint32_t guard;
} used_t;

static int pinned_then_newest_first(const void *left, const void *right)
{
    const used_t *a = left, *b = right;
    if (a->guard != b->guard) {
        return a->guard < b->guard ? 1 : -1;
    }
    return a->used < b->used ? 1 : a->used > b->used ? -1 : 0;
}

static bool is_wanted(const kvs_block_t *block)
{
    return block->state == KVS_SEALED && block->kind == AS_WIRE_FULL;
}

// The block behind all of its parents that are not in the order yet.
static void order_add(kvs_drain_t *drain, uint32_t id, uint8_t *is_in)
{
    const kvs_index_t *index = drain->store->index;
    uint32_t first = drain->count;
    while (!is_in[id]) {
        is_in[id] = 1;
        drain->order[drain->count++] = id;
        const kvs_block_t *parent = kvs_index_parent(index, kvs_index_at(index, id));
        id = parent ? kvs_index_id(index, parent) : id;
    }
    for (uint32_t last = drain->count; first + 1 < last; first++) {
        uint32_t other = drain->order[--last];
        drain->order[last] = drain->order[first];
        drain->order[first] = other;
    }
}

static as_status_t order_make(kvs_drain_t *drain)
{
    const kvs_index_t *index = drain->store->index;
    uint32_t all = kvs_index_blocks_max(index), count = 0;
    used_t *blocks = as_mem_alloc(kvs_index_count(index, KVS_SEALED) * sizeof(used_t) + 1);
    uint8_t *is_in = as_mem_zalloc(all, 1);
    drain->order = as_mem_alloc(kvs_index_count(index, KVS_SEALED) * sizeof(uint32_t) + 1);
    drain->placed = drain->placed ? drain->placed : as_mem_zalloc(all, 1);
    bool has_room = blocks && is_in && drain->order && drain->placed;
    as_status_t status = has_room ? AS_OK : AS_ERR_NO_MEMORY;
    for (uint32_t id = 0; status == AS_OK && id < all; id++) {
        const kvs_block_t *block = kvs_index_at(index, id);
        if (is_wanted(block) && (!drain->listing_late || block->sealed_us >= drain->handing_us)) {
            blocks[count++] = (used_t){id, block->used, block->guard};
            drain->placed[id] = 0;
            drain->stat.bytes += kvs_block_bytes(block);
            drain->stat.pinned_blocks += block->guard != KVS_GUARD_NONE;
        }
    }
    if (status == AS_OK) {
        qsort(blocks, count, sizeof(*blocks), pinned_then_newest_first);
    }
    for (uint32_t i = 0; i < count; i++) {
        order_add(drain, blocks[i].id, is_in);
    }
    drain->stat.blocks += count;
    as_mem_free(blocks);
    as_mem_free(is_in);
    return status;
}

// ---- the end

static void on_left(void *ctx)
{
    kvs_drain_t *drain = ctx;
    if (drain->phase != OVER) {
        drain->phase = OVER;
        as_timer_stop(drain->timer);
        const kvs_store_options_t *options = &drain->store->options;
        if (options->on_drained) {
            options->on_drained(options->drained_ctx);
        }
    }
}

// Of the blocks in RAM; `ending`: of which no other store and not the disk, now or soon, has a copy.
static uint64_t count_ram(const kvs_drain_t *drain, bool ending)
{
    const kvs_store_t *store = drain->store;
    uint64_t count = 0;
    for (uint32_t id = 0; id < kvs_index_blocks_max(store->index); id++) {
        const kvs_block_t *block = kvs_index_at(store->index, id);
        if (is_wanted(block)) {
            const kvs_spec_t spec = kvs_index_spec(store->index, block);
            uint32_t unused;
            bool is_placed = drain->placed && drain->placed[id];
            count += !ending || !(is_placed || kvs_tier_digest(store, &spec, &unused));
        }
    }
    return count;
}

static void part(kvs_drain_t *drain, const char *why)
{
    if (drain->phase >= PARTING) {
        return;
    }
    kvs_drain_stat_t *stat = &drain->stat;
    drain->phase = PARTING;
    drain->parting_us = now(drain);
    stat->running = false;
    stat->took_us = drain->parting_us - drain->began_us;
    uint64_t done = stat->handed_blocks + stat->kept_blocks;
    uint64_t left = stat->blocks > done ? stat->blocks - done : 0;
    uint64_t ending = count_ram(drain, true);
    stat->on_disk_blocks = left > ending ? left - ending : 0;
    AS_INFO("drain",
            "%s after %llu ms: of %llu blocks %llu were handed over, %llu had copies, "
            "%llu stay on its disk, %llu end with this store",
            why, (unsigned long long)stat->took_us / 1000, (unsigned long long)stat->blocks,
            (unsigned long long)stat->handed_blocks, (unsigned long long)stat->kept_blocks,
            (unsigned long long)stat->on_disk_blocks,
            (unsigned long long)(left - stat->on_disk_blocks));
    if (stat->handed_pins < stat->pinned_blocks) {
        AS_WARN("drain", "of %llu pinned blocks only %llu are pinned at other stores now",
                (unsigned long long)stat->pinned_blocks, (unsigned long long)stat->handed_pins);
    }
    as_timer_start(drain->timer, 0);
}

// Waits for readers, and for whoever has watched and not yet seen the end.
static void part_some(kvs_drain_t *drain)
{
    uint64_t now_us = now(drain);
    bool is_read = kvs_leases_count(drain->store->leases) > 0;
    bool is_unseen = drain->looked_us + PART_US > now_us && drain->looked_us <= drain->parting_us;
    if (drain->told_leaving) {
        on_left(drain); // the scheduler did not answer
    } else if (((is_read && drain->stat.handed_blocks > 0) || is_unseen) &&
               now_us < drain->parting_us + PART_US) {
        as_timer_start(drain->timer, LOOK_US);
    } else {
        drain->told_leaving = true;
        bool asks = kvs_report_leave(drain->store->report, on_left, drain);
        as_timer_start(drain->timer, asks ? TELL_US : 0);
    }
}

// ---- handing over

static void hand_soon(kvs_drain_t *drain)
{
    if (drain->phase == HANDING) {
        as_timer_start(drain->timer, 0);
    }
}

static void count_handed(kvs_drain_t *drain, size_t bytes)
{
    drain->stat.handed_blocks++;
    drain->stat.handed_bytes += bytes;
    as_metric_add(&kvs_metrics[KVS_METRIC_DRAINED_BLOCKS], 1);
    as_metric_add(&kvs_metrics[KVS_METRIC_DRAINED_BYTES], (int64_t)bytes);
}

// Whether there is nothing more to try.
static bool is_decided(as_status_t status)
{
    return status == AS_OK || status == AS_ERR_EXISTS || status == AS_ERR_LIMIT ||
           status == AS_ERR_CONFLICT || status == AS_ERR_NOT_FOUND;
}

static void on_pushed(void *ctx, kvs_block_t *block, as_status_t status, uint32_t sent)
{
    (void)sent;
    kvs_drain_t *drain = ctx;
    kvs_store_t *store = drain->store;
    kvs_drain_stat_t *stat = &drain->stat;
    uint32_t again = drain->again;
    drain->under_way--;
    drain->under_way_bytes -= kvs_block_bytes(block);
    if (status == AS_OK) {
        count_handed(drain, kvs_block_bytes(block));
    } else if (status == AS_ERR_EXISTS) {
        stat->kept_blocks++;
    } else if (is_decided(status)) {
        AS_DEBUG("drain", "a block was refused: %s", as_status_str(status));
    } else {
        AS_DEBUG("drain", "a block was not taken: %s", as_status_str(status));
        drain->order[drain->again++] = kvs_index_id(store->index, block);
        kvs_report_beat(store->report); // is that store still there?
    }
    bool is_kept = status == AS_OK || status == AS_ERR_EXISTS;
    stat->handed_pins += is_kept && block->guard != KVS_GUARD_NONE;
    drain->placed[kvs_index_id(store->index, block)] = is_kept;
    if (drain->again == again) {
        drain->progress_us = now(drain);
    }
    hand_soon(drain);
}

// Whether another can be begun with.
static bool hand_one(kvs_drain_t *drain)
{
    kvs_store_t *store = drain->store;
    uint32_t id = drain->order[drain->next];
    kvs_block_t *block = kvs_index_at(store->index, id);
    if (!is_wanted(block)) { // dropped meanwhile
        drain->next++;
        drain->stat.blocks--;
        return true;
    }
    if (drain->under_way > 0 && drain->under_way_bytes + kvs_block_bytes(block) > BYTES_MAX) {
        return false;
    }
    as_status_t status = kvs_push(store, block, drain->spare, on_pushed, drain);
    if (status == AS_ERR_BUSY) {
        return false; // whoever has the room gives it back
    }
    drain->next++;
    if (status == AS_OK) {
        drain->under_way++;
        drain->under_way_bytes += kvs_block_bytes(block);
    } else {
        drain->order[drain->again++] = id;
    }
    return true;
}

// ---- disk

// Whether it is on disk only: what comes to RAM once that was listed for the last time is, too.
static bool is_disk_only(const kvs_drain_t *drain, const kvs_spec_t *spec)
{
    const kvs_block_t *block = kvs_index_find(drain->store->index, &spec->key, kvs_realm_of(spec));
    return spec->kind == AS_WIRE_FULL &&
           (!block || (drain->listing_late && block->sealed_us >= drain->late_us));
}

// Some may have come to RAM since they were counted.
static void count_disk(kvs_drain_t *drain)
{
    uint32_t cursor = 0;
    drain->stat.blocks -= drain->disk_blocks;
    drain->stat.bytes -= drain->disk_bytes;
    drain->disk_blocks = drain->disk_bytes = 0;
    for (const kvs_spec_t *spec; (spec = kvs_tier_next(drain->store, &cursor)) != NULL;) {
        if (is_disk_only(drain, spec)) {
            drain->disk_blocks++;
            drain->disk_bytes += kvs_image_crcs_at(spec);
        }
    }
    drain->stat.blocks += drain->disk_blocks;
    drain->stat.bytes += drain->disk_bytes;
}

static void image_end(kvs_drain_t *drain, as_status_t status)
{
    as_mem_free(drain->image);
    drain->image = NULL;
    drain->under_way--;
    if (is_decided(status)) {
        drain->progress_us = now(drain);
    } else {
        AS_DEBUG("drain", "a block from disk was not taken: %s", as_status_str(status));
        drain->order[drain->again++] = drain->image_at;
    }
    hand_soon(drain);
}

static void on_image_pushed(void *ctx, kvs_block_t *block, as_status_t status, uint32_t sent)
{
    (void)block;
    (void)sent;
    kvs_drain_t *drain = ctx;
    if (status == AS_OK) {
        count_handed(drain, kvs_image_crcs_at(&drain->spec));
    }
    drain->stat.kept_blocks += status == AS_ERR_EXISTS;
    image_end(drain, status);
}

static void on_image(void *ctx, as_status_t status)
{
    kvs_drain_t *drain = ctx;
    kvs_store_t *store = drain->store;
    bool goes_on = status == AS_OK && !drain->stopped && drain->phase == HANDING &&
                   kvs_tier_find(store, &drain->spec.key, kvs_realm_of(&drain->spec));
    const kvs_push_image_t push = {&drain->spec, drain->image, drain->spare, on_image_pushed,
                                   drain};
    // Else it was bad on disk, was dropped, or the drain is over.
    status = goes_on ? kvs_push_image(store, &push) : AS_ERR_NOT_FOUND;
    if (!goes_on || status != AS_OK) {
        image_end(drain, status);
    }
}

// Whether another can be begun with. `order` has where they lie, as kvs_tier_next lists them.
static bool hand_image(kvs_drain_t *drain)
{
    kvs_store_t *store = drain->store;
    uint32_t at = drain->order[drain->next], cursor = at;
    if (drain->image) {
        return false; // one at a time
    }
    const kvs_spec_t *spec = kvs_tier_next(store, &cursor);
    if (!spec || cursor != at + 1) { // dropped meanwhile
        drain->next++;
        drain->stat.blocks--;
        return true;
    }
    drain->spec = *spec;
    drain->image_at = at;
    drain->image = as_mem_aligned(KVS_POOL_GRAIN_BYTES, kvs_image_bytes(&drain->spec));
    as_status_t status = drain->image ? kvs_disk_read(kvs_tier_disk(store), &drain->spec,
                                                      drain->image, on_image, drain)
                                      : AS_ERR_NO_MEMORY;
    if (status != AS_ERR_BUSY) {
        drain->next++;
        drain->under_way++;
    }
    if (status != AS_OK && status != AS_ERR_BUSY) {
        image_end(drain, status);
    } else if (status == AS_ERR_BUSY) { // others are read
        as_mem_free(drain->image);
        drain->image = NULL;
    }
    return status != AS_ERR_BUSY;
}

// ---- rounds

// What was reserved before the drain began may be sealed while it hands over: once nothing is reserved
// any more, that is handed too. False: there is none, or no memory to list it.
static bool list_late(kvs_drain_t *drain)
{
    if (drain->listing_late) {
        return false;
    }
    drain->listing_late = true;
    drain->late_us = now(drain);
    as_mem_free(drain->order);
    drain->count = drain->next = 0;
    return order_make(drain) == AS_OK && drain->count > 0;
}

// At last what is on disk only. False: there is none, it stays there, or no memory to list it.
static bool list_disk(kvs_drain_t *drain)
{
    if (!drain->with_disk || drain->disk_is_on) {
        return false;
    }
    drain->disk_is_on = true;
    drain->progress_us = now(drain);
    count_disk(drain);
    as_mem_free(drain->order);
    drain->count = drain->next = 0;
    drain->order = as_mem_alloc(drain->disk_blocks * sizeof(uint32_t) + 1);
    uint32_t cursor = 0;
    for (const kvs_spec_t *spec;
         drain->order && (spec = kvs_tier_next(drain->store, &cursor)) != NULL;) {
        if (is_disk_only(drain, spec)) {
            drain->order[drain->count++] = cursor - 1;
        }
    }
    return drain->count > 0;
}

static bool list_more(kvs_drain_t *drain)
{
    return list_late(drain) || list_disk(drain);
}

static void hand_some(kvs_drain_t *drain)
{
    for (uint32_t looks = 0; drain->next < drain->count && drain->under_way < UNDER_WAY; looks++) {
        if (looks == LOOKS_MAX || !(drain->disk_is_on ? hand_image : hand_one)(drain)) {
            break;
        }
    }
    bool is_done = drain->next == drain->count && drain->under_way == 0;
    bool waits = is_done && drain->again == 0 && kvs_puts_count(drain->store->puts) > 0;
    if (waits) { // for a writer
        drain->progress_us = now(drain);
    }
    if (now(drain) >= drain->progress_us + STALL_US) {
        part(drain, "no store has taken a block for a while");
    } else if (!is_done || waits) {
        as_timer_start(drain->timer, LOOK_US);
    } else if (drain->again > 0) { // another round
        drain->count = drain->again;
        drain->next = drain->again = 0;
        drain->spare += now(drain) >= drain->progress_us + SPARE_US;
        as_timer_start(drain->timer, ROUND_US);
    } else if (list_more(drain)) {
        as_timer_start(drain->timer, LOOK_US);
    } else {
        part(drain, "done");
    }
}

static void hand_begin(kvs_drain_t *drain)
{
    kvs_store_t *store = drain->store;
    drain->phase = HANDING;
    drain->progress_us = drain->handing_us = now(drain);
    if (kvs_peers_others(store) == 0) {
        drain->stat.blocks = count_ram(drain, false);
        part(drain, "there is no other store to hand blocks to; ended");
    } else if (order_make(drain) != AS_OK) {
        part(drain, "no memory for the list of blocks; ended");
    } else {
        if (drain->with_disk) {
            count_disk(drain);
        }
        AS_INFO("drain", "handing %llu blocks of %llu MiB to %u stores",
                (unsigned long long)drain->stat.blocks, (unsigned long long)drain->stat.bytes >> 20,
                kvs_peers_others(store));
        as_timer_start(drain->timer, 0);
    }
}

void kvs_drain_on_peers(kvs_store_t *store, bool told)
{
    kvs_drain_t *drain = store->drain;
    if (drain->phase == TELLING && told) {
        hand_begin(drain);
    } else if (drain->phase == HANDING && kvs_peers_all_drain(store)) {
        part(drain, "all other stores drain, too; ended");
    } // a list of nobody else may be that of a scheduler that has just started: hand_some waits
}

// ---- its life

static void on_timer(void *ctx)
{
    kvs_drain_t *drain = ctx;
    if (drain->phase < PARTING && now(drain) >= drain->until_us) {
        part(drain, "the time is over");
    } else if (drain->phase == TELLING) {
        hand_begin(drain);
    } else if (drain->phase == HANDING) {
        hand_some(drain);
    } else if (drain->phase == PARTING) {
        part_some(drain);
    }
}

as_status_t kvs_drain_alloc(kvs_store_t *store)
{
    kvs_drain_t *drain = as_mem_zalloc(1, sizeof(*drain));
    if (!drain) {
        return AS_ERR_NO_MEMORY;
    }
    store->drain = drain;
    drain->store = store;
    return as_timer_alloc(store->options.loop, on_timer, drain, &drain->timer);
}

void kvs_drain_stop(kvs_store_t *store)
{
    if (store->drain) {
        store->drain->stopped = true;
    }
}

void kvs_drain_free(kvs_store_t *store)
{
    kvs_drain_t *drain = store->drain;
    if (drain) {
        as_timer_free(drain->timer);
        as_mem_free(drain->image);
        as_mem_free(drain->order);
        as_mem_free(drain->placed);
        as_mem_free(drain);
        store->drain = NULL;
    }
}

bool kvs_drain_is_on(const kvs_store_t *store)
{
    return store->drain->phase != OFF;
}

void kvs_store_drain(kvs_store_t *store, uint64_t timeout_us)
{
    kvs_drain_t *drain = store->drain;
    if (drain->phase != OFF) {
        return;
    }
    AS_INFO("drain", "draining for at most %llu ms", (unsigned long long)timeout_us / 1000);
    drain->phase = TELLING;
    drain->began_us = now(drain);
    drain->until_us = drain->began_us + timeout_us;
    drain->stat.running = true;
    as_metric_set(&kvs_metrics[KVS_METRIC_DRAINING], 1);
    kvs_repair_stop(store);
    bool asks = kvs_report_beat(store->report);
    as_timer_start(drain->timer, asks && timeout_us > TELL_US ? TELL_US : asks ? timeout_us : 0);
}

bool kvs_store_drain_disk(kvs_store_t *store, uint64_t timeout_us)
{
    kvs_drain_t *drain = store->drain;
    if (!drain->with_disk && drain->phase >= PARTING) {
        return false;
    }
    if (!drain->with_disk && drain->phase != OFF) { // of one without, that has begun
        uint64_t until_us = now(drain) + timeout_us;
        drain->until_us = drain->until_us > until_us ? drain->until_us : until_us;
    }
    if (!drain->with_disk && drain->phase == HANDING) {
        count_disk(drain);
    }
    drain->with_disk = true;
    kvs_store_drain(store, timeout_us);
    return true;
}

void kvs_store_drain_stat(kvs_store_t *store, kvs_drain_stat_t *stat_p)
{
    kvs_drain_t *drain = store->drain;
    drain->looked_us = now(drain);
    *stat_p = drain->stat;
    stat_p->is_over = drain->phase >= PARTING;
    if (drain->stat.running) {
        stat_p->took_us = now(drain) - drain->began_us;
    }
}
