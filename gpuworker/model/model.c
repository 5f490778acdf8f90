// SPDX-License-Identifier: Apache-2.0
// Loads a model: hyper-parameters, fingerprint, tokenizer, RoPE table, weights; in this order,
// cheap checks first.
//
// Nothing of the file is trusted: gguf.c bounds its structure, this file its numbers,
// model_weights.c its tensors. The first function that finds a fault writes the sentence;
// gpw_model_load logs it once and hands it to the caller. The mapping is closed when the load ends,
// so the file may be replaced afterwards.
#include "gpuworker/model/model.h"

#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/model/model_internal.h"
#include "gpuworker/model/tokenizer.h"

#define EMBED_MAX        65536u
#define FFN_MAX          (1u << 20)
#define VOCAB_MAX        (1u << 20)
#define HEADS_MAX        1024u
#define CONTEXT_MAX      (1u << 20) // positions of the RoPE table
#define HASH_CHUNK_BYTES (4u << 20)

static const struct {
    const char *name;
    gpw_architecture_t architecture;
} architectures[] = {{"llama", GPW_LLAMA}, {"qwen2", GPW_QWEN2}, {"qwen3", GPW_QWEN3}};

as_status_t gpw_loader_fail(gpw_loader_t *loader, as_status_t status, const char *format, ...)
{
    if (loader->error[0] == '\0') { // the first fault is the one to tell
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(loader->error, sizeof(loader->error), format, arguments);
        va_end(arguments);
    }
    return status;
}

void gpw_loader_progress(gpw_loader_t *loader, uint64_t bytes)
{
    loader->bytes_done += bytes;
    if (loader->options->progress) {
        loader->options->progress(loader->options->ctx, loader->bytes_done, loader->bytes_total);
    }
}

const char *gpw_loader_key(const gpw_loader_t *loader, const char *name, char key[128])
{
    snprintf(key, 128, "%s.%s", loader->prefix, name);
    return key;
}

as_status_t gpw_loader_u32(gpw_loader_t *loader, const char *name, uint32_t fallback, uint32_t max,
                           uint32_t *value_p)
{
    char key[128];
    gpw_loader_key(loader, name, key);
    uint32_t value = fallback;
    bool absent = gpw_gguf_find(loader->gguf, key) == NULL;
    if (!gpw_gguf_u32(loader->gguf, key, &value) && (!absent || fallback == 0)) {
        return gpw_loader_fail(loader, absent ? AS_ERR_INVALID : AS_ERR_UNSUPPORTED,
                               "metadata %s is %s", key,
                               absent ? "missing" : "not one positive number");
    }
    if (value == 0 || value > max) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "metadata %s is %u; 1 to %u are allowed",
                               key, value, max);
    }
    *value_p = value;
    return AS_OK;
}

static as_status_t read_architecture(gpw_loader_t *loader)
{
    gpw_gguf_string_t name = {"", 0};
    if (!gpw_gguf_text(loader->gguf, "general.architecture", &name)) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "metadata general.architecture is missing");
    }
    for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++) {
        if (gpw_gguf_string_is(name, architectures[i].name)) {
            loader->model->architecture = architectures[i].architecture;
            loader->prefix = architectures[i].name;
            return AS_OK;
        }
    }
    return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                           "architecture \"%.*s\" is not supported (llama, qwen2 and qwen3 are)",
                           name.bytes < 40 ? (int)name.bytes : 40, name.text);
}

static as_status_t read_heads(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    uint32_t value_dim = 0;
    as_status_t status =
        gpw_loader_u32(loader, "attention.head_count", 0, HEADS_MAX, &model->q_heads);
    if (status == AS_OK) {
        status = gpw_loader_u32(loader, "attention.head_count_kv", model->q_heads, HEADS_MAX,
                                &model->kv_heads);
    }
    uint32_t dim = status == AS_OK ? model->embed / model->q_heads : 0;
    if (status == AS_OK) {
        status = gpw_loader_u32(loader, "attention.key_length", dim, EMBED_MAX, &model->head_dim);
    }
    if (status == AS_OK) {
        status = gpw_loader_u32(loader, "attention.value_length", dim, EMBED_MAX, &value_dim);
    }
    if (status != AS_OK) {
        return status;
    }
    if (model->q_heads % model->kv_heads != 0) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "%u query heads do not share %u KV heads",
                               model->q_heads, model->kv_heads);
    }
    if (value_dim != model->head_dim || model->head_dim % 16 != 0 ||
        model->head_dim > KRN_HEAD_DIM_MAX) {
        return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                               "head dimensions %u (keys) and %u (values): equal multiples of 16 "
                               "up to %u are supported",
                               model->head_dim, value_dim, KRN_HEAD_DIM_MAX);
    }
    return AS_OK;
}

