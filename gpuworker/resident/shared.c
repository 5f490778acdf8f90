// SPDX-License-Identifier: Apache-2.0
// Sealed blocks that sessions on one chain have in common: a hash table of them.
#include "gpuworker/resident/shared.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

// A bucket for every few blocks of a full cache: 2 GiB hold some 6,000 blocks of a small model at
// four bits.
#define BUCKETS 4096u

typedef struct entry {
    gpw_shared_t *shared;
    const gpw_compressor_t *compressor;
    as_key_t key;
    uint8_t *memory;
    size_t bytes;
    uint32_t sessions;
    struct entry *next; // in its bucket
} entry_t;

struct gpw_shared_ref {
    entry_t *entry;
    gpw_shared_ref_t *next; // of the block before
};

struct gpw_shared {
    gpw_budget_t budget;
    entry_t *bucket[BUCKETS];
};

as_status_t gpw_shared_alloc(gpw_device_t *device, gpw_shared_t **shared_p)
{
    gpw_shared_t *shared = as_mem_zalloc(1, sizeof(*shared));
    if (!shared) {
        return AS_ERR_NO_MEMORY;
    }
    shared->budget.device = device;
    *shared_p = shared;
    return AS_OK;
}

void gpw_shared_free(gpw_shared_t *shared)
{
    AS_ASSERT(!shared || shared->budget.used_bytes == 0);
    as_mem_free(shared);
}

uint64_t gpw_shared_bytes(const gpw_shared_t *shared)
{
    return shared->budget.used_bytes;
}

// Where the entry hangs, or would.
static entry_t **find(gpw_shared_t *shared, const gpw_compressor_t *compressor, const as_key_t *key)
{
    uint32_t hash; // a key is a SHA-256: any of its bytes will do
    memcpy(&hash, key, sizeof(hash));
    entry_t **at = &shared->bucket[hash % BUCKETS];
    while (*at &&
           ((*at)->compressor != compressor || memcmp(&(*at)->key, key, sizeof(*key)) != 0)) {
        at = &(*at)->next;
    }
    return at;
}

bool gpw_shared_possible(const gpw_sealed_t *sealed)
{
    return sealed->segment && sealed->compressor->slot &&
           sealed->compressor->flags & GPW_COMPRESSOR_QUERY_FREE;
}

static entry_t *new_entry(gpw_shared_t *shared, const gpw_sealed_t *sealed, const as_key_t *key)
{
    entry_t *entry = as_mem_zalloc(1, sizeof(*entry));
    if (entry) {
        entry->shared = shared;
        entry->compressor = sealed->compressor;
        entry->key = *key;
    }
    return entry;
}

bool gpw_shared_hang_up(gpw_shared_t *shared, gpw_sealed_t *sealed, const as_key_t *key)
{
    size_t bytes;
    uint8_t **slot = sealed->compressor->slot(sealed->segment, sealed->shared_blocks, &bytes);
    entry_t **at = find(shared, sealed->compressor, key);
    bool found = *at != NULL;
    gpw_shared_ref_t *ref = as_mem_zalloc(1, sizeof(*ref));
    entry_t *entry = found || !ref ? *at : new_entry(shared, sealed, key);
    if (!ref || !entry) {
        as_mem_free(ref);
        return false;
    }
    gpw_budget_recount(sealed->budget, bytes, 0);
    gpw_budget_shrink(sealed->budget, bytes);
    if (found) {
        as_mem_free(*slot);
        *slot = entry->memory;
    } else {
        bool room = gpw_budget_reserve(&shared->budget, bytes);
        AS_ASSERT(room); // it was just given back
        gpw_budget_recount(&shared->budget, 0, bytes);
        entry->memory = *slot;
        entry->bytes = bytes;
        *at = entry;
    }
    entry->sessions++;
    *ref = (gpw_shared_ref_t){.entry = entry, .next = sealed->shared};
    sealed->shared = ref;
    sealed->shared_blocks++;
    sealed->shared_bytes += bytes;
    sealed->bytes -= bytes;
    return true;
}

static void drop(entry_t *entry)
{
    gpw_shared_t *shared = entry->shared;
    if (--entry->sessions > 0) {
        return;
    }
    entry_t **at = find(shared, entry->compressor, &entry->key);
    AS_ASSERT(*at == entry);
    *at = entry->next;
    gpw_budget_recount(&shared->budget, entry->bytes, 0);
    gpw_budget_shrink(&shared->budget, entry->bytes);
    as_mem_free(entry->memory);
    as_mem_free(entry);
}

void gpw_shared_leave(gpw_sealed_t *sealed)
{
    while (sealed->shared) {
        gpw_shared_ref_t *ref = sealed->shared;
        size_t bytes;
        sealed->shared = ref->next;
        sealed->shared_blocks--;
        *sealed->compressor->slot(sealed->segment, sealed->shared_blocks, &bytes) = NULL;
        drop(ref->entry);
        as_mem_free(ref);
    }
    sealed->shared_bytes = 0;
}
