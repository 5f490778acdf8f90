// SPDX-License-Identifier: Apache-2.0
// Shapes, offsets inside an extent, and the keys of namespaces and blocks.
//
// What is hashed, byte for byte (all integers little-endian):
//
//   field      = tag (1 byte) | length (4 bytes) | bytes
//   domain tag = 'd' text; text tag 's'; key tag 'k' (32 bytes); u32 tag 'i'; u64 tag 'l'; tokens
//   tag 't' (4 bytes each) namespace  = 'd' "assay-namespace-1", 'k' model fingerprint, 'i' layers,
//   'i' q_heads, 'i' kv_heads, 'i' head_dim,
//                'i' block_tokens, 'i' element, 's' numerics id, 's' LoRA id, 'i' rank, 'i' size,
//                's' tenant salt, 'l' weight epoch
//   block      = 'd' "block", 'k' parent, 'i' count, 't' tokens
//   tenant's   = 'd' "assay-tenant-1", 'i' tenant, 'k' key of the block
//
// A length before every field means that no two lists of fields give the same bytes. The layout is
// what makes blocks of different machines and versions find each other: a change of it is a change
// of the domain's number.
#include "common/block.h"

#include <pthread.h>
#include <string.h>

#include <openssl/evp.h>

#include "common/assert.h"
#include "common/checksum.h"

#define HEADS_MAX    1024u // with the bounds below an extent is at most 2 GiB: sizes fit 32 bits
#define HEAD_DIM_MAX 1024u

static size_t element_bytes(as_element_t element)
{
    return element == AS_ELEMENT_F16 ? 2 : 4;
}

as_status_t as_shape_check(const as_shape_t *shape)
{
    if (shape->layers == 0 || shape->q_heads == 0 || shape->kv_heads == 0 || shape->head_dim == 0 ||
        shape->block_tokens == 0) {
        return AS_ERR_INVALID;
    }
    if (shape->layers > AS_LAYERS_MAX || shape->q_heads > HEADS_MAX ||
        shape->head_dim > HEAD_DIM_MAX || shape->block_tokens > AS_BLOCK_TOKENS_MAX) {
        return AS_ERR_LIMIT;
    }
    if (shape->q_heads % shape->kv_heads != 0 || shape->head_dim % 16 != 0) {
        return AS_ERR_INVALID;
    }
    if (shape->element != AS_ELEMENT_F16 && shape->element != AS_ELEMENT_F32) {
        return AS_ERR_INVALID;
    }
    return AS_OK;
}

size_t as_extent_bytes(const as_shape_t *shape)
{
    return 2 * (size_t)shape->kv_heads * shape->block_tokens * shape->head_dim *
           element_bytes(shape->element);
}

uint32_t as_block_digest(const as_key_t *key, const void *crcs, uint32_t layers)
{
    return as_crc32c(as_crc32c(0, key, sizeof(*key)), crcs, layers * sizeof(uint32_t));
}

size_t as_block_bytes(const as_shape_t *shape)
{
    return shape->layers * as_extent_bytes(shape);
}

size_t as_extent_offset(const as_shape_t *shape, uint32_t part, uint32_t kv_head, uint32_t token)
{
    AS_ASSERT(part < 2 && kv_head < shape->kv_heads && token < shape->block_tokens);
    return (((size_t)part * shape->kv_heads + kv_head) * shape->block_tokens + token) *
           shape->head_dim;
}

static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;
static EVP_MD *sha256; // fetched once: a fetch by each hash costs more than the hash

