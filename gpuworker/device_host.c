// SPDX-License-Identifier: Apache-2.0
// Host memory as a device, and the accounting that every device shares.
#include "gpuworker/device.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

#define ALIGNMENT 64u // a cache line, and the widest vector

static void *host_alloc(size_t bytes)
{
    return as_mem_aligned(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void host_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

const gpw_device_ops_t *gpw_device_host(void)
{
    static const gpw_device_ops_t ops = {
        .name = "host", .alloc = host_alloc, .free = as_mem_free, .copy = host_copy};
    return &ops;
}

bool gpw_budget_reserve(gpw_budget_t *budget, uint64_t bytes)
{
    gpw_device_t *device = budget->device;
    if (bytes > device->bytes_max - device->reserved_bytes) {
        return false;
    }
    device->reserved_bytes += bytes;
    budget->reserved_bytes += bytes;
    return true;
}

void gpw_budget_shrink(gpw_budget_t *budget, uint64_t bytes)
{
    AS_ASSERT(bytes <= budget->reserved_bytes - budget->used_bytes);
    budget->reserved_bytes -= bytes;
    budget->device->reserved_bytes -= bytes;
}

void gpw_budget_recount(gpw_budget_t *budget, uint64_t old_bytes, uint64_t new_bytes)
{
    AS_ASSERT(old_bytes <= budget->used_bytes);
    budget->used_bytes = budget->used_bytes - old_bytes + new_bytes;
    budget->device->used_bytes = budget->device->used_bytes - old_bytes + new_bytes;
    AS_ASSERT(budget->used_bytes <= budget->reserved_bytes);
}

void *gpw_budget_alloc(gpw_budget_t *budget, size_t bytes)
{
    void *memory = budget->device->ops->alloc(bytes);
    if (memory) {
        gpw_budget_recount(budget, 0, bytes);
    }
    return memory;
}

void gpw_budget_free(gpw_budget_t *budget, void *memory, size_t bytes)
{
    if (memory) {
        budget->device->ops->free(memory);
        gpw_budget_recount(budget, bytes, 0);
    }
}

void gpw_budget_end(gpw_budget_t *budget)
{
    AS_ASSERT(budget->used_bytes == 0);
    gpw_budget_shrink(budget, budget->reserved_bytes);
}
