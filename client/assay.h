// SPDX-License-Identifier: Apache-2.0
// libassay: the public C API. A cache of KV blocks on store nodes, named by content.
//
// A client owns one thread that moves data; every call may be made from any thread. Nothing is ever
// returned that failed its checksum: a damaged, missing or unreachable block is ASSAY_MISS in the
// result of that block, never wrong bytes.
//
//     assay_t *assay;
//     assay_config_t config = {.scheduler = "127.0.0.1:7700"};
//     if (assay_open(&config, &assay) != ASSAY_OK) { puts(assay_last_error()); return 1; }
//     uint32_t hit = 0;
//     assay_exists(assay, keys, count, &hit);              // consecutive blocks from the first
//     assay_get(assay, &shape, keys, hit, buffer, &hit);   // whole blocks, in order
//     assay_close(assay);
//
// These block until they are done or their deadline has passed; a put that is late, until its bytes have
// left the caller's memory too, which takes 2 s of a link on which nothing moves. assay_run and assay_start take a
// request: many blocks with a result for each, some layers only, durable puts, a deadline of its
// own; assay_start does not wait.
//
// Binary interface: structs that the caller fills end in `reserved`, which must be zero (initialize
// with = {0}); new members are taken from it, with 0 meaning what it was before, and a library that
// does not know them refuses them. The numbers of enums never change. The shared library exports
// what is declared here and nothing else, as version ASSAY_1 of libassay.so.1.
#ifndef ASSAY_H
#define ASSAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct assay assay_t;
typedef struct assay_op assay_op_t; // one request on its way

typedef enum assay_result {
    ASSAY_OK = 0,
    ASSAY_MISS = 1,         // no block, or not usable
    ASSAY_EXISTS = 2,       // put: the same block is there already
    ASSAY_PENDING = 3,      // assay_op_result: not done yet
    ASSAY_INVALID = -1,     // an argument is wrong
    ASSAY_BUSY = -2,        // too many operations in flight, or the store is full
    ASSAY_TIMEOUT = -3,     // not done by its deadline
    ASSAY_UNREACHABLE = -4, // no scheduler or no store node
    ASSAY_FAILED = -5,      // anything else; see assay_last_error
    ASSAY_CANCELLED = -6,   // by assay_op_cancel or assay_close
    ASSAY_CONFLICT = -7,    // put: the store has other bytes under this key
    ASSAY_DENIED = -8       // the stores refuse the token, or want one
} assay_result_t;

typedef struct assay_config {
    const char *scheduler;  // "host:port"
    uint32_t timeout_ms;    // of each call that names none; 0: 10000
    uint32_t in_flight_max; // operations; one more is ASSAY_BUSY. 0: 64; at most 1024
    // PEM files of mutual TLS with the scheduler: all three, or none for plain text;
    // read again when they change.
    const char *tls_ca, *tls_cert, *tls_key;
    // File with the token that stores with tenants admit this client by (`assay token issue`), or NULL;
    // read again when it changes.
    const char *token_file;
    // File with the key (64 hexadecimal digits, `assay token key`) by which blocks are encrypted before
    // a put and decrypted after a get, or NULL; read once. Stores never see it. Keys in requests stay
    // what they are; who has another key, or none, never meets these blocks.
    const char *encrypt_key_file;
    uint64_t reserved[9]; // zero
} assay_config_t;

typedef struct assay_shape {
    uint32_t layers, q_heads, kv_heads, head_dim, block_tokens;
    uint32_t element_bytes; // 2: f16; 4: f32
} assay_shape_t;

// One line of text for the last failure in this thread; never NULL.
const char *assay_last_error(void);
const char *assay_version(void);
// The name of a result, such as "timeout"; never NULL.
const char *assay_result_name(int result);

int assay_open(const assay_config_t *config, assay_t **assay_p);
// Operations in flight end with ASSAY_CANCELLED, their callbacks run, then it returns. Not from a
// callback, and not while another thread is in a call of this client other than assay_op_*.
void assay_close(assay_t *assay);

