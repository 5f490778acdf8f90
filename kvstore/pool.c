// SPDX-License-Identifier: Apache-2.0
// The allocator of the pool: two-level segregated fit over offsets.
//
// Free runs are kept in lists by size class: the first level is the power of two of the run's
// grains, the second divides each power into 16 equal parts. A bit for each non-empty list makes
// the search for a list that surely fits two find-first-set instructions, so taking and giving cost
// the same however full the pool is. Neighbours that are both free are joined at once: no two free
// runs touch.
//
// The descriptors lie outside of the pool, since peers read the pool and nothing of ours may stand
// between blocks. Runs in address order are a doubly linked list (`before`, `after`); a free run is
// also in the list of its class.
#include "kvstore/pool.h"

#include <stdbool.h>

#include "common/assert.h"
#include "common/mem.h"

#define SECOND_BITS  4u
#define SECOND_COUNT (1u << SECOND_BITS)
#define FIRST_COUNT  28u // runs of up to 2^31 grains (8 TiB)

typedef struct run {
    uint32_t first; // in grains
    uint32_t count : 31;
    uint32_t used : 1;
    uint32_t before, after; // by address
    uint32_t prev,
        next; // in the list of its class when free; next: in the list of unused descriptors
} run_t;

struct kvs_pool {
    uint32_t grains, used_grains;
    uint32_t runs_max, runs_used;
    uint32_t descriptors;
    uint32_t unused; // head of the list of unused descriptors
    uint32_t first_bits;
    uint32_t second_bits[FIRST_COUNT];
    uint32_t heads[FIRST_COUNT][SECOND_COUNT];
    run_t runs[];
};

// The class that holds runs of `count` grains.
static void class_of(uint32_t count, uint32_t *first_p, uint32_t *second_p)
{
    if (count < SECOND_COUNT) {
        *first_p = 0;
        *second_p = count;
        return;
    }
    uint32_t power = 31u - (uint32_t)__builtin_clz(count);
    *first_p = power - SECOND_BITS + 1;
    *second_p = (count >> (power - SECOND_BITS)) & (SECOND_COUNT - 1);
}

static void list_insert(kvs_pool_t *pool, uint32_t index)
{
    uint32_t first, second;
    run_t *run = &pool->runs[index];
    class_of(run->count, &first, &second);
    uint32_t *head = &pool->heads[first][second];
    run->prev = KVS_POOL_NONE;
    run->next = *head;
    if (*head != KVS_POOL_NONE) {
        pool->runs[*head].prev = index;
    }
    *head = index;
    pool->first_bits |= 1u << first;
    pool->second_bits[first] |= 1u << second;
}

static void list_remove(kvs_pool_t *pool, uint32_t index)
{
    uint32_t first, second;
    run_t *run = &pool->runs[index];
    class_of(run->count, &first, &second);
    if (run->next != KVS_POOL_NONE) {
        pool->runs[run->next].prev = run->prev;
    }
    if (run->prev != KVS_POOL_NONE) {
        pool->runs[run->prev].next = run->next;
        return;
    }
    AS_ASSERT(pool->heads[first][second] == index);
    pool->heads[first][second] = run->next;
    if (run->next == KVS_POOL_NONE) {
        pool->second_bits[first] &= ~(1u << second);
        if (pool->second_bits[first] == 0) {
            pool->first_bits &= ~(1u << first);
        }
    }
}

static uint32_t descriptor_take(kvs_pool_t *pool)
{
    uint32_t index = pool->unused;
    AS_ASSERT(index != KVS_POOL_NONE); // 2 * runs_max + 1 are enough: no two free runs touch
    pool->unused = pool->runs[index].next;
    return index;
}

static void descriptor_give(kvs_pool_t *pool, uint32_t index)
{
    pool->runs[index].next = pool->unused;
    pool->runs[index].count = 0;
    pool->unused = index;
}

