// SPDX-License-Identifier: Apache-2.0
// A session's sealed segment.
#include "gpuworker/resident/sealed.h"

#include <string.h>

#include "gpuworker/resident/shared.h"

as_status_t gpw_sealed_open(gpw_sealed_t *sealed, const gpw_compressor_t *compressor,
                            gpw_budget_t *budget, const gpw_segment_options_t *options)
{
    gpw_sealed_t s = {.compressor = compressor, .budget = budget};
    if (compressor) {
        as_status_t status = compressor->open(options, &s.segment);
        if (status != AS_OK) {
            return status;
        }
        s.bytes = compressor->bytes(s.segment);
        gpw_budget_recount(budget, 0, s.bytes);
    }
    *sealed = s;
    return AS_OK;
}

void gpw_sealed_close(gpw_sealed_t *sealed)
{
    if (sealed->segment) {
        gpw_shared_leave(sealed);
        sealed->compressor->close(sealed->segment);
        gpw_budget_recount(sealed->budget, sealed->bytes, 0);
    }
    memset(sealed, 0, sizeof(*sealed));
}

as_status_t gpw_sealed_reserve(gpw_sealed_t *sealed, uint32_t blocks)
{
    as_status_t status = sealed->compressor->reserve(sealed->segment, blocks);
    gpw_sealed_recount(sealed);
    return status;
}

void gpw_sealed_recount(gpw_sealed_t *sealed)
{
    uint64_t bytes = sealed->compressor->bytes(sealed->segment) - sealed->shared_bytes;
    sealed->spared_bytes += bytes < sealed->bytes ? sealed->bytes - bytes : 0;
    gpw_budget_recount(sealed->budget, sealed->bytes, bytes);
    sealed->bytes = bytes;
}

uint32_t gpw_sealed_target(const as_shape_t *shape, uint32_t tokens)
{
    return tokens > GPW_RESIDUAL_TOKENS ? (tokens - GPW_RESIDUAL_TOKENS) / shape->block_tokens : 0;
}
