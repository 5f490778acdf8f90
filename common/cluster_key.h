// SPDX-License-Identifier: Apache-2.0
// The keys of a cluster, by which tokens (token.h) are signed and checked.
//
// A key file is text: a key a line, as 64 hexadecimal digits; empty lines and lines that begin with
// '#' mean nothing. The first key signs, all of them check. So a key is replaced without a gap: a new
// one is put before the old, and the old one is taken out once its tokens have expired. Its id is
// the first four bytes, little-endian, of the SHA-256 of the key.
#ifndef AS_CLUSTER_KEY_H
#define AS_CLUSTER_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/small_file.h"
#include "common/status.h"

#define AS_CLUSTER_KEY_BYTES      32u
#define AS_CLUSTER_KEYS_MAX       16u
#define AS_CLUSTER_KEY_FILE_BYTES 16384u
#define AS_CLUSTER_KEY_WHY_BYTES  160u

typedef struct as_cluster_key {
    uint32_t id;
    uint8_t secret[AS_CLUSTER_KEY_BYTES];
} as_cluster_key_t;

typedef struct as_cluster_keys {
    uint32_t count; // at least 1
    as_cluster_key_t keys[AS_CLUSTER_KEYS_MAX];
} as_cluster_keys_t;

// On an error `why` says what is wrong, for people; it never shows a key.
as_status_t as_cluster_keys_parse(const char *text, size_t bytes, as_cluster_keys_t *keys_p,
                                  char why[AS_CLUSTER_KEY_WHY_BYTES]) AS_MUST_USE;
as_status_t as_cluster_keys_read(const char *path, as_cluster_keys_t *keys_p,
                                 char why[AS_CLUSTER_KEY_WHY_BYTES]) AS_MUST_USE;
// NULL: there is none of this id.
const as_cluster_key_t *as_cluster_key_find(const as_cluster_keys_t *keys, uint32_t id);
// A new random key. AS_ERR_IO: the machine gives no random bytes.
as_status_t as_cluster_key_make(as_cluster_key_t *key_p) AS_MUST_USE;
void as_cluster_key_hex(const as_cluster_key_t *key, char hex[2 * AS_CLUSTER_KEY_BYTES + 1]);
void as_cluster_keys_wipe(as_cluster_keys_t *keys); // before its memory goes

// The keys of a file that is read again when it changes.
typedef struct as_cluster_ring {
    const char *path;
    as_file_stamp_t stamp;
    as_cluster_keys_t keys;
} as_cluster_ring_t;

// Reads the file, or says in the log why it cannot.
as_status_t as_cluster_ring_open(as_cluster_ring_t *ring, const char *path) AS_MUST_USE;
// Reads it again where it has changed; true: there are other keys now. A file that is damaged or gone
// is logged and leaves the keys as they were.
bool as_cluster_ring_refresh(as_cluster_ring_t *ring);
// The same, changed or not.
bool as_cluster_ring_reload(as_cluster_ring_t *ring);

#endif
