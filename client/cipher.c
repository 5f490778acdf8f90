// SPDX-License-Identifier: Apache-2.0
// The client's encryption: put.c encrypts, read.c decrypts, and names are translated where keys go to
// stores and the scheduler.
#include <string.h>

#include "client/internal.h"
#include "common/assert.h"

void assay_client_take_cipher(assay_client_t *client, as_cipher_t *cipher)
{
    AS_ASSERT(client->magic == ASSAY_CLIENT_MAGIC && !client->fetches && !client->puts);
    as_cipher_free(client->cipher);
    client->cipher = cipher;
}

void assay_client_names(const assay_client_t *client, const as_key_t *keys, size_t count,
                        as_key_t *names_p)
{
    if (!client->cipher) {
        memmove(names_p, keys, count * sizeof(*keys));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        as_cipher_name(client->cipher, &keys[i], &names_p[i]);
    }
}
