// SPDX-License-Identifier: Apache-2.0
// The hello of the data port as a function of bytes; the layout is in net_ucx_hello.h.
#include "common/net_ucx_hello.h"

#include <stdbool.h>
#include <string.h>

#include "common/checksum.h"

#define HOST_BYTES sizeof(struct in6_addr)
#define SUM_BYTES  4u

static const unsigned char magic[4] = {'A', 'S', 'N', 'H'};

static uint32_t get(const unsigned char *bytes, unsigned count)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < count; i++) {
        value |= (uint32_t)bytes[i] << (8 * i);
    }
    return value;
}

static void put(unsigned char *bytes, unsigned count, uint32_t value)
{
    for (unsigned i = 0; i < count; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
}

static bool head_is_good(const ucx_hello_t *hello, unsigned rest)
{
    if (hello->host_count > UCX_HELLO_HOSTS_MAX || rest != 0) {
        return false;
    }
    switch (hello->kind) {
    case UCX_HELLO_CONNECT:
        return hello->port > 0 && hello->credential_bytes <= AS_NET_CREDENTIAL_BYTES_MAX;
    case UCX_HELLO_ACCEPT:
        return hello->port > 0 && hello->credential_bytes == 0;
    case UCX_HELLO_REFUSE:
        return hello->refusal >= UCX_REFUSAL_BUSY && hello->refusal <= UCX_REFUSAL_VERSION &&
               hello->host_count == 0 && hello->credential_bytes == 0;
    default:
        return false;
    }
}

ucx_hello_parsed_t ucx_hello_parse(const void *input, size_t count, ucx_hello_t *hello)
{
    const unsigned char *bytes = input;
    memset(hello, 0, sizeof(*hello));
    if (memcmp(bytes, magic, count < sizeof(magic) ? count : sizeof(magic)) != 0) {
        return UCX_HELLO_BROKEN;
    }
    if (count < 6) {
        return UCX_HELLO_PART;
    }
    hello->version = (uint16_t)get(bytes + 4, 2);
    if (hello->version != UCX_HELLO_VERSION) {
        return UCX_HELLO_OTHER;
    }
    if (count < UCX_HELLO_HEAD_BYTES) {
        return UCX_HELLO_PART;
    }
    hello->kind = (uint16_t)get(bytes + 6, 2);
    *(hello->kind == UCX_HELLO_REFUSE ? &hello->refusal : &hello->port) =
        (uint16_t)get(bytes + 8, 2);
    hello->host_count = (uint16_t)get(bytes + 10, 2);
    hello->credential_bytes = (uint16_t)get(bytes + 12, 2);
    if (!head_is_good(hello, get(bytes + 14, 2))) {
        return UCX_HELLO_BROKEN;
    }
    size_t hosts_bytes = HOST_BYTES * hello->host_count;
    size_t summed = UCX_HELLO_HEAD_BYTES + hosts_bytes + hello->credential_bytes;
    if (count < summed + SUM_BYTES) {
        return UCX_HELLO_PART;
    }
    memcpy(hello->hosts, bytes + UCX_HELLO_HEAD_BYTES, hosts_bytes);
    memcpy(hello->credential, bytes + UCX_HELLO_HEAD_BYTES + hosts_bytes, hello->credential_bytes);
    return count == summed + SUM_BYTES &&
                   get(bytes + summed, SUM_BYTES) == as_crc32c(0, bytes, summed)
               ? UCX_HELLO_WHOLE
               : UCX_HELLO_BROKEN;
}

size_t ucx_hello_write(const ucx_hello_t *hello, unsigned char bytes[UCX_HELLO_BYTES_MAX])
{
    size_t hosts_bytes = HOST_BYTES * hello->host_count;
    size_t summed = UCX_HELLO_HEAD_BYTES + hosts_bytes + hello->credential_bytes;
    memcpy(bytes, magic, sizeof(magic));
    put(bytes + 4, 2, UCX_HELLO_VERSION);
    put(bytes + 6, 2, hello->kind);
    put(bytes + 8, 2, hello->kind == UCX_HELLO_REFUSE ? hello->refusal : hello->port);
    put(bytes + 10, 2, hello->host_count);
    put(bytes + 12, 2, hello->credential_bytes);
    put(bytes + 14, 2, 0);
    memcpy(bytes + UCX_HELLO_HEAD_BYTES, hello->hosts, hosts_bytes);
    memcpy(bytes + UCX_HELLO_HEAD_BYTES + hosts_bytes, hello->credential, hello->credential_bytes);
    put(bytes + summed, SUM_BYTES, as_crc32c(0, bytes, summed));
    return summed + SUM_BYTES;
}
