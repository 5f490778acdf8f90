// SPDX-License-Identifier: Apache-2.0
// Stage "scrub": a walk over all blocks that looks for bytes which are no longer what was promised.
//
//   IDLE -> RAM -> DISK -> IDLE     a pass; one begins by itself after a pause, or is asked for
//
// A pass checks the CRC32C of every extent, first of the sealed blocks in RAM, then of those on disk,
// a piece at a time (KVS_CHECK_PIECE_BYTES, some 20 us) and never faster than its rate; on disk one
// piece is read at a time, so a reader waits for one such read at most. A bad block in RAM is dropped
// and brought back from disk where that copy is good; a bad one on disk is forgotten there and
// written again where RAM has it.
//
// Nothing is held between two turns of the loop: a block that goes or changes meanwhile is told by
// its key and the time of its seal, and is passed over.
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "kvstore/disk/check.h"
#include "kvstore/pace.h"
#include "kvstore/store.h"

#define LOOKS_MAX 4096u  // entries of the index in one turn
#define FULL_US   10000u // after which a reader that was full is asked again

typedef enum phase { IDLE, IN_RAM, ON_DISK } phase_t;

struct kvs_scrub {
    kvs_store_t *store;
    as_timer_t *timer;
    as_task_t turn;
    phase_t phase;
    kvs_scrub_stat_t stat; // of the pass
    uint64_t began_us;
    kvs_pace_t pace;
    uint64_t rate;
    bool again;   // another pass was asked for while a piece is read
    bool stopped; // the store ends
    // RAM: the block being checked.
    uint32_t cursor;
    bool open;
    as_key_t key;
    uint64_t sealed_us;
    kvs_image_progress_t progress;
    // Disk.
    uint32_t disk_cursor;
    bool disk_open, reading;
    uint64_t checked_before; // bytes of its block before the piece that is read
    kvs_check_t check;
};

// ---- pace

static void turn_soon(kvs_scrub_t *scrub)
{
    as_loop_post(scrub->store->options.loop, &scrub->turn);
}

// The next turn comes when so many bytes are paid for.
static void turn_after(kvs_scrub_t *scrub, uint64_t bytes)
{
    uint64_t now_us = as_loop_now_us(scrub->store->options.loop);
    uint64_t wait_us = kvs_pace_spend(&scrub->pace, bytes, scrub->rate, now_us);
    if (wait_us > 0) {
        as_timer_start(scrub->timer, wait_us);
    } else {
        turn_soon(scrub);
    }
}

static void pass_begin(kvs_scrub_t *scrub)
{
    kvs_store_t *store = scrub->store;
    kvs_stat_t stat;
    kvs_store_stat(store, &stat);
    scrub->stat = (kvs_scrub_stat_t){.pass = scrub->stat.pass + 1,
                                     .running = true,
                                     .bytes = stat.ram_bytes_used + stat.disk_bytes_used};
    scrub->began_us = scrub->pace.due_us = as_loop_now_us(store->options.loop);
    scrub->phase = IN_RAM;
    scrub->cursor = scrub->disk_cursor = 0;
    scrub->open = scrub->disk_open = scrub->again = false;
    as_timer_stop(scrub->timer);
    turn_soon(scrub);
}

static void rest(kvs_scrub_t *scrub)
{
    scrub->phase = IDLE;
    scrub->rate = scrub->store->options.scrub_bytes_per_second;
    if (scrub->rate > 0) {
        as_timer_start(scrub->timer, scrub->store->options.scrub_pause_us);
    }
}

static void pass_end(kvs_scrub_t *scrub)
{
    kvs_scrub_stat_t *stat = &scrub->stat;
    stat->running = false;
    stat->took_us = as_loop_now_us(scrub->store->options.loop) - scrub->began_us;
    kvs_count(&scrub->store->counted.scrub_passes, KVS_METRIC_SCRUB_PASSES, 1);
    AS_INFO("scrub", "pass %llu: %llu blocks in RAM, %llu on disk; %llu and %llu were bad",
            (unsigned long long)stat->pass, (unsigned long long)stat->ram_blocks,
            (unsigned long long)stat->disk_blocks, (unsigned long long)stat->bad_ram_blocks,
            (unsigned long long)stat->bad_disk_blocks);
    rest(scrub);
}