as_status_t kvs_pool_alloc(size_t bytes, uint32_t runs_max, kvs_pool_t **pool_p)
{
    size_t grains = bytes / KVS_POOL_GRAIN_BYTES;
    if (grains == 0 || grains > INT32_MAX || runs_max == 0 || runs_max > INT32_MAX / 2) {
        return AS_ERR_LIMIT;
    }
    uint32_t descriptors = 2 * runs_max + 1;
    kvs_pool_t *pool = as_mem_zalloc(1, sizeof(*pool) + descriptors * sizeof(run_t));
    if (!pool) {
        return AS_ERR_NO_MEMORY;
    }
    pool->grains = (uint32_t)grains;
    pool->runs_max = runs_max;
    pool->descriptors = descriptors;
    pool->unused = KVS_POOL_NONE;
    for (uint32_t i = descriptors; i > 0; i--) {
        descriptor_give(pool, i - 1);
    }
    for (uint32_t first = 0; first < FIRST_COUNT; first++) {
        for (uint32_t second = 0; second < SECOND_COUNT; second++) {
            pool->heads[first][second] = KVS_POOL_NONE;
        }
    }
    uint32_t all = descriptor_take(pool);
    pool->runs[all] =
        (run_t){.count = pool->grains, .before = KVS_POOL_NONE, .after = KVS_POOL_NONE};
    list_insert(pool, all);
    *pool_p = pool;
    return AS_OK;
}

void kvs_pool_free(kvs_pool_t *pool)
{
    as_mem_free(pool);
}

// A free run of at least `count` grains: from the first list all of whose runs are large enough.
static uint32_t find(const kvs_pool_t *pool, uint32_t count)
{
    uint32_t first, second;
    uint32_t round = 0;
    if (count >= SECOND_COUNT) {
        round = (1u << (31u - (uint32_t)__builtin_clz(count) - SECOND_BITS)) - 1;
    }
    class_of(count + round, &first, &second);
    uint32_t bits = first < FIRST_COUNT ? pool->second_bits[first] & (~0u << second) : 0;
    if (bits == 0) {
        uint32_t firsts = first + 1 < FIRST_COUNT ? pool->first_bits & (~0u << (first + 1)) : 0;
        if (firsts == 0) {
            return KVS_POOL_NONE;
        }
        first = (uint32_t)__builtin_ctz(firsts);
        bits = pool->second_bits[first];
    }
    return pool->heads[first][__builtin_ctz(bits)];
}

// The list of the class itself may hold a run that fits although not all of its runs do: the last
// resort of a nearly full pool, so that a run that was just given back can be taken again. Bounded,
// not to cost a request.
static uint32_t find_close(const kvs_pool_t *pool, uint32_t count)
{
    uint32_t first, second;
    class_of(count, &first, &second);
    uint32_t index = pool->heads[first][second];
    for (uint32_t i = 0; i < 16 && index != KVS_POOL_NONE; i++) {
        if (pool->runs[index].count >= count) {
            return index;
        }
        index = pool->runs[index].next;
    }
    return KVS_POOL_NONE;
}

uint32_t kvs_pool_take(kvs_pool_t *pool, size_t bytes, size_t *offset_p)
{
    size_t grains = bytes / KVS_POOL_GRAIN_BYTES + (bytes % KVS_POOL_GRAIN_BYTES != 0);
    if (grains == 0 || grains > pool->grains - pool->used_grains ||
        pool->runs_used == pool->runs_max) {
        return KVS_POOL_NONE;
    }
    uint32_t count = (uint32_t)grains;
    uint32_t index = find(pool, count);
    if (index == KVS_POOL_NONE) {
        index = find_close(pool, count);
    }
    if (index == KVS_POOL_NONE) {
        return KVS_POOL_NONE;
    }
    list_remove(pool, index);
    run_t *run = &pool->runs[index];
    if (run->count > count) {
        uint32_t rest = descriptor_take(pool);
        pool->runs[rest] = (run_t){.first = run->first + count,
                                   .count = run->count - count,
                                   .before = index,
                                   .after = run->after};
        if (run->after != KVS_POOL_NONE) {
            pool->runs[run->after].before = rest;
        }
        run->after = rest;
        run->count = count;
        list_insert(pool, rest);
    }
    run->used = true;
    pool->used_grains += count;
    pool->runs_used++;
    *offset_p = (size_t)run->first * KVS_POOL_GRAIN_BYTES;
    return index;
}

