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
    check(parsed != UCX_HELLO_PART || bytes < UCX_HELLO_BYTES_MAX);
    if (parsed == UCX_HELLO_WHOLE) {
        unsigned char again[UCX_HELLO_BYTES_MAX];
        check(hello.kind >= UCX_HELLO_CONNECT && hello.kind <= UCX_HELLO_REFUSE);
        check((hello.port == 0) == (hello.kind == UCX_HELLO_REFUSE));
        check(hello.host_count <= UCX_HELLO_HOSTS_MAX);
        check(ucx_hello_write(&hello, again) == bytes);
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
    if (bytes >= UCX_HELLO_HEAD_BYTES + 4 && bytes <= UCX_HELLO_BYTES_MAX) {
        uint8_t summed[UCX_HELLO_BYTES_MAX];
        memcpy(summed, data, bytes);
        uint32_t crc = as_crc32c(0, data, bytes - 4);
        memcpy(summed + bytes - 4, &crc, 4);
        parse(summed, bytes);
    }
    return 0;
}
