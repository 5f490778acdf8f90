// SPDX-License-Identifier: Apache-2.0
// Places and fills the weights: one arena for all of them, panels packed row group by row group.
//
// The arena is laid out by walking the model once without memory, to learn its size, and once with
// it. It is aligned for huge pages: decoding streams all of it for every token, and 4 KiB pages
// would spend a tenth of that on address translation. Every tensor of the file must be used; one
// that is left over means an architecture which only looks like one that is known.
#include "gpuworker/model/model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/model/dequant.h"

#define ARENA_ALIGN     (2u << 20)
#define WEIGHT_ALIGN    64u
#define ROWS_AT_ONCE    16u // dequantised together: one panel
#define F16_MAX         65504.0f
#define TENSOR_NAME_MAX 96
// The smallest format has 4.5 bits a weight, f32 panels have 32; padding of panels on top. More is
// not in the file.
#define WEIGHT_GROWTH_MAX  8u
#define WEIGHT_SLACK_BYTES (64u << 20)

typedef struct arena {
    char *base; // NULL: only counts
    size_t used;
} arena_t;

// A part of a stacked matrix (or vector): where in it a tensor's rows go.
typedef struct part {
    const char *name; // after "blk.N."
    uint32_t rows;
} part_t;

// A matrix or vector and the tensors stacked in it.
typedef struct fill {
    krn_weight_t *matrix;
    const float *vector;
    const part_t *parts;
    uint32_t count;
} fill_t;

static void *arena_take(arena_t *arena, size_t bytes)
{
    void *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (bytes + WEIGHT_ALIGN - 1) / WEIGHT_ALIGN * WEIGHT_ALIGN;
    return memory;
}

static const float *place_vector(arena_t *arena, uint32_t n, bool present)
{
    return present ? arena_take(arena, n * sizeof(float)) : NULL;
}

static krn_weight_t place_matrix(arena_t *arena, krn_weight_type_t type, uint32_t n, uint32_t k)
{
    return (krn_weight_t){
        .type = type, .n = n, .k = k, .data = arena_take(arena, krn_weight_bytes(type, n, k))};
}

static bool has_tensor(const gpw_loader_t *loader, uint32_t layer, const char *name)
{
    char full[TENSOR_NAME_MAX];
    snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
    return gpw_gguf_find_tensor(loader->gguf, full) != NULL;
}

static void place_layer(const gpw_loader_t *loader, arena_t *arena, uint32_t index)
{
    const gpw_model_t *model = loader->model;
    gpw_layer_t *layer = &model->layer[index];
    krn_weight_type_t type = loader->options->weights;
    uint32_t q = model->q_heads * model->head_dim;
    uint32_t kv = model->kv_heads * model->head_dim;
    bool norms = model->architecture == GPW_QWEN3;
    layer->attention_norm = place_vector(arena, model->embed, true);
    layer->qkv = place_matrix(arena, type, q + 2 * kv, model->embed);
    layer->qkv_bias = place_vector(arena, q + 2 * kv, has_tensor(loader, index, "attn_q.bias"));
    layer->q_norm = place_vector(arena, model->head_dim, norms);
    layer->k_norm = place_vector(arena, model->head_dim, norms);
    layer->o = place_matrix(arena, type, model->embed, q);
    layer->ffn_norm = place_vector(arena, model->embed, true);
    layer->gate_up = place_matrix(arena, type, 2 * model->ffn, model->embed);
    layer->down = place_matrix(arena, type, model->embed, model->ffn);
}

static void place_all(const gpw_loader_t *loader, arena_t *arena)
{
    gpw_model_t *model = loader->model;
    krn_weight_type_t type = loader->options->weights;
    model->embedding = place_matrix(arena, type, model->vocab, model->embed);
    for (uint32_t i = 0; i < model->layers; i++) {
        place_layer(loader, arena, i);
    }
    model->output_norm = place_vector(arena, model->embed, true);
    bool tied = gpw_gguf_find_tensor(loader->gguf, "output.weight") == NULL;
    model->output = tied ? model->embedding : place_matrix(arena, type, model->vocab, model->embed);
}

const gpw_gguf_tensor_t *gpw_loader_tensor(gpw_loader_t *loader, const char *name)
{
    const gpw_gguf_tensor_t *tensor = gpw_gguf_find_tensor(loader->gguf, name);
    if (tensor) {
        loader->tensor_used[tensor - gpw_gguf_tensor(loader->gguf, 0)] = true;
    }
    return tensor;
}