// `after` follows `index` and both are free: one run of both.
static void join(kvs_pool_t *pool, uint32_t index, uint32_t after)
{
    run_t *run = &pool->runs[index];
    run->count += pool->runs[after].count;
    run->after = pool->runs[after].after;
    if (run->after != KVS_POOL_NONE) {
        pool->runs[run->after].before = index;
    }
    descriptor_give(pool, after);
}

void kvs_pool_give(kvs_pool_t *pool, uint32_t index)
{
    AS_ASSERT(index < pool->descriptors && pool->runs[index].used);
    run_t *run = &pool->runs[index];
    run->used = false;
    pool->used_grains -= run->count;
    pool->runs_used--;
    uint32_t after = run->after, before = run->before;
    if (after != KVS_POOL_NONE && !pool->runs[after].used) {
        list_remove(pool, after);
        join(pool, index, after);
    }
    if (before != KVS_POOL_NONE && !pool->runs[before].used) {
        list_remove(pool, before);
        join(pool, before, index);
        index = before;
    }
    list_insert(pool, index);
}

size_t kvs_pool_bytes(const kvs_pool_t *pool)
{
    return (size_t)pool->grains * KVS_POOL_GRAIN_BYTES;
}

size_t kvs_pool_used(const kvs_pool_t *pool)
{
    return (size_t)pool->used_grains * KVS_POOL_GRAIN_BYTES;
}

size_t kvs_pool_largest(const kvs_pool_t *pool)
{
    if (pool->first_bits == 0) {
        return 0;
    }
    uint32_t first = 31u - (uint32_t)__builtin_clz(pool->first_bits);
    uint32_t second = 31u - (uint32_t)__builtin_clz(pool->second_bits[first]);
    uint32_t largest = 0;
    for (uint32_t i = pool->heads[first][second]; i != KVS_POOL_NONE; i = pool->runs[i].next) {
        largest = pool->runs[i].count > largest ? pool->runs[i].count : largest;
    }
    return (size_t)largest * KVS_POOL_GRAIN_BYTES;
}

// Is this free run in the list of its class?
static bool is_listed(const kvs_pool_t *pool, uint32_t index)
{
    uint32_t first, second;
    class_of(pool->runs[index].count, &first, &second);
    for (uint32_t i = pool->heads[first][second]; i != KVS_POOL_NONE; i = pool->runs[i].next) {
        if (i == index) {
            return true;
        }
    }
    return false;
}

void kvs_pool_check(const kvs_pool_t *pool)
{
    uint32_t at = KVS_POOL_NONE;
    for (uint32_t i = 0; i < pool->descriptors; i++) {
        if (pool->runs[i].count > 0 && pool->runs[i].before == KVS_POOL_NONE) {
            AS_ASSERT(at == KVS_POOL_NONE && pool->runs[i].first == 0);
            at = i;
        }
    }
    uint32_t grain = 0, used = 0, runs_used = 0;
    bool free_before = false;
    for (uint32_t before = KVS_POOL_NONE; at != KVS_POOL_NONE;
         before = at, at = pool->runs[at].after) {
        const run_t *run = &pool->runs[at];
        AS_ASSERT(run->first == grain && run->count > 0 && run->before == before);
        AS_ASSERT(run->used || (!free_before && is_listed(pool, at)));
        grain += run->count;
        used += run->used ? run->count : 0;
        runs_used += run->used;
        free_before = !run->used;
    }
    AS_ASSERT(grain == pool->grains && used == pool->used_grains && runs_used == pool->runs_used);
}
