// SPDX-License-Identifier: Apache-2.0
// Small models with weights from a formula, the twins of those in tests/golden/golden_forward.py.
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <stdbool.h>
#include <unistd.h>

#include "gguf_builder.h"
#include "gpuworker/model/model.h"

#define TINY_VOCAB   288u
#define TINY_CONTEXT 512u

typedef struct tiny {
    char name[32], arch[16], scaling[16];
    uint32_t embed, layers, q_heads, kv_heads, dim, ffn, bias, tied, rope_dim;
} tiny_t;

static const tiny_t tiny_default = {.name = "default",
                                    .arch = "llama",
                                    .scaling = "none",
                                    .embed = 64,
                                    .layers = 2,
                                    .q_heads = 4,
                                    .kv_heads = 2,
                                    .dim = 16,
                                    .ffn = 96,
                                    .tied = 1,
                                    .rope_dim = 16};

static inline uint64_t tiny_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// Adds tensor `name` of base + value * scale.
static inline void tiny_tensor(builder_t *builder, const char *name, uint32_t n, uint32_t rows,
                               float base, float scale)
{
    uint64_t seed = 0xcbf29ce484222325ull;
    for (const char *c = name; *c; c++) {
        seed = (seed ^ (uint8_t)*c) * 0x100000001b3ull;
    }
    size_t count = (size_t)n * (rows > 0 ? rows : 1);
    float *values = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        float unit = ((float)(tiny_mix(seed + i) >> 40) / 16777216.0f - 0.5f) * 2.0f;
        values[i] = base + unit * scale;
    }
    builder_tensor(builder, name, 0, n, rows, values, count * sizeof(float));
    free(values);
}

static inline void tiny_layer(builder_t *builder, const tiny_t *tiny, uint32_t layer)
{
    const float scale = 0.1875f;
    uint32_t q = tiny->q_heads * tiny->dim, kv = tiny->kv_heads * tiny->dim;
    const struct {
        const char *name;
        uint32_t n, rows;
        float base, scale;
        bool present;
    } parts[] = {
        {"attn_norm.weight", tiny->embed, 0, 1, 0.25f, true},
        {"ffn_norm.weight", tiny->embed, 0, 1, 0.25f, true},
        {"attn_q.weight", tiny->embed, q, 0, scale, true},
        {"attn_k.weight", tiny->embed, kv, 0, scale, true},
        {"attn_v.weight", tiny->embed, kv, 0, scale, true},
        {"attn_output.weight", q, tiny->embed, 0, scale, true},
        {"ffn_gate.weight", tiny->embed, tiny->ffn, 0, scale, true},
        {"ffn_up.weight", tiny->embed, tiny->ffn, 0, scale, true},
        {"ffn_down.weight", tiny->ffn, tiny->embed, 0, scale, true},
        {"attn_q.bias", q, 0, 0, 0.5f, tiny->bias},
        {"attn_k.bias", kv, 0, 0, 0.5f, tiny->bias},
        {"attn_v.bias", kv, 0, 0, 0.5f, tiny->bias},
        {"attn_q_norm.weight", tiny->dim, 0, 1, 0.25f, strcmp(tiny->arch, "qwen3") == 0},
        {"attn_k_norm.weight", tiny->dim, 0, 1, 0.25f, strcmp(tiny->arch, "qwen3") == 0},
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%u.%s", layer, parts[i].name);
        if (parts[i].present) {
            tiny_tensor(builder, name, parts[i].n, parts[i].rows, parts[i].base, parts[i].scale);
        }
    }
}

static inline void tiny_key(builder_t *builder, const tiny_t *tiny, const char *name,
                            uint32_t value)
{
    char key[64];
    snprintf(key, sizeof(key), "%s.%s", tiny->arch, name);
    builder_u32(builder, key, value);
}

static inline void tiny_float(builder_t *builder, const tiny_t *tiny, const char *name, float value)
{
    char key[64];
    snprintf(key, sizeof(key), "%s.%s", tiny->arch, name);
    builder_f32(builder, key, value);
}

static inline void tiny_metadata(builder_t *builder, const tiny_t *tiny)
{
    builder_text(builder, "general.architecture", tiny->arch);
    builder_text(builder, "general.name", tiny->name);
    tiny_key(builder, tiny, "block_count", tiny->layers);
    tiny_key(builder, tiny, "context_length", TINY_CONTEXT);
    tiny_key(builder, tiny, "embedding_length", tiny->embed);
    tiny_key(builder, tiny, "feed_forward_length", tiny->ffn);
    tiny_key(builder, tiny, "attention.head_count", tiny->q_heads);
    tiny_key(builder, tiny, "attention.head_count_kv", tiny->kv_heads);
    tiny_key(builder, tiny, "attention.key_length", tiny->dim);
    tiny_key(builder, tiny, "attention.value_length", tiny->dim);
    tiny_float(builder, tiny, "attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_key(builder, tiny, "rope.dimension_count", tiny->rope_dim);
    tiny_float(builder, tiny, "rope.freq_base", 10000.0f);
    if (strcmp(tiny->scaling, "none") != 0 && strcmp(tiny->scaling, "freqs") != 0) {
        char key[64];
        snprintf(key, sizeof(key), "%s.rope.scaling.type", tiny->arch);
        builder_text(builder, key, tiny->scaling);
        tiny_float(builder, tiny, "rope.scaling.factor", 4.0f);
        tiny_key(builder, tiny, "rope.scaling.original_context_length", 128);
    }
}

static inline void tiny_tensors(builder_t *builder, const tiny_t *tiny)
{
    tiny_tensor(builder, "token_embd.weight", tiny->embed, TINY_VOCAB, 0, 1);
    for (uint32_t i = 0; i < tiny->layers; i++) {
        tiny_layer(builder, tiny, i);
    }
    tiny_tensor(builder, "output_norm.weight", tiny->embed, 0, 1, 0.25f);
    if (!tiny->tied) {
        tiny_tensor(builder, "output.weight", tiny->embed, TINY_VOCAB, 0, 0.1875f);
    }
    if (strcmp(tiny->scaling, "freqs") == 0) {
        tiny_tensor(builder, "rope_freqs.weight", tiny->rope_dim / 2, 0, 4, 2);
    }
}

// The whole file, not yet finished: a test may add to it or spoil it.
static inline builder_t tiny_build(const tiny_t *tiny)
{
    builder_t builder = {0};
    tiny_metadata(&builder, tiny);
    builder_vocab(&builder, "gpt-2", TINY_VOCAB, NULL, 0);
    tiny_tensors(&builder, tiny);
    return builder;
}

// Writes the model's file; it is the caller's to unlink.
static inline void tiny_save(const tiny_t *tiny, char path[64])
{
    builder_t builder = tiny_build(tiny);
    builder_finish(&builder);
    builder_save(&builder, path);
    builder_free(&builder);
}

static inline gpw_model_t *tiny_open(const tiny_t *tiny, krn_weight_type_t weights)
{
    char path[64], error[256] = "";
    gpw_model_t *model = NULL;
    gpw_model_options_t options = {.path = path, .weights = weights};
    tiny_save(tiny, path);
    as_status_t status = gpw_model_load(&options, error, sizeof(error), &model);
    unlink(path);
    if (status != AS_OK) {
        fail_msg("cannot load the tiny model %s: %s", tiny->name, error);
    }
    return model;
}

#endif
