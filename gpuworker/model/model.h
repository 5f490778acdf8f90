// SPDX-License-Identifier: Apache-2.0
// A language model: weights and hyper-parameters of a GGUF file, ready for the kernels.
//
// Immutable after load and shared by all sessions. Architectures: llama (SmolLM2, Llama 2 and 3,
// Mistral), qwen2 (q/k/v bias) and qwen3 (per-head q/k norm). Weights are dequantised at load to
// f16 (default) or f32 panels.
#ifndef GPW_MODEL_H
#define GPW_MODEL_H

#include "common/block.h"
#include "kernels/kernels.h"

typedef enum gpw_architecture { GPW_LLAMA, GPW_QWEN2, GPW_QWEN3 } gpw_architecture_t;

// Matrices that are applied to the same input are stacked, so that one product computes them.
typedef struct gpw_layer {
    const float *attention_norm; // [embed]
    krn_weight_t qkv;            // outputs: q [q_heads][dim], k [kv_heads][dim], v [kv_heads][dim]
    krn_weight_t o;
    const float *qkv_bias;        // as qkv's outputs, NULL when absent
    const float *q_norm, *k_norm; // [head_dim], NULL when absent
    const float *ffn_norm;        // [embed]
    krn_weight_t gate_up;         // outputs: gate [ffn], up [ffn]
    krn_weight_t down;
} gpw_layer_t;

typedef struct gpw_model {
    gpw_architecture_t architecture;
    char name[128];       // general.name, for /v1/models
    as_key_t fingerprint; // SHA-256 of the file
    uint32_t layers, embed, q_heads, kv_heads, head_dim, ffn, vocab, context_max;
    float norm_eps;
    krn_rope_t rope;        // table for context_max positions (or the limit given at load)
    krn_weight_t embedding; // [vocab][embed]; looked up by krn_weight_row
    const float *output_norm;
    krn_weight_t output; // shares embedding's data when tied
    gpw_layer_t *layer;  // [layers]
    struct gpw_tokenizer *tokenizer;
    uint64_t weight_bytes;
    void *arena; // holds all weights; gpw_model_free's own
} gpw_model_t;

typedef struct gpw_model_options {
    const char *path;
    krn_weight_type_t weights; // 0: f16
    uint32_t context_max;      // 0: the model's own; a greater one than that is AS_ERR_INVALID
    // Called now and then while loading; may be NULL.
    void (*progress)(void *ctx, uint64_t bytes_done, uint64_t bytes_total);
    void *ctx;
} gpw_model_options_t;

// Errors: AS_ERR_IO (cannot read), AS_ERR_INVALID (not GGUF, damaged), AS_ERR_UNSUPPORTED
// (architecture, type or tokenizer; the log line names it). `error` (of `error_bytes`) gets a
// sentence for people.
as_status_t gpw_model_load(const gpw_model_options_t *options, char *error, size_t error_bytes,
                           gpw_model_t **model_p) AS_MUST_USE;
void gpw_model_free(gpw_model_t *model);
// The shape of the model's KV cache.
as_shape_t gpw_model_shape(const gpw_model_t *model, uint32_t block_tokens);

#endif
