// SPDX-License-Identifier: Apache-2.0
// The full cache of one session, as blocks.
//
// Block b holds the K and V of the positions [b * block_tokens, (b + 1) * block_tokens). It is
//   HELD    memory != NULL: exact extents in worker memory, in layer order (what a put sends)
//   STORED  memory == NULL and b < stored: only on a store node; a swap brings it
// Stored blocks are a prefix of the chain, so a swap is one run of blocks. `tokens` positions have
// exact K and V; whatever lies behind them in the last blocks is scratch of a pass in progress.
// node_id != 0 says that the block was found or acknowledged there, whether held or not.
#ifndef GPW_BLOCKS_H
#define GPW_BLOCKS_H

#include "common/block.h"
#include "gpuworker/device.h"
#include "kernels/kernels.h"

typedef struct gpw_block {
    as_key_t key; // of full blocks
    uint8_t *memory;
    uint64_t node_id;
    bool publishing; // a put reads the memory
    bool hollow;     // held, but a pass has yet to fill it: not to be read or put
    bool lossy;      // holds K and V of unverified drafts (verify: off): never leaves the worker
} gpw_block_t;

typedef struct gpw_blocks {
    as_shape_t shape;
    as_key_t namespace_key;
    gpw_budget_t *budget;
    gpw_block_t *block; // [count_max]
    uint32_t count_max;
    uint32_t count;  // blocks that exist: stored or held
    uint32_t stored; // blocks [0, stored) are not held
    uint32_t keyed;  // blocks [0, keyed) have their key
    uint32_t tokens; // positions with exact K and V
} gpw_blocks_t;

// For up to tokens_max positions. Memory comes from the budget, block by block.
as_status_t gpw_blocks_init(gpw_blocks_t *blocks, const as_shape_t *shape, gpw_budget_t *budget,
                            uint32_t tokens_max) AS_MUST_USE;
void gpw_blocks_fini(gpw_blocks_t *blocks); // frees what is held
// Keys of the full blocks of the first `token_count` tokens.
void gpw_blocks_key(gpw_blocks_t *blocks, const int32_t *tokens, uint32_t token_count);
// Takes the blocks [0, count) as stored at these nodes (NULL: not known where). Only of an empty
// cache.
void gpw_blocks_adopt(gpw_blocks_t *blocks, const uint64_t *node_ids, uint32_t count);
// Holds memory for every position below `tokens` that is not stored.
as_status_t gpw_blocks_cover(gpw_blocks_t *blocks, uint32_t tokens) AS_MUST_USE;
// Makes the stored blocks [from, stored) held again, hollow: a pass fills them. Where they are
// stored is forgotten.
as_status_t gpw_blocks_hold(gpw_blocks_t *blocks, uint32_t from) AS_MUST_USE;
// The pass that fills the hollow blocks is complete.
void gpw_blocks_filled(gpw_blocks_t *blocks);
// Frees held blocks at the front that are below `limit`, acknowledged by a store (or lossy) and
// read by no put. Returns how many.
uint32_t gpw_blocks_drop(gpw_blocks_t *blocks, uint32_t limit);
// One layer of a block; NULL when it is not held.
uint8_t *gpw_blocks_extent(const gpw_blocks_t *blocks, uint32_t block, uint32_t layer);
uint32_t gpw_blocks_full(const gpw_blocks_t *blocks); // blocks whose every position is exact

// K and V of consecutive positions.
typedef struct gpw_rows {
    uint32_t position, count;
    const krn_f16 *k, *v; // [count][kv_heads][dim]
} gpw_rows_t;

// Writes the row for `position` into an extent.
void gpw_extent_store(const as_shape_t *shape, uint8_t *extent, uint32_t position, const krn_f16 *k,
                      const krn_f16 *v);
void gpw_blocks_store(gpw_blocks_t *blocks, uint32_t layer, const gpw_rows_t *rows);

#endif
