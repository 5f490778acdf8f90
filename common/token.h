// SPDX-License-Identifier: Apache-2.0
// Tokens: who may do what at a store, signed under a key of the cluster (cluster_key.h).
//
// A token is bearer: whoever has its bytes has its rights until it expires. It names a tenant; blocks
// of one tenant do not exist for another. The bytes, integers little-endian:
//
//   offset bytes
//        0     4  magic "ASTK"
//        4     2  version: 1
//        6     2  rights
//        8     4  tenant
//       12     4  id of the key that signed it
//       16     8  not valid after, seconds since 1970
//       24    16  nonce, random
//       40    32  HMAC-SHA256 over bytes 0 to 39
//
// As text it is these bytes in base64url: 96 characters, no padding.
#ifndef AS_TOKEN_H
#define AS_TOKEN_H

#include <stddef.h>
#include <stdint.h>
#include "common/cluster_key.h"
#include "common/status.h"

#define AS_TOKEN_BYTES      72u
#define AS_TOKEN_TEXT_BYTES 97u // with its end
#define AS_TENANT_NONE      0u  // of a store without tokens, and of a peer's token

typedef enum as_token_right {
    AS_TOKEN_READ = 1,
    AS_TOKEN_WRITE = 2,
    // Reads the store's memory by itself (shared memory, RDMA), and so can see every tenant's blocks:
    // for the cluster's own workers.
    AS_TOKEN_DIRECT = 4,
    // Names the tenant of each question: for stores that hand blocks to each other. Its own is 0.
    AS_TOKEN_PEER = 8,
    AS_TOKEN_RIGHTS = 15
} as_token_right_t;

typedef struct as_token {
    uint32_t tenant;
    uint32_t rights; // as_token_right_t, or-ed
    uint32_t key_id;
    uint64_t not_after_s; // since 1970
    uint8_t nonce[16];
} as_token_t;

typedef struct as_token_sealed {
    uint8_t bytes[AS_TOKEN_BYTES];
} as_token_sealed_t;

typedef enum as_token_fault {
    AS_TOKEN_GOOD,
    AS_TOKEN_MALFORMED, // no token of this version, or one that no cluster would sign
    AS_TOKEN_UNKNOWN_KEY,
    AS_TOKEN_FORGED,
    AS_TOKEN_EXPIRED,
    AS_TOKEN_FAULT_COUNT
} as_token_fault_t;

// What is wrong, as the end of a sentence that begins with "its token".
const char *as_token_fault_str(as_token_fault_t fault);

// Signs with the first key; writes key_id and a fresh nonce into the token. AS_ERR_INVALID: no
// rights, or unknown ones, or a tenant where there should be none, or none.
as_status_t as_token_sign(const as_cluster_keys_t *keys, as_token_t *token,
                          as_token_sealed_t *sealed_p) AS_MUST_USE;
// What a token says, without a look at its signature. AS_ERR_INVALID: it is malformed.
as_status_t as_token_parse(const void *sealed, size_t bytes, as_token_t *token_p) AS_MUST_USE;
// Whether it holds at `now_s`. *token_p is written when it does. Signatures are compared in constant
// time.
as_token_fault_t as_token_check(const as_cluster_keys_t *keys, const void *sealed, size_t bytes,
                                uint64_t now_s, as_token_t *token_p) AS_MUST_USE;

void as_token_format(const as_token_sealed_t *sealed, char text[AS_TOKEN_TEXT_BYTES]);
// Spaces and line ends around it are ignored. AS_ERR_INVALID: not the text of a token.
as_status_t as_token_read(const char *text, size_t bytes, as_token_sealed_t *sealed_p) AS_MUST_USE;
// The text of a token in a file. On an error errno says why; EINVAL: it is not one.
as_status_t as_token_file(const char *path, as_token_sealed_t *sealed_p) AS_MUST_USE;

// "read,write" and back. AS_ERR_INVALID: an unknown right, or none.
#define AS_TOKEN_RIGHTS_BYTES 32u
void as_token_rights_format(uint32_t rights, char text[AS_TOKEN_RIGHTS_BYTES]);
as_status_t as_token_rights_parse(const char *text, uint32_t *rights_p) AS_MUST_USE;

void as_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    uint8_t mac[32]);
uint64_t as_token_now_s(void); // of the machine's clock, since 1970

#endif
