// SPDX-License-Identifier: Apache-2.0
// Matrix products over the v16 of the simd_<isa>.h included before.
//
// An output is one chain of fused multiply-adds over k, so the only freedom is which outputs are
// computed together and where a chain is interrupted: a sum stored to `out` after some k and loaded
// again goes on with the same bits.
//
// Few rows: bound by reading the weights. A work item is some panels; it reads several side by
// side, since one chain alone would wait 4 cycles for every step, and converts f16 in registers.
// More rows than the highest tile takes are shared out evenly, since a low tile costs as much time
// as one of twice its height; the tiles go over the same panels while they are in the cache.
//
// More rows: bound by arithmetic. Goto's scheme: a work item is a block of rows and some panels.
// For K_BLOCK of k at a time, the block's x is transposed to [16 rows][k][16] (L2), TILE_PANELS
// panels are converted to f32 (L1) while the next are prefetched, and register tiles of TILE_ROWS x
// TILE_PANELS go over the block's rows.
#include <string.h>

#include "common/assert.h"
#include "kernels/cpu/cpu.h"

#define PANEL_COLUMNS  KRN_PANEL
#define ROW_GROUP      16u                  // rows transposed together
#define FEW_ROWS       (4u * KRN_TILE_ROWS) // above, converting once is cheaper than once a tile
#define LOW_ROWS       3u                   // tiles that the memory binds
#define BLOCK_ROWS     128u // rows of a work item: they share the price of converting a panel
#define K_BLOCK        192u // 3 panels: 36 KB
#define PREFETCH_BYTES 1024 // ahead in every panel of a streamed product
#define ITEMS_THREAD   4u   // work items per thread: an interrupted thread does not delay the rest

#define KRN_INLINE static inline __attribute__((always_inline))

// One register tile. Panel p of b begins at b + p * panel_stride; row r of x is a[k * a_stride +
// r].
typedef struct tile_args {
    const float *a;
    size_t a_stride; // ROW_GROUP, or 1 for a row alone; constant where there is more than one row
    const void *b;
    size_t panel_stride;
    uint32_t k;
    uint32_t last_columns; // of the last panel, 1 .. 16
    int resume;            // go on from what out holds
    float *out;
    size_t out_stride;
} tile_args_t;

typedef struct job {
    const krn_weight_t *w;
    const float *x;
    float *out;
    uint32_t rows;
    uint32_t panels;
    uint32_t unit_panels, items;        // few rows: an item is some units of panels
    uint32_t item_panels, item_columns; // many rows: items side by side in one block of rows
    uint32_t tiles;                     // few rows: that share them out
    const float *packed;                // few rows: x of each tile as [k][16]; x itself for one row
} job_t;

KRN_INLINE v16 load_weights(const void *b, size_t at, int f16)
{
    return f16 ? v16_load_f16((const krn_f16 *)b + at) : v16_load((const float *)b + at);
}

KRN_INLINE void tile_load(v16 acc[KRN_STREAM_ROWS][8], const tile_args_t *t, const int R,
                          const int P)
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            const float *from = t->out + r * t->out_stride + p * PANEL_COLUMNS;
            if (!t->resume)
                acc[r][p] = v16_set1(0.0f);
            else
                acc[r][p] = p == P - 1 ? v16_load_n(from, t->last_columns) : v16_load(from);
        }
}

KRN_INLINE void tile_store(v16 acc[KRN_STREAM_ROWS][8], const tile_args_t *t, const int R,
                           const int P)
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            float *to = t->out + r * t->out_stride + p * PANEL_COLUMNS;
            if (p == P - 1)
                v16_store_n(to, acc[r][p], t->last_columns);
            else
                v16_store(to, acc[r][p]);
        }
}

