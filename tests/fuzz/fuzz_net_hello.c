// SPDX-License-Identifier: Apache-2.0
// Bytes at the data port, before UCX sees any of them. An input is parsed as it is, and again with
// the checksum that belongs to it, so that the fuzzer gets past that.
#include <stdlib.h>
#include <string.h>

#include "common/checksum.h"
#include "common/net_ucx_hello.h"

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

// In memory of exactly its size, so that a read beyond it is seen.
static void parse(const uint8_t *data, size_t bytes)
{
    uint8_t *input = malloc(bytes > 0 ? bytes : 1);
    ucx_hello_t hello;
    if (bytes > 0) {
        memcpy(input, data, bytes);
    }
    ucx_hello_parsed_t parsed = ucx_hello_parse(input, bytes, &hello);
    check(parsed != UCX_HELLO_PART || bytes < UCX_HELLO_BYTES);
    if (parsed == UCX_HELLO_WHOLE) {
        unsigned char again[UCX_HELLO_BYTES];
        check(bytes == UCX_HELLO_BYTES);
        check(hello.kind >= UCX_HELLO_CONNECT && hello.kind <= UCX_HELLO_REFUSE);
        check((hello.port == 0) == (hello.kind == UCX_HELLO_REFUSE));
        ucx_hello_write(hello.kind, hello.port, again);
        check(memcmp(again, input, bytes) == 0);
        for (size_t cut = 0; cut < bytes; cut++) {
            check(ucx_hello_parse(input, cut, &hello) == UCX_HELLO_PART);
        }
    }
    free(input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    parse(data, bytes);
    if (bytes >= UCX_HELLO_BYTES) {
        uint8_t summed[UCX_HELLO_BYTES];
        memcpy(summed, data, sizeof(summed));
        uint32_t crc = as_crc32c(0, data, sizeof(summed) - 4);
        memcpy(summed + sizeof(summed) - 4, &crc, 4);
        parse(summed, sizeof(summed));
    }
    return 0;
}
