// SPDX-License-Identifier: Apache-2.0
// Headers of the data plane: what a client and a store node say to each other over net.h.
//
// All numbers are little-endian and the structs below are the bytes on the wire; a machine of the
// other order does not build. A header is one struct; arrays (keys, checksums, a remote key, a
// block's bytes) are the message's payload. Whoever receives one checks it with as_wire_check
// before reading a field, and bounds every count by the limits below before using it.
//
//   client -> store                      store -> client
//   HELLO    who I am, token             HELLO_REPLY  who I am, limits + packed remote key
//   LOCATE   kind, lease + keys          LOCATED      lease + places + checksums
//   READ     lease, extents asked for    DATA         status + bytes, for each thing asked
//   RENEW    lease                       RENEWED      status, and how long it holds now
//   RELEASE  lease                       (no answer)
//   SHARE    memory of the same host     SHARED       whether blocks can be taken from it
//   PUT      key, checksums + block      STORED       status: EXISTS, CONFLICT, ...
//   PIECE    + what follows of a block   (no answer but its PUT's)
//   ATTEND   lease, pieces + queries     ATTENDED     status + attention over each piece
//
// An answer carries the request number of its question; numbers are the client's own. Each thing
// asked for by a READ has a number of its own, and its own answer. The first message on a connection
// is HELLO; anything else ends the connection. HELLO may come again, with a newer token of the same
// tenant.
//
// A PUT comes with its block's bytes, or says where in the memory of SHARE they lie: they must stay
// there unchanged until the answer. A large block comes in pieces, or the network moves its bytes when
// the store takes them, so that one that is there already costs little.
//
// An ATTEND has attention computed where the blocks are, by the kernels that would compute it
// elsewhere (kernels/kernels.h, "Attention in pieces"): what moves are queries and partials, and the
// bits are the same.
//
// What a connection can find and write is its tenant's: other tenants' blocks are not there for it.
// Only a token with the right "peer" names the tenant of a question; all others leave it 0.
#ifndef AS_WIRE_H
#define AS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/block.h"
#include "common/shared.h"
#include "common/status.h"
#include "common/token.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the data plane's headers are little-endian structs"
#endif

#define AS_WIRE_MAGIC   0x57525341u // "ASRW"
#define AS_WIRE_VERSION 8u

#define AS_WIRE_KEYS_MAX         256u         // keys of one LOCATE
#define AS_WIRE_ASKS_MAX         30u          // asks of one READ
#define AS_WIRE_EXTENTS_MAX      32u          // extents of one ask
#define AS_WIRE_ASK_BYTES_MAX    (4u << 20)   // bytes of one ask of several extents
#define AS_WIRE_EXTENT_BYTES_MAX (16u << 20)  // one extent
#define AS_WIRE_BLOCK_BYTES_MAX  (256u << 20) // one block
#define AS_WIRE_PIECES_MAX       256u         // of one ATTEND
#define AS_WIRE_ATTEND_BYTES_MAX (16u << 20)  // queries of one ATTEND, and its answer
#define AS_WIRE_LEASE_MS_MAX     600000u      // no store grants more, and renewals add no more

typedef enum as_wire_type {
    AS_WIRE_HELLO = 1,
    AS_WIRE_HELLO_REPLY = 2,
    AS_WIRE_LOCATE = 3,
    AS_WIRE_LOCATED = 4,
    AS_WIRE_READ = 5,
    AS_WIRE_DATA = 6,
    AS_WIRE_RELEASE = 7,
    AS_WIRE_RENEW = 8,
    AS_WIRE_RENEWED = 9,
    AS_WIRE_SHARE = 10,
    AS_WIRE_SHARED = 11,
    AS_WIRE_PUT = 12,
    AS_WIRE_STORED = 13,
    AS_WIRE_PIECE = 14,
    AS_WIRE_ATTEND = 15,
    AS_WIRE_ATTENDED = 16,
    AS_WIRE_TYPE_COUNT
} as_wire_type_t;

typedef enum as_wire_kind { AS_WIRE_FULL = 1, AS_WIRE_SEALED = 2 } as_wire_kind_t;
enum {
    AS_WIRE_DURABLE = 1u, // flags of PUT
    AS_WIRE_COPY = 2u,
    AS_WIRE_HOT = 4u,
    AS_WIRE_PIN_SOFT = 8u,
    AS_WIRE_PIN_HARD = 16u,
    AS_WIRE_PINS = AS_WIRE_PIN_SOFT | AS_WIRE_PIN_HARD,
    AS_WIRE_STAGED = 32u
};