// R, P and f16 are constants wherever these are inlined, so that acc lives in registers.
KRN_INLINE void tile_packed(const tile_args_t *t, const int R, const int P)
{
    v16 acc[KRN_STREAM_ROWS][8];
    const float *a = t->a, *b = t->b;

    tile_load(acc, t, R, P);
    for (uint32_t k = 0; k < t->k; k++, a += ROW_GROUP, b += PANEL_COLUMNS) {
        v16 w[8];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++)
            w[p] = v16_load(b + p * t->panel_stride);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            v16 x = v16_set1(a[r]);
#pragma GCC unroll 8
            for (int p = 0; p < P; p++)
                acc[r][p] = v16_fma(x, w[p], acc[r][p]);
        }
    }
    tile_store(acc, t, R, P);
}

KRN_INLINE void stream_step(v16 acc[KRN_STREAM_ROWS][8], const tile_args_t *t, uint32_t k,
                            const int R, const int P, const int f16)
{
    const float *a = t->a + k * (R == 1 ? t->a_stride : ROW_GROUP);
    v16 w[8];

#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
        w[p] = load_weights(t->b, p * t->panel_stride + (size_t)k * PANEL_COLUMNS, f16);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        v16 x = v16_set1(a[r]);
#pragma GCC unroll 8
        for (int p = 0; p < P; p++)
            acc[r][p] = v16_fma(x, w[p], acc[r][p]);
    }
}

KRN_INLINE void tile_stream(const tile_args_t *t, const int R, const int P, const int f16)
{
    v16 acc[KRN_STREAM_ROWS][8];
    uint32_t k = 0;

    tile_load(acc, t, R, P);
    for (; k + 2 <= t->k; k += 2) {
        stream_step(acc, t, k, R, P, f16);
        stream_step(acc, t, k + 1, R, P, f16);
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) // two steps of f16 are one cache line
            v16_prefetch((const char *)t->b +
                         (p * t->panel_stride + (size_t)k * PANEL_COLUMNS) * (f16 ? 2 : 4) +
                         PREFETCH_BYTES);
    }
    if (k < t->k)
        stream_step(acc, t, k, R, P, f16);
    tile_store(acc, t, R, P);
}

// Every tile is one function, chosen from a table: for each height, streams of one, some and many
// panels side by side (many fill the registers; f32 has no many), and packed tiles of one or all.
typedef void tile_fn(const tile_args_t *t);

#define MANY(R) (KRN_ACCUMULATORS / (R) > 8 ? 8 : KRN_ACCUMULATORS / (R))
#define SOME(R) (MANY(R) == 8 ? 4 : MANY(R) >= 4 ? 2 : 1)
#define TILE(R, NAME, CALL)                                                                        \
    static void NAME##_##R(const tile_args_t *t)                                                   \
    {                                                                                              \
        CALL;                                                                                      \
    }
#define PACKED_TILES(R)                                                                            \
    TILE(R, packed_one, tile_packed(t, R, 1))                                                      \
    TILE(R, packed_two, tile_packed(t, R, KRN_TILE_PANELS < 2 ? 1 : 2))                            \
    TILE(R, packed_all, tile_packed(t, R, KRN_TILE_PANELS))
#define STREAM_TILES(R)                                                                            \
    TILE(R, f16_one, tile_stream(t, R, 1, 1))                                                      \
    TILE(R, f16_some, tile_stream(t, R, SOME(R), 1))                                               \
    TILE(R, f16_many, tile_stream(t, R, MANY(R), 1))                                               \
    TILE(R, f32_one, tile_stream(t, R, 1, 0))                                                      \
    TILE(R, f32_some, tile_stream(t, R, SOME(R), 0))

#define HEIGHTS_4(X)     X(1) X(2) X(3) X(4)
#define HEIGHTS_6(X)     HEIGHTS_4(X) X(5) X(6)
#define HEIGHTS_8(X)     HEIGHTS_6(X) X(7) X(8)
#define HEIGHTS_12(X)    HEIGHTS_8(X) X(9) X(10) X(11) X(12)
#define HEIGHTS_OF(N, X) HEIGHTS_##N(X)
#define HEIGHTS(N, X)    HEIGHTS_OF(N, X)

HEIGHTS(KRN_TILE_ROWS, PACKED_TILES)
HEIGHTS(KRN_STREAM_ROWS, STREAM_TILES)

typedef struct stream {
    uint32_t panels;
    tile_fn *tile;
} stream_t;

