// SPDX-License-Identifier: Apache-2.0
// Matrix products over the v16 of the simd_<isa>.h included before.
//
// An output is one chain of fused multiply-adds over k, so the only freedom is which outputs are
// computed together and where a chain is interrupted: a sum stored to `out` after some k and loaded
// again goes on with the same bits.
//
// Few rows (up to TILE rows of registers): bound by reading the weights. A work item is some
// panels; each thread reads its panels once, several side by side, since one chain alone would wait
// 4 cycles for every step, and converts f16 in registers.
//
// More rows: bound by arithmetic. Goto's scheme: a work item is a block of rows and some panels.
// For K_BLOCK of k at a time, the block's x is transposed to [16 rows][k][16] (L2), TILE_PANELS
// panels are converted to f32 (L1), and register tiles of TILE_ROWS x TILE_PANELS go over the
// block's rows.
#include <string.h>

#include "common/assert.h"
#include "kernels/cpu/cpu.h"

#define PANEL_COLUMNS  KRN_PANEL
#define SMALL_ROWS     KRN_TILE_ROWS // rows computed straight from x and the panels
#define ROW_GROUP      16u           // rows transposed together
#define BLOCK_ROWS     128u // rows of a work item: the price of converting a panel is shared by these
#define K_BLOCK        192u // 3 panels: 36 KB
#define PREFETCH_BYTES 1024 // ahead in every panel of a small product
#define ITEMS_THREAD                                                                               \
    4u // work items per thread, so that an interrupted thread does not delay the rest

#define KRN_INLINE static inline __attribute__((always_inline))

// One register tile. Panel p of b begins at b + p * panel_stride; a[r * row_stride + k * k_stride].
typedef struct tile_args {
    const float *a;
    size_t row_stride;
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
    uint32_t panels, item_panels;
    uint32_t item_columns; // items side by side in one block of rows
} job_t;

KRN_INLINE v16 load_weights(const void *b, size_t at, int f16)
{
    return f16 ? v16_load_f16((const krn_f16 *)b + at) : v16_load((const float *)b + at);
}

KRN_INLINE void tile_load(v16 acc[8][8], const tile_args_t *t, const int R, const int P)
{
#pragma GCC unroll 8
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

KRN_INLINE void tile_store(v16 acc[8][8], const tile_args_t *t, const int R, const int P)
{
#pragma GCC unroll 8
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
    v16 acc[8][8];
    const float *a = t->a, *b = t->b;

    tile_load(acc, t, R, P);
    for (uint32_t k = 0; k < t->k; k++, a += ROW_GROUP, b += PANEL_COLUMNS) {
        v16 w[8];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++)
            w[p] = v16_load(b + p * t->panel_stride);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16 x = v16_set1(a[r]);
#pragma GCC unroll 8
            for (int p = 0; p < P; p++)
                acc[r][p] = v16_fma(x, w[p], acc[r][p]);
        }
    }
    tile_store(acc, t, R, P);
}

KRN_INLINE void small_step(v16 acc[8][8], const tile_args_t *t, uint32_t k, const int R,
                           const int P, const int f16)
{
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) {
        v16 w = load_weights(t->b, p * t->panel_stride + (size_t)k * PANEL_COLUMNS, f16);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            acc[r][p] = v16_fma(v16_set1(t->a[r * t->row_stride + k]), w, acc[r][p]);
    }
}

KRN_INLINE void tile_small(const tile_args_t *t, const int R, const int P, const int f16)
{
    v16 acc[8][8];
    uint32_t k = 0;

    tile_load(acc, t, R, P);
    for (; k + 2 <= t->k; k += 2) {
        small_step(acc, t, k, R, P, f16);
        small_step(acc, t, k + 1, R, P, f16);
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) // two steps of f16 are one cache line
            v16_prefetch((const char *)t->b +
                         (p * t->panel_stride + (size_t)k * PANEL_COLUMNS) * (f16 ? 2 : 4) +
                         PREFETCH_BYTES);
    }
    if (k < t->k)
        small_step(acc, t, k, R, P, f16);
    tile_store(acc, t, R, P);
}

