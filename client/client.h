// SPDX-License-Identifier: Apache-2.0
// The client of the store nodes, on a loop: locate, fetch in layer order, put. The worker and the
// simulation use it directly; assay.h wraps it with a thread of its own.
//
// All calls and callbacks are on the loop's thread. A fetch or put never hangs: it ends by its
// deadline. A fetch never hands out bytes that are not checked. Asynchronous contract: see
// common/loop.h.
#ifndef ASSAY_CLIENT_H
#define ASSAY_CLIENT_H

#include <stdbool.h>
#include "common/block.h"
#include "common/cipher.h"
#include "common/net.h"
#include "common/token.h"

#define ASSAY_STORES_MAX        64u
#define ASSAY_REPLICAS_MAX      8u // copies of a block, at most
#define ASSAY_ADDRESS_BYTES_MAX 64u

typedef struct assay_client assay_client_t;
typedef struct assay_fetch assay_fetch_t;
typedef struct assay_put assay_put_t;

typedef struct assay_store {
    uint64_t node_id;
    char data_address[ASSAY_ADDRESS_BYTES_MAX];
    uint64_t capacity_bytes; // weight in placement
    bool draining;           // no block is placed there any more; it is read from while it is there
} assay_store_t;

typedef struct assay_client_options {
    as_loop_t *loop;
    // Makes the net on which the client connects: real or simulated.
    as_status_t (*net_alloc)(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p);
    void *net_ctx;
    bool verify_checksums; // default of callers: true
    uint32_t puts_max;     // puts in flight; more are AS_ERR_BUSY
    uint32_t fetches_max;
    // Asked for and not yet here, per connection, at most; one ask may exceed it. How much it is follows
    // the store's rate and distance.
    size_t bytes_in_flight_max;
    size_t stage_bytes;          // of memory that stores on this host take puts from; 0: none
    uint64_t connect_timeout_us; // of connecting, and of each LOCATE
    uint64_t stall_timeout_us;   // a store that owes bytes and sends none for this long is given up
    // A store that failed is not tried again for this long, twice as long after the next failure, and
    // so on up to the most.
    uint64_t retry_after_us, retry_after_us_max;
} assay_client_options_t;

// Fills the defaults (everything but loop and net).
void assay_client_options_init(assay_client_options_t *options);
as_status_t assay_client_alloc(const assay_client_options_t *options,
                               assay_client_t **client_p) AS_MUST_USE;
// Fetches and puts in flight complete with AS_ERR_CANCELLED before it returns.
void assay_client_free(assay_client_t *client);
// The live store nodes, as the scheduler's heartbeat answers tell. Replaces the set; transfers in
// flight go on.
void assay_client_set_stores(assay_client_t *client, const assay_store_t *stores, uint32_t count);
uint32_t assay_client_store_count(const assay_client_t *client);
// How many copies of a block the cluster keeps, as the scheduler tells: 1 until it is told, at most
// ASSAY_REPLICAS_MAX.
void assay_client_set_replicas(assay_client_t *client, uint32_t replicas);

// What stores with --cluster-key admit this client by. Stores that are connected are told at once; NULL:
// none. Copied.
void assay_client_set_token(assay_client_t *client, const as_token_sealed_t *token);
// The same from a file, which is read again when it changes; `path` must stay. AS_ERR_CONFIG: it
// holds none, which was logged. Once for each client.
as_status_t assay_client_use_token_file(assay_client_t *client, const char *path) AS_MUST_USE;
// Reads that file again, if there is one; what is wrong with it is logged, and the token stays.
void assay_client_reload(assay_client_t *client);
bool assay_client_token(const assay_client_t *client, as_token_sealed_t *token_p); // false: none
// Encrypts what is put and decrypts what is fetched, by what names blocks are called at stores, too
// (common/cipher.h). Taken, and freed with the client. Before the first fetch and put.
void assay_client_take_cipher(assay_client_t *client, as_cipher_t *cipher);
// What keys are called at stores and the scheduler: themselves without a cipher. names_p may be keys.
void assay_client_names(const assay_client_t *client, const as_key_t *keys, size_t count,
                        as_key_t *names_p);
