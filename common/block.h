// SPDX-License-Identifier: Apache-2.0
// What a block is: its shape, its namespace, its key and the layout of its bytes.
//
// A key names content: which tokens, of which model, in which numerics, for which tenant. Equal
// keys therefore mean equal bytes, which is what makes blocks immutable, puts idempotent and caches
// safe to share.
#ifndef AS_BLOCK_H
#define AS_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define AS_BLOCK_TOKENS_DEFAULT 64u
#define AS_BLOCK_TOKENS_MAX     256u
#define AS_LAYERS_MAX           256u
#define AS_CHAIN_BLOCKS_MAX     16384u // one prefix
#define AS_RUN_BLOCKS           16u // consecutive blocks of a chain that are placed on the same store nodes

typedef struct as_key {
    uint8_t bytes[32];
} as_key_t;

typedef enum as_element { AS_ELEMENT_F16 = 1, AS_ELEMENT_F32 = 2 } as_element_t;

// Of one model's KV cache. All counts are positive in a valid shape.
typedef struct as_shape {
    uint32_t layers;
    uint32_t q_heads;
    uint32_t kv_heads; // divides q_heads
    uint32_t head_dim; // elements of one head's K or V; a multiple of 16
    uint32_t block_tokens;
    as_element_t element;
} as_shape_t;

// What a namespace is derived from. Strings may be NULL (same as empty).
typedef struct as_namespace {
    as_key_t model_fingerprint; // SHA-256 of the model file
    as_shape_t shape;
    const char *numerics_id; // kernel family, weight type and version: equal ids compute equal bits
    const char *lora_id;
    uint32_t tensor_parallel_rank;
    uint32_t tensor_parallel_size;
    const char *tenant_salt;
    uint64_t weight_epoch;
} as_namespace_t;

as_status_t as_shape_check(const as_shape_t *shape) AS_MUST_USE;
// Bytes of one layer of one block: [K, V][kv_heads][block_tokens][head_dim].
size_t as_extent_bytes(const as_shape_t *shape);
// layers * as_extent_bytes.
size_t as_block_bytes(const as_shape_t *shape);
// What a block's bytes come to: CRC32C over its key and its extents' checksums.
uint32_t as_block_digest(const as_key_t *key, const void *crcs, uint32_t layers);
// Element offset inside an extent of K (part 0) or V (part 1) of one head of one token.
size_t as_extent_offset(const as_shape_t *shape, uint32_t part, uint32_t kv_head, uint32_t token);

// SHA-256 over typed, length-prefixed fields: no two different field lists collide by
// concatenation.
void as_namespace_key(const as_namespace_t *ns, as_key_t *key_p);
// key = SHA-256("block", parent, count, token ids as little-endian u32); the first block's parent
// is the namespace key.
void as_block_key(const as_key_t *parent, const int32_t *tokens, uint32_t token_count,
                  as_key_t *key_p);
// Keys of all full blocks of `tokens`; returns their count, at most key_count_max.
uint32_t as_chain_keys(const as_key_t *namespace_key, const int32_t *tokens, size_t token_count,
                       uint32_t block_tokens, as_key_t *keys, uint32_t key_count_max);

// The key of a tenant's block where blocks of all tenants are told apart by their keys: SHA-256
// ("assay-tenant-1", tenant, key); of tenant 0 the key itself.
void as_key_scope(const as_key_t *key, uint32_t tenant, as_key_t *scoped_p);
void as_keys_scope(const as_key_t *keys, uint32_t count, uint32_t tenant, as_key_t *scoped);

int as_key_equal(const as_key_t *a, const as_key_t *b);
uint64_t as_key_hash(const as_key_t *key); // first 8 bytes: keys are uniform already
void as_key_hex(const as_key_t *key, char hex[65]);
as_status_t as_key_parse(const char *hex, as_key_t *key_p) AS_MUST_USE;

#endif
