// SPDX-License-Identifier: Apache-2.0
// The allocator of the pool: two-level segregated fit over offsets.
//
// What is free are the gaps behind runs; the first run begins the pool, is empty and is never handed
// out. Gaps are kept in lists by size class: the first level is the power of two of the gap's grains,
// the second divides each power into 16 equal parts. A bit for each non-empty list makes the search for
// a list that surely fits two find-first-set instructions, so taking and giving cost the same however
// full the pool is. A run that is taken has the rest of the gap behind it; one that is given back
// leaves its bytes and its gap to the gap before it.
//
// The descriptors lie outside of the pool, since peers read the pool and nothing of ours may stand
// between blocks. Runs in address order are a doubly linked list (`before`, `after`); one with a gap is
// also in the list of the gap's class.
#include "kvstore/pool.h"

#include "common/assert.h"
#include "common/mem.h"

#define SECOND_BITS  4u
#define SECOND_COUNT (1u << SECOND_BITS)
#define FIRST_COUNT  28u // gaps of up to 2^31 grains (8 TiB)
#define BEGIN        0u  // the descriptor that begins the pool; that of a run is its name + 1
#define NONE         UINT32_MAX

typedef struct run {
    uint32_t first, count;  // in grains; count 0: unused, or BEGIN
    uint32_t before, after; // by address
    uint32_t prev, next;    // in the list of its gap's class
} run_t;

struct kvs_pool {
    uint32_t grains, used_grains;
    uint32_t runs_max, runs_used;
    uint32_t first_bits;
    uint32_t second_bits[FIRST_COUNT];
    uint32_t heads[FIRST_COUNT][SECOND_COUNT];
    run_t runs[];
};

// The class that holds gaps of `count` grains.
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

// The free grains behind a run.
static uint32_t gap_of(const kvs_pool_t *pool, uint32_t index)
{
    const run_t *run = &pool->runs[index];
    uint32_t end = run->after == NONE ? pool->grains : pool->runs[run->after].first;
    return end - run->first - run->count;
}

static void list_insert(kvs_pool_t *pool, uint32_t index)
{
    uint32_t gap = gap_of(pool, index);
    if (gap == 0) {
        return;
    }
    uint32_t first, second;
    run_t *run = &pool->runs[index];
    class_of(gap, &first, &second);
    uint32_t *head = &pool->heads[first][second];
    run->prev = NONE;
    run->next = *head;
    if (*head != NONE) {
        pool->runs[*head].prev = index;
    }
    *head = index;
    pool->first_bits |= 1u << first;
    pool->second_bits[first] |= 1u << second;
}

static void list_remove(kvs_pool_t *pool, uint32_t index)
{
    uint32_t gap = gap_of(pool, index);
    if (gap == 0) {
        return;
    }
    uint32_t first, second;
    run_t *run = &pool->runs[index];
    class_of(gap, &first, &second);
    if (run->next != NONE) {
        pool->runs[run->next].prev = run->prev;
    }
    if (run->prev != NONE) {
        pool->runs[run->prev].next = run->next;
        return;
    }
    AS_ASSERT(pool->heads[first][second] == index);
    pool->heads[first][second] = run->next;
    if (run->next == NONE) {
        pool->second_bits[first] &= ~(1u << second);
        if (pool->second_bits[first] == 0) {
            pool->first_bits &= ~(1u << first);
        }
    }
}

as_status_t kvs_pool_alloc(size_t bytes, uint32_t runs_max, kvs_pool_t **pool_p)
{
    size_t grains = bytes / KVS_POOL_GRAIN_BYTES;
    if (grains == 0 || grains > INT32_MAX || runs_max == 0 || runs_max > INT32_MAX) {
        return AS_ERR_LIMIT;
    }
    size_t descriptors = (size_t)runs_max + 1;
    kvs_pool_t *pool = as_mem_zalloc(1, sizeof(*pool) + descriptors * sizeof(run_t));
    if (!pool) {
        return AS_ERR_NO_MEMORY;
    }
    pool->grains = (uint32_t)grains;
    pool->runs_max = runs_max;
    for (uint32_t first = 0; first < FIRST_COUNT; first++) {
        for (uint32_t second = 0; second < SECOND_COUNT; second++) {
            pool->heads[first][second] = NONE;
        }
    }
    pool->runs[BEGIN] = (run_t){.before = NONE, .after = NONE};
    list_insert(pool, BEGIN);
    *pool_p = pool;
    return AS_OK;
}