// Whether a present store refused the token, or a question for want of a right, since it was set.
bool assay_client_is_denied(const assay_client_t *client);

// Weighted rendezvous hashing: the node for the run of blocks whose first key is run_key. 0 when
// there are no stores.
uint64_t assay_client_place(const assay_client_t *client, const as_key_t *run_key);
// The same over any list: the best `max` of the stores that do not drain.
uint32_t assay_rank(const assay_store_t *stores, uint32_t store_count, const as_key_t *run_key,
                    uint64_t *node_ids, uint32_t max);
// The best `max` nodes for that run, best first; returns how many there are. The first R of them
// hold its R copies.
uint32_t assay_client_rank(const assay_client_t *client, const as_key_t *run_key,
                           uint64_t *node_ids, uint32_t max);

// What gives way to what, on a link and at a store: the later ones get most of it.
typedef enum assay_urgency {
    ASSAY_URGENCY_PREFIX,  // in bulk
    ASSAY_URGENCY_VERIFY,  // before a session's drafts run out
    ASSAY_URGENCY_KVFETCH, // a decode step waits for it
    ASSAY_URGENCY_COUNT
} assay_urgency_t;

typedef struct assay_fetch_args {
    as_shape_t shape;
    const as_key_t *keys; // blocks of one chain, ascending; copied
    // Who holds each block (from Route), 0 = by placement of its run; NULL = all 0; copied. A block
    // that cannot be had there is asked of the nodes of its other copies.
    const uint64_t *node_ids;
    uint32_t first_block; // index in its chain of keys[0]: runs are aligned to the chain
    uint32_t block_count;
    uint64_t deadline_us; // from now; stands still while every slot waits for its release
    uint32_t tenant;      // whose they are, where the token is a peer's; else 0
    // How urgent it is, beside other fetches and at the store: what is less so gives way.
    assay_urgency_t urgency;
    // Destination: layer_slots slots of layer_stride bytes; extent (layer, block b of this fetch)
    // goes to buffer + (layer % layer_slots) * layer_stride + b * as_extent_bytes(&shape). A slot
    // is reused only after assay_fetch_release(layer). layer_slots == layers brings everything.
    // block_stride other than 0 replaces as_extent_bytes; with layer_stride as_extent_bytes it
    // gives whole blocks, one after the other.
    void *buffer;
    size_t layer_stride;
    size_t block_stride;
    uint32_t layer_slots;
    // Not NULL: where each block goes instead, whole, its layers one after the other. Copied by
    // nobody: unchanged until on_done. layer_stride is as_extent_bytes then.
    void *const *buffers;
    // Only layers first_layer .. first_layer + layer_count - 1 are brought, the first of them to
    // slot 0. layer_count 0: all.
    uint32_t first_layer, layer_count;
    // Not NULL: every block counts for itself, and keys need be no chain. A block that cannot be had
    // ends nothing; statuses[b] is AS_OK once block b is there and checked (or, of a locate, is
    // stored), else why not, and is right at on_done. on_layer is not called, every layer has a slot
    // and layer_stride is as_extent_bytes.
    as_status_t *statuses;
    // How many blocks, from the first without a hole, are there and leased. Called once, before any
    // layer. Only these are fetched; 0 ends the fetch (on_done with AS_ERR_NOT_FOUND, or AS_ERR_BUSY).
    void (*on_located)(void *ctx, uint32_t block_count);
    // Every located extent of this layer has arrived and was checked. Ascending.
    void (*on_layer)(void *ctx, uint32_t layer);
    // AS_OK after the last layer. Else hole_block is the first block that could not be had (0 when
    // no block could): layers already delivered stay right for the blocks before it and after it
    // alike. After a hole no layer is handed out any more; where every layer has a slot of its own,
    // the fetch goes on with the blocks before the hole, and at on_done all their extents are in
    // the buffer, checked. Bytes that failed their check may lie beyond.
    void (*on_done)(void *ctx, as_status_t status, uint32_t hole_block);
    void *ctx;
} assay_fetch_args_t;

