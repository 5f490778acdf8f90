// SPDX-License-Identifier: Apache-2.0
// libassay's own state, shared by assay.c, assay_op.c and assay_request.c. Not for others.
//
// A caller's thread and the client's thread meet in two places: `lock` of the client (figures, what
// is in flight, closing) and `lock` of an operation (over or not, who still refers to it). All the
// rest belongs to the client's thread from when the operation is posted.
#ifndef ASSAY_LIB_INTERNAL_H
#define ASSAY_LIB_INTERNAL_H

#include <pthread.h>

#include "client/assay.h"
#include "client/client.h"
#include "common/rpc.h"
#include "proto/scheduler.pb-c.h"

#define ASSAY_ERROR_BYTES 512u
#define OP_PUTS_MAX       16u // blocks that one put operation has under way
#define PUTS_SHARED       64u // of those, beyond the first of each operation, in all

typedef struct region {
    struct region *next;
    const uint8_t *memory;
    size_t bytes;
} region_t;

struct assay {
    as_loop_t *loop;
    pthread_t thread;
    as_rpc_client_t *scheduler;
    assay_client_t *client;
    as_timer_t *refresh;
    bool asking; // Stat is under way
    uint64_t timeout_us;
    const char *target;  // of the scheduler, while opening
    as_rpc_tls_t tls;    // too; no files: plain text
    char *token_file;    // NULL: none
    as_cipher_t *cipher; // while opening; then the client's
    assay_store_t stores[ASSAY_STORES_MAX];
    uint32_t store_count;
    uint32_t puts_shared; // in use
    pthread_mutex_t lock;
    bool closing;
    assay_stats_t stats;
    region_t *regions;
};

typedef struct op_put {
    assay_op_t *op;
    assay_put_t *put; // NULL: unused
    uint32_t index;   // of the chain
    bool shared;
} op_put_t;

struct assay_op {
    as_task_t begin, cancel;
    assay_t *assay; // dead once it is over
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over, cancel_posted;
    uint32_t refs; // the caller's handle, the client
    int result;
    uint32_t hit;
    bool busy; // a store was too busy for the block behind them
    uint64_t load_us;
    char error[ASSAY_ERROR_BYTES];
    uint64_t deadline_us;
    // the request
    uint32_t kind, flags, count, first, ttl_ms;
    as_shape_t shape;
    as_key_t namespace_key;
    as_key_t *keys;
    void **blocks;
    uint8_t *buffer;
    uint32_t first_layer, layer_count;
    int32_t *results;
    assay_done_fn on_done;
    void *ctx;
    // of the client's thread
    bool cancelled;
    uint64_t route_call; // 0: none
    uint64_t *node_ids;
    assay_fetch_t *fetch;
    as_status_t *statuses; // of each block; NULL with ASSAY_PREFIX
    uint32_t next, open;   // put: the next block, those under way
    op_put_t puts[OP_PUTS_MAX];
    void *arena;
};

// ---- assay.c

// Notes the text for assay_last_error and gives the result back.
int assay_fail(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));
int assay_result_of(as_status_t status);
// The text of a status that is an error, for people.
void assay_describe(as_status_t status, const char *what, char text[ASSAY_ERROR_BYTES]);
// Notes stores that are not known yet. True: there was news, and the client knows it.
void assay_take_nodes(assay_t *assay, const Assay__RouteReply *reply);

// ---- assay_op.c

// Starts it and waits; *op_p is set, and to be freed, when it was started.
int assay_op_run(assay_t *assay, const assay_request_t *request, assay_op_t **op_p);
// On the client's thread, once: `status` of the whole. The op may be gone right after.
void assay_op_end(assay_op_t *op, as_status_t status);
uint64_t assay_op_left_us(const assay_op_t *op); // at least 1 ms

// ---- assay_request.c

// Checks and copies. On another result than ASSAY_OK the text is noted; free with assay_op_free.
int assay_request_take(assay_t *assay, const assay_request_t *request, assay_op_t *op);
void assay_request_begin(assay_op_t *op);  // on the client's thread
void assay_request_cancel(assay_op_t *op); // on the client's thread
bool assay_shape_take(const assay_shape_t *from, as_shape_t *to);

#endif
