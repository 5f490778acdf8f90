// SPDX-License-Identifier: Apache-2.0
// Tokens and key files from outside. A token is looked at as it is, and again with a signature of a
// key that is known, so that the fuzzer gets past that.
#include <stdint.h>
#include <string.h>

#include "common/assert.h"
#include "common/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define SIGNED_BYTES (AS_TOKEN_BYTES - 32)

static const as_cluster_keys_t keys = {.count = 1, .keys = {{.id = 0, .secret = {1, 2, 3}}}};

static void look(const uint8_t *data, size_t bytes)
{
    as_token_t token, parsed;
    as_token_fault_t fault = as_token_check(&keys, data, bytes, 1000, &token);
    if (fault != AS_TOKEN_GOOD) {
        AS_ASSERT(fault < AS_TOKEN_FAULT_COUNT && as_token_fault_str(fault)[0]);
        return;
    }
    // What is believed was signed, has rights and a tenant, and is not over.
    uint8_t mac[32];
    as_hmac_sha256(keys.keys[0].secret, AS_CLUSTER_KEY_BYTES, data, SIGNED_BYTES, mac);
    AS_ASSERT(bytes == AS_TOKEN_BYTES && memcmp(mac, data + SIGNED_BYTES, sizeof(mac)) == 0);
    AS_ASSERT(as_token_parse(data, bytes, &parsed) == AS_OK && parsed.tenant == token.tenant);
    AS_ASSERT(token.rights != 0 && token.rights <= AS_TOKEN_RIGHTS && token.not_after_s > 1000);
    AS_ASSERT((token.tenant == 0) == ((token.rights & AS_TOKEN_PEER) != 0));
}

static void look_signed(const uint8_t *data, size_t bytes)
{
    static const uint8_t head[6] = {'A', 'S', 'T', 'K', 1, 0};
    uint8_t token[AS_TOKEN_BYTES] = {0};
    memcpy(token, data, bytes < SIGNED_BYTES ? bytes : SIGNED_BYTES);
    memcpy(token, head, sizeof(head));
    memset(token + 12, 0, 4); // the key's id
    as_hmac_sha256(keys.keys[0].secret, AS_CLUSTER_KEY_BYTES, token, SIGNED_BYTES,
                   token + SIGNED_BYTES);
    look(token, sizeof(token));
}

static void look_at_text(const char *text, size_t bytes)
{
    as_token_sealed_t sealed, again;
    if (as_token_read(text, bytes, &sealed) == AS_OK) {
        char formatted[AS_TOKEN_TEXT_BYTES];
        as_token_format(&sealed, formatted);
        AS_ASSERT(memmem(text, bytes, formatted, AS_TOKEN_TEXT_BYTES - 1));
        AS_ASSERT(as_token_read(formatted, strlen(formatted), &again) == AS_OK);
        AS_ASSERT(memcmp(&sealed, &again, sizeof(sealed)) == 0);
    }
    as_cluster_keys_t read;
    char why[AS_CLUSTER_KEY_WHY_BYTES] = "";
    if (as_cluster_keys_parse(text, bytes, &read, why) == AS_OK) {
        AS_ASSERT(read.count > 0 && read.count <= AS_CLUSTER_KEYS_MAX);
    } else {
        AS_ASSERT(why[0]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    look(data, bytes);
    look_signed(data, bytes);
    look_at_text((const char *)data, bytes);
    return 0;
}
