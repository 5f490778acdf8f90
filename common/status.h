// SPDX-License-Identifier: Apache-2.0
// The one status type of the project.
//
// A status says what must be rebuilt: the request, the block, the peer, the device or the process.
// Every fallible function returns one and writes its outputs only on AS_OK. The function that first
// decides that something is an error logs it, once; callers hand it on silently.
#ifndef AS_STATUS_H
#define AS_STATUS_H

#define AS_MUST_USE __attribute__((warn_unused_result))

typedef enum as_status {
    AS_OK = 0,
    // The request is at fault, or has ended.
    AS_ERR_INVALID,     // malformed argument or message field
    AS_ERR_UNSUPPORTED, // well formed, but this build, model or transport cannot do it
    AS_ERR_LIMIT,       // larger than a stated limit
    AS_ERR_BUSY,        // a bounded queue or pool is full: try again later
    AS_ERR_CANCELLED,   // the caller cancelled
    AS_ERR_DEADLINE,    // not finished by its deadline
    // The block is not usable: treat it as a miss.
    AS_ERR_NOT_FOUND,
    AS_ERR_EXISTS,   // a put of a key that is already there
    AS_ERR_CONFLICT, // a put of a key that is already there with other bytes
    AS_ERR_CHECKSUM, // bytes are not what was promised
    AS_ERR_LEASE,    // the lease ended before the bytes were read
    // The peer is not usable.
    AS_ERR_UNREACHABLE, // no connection could be made
    AS_ERR_PEER_LOST,   // an established connection failed
    AS_ERR_PROTOCOL,    // the peer sent what the protocol forbids
    AS_ERR_DENIED,      // the peer refused our identity or rights
    // The device or the process is not usable.
    AS_ERR_DEVICE,
    AS_ERR_NO_MEMORY,
    AS_ERR_IO,
    AS_ERR_CONFIG, // options contradict each other or the machine
    AS_STATUS_COUNT
} as_status_t;

// Short lower-case name, such as "peer lost". Never NULL.
const char *as_status_str(as_status_t status);

#endif
