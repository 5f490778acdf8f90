// SPDX-License-Identifier: Apache-2.0
// Attention over any number of pages: splits them into runs and the work into parts, and merges the
// runs in order.
//
// Two ways, same bits, since both merge the same partials in the same order:
//  - few rows (decode, verification): a wave of `slots` runs at a time, a part being (run, KV
//  head), then the wave's
//    partials are merged into the total one after another. One row over a long context keeps all
//    threads busy.
//  - many rows (prefill): a part is (KV head, block of rows) and goes through all runs by itself,
//  merging as it goes
//    in its own rectangle of the total: no waiting between runs.
// Scratch is 1 + slots partials of all rows: the total, then one for each run of a wave.
#include <math.h>

#include "common/assert.h"
#include "kernels/internal.h"

#define WAVE_PAIRS                                                                                 \
    1152u // (row, query head) pairs below which runs are computed in waves: 128 rows of 9 heads
#define WAVE_SLOTS                                                                                 \
    16u // runs of a wave for up to WAVE_PAIRS / 8 pairs; fewer for more, to bound the scratch
#define BLOCK_PAIRS                                                                                \
    192u // (row, head of the group) pairs of one part: what a page's conversion is shared by

// A run: pages[first, first + count) of one aligned group of KRN_RUN_PAGES.
typedef struct run {
    uint32_t first, count;
} run_t;

typedef struct task {
    const krn_ops_t *ops;
    const krn_attention_args_t *args;
    krn_partials_t total;
    krn_partials_t slots[WAVE_SLOTS];
    run_t runs[WAVE_SLOTS];
    uint32_t block_rows, blocks;
    float *out; // NULL: the total is what is wanted
    float *lse;
} task_t;

static uint32_t wave_slots(uint32_t rows, uint32_t q_heads)
{
    uint64_t pairs = (uint64_t)rows * q_heads;

    if (pairs > WAVE_PAIRS)
        return 1;
    return pairs > WAVE_PAIRS / 8 ? WAVE_SLOTS / 4 : WAVE_SLOTS;
}

static size_t partials_bytes(uint32_t rows, uint32_t q_heads, uint32_t dim)
{
    size_t bytes = (size_t)rows * q_heads * (dim + 2) * sizeof(float);

    return (bytes + 63) / 64 * 64;
}

size_t krn_attention_scratch_bytes(uint32_t rows, uint32_t q_heads, uint32_t dim)
{
    return (1 + wave_slots(rows, q_heads)) * partials_bytes(rows, q_heads, dim) + 64;
}

void krn_partials_clear(krn_partials_t *partials, uint32_t count, uint32_t dim)
{
    for (uint32_t i = 0; i < count; i++) {
        partials->max[i] = -INFINITY;
        partials->sum[i] = 0.0f;
    }
    for (size_t i = 0; i < (size_t)count * dim; i++)
        partials->out[i] = 0.0f;
}

void krn_attention_check(const krn_attention_args_t *args)
{
    AS_ASSERT(args->dim > 0 && args->dim % 16 == 0 && args->dim <= KRN_HEAD_DIM_MAX);
    AS_ASSERT(args->capacity > 0 && args->capacity <= KRN_PAGE_TOKENS_MAX);
    AS_ASSERT(args->kv_heads > 0 && args->q_heads % args->kv_heads == 0);
    for (uint32_t p = 1; p < args->page_count; p++)
        AS_ASSERT(args->pages[p - 1].index < args->pages[p].index);
}

static krn_partials_t partials_at(const krn_partials_t *partials, size_t pair, uint32_t dim)
{
    krn_partials_t at = {partials->out + pair * dim, partials->max + pair, partials->sum + pair};

    return at;
}

static krn_partials_t partials_carve(void *memory, uint32_t rows, uint32_t q_heads, uint32_t dim)
{
    size_t pairs = (size_t)rows * q_heads;
    float *floats = memory;
    krn_partials_t partials = {floats, floats + pairs * dim, floats + pairs * dim + pairs};

    return partials;
}

// The run that begins at page `first`.
static run_t run_at(const krn_attention_args_t *args, uint32_t first)
{
    run_t run = {.first = first};
    uint32_t number = args->pages[first].index / KRN_RUN_PAGES;

    while (first + run.count < args->page_count &&
           args->pages[first + run.count].index / KRN_RUN_PAGES == number)
        run.count++;
    return run;
}

static void finish_pairs(const task_t *task, size_t pair, uint32_t count)
{
    uint32_t dim = task->args->dim;
    krn_partials_t total = partials_at(&task->total, pair, dim);

    if (!task->out)
        return;
    task->ops->normalise(&total, count, dim, task->out + pair * dim);
    if (!task->lse)
        return;
    for (uint32_t i = 0; i < count; i++)
        task->lse[pair + i] = total.max[i] + krn_logf(total.sum[i]);
}

// ---- Few rows: waves of runs --------------------------------------------------------