// Every tile is one function, chosen from a table. P is cut to 1 where the registers would not do:
// such an entry is never chosen.
typedef void tile_fn(const tile_args_t *t);

#define FITS(R, P) ((R) * (P) <= KRN_ACCUMULATORS ? (P) : 1)
#define PACKED(R, P)                                                                               \
    static void packed_##R##_##P(const tile_args_t *t)                                             \
    {                                                                                              \
        tile_packed(t, R, FITS(R, P));                                                             \
    }
#define SMALL(R, P)                                                                                \
    static void f16_##R##_##P(const tile_args_t *t)                                                \
    {                                                                                              \
        tile_small(t, R, FITS(R, P), 1);                                                           \
    }                                                                                              \
    static void f32_##R##_##P(const tile_args_t *t)                                                \
    {                                                                                              \
        tile_small(t, R, FITS(R, P), 0);                                                           \
    }
#define TILES_OF(R)                                                                                \
    PACKED(R, 1) PACKED(R, 2) PACKED(R, 3) SMALL(R, 1) SMALL(R, 2) SMALL(R, 4) SMALL(R, 8)

TILES_OF(1)
TILES_OF(2)
TILES_OF(3)
TILES_OF(4)
#if KRN_TILE_ROWS > 4
TILES_OF(5)
TILES_OF(6)
#endif
#if KRN_TILE_ROWS > 6
TILES_OF(7)
TILES_OF(8)
#endif

#define PACKED_ROW(R)                                                                              \
    {                                                                                              \
        packed_##R##_1, packed_##R##_2, packed_##R##_3                                             \
    }
#define F16_ROW(R)                                                                                 \
    {                                                                                              \
        f16_##R##_1, f16_##R##_2, f16_##R##_4, f16_##R##_8                                         \
    }
#define F32_ROW(R)                                                                                 \
    {                                                                                              \
        f32_##R##_1, f32_##R##_2, f32_##R##_4, f32_##R##_8                                         \
    }
#if KRN_TILE_ROWS == 8
#define TABLE(ROW)                                                                                 \
    {                                                                                              \
        ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7), ROW(8)                             \
    }
#elif KRN_TILE_ROWS == 6
#define TABLE(ROW)                                                                                 \
    {                                                                                              \
        ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6)                                             \
    }
#else
#define TABLE(ROW)                                                                                 \
    {                                                                                              \
        ROW(1), ROW(2), ROW(3), ROW(4)                                                             \
    }
#endif

static tile_fn *const packed_tiles[KRN_TILE_ROWS][3] = TABLE(PACKED_ROW);
static tile_fn *const small_tiles[2][KRN_TILE_ROWS][4] = {TABLE(F32_ROW), TABLE(F16_ROW)};

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

// ---- Few rows -----------------------------------------------------------------------

static void small_item(void *ctx, uint32_t index)
{
    const job_t *job = ctx;
    const krn_weight_t *w = job->w;
    uint32_t panel = index * job->item_panels;
    uint32_t end = min_u32(panel + job->item_panels, job->panels);
    tile_args_t t = {.a = job->x,
                     .row_stride = w->k,
                     .panel_stride = (size_t)w->k * PANEL_COLUMNS,
                     .k = w->k,
                     .out_stride = w->n};

    while (panel < end) {
        uint32_t log = 0;
        while (log < 3 && (2u << log) <= end - panel && (2u << log) * job->rows <= KRN_ACCUMULATORS)
            log++;
        t.b = (const char *)w->data + panel * t.panel_stride * weight_bytes(w);
        t.out = job->out + (size_t)panel * PANEL_COLUMNS;
        panel += 1u << log;
        t.last_columns = last_columns(w, panel);
        small_tiles[w->type == KRN_WEIGHT_F16][job->rows - 1][log](&t);
    }
}

