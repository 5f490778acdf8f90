// SPDX-License-Identifier: Apache-2.0
// libassay: the public C API. A cache of KV blocks on store nodes, named by content.
//
// A client owns one thread that moves data; every call may be made from any thread and blocks until
// it is done or its deadline has passed. Nothing is ever returned that failed its checksum: a
// damaged, missing or unreachable block is ASSAY_MISS in the result of that block, never wrong
// bytes.
//
//     assay_t *assay;
//     assay_config_t config = {.scheduler = "127.0.0.1:7700"};
//     if (assay_open(&config, &assay) != ASSAY_OK) { puts(assay_last_error()); return 1; }
//     uint32_t hit = 0;
//     assay_exists(assay, keys, count, &hit);              // consecutive blocks from the first
//     assay_get(assay, &shape, keys, hit, buffer, &hit);   // whole blocks, in order
//     assay_close(assay);
#ifndef ASSAY_H
#define ASSAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct assay assay_t;

typedef enum assay_result {
    ASSAY_OK = 0,
    ASSAY_MISS = 1,         // no block, or not usable
    ASSAY_EXISTS = 2,       // put: the same block is there already
    ASSAY_INVALID = -1,     // an argument is wrong
    ASSAY_BUSY = -2,        // too many operations in flight
    ASSAY_TIMEOUT = -3,     // not done by its deadline
    ASSAY_UNREACHABLE = -4, // no scheduler or no store node
    ASSAY_FAILED = -5       // anything else; see assay_last_error
} assay_result_t;

typedef struct assay_config {
    const char *scheduler; // "host:port"
    uint32_t timeout_ms;   // of each call; 0: 10000
} assay_config_t;

typedef struct assay_shape {
    uint32_t layers, q_heads, kv_heads, head_dim, block_tokens;
    uint32_t element_bytes; // 2: f16; 4: f32
} assay_shape_t;

// One line of text for the last failure in this thread; never NULL.
const char *assay_last_error(void);
const char *assay_version(void);

int assay_open(const assay_config_t *config, assay_t **assay_p);
void assay_close(assay_t *assay);

// keys: count times 32 bytes, a chain in order. hit_p: how many consecutive blocks from the first
// are stored.
int assay_exists(assay_t *assay, const uint8_t *keys, uint32_t count, uint32_t *hit_p);
// Reads whole blocks of a chain into `buffer` (count * block bytes, block after block). hit_p: how
// many consecutive blocks from the first are complete and checked; ASSAY_OK when that is all of
// them, ASSAY_MISS when fewer.
int assay_get(assay_t *assay, const assay_shape_t *shape, const uint8_t *keys, uint32_t count,
              void *buffer, uint32_t *hit_p);
// Stores one block: key i of `keys` (a chain, so that placement and parents are known).
int assay_put(assay_t *assay, const assay_shape_t *shape, const uint8_t *namespace_key,
              const uint8_t *keys, uint32_t index, const void *block);

// The namespace key of a model, and the keys of a chain of tokens. What the arguments are for blocks
// that Assay's workers share is in docs/api.md, "The C API"; tenant_salt may be NULL.
int assay_namespace(const uint8_t model_fingerprint[32], const assay_shape_t *shape,
                    const char *numerics_id, const char *tenant_salt, uint8_t namespace_key[32]);
uint32_t assay_chain(const uint8_t namespace_key[32], const int32_t *tokens, size_t token_count,
                     uint32_t block_tokens, uint8_t *keys, uint32_t count_max);

#ifdef __cplusplus
}
#endif

#endif
