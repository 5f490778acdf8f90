// SPDX-License-Identifier: Apache-2.0
// The step SEAL: folds full blocks of the tail into the segment, one block a turn, and frees what
// stores hold.
//
// Between a verification and the next draft no pass and no swap is in progress: the one moment when
// a held block may turn into a stored one.
#include "gpuworker/decode/riders.h"
#include "gpuworker/decode/prefix.h"
#include "gpuworker/engine.h"

static void seal_block(gpw_request_t *request, uint32_t block)
{
    gpw_sealed_t *sealed = &request->sealed;
    for (uint32_t layer = 0; layer < request->blocks.shape.layers; layer++) {
        sealed->compressor->seal(sealed->segment, layer, block,
                                 gpw_blocks_extent(&request->blocks, block, layer));
    }
    sealed->blocks++;
}

// Nothing will be verified against these blocks, and no store is to get them.
static void mark_lossy(gpw_request_t *request)
{
    gpw_blocks_t *blocks = &request->blocks;
    for (uint32_t b = blocks->stored; !request->verify && b < gpw_blocks_full(blocks); b++) {
        bool exact = (b + 1) * blocks->shape.block_tokens <= request->exact_tokens;
        blocks->block[b].lossy = !exact || !gpw_link_has_client(request->engine->link);
    }
}

// Sessions on the same chain hold its sealed blocks once.
static void share_blocks(gpw_request_t *request)
{
    gpw_engine_t *engine = request->engine;
    gpw_blocks_t *blocks = &request->blocks;
    gpw_sealed_t *sealed = &request->sealed;
    uint32_t size = blocks->shape.block_tokens;
    uint32_t exact = (request->verify ? blocks->tokens : request->exact_tokens) / size;
    exact = exact < sealed->blocks ? exact : sealed->blocks;
    if (!gpw_shared_possible(sealed) || sealed->shared_blocks >= exact) {
        return;
    }
    gpw_blocks_key(blocks, request->tokens, exact * size);
    while (sealed->shared_blocks < exact &&
           gpw_shared_hang_up(engine->shared, sealed, &blocks->block[sealed->shared_blocks].key)) {
    }
    engine->load_changed = true;
    gpw_engine_freed(engine); // reservations of copies
}

gpw_turn_t gpw_seal_turn(gpw_request_t *request)
{
    gpw_blocks_t *blocks = &request->blocks;
    gpw_sealed_t *sealed = &request->sealed;
    if (gpw_prefix_is_unsealed(request)) {
        return gpw_prefix_seal_turn(request);
    }
    if (sealed->segment && gpw_sealed_target(&blocks->shape, blocks->tokens) > sealed->blocks) {
        as_status_t status = gpw_sealed_reserve(sealed, sealed->blocks + 1);
        if (status != AS_OK) {
            return gpw_request_fail(request, status, "no memory for the sealed segment");
        }
        seal_block(request, sealed->blocks);
        return GPW_TURN_AGAIN;
    }
    share_blocks(request);
    mark_lossy(request);
    if (!gpw_request_keeps_blocks(request)) {
        uint32_t limit = sealed->segment ? sealed->blocks : gpw_blocks_full(blocks);
        limit = gpw_riders_drop_limit(request, limit);
        uint32_t dropped = gpw_blocks_drop(blocks, limit);
        gpw_budget_shrink(&request->budget, dropped * (uint64_t)as_block_bytes(&blocks->shape));
        if (dropped) {
            gpw_engine_freed(request->engine);
        }
    }
    gpw_publish_pump(request);
    return gpw_request_go(request, GPW_STEP_DRAFT);
}
