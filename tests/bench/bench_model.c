// SPDX-License-Identifier: Apache-2.0
// Speed of the forward pass alone: prefill of a prompt, then decoding after it, with a full cache
// in memory; --batch N: of N prompts of that length together, tokens per second of them all.
//
// bench_model --model FILE [--threads N] [--prompt TOKENS] [--decode TOKENS] [--repeat N] [--batch N]
// prints one line of JSON: the best of the repeats, as tests/bench/llama_cpp.py does for llama.cpp,
// and the time to load.
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "gpuworker/model/choose.h"
#include "gpuworker/model/forward.h"
#include "tests/bench/clock.h"

#define PAGE_TOKENS 64u
#define BATCH_MAX   32u

typedef struct bench {
    const char *path;
    uint32_t threads, prompt, decode, repeat, batch;
    gpw_model_t *model;
    const krn_ops_t *ops;
    krn_pool_t *pool;
    gpw_workspace_t *workspace;
    gpw_forward_t *forward[BATCH_MAX];   // one a sequence
    gpw_forward_part_t parts[BATCH_MAX]; // of the step in progress, one of each sequence
    krn_f16 *cache;                      // [sequence][layer][page][K or V][kv head][token][dim]
    krn_page_t *pages;
    void *scratch;
    uint32_t pages_max;
    uint32_t tokens; // cached of each sequence before the pass
} bench_t;

static size_t part_elements(const gpw_model_t *model)
{
    return (size_t)model->kv_heads * PAGE_TOKENS * model->head_dim;
}

static krn_f16 *page_at(const bench_t *bench, uint32_t sequence, uint32_t layer, uint32_t page)
{
    uint64_t before = (uint64_t)sequence * bench->model->layers + layer;
    return bench->cache + (before * bench->pages_max + page) * 2 * part_elements(bench->model);
}

// One row of K and V.
static void store(const bench_t *bench, krn_f16 *page, uint32_t position, const krn_f16 *k,
                  const krn_f16 *v)
{
    const gpw_model_t *model = bench->model;
    for (uint32_t head = 0; head < model->kv_heads; head++) {
        size_t to = ((size_t)head * PAGE_TOKENS + position % PAGE_TOKENS) * model->head_dim;
        size_t from = (size_t)head * model->head_dim;
        memcpy(page + to, k + from, model->head_dim * sizeof(*k));
        memcpy(page + part_elements(model) + to, v + from, model->head_dim * sizeof(*v));
    }
}

typedef struct rows {
    uint32_t sequence, layer, position, count; // position: of the first
    const float *q;
    const krn_f16 *k, *v;
    float *out;
} rows_t;

static void attend_sequence(bench_t *bench, const rows_t *rows)
{
    const gpw_model_t *model = bench->model;
    size_t kv = (size_t)model->kv_heads * model->head_dim;
    int32_t positions[GPW_FORWARD_STEP_ROWS];
    for (uint32_t row = 0; row < rows->count; row++) {
        uint32_t position = rows->position + row;
        positions[row] = (int32_t)position;
        store(bench, page_at(bench, rows->sequence, rows->layer, position / PAGE_TOKENS), position,
              rows->k + row * kv, rows->v + row * kv);
    }
    uint32_t pages = (rows->position + rows->count + PAGE_TOKENS - 1) / PAGE_TOKENS;
    for (uint32_t i = 0; i < pages; i++) {
        krn_f16 *page = page_at(bench, rows->sequence, rows->layer, i);
        bench->pages[i] = (krn_page_t){.k = page, .v = page + part_elements(model), .index = i};
    }
    krn_attention_args_t args = {.rows = rows->count,
                                 .q_heads = model->q_heads,
                                 .kv_heads = model->kv_heads,
                                 .dim = model->head_dim,
                                 .capacity = PAGE_TOKENS,
                                 .scale = 1.0f / __builtin_sqrtf((float)model->head_dim),
                                 .q = rows->q,
                                 .positions = positions,
                                 .pages = bench->pages,
                                 .page_count = pages};
    krn_attention(bench->ops, bench->pool, &args, rows->out, NULL, bench->scratch);
}

