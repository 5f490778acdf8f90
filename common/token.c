// SPDX-License-Identifier: Apache-2.0
// Tokens: their bytes, their text, their signature.
#include "common/token.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/assert.h"
#include "common/small_file.h"

#define MAGIC          0x4b545341u // "ASTK"
#define VERSION        1u
#define SIGNED_BYTES   40u
#define FILE_BYTES_MAX 512u
#define TEXT_CHARS     (AS_TOKEN_TEXT_BYTES - 1)

static void put_le(uint8_t *bytes, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get_le(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

const char *as_token_fault_str(as_token_fault_t fault)
{
    static const char *const names[AS_TOKEN_FAULT_COUNT] = {
        [AS_TOKEN_GOOD] = "is good",
        [AS_TOKEN_MALFORMED] = "is missing or malformed",
        [AS_TOKEN_UNKNOWN_KEY] = "was signed by a key that is not in --cluster-key",
        [AS_TOKEN_FORGED] = "is forged or damaged: its signature does not hold",
        [AS_TOKEN_EXPIRED] = "has expired",
    };
    return (unsigned)fault < AS_TOKEN_FAULT_COUNT ? names[fault] : "is unknown";
}

void as_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    uint8_t mac[32])
{
    unsigned mac_bytes = 0;
    // It fails only where OpenSSL has no SHA-256, and then no block has a name either.
    uint8_t *done = HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, mac, &mac_bytes);
    AS_ASSERT(done && mac_bytes == 32);
}

uint64_t as_token_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec;
}

// A peer has no tenant, all others have one.
static bool is_sound(const as_token_t *token)
{
    bool is_peer = token->rights & AS_TOKEN_PEER;
    return token->rights != 0 && (token->rights & ~(uint32_t)AS_TOKEN_RIGHTS) == 0 &&
           (token->tenant == AS_TENANT_NONE) == is_peer;
}

as_status_t as_token_sign(const as_cluster_keys_t *keys, as_token_t *token,
                          as_token_sealed_t *sealed_p)
{
    AS_ASSERT(keys->count > 0);
    if (!is_sound(token)) {
        return AS_ERR_INVALID;
    }
    if (RAND_bytes(token->nonce, sizeof(token->nonce)) != 1) {
        return AS_ERR_IO;
    }
    const as_cluster_key_t *key = &keys->keys[0];
    token->key_id = key->id;
    uint8_t *bytes = sealed_p->bytes;
    put_le(bytes, MAGIC, 4);
    put_le(bytes + 4, VERSION, 2);
    put_le(bytes + 6, token->rights, 2);
    put_le(bytes + 8, token->tenant, 4);
    put_le(bytes + 12, token->key_id, 4);
    put_le(bytes + 16, token->not_after_s, 8);
    memcpy(bytes + 24, token->nonce, sizeof(token->nonce));
    as_hmac_sha256(key->secret, sizeof(key->secret), bytes, SIGNED_BYTES, bytes + SIGNED_BYTES);
    return AS_OK;
}

as_status_t as_token_parse(const void *sealed, size_t bytes, as_token_t *token_p)
{
    const uint8_t *from = sealed;
    if (bytes != AS_TOKEN_BYTES || get_le(from, 4) != MAGIC || get_le(from + 4, 2) != VERSION) {
        return AS_ERR_INVALID;
    }
    as_token_t token = {.rights = (uint32_t)get_le(from + 6, 2),
                        .tenant = (uint32_t)get_le(from + 8, 4),
                        .key_id = (uint32_t)get_le(from + 12, 4),
                        .not_after_s = get_le(from + 16, 8)};
    memcpy(token.nonce, from + 24, sizeof(token.nonce));
    if (!is_sound(&token)) {
        return AS_ERR_INVALID;
    }
    *token_p = token;
    return AS_OK;
}

as_token_fault_t as_token_check(const as_cluster_keys_t *keys, const void *sealed, size_t bytes,
                                uint64_t now_s, as_token_t *token_p)
{
    as_token_t token;
    if (as_token_parse(sealed, bytes, &token) != AS_OK) {
        return AS_TOKEN_MALFORMED;
    }
    const as_cluster_key_t *key = as_cluster_key_find(keys, token.key_id);
    if (!key) {
        return AS_TOKEN_UNKNOWN_KEY;
    }
    uint8_t mac[32];
    as_hmac_sha256(key->secret, sizeof(key->secret), sealed, SIGNED_BYTES, mac);
    if (CRYPTO_memcmp(mac, (const uint8_t *)sealed + SIGNED_BYTES, sizeof(mac)) != 0) {
        return AS_TOKEN_FORGED;
    }
    if (token.not_after_s <= now_s) {
        return AS_TOKEN_EXPIRED;
    }
    *token_p = token;
    return AS_TOKEN_GOOD;
}

