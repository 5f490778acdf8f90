// SPDX-License-Identifier: Apache-2.0
// Encryption of extents; see cipher.h.
#include "common/cipher.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/token.h"

#define MAC_BYTES   32u
#define NONCE_BYTES 12u
#define TAG_BYTES   16u

_Static_assert(NONCE_BYTES + TAG_BYTES == AS_CIPHER_EXTRA_BYTES, "as it is written");
_Static_assert(AS_CIPHER_EXTRA_BYTES % sizeof(uint32_t) == 0, "extents are of whole words");
_Static_assert(sizeof(as_key_t) == MAC_BYTES, "a name is a MAC");

struct as_cipher {
    uint8_t bytes_key[MAC_BYTES], nonces_key[MAC_BYTES], names_key[MAC_BYTES];
    EVP_CIPHER_CTX *work;
};

// What a nonce is made of, and what a tag covers besides the bytes: integers little-endian.
typedef struct place {
    char purpose[8];
    uint8_t name[32];
    uint8_t layer[4];
} place_t;

_Static_assert(sizeof(place_t) == 44, "no padding");

as_status_t as_cipher_alloc(const uint8_t key[AS_CIPHER_KEY_BYTES], as_cipher_t **cipher_p)
{
    as_cipher_t *cipher = as_mem_zalloc(1, sizeof(*cipher));
    if (!cipher) {
        return AS_ERR_NO_MEMORY;
    }
    as_hmac_sha256(key, AS_CIPHER_KEY_BYTES, "assay bytes", 11, cipher->bytes_key);
    as_hmac_sha256(key, AS_CIPHER_KEY_BYTES, "assay nonces", 12, cipher->nonces_key);
    as_hmac_sha256(key, AS_CIPHER_KEY_BYTES, "assay names", 11, cipher->names_key);
    cipher->work = EVP_CIPHER_CTX_new();
    if (!cipher->work) {
        as_cipher_free(cipher);
        return AS_ERR_NO_MEMORY;
    }
    *cipher_p = cipher;
    return AS_OK;
}

as_status_t as_cipher_alloc_file(const char *path, as_cipher_t **cipher_p,
                                 char why[AS_CLUSTER_KEY_WHY_BYTES])
{
    as_cluster_keys_t keys;
    as_status_t status = as_cluster_keys_read(path, &keys, why);
    if (status == AS_OK) {
        status = as_cipher_alloc(keys.keys[0].secret, cipher_p);
        snprintf(why, AS_CLUSTER_KEY_WHY_BYTES, "%s", as_status_str(status));
        as_cluster_keys_wipe(&keys);
    }
    return status;
}

void as_cipher_free(as_cipher_t *cipher)
{
    if (cipher) {
        EVP_CIPHER_CTX_free(cipher->work);
        OPENSSL_cleanse(cipher, sizeof(*cipher));
        as_mem_free(cipher);
    }
}

void as_cipher_name(const as_cipher_t *cipher, const as_key_t *key, as_key_t *name_p)
{
    uint8_t mac[MAC_BYTES];
    as_hmac_sha256(cipher->names_key, MAC_BYTES, key->bytes, sizeof(key->bytes), mac);
    memcpy(name_p->bytes, mac, sizeof(mac));
}

static place_t place_of(const as_cipher_extent_t *extent)
{
    place_t place = {.purpose = "extent1"};
    memcpy(place.name, extent->name.bytes, sizeof(place.name));
    for (size_t i = 0; i < sizeof(place.layer); i++) {
        place.layer[i] = (uint8_t)(extent->layer >> (8 * i));
    }
    return place;
}

static void make_nonce(const as_cipher_t *cipher, const as_cipher_extent_t *extent,
                       const void *plain, uint8_t nonce[NONCE_BYTES])
{
    struct {
        place_t place;
        uint8_t digest[SHA256_DIGEST_LENGTH];
    } of = {.place = place_of(extent)};
    uint8_t mac[MAC_BYTES];
    SHA256(plain, extent->bytes, of.digest);
    as_hmac_sha256(cipher->nonces_key, MAC_BYTES, &of, sizeof(of), mac);
    memcpy(nonce, mac, NONCE_BYTES);
}

// Sets key and nonce, and gives it the place of the extent.
static bool begin(as_cipher_t *cipher, const as_cipher_extent_t *extent, const uint8_t *nonce,
                  int encrypts)
{
    uint8_t key[MAC_BYTES];
    place_t place = place_of(extent);
    int written;
    as_hmac_sha256(cipher->bytes_key, MAC_BYTES, extent->name.bytes, sizeof(extent->name.bytes),
                   key);
    bool good =
        extent->bytes > 0 && extent->bytes <= INT_MAX &&
        EVP_CipherInit_ex(cipher->work, EVP_aes_256_gcm(), NULL, key, nonce, encrypts) == 1 &&
        EVP_CipherUpdate(cipher->work, NULL, &written, (const uint8_t *)&place, sizeof(place)) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    return good;
}

as_status_t as_cipher_encrypt(as_cipher_t *cipher, const as_cipher_extent_t *extent,
                              const void *plain, void *out)
{
    uint8_t *nonce = (uint8_t *)out + extent->bytes, *tag = nonce + NONCE_BYTES;
    uint8_t rest[EVP_MAX_BLOCK_LENGTH];
    int written = 0, more = 0;
    make_nonce(cipher, extent, plain, nonce);
    bool good = begin(cipher, extent, nonce, 1) &&
                EVP_CipherUpdate(cipher->work, out, &written, plain, (int)extent->bytes) == 1 &&
                (size_t)written == extent->bytes &&
                EVP_CipherFinal_ex(cipher->work, rest, &more) == 1 &&
                EVP_CIPHER_CTX_ctrl(cipher->work, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, tag) == 1;
    ERR_clear_error();
    return good ? AS_OK : AS_ERR_IO;
}

as_status_t as_cipher_decrypt(as_cipher_t *cipher, const as_cipher_extent_t *extent,
                              const void *from, void *plain)
{
    const uint8_t *nonce = (const uint8_t *)from + extent->bytes;
    uint8_t tag[TAG_BYTES], rest[EVP_MAX_BLOCK_LENGTH];
    int written = 0, more = 0;
    memcpy(tag, nonce + NONCE_BYTES, sizeof(tag));
    bool good = begin(cipher, extent, nonce, 0) &&
                EVP_CipherUpdate(cipher->work, plain, &written, from, (int)extent->bytes) == 1 &&
                (size_t)written == extent->bytes &&
                EVP_CIPHER_CTX_ctrl(cipher->work, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, tag) == 1 &&
                EVP_CipherFinal_ex(cipher->work, rest, &more) == 1;
    ERR_clear_error();
    return good ? AS_OK : AS_ERR_CHECKSUM;
}