// The rows of all sequences, one after another; row0 is the same of each.
static void attend(void *ctx, uint32_t layer, uint32_t row0, uint32_t rows, const float *q,
                   const krn_f16 *k, const krn_f16 *v, float *out)
{
    bench_t *bench = ctx;
    const gpw_model_t *model = bench->model;
    size_t kv = (size_t)model->kv_heads * model->head_dim;
    size_t width = (size_t)model->q_heads * model->head_dim;
    uint32_t each = rows / bench->batch;
    for (uint32_t sequence = 0; sequence < bench->batch; sequence++) {
        uint32_t at = sequence * each;
        rows_t part = {.sequence = sequence,
                       .layer = layer,
                       .position = bench->tokens + row0,
                       .count = each,
                       .q = q + at * width,
                       .k = k + at * kv,
                       .v = v + at * kv,
                       .out = out + at * width};
        attend_sequence(bench, &part);
    }
}

// A pass of `rows` tokens of each sequence, `tokens` [batch][rows]; logits [batch][vocab] of the last.
static void pass(bench_t *bench, const int32_t *tokens, uint32_t rows, float *logits)
{
    int32_t *positions = as_mem_alloc(rows * sizeof(*positions));
    uint32_t step = GPW_FORWARD_STEP_ROWS / bench->batch;
    gpw_forward_row_t last[BATCH_MAX];
    for (uint32_t row = 0; row < rows; row++) {
        positions[row] = (int32_t)(bench->tokens + row);
    }
    for (uint32_t i = 0; i < bench->batch; i++) {
        gpw_forward_begin(bench->forward[i], tokens + (size_t)i * rows, positions, rows);
        last[i] = (gpw_forward_row_t){bench->forward[i], rows - 1};
    }
    while (gpw_forward_next_layer(bench->forward[0]) < bench->model->layers) {
        uint32_t left = gpw_forward_rows_left(bench->forward[0]);
        for (uint32_t i = 0; i < bench->batch; i++) {
            bench->parts[i] = (gpw_forward_part_t){bench->forward[i], left < step ? left : step};
        }
        gpw_forward_step(bench->workspace, bench->parts, bench->batch, attend, bench);
    }
    gpw_forward_logits(bench->workspace, last, bench->batch, logits);
    bench->tokens += rows;
    as_mem_free(positions);
}

static void run_once(bench_t *bench, double *prefill_p, double *decode_p)
{
    const gpw_choose_params_t greedy = {0};
    uint32_t vocab = bench->model->vocab, batch = bench->batch;
    float *logits = as_mem_alloc((size_t)batch * vocab * sizeof(float));
    int32_t *tokens = as_mem_alloc((size_t)batch * bench->prompt * sizeof(int32_t));
    int32_t next[BATCH_MAX];
    for (uint32_t i = 0; i < batch * bench->prompt; i++) {
        tokens[i] = (int32_t)((i * 7919u + 13) % vocab);
    }
    bench->tokens = 0;
    double start = now_s();
    pass(bench, tokens, bench->prompt, logits);
    double middle = now_s();
    for (uint32_t i = 0; i < bench->decode; i++) {
        for (uint32_t b = 0; b < batch; b++) {
            next[b] = gpw_choose(logits + (size_t)b * vocab, vocab, bench->tokens, &greedy, NULL);
        }
        pass(bench, next, 1, logits);
    }
    double end = now_s();
    double prefill = batch * bench->prompt / (middle - start);
    double decode = batch * bench->decode / (end - middle);
    *prefill_p = prefill > *prefill_p ? prefill : *prefill_p;
    *decode_p = decode > *decode_p ? decode : *decode_p;
    as_mem_free(tokens);
    as_mem_free(logits);
}

static int set_up_forwards(bench_t *bench, uint32_t rows)
{
    if (gpw_workspace_alloc(bench->model, bench->ops, bench->pool, rows, &bench->workspace) !=
        AS_OK) {
        return 0;
    }
    for (uint32_t i = 0; i < bench->batch; i++) {
        if (gpw_forward_alloc(bench->workspace, bench->prompt, &bench->forward[i]) != AS_OK) {
            return 0;
        }
    }
    return 1;
}

