// SPDX-License-Identifier: Apache-2.0
// A draft step's attention over sealed segments, and sealing, beside what the machine allows; of methods
// that look at a prompt's last queries also what choosing takes, for one layer.
//
//   bench_segments [threads] [tokens] [sessions] [json]
//
// The shape is that of SmolLM2-135M: 30 layers, 9 query and 3 KV heads of 64. One step attends with
// one row to every layer of every session's segment, as drafting does: whole sessions by each thread
// where there are enough, else all threads on one. Time is for one layer of one session. What comes first is
// attention over exact f16, of which the last lines give the multiple: tokens of the context attended to a second, in
// all layers, and what choosing and sealing a token cost in all layers. The two take turns, so that other work on the
// machine falls on both, and the median of the rounds counts. Of a method with a reader the bytes are those that it holds, of which a step reads a part;
// beside them what the allocator gave. With `json` the last line is all that was measured.
#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "gpuworker/resident/compressor.h"
#include "gpuworker/resident/pages.h"
#include "gpuworker/resident/partials.h"
#include "tests/bench/machine.h"

enum {
    LAYERS = 30,
    Q_HEADS = 9,
    KV_HEADS = 3,
    DIM = 64,
    TOKENS = 64,
    SESSIONS_MAX = 64,
    ROWS_MAX = 64
};

typedef struct step {
    const gpw_compressor_t *compressor;
    gpw_segment_t *segments[SESSIONS_MAX];
    krn_pool_t *pools[SESSIONS_MAX]; // of one thread
    float *scratch[SESSIONS_MAX], *out, *q;
    uint32_t sessions, layer, position; // position: steps follow each other, as in a draft
} step_t;

static const as_shape_t shape = {LAYERS, Q_HEADS, KV_HEADS, DIM, TOKENS, AS_ELEMENT_F16};

static void attend(step_t *step, uint32_t session, krn_pool_t *threads)
{
    krn_partials_t out =
        gpw_partials_carve(step->out + session * Q_HEADS * (DIM + 2), Q_HEADS, DIM);
    gpw_segment_attend_t args = {.pool = threads,
                                 .layer = step->layer,
                                 .rows = 1,
                                 .position = step->position,
                                 .scale = 0.125f,
                                 .q = step->q,
                                 .out = &out,
                                 .scratch = step->scratch[session]};
    step->compressor->attend(step->segments[session], &args);
}

static void attend_session(void *ctx, uint32_t index)
{
    step_t *step = ctx;
    attend(step, index, step->pools[index]);
}

static void step_job(void *ctx)
{
    step_t *step = ctx;
    step->position++;
    for (step->layer = 0; step->layer < LAYERS; step->layer++) {
        if (step->sessions >= 2 * krn_pool_threads(pool)) {
            krn_pool_run(pool, step->sessions, attend_session, step);
            continue;
        }
        for (uint32_t s = 0; s < step->sessions; s++)
            attend(step, s, pool);
    }
}

typedef struct sealing {
    step_t *step;
    const krn_f16 *extents; // of each block, the same in all layers
    uint32_t blocks;
} sealing_t;

static const krn_f16 *extent_of(const krn_f16 *extents, uint32_t block)
{
    return extents + block * (as_extent_bytes(&shape) / sizeof(krn_f16));
}

static void seal_session(void *ctx, uint32_t index)
{
    const sealing_t *sealing = ctx;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t b = 0; b < sealing->blocks; b++)
            sealing->step->compressor->seal(sealing->step->segments[index], l, b,
                                            extent_of(sealing->extents, b));
}

// The first block's extent is that of the tail, too.
static double observe_all(step_t *step, const krn_f16 *extents, uint32_t blocks)
{
    gpw_segment_observe_t args = {.pool = pool,
                                  .tokens = blocks * TOKENS + GPW_OBSERVED_ROWS_MAX,
                                  .rows = step->compressor->params.window_tokens,
                                  .scale = 0.125f};
    krn_page_t *pages = memory((blocks + 1) * sizeof(*pages));
    float *q = floats((size_t)args.rows * Q_HEADS * DIM), *lse = floats(args.rows * Q_HEADS);
    for (uint32_t b = 0; b <= blocks; b++)
        pages[b] = gpw_page(&shape, extent_of(extents, b % blocks), b);
    for (uint32_t i = 0; i < args.rows * Q_HEADS; i++)
        lse[i] = logf((float)args.tokens);
    args.pages = pages;
    args.q = q;
    args.lse = lse;
    args.scratch = memory(gpw_segment_observe_bytes(&shape, args.tokens));
    double start = now();
    for (uint32_t s = 0; s < step->sessions; s++)
        for (args.layer = 0; args.layer < LAYERS; args.layer++)
            step->compressor->observe(step->segments[s], &args);
    double seconds = (now() - start) / (step->sessions * LAYERS);
    as_mem_free(args.scratch);
    as_mem_free(pages);
    as_mem_free(q);
    as_mem_free(lse);
    return seconds;
}