as_status_t assay_fetch_start(assay_client_t *client, const assay_fetch_args_t *args,
                              assay_fetch_t **fetch_p) AS_MUST_USE;
// The caller has read layer; its slot may be overwritten.
void assay_fetch_release(assay_fetch_t *fetch, uint32_t layer);
// on_done with AS_ERR_CANCELLED comes from the loop, once no more bytes will be written into the
// buffer. The fetch pointer is dead after on_done.
void assay_fetch_cancel(assay_fetch_t *fetch);
// Only looks, without a lease: what a store has on disk only counts, and stays there. args needs no
// buffer, no layers and no on_layer. on_located
// says how many blocks from the first are stored; on_done follows with AS_OK.
as_status_t assay_locate(assay_client_t *client, const assay_fetch_args_t *args,
                         assay_fetch_t **fetch_p) AS_MUST_USE;
uint64_t assay_fetch_bytes(const assay_fetch_t *fetch); // arrived so far
// Whether the first block that was not located is somewhere where there was no room or time for it: to be
// asked for again later. For use in on_located.
bool assay_fetch_is_busy(const assay_fetch_t *fetch);
// Which node each of the first `count` blocks was located at; 0: none. For use in on_located.
void assay_fetch_nodes(const assay_fetch_t *fetch, uint64_t *node_ids, uint32_t count);

// ---- attention computed at the stores

// A verification needs, of each layer, the attention of a few rows over all that is stored. Rather than
// bring the blocks, it can send the rows' queries to the stores that have them, which compute with the
// kernels of kernels/kernels.h: what comes back are partials of pieces of the chain, and folded (krn_fold_t,
// together with the pages that the caller has) they give the bits of an attention over the blocks.
// Every row must stand behind all of these blocks.
typedef struct assay_attend assay_attend_t;

typedef struct assay_attend_piece {
    uint32_t first, count;        // blocks of the chain: as a krn_piece_t
    const float *out, *max, *sum; // [rows][q_heads][dim], [rows][q_heads], [rows][q_heads]
} assay_attend_piece_t;

typedef struct assay_attend_args {
    as_shape_t shape;         // f16
    const as_key_t *keys;     // of a chain, from its first block on; copied
    const uint64_t *node_ids; // as of a fetch; copied
    uint32_t block_count;
    float scale;          // of the logits
    uint32_t rows_max;    // of a layer
    uint64_t deadline_us; // from now, of all layers; stands still while none is asked for
    uint32_t tenant;
    // Where the answers come: assay_attend_piece_bytes for each piece, which are at most two where one
    // store has all blocks, and one for each run of AS_RUN_BLOCKS and one more where several do. A chain
    // that comes in more pieces than fit (its runs are not whole anywhere) ends with AS_ERR_LIMIT.
    void *buffer;
    size_t buffer_bytes;
    // Fewer than asked for: on_done follows. Called once, before any layer.
    void (*on_located)(void *ctx, uint32_t block_count);
    // In ascending order, and all blocks are in them. Right until the next assay_attend_layer.
    void (*on_layer)(void *ctx, uint32_t layer, const assay_attend_piece_t *pieces, uint32_t count);
    // AS_OK after assay_attend_end; else no layer comes any more. AS_ERR_BUSY: a store has no room or no
    // time for it, AS_ERR_UNSUPPORTED: it computes none, or with other bits, and no other has the blocks;
    // AS_ERR_LIMIT: see above. Then the blocks are to be had all the same, by a fetch. Else as of a fetch.
    void (*on_done)(void *ctx, as_status_t status, uint32_t hole_block);
    void *ctx;
} assay_attend_args_t;

// AS_ERR_UNSUPPORTED: the client encrypts its blocks.
as_status_t assay_attend_start(assay_client_t *client, const assay_attend_args_t *args,
                               assay_attend_t **attend_p) AS_MUST_USE;