void kvs_pool_free(kvs_pool_t *pool)
{
    as_mem_free(pool);
}

// A run with a gap of at least `count` grains: from the first list all of whose gaps are large enough.
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
            return NONE;
        }
        first = (uint32_t)__builtin_ctz(firsts);
        bits = pool->second_bits[first];
    }
    return pool->heads[first][__builtin_ctz(bits)];
}

// The list of the class itself may hold a gap that fits although not all of its gaps do: the last
// resort of a nearly full pool, so that a run that was just given back can be taken again. Bounded,
// not to cost a request.
static uint32_t find_close(const kvs_pool_t *pool, uint32_t count)
{
    uint32_t first, second;
    class_of(count, &first, &second);
    uint32_t index = pool->heads[first][second];
    for (uint32_t i = 0; i < 16 && index != NONE; i++) {
        if (gap_of(pool, index) >= count) {
            return index;
        }
        index = pool->runs[index].next;
    }
    return NONE;
}

bool kvs_pool_take(kvs_pool_t *pool, uint32_t run_name, size_t bytes, size_t *offset_p)
{
    AS_ASSERT(run_name < pool->runs_max && pool->runs[run_name + 1].count == 0);
    size_t grains = bytes / KVS_POOL_GRAIN_BYTES + (bytes % KVS_POOL_GRAIN_BYTES != 0);
    if (grains == 0 || grains > pool->grains - pool->used_grains) {
        return false;
    }
    uint32_t count = (uint32_t)grains;
    uint32_t index = find(pool, count);
    if (index == NONE) {
        index = find_close(pool, count);
    }
    if (index == NONE) {
        return false;
    }
    list_remove(pool, index);
    uint32_t taken = run_name + 1;
    run_t *before = &pool->runs[index], *run = &pool->runs[taken];
    *run = (run_t){.first = before->first + before->count,
                   .count = count,
                   .before = index,
                   .after = before->after};
    if (run->after != NONE) {
        pool->runs[run->after].before = taken;
    }
    before->after = taken;
    list_insert(pool, taken);
    pool->used_grains += count;
    pool->runs_used++;
    *offset_p = (size_t)run->first * KVS_POOL_GRAIN_BYTES;
    return true;
}

void kvs_pool_give(kvs_pool_t *pool, uint32_t run_name)
{
    uint32_t index = run_name + 1;
    AS_ASSERT(run_name < pool->runs_max && pool->runs[index].count > 0);
    run_t *run = &pool->runs[index];
    uint32_t before = run->before;
    list_remove(pool, index);
    list_remove(pool, before);
    pool->used_grains -= run->count;
    pool->runs_used--;
    pool->runs[before].after = run->after;
    if (run->after != NONE) {
        pool->runs[run->after].before = before;
    }
    run->count = 0;
    list_insert(pool, before);
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
    for (uint32_t i = pool->heads[first][second]; i != NONE; i = pool->runs[i].next) {
        uint32_t gap = gap_of(pool, i);
        largest = gap > largest ? gap : largest;
    }
    return (size_t)largest * KVS_POOL_GRAIN_BYTES;
}

// Is its gap in the list of its class?
static bool is_listed(const kvs_pool_t *pool, uint32_t index)
{
    uint32_t first, second;
    class_of(gap_of(pool, index), &first, &second);
    for (uint32_t i = pool->heads[first][second]; i != NONE; i = pool->runs[i].next) {
        if (i == index) {
            return true;
        }
    }
    return false;
}

void kvs_pool_check(const kvs_pool_t *pool)
{
    uint32_t grain = 0, used = 0, runs = 0;
    for (uint32_t before = NONE, at = BEGIN; at != NONE; before = at, at = pool->runs[at].after) {
        const run_t *run = &pool->runs[at];
        AS_ASSERT(run->first >= grain && run->before == before &&
                  (run->count > 0) == (at != BEGIN));
        grain = run->first + run->count;
        AS_ASSERT(grain <= pool->grains && is_listed(pool, at) == (gap_of(pool, at) > 0));
        used += run->count;
        runs++;
    }
    AS_ASSERT(used == pool->used_grains && runs == pool->runs_used + 1);
}