#define PACKED_ROW(R) {packed_one_##R, packed_two_##R, packed_all_##R},
#define F16_ROW(R)    {{1, f16_one_##R}, {SOME(R), f16_some_##R}, {MANY(R), f16_many_##R}},
#define F32_ROW(R)    {{1, f32_one_##R}, {SOME(R), f32_some_##R}, {SOME(R), f32_some_##R}},

static tile_fn *const packed_tiles[KRN_TILE_ROWS][3] = {HEIGHTS(KRN_TILE_ROWS, PACKED_ROW)};
static const stream_t f16_streams[KRN_STREAM_ROWS][3] = {HEIGHTS(KRN_STREAM_ROWS, F16_ROW)};
static const stream_t f32_streams[KRN_STREAM_ROWS][3] = {HEIGHTS(KRN_STREAM_ROWS, F32_ROW)};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static size_t weight_bytes(const krn_weight_t *w)
{
    return w->type == KRN_WEIGHT_F16 ? sizeof(krn_f16) : sizeof(float);
}

static uint32_t last_columns(const krn_weight_t *w, uint32_t panel_end)
{
    return min_u32(w->n - (panel_end - 1) * PANEL_COLUMNS, PANEL_COLUMNS);
}

// to[k][16] = x[row][k], for up to 16 rows; rows that are not there are 0.
static void pack_rows(const float *x, size_t stride, uint32_t rows, uint32_t k, float *to)
{
    for (uint32_t k0 = 0; k0 < k; k0 += 16) {
        uint32_t count = min_u32(k - k0, 16);
        v16 block[16];
        for (uint32_t r = 0; r < 16; r++)
            block[r] = r < rows ? v16_load_n(x + r * stride + k0, count) : v16_set1(0.0f);
        v16_transpose(block);
        for (uint32_t i = 0; i < count; i++)
            v16_store(to + (size_t)(k0 + i) * ROW_GROUP, block[i]);
    }
}

// ---- Few rows -----------------------------------------------------------------------

static const stream_t *streams_of(const krn_weight_t *w, uint32_t rows)
{
    return w->type == KRN_WEIGHT_F16 ? f16_streams[rows - 1] : f32_streams[rows - 1];
}

// Which of a height's three streams is the widest that `left` panels allow.
static uint32_t stream_width(const stream_t *streams, uint32_t left)
{
    if (streams[2].panels <= left)
        return 2;
    return streams[1].panels <= left ? 1 : 0;
}

// The first row of a tile; the tile after the last begins where the rows end.
static uint32_t tile_begin(const job_t *job, uint32_t tile)
{
    return job->rows * tile / job->tiles;
}

// One tile of rows with panels [panel, end).
static void stream_rows(const job_t *job, uint32_t tile, uint32_t panel, uint32_t end)
{
    const krn_weight_t *w = job->w;
    uint32_t r = tile_begin(job, tile);
    const stream_t *streams = streams_of(w, tile_begin(job, tile + 1) - r);
    tile_args_t t = {.a_stride = job->rows == 1 ? 1 : ROW_GROUP,
                     .panel_stride = (size_t)w->k * PANEL_COLUMNS,
                     .k = w->k,
                     .out_stride = w->n};

    t.a = job->packed + (size_t)tile * ROW_GROUP * w->k;
    while (panel < end) {
        const stream_t *stream = &streams[stream_width(streams, end - panel)];
        t.b = (const char *)w->data + panel * t.panel_stride * weight_bytes(w);
        t.out = job->out + (size_t)r * w->n + (size_t)panel * PANEL_COLUMNS;
        panel += stream->panels;
        t.last_columns = last_columns(w, panel);
        stream->tile(&t);
    }
}

static uint32_t highest_tile(const job_t *job)
{
    return (job->rows + job->tiles - 1) / job->tiles;
}