// The context is the least of the model's own, its sliding window (attention is over all tokens
// here, so positions beyond the window would differ from the model's) and what the caller wants.
static as_status_t read_context(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    uint32_t wanted = loader->options->context_max;
    uint32_t own = 0, window = 0;
    as_status_t status = gpw_loader_u32(loader, "context_length", 0, UINT32_MAX, &own);
    if (status != AS_OK) {
        return status;
    }
    char key[128];
    gpw_gguf_u32(loader->gguf, gpw_loader_key(loader, "attention.sliding_window", key), &window);
    if (window > 0 && window < own) {
        if (wanted > window) {
            return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                                   "a context of %u exceeds the model's sliding window of %u: "
                                   "windowed attention is not supported, so %u is the most",
                                   wanted, window, window);
        }
        AS_INFO("model", "context %u, the model's sliding window (of context %u)", window, own);
        own = window;
    }
    if (wanted > own) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "a context of %u exceeds the model's %u",
                               wanted, own);
    }
    model->context_max = wanted > 0 ? wanted : own;
    if (model->context_max > CONTEXT_MAX) {
        model->context_max = CONTEXT_MAX;
    }
    return AS_OK;
}

static as_status_t read_sizes(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    char key[128];
    uint32_t experts = 0;
    gpw_gguf_u32(loader->gguf, gpw_loader_key(loader, "expert_count", key), &experts);
    if (experts > 0) {
        return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                               "mixtures of experts are not supported (%s is %u)", key, experts);
    }
    as_status_t status = gpw_loader_u32(loader, "block_count", 0, AS_LAYERS_MAX, &model->layers);
    if (status == AS_OK) {
        status = gpw_loader_u32(loader, "embedding_length", 0, EMBED_MAX, &model->embed);
    }
    if (status == AS_OK) {
        status = gpw_loader_u32(loader, "feed_forward_length", 0, FFN_MAX, &model->ffn);
    }
    if (status != AS_OK) {
        return status;
    }
    if (model->ffn % KRN_PANEL != 0) {
        return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                               "feed_forward_length %u is not a multiple of %u", model->ffn,
                               KRN_PANEL);
    }
    double eps = 0;
    gpw_gguf_f64(loader->gguf, gpw_loader_key(loader, "attention.layer_norm_rms_epsilon", key),
                 &eps);
    if (!(eps > 0 && eps < 1)) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "metadata %s is missing or not in 0 to 1",
                               key);
    }
    model->norm_eps = (float)eps;
    return AS_OK;
}

static as_status_t read_vocab(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    const gpw_gguf_tensor_t *embedding = gpw_gguf_find_tensor(loader->gguf, "token_embd.weight");
    if (!embedding) {
        return gpw_loader_fail(loader, AS_ERR_INVALID, "tensor token_embd.weight is missing");
    }
    if (embedding->size[1] > VOCAB_MAX) {
        return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED, "%llu tokens; at most %u are supported",
                               (unsigned long long)embedding->size[1], VOCAB_MAX);
    }
    model->vocab = (uint32_t)embedding->size[1];
    as_status_t status = gpw_tokenizer_alloc(loader->gguf, loader->error, &model->tokenizer);
    if (status != AS_OK) {
        return status;
    }
    int32_t tokens = gpw_tokenizer_vocab(model->tokenizer);
    if ((uint32_t)tokens != model->vocab) {
        return gpw_loader_fail(loader, AS_ERR_INVALID,
                               "the tokenizer has %d tokens, the embedding %u", tokens,
                               model->vocab);
    }
    return AS_OK;
}

