// SPDX-License-Identifier: Apache-2.0
// Allocation with a failure that tests can place, and bounded pools of equal objects.
//
// Every allocation takes the next number of one process-wide counter; a test names the number that
// fails. A pool is one slab with a free list threaded through a separate index array, so objects
// given back can be poisoned whole under AddressSanitizer, and a state byte a slot finds double
// gives and leaks in every build.
#include "common/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(memory, bytes)   ASAN_POISON_MEMORY_REGION(memory, bytes)
#define UNPOISON(memory, bytes) ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#else
#define POISON(memory, bytes)   ((void)(memory), (void)(bytes))
#define UNPOISON(memory, bytes) ((void)(memory), (void)(bytes))
#endif

#define POOL_MAGIC     0x6c6f6f705f736100ull // "\0as_pool"
#define SLOT_ALIGN     64u                   // a cache line: neighbours do not share one
#define POOL_COUNT_MAX (1u << 24)

struct as_pool {
    uint64_t magic;
    const char *name;
    size_t object_bytes;
    size_t stride_bytes;
    uint32_t count;
    uint32_t used;
    uint32_t *free_slots; // stack of slot indexes; the first count - used are free
    uint8_t *taken;       // one a slot
    char *slab;
};

static atomic_uint_fast64_t allocations;      // numbers given out
static atomic_uint_fast64_t allocations_seen; // at the last as_mem_fail_nth
static atomic_uint_fast64_t failing;          // number that fails; 0: none

static _Thread_local uint64_t requested_bytes;

static void *counted(void *memory, size_t bytes)
{
    requested_bytes += memory ? bytes : 0;
    return memory;
}

uint64_t as_mem_requested(void)
{
    return requested_bytes;
}

// True when this allocation is the one that a test wants to fail.
static int next_fails(void)
{
    uint64_t number = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1;
    return number == atomic_load_explicit(&failing, memory_order_relaxed);
}

uint64_t as_mem_fail_nth(uint64_t n)
{
    uint64_t now = atomic_load_explicit(&allocations, memory_order_relaxed);
    atomic_store_explicit(&failing, n == 0 ? 0 : now + n, memory_order_relaxed);
    return now - atomic_exchange_explicit(&allocations_seen, now, memory_order_relaxed);
}

void *as_mem_alloc(size_t bytes)
{
    return next_fails() ? NULL : counted(malloc(bytes ? bytes : 1), bytes);
}

void *as_mem_zalloc(size_t count, size_t bytes)
{
    size_t total;
    if (next_fails() || __builtin_mul_overflow(count, bytes, &total)) {
        return NULL;
    }
    return counted(calloc(1, total ? total : 1), total);
}

void *as_mem_realloc(void *memory, size_t bytes)
{
    return next_fails() ? NULL : counted(realloc(memory, bytes ? bytes : 1), bytes);
}

void *as_mem_aligned(size_t alignment, size_t bytes)
{
    void *memory = NULL;
    if (next_fails() || posix_memalign(&memory, alignment, bytes ? bytes : 1) != 0) {
        return NULL;
    }
    return counted(memory, bytes);
}

char *as_mem_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = as_mem_alloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

void as_mem_free(void *memory)
{
    free(memory);
}

as_status_t as_pool_alloc(const char *name, size_t object_bytes, uint32_t count_max,
                          as_pool_t **pool_p)
{
    if (object_bytes == 0 || count_max == 0 || count_max > POOL_COUNT_MAX) {
        return AS_ERR_INVALID;
    }
    size_t stride_bytes = (object_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    if (stride_bytes < object_bytes || stride_bytes > SIZE_MAX / count_max) {
        return AS_ERR_LIMIT;
    }
    as_pool_t *pool = as_mem_zalloc(1, sizeof(*pool));
    if (!pool) {
        return AS_ERR_NO_MEMORY;
    }
    pool->slab = as_mem_aligned(SLOT_ALIGN, stride_bytes * count_max);
    pool->free_slots = as_mem_zalloc(count_max, sizeof(*pool->free_slots));
    pool->taken = as_mem_zalloc(count_max, sizeof(*pool->taken));
    if (!pool->slab || !pool->free_slots || !pool->taken) {
        as_mem_free(pool->taken);
        as_mem_free(pool->free_slots);
        as_mem_free(pool->slab);
        as_mem_free(pool);
        return AS_ERR_NO_MEMORY;
    }
    pool->magic = POOL_MAGIC;
    pool->name = name;
    pool->object_bytes = object_bytes;
    pool->stride_bytes = stride_bytes;
    pool->count = count_max;
    for (uint32_t slot = 0; slot < count_max; slot++) {
        pool->free_slots[slot] = count_max - 1 - slot; // the first take gives slot 0
    }
    POISON(pool->slab, stride_bytes * count_max);
    *pool_p = pool;
    return AS_OK;
}

void as_pool_free(as_pool_t *pool)
{
    if (!pool) {
        return;
    }
    AS_ASSERT(pool->magic == POOL_MAGIC);
    if (pool->used != 0) {
        AS_ERROR("mem", "pool %s freed with used %u", pool->name, pool->used);
    }
    AS_ASSERT(pool->used == 0);
    UNPOISON(pool->slab, pool->stride_bytes * pool->count);
    pool->magic = 0;
    as_mem_free(pool->taken);
    as_mem_free(pool->free_slots);
    as_mem_free(pool->slab);
    as_mem_free(pool);
}

void *as_pool_take(as_pool_t *pool)
{
    AS_ASSERT(pool->magic == POOL_MAGIC);
    if (pool->used == pool->count) {
        return NULL;
    }
    uint32_t slot = pool->free_slots[pool->count - 1 - pool->used];
    AS_ASSERT(!pool->taken[slot]);
    pool->taken[slot] = 1;
    pool->used++;
    void *object = pool->slab + (size_t)slot * pool->stride_bytes;
    UNPOISON(object, pool->object_bytes);
    return memset(object, 0, pool->object_bytes);
}

void as_pool_give(as_pool_t *pool, void *object)
{
    AS_ASSERT(pool->magic == POOL_MAGIC);
    size_t offset = (size_t)((char *)object - pool->slab);
    AS_ASSERT(offset % pool->stride_bytes == 0 && offset / pool->stride_bytes < pool->count);
    uint32_t slot = (uint32_t)(offset / pool->stride_bytes);
    AS_ASSERT(pool->taken[slot]);
    pool->taken[slot] = 0;
    pool->used--;
    pool->free_slots[pool->count - 1 - pool->used] = slot;
    POISON(object, pool->object_bytes);
}

uint32_t as_pool_used(const as_pool_t *pool)
{
    return pool->used;
}
