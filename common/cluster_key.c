// SPDX-License-Identifier: Apache-2.0
// Key files of a cluster.
#include "common/cluster_key.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/block.h"
#include "common/log.h"
#include "common/metrics.h"

_Static_assert(sizeof(as_key_t) == AS_CLUSTER_KEY_BYTES, "both are written as 64 digits");

static uint32_t id_of(const uint8_t *secret)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256(secret, AS_CLUSTER_KEY_BYTES, digest);
    return (uint32_t)digest[0] | (uint32_t)digest[1] << 8 | (uint32_t)digest[2] << 16 |
           (uint32_t)digest[3] << 24;
}

// A line of a key file, without the spaces around it.
static as_status_t take_line(const char *line, size_t bytes, as_cluster_keys_t *keys,
                             const char **why_p)
{
    as_key_t secret;
    as_status_t status = AS_OK;
    char hex[2 * AS_CLUSTER_KEY_BYTES + 1] = {0};
    if (bytes == 2 * AS_CLUSTER_KEY_BYTES) {
        memcpy(hex, line, bytes);
    }
    if (bytes != 2 * AS_CLUSTER_KEY_BYTES || as_key_parse(hex, &secret) != AS_OK) {
        *why_p = "is no key: 64 hexadecimal digits (`assay token key FILE` makes one)";
        status = AS_ERR_INVALID;
    } else if (keys->count == AS_CLUSTER_KEYS_MAX) {
        *why_p = "is one key too many: 16 at most";
        status = AS_ERR_LIMIT;
    } else if (as_cluster_key_find(keys, id_of(secret.bytes))) {
        *why_p = "is a key of the id of one before it";
        status = AS_ERR_INVALID;
    } else {
        as_cluster_key_t *key = &keys->keys[keys->count++];
        key->id = id_of(secret.bytes);
        memcpy(key->secret, secret.bytes, sizeof(key->secret));
    }
    OPENSSL_cleanse(hex, sizeof(hex));
    OPENSSL_cleanse(&secret, sizeof(secret));
    return status;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

as_status_t as_cluster_keys_parse(const char *text, size_t bytes, as_cluster_keys_t *keys_p,
                                  char why[AS_CLUSTER_KEY_WHY_BYTES])
{
    as_cluster_keys_t keys = {0};
    as_status_t status = AS_OK;
    unsigned line = 0;
    const char *fault = "";
    for (size_t at = 0; at < bytes && status == AS_OK;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t from = at, to = end ? (size_t)(end - text) : bytes;
        at = to + 1;
        line++;
        while (from < to && is_space(text[from])) {
            from++;
        }
        while (to > from && is_space(text[to - 1])) {
            to--;
        }
        if (from < to && text[from] != '#') {
            status = take_line(text + from, to - from, &keys, &fault);
        }
    }
    if (status != AS_OK) {
        snprintf(why, AS_CLUSTER_KEY_WHY_BYTES, "line %u %s", line, fault);
    } else if (keys.count == 0) {
        snprintf(why, AS_CLUSTER_KEY_WHY_BYTES, "holds no key (`assay token key FILE` makes one)");
        status = AS_ERR_INVALID;
    } else {
        *keys_p = keys;
    }
    as_cluster_keys_wipe(&keys);
    return status;
}

as_status_t as_cluster_keys_read(const char *path, as_cluster_keys_t *keys_p,
                                 char why[AS_CLUSTER_KEY_WHY_BYTES])
{
    char text[AS_CLUSTER_KEY_FILE_BYTES + 1];
    size_t bytes = 0;
    as_status_t status = as_file_read(path, text, AS_CLUSTER_KEY_FILE_BYTES, &bytes);
    if (status != AS_OK) {
        snprintf(why, AS_CLUSTER_KEY_WHY_BYTES, "%s", strerror(errno));
        return status;
    }
    status = as_cluster_keys_parse(text, bytes, keys_p, why);
    OPENSSL_cleanse(text, sizeof(text));
    struct stat file;
    if (status == AS_OK && stat(path, &file) == 0 && (file.st_mode & (S_IROTH | S_IWOTH))) {
        AS_WARN("token", "everybody on this machine can read the cluster's keys: chmod 600 %s",
                path);
    }
    return status;
}

const as_cluster_key_t *as_cluster_key_find(const as_cluster_keys_t *keys, uint32_t id)
{
    for (uint32_t i = 0; i < keys->count; i++) {
        if (keys->keys[i].id == id) {
            return &keys->keys[i];
        }
    }
    return NULL;
}

as_status_t as_cluster_key_make(as_cluster_key_t *key_p)
{
    if (RAND_bytes(key_p->secret, sizeof(key_p->secret)) != 1) {
        return AS_ERR_IO;
    }
    key_p->id = id_of(key_p->secret);
    return AS_OK;
}

void as_cluster_key_hex(const as_cluster_key_t *key, char hex[2 * AS_CLUSTER_KEY_BYTES + 1])
{
    as_key_t bytes;
    memcpy(bytes.bytes, key->secret, sizeof(bytes.bytes));
    as_key_hex(&bytes, hex);
    OPENSSL_cleanse(&bytes, sizeof(bytes));
}

void as_cluster_keys_wipe(as_cluster_keys_t *keys)
{
    OPENSSL_cleanse(keys, sizeof(*keys));
}

// ---- a file that changes

enum { TAKEN, REFUSED, KEYS, METRIC_COUNT };

#define READS(result_)                                                                             \
    {                                                                                              \
        .name = "assay_cluster_key_reads_total",                                                   \
        .help = "Key files of the cluster that were read, by what became of it",                   \
        .type = AS_METRIC_COUNTER, .label = "result=\"" result_ "\""                               \
    }

static as_metric_t metrics[METRIC_COUNT] = {
    [TAKEN] = READS("taken"),
    [REFUSED] = READS("refused"),
    [KEYS] = {.name = "assay_cluster_keys",
              .help = "Keys of the cluster by which tokens hold",
              .type = AS_METRIC_GAUGE},
};

static as_status_t ring_read(as_cluster_ring_t *ring)
{
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    as_status_t status = as_cluster_keys_read(ring->path, &ring->keys, why);
    as_metric_add(&metrics[status == AS_OK ? TAKEN : REFUSED], 1);
    if (status != AS_OK) {
        AS_ERROR("token", "--cluster-key %s: %s", ring->path, why);
    } else {
        as_metric_set(&metrics[KEYS], ring->keys.count);
    }
    return status;
}

as_status_t as_cluster_ring_open(as_cluster_ring_t *ring, const char *path)
{
    as_metric_register(metrics, METRIC_COUNT);
    *ring = (as_cluster_ring_t){.path = path};
    as_file_changed(path, &ring->stamp);
    return ring_read(ring);
}

bool as_cluster_ring_reload(as_cluster_ring_t *ring)
{
    as_file_changed(ring->path, &ring->stamp);
    if (ring_read(ring) != AS_OK) {
        return false;
    }
    AS_INFO("token", "read the cluster's keys again: %u, the first is %08x", ring->keys.count,
            ring->keys.keys[0].id);
    return true;
}

bool as_cluster_ring_refresh(as_cluster_ring_t *ring)
{
    return as_file_changed(ring->path, &ring->stamp) && as_cluster_ring_reload(ring);
}
