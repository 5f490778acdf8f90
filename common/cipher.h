// SPDX-License-Identifier: Apache-2.0
// Encryption of extents by who writes and reads them: AES-256-GCM under a key that stores never see.
//
// From the key of the file (32 bytes) come three by HMAC-SHA256: for bytes, for nonces and for names.
// Each block has a key of its own, HMAC(bytes key, block's name), so that nonces need to differ only
// among the extents of one block. A nonce is the begin of HMAC(nonces key, name | layer | SHA-256 of
// the plain bytes): the same extent under the same key is the same bytes, whoever encrypts it, so that
// a second put finds the block to be there; and other plain bytes never share a nonce. An encrypted
// extent is
//
//   encrypted bytes, as many as plain ones | nonce, 12 bytes | tag, 16 bytes
//
// The tag is also over the block's name and the layer, so that no extent does for another. The name
// of a block is HMAC(names key, block key): who has another key, or none, never meets the block, and
// a store cannot try out which tokens it is of.
#ifndef AS_CIPHER_H
#define AS_CIPHER_H

#include <stdbool.h>
#include "common/block.h"
#include "common/cluster_key.h"
#include "common/status.h"

#define AS_CIPHER_KEY_BYTES   32u
#define AS_CIPHER_EXTRA_BYTES 28u // of an encrypted extent, beyond the plain one

typedef struct as_cipher as_cipher_t;

as_status_t as_cipher_alloc(const uint8_t key[AS_CIPHER_KEY_BYTES],
                            as_cipher_t **cipher_p) AS_MUST_USE;
// The key is the first of a key file (cluster_key.h). On an error `why` says what is wrong.
as_status_t as_cipher_alloc_file(const char *path, as_cipher_t **cipher_p,
                                 char why[AS_CLUSTER_KEY_WHY_BYTES]) AS_MUST_USE;
void as_cipher_free(as_cipher_t *cipher); // NULL is fine

// What the block, namespace or run of this key is called at stores. From any thread.
void as_cipher_name(const as_cipher_t *cipher, const as_key_t *key, as_key_t *name_p);

typedef struct as_cipher_extent {
    as_key_t name; // of its block
    uint32_t layer;
    size_t bytes; // plain ones
} as_cipher_extent_t;

// One thread at a time. `out` has room for AS_CIPHER_EXTRA_BYTES more than `plain`.
as_status_t as_cipher_encrypt(as_cipher_t *cipher, const as_cipher_extent_t *extent,
                              const void *plain, void *out) AS_MUST_USE;
// AS_ERR_CHECKSUM: it was not encrypted by this key as this extent; the bytes in `plain` are then
// not to be used. `from` must not change meanwhile.
as_status_t as_cipher_decrypt(as_cipher_t *cipher, const as_cipher_extent_t *extent,
                              const void *from, void *plain) AS_MUST_USE;

#endif
