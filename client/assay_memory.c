// SPDX-License-Identifier: Apache-2.0
// Memory that libassay's callers register, and the figures of a client: what may be asked from any
// thread, under the client's lock.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/assay_internal.h"
#include "common/assert.h"
#include "common/mem.h"

// Brings the pages of it. False: they are not there to be written.
static bool populate(const void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)memory & ~(page - 1);
    size_t length = (((uintptr_t)memory + bytes + page - 1) & ~(page - 1)) - first;
    return madvise((void *)first, length, MADV_POPULATE_WRITE) == 0;
}

// Linux from 5.14 on; before, the first read brings the pages.
static bool can_populate(void)
{
    char own = 0;
    return populate(&own, 1);
}

static bool overlaps(const assay_t *assay, const uint8_t *memory, size_t bytes)
{
    for (const region_t *region = assay->regions; region; region = region->next) {
        if (memory < region->memory + region->bytes && region->memory < memory + bytes) {
            return true;
        }
    }
    return false;
}

int assay_buffer_register(assay_t *assay, void *memory, size_t bytes)
{
    if (!assay || !memory || bytes == 0 || (uintptr_t)memory + bytes < (uintptr_t)memory) {
        return assay_fail(ASSAY_INVALID, "register: a client and some memory must be given");
    }
    region_t *region = as_mem_zalloc(1, sizeof(*region));
    if (!region) {
        return assay_fail(ASSAY_FAILED, "register: out of memory");
    }
    *region = (region_t){.memory = memory, .bytes = bytes};
    pthread_mutex_lock(&assay->lock);
    bool taken = overlaps(assay, memory, bytes);
    if (!taken) {
        region->next = assay->regions;
        assay->regions = region;
        assay->stats.buffer_bytes += bytes;
    }
    pthread_mutex_unlock(&assay->lock);
    if (taken) {
        as_mem_free(region);
        return assay_fail(ASSAY_INVALID, "register: some of this memory is registered already");
    }
    if (!populate(memory, bytes) && can_populate()) {
        int result = assay_buffer_unregister(assay, memory);
        AS_ASSERT(result == ASSAY_OK);
        return assay_fail(ASSAY_INVALID, "register: this memory cannot be written");
    }
    return ASSAY_OK;
}

int assay_buffer_unregister(assay_t *assay, void *memory)
{
    if (!assay || !memory) {
        return assay_fail(ASSAY_INVALID, "unregister: a client and memory must be given");
    }
    pthread_mutex_lock(&assay->lock);
    region_t **at = &assay->regions;
    while (*at && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    region_t *region = *at;
    if (region) {
        *at = region->next;
        assay->stats.buffer_bytes -= region->bytes;
    }
    pthread_mutex_unlock(&assay->lock);
    as_mem_free(region);
    return region ? ASSAY_OK : assay_fail(ASSAY_INVALID, "unregister: this is not registered");
}

// ---- figures

int assay_stats(assay_t *assay, assay_stats_t *stats_p, size_t stats_bytes)
{
    if (!assay || !stats_p) {
        return assay_fail(ASSAY_INVALID, "stats: a client and a place for them must be given");
    }
    pthread_mutex_lock(&assay->lock);
    size_t known = stats_bytes < sizeof(assay->stats) ? stats_bytes : sizeof(assay->stats);
    memcpy(stats_p, &assay->stats, known);
    pthread_mutex_unlock(&assay->lock);
    memset((uint8_t *)stats_p + known, 0, stats_bytes - known);
    return ASSAY_OK;
}