static void open_all(step_t *step, uint32_t blocks)
{
    gpw_segment_options_t options = {.params = &step->compressor->params,
                                     .shape = shape,
                                     .ops = krn_cpu(),
                                     .blocks_max = blocks,
                                     .prompt_blocks = blocks};
    for (uint32_t s = 0; s < step->sessions; s++) {
        AS_ASSERT(step->compressor->open(&options, &step->segments[s]) == AS_OK);
        AS_ASSERT(step->compressor->reserve(step->segments[s], blocks) == AS_OK);
        AS_ASSERT(krn_pool_alloc(1, &step->pools[s]) == AS_OK);
        step->scratch[s] = memory(gpw_segment_scratch_bytes(&shape, 1));
    }
    step->out = floats((size_t)step->sessions * Q_HEADS * (DIM + 2));
    step->q = floats(Q_HEADS * DIM);
}

static void close_all(step_t *step)
{
    for (uint32_t s = 0; s < step->sessions; s++) {
        step->compressor->close(step->segments[s]);
        krn_pool_free(step->pools[s]);
        as_mem_free(step->scratch[s]);
    }
    as_mem_free(step->out);
    as_mem_free(step->q);
}

typedef struct figures {
    const char *name;
    double bytes, allocated, seal_us;             // of one token, all layers
    double tokens_per_s, f16_tokens_per_s, ratio; // in turns
} figures_t;

static double allocated(void)
{
    struct mallinfo2 now = mallinfo2();
    return (double)now.uordblks + (double)now.hblkhd;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof(*values), ascending);
    return values[ROUNDS / 2];
}

static double seconds_of(step_t *step)
{
    double start = now(), seconds;
    long repeat = 0;
    do {
        step_job(step);
        repeat++;
        seconds = now() - start;
    } while (seconds < ROUND_MIN);
    return seconds / (double)repeat;
}

typedef struct race {
    double seconds, f16_seconds, ratio; // ratio: f16's by its own, each of one round
} race_t;

// Medians over rounds in turns.
static race_t race(step_t *step, step_t *f16)
{
    double own[ROUNDS], exactly[ROUNDS], ratios[ROUNDS];
    seconds_of(f16); // warms up
    seconds_of(step);
    for (int r = 0; r < ROUNDS; r++) {
        exactly[r] = seconds_of(f16);
        own[r] = seconds_of(step);
        ratios[r] = exactly[r] / own[r];
    }
    return (race_t){median(own), median(exactly), median(ratios)};
}

// Sealed; the caller closes it. NULL for `f16`: it is that itself.
static figures_t bench(const gpw_compressor_t *compressor, uint32_t tokens, step_t *step,
                       step_t *f16)
{
    uint32_t sessions = step->sessions;
    sealing_t sealing = {.step = step, .blocks = tokens / TOKENS};
    size_t elements = sealing.blocks * (as_extent_bytes(&shape) / sizeof(krn_f16));
    float *values = floats(elements);
    krn_f16 *extents = memory(elements * sizeof(krn_f16));
    figures_t figures = {.name = compressor->name};
    char what[64];

    step->compressor = compressor;
    krn_cpu()->f32_to_f16(values, elements, extents);
    sealing.extents = extents;
    open_all(step, sealing.blocks);
    if (compressor->observe) {
        double seconds = observe_all(step, extents, sealing.blocks);
        snprintf(what, sizeof what, "choose of %u", tokens);
        report(compressor->name, what, 0, 2e-9 * tokens * KV_HEADS * DIM, seconds);
        figures.seal_us = seconds * 1e6 * LAYERS / tokens;
    }
    double start = now();
    krn_pool_run(pool, sessions, seal_session, &sealing);
    double seconds = (now() - start) / (sessions * sealing.blocks * LAYERS);
    figures.seal_us += seconds * 1e6 * LAYERS / TOKENS;
    snprintf(what, sizeof what, "seal an extent of %u", TOKENS);
    double bytes = (double)compressor->bytes(step->segments[0]) / LAYERS;
    figures.bytes = bytes * LAYERS / tokens;
    report(compressor->name, what, 0, 1e-9 * (double)as_extent_bytes(&shape), seconds);
    race_t raced = race(step, f16 ? f16 : step);
    seconds = raced.seconds / (LAYERS * sessions);
    figures.tokens_per_s = sessions * tokens / raced.seconds;
    figures.f16_tokens_per_s = sessions * tokens / raced.f16_seconds;
    figures.ratio = raced.ratio;
    snprintf(what, sizeof what, "%u sessions of %u", sessions, tokens);
    report(compressor->name, what, 4e-9 * tokens * Q_HEADS * DIM, 1e-9 * bytes, seconds);
    as_mem_free(values);
    as_mem_free(extents);
    return figures;
}