static void matmul_small(krn_pool_t *pool, job_t *job)
{
    uint32_t threads = krn_pool_threads(pool);
    uint32_t wide = 8; // panels side by side

    while (wide > 1 && wide * job->rows > KRN_ACCUMULATORS)
        wide /= 2;
    uint32_t share = (job->panels + threads * ITEMS_THREAD - 1) / (threads * ITEMS_THREAD);
    job->item_panels = threads == 1 ? job->panels : (share + wide - 1) / wide * wide;
    krn_pool_run(pool, (job->panels + job->item_panels - 1) / job->item_panels, small_item, job);
}

// ---- Many rows ----------------------------------------------------------------------

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

// The weights of `panels` panels from `panel` on, k in [k0, k0 + k), as f32 in
// to[panel][K_BLOCK][16].
static void convert_panels(const krn_weight_t *w, uint32_t panel, uint32_t panels, uint32_t k0,
                           uint32_t k, float *to)
{
    for (uint32_t p = 0; p < panels; p++) {
        const krn_f16 *from =
            (const krn_f16 *)w->data + ((size_t)(panel + p) * w->k + k0) * PANEL_COLUMNS;
        for (uint32_t i = 0; i < k; i++)
            v16_store(to + ((size_t)p * K_BLOCK + i) * PANEL_COLUMNS,
                      v16_load_f16(from + (size_t)i * PANEL_COLUMNS));
    }
}

// All tiles of one block of rows with `panels` panels side by side; t holds the block's first row.
static void tiles_of_block(tile_args_t t, uint32_t rows, uint32_t panels)
{
    const float *packed = t.a;
    float *out = t.out;

    for (uint32_t r = 0; r < rows;) {
        uint32_t group = r % ROW_GROUP;
        uint32_t count = min_u32(min_u32(rows - r, KRN_TILE_ROWS), ROW_GROUP - group);
        t.a = packed + (size_t)(r - group) * K_BLOCK + group;
        t.out = out + r * t.out_stride;
        packed_tiles[count - 1][panels - 1](&t);
        r += count;
    }
}

static void block_k(const job_t *job, uint32_t row0, uint32_t rows, uint32_t panel,
                    uint32_t panel_end, uint32_t k0)
{
    const krn_weight_t *w = job->w;
    float *converted = krn_pool_scratch();
    float *packed = converted + KRN_TILE_PANELS * K_BLOCK * PANEL_COLUMNS;
    uint32_t k = min_u32(w->k - k0, K_BLOCK);
    tile_args_t t = {.a = packed, .k = k, .resume = k0 > 0, .out_stride = w->n};

    for (uint32_t r = 0; r < rows; r += ROW_GROUP)
        pack_rows(job->x + (size_t)(row0 + r) * w->k + k0, w->k, min_u32(rows - r, ROW_GROUP), k,
                  packed + (size_t)r * K_BLOCK);
    for (uint32_t panels; panel < panel_end; panel += panels) {
        panels = min_u32(panel_end - panel, KRN_TILE_PANELS);
        if (w->type == KRN_WEIGHT_F16) {
            convert_panels(w, panel, panels, k0, k, converted);
            t.b = converted;
            t.panel_stride = (size_t)K_BLOCK * PANEL_COLUMNS;
        } else {
            t.b = (const float *)w->data + ((size_t)panel * w->k + k0) * PANEL_COLUMNS;
            t.panel_stride = (size_t)w->k * PANEL_COLUMNS;
        }
        t.last_columns = last_columns(w, panel + panels);
        t.out = job->out + (size_t)row0 * w->n + (size_t)panel * PANEL_COLUMNS;
        tiles_of_block(t, rows, panels);
    }
}

static void block_item(void *ctx, uint32_t index)
{
    const job_t *job = ctx;
    uint32_t row0 = index / job->item_columns * BLOCK_ROWS;
    uint32_t panel = index % job->item_columns * job->item_panels;
    uint32_t panel_end = min_u32(panel + job->item_panels, job->panels);

    for (uint32_t k0 = 0; k0 < job->w->k; k0 += K_BLOCK)
        block_k(job, row0, min_u32(job->rows - row0, BLOCK_ROWS), panel, panel_end, k0);
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
    if (rows <= SMALL_ROWS)
        matmul_small(pool, &job);
    else
        matmul_blocks(pool, &job);
}