static void fetch_sha256(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

// Keys have no error to return: OpenSSL can only fail here when it cannot get a few hundred bytes,
// or has no SHA-256, and then the process can name no block at all.
static EVP_MD_CTX *hash_alloc(void)
{
    pthread_once(&sha256_once, fetch_sha256);
    AS_ASSERT(sha256 != NULL);
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    AS_ASSERT(hash != NULL);
    return hash;
}

static void store_le(uint8_t *bytes, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static void hash_update(EVP_MD_CTX *hash, const void *data, size_t bytes)
{
    int done = EVP_DigestUpdate(hash, data, bytes);
    AS_ASSERT(done == 1);
}

static void hash_field(EVP_MD_CTX *hash, char tag, const void *data, size_t bytes)
{
    uint8_t prefix[5] = {(uint8_t)tag};
    store_le(prefix + 1, bytes, 4);
    hash_update(hash, prefix, sizeof(prefix));
    hash_update(hash, data, bytes);
}

static void hash_text(EVP_MD_CTX *hash, const char *text)
{
    hash_field(hash, 's', text ? text : "", text ? strlen(text) : 0);
}

static void hash_u32(EVP_MD_CTX *hash, uint32_t value)
{
    uint8_t bytes[4];
    store_le(bytes, value, sizeof(bytes));
    hash_field(hash, 'i', bytes, sizeof(bytes));
}

static void hash_begin(EVP_MD_CTX *hash, const char *domain)
{
    int done = EVP_DigestInit_ex2(hash, sha256, NULL);
    AS_ASSERT(done == 1);
    hash_field(hash, 'd', domain, strlen(domain));
}

static void hash_end(EVP_MD_CTX *hash, as_key_t *key_p)
{
    unsigned bytes = 0;
    int done = EVP_DigestFinal_ex(hash, key_p->bytes, &bytes);
    AS_ASSERT(done == 1 && bytes == sizeof(key_p->bytes));
}

void as_namespace_key(const as_namespace_t *ns, as_key_t *key_p)
{
    EVP_MD_CTX *hash = hash_alloc();
    uint8_t epoch[8];
    store_le(epoch, ns->weight_epoch, sizeof(epoch));
    hash_begin(hash, "assay-namespace-1");
    hash_field(hash, 'k', ns->model_fingerprint.bytes, sizeof(ns->model_fingerprint.bytes));
    hash_u32(hash, ns->shape.layers);
    hash_u32(hash, ns->shape.q_heads);
    hash_u32(hash, ns->shape.kv_heads);
    hash_u32(hash, ns->shape.head_dim);
    hash_u32(hash, ns->shape.block_tokens);
    hash_u32(hash, (uint32_t)ns->shape.element);
    hash_text(hash, ns->numerics_id);
    hash_text(hash, ns->lora_id);
    hash_u32(hash, ns->tensor_parallel_rank);
    hash_u32(hash, ns->tensor_parallel_size);
    hash_text(hash, ns->tenant_salt);
    hash_field(hash, 'l', epoch, sizeof(epoch));
    hash_end(hash, key_p);
    EVP_MD_CTX_free(hash);
}

// Tokens go in as little-endian words whatever the machine is: in pieces, to keep the stack small.
static void hash_tokens(EVP_MD_CTX *hash, const int32_t *tokens, uint32_t count)
{
    uint8_t piece[64 * 4];
    uint8_t prefix[5] = {'t'};
    store_le(prefix + 1, 4ull * count, 4);
    hash_update(hash, prefix, sizeof(prefix));
    for (uint32_t done = 0; done < count;) {
        uint32_t some = count - done < 64 ? count - done : 64;
        for (uint32_t i = 0; i < some; i++) {
            store_le(piece + 4 * i, (uint32_t)tokens[done + i], 4);
        }
        hash_update(hash, piece, 4 * (size_t)some);
        done += some;
    }
}

static void hash_block(EVP_MD_CTX *hash, const as_key_t *parent, const int32_t *tokens,
                       uint32_t count, as_key_t *key_p)
{
    hash_begin(hash, "block");
    hash_field(hash, 'k', parent->bytes, sizeof(parent->bytes));
    hash_u32(hash, count);
    hash_tokens(hash, tokens, count);
    hash_end(hash, key_p);
}

void as_block_key(const as_key_t *parent, const int32_t *tokens, uint32_t token_count,
                  as_key_t *key_p)
{
    AS_ASSERT(token_count <= AS_BLOCK_TOKENS_MAX);
    EVP_MD_CTX *hash = hash_alloc();
    hash_block(hash, parent, tokens, token_count, key_p);
    EVP_MD_CTX_free(hash);
}

uint32_t as_chain_keys(const as_key_t *namespace_key, const int32_t *tokens, size_t token_count,
                       uint32_t block_tokens, as_key_t *keys, uint32_t key_count_max)
{
    AS_ASSERT(block_tokens > 0 && block_tokens <= AS_BLOCK_TOKENS_MAX);
    size_t blocks = token_count / block_tokens;
    uint32_t count = blocks < key_count_max ? (uint32_t)blocks : key_count_max;
    if (count == 0) {
        return 0;
    }
    EVP_MD_CTX *hash = hash_alloc();
    const as_key_t *parent = namespace_key;
    for (uint32_t i = 0; i < count; i++) {
        hash_block(hash, parent, tokens + (size_t)i * block_tokens, block_tokens, &keys[i]);
        parent = &keys[i];
    }
    EVP_MD_CTX_free(hash);
    return count;
}

void as_keys_scope(const as_key_t *keys, uint32_t count, uint32_t tenant, as_key_t *scoped)
{
    if (tenant == 0) {
        memmove(scoped, keys, count * sizeof(*keys));
        return;
    }
    EVP_MD_CTX *hash = hash_alloc();
    for (uint32_t i = 0; i < count; i++) {
        hash_begin(hash, "assay-tenant-1");
        hash_u32(hash, tenant);
        hash_field(hash, 'k', keys[i].bytes, sizeof(keys[i].bytes));
        hash_end(hash, &scoped[i]);
    }
    EVP_MD_CTX_free(hash);
}

void as_key_scope(const as_key_t *key, uint32_t tenant, as_key_t *scoped_p)
{
    as_keys_scope(key, 1, tenant, scoped_p);
}

int as_key_equal(const as_key_t *a, const as_key_t *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

uint64_t as_key_hash(const as_key_t *key)
{
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof(hash));
    return hash;
}

void as_key_hex(const as_key_t *key, char hex[65])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof(key->bytes); i++) {
        hex[2 * i] = digits[key->bytes[i] >> 4];
        hex[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    hex[64] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

as_status_t as_key_parse(const char *hex, as_key_t *key_p)
{
    as_key_t key;
    if (strnlen(hex, 2 * sizeof(key.bytes) + 1) != 2 * sizeof(key.bytes)) {
        return AS_ERR_INVALID;
    }
    for (size_t i = 0; i < sizeof(key.bytes); i++) {
        int high = hex_digit(hex[2 * i]);
        int low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            return AS_ERR_INVALID;
        }
        key.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *key_p = key;
    return AS_OK;
}