// How urgent an ask is (of READ): a store serves the classes of a connection by weighted turns, the
// first of them least often.
typedef enum as_wire_class {
    AS_WIRE_PREFIX = 0,  // in bulk: a prefix, a copy
    AS_WIRE_VERIFY = 1,  // before a session's drafts run out
    AS_WIRE_KVFETCH = 2, // a decode step waits for it
    AS_WIRE_CLASS_COUNT
} as_wire_class_t;

typedef enum as_wire_role { AS_WIRE_CLIENT = 1, AS_WIRE_STORE = 2 } as_wire_role_t;

// Statuses on the wire have numbers of their own, which never change.
typedef enum as_wire_status {
    AS_WIRE_OK = 0,
    AS_WIRE_NOT_FOUND = 1,
    AS_WIRE_EXISTS = 2,
    AS_WIRE_BUSY = 3,
    AS_WIRE_LIMIT = 4,
    AS_WIRE_INVALID = 5,
    AS_WIRE_LEASE = 6,
    AS_WIRE_CHECKSUM = 7,
    AS_WIRE_DENIED = 8,
    AS_WIRE_FAILED = 9,
    AS_WIRE_CONFLICT = 10,
    AS_WIRE_UNSUPPORTED = 11 // of ATTENDED only
} as_wire_status_t;

// offset bytes
//      0     4  magic "ASRW"
//      4     2  version of the data plane
//      6     2  type
//      8     8  request number
typedef struct as_wire_head {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint64_t request;
} as_wire_head_t;
_Static_assert(sizeof(as_wire_head_t) == 16, "layout on the wire");
_Static_assert(offsetof(as_wire_head_t, type) == 6, "layout on the wire");
_Static_assert(offsetof(as_wire_head_t, request) == 8, "layout on the wire");

// HELLO
//     16    16  instance id of the client, random
//     32     4  role
//     36     4  bytes of the token: 72, or 0: there is none
//     40    72  token (common/token.h)
typedef struct as_wire_hello {
    as_wire_head_t head;
    uint8_t instance_id[16];
    uint32_t role;
    uint32_t token_bytes;
    uint8_t token[AS_TOKEN_BYTES];
} as_wire_hello_t;
_Static_assert(sizeof(as_wire_hello_t) == 112, "layout on the wire");
_Static_assert(offsetof(as_wire_hello_t, role) == 32, "layout on the wire");
_Static_assert(offsetof(as_wire_hello_t, token) == 40, "layout on the wire");

// HELLO_REPLY; payload: the packed remote key of the pool, which may be empty, and is for a token
// without the right "direct". With another status than OK all that follows is 0.
//     16     4  status
//     20     4  bytes of the packed remote key
//     24     8  node id of the store
//     32     8  incarnation of the store
//     40     8  address of the pool, as LOCATED counts addresses
//     48     8  bytes of the pool
//     56     4  longest lease, ms
//     60     4  keys of one LOCATE, at most
//     64     4  asks in flight on one connection, at most
//     68     4  bytes of one ask of several extents, at most
typedef struct as_wire_hello_reply {
    as_wire_head_t head;
    uint32_t status;
    uint32_t rkey_bytes;
    uint64_t node_id;
    uint64_t incarnation;
    uint64_t pool_address;
    uint64_t pool_bytes;
    uint32_t lease_ms_max;
    uint32_t keys_max;
    uint32_t asks_max;
    uint32_t ask_bytes_max;
} as_wire_hello_reply_t;
_Static_assert(sizeof(as_wire_hello_reply_t) == 72, "layout on the wire");
_Static_assert(offsetof(as_wire_hello_reply_t, node_id) == 24, "layout on the wire");
_Static_assert(offsetof(as_wire_hello_reply_t, lease_ms_max) == 56, "layout on the wire");

// LOCATE; payload: key_count keys of 32 bytes
//     16     4  number of keys, 1..256
//     20     4  lease asked for, ms; 0: none, only look
//     24     4  kind
//     28     4  tenant, of a peer's question; else 0
typedef struct as_wire_locate {
    as_wire_head_t head;
    uint32_t key_count;
    uint32_t lease_ms;
    uint32_t kind;
    uint32_t tenant;
} as_wire_locate_t;
_Static_assert(sizeof(as_wire_locate_t) == 32, "layout on the wire");
_Static_assert(offsetof(as_wire_locate_t, kind) == 24, "layout on the wire");

