// SPDX-License-Identifier: Apache-2.0
// What the tests of readers share: the readers with the parameters of the table's rows, shapes, and steps that
// attend by them.
#ifndef READERS_FIXTURE_H
#define READERS_FIXTURE_H

#include "compressor_fixture.h"
#include "gpuworker/resident/indexed.h"

static const gpw_compressor_t indexed = {GPW_INDEXED_FUNCTIONS};

enum { READERS = 4 };

static const struct reader {
    const char *name;
    gpw_compressor_params_t params; // as the rows of the table have them, but for the layers
} readers[READERS] = {
    {"page_bounds",
     {.reader = &gpw_read_page_bounds, .read_percent = 25, .read_tokens = 48, .page_tokens = 16}},
    {"clusters",
     {.reader = &gpw_read_clusters, .sink_tokens = 16, .read_percent = 25, .page_tokens = 16}},
    {"two_dimensional",
     {.reader = &gpw_read_two_dimensional,
      .read_percent = 11,
      .page_tokens = 3,
      .channel_percent = 64}},
    {"low_bits", {.reader = &gpw_read_low_bits, .bits = 2, .group = 64, .read_tokens = 64}},
};

static const as_shape_t heads[] = {
    {1, 9, 3, 64, 64, AS_ELEMENT_F16},  {2, 4, 4, 64, 16, AS_ELEMENT_F16},
    {2, 5, 1, 80, 50, AS_ELEMENT_F16},  {1, 2, 2, 80, 32, AS_ELEMENT_F16},
    {1, 6, 2, 128, 64, AS_ELEMENT_F16}, {1, 3, 3, 128, 16, AS_ELEMENT_F16},
    {1, 4, 1, 256, 32, AS_ELEMENT_F16}, {1, 2, 2, 256, 50, AS_ELEMENT_F16},
};

enum { HEADS = sizeof(heads) / sizeof(heads[0]) };

// Some 600 tokens.
static inline sample_t sample_of(as_shape_t shape, uint32_t rows)
{
    return sample_make(shape, (600 + shape.block_tokens - 1) / shape.block_tokens, rows);
}

// Attends with rows [row, row + rows) of the sample's, the first of them at a position.
typedef struct step {
    uint32_t row, rows, position, since, threads;
} step_t;

static inline attended_t attend_step(const sample_t *s, const gpw_compressor_t *c,
                                     const gpw_segment_t *segment, step_t step)
{
    attended_t a = {0};
    krn_pool_t *pool;
    size_t pairs = (size_t)step.rows * s->shape.q_heads;
    assert_int_equal(krn_pool_alloc(step.threads ? step.threads : 1, &pool), AS_OK);
    a.floats = pairs * (s->shape.head_dim + 2);
    a.memory = as_mem_alloc(a.floats * sizeof(float));
    a.scratch = as_mem_alloc(gpw_segment_scratch_bytes(&s->shape, step.rows));
    a.partials = gpw_partials_carve(a.memory, pairs, s->shape.head_dim);
    gpw_segment_attend_t args = {.pool = pool,
                                 .layer = s->shape.layers - 1,
                                 .rows = step.rows,
                                 .position = step.position,
                                 .since = step.since,
                                 .scale = 1.0f / sqrtf((float)s->shape.head_dim),
                                 .q =
                                     s->q + (size_t)step.row * s->shape.q_heads * s->shape.head_dim,
                                 .out = &a.partials,
                                 .scratch = a.scratch};
    c->attend(segment, &args);
    krn_pool_free(pool);
    as_mem_free(a.scratch);
    return a;
}

// By the row that was attended with last.
static inline bool is_chosen(const gpw_read_t *read, uint32_t kv_head, uint32_t token)
{
    uint32_t count;
    const uint32_t *chosen = gpw_read_chosen(read, kv_head, &count);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(i == 0 || chosen[i - 1] < chosen[i]);
        if (chosen[i] == token) {
            return true;
        }
    }
    return false;
}

#endif