// keys: count times 32 bytes, a chain in order. hit_p: how many consecutive blocks from the first
// are stored, in RAM or on disk.
int assay_exists(assay_t *assay, const uint8_t *keys, uint32_t count, uint32_t *hit_p);
// Reads whole blocks of a chain into `buffer` (count * block bytes, block after block). hit_p: how
// many consecutive blocks from the first are complete and checked; ASSAY_OK when that is all of
// them, ASSAY_MISS when fewer; ASSAY_BUSY when the next one is there, and its store had no room or time to
// bring it for as long as the call may wait for that, half of its time at most.
int assay_get(assay_t *assay, const assay_shape_t *shape, const uint8_t *keys, uint32_t count,
              void *buffer, uint32_t *hit_p);
// Stores one block: key i of `keys` (a chain, so that placement and parents are known).
int assay_put(assay_t *assay, const assay_shape_t *shape, const uint8_t *namespace_key,
              const uint8_t *keys, uint32_t index, const void *block);

// ---- requests

typedef enum assay_kind {
    ASSAY_KIND_EXISTS = 1,
    ASSAY_KIND_GET = 2,
    ASSAY_KIND_PUT = 3
} assay_kind_t;

enum {
    // exists, get: the keys are one chain in order, and what lies behind the first miss is not
    // looked for. Cheaper: without it the keys may be any, and every store is asked for those that
    // the scheduler does not place.
    ASSAY_PREFIX = 1u,
    // put: ASSAY_OK and ASSAY_EXISTS say that a power cut can no longer lose the block
    ASSAY_DURABLE = 2u,
    // get: somebody waits for it; it overtakes gets without this, at the stores too
    ASSAY_URGENT = 4u
};

// Runs once, in the client's own thread, when the operation is over and nothing refers to the
// request's memory any more. It must not wait for operations (such a call is refused with
// ASSAY_INVALID) and should be short, since data waits meanwhile; it may start, cancel and free
// operations.
typedef void (*assay_done_fn)(void *ctx, assay_op_t *op, int result);

typedef struct assay_request {
    uint32_t kind;  // assay_kind_t
    uint32_t flags; // ASSAY_PREFIX, ASSAY_DURABLE, ASSAY_URGENT
    // count times 32 bytes, copied. put: the chain from its first block on, of which keys[first] and
    // those behind it are put: blocks, buffer and results begin with that one.
    const uint8_t *keys;
    uint32_t count, first;
    uint32_t timeout_ms;          // from the call on; 0: the client's
    const assay_shape_t *shape;   // get and put; exists: for assay_op_load_us, or NULL; copied
    const uint8_t *namespace_key; // put: 32 bytes, copied
    // get and put: one pointer for each block, the array copied. What it points to is written by a
    // get and only read by a put.
    void *const *blocks;
    // Or, with blocks NULL: all of them, one after the other.
    void *buffer;
    // get: only these layers of each block, one after the other; layer_count 0: all from
    // first_layer on. Each layer is checked as in a whole read.
    uint32_t first_layer, layer_count;
    int32_t *results;      // NULL, or one for each block
    assay_done_fn on_done; // NULL: none
    void *ctx;
    uint64_t ttl_ms; // put: the stores forget the blocks after it; 0: never; at most 2^32 - 1. A
                     // block that is there keeps the time of its first put
    uint64_t reserved[7]; // zero
} assay_request_t;

// Does it and waits. exists: ASSAY_OK, and the results tell. get: ASSAY_OK when every block is
// there, ASSAY_MISS when some are not. put: ASSAY_OK when every block is stored (ASSAY_EXISTS where
// each was there before), else the result of the first that is not. hit_p (may be NULL): how many
// keys from the first were hits without a gap.
int assay_run(assay_t *assay, const assay_request_t *request, uint32_t *hit_p);
// Starts it. On ASSAY_OK `results`, `buffer` and the blocks are the operation's until it is over; on
// another result nothing was started. op_p NULL: only the callback tells.
int assay_start(assay_t *assay, const assay_request_t *request, assay_op_t **op_p);