// Asks for the attention of rows over one layer of all blocks, once they are located; one layer at a time,
// in any order. `q` [rows][q_heads][dim] stays unchanged until on_layer or on_done.
void assay_attend_layer(assay_attend_t *attend, uint32_t layer, uint32_t rows, const float *q);
void assay_attend_end(assay_attend_t *attend); // no more layers: on_done follows
// on_done with AS_ERR_CANCELLED follows, once nothing touches buffer and queries any more.
void assay_attend_cancel(assay_attend_t *attend);
size_t assay_attend_piece_bytes(const as_shape_t *shape, uint32_t rows);
uint64_t
assay_attend_bytes(const assay_attend_t *attend); // over links so far, both ways, with headers

// ---- how fast the stores are, as this client's fetches saw it

typedef struct assay_rate {
    assay_store_t store;
    bool is_connected;
    uint64_t locate_us;   // of one LOCATE; 0: not known
    uint64_t bytes_per_s; // 0: not known, or measured too long ago
    size_t window_bytes;  // asked for at a time
} assay_rate_t;

// How long loading these blocks will take, each from its node; 0: not known, since one of the stores
// was not measured lately: whoever loads from it then measures it.
uint64_t assay_client_load_us(const assay_client_t *client, const uint64_t *node_ids,
                              uint32_t block_count, size_t block_bytes);
// Of the present stores; returns how many.
uint32_t assay_client_rates(const assay_client_t *client, assay_rate_t *rates, uint32_t count_max);

// What became of each copy of a put, best node first.
typedef struct assay_put_copies {
    uint32_t count; // that were to be written: fewer than asked for where there are fewer stores
    uint32_t sent;  // whose bytes were sent, whatever became of them
    as_status_t statuses[ASSAY_REPLICAS_MAX];
} assay_put_copies_t;

typedef struct assay_put_args {
    as_shape_t shape;
    as_key_t namespace_key;
    as_key_t key, parent, run_key; // run_key: key of the first block of its run (placement)
    uint32_t token_count;
    const void *block; // as_block_bytes, extents in layer order; unchanged until on_done
    // Not NULL: the block is what a store has, to be copied to others. These are the checksums of its
    // extents (copied), which are taken for right: a store that receives other bytes refuses them. Its
    // extents have extent_bytes (a multiple of 4), whatever the shape says, which gives the layers.
    const uint32_t *crcs;
    size_t extent_bytes;
    uint32_t
        copy_flags; // AS_WIRE_HOT, _PIN_SOFT or _PIN_HARD (proto/wire.h), where the token is a peer's
    // AS_OK and AS_ERR_EXISTS say that a power cut can no longer lose it. AS_ERR_BUSY: also that
    // another writer is at it.
    uint32_t
        ttl_ms; // after which the store forgets it; 0: never. AS_ERR_EXISTS leaves it as it was
    bool durable;
    uint32_t tenant;   // whose it is, where the token is a peer's; else 0
    uint32_t replicas; // copies; 0: as many as the cluster keeps
    // Not NULL: how many copies there are, written before on_done. Fewer than asked for: the put is
    // degraded, which is not an error.
    uint32_t *copies_p;
    assay_put_copies_t *each_p; // the same one by one; may be NULL
    // Once it is over on_done waits for what the network has of the block: a few pieces, or, where they do
    // not leave, stall_timeout_us.
    uint64_t deadline_us;
    // AS_OK (at least one copy was written) or AS_ERR_EXISTS (they were there): the block is at
    // node_id, the best of its nodes. AS_ERR_CONFLICT: a store has other bytes. Else what the best
    // of them failed with.
    void (*on_done)(void *ctx, as_status_t status, uint64_t node_id);
    void *ctx;
} assay_put_args_t;

// AS_ERR_BUSY when puts_max are in flight; AS_ERR_UNREACHABLE when there is no store.
as_status_t assay_put_start(assay_client_t *client, const assay_put_args_t *args,
                            assay_put_t **put_p) AS_MUST_USE;
void assay_put_cancel(assay_put_t *put);

#endif