static void read_name(gpw_loader_t *loader)
{
    gpw_gguf_string_t name = {"", 0};
    gpw_model_t *model = loader->model;
    if (!gpw_gguf_text(loader->gguf, "general.name", &name) || name.bytes == 0) {
        name = (gpw_gguf_string_t){loader->prefix, strlen(loader->prefix)};
    }
    int bytes = name.bytes < sizeof(model->name) ? (int)name.bytes : (int)sizeof(model->name) - 1;
    snprintf(model->name, sizeof(model->name), "%.*s", bytes, name.text);
    for (char *c = model->name; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

static as_status_t hash_file(gpw_loader_t *loader)
{
    size_t bytes;
    const uint8_t *data = gpw_gguf_data(loader->gguf, &bytes);
    loader->bytes_total = 2 * (uint64_t)bytes; // hashed, then dequantised
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    int ok = hash != NULL && EVP_DigestInit_ex(hash, EVP_sha256(), NULL);
    for (size_t at = 0; at < bytes && ok; at += HASH_CHUNK_BYTES) {
        size_t count = bytes - at < HASH_CHUNK_BYTES ? bytes - at : HASH_CHUNK_BYTES;
        ok = EVP_DigestUpdate(hash, data + at, count);
        gpw_loader_progress(loader, count);
    }
    ok = ok && EVP_DigestFinal_ex(hash, loader->model->fingerprint.bytes, NULL);
    EVP_MD_CTX_free(hash);
    return ok ? AS_OK : gpw_loader_fail(loader, AS_ERR_NO_MEMORY, "out of memory while hashing");
}

static as_status_t load(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    as_status_t status = gpw_gguf_open(loader->options->path, loader->error, &loader->gguf);
    if (status != AS_OK) {
        return status;
    }
    loader->tensor_used = as_mem_zalloc(gpw_gguf_tensor_count(loader->gguf), sizeof(bool));
    if (!loader->tensor_used) {
        return gpw_loader_fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    static as_status_t (*const steps[])(gpw_loader_t *) = {
        read_architecture, read_sizes, read_heads,     read_context,
        read_vocab,        hash_file,  gpw_loader_rope};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        status = steps[i](loader);
        if (status != AS_OK) {
            return status;
        }
    }
    read_name(loader);
    model->layer = as_mem_zalloc(model->layers, sizeof(*model->layer));
    if (!model->layer) {
        return gpw_loader_fail(loader, AS_ERR_NO_MEMORY, "out of memory");
    }
    status = gpw_loader_weights(loader);
    if (status == AS_OK && loader->bytes_done < loader->bytes_total) {
        gpw_loader_progress(loader, loader->bytes_total - loader->bytes_done);
    }
    return status;
}

as_status_t gpw_model_load(const gpw_model_options_t *options, char *error, size_t error_bytes,
                           gpw_model_t **model_p)
{
    gpw_model_options_t own = *options;
    own.weights = own.weights ? own.weights : KRN_WEIGHT_F16;
    gpw_loader_t loader = {.options = &own, .prefix = ""};
    loader.model = as_mem_zalloc(1, sizeof(*loader.model));
    as_status_t status =
        loader.model ? load(&loader) : gpw_loader_fail(&loader, AS_ERR_NO_MEMORY, "out of memory");
    gpw_gguf_close(loader.gguf);
    as_mem_free(loader.tensor_used);
    as_mem_free(loader.rows);
    if (status != AS_OK) {
        AS_ERROR("model", "cannot load %s: %s", own.path, loader.error);
        gpw_model_free(loader.model);
        if (error_bytes > 0) {
            snprintf(error, error_bytes, "%s", loader.error);
        }
        return status;
    }
    *model_p = loader.model;
    return AS_OK;
}

void gpw_model_free(gpw_model_t *model)
{
    if (!model) {
        return;
    }
    gpw_tokenizer_free(model->tokenizer);
    as_mem_free((void *)(uintptr_t)model->rope.cos_sin);
    as_mem_free(model->layer);
    as_mem_free(model->arena);
    as_mem_free(model);
}

as_shape_t gpw_model_shape(const gpw_model_t *model, uint32_t block_tokens)
{
    return (as_shape_t){.layers = model->layers,
                        .q_heads = model->q_heads,
                        .kv_heads = model->kv_heads,
                        .head_dim = model->head_dim,
                        .block_tokens = block_tokens,
                        .element = AS_ELEMENT_F16};
}