// ---- RAM

void kvs_scrub_bad(kvs_store_t *store, kvs_block_t *block)
{
    const kvs_spec_t spec = kvs_index_spec(store->index, block);
    AS_ERROR("scrub", "a block in RAM has other bytes than were promised: it is dropped; if this "
                      "comes again, have the memory of this machine tested");
    kvs_count(&store->counted.scrub_bad_ram, KVS_METRIC_SCRUB_BAD_RAM, 1);
    kvs_index_doom(store->index, block);
    kvs_tier_restore(store, &spec);
    kvs_store_gauge(store);
}

static bool is_open(const kvs_scrub_t *scrub, const kvs_block_t *block)
{
    return scrub->open && block->sealed_us == scrub->sealed_us &&
           as_key_equal(&block->key, &scrub->key);
}

// Checks a piece; returns its bytes.
static size_t ram_piece(kvs_scrub_t *scrub, kvs_block_t *block)
{
    const kvs_index_t *index = scrub->store->index;
    if (!is_open(scrub, block)) {
        scrub->open = true;
        scrub->key = block->key;
        scrub->sealed_us = block->sealed_us;
        scrub->progress = (kvs_image_progress_t){0};
    }
    const kvs_spec_t spec = kvs_index_spec(index, block);
    size_t left = kvs_block_bytes(block) - scrub->progress.bytes;
    const kvs_image_piece_t piece = {
        kvs_index_extent(index, block, 0) + scrub->progress.bytes,
        left < KVS_CHECK_PIECE_BYTES ? left : KVS_CHECK_PIECE_BYTES,
    };
    bool right =
        kvs_image_check_piece(&spec, kvs_index_crcs(index, block), &scrub->progress, &piece);
    scrub->stat.ram_bytes += piece.count;
    if (!right || scrub->progress.bytes == kvs_block_bytes(block)) {
        scrub->stat.ram_blocks++;
        scrub->cursor++;
        scrub->open = false;
    }
    if (!right) {
        scrub->stat.bad_ram_blocks++;
        kvs_scrub_bad(scrub->store, block);
    }
    return piece.count;
}

static size_t ram_turn(kvs_scrub_t *scrub)
{
    const kvs_index_t *index = scrub->store->index;
    uint32_t end = kvs_index_blocks_max(index);
    for (uint32_t looks = 0; looks < LOOKS_MAX && scrub->cursor < end; looks++) {
        kvs_block_t *block = kvs_index_at(index, scrub->cursor);
        if (block->state == KVS_SEALED) {
            return ram_piece(scrub, block);
        }
        scrub->cursor++;
        scrub->open = false;
    }
    if (scrub->cursor >= end) {
        scrub->phase = ON_DISK;
    }
    return 0;
}

// ---- disk

static void disk_bad(kvs_scrub_t *scrub)
{
    kvs_store_t *store = scrub->store;
    const kvs_spec_t *spec = &scrub->check.record.spec;
    AS_ERROR("scrub", "a block on disk has other bytes than were promised or cannot be read: it is "
                      "dropped; look at the disk's own health (smartctl)");
    scrub->stat.bad_disk_blocks++;
    kvs_count(&store->counted.scrub_bad_disk, KVS_METRIC_SCRUB_BAD_DISK, 1);
    kvs_block_t *block = kvs_index_find(store->index, &spec->key, kvs_realm_of(spec));
    if (block) {
        kvs_tier_write_behind(store, block);
    }
}

static void on_piece(void *ctx, as_status_t status)
{
    kvs_scrub_t *scrub = ctx;
    scrub->reading = false;
    if (scrub->stopped) {
        return;
    }
    if (status != AS_OK) {
        disk_bad(scrub);
    }
    uint64_t bytes = scrub->check.progress.bytes - scrub->checked_before;
    scrub->stat.disk_bytes += bytes;
    if (status != AS_OK || kvs_check_is_over(&scrub->check)) {
        scrub->stat.disk_blocks++;
        scrub->disk_open = false;
    }
    kvs_count(&scrub->store->counted.scrub_bytes, KVS_METRIC_SCRUB_BYTES, bytes);
    if (scrub->again) {
        pass_begin(scrub);
    } else {
        turn_after(scrub, bytes);
    }
}