// LOCATED; payload: key_count places, then crc_count checksums of 4 bytes
//     16     4  status: OK even when no key was found
//     20     4  number of places, as asked
//     24     8  lease of all places that are OK; 0: none
//     32     4  lease granted, ms, from when the store answered
//     36     4  number of checksums
typedef struct as_wire_located {
    as_wire_head_t head;
    uint32_t status;
    uint32_t key_count;
    uint64_t lease_id;
    uint32_t lease_ms;
    uint32_t crc_count;
} as_wire_located_t;
_Static_assert(sizeof(as_wire_located_t) == 40, "layout on the wire");
_Static_assert(offsetof(as_wire_located_t, lease_id) == 24, "layout on the wire");

// One place of a LOCATED payload
//      0     4  status; BUSY: it is there, on disk, and was not to be had yet: to be asked for again
//      4     4  layers
//      8     4  bytes of an extent; layer i lies at address + i * extent bytes
//     12     4  tokens
//     16     8  address
//     24     4  index of its first checksum; it has one for each layer. What a look found on disk
//               only has neither an address nor checksums
//     28     4  0
typedef struct as_wire_place {
    uint32_t status;
    uint32_t layers;
    uint32_t extent_bytes;
    uint32_t tokens;
    uint64_t address;
    uint32_t crc_first;
    uint32_t reserved;
} as_wire_place_t;
_Static_assert(sizeof(as_wire_place_t) == 32, "layout on the wire");
_Static_assert(offsetof(as_wire_place_t, address) == 16, "layout on the wire");

#define AS_WIRE_LOCATED_BYTES_MAX                                                                  \
    (AS_WIRE_KEYS_MAX * (sizeof(as_wire_place_t) + AS_LAYERS_MAX * sizeof(uint32_t)))

// RELEASE
//     16     8  lease
typedef struct as_wire_release {
    as_wire_head_t head;
    uint64_t lease_id;
} as_wire_release_t;
_Static_assert(sizeof(as_wire_release_t) == 24, "layout on the wire");

// RENEW
//     16     8  lease
//     24     4  lease asked for, ms, from when the store answers
//     28     4  0
typedef struct as_wire_renew {
    as_wire_head_t head;
    uint64_t lease_id;
    uint32_t lease_ms;
    uint32_t reserved;
} as_wire_renew_t;
_Static_assert(sizeof(as_wire_renew_t) == 32, "layout on the wire");
_Static_assert(offsetof(as_wire_renew_t, lease_ms) == 24, "layout on the wire");

// RENEWED
//     16     4  status; LEASE: there is no such lease any more
//     20     4  lease granted, ms, from when the store answered; it ends no earlier than it would have
typedef struct as_wire_renewed {
    as_wire_head_t head;
    uint32_t status;
    uint32_t lease_ms;
} as_wire_renewed_t;
_Static_assert(sizeof(as_wire_renewed_t) == 24, "layout on the wire");

// One ask of a READ: one layer of several blocks, or several layers of one block
//      0     8  request number of its DATA
//      8     2  first layer
//     10     2  number of layers
//     12     2  first block, as an index into the keys of the LOCATE that gave the lease
//     14     2  number of blocks; this or the number of layers is 1, and their product at most 32
typedef struct as_wire_ask {
    uint64_t request;
    uint16_t layer_first;
    uint16_t layer_count;
    uint16_t index_first;
    uint16_t index_count;
} as_wire_ask_t;
_Static_assert(sizeof(as_wire_ask_t) == 16, "layout on the wire");
_Static_assert(offsetof(as_wire_ask_t, index_first) == 12, "layout on the wire");

// READ; the request number of its head means nothing
//     16     8  lease
//     24     4  number of asks, 1..30; what is behind them is 0
//     28     4  class of all of them
//     32   480  asks
typedef struct as_wire_read {
    as_wire_head_t head;
    uint64_t lease_id;
    uint32_t ask_count;
    uint32_t urgency; // as_wire_class_t
    as_wire_ask_t asks[AS_WIRE_ASKS_MAX];
} as_wire_read_t;
_Static_assert(sizeof(as_wire_read_t) == 512, "layout on the wire");
_Static_assert(offsetof(as_wire_read_t, urgency) == 28, "layout on the wire");
_Static_assert(offsetof(as_wire_read_t, asks) == 32, "layout on the wire");