// ---- text

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void as_token_format(const as_token_sealed_t *sealed, char text[AS_TOKEN_TEXT_BYTES])
{
    _Static_assert(AS_TOKEN_BYTES % 3 == 0 && AS_TOKEN_BYTES / 3 * 4 == TEXT_CHARS, "no padding");
    for (size_t i = 0; i < AS_TOKEN_BYTES / 3; i++) {
        const uint8_t *from = sealed->bytes + 3 * i;
        uint32_t bits = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
        for (size_t j = 0; j < 4; j++) {
            text[4 * i + j] = digits[bits >> (18 - 6 * j) & 63];
        }
    }
    text[TEXT_CHARS] = '\0';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

as_status_t as_token_read(const char *text, size_t bytes, as_token_sealed_t *sealed_p)
{
    as_token_sealed_t sealed;
    while (bytes > 0 && is_space(text[bytes - 1])) {
        bytes--;
    }
    while (bytes > 0 && is_space(text[0])) {
        text++;
        bytes--;
    }
    if (bytes != TEXT_CHARS) {
        return AS_ERR_INVALID;
    }
    for (size_t i = 0; i < AS_TOKEN_BYTES / 3; i++) {
        uint32_t bits = 0;
        for (size_t j = 0; j < 4; j++) {
            char c = text[4 * i + j];
            const char *digit = c ? strchr(digits, c) : NULL;
            if (!digit) {
                return AS_ERR_INVALID;
            }
            bits = bits << 6 | (uint32_t)(digit - digits);
        }
        sealed.bytes[3 * i] = (uint8_t)(bits >> 16);
        sealed.bytes[3 * i + 1] = (uint8_t)(bits >> 8);
        sealed.bytes[3 * i + 2] = (uint8_t)bits;
    }
    *sealed_p = sealed;
    return AS_OK;
}

as_status_t as_token_file(const char *path, as_token_sealed_t *sealed_p)
{
    char text[FILE_BYTES_MAX + 1];
    size_t bytes = 0;
    as_status_t status = as_file_read(path, text, FILE_BYTES_MAX, &bytes);
    if (status == AS_OK || status == AS_ERR_LIMIT) {
        status = status == AS_OK ? as_token_read(text, bytes, sealed_p) : AS_ERR_INVALID;
        errno = EINVAL;
    }
    return status;
}

// ---- rights

static const struct {
    const char *name;
    uint32_t right;
} rights_known[] = {{"read", AS_TOKEN_READ},
                    {"write", AS_TOKEN_WRITE},
                    {"direct", AS_TOKEN_DIRECT},
                    {"peer", AS_TOKEN_PEER}};

#define RIGHT_COUNT (sizeof(rights_known) / sizeof(rights_known[0]))

void as_token_rights_format(uint32_t rights, char text[AS_TOKEN_RIGHTS_BYTES])
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < RIGHT_COUNT; i++) {
        if (rights & rights_known[i].right) {
            int some = snprintf(text + at, AS_TOKEN_RIGHTS_BYTES - at, "%s%s", at > 0 ? "," : "",
                                rights_known[i].name);
            at += (size_t)some;
        }
    }
    AS_ASSERT(at < AS_TOKEN_RIGHTS_BYTES);
}

as_status_t as_token_rights_parse(const char *text, uint32_t *rights_p)
{
    uint32_t rights = 0;
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        uint32_t right = 0;
        for (size_t i = 0; i < RIGHT_COUNT; i++) {
            const char *name = rights_known[i].name;
            right |=
                strlen(name) == length && memcmp(name, at, length) == 0 ? rights_known[i].right : 0;
        }
        if (right == 0) {
            return AS_ERR_INVALID;
        }
        rights |= right;
        at += length;
        at += *at == ',';
    }
    if (rights == 0) {
        return AS_ERR_INVALID;
    }
    *rights_p = rights;
    return AS_OK;
}