static void disk_turn(kvs_scrub_t *scrub)
{
    struct kvs_disk *disk = kvs_tier_disk(scrub->store);
    if (!scrub->disk_open) {
        scrub->disk_open = disk && kvs_disk_check_begin(disk, &scrub->disk_cursor, &scrub->check);
    }
    if (!scrub->disk_open) {
        pass_end(scrub);
        return;
    }
    scrub->checked_before = scrub->check.progress.bytes;
    as_status_t status = kvs_disk_check_next(disk, &scrub->check, on_piece, scrub);
    scrub->reading = status == AS_OK;
    if (status == AS_ERR_BUSY) {
        as_timer_start(scrub->timer, FULL_US);
    } else if (status != AS_OK) { // it has gone
        scrub->disk_open = false;
        turn_soon(scrub);
    }
}

// ---- turns

static void on_turn(void *ctx)
{
    kvs_scrub_t *scrub = ctx;
    if (scrub->phase == ON_DISK) {
        disk_turn(scrub);
    } else if (scrub->phase == IN_RAM) {
        size_t bytes = ram_turn(scrub);
        kvs_count(&scrub->store->counted.scrub_bytes, KVS_METRIC_SCRUB_BYTES, bytes);
        turn_after(scrub, bytes);
    }
}

static void on_timer(void *ctx)
{
    kvs_scrub_t *scrub = ctx;
    if (scrub->phase == IDLE) {
        pass_begin(scrub);
    } else {
        on_turn(scrub);
    }
}

as_status_t kvs_scrub_alloc(kvs_store_t *store)
{
    kvs_scrub_t *scrub = as_mem_zalloc(1, sizeof(*scrub));
    if (!scrub) {
        return AS_ERR_NO_MEMORY;
    }
    store->scrub = scrub;
    scrub->store = store;
    scrub->turn = (as_task_t){.fn = on_turn, .ctx = scrub};
    scrub->check.piece = as_mem_aligned(KVS_POOL_GRAIN_BYTES, KVS_CHECK_PIECE_BYTES);
    as_status_t status = scrub->check.piece ? AS_OK : AS_ERR_NO_MEMORY;
    if (status == AS_OK) {
        status = as_timer_alloc(store->options.loop, on_timer, scrub, &scrub->timer);
    }
    if (status == AS_OK) {
        rest(scrub);
    }
    return status;
}

void kvs_scrub_restored(kvs_store_t *store)
{
    store->scrub->stat.restored_blocks++;
    kvs_count(&store->counted.scrub_restored, KVS_METRIC_SCRUB_RESTORED, 1);
}

void kvs_scrub_stop(kvs_store_t *store)
{
    kvs_scrub_t *scrub = store->scrub;
    if (scrub) {
        scrub->stopped = true;
        as_timer_free(scrub->timer);
        as_loop_unpost(store->options.loop, &scrub->turn);
    }
}

void kvs_scrub_free(kvs_store_t *store)
{
    if (store->scrub) {
        AS_ASSERT(store->scrub->stopped && !store->scrub->reading);
        as_mem_free(store->scrub->check.piece);
        as_mem_free(store->scrub);
    }
}

void kvs_store_scrub(kvs_store_t *store, uint64_t bytes_per_second)
{
    kvs_scrub_t *scrub = store->scrub;
    uint64_t usual = store->options.scrub_bytes_per_second;
    scrub->rate = bytes_per_second > 0 ? bytes_per_second
                  : usual > 0          ? usual
                                       : KVS_SCRUB_RATE_USUAL;
    if (scrub->reading) {
        scrub->again = true; // when the piece is here
    } else {
        pass_begin(scrub);
    }
}

void kvs_store_scrub_stat(const kvs_store_t *store, kvs_scrub_stat_t *stat_p)
{
    const kvs_scrub_t *scrub = store->scrub;
    *stat_p = scrub->stat;
    stat_p->pass += scrub->again;
    if (scrub->stat.running) {
        stat_p->took_us = as_loop_now_us(store->options.loop) - scrub->began_us;
    }
}