static void wave_item(void *ctx, uint32_t index)
{
    task_t *task = ctx;
    const krn_attention_args_t *args = task->args;
    uint32_t group = args->q_heads / args->kv_heads;
    uint32_t slot = index / args->kv_heads;
    krn_attention_part_t part = {.kv_head = index % args->kv_heads,
                                 .rows = args->rows,
                                 .page0 = task->runs[slot].first,
                                 .pages = task->runs[slot].count};

    for (uint32_t r = 0; r < args->rows; r++) {
        krn_partials_t own = partials_at(
            &task->slots[slot], (size_t)r * args->q_heads + part.kv_head * group, args->dim);
        krn_partials_clear(&own, group, args->dim);
    }
    task->ops->attention_part(args, &part, &task->slots[slot]);
}

static void attend_in_waves(task_t *task, krn_pool_t *pool, uint32_t slots)
{
    const krn_attention_args_t *args = task->args;
    uint32_t pairs = args->rows * args->q_heads;
    uint32_t page = 0;

    krn_partials_clear(&task->total, pairs, args->dim);
    while (page < args->page_count) {
        uint32_t count = 0;
        for (; count < slots && page < args->page_count; count++) {
            task->runs[count] = run_at(args, page);
            page += task->runs[count].count;
        }
        krn_pool_run(pool, count * args->kv_heads, wave_item, task);
        for (uint32_t s = 0; s < count; s++)
            task->ops->merge(&task->total, &task->slots[s], pairs, args->dim);
    }
    finish_pairs(task, 0, pairs);
}

// ---- Many rows: blocks of rows ------------------------------------------------------

static void block_item(void *ctx, uint32_t index)
{
    task_t *task = ctx;
    const krn_attention_args_t *args = task->args;
    uint32_t group = args->q_heads / args->kv_heads;
    // The last rows see the most pages: they begin first, so that the threads end together.
    uint32_t row0 = (task->blocks - 1 - index / args->kv_heads) * task->block_rows;
    uint32_t rows = args->rows - row0 < task->block_rows ? args->rows - row0 : task->block_rows;
    krn_attention_part_t part = {.kv_head = index % args->kv_heads, .row0 = row0, .rows = rows};
    run_t run;

    for (uint32_t page = 0; page < args->page_count; page += run.count) {
        run = run_at(args, page);
        part.page0 = run.first;
        part.pages = run.count;
        krn_partials_t *to = page == 0 ? &task->total : &task->slots[0];
        for (uint32_t r = row0; r < row0 + rows; r++) {
            krn_partials_t own =
                partials_at(to, (size_t)r * args->q_heads + part.kv_head * group, args->dim);
            krn_partials_clear(&own, group, args->dim);
        }
        task->ops->attention_part(args, &part, to);
        for (uint32_t r = row0; page > 0 && r < row0 + rows; r++) {
            size_t pair = (size_t)r * args->q_heads + part.kv_head * group;
            krn_partials_t a = partials_at(&task->total, pair, args->dim);
            krn_partials_t b = partials_at(&task->slots[0], pair, args->dim);
            task->ops->merge(&a, &b, group, args->dim);
        }
    }
    for (uint32_t r = row0; r < row0 + rows; r++)
        finish_pairs(task, (size_t)r * args->q_heads + part.kv_head * group, group);
}

static void attend_in_blocks(task_t *task, krn_pool_t *pool)
{
    const krn_attention_args_t *args = task->args;
    uint32_t group = args->q_heads / args->kv_heads;

    task->block_rows = group < BLOCK_PAIRS ? BLOCK_PAIRS / group : 1;
    task->blocks = (args->rows + task->block_rows - 1) / task->block_rows;
    krn_pool_run(pool, task->blocks * args->kv_heads, block_item, task);
}

static void attend(task_t *task, krn_pool_t *pool, char *memory)
{
    const krn_attention_args_t *args = task->args;
    uint32_t slots = wave_slots(args->rows, args->q_heads);
    size_t bytes = partials_bytes(args->rows, args->q_heads, args->dim);

    for (uint32_t s = 0; s < slots; s++)
        task->slots[s] = partials_carve(memory + s * bytes, args->rows, args->q_heads, args->dim);
    if (slots > 1 || args->page_count == 0)
        attend_in_waves(task, pool, slots);
    else
        attend_in_blocks(task, pool);
}

static char *align(void *scratch)
{
    return (char *)(((uintptr_t)scratch + 63) / 64 * 64);
}

void krn_attention(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                   float *out, float *lse, void *scratch)
{
    task_t task = {.ops = ops, .args = args, .out = out, .lse = lse};
    char *memory = align(scratch);

    krn_attention_check(args);
    if (args->rows == 0)
        return;
    task.total = partials_carve(memory, args->rows, args->q_heads, args->dim);
    attend(&task, pool, memory + partials_bytes(args->rows, args->q_heads, args->dim));
}

void krn_attention_piece(const krn_ops_t *ops, krn_pool_t *pool, const krn_attention_args_t *args,
                         krn_partials_t *io, void *scratch)
{
    task_t task = {.ops = ops, .args = args, .total = *io};

    krn_attention_check(args);
    if (args->rows > 0)
        attend(&task, pool, align(scratch));
}