// DATA; payload when OK: the extents one after the other, in the order asked. A single extent may come
// in pieces that do not overlap, a DATA each; another status than OK ends it.
//     16     4  status
//     20     4  where in a single extent the payload belongs; else 0
typedef struct as_wire_data {
    as_wire_head_t head;
    uint32_t status;
    uint32_t offset;
} as_wire_data_t;
_Static_assert(sizeof(as_wire_data_t) == 24, "layout on the wire");
_Static_assert(offsetof(as_wire_data_t, offset) == 20, "layout on the wire");

// SHARE: memory of a client on the store's host, that blocks may be taken from; once on a connection
//     16     8  bytes
//     24    48  its name (common/shared.h)
typedef struct as_wire_share {
    as_wire_head_t head;
    uint64_t bytes;
    as_shared_name_t name;
} as_wire_share_t;
_Static_assert(sizeof(as_wire_share_t) == 72, "layout on the wire");
_Static_assert(offsetof(as_wire_share_t, name) == 24, "layout on the wire");

// SHARED, STORED
//     16     4  status. Of a PUT: EXISTS when the block is there or is being written by another, CONFLICT
//               when that one has other checksums; a durable one or a copy that is being written is BUSY;
//               NOT_FOUND to a copy of a block that was dropped lately, LIMIT of one that was evicted
//               lately by a store that is full
//     20     4  0
typedef struct as_wire_result {
    as_wire_head_t head;
    uint32_t status;
    uint32_t reserved;
} as_wire_result_t;
_Static_assert(sizeof(as_wire_result_t) == 24, "layout on the wire");

// PUT; payload: layers * extent bytes, or nothing of one that is staged, or the first of the pieces that it is
// cut into: a PIECE each brings the others. The header ends with the last layer's checksum.
//     16    32  key
//     48    32  parent key
//     80    32  namespace key
//    112     4  kind
//    116     4  layers
//    120     4  bytes of an extent
//    124     4  tokens
//    128     4  flags: 1, durable: answered once a power cut can no longer lose the block;
//               2, copy: from another store, EXISTS also where the block is on disk only.
//               Of a peer's copy, whose store is about to end: 4, hot: it was used lately, and is taken
//               where it was evicted lately; one of 8, soft, and 16, hard: it was pinned there.
//               32, staged: it is not the payload, but lies in the memory of SHARE
//    132     4  time to live, ms, from now on; 0: no end. Of a block that is there the first put's holds
//    136     4  tenant, of a peer's block; else 0
//    140     4  0
//    144     8  place: the first 8 bytes of the key that places its run (as_key_hash)
//    152     8  of a staged one: offset of its bytes in the memory of SHARE; else 0
//    160   4 *  checksums: CRC32C of each layer's extent
typedef struct as_wire_put {
    as_wire_head_t head;
    as_key_t key;
    as_key_t parent;
    as_key_t namespace_key;
    uint32_t kind;
    uint32_t layers;
    uint32_t extent_bytes;
    uint32_t tokens;
    uint32_t flags;
    uint32_t ttl_ms;
    uint32_t tenant;
    uint32_t reserved;
    uint64_t place;
    uint64_t offset;
    uint32_t crcs[AS_LAYERS_MAX];
} as_wire_put_t;
_Static_assert(offsetof(as_wire_put_t, kind) == 112, "layout on the wire");
_Static_assert(offsetof(as_wire_put_t, place) == 144, "layout on the wire");
_Static_assert(offsetof(as_wire_put_t, crcs) == 160, "layout on the wire");

// PIECE; payload: what follows in the block of a PUT; none: the writer gives it up. Its request number is the
// PUT's, whose STORED may come before the last one: then what is still to come is of no use
//     16     8  offset in the block: where the piece before has ended
typedef struct as_wire_piece {
    as_wire_head_t head;
    uint64_t offset;
} as_wire_piece_t;
_Static_assert(sizeof(as_wire_piece_t) == 24, "layout on the wire");
_Static_assert(offsetof(as_wire_piece_t, offset) == 16, "layout on the wire");

// One piece of an ATTEND: blocks that follow each other in the chain, whose pages fold into one partial
//      0     2  first block, as an index into the keys of the LOCATE that gave the lease
//      2     2  number of blocks
typedef struct as_wire_chain_piece {
    uint16_t index_first;
    uint16_t index_count;
} as_wire_chain_piece_t;
_Static_assert(sizeof(as_wire_chain_piece_t) == 4, "layout on the wire");