static void stream_item(void *ctx, uint32_t index)
{
    const job_t *job = ctx;
    uint32_t units = (job->panels + job->unit_panels - 1) / job->unit_panels;
    uint32_t panel = (uint32_t)((uint64_t)units * index / job->items) * job->unit_panels;
    uint32_t end = (uint32_t)((uint64_t)units * (index + 1) / job->items) * job->unit_panels;
    const stream_t *streams = streams_of(job->w, highest_tile(job));

    end = min_u32(end, job->panels);
    while (panel < end) { // all rows with as many panels as the highest tile takes at once
        uint32_t next = panel + streams[stream_width(streams, end - panel)].panels;
        for (uint32_t tile = 0; tile < job->tiles; tile++)
            stream_rows(job, tile, panel, next);
        panel = next;
    }
}

static void matmul_stream(krn_pool_t *pool, job_t *job)
{
    uint32_t threads = krn_pool_threads(pool);
    uint32_t height = highest_tile(job), k = job->w->k;
    float *packed = krn_pool_caller_scratch(pool);

    job->packed = job->rows == 1 ? job->x : packed;
    for (uint32_t tile = 0; job->rows > 1 && tile < job->tiles; tile++) {
        uint32_t r = tile_begin(job, tile);
        pack_rows(job->x + (size_t)r * k, k, tile_begin(job, tile + 1) - r, k,
                  packed + (size_t)tile * ROW_GROUP * k);
    }
    // Wide tiles want whole widths; low ones are bound by memory and divide evenly instead.
    job->unit_panels = height <= LOW_ROWS ? 1 : streams_of(job->w, height)[2].panels;
    uint32_t units = (job->panels + job->unit_panels - 1) / job->unit_panels;
    job->items = threads == 1 ? 1 : min_u32(units, threads * ITEMS_THREAD);
    krn_pool_run(pool, job->items, stream_item, job);
}

// ---- Many rows ----------------------------------------------------------------------

// Some panels side by side, for k in [k0, k0 + k).
typedef struct panels {
    const krn_weight_t *w;
    uint32_t panel, panels, k0, k;
} panels_t;

// The panels as f32, in to[panel][K_BLOCK][16].
static void convert_panels(const panels_t *from_panels, float *to)
{
    const krn_weight_t *w = from_panels->w;

    for (uint32_t p = 0; p < from_panels->panels; p++) {
        size_t start = ((size_t)(from_panels->panel + p) * w->k + from_panels->k0) * PANEL_COLUMNS;
        const krn_f16 *from = (const krn_f16 *)w->data + start;
        for (uint32_t i = 0; i < from_panels->k; i++)
            v16_store(to + ((size_t)p * K_BLOCK + i) * PANEL_COLUMNS,
                      v16_load_f16(from + (size_t)i * PANEL_COLUMNS));
    }
}

// Prefetches rows [first, end) of `rows` parts of what convert_panels will read.
static void prefetch_panels(const panels_t *next, uint32_t first, uint32_t end, uint32_t rows)
{
    uint32_t lines = next->k * PANEL_COLUMNS * (uint32_t)sizeof(krn_f16) / 64; // of one panel
    uint32_t total = lines * next->panels;

    for (uint32_t i = total * first / rows; i < total * end / rows; i++) {
        size_t start = ((size_t)(next->panel + i / lines) * next->w->k + next->k0) * PANEL_COLUMNS;
        v16_prefetch((const char *)next->w->data + start * sizeof(krn_f16) + i % lines * 64);
    }
}

// Rows [r, r + count) of the packed groups: never over the end of a group.
static uint32_t tile_rows(uint32_t rows, uint32_t r)
{
    return min_u32(min_u32(rows - r, KRN_TILE_ROWS), ROW_GROUP - r % ROW_GROUP);
}

// All tiles of one block of rows with `panels` panels side by side; t holds the block's first row.
static void tiles_of_block(tile_args_t t, uint32_t rows, uint32_t panels, const panels_t *next)
{
    const float *packed = t.a;
    float *out = t.out;

    for (uint32_t r = 0, count; r < rows; r += count) {
        count = tile_rows(rows, r);
        prefetch_panels(next, r, r + count, rows);
        t.a = packed + (size_t)(r / ROW_GROUP) * ROW_GROUP * K_BLOCK + r % ROW_GROUP;
        t.out = out + r * t.out_stride;
        packed_tiles[count - 1][panels - 1](&t);
    }
}