as_status_t gpw_loader_check(gpw_loader_t *loader, const gpw_gguf_tensor_t *tensor, uint64_t n,
                             uint64_t rows)
{
    int name_bytes = tensor->name.bytes < 80 ? (int)tensor->name.bytes : 80;
    uint32_t elements = gpw_dequant_block_elements(tensor->type);
    if (elements == 0) {
        return gpw_loader_fail(
            loader, AS_ERR_UNSUPPORTED, "tensor %.*s has type %s (%u), which is not supported",
            name_bytes, tensor->name.text, gpw_dequant_type_name(tensor->type), tensor->type);
    }
    bool fits = tensor->size[0] == n && tensor->size[1] == rows && tensor->size[2] == 1 &&
                tensor->size[3] == 1;
    if (!fits) {
        return gpw_loader_fail(
            loader, AS_ERR_INVALID, "tensor %.*s is %llu x %llu; the model needs %llu x %llu",
            name_bytes, tensor->name.text, (unsigned long long)tensor->size[0],
            (unsigned long long)tensor->size[1], (unsigned long long)n, (unsigned long long)rows);
    }
    uint64_t bytes = n / elements * rows * gpw_dequant_block_bytes(tensor->type);
    if (n % elements != 0 || bytes > tensor->bytes_max) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "tensor %.*s %s", name_bytes,
                               tensor->name.text,
                               n % elements != 0 ? "has rows that are not whole blocks"
                                                 : "reaches beyond the end of the file");
    }
    return AS_OK;
}

// Weights must be finite; in f16 panels, also within its range.
static as_status_t check_values(gpw_loader_t *loader, const gpw_gguf_tensor_t *tensor,
                                const float *values, size_t count, float limit)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++) {
        bad |= !(fabsf(values[i]) <= limit); // also true of NaN
    }
    if (!bad) {
        return AS_OK;
    }
    int name_bytes = tensor->name.bytes < 80 ? (int)tensor->name.bytes : 80;
    return gpw_loader_fail(loader, AS_ERR_INVALID, "tensor %.*s holds a value that is not finite%s",
                           name_bytes, tensor->name.text,
                           limit == F16_MAX ? " or too large for f16 weights" : "");
}

// Finds, marks and checks a tensor that must be there.
static as_status_t find(gpw_loader_t *loader, const char *name, uint64_t n, uint64_t rows,
                        const gpw_gguf_tensor_t **tensor_p)
{
    const gpw_gguf_tensor_t *tensor = gpw_loader_tensor(loader, name);
    if (!tensor) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "tensor %s is missing", name);
    }
    *tensor_p = tensor;
    return gpw_loader_check(loader, tensor, n, rows);
}

static as_status_t load_vector(gpw_loader_t *loader, const char *name, uint32_t n, const float *out)
{
    const gpw_gguf_tensor_t *tensor = NULL;
    as_status_t status = find(loader, name, n, 1, &tensor);
    if (status != AS_OK) {
        return status;
    }
    float *vector = (float *)(uintptr_t)out; // constant to all but the loader
    gpw_dequant(tensor->type, tensor->data, n, vector);
    return check_values(loader, tensor, vector, n, 3.4e38f);
}

// Rows of a tensor go to rows [row0, row0 + rows) of the matrix; row0 is a multiple of a panel.
static as_status_t load_matrix(gpw_loader_t *loader, const char *name, krn_weight_t *weight,
                               uint32_t row0, uint32_t rows)
{
    const gpw_gguf_tensor_t *tensor = NULL;
    as_status_t status = find(loader, name, weight->k, rows, &tensor);
    size_t row_bytes = 0;
    if (status == AS_OK) {
        row_bytes = weight->k / gpw_dequant_block_elements(tensor->type) *
                    gpw_dequant_block_bytes(tensor->type);
    }
    float limit = weight->type == KRN_WEIGHT_F16 ? F16_MAX : 3.4e38f;
    for (uint32_t row = 0; row < rows && status == AS_OK; row += ROWS_AT_ONCE) {
        uint32_t count = rows - row < ROWS_AT_ONCE ? rows - row : ROWS_AT_ONCE;
        size_t elements = (size_t)count * weight->k;
        gpw_dequant(tensor->type, tensor->data + row * row_bytes, elements, loader->rows);
        status = check_values(loader, tensor, loader->rows, elements, limit);
        krn_weight_pack(weight, row0 + row, count, loader->rows);
    }
    if (status == AS_OK) {
        gpw_loader_progress(loader, rows * row_bytes);
    }
    return status;
}

// Fills a matrix or vector from its tensors "blk.N.<name>"; an absent vector needs none.
static as_status_t fill(gpw_loader_t *loader, uint32_t index, const fill_t *target)
{
    uint32_t row0 = 0;
    as_status_t status = AS_OK;
    for (uint32_t i = 0; i < target->count && status == AS_OK; i++) {
        const part_t *part = &target->parts[i];
        char name[TENSOR_NAME_MAX];
        snprintf(name, sizeof(name), "blk.%u.%s", index, part->name);
        if (target->matrix) {
            status = load_matrix(loader, name, target->matrix, row0, part->rows);
        } else if (target->vector) {
            status = load_vector(loader, name, part->rows, target->vector + row0);
        }
        row0 += part->rows;
    }
    return status;
}

