// SPDX-License-Identifier: Apache-2.0
// The hello of the data port as a function of bytes; the layout is in net_ucx_hello.h.
#include "common/net_ucx_hello.h"

#include <stdbool.h>
#include <string.h>

#include "common/checksum.h"

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

static bool port_is_good(unsigned kind, unsigned port)
{
    return kind == UCX_HELLO_CONNECT || kind == UCX_HELLO_ACCEPT
               ? port > 0
               : kind == UCX_HELLO_REFUSE && port == 0;
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
    if (count < UCX_HELLO_BYTES) {
        return UCX_HELLO_PART;
    }
    hello->kind = (uint16_t)get(bytes + 6, 2);
    hello->port = (uint16_t)get(bytes + 8, 2);
    return count == UCX_HELLO_BYTES && port_is_good(hello->kind, hello->port) &&
                   get(bytes + 10, 2) == 0 && get(bytes + 12, 4) == as_crc32c(0, bytes, 12)
               ? UCX_HELLO_WHOLE
               : UCX_HELLO_BROKEN;
}

void ucx_hello_write(unsigned kind, uint16_t port, unsigned char bytes[UCX_HELLO_BYTES])
{
    memcpy(bytes, magic, sizeof(magic));
    put(bytes + 4, 2, UCX_HELLO_VERSION);
    put(bytes + 6, 2, kind);
    put(bytes + 8, 2, port);
    put(bytes + 10, 2, 0);
    put(bytes + 12, 4, as_crc32c(0, bytes, 12));
}