static void block_k(const job_t *job, uint32_t row0, uint32_t rows, panels_t now, uint32_t end)
{
    const krn_weight_t *w = job->w;
    const int f16 = w->type == KRN_WEIGHT_F16;
    float *converted = krn_pool_scratch();
    float *packed = converted + KRN_TILE_PANELS * K_BLOCK * PANEL_COLUMNS;
    tile_args_t t = {.a = packed, .k = now.k, .resume = now.k0 > 0, .out_stride = w->n};

    for (uint32_t r = 0; r < rows; r += ROW_GROUP)
        pack_rows(job->x + (size_t)(row0 + r) * w->k + now.k0, w->k, min_u32(rows - r, ROW_GROUP),
                  now.k, packed + (size_t)r * K_BLOCK);
    for (; now.panel < end; now.panel += now.panels) {
        now.panels = min_u32(end - now.panel, KRN_TILE_PANELS);
        panels_t next = now;
        next.panel = now.panel + now.panels;
        next.panels = f16 ? min_u32(end - next.panel, KRN_TILE_PANELS) : 0;
        if (f16)
            convert_panels(&now, converted);
        t.b = f16 ? converted
                  : (const float *)w->data + ((size_t)now.panel * w->k + now.k0) * PANEL_COLUMNS;
        t.panel_stride = (size_t)(f16 ? K_BLOCK : w->k) * PANEL_COLUMNS;
        t.last_columns = last_columns(w, next.panel);
        t.out = job->out + (size_t)row0 * w->n + (size_t)now.panel * PANEL_COLUMNS;
        tiles_of_block(t, rows, now.panels, &next);
    }
}

static void block_item(void *ctx, uint32_t index)
{
    const job_t *job = ctx;
    uint32_t row0 = index / job->item_columns * BLOCK_ROWS;
    uint32_t panel = index % job->item_columns * job->item_panels;
    uint32_t panel_end = min_u32(panel + job->item_panels, job->panels);

    for (uint32_t k0 = 0; k0 < job->w->k; k0 += K_BLOCK) {
        panels_t first = {
            .w = job->w, .panel = panel, .k0 = k0, .k = min_u32(job->w->k - k0, K_BLOCK)};
        block_k(job, row0, min_u32(job->rows - row0, BLOCK_ROWS), first, panel_end);
    }
}

static void matmul_blocks(krn_pool_t *pool, job_t *job)
{
    uint32_t row_blocks = (job->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    uint32_t threads = krn_pool_threads(pool);
    uint32_t columns = threads == 1 ? 1 : (threads * ITEMS_THREAD + row_blocks - 1) / row_blocks;
    uint32_t tile_columns = (job->panels + KRN_TILE_PANELS - 1) / KRN_TILE_PANELS;

    columns = min_u32(columns, tile_columns);
    job->item_panels = (tile_columns + columns - 1) / columns * KRN_TILE_PANELS;
    job->item_columns = (job->panels + job->item_panels - 1) / job->item_panels;
    krn_pool_run(pool, row_blocks * job->item_columns, block_item, job);
}

void KRN_ISA(matmul)(krn_pool_t *pool, const krn_weight_t *w, const float *x, uint32_t rows,
                     float *out)
{
    job_t job = {.w = w, .x = x, .out = out, .rows = rows};

    _Static_assert((KRN_TILE_PANELS * PANEL_COLUMNS + BLOCK_ROWS) * K_BLOCK * sizeof(float) <=
                       KRN_SCRATCH_BYTES,
                   "the packed rows and converted panels fit the scratch");
    AS_ASSERT(w->n > 0 && w->k > 0);
    if (rows == 0)
        return;
    job.panels = (w->n + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    job.tiles = (rows + KRN_STREAM_ROWS - 1) / KRN_STREAM_ROWS;
    size_t packed_bytes = (size_t)job.tiles * ROW_GROUP * w->k * sizeof(float);
    if (rows == 1 || (rows <= FEW_ROWS && packed_bytes <= KRN_SCRATCH_BYTES))
        matmul_stream(pool, &job);
    else
        matmul_blocks(pool, &job);
}