// Every token, exact.
static gpw_compressor_t exact(uint32_t tokens)
{
    gpw_compressor_t f16 = *gpw_compressor_find("streaming");
    f16.name = "f16";
    f16.params.window_tokens = tokens;
    return f16;
}

// Of one session's segment, as the allocator tells, a token.
static double allocated_of(const gpw_compressor_t *compressor, uint32_t tokens)
{
    step_t step = {.compressor = compressor, .sessions = 1};
    uint32_t blocks = tokens / TOKENS;
    krn_f16 *extent = memory(as_extent_bytes(&shape));
    float *values = floats(as_extent_bytes(&shape) / sizeof(*extent));
    krn_cpu()->f32_to_f16(values, as_extent_bytes(&shape) / sizeof(*extent), extent);
    gpw_segment_options_t options = {.params = &compressor->params,
                                     .shape = shape,
                                     .ops = krn_cpu(),
                                     .blocks_max = blocks,
                                     .prompt_blocks = blocks};
    double before = allocated();
    AS_ASSERT(compressor->open(&options, &step.segments[0]) == AS_OK);
    AS_ASSERT(compressor->reserve(step.segments[0], blocks) == AS_OK);
    double bytes = allocated() - before;
    compressor->close(step.segments[0]);
    as_mem_free(values);
    as_mem_free(extent);
    return bytes / tokens;
}

static void print_figures(const figures_t *f)
{
    printf("%-10s %14.0f %14.0f %14.0f %10.2f %20.2f\n", f->name, f->bytes, f->allocated,
           f->tokens_per_s, f->ratio, f->seal_us);
}

static void print_json(const figures_t *f, const char *separator)
{
    printf("%s{\"name\": \"%s\", \"bytes\": %.2f, \"allocated\": %.2f, \"tokens_per_s\": %.1f, "
           "\"f16_tokens_per_s\": %.1f, \"ratio\": %.3f, \"seal_us\": %.3f}",
           separator, f->name, f->bytes, f->allocated, f->tokens_per_s, f->f16_tokens_per_s,
           f->ratio, f->seal_us);
}

static void compare(uint32_t tokens, uint32_t sessions, bool json)
{
    gpw_compressor_t f16 = exact(tokens);
    step_t exactly = {.sessions = sessions};
    figures_t of[ROWS_MAX];
    uint32_t count = 0;

    of[count] = bench(&f16, tokens, &exactly, NULL);
    of[count++].allocated = allocated_of(&f16, tokens);
    for (const gpw_compressor_t *c = gpw_compressors(); c->name; c++) {
        AS_ASSERT(count < ROWS_MAX);
        if (c->flags & GPW_COMPRESSOR_CALIBRATED) {
            continue; // its codec is here
        }
        step_t step = {.sessions = sessions};
        of[count] = bench(c, tokens, &step, &exactly);
        close_all(&step);
        of[count++].allocated = allocated_of(c, tokens);
    }
    close_all(&exactly);
    printf("%-10s %14s %14s %14s %10s %20s\n", "", "bytes a token", "allocated", "tokens/s",
           "of f16's", "sealing, us a token");
    for (uint32_t i = 0; i < count; i++)
        print_figures(&of[i]);
    for (uint32_t i = 0; json && i < count; i++)
        print_json(&of[i], i == 0 ? "[" : ", ");
    printf(json ? "]\n" : "");
}

int main(int argc, char **argv)
{
    long threads = argc > 1 ? strtol(argv[1], NULL, 10) : 2;
    long tokens = argc > 2 ? strtol(argv[2], NULL, 10) : 8192;
    long sessions = argc > 3 ? strtol(argv[3], NULL, 10) : 8;
    bool json = argc > 4 && strcmp(argv[4], "json") == 0;

    if (threads < 1 || tokens < TOKENS || sessions < 1 || sessions > SESSIONS_MAX ||
        krn_pool_alloc((uint32_t)threads, &pool) != AS_OK) {
        fprintf(stderr, "usage: bench_segments [threads] [tokens] [sessions] [json]\n");
        return 2;
    }
    lanes = strcmp(krn_cpu()->name, "avx512") == 0 ? 16
            : strcmp(krn_cpu()->name, "avx2") == 0 ? 8
                                                   : 0;
    measure_machine();
    measure_reading((size_t)sessions * (size_t)tokens * 7200); // as much as kivi4 has
    compare((uint32_t)tokens, (uint32_t)sessions, json);
    krn_pool_free(pool);
    return 0;
}
