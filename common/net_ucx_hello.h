// SPDX-License-Identifier: Apache-2.0
// What two nets say to each other at the data port before UCX connects them.
//
//   connecting                            listening
//   CONNECT, the port UCX will come from ->
//                                      <- ACCEPT, the port of UCX's listener      or REFUSE
//
// One message has 16 bytes, little-endian:
//
//   offset bytes
//        0     4  magic "ASNH"
//        4     2  version, 1
//        6     2  kind
//        8     2  port; 0 in REFUSE
//       10     2  0
//       12     4  CRC32C of all before
#ifndef AS_NET_UCX_HELLO_H
#define AS_NET_UCX_HELLO_H

#include <stddef.h>
#include <stdint.h>

#define UCX_HELLO_VERSION 1u
#define UCX_HELLO_BYTES   16u

enum { UCX_HELLO_CONNECT = 1, UCX_HELLO_ACCEPT, UCX_HELLO_REFUSE };

typedef struct ucx_hello {
    uint16_t version;
    uint16_t kind;
    uint16_t port;
} ucx_hello_t;

typedef enum ucx_hello_parsed {
    UCX_HELLO_PART,   // well-formed so far
    UCX_HELLO_WHOLE,  // all of it, and nothing behind it
    UCX_HELLO_OTHER,  // magic of ours, another version: only `version` is set
    UCX_HELLO_BROKEN, // no hello: close the connection
} ucx_hello_parsed_t;

// A byte of the magic or version that cannot be is told as soon as it is there.
ucx_hello_parsed_t ucx_hello_parse(const void *bytes, size_t count, ucx_hello_t *hello);
// The version is always ours.
void ucx_hello_write(unsigned kind, uint16_t port, unsigned char bytes[UCX_HELLO_BYTES]);

#endif