static int set_up(bench_t *bench)
{
    char error[256] = "";
    gpw_model_options_t options = {.path = bench->path};
    if (gpw_model_load(&options, error, sizeof(error), &bench->model) != AS_OK) {
        fprintf(stderr, "bench_model: %s\n", error);
        return 0;
    }
    const gpw_model_t *model = bench->model;
    uint32_t tokens = bench->prompt + bench->decode;
    bench->ops = krn_cpu();
    bench->pages_max = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    size_t elements = (size_t)model->layers * bench->pages_max * 2 * part_elements(model);
    bench->cache = as_mem_zalloc(bench->batch * elements, sizeof(krn_f16));
    bench->pages = as_mem_zalloc(bench->pages_max, sizeof(krn_page_t));
    uint32_t rows = GPW_FORWARD_STEP_ROWS;
    bench->scratch =
        as_mem_aligned(64, krn_attention_scratch_bytes(rows, model->q_heads, model->head_dim));
    return bench->ops && bench->cache && bench->pages && bench->scratch &&
           tokens <= model->context_max && krn_pool_alloc(bench->threads, &bench->pool) == AS_OK &&
           set_up_forwards(bench, rows);
}

static int parse(bench_t *bench, int argc, char **argv)
{
    static const struct option names[] = {{"model", required_argument, NULL, 'm'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"prompt", required_argument, NULL, 'p'},
                                          {"decode", required_argument, NULL, 'd'},
                                          {"repeat", required_argument, NULL, 'r'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {NULL, 0, NULL, 0}};
    int name;
    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        uint32_t value = name == 'm' || name == '?' ? 1 : (uint32_t)strtoul(optarg, NULL, 10);
        uint32_t *target = name == 't'   ? &bench->threads
                           : name == 'p' ? &bench->prompt
                           : name == 'd' ? &bench->decode
                           : name == 'b' ? &bench->batch
                                         : &bench->repeat;
        if (name == 'm') {
            bench->path = optarg;
        } else if (name == '?' || value == 0) {
            return 0;
        } else {
            *target = value;
        }
    }
    return bench->path != NULL && bench->batch <= BATCH_MAX;
}

int main(int argc, char **argv)
{
    bench_t bench = {.path = getenv("ASSAY_MODEL"),
                     .threads = 2,
                     .prompt = 512,
                     .decode = 128,
                     .repeat = 3,
                     .batch = 1};
    if (!parse(&bench, argc, argv)) {
        fprintf(stderr,
                "usage: bench_model --model FILE [--threads N] [--prompt TOKENS] [--decode TOKENS] "
                "[--repeat N] [--batch N]\n");
        return 2;
    }
    double start = now_s();
    if (!set_up(&bench)) {
        fprintf(stderr, "bench_model: cannot set up (memory, threads, or prompt + decode exceed "
                        "the context)\n");
        return 1;
    }
    double load_s = now_s() - start, prefill = 0, decode = 0;
    for (uint32_t i = 0; i < bench.repeat; i++) {
        run_once(&bench, &prefill, &decode);
    }
    printf(
        "{\"engine\": \"assay\", \"kernels\": \"%s\", \"threads\": %u, \"batch\": %u, "
        "\"prompt_tokens\": %u, \"decode_tokens\": %u, \"load_s\": %.3f, \"weight_bytes\": %" PRIu64
        ", \"prefill_tokens_per_s\": %.1f, \"decode_tokens_per_s\": %.1f}\n",
        bench.ops->name, bench.threads, bench.batch, bench.prompt, bench.decode, load_s,
        bench.model->weight_bytes, prefill, decode);
    for (uint32_t i = 0; i < bench.batch; i++) {
        gpw_forward_free(bench.forward[i]);
    }
    gpw_workspace_free(bench.workspace);
    krn_pool_free(bench.pool);
    as_mem_free(bench.scratch);
    as_mem_free(bench.pages);
    as_mem_free(bench.cache);
    gpw_model_free(bench.model);
    return 0;
}