static as_status_t load_layer(gpw_loader_t *loader, uint32_t index)
{
    gpw_model_t *model = loader->model;
    gpw_layer_t *layer = &model->layer[index];
    uint32_t q = model->q_heads * model->head_dim;
    uint32_t kv = model->kv_heads * model->head_dim;
    uint32_t embed = model->embed, ffn = model->ffn, dim = model->head_dim;
    const part_t norms[] = {{"attn_norm.weight", embed}, {"ffn_norm.weight", embed}};
    const part_t head_norms[] = {{"attn_q_norm.weight", dim}, {"attn_k_norm.weight", dim}};
    const part_t qkv[] = {{"attn_q.weight", q}, {"attn_k.weight", kv}, {"attn_v.weight", kv}};
    const part_t bias[] = {{"attn_q.bias", q}, {"attn_k.bias", kv}, {"attn_v.bias", kv}};
    const part_t o[] = {{"attn_output.weight", embed}};
    const part_t gate_up[] = {{"ffn_gate.weight", ffn}, {"ffn_up.weight", ffn}};
    const part_t down[] = {{"ffn_down.weight", embed}};
    const fill_t fills[] = {
        {.vector = layer->attention_norm, .parts = &norms[0], .count = 1},
        {.vector = layer->ffn_norm, .parts = &norms[1], .count = 1},
        {.vector = layer->q_norm, .parts = &head_norms[0], .count = 1},
        {.vector = layer->k_norm, .parts = &head_norms[1], .count = 1},
        {.vector = layer->qkv_bias, .parts = bias, .count = 3},
        {.matrix = &layer->qkv, .parts = qkv, .count = 3},
        {.matrix = &layer->o, .parts = o, .count = 1},
        {.matrix = &layer->gate_up, .parts = gate_up, .count = 2},
        {.matrix = &layer->down, .parts = down, .count = 1},
    };
    as_status_t status = AS_OK;
    for (size_t i = 0; i < sizeof(fills) / sizeof(fills[0]) && status == AS_OK; i++) {
        status = fill(loader, index, &fills[i]);
    }
    return status;
}

static as_status_t load_all(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    as_status_t status =
        load_matrix(loader, "token_embd.weight", &model->embedding, 0, model->vocab);
    for (uint32_t i = 0; i < model->layers && status == AS_OK; i++) {
        status = load_layer(loader, i);
    }
    if (status == AS_OK) {
        status = load_vector(loader, "output_norm.weight", model->embed, model->output_norm);
    }
    if (status == AS_OK && model->output.data != model->embedding.data) {
        status = load_matrix(loader, "output.weight", &model->output, 0, model->vocab);
    }
    return status;
}

static as_status_t check_all_used(gpw_loader_t *loader)
{
    for (uint32_t i = 0; i < gpw_gguf_tensor_count(loader->gguf); i++) {
        gpw_gguf_string_t name = gpw_gguf_tensor(loader->gguf, i)->name;
        if (!loader->tensor_used[i]) {
            return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                                   "tensor %.*s is not part of the %s architecture as known here",
                                   name.bytes < 80 ? (int)name.bytes : 80, name.text,
                                   loader->prefix);
        }
    }
    return AS_OK;
}

as_status_t gpw_loader_weights(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    arena_t arena = {0};
    place_all(loader, &arena);
    size_t bytes = (arena.used + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    size_t file_bytes;
    gpw_gguf_data(loader->gguf, &file_bytes);
    if (arena.used > WEIGHT_GROWTH_MAX * file_bytes + WEIGHT_SLACK_BYTES) {
        return gpw_loader_fail(loader, AS_ERR_INVALID,
                               "the metadata describes %zu MiB of weights, the file has %zu MiB",
                               arena.used >> 20, file_bytes >> 20);
    }
    uint32_t k_max = model->embed > model->ffn ? model->embed : model->ffn;
    uint32_t q = model->q_heads * model->head_dim;
    k_max = k_max > q ? k_max : q;
    model->arena = as_mem_aligned(ARENA_ALIGN, bytes);
    loader->rows = as_mem_alloc((size_t)ROWS_AT_ONCE * k_max * sizeof(float));
    if (!model->arena || !loader->rows) {
        return gpw_loader_fail(loader, AS_ERR_NO_MEMORY, "out of memory for %zu MiB of weights",
                               bytes >> 20);
    }
    madvise(model->arena, bytes, MADV_HUGEPAGE);
    memset(model->arena, 0, bytes);
    arena = (arena_t){.base = model->arena};
    place_all(loader, &arena);
    model->weight_bytes = arena.used;
    as_status_t status = load_all(loader);
    return status == AS_OK ? check_all_used(loader) : status;
}
