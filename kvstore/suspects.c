// SPDX-License-Identifier: Apache-2.0
// Blocks in RAM that are put again. Whoever puts a block has computed it, mostly since it could not be
// read; so it may have gone bad, and being told EXISTS would leave it so until the scrubber's pass.
// These blocks are checked first: a piece at a time, at the scrubber's usual rate, and where that is 0,
// not at all. There is room for a few; more are forgotten, the pass finds them.
#include "common/log.h"
#include "kvstore/disk/check.h"
#include "kvstore/store.h"

#define SUSPECTS_MAX 64u

typedef struct suspect {
    as_key_t key;
    kvs_realm_t realm;
    uint64_t sealed_us; // another block may have its key by then
} suspect_t;

struct kvs_suspects {
    kvs_store_t *store;
    as_timer_t *timer;
    bool runs; // the timer: to the next piece, or until what was checked is paid for
    suspect_t ring[SUSPECTS_MAX];
    uint32_t first, count;
    kvs_image_progress_t progress; // of the first
};

static void first_is_over(kvs_suspects_t *suspects)
{
    suspects->first = (suspects->first + 1) % SUSPECTS_MAX;
    suspects->count--;
    suspects->progress = (kvs_image_progress_t){0};
}

static kvs_block_t *first_block(const kvs_suspects_t *suspects)
{
    const suspect_t *suspect = &suspects->ring[suspects->first];
    kvs_block_t *block = kvs_index_find(suspects->store->index, &suspect->key, suspect->realm);
    return block && block->sealed_us == suspect->sealed_us ? block : NULL;
}

// Checks a piece; returns its bytes.
static size_t check_piece(kvs_suspects_t *suspects, kvs_block_t *block)
{
    const kvs_index_t *index = suspects->store->index;
    const kvs_spec_t spec = kvs_index_spec(index, block);
    size_t left = kvs_block_bytes(block) - suspects->progress.bytes;
    const kvs_image_piece_t piece = {
        kvs_index_extent(index, block, 0) + suspects->progress.bytes,
        left < KVS_CHECK_PIECE_BYTES ? left : KVS_CHECK_PIECE_BYTES,
    };
    bool right =
        kvs_image_check_piece(&spec, kvs_index_crcs(index, block), &suspects->progress, &piece);
    bool over = !right || suspects->progress.bytes == kvs_block_bytes(block);
    if (over) {
        first_is_over(suspects);
    }
    if (!right) {
        kvs_scrub_bad(suspects->store, block);
    }
    kvs_count(&suspects->store->counted.scrub_bytes, KVS_METRIC_SCRUB_BYTES, piece.count);
    return piece.count;
}

static void run_after(kvs_suspects_t *suspects, uint64_t us)
{
    suspects->runs = true;
    as_timer_start(suspects->timer, us);
}

static void on_timer(void *ctx)
{
    kvs_suspects_t *suspects = ctx;
    kvs_block_t *block = NULL;
    suspects->runs = false;
    while (suspects->count > 0 && !(block = first_block(suspects))) {
        first_is_over(suspects); // it has gone
    }
    if (block) {
        size_t bytes = check_piece(suspects, block);
        uint64_t rate = suspects->store->options.scrub_bytes_per_second;
        run_after(suspects, (uint64_t)((double)bytes * 1e6 / (double)rate));
    }
}

void kvs_suspect(kvs_store_t *store, const kvs_block_t *block)
{
    kvs_suspects_t *suspects = store->suspects;
    if (store->options.scrub_bytes_per_second == 0 || suspects->count == SUSPECTS_MAX) {
        return;
    }
    for (uint32_t i = 0; i < suspects->count; i++) {
        const suspect_t *known = &suspects->ring[(suspects->first + i) % SUSPECTS_MAX];
        if (known->realm == kvs_block_realm(block) && as_key_equal(&known->key, &block->key)) {
            return;
        }
    }
    suspects->ring[(suspects->first + suspects->count++) % SUSPECTS_MAX] =
        (suspect_t){block->key, kvs_block_realm(block), block->sealed_us};
    if (!suspects->runs) {
        run_after(suspects, 0);
    }
}

as_status_t kvs_suspects_alloc(kvs_store_t *store)
{
    kvs_suspects_t *suspects = as_mem_zalloc(1, sizeof(*suspects));
    if (!suspects) {
        return AS_ERR_NO_MEMORY;
    }
    suspects->store = store;
    store->suspects = suspects;
    return as_timer_alloc(store->options.loop, on_timer, suspects, &suspects->timer);
}

void kvs_suspects_free(kvs_store_t *store)
{
    if (store->suspects) {
        as_timer_free(store->suspects->timer);
        as_mem_free(store->suspects);
    }
}
