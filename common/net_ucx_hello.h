// SPDX-License-Identifier: Apache-2.0
// What two nets say to each other at the data port before UCX connects them.
//
//   connecting                              listening
//   CONNECT: the port UCX will come from, ->
//            our hosts, our credential
//                                        <- ACCEPT: the port of UCX's listener, its hosts
//                                           or REFUSE: why
//
// The hosts are those that UCX's own connections may come from (net_ucx_doors.c). One message,
// little-endian:
//
//   offset bytes
//        0     4  magic "ASNH"
//        4     2  version
//        6     2  kind
//        8     2  port, or the refusal
//       10     2  hosts h
//       12     2  bytes of the credential c; 0 but in CONNECT
//       14     2  0
//       16   16h  hosts: IPv6 addresses, or IPv4 mapped into them
//   16+16h     c  credential
// 16+16h+c     4  CRC32C of all before
#ifndef AS_NET_UCX_HELLO_H
#define AS_NET_UCX_HELLO_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#include "common/net.h"

#define UCX_HELLO_VERSION    2u
#define UCX_HELLO_HEAD_BYTES 16u
#define UCX_HELLO_HOSTS_MAX  16u
#define UCX_HELLO_BYTES_MAX                                                                        \
    (UCX_HELLO_HEAD_BYTES + 16u * UCX_HELLO_HOSTS_MAX + AS_NET_CREDENTIAL_BYTES_MAX + 4u)

enum { UCX_HELLO_CONNECT = 1, UCX_HELLO_ACCEPT, UCX_HELLO_REFUSE };
enum { UCX_REFUSAL_BUSY = 1, UCX_REFUSAL_DENIED, UCX_REFUSAL_VERSION };

typedef struct ucx_hello {
    uint16_t version;
    uint16_t kind;
    uint16_t port;    // of CONNECT and ACCEPT
    uint16_t refusal; // of REFUSE
    uint16_t host_count;
    uint16_t credential_bytes;
    struct in6_addr hosts[UCX_HELLO_HOSTS_MAX];
    uint8_t credential[AS_NET_CREDENTIAL_BYTES_MAX];
} ucx_hello_t;

typedef enum ucx_hello_parsed {
    UCX_HELLO_PART,   // well-formed so far
    UCX_HELLO_WHOLE,  // all of it, and nothing behind it
    UCX_HELLO_OTHER,  // magic of ours, another version: only `version` is set
    UCX_HELLO_BROKEN, // no hello: close the connection
} ucx_hello_parsed_t;

// A byte of the head that cannot be is told as soon as it is there.
ucx_hello_parsed_t ucx_hello_parse(const void *bytes, size_t count, ucx_hello_t *hello);
// Returns how many bytes it has. The version is always ours.
size_t ucx_hello_write(const ucx_hello_t *hello, unsigned char bytes[UCX_HELLO_BYTES_MAX]);

#endif