// ATTEND; payload: the queries, f32 [rows][query heads][dim]. Every row sees every token of the blocks:
// it stands behind them. The header ends with the last piece
//     16     8  lease
//     24    16  what the bits of the kernels are called (KRN_NUMERICS_VERSION), then zeros
//     40     4  layer
//     44     4  rows
//     48     4  query heads
//     52     4  KV heads
//     56     4  dim of a head
//     60     4  scale of the logits, f32
//     64     4  CRC32C of the payload
//     68     4  time until it is begun, ms, from when it is here; then it is BUSY
//     72     4  number of pieces, 1..256
//     76     4  0
//     80   4 *  pieces
typedef struct as_wire_attend {
    as_wire_head_t head;
    uint64_t lease_id;
    char numerics[16];
    uint32_t layer;
    uint32_t rows;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t dim;
    float scale;
    uint32_t crc;
    uint32_t wait_ms;
    uint32_t piece_count;
    uint32_t reserved;
    as_wire_chain_piece_t pieces[AS_WIRE_PIECES_MAX];
} as_wire_attend_t;
_Static_assert(offsetof(as_wire_attend_t, numerics) == 24, "layout on the wire");
_Static_assert(offsetof(as_wire_attend_t, dim) == 56, "layout on the wire");
_Static_assert(offsetof(as_wire_attend_t, piece_count) == 72, "layout on the wire");
_Static_assert(offsetof(as_wire_attend_t, pieces) == 80, "layout on the wire");
_Static_assert(sizeof(as_wire_attend_t) == 80 + 4 * AS_WIRE_PIECES_MAX, "layout on the wire");

// ATTENDED; payload when OK: of each piece, f32, out [rows][query heads][dim], max [rows][query heads],
// sum [rows][query heads]
//     16     4  status; BUSY: there is no room or no time for it; UNSUPPORTED: this store computes none, or
//               with other bits; CHECKSUM: a block was not what was promised, or the queries were not
//     20     4  CRC32C of the payload
//     24     4  of CHECKSUM: the block that was not, as an index into the keys of LOCATE; all ones: the
//               queries were not. Else 0
//     28     4  0
typedef struct as_wire_attended {
    as_wire_head_t head;
    uint32_t status;
    uint32_t crc;
    uint32_t bad_index;
    uint32_t reserved;
} as_wire_attended_t;
_Static_assert(sizeof(as_wire_attended_t) == 32, "layout on the wire");
_Static_assert(offsetof(as_wire_attended_t, bad_index) == 24, "layout on the wire");

static inline size_t as_wire_attend_bytes(uint32_t piece_count)
{
    return offsetof(as_wire_attend_t, pieces) + piece_count * sizeof(as_wire_chain_piece_t);
}

static inline size_t as_wire_put_bytes(uint32_t layers)
{
    return offsetof(as_wire_put_t, crcs) + layers * sizeof(uint32_t);
}

// Bytes of the header of a type, of a PUT without checksums, of an ATTEND without pieces; 0 for an unknown
// type.
static inline size_t as_wire_bytes(uint32_t type)
{
    static const uint16_t bytes[AS_WIRE_TYPE_COUNT] = {
        [AS_WIRE_HELLO] = sizeof(as_wire_hello_t),
        [AS_WIRE_HELLO_REPLY] = sizeof(as_wire_hello_reply_t),
        [AS_WIRE_LOCATE] = sizeof(as_wire_locate_t),
        [AS_WIRE_LOCATED] = sizeof(as_wire_located_t),
        [AS_WIRE_READ] = sizeof(as_wire_read_t),
        [AS_WIRE_DATA] = sizeof(as_wire_data_t),
        [AS_WIRE_RELEASE] = sizeof(as_wire_release_t),
        [AS_WIRE_RENEW] = sizeof(as_wire_renew_t),
        [AS_WIRE_RENEWED] = sizeof(as_wire_renewed_t),
        [AS_WIRE_SHARE] = sizeof(as_wire_share_t),
        [AS_WIRE_SHARED] = sizeof(as_wire_result_t),
        [AS_WIRE_PUT] = offsetof(as_wire_put_t, crcs),
        [AS_WIRE_STORED] = sizeof(as_wire_result_t),
        [AS_WIRE_PIECE] = sizeof(as_wire_piece_t),
        [AS_WIRE_ATTEND] = offsetof(as_wire_attend_t, pieces),
        [AS_WIRE_ATTENDED] = sizeof(as_wire_attended_t),
    };
    return type < AS_WIRE_TYPE_COUNT ? bytes[type] : 0;
}