// Waits until it is over and its callback has returned: its result; ASSAY_TIMEOUT, and it goes on,
// when that takes longer than timeout_ms.
int assay_op_wait(assay_op_t *op, uint32_t timeout_ms);
int assay_op_result(assay_op_t *op);        // ASSAY_PENDING, or the result; never waits
uint32_t assay_op_hit(assay_op_t *op);      // as of assay_run; 0 while it is pending
const char *assay_op_error(assay_op_t *op); // one line; "" while it is pending or when all is well
// Ends it soon, with ASSAY_CANCELLED, where it is not over by then. Returns at once: its memory is
// the operation's until it is over. Blocks that arrived or were stored before keep their results.
void assay_op_cancel(assay_op_t *op);
// Forgets the handle; the operation goes on, where it is not over. Also after assay_close.
void assay_op_free(assay_op_t *op);

// ---- load or recompute

// The client measures each store as it reads: the time of a question, and bytes a second.
typedef struct assay_prediction {
    uint32_t hit;     // blocks from the first that are stored
    uint32_t load;    // 1: load them; 0: computing their tokens again is expected to be faster
    uint64_t load_us; // expected; 0: not known, since a store was not read from lately; then load
    uint64_t recompute_us; // of their tokens, at tokens_per_second
    uint64_t reserved[4];  // zero
} assay_prediction_t;

// Looks for the prefix as assay_exists does, and says what is faster. What was measured more than
// 30 s ago is not believed, so that a store that was slow is tried again.
int assay_predict(assay_t *assay, const assay_shape_t *shape, const uint8_t *keys, uint32_t count,
                  double tokens_per_second, assay_prediction_t *prediction_p);
// Of an exists whose request has a shape: the expected time of loading all hits; 0: not known.
uint64_t assay_op_load_us(assay_op_t *op);

typedef struct assay_store_info {
    uint64_t node_id;
    char address[64];
    uint64_t locate_us;   // of one question; 0: not known
    uint64_t bytes_per_s; // of reads; 0: not known, or long ago
    uint32_t connected, reserved;
} assay_store_info_t;

// The present stores. stores_p: room for `max` of store_bytes (sizeof(assay_store_info_t)) each.
int assay_stores(assay_t *assay, assay_store_info_t *stores_p, size_t store_bytes, uint32_t max,
                 uint32_t *count_p);

// ---- registered memory

// Says that blocks will be read into this memory, again and again. Any memory will do without: the
// network writes into it directly, on shared memory and TCP as on RDMA, where the transport keeps
// its own cache of registrations. What this does is to have the pages there before the first read,
// which else meets them one by one. The memory must stay until it is unregistered; regions must not
// overlap.
int assay_buffer_register(assay_t *assay, void *memory, size_t bytes);
int assay_buffer_unregister(assay_t *assay, void *memory);

// ---- figures

// Of this client since it was opened.
typedef struct assay_stats {
    uint64_t operations, operations_busy; // started; refused with ASSAY_BUSY
    uint64_t operations_timeout, operations_cancelled, operations_failed;
    uint64_t blocks_found, blocks_missed; // of exists and get
    uint64_t blocks_got, bytes_got;
    uint64_t blocks_put, bytes_put, blocks_existed, blocks_put_failed;
    uint64_t buffer_bytes; // registered now
    uint32_t in_flight, in_flight_max;
    uint32_t stores, reserved; // live, as the scheduler says
} assay_stats_t;

// stats_bytes: sizeof(assay_stats_t). Members may be added at the end; a caller that knows fewer
// gets those.
int assay_stats(assay_t *assay, assay_stats_t *stats_p, size_t stats_bytes);

// ---- keys

// The namespace key of a model, and the keys of a chain of tokens. What the arguments are for blocks
// that Assay's workers share is in docs/api.md, "The C API"; tenant_salt may be NULL. assay_chain
// gives the number of keys: 0 where an argument is wrong; block_tokens is at most 256.
int assay_namespace(const uint8_t model_fingerprint[32], const assay_shape_t *shape,
                    const char *numerics_id, const char *tenant_salt, uint8_t namespace_key[32]);
uint32_t assay_chain(const uint8_t namespace_key[32], const int32_t *tokens, size_t token_count,
                     uint32_t block_tokens, uint8_t *keys, uint32_t count_max);
// Bytes of one block, or 0 where the shape is not valid.
size_t assay_block_bytes(const assay_shape_t *shape);

#ifdef __cplusplus
}
#endif

#endif