static inline as_wire_head_t as_wire_head(as_wire_type_t type, uint64_t request)
{
    return (as_wire_head_t){AS_WIRE_MAGIC, AS_WIRE_VERSION, (uint16_t)type, request};
}

// Whether these bytes are a header of this version, of a known type and of exactly its length. After
// true, the struct of head.type may be read, of a PUT as many checksums as it has layers, of an ATTEND its
// pieces, of which there are 1 to AS_WIRE_PIECES_MAX.
static inline bool as_wire_check(const void *header, size_t header_bytes)
{
    as_wire_head_t head;
    if (!header || header_bytes < sizeof(head)) {
        return false;
    }
    memcpy(&head, header, sizeof(head));
    size_t bytes = as_wire_bytes(head.type);
    if (head.type == AS_WIRE_PUT && header_bytes >= bytes) {
        uint32_t layers;
        memcpy(&layers, (const char *)header + offsetof(as_wire_put_t, layers), sizeof(layers));
        bytes = layers <= AS_LAYERS_MAX ? as_wire_put_bytes(layers) : 0;
    }
    if (head.type == AS_WIRE_ATTEND && header_bytes >= bytes) {
        uint32_t pieces;
        memcpy(&pieces, (const char *)header + offsetof(as_wire_attend_t, piece_count),
               sizeof(pieces));
        bytes = pieces > 0 && pieces <= AS_WIRE_PIECES_MAX ? as_wire_attend_bytes(pieces) : 0;
    }
    return head.magic == AS_WIRE_MAGIC && head.version == AS_WIRE_VERSION && bytes == header_bytes;
}

// The version that a peer speaks whose header as_wire_check refused; 0: ours, or no header of this
// protocol. All versions begin with the same magic and version.
static inline uint32_t as_wire_other_version(const void *header, size_t header_bytes)
{
    as_wire_head_t head = {0};
    if (header && header_bytes >= sizeof(head)) {
        memcpy(&head, header, sizeof(head));
    }
    return head.magic == AS_WIRE_MAGIC && head.version != AS_WIRE_VERSION ? head.version : 0;
}

static inline as_wire_status_t as_wire_status_of(as_status_t status)
{
    switch (status) {
    case AS_OK:
        return AS_WIRE_OK;
    case AS_ERR_NOT_FOUND:
        return AS_WIRE_NOT_FOUND;
    case AS_ERR_EXISTS:
        return AS_WIRE_EXISTS;
    case AS_ERR_BUSY:
    case AS_ERR_NO_MEMORY:
        return AS_WIRE_BUSY;
    case AS_ERR_LIMIT:
        return AS_WIRE_LIMIT;
    case AS_ERR_INVALID:
        return AS_WIRE_INVALID;
    case AS_ERR_LEASE:
        return AS_WIRE_LEASE;
    case AS_ERR_CHECKSUM:
        return AS_WIRE_CHECKSUM;
    case AS_ERR_DENIED:
        return AS_WIRE_DENIED;
    case AS_ERR_CONFLICT:
        return AS_WIRE_CONFLICT;
    default:
        return AS_WIRE_FAILED;
    }
}

// A number that no version knows is a failure of the peer.
static inline as_status_t as_wire_status_to(uint32_t status)
{
    static const as_status_t known[] = {
        [AS_WIRE_OK] = AS_OK,
        [AS_WIRE_NOT_FOUND] = AS_ERR_NOT_FOUND,
        [AS_WIRE_EXISTS] = AS_ERR_EXISTS,
        [AS_WIRE_BUSY] = AS_ERR_BUSY,
        [AS_WIRE_LIMIT] = AS_ERR_LIMIT,
        [AS_WIRE_INVALID] = AS_ERR_INVALID,
        [AS_WIRE_LEASE] = AS_ERR_LEASE,
        [AS_WIRE_CHECKSUM] = AS_ERR_CHECKSUM,
        [AS_WIRE_DENIED] = AS_ERR_DENIED,
        [AS_WIRE_FAILED] = AS_ERR_IO,
        [AS_WIRE_CONFLICT] = AS_ERR_CONFLICT,
        [AS_WIRE_UNSUPPORTED] = AS_ERR_UNSUPPORTED,
    };
    return status < sizeof(known) / sizeof(known[0]) ? known[status] : AS_ERR_PROTOCOL;
}

#endif
