// SPDX-License-Identifier: Apache-2.0
// The link between the engine's loop and the io loop: routes, fetches, attends and puts, asked on one
// and carried out on the other.
//
// A transfer is started, cancelled and retired by the engine. Its callback runs on the engine's
// loop whenever there is news; `done` comes exactly once, last, and then the owner retires it.
// Between the loops travel only tasks that are part of the transfer, so nothing is allocated and
// nothing waits on a lock. Tasks of one transfer keep their order (as_loop_post is first in, first
// out), which is what makes its end safe:
//
//   engine: start ... release, cancel ... | on done: retire ->            | retired: free
//   io:            begin ... news ... done ->            | retire: retired ->
#ifndef GPW_LINK_H
#define GPW_LINK_H

#include <stdatomic.h>
#include "client/client.h"
#include "gpuworker/cluster.h"

typedef struct gpw_link gpw_link_t;
typedef struct gpw_transfer gpw_transfer_t;
typedef void (*gpw_transfer_fn)(void *ctx, gpw_transfer_t *transfer);

typedef enum gpw_transfer_kind {
    GPW_TRANSFER_ROUTE,
    GPW_TRANSFER_FETCH,
    GPW_TRANSFER_ATTEND, // of a chain from its first block on
    GPW_TRANSFER_PUT
} gpw_transfer_kind_t;

// What the engine knows of a transfer; changes only just before its callback.
typedef struct gpw_transfer_news {
    bool done;
    as_status_t status;      // when done
    bool located;            // fetch, attend
    uint32_t located_blocks; // fetch, attend; route: hit blocks
    uint32_t layers;     // fetch: layers [0, layers) have arrived; attend: so many were answered
    uint32_t hole_block; // fetch, attend: when done with an error
    uint64_t bytes;      // fetch, when done; attend: over links so far
    uint64_t node_id;    // put, when done
    const uint64_t *node_ids; // route: [located_blocks]; lives as long as the transfer
    uint64_t load_us;         // route, fetch when done: expected time of loading them; 0: not known
    const assay_attend_piece_t
        *pieces; // attend: of the layer that was answered last, until the next
    uint32_t piece_count;
} gpw_transfer_news_t;

typedef struct gpw_transfer_params {
    gpw_transfer_kind_t kind;
    gpw_transfer_fn on_news;
    void *ctx;
    uint64_t deadline_us; // absolute, of as_loop_now_us
    as_shape_t shape;
    as_key_t namespace_key;
    const as_key_t *keys;     // route, fetch; copied. put: keys[0]
    const uint64_t *node_ids; // fetch, or NULL; copied
    // Fetch of sealed blocks, which are found by placement: bytes of a full one. The full ones are at node_ids,
    // and load_us is of them. 0: it is of what is fetched.
    size_t load_block_bytes;
    uint32_t first_block, block_count;
    uint32_t prompt_tokens; // route
    void *buffer;           // fetch, attend
    size_t buffer_bytes;    // attend
    uint32_t rows_max;      // attend
    float scale;            // attend
    size_t layer_stride;
    uint32_t layer_slots;
    assay_urgency_t urgency;  // of a fetch
    as_key_t parent, run_key; // put
    const void *block;
} gpw_transfer_params_t;

as_status_t gpw_link_alloc(as_loop_t *engine_loop, as_loop_t *io_loop, assay_client_t *client,
                           gpw_cluster_t *cluster, gpw_link_t **link_p) AS_MUST_USE;
// Both loops have stopped, and the client and the scheduler's rpc client are freed.
void gpw_link_free(gpw_link_t *link);
bool gpw_link_has_client(const gpw_link_t *link);
bool gpw_link_has_scheduler(const gpw_link_t *link);

as_status_t gpw_transfer_start(gpw_link_t *link, const gpw_transfer_params_t *params,
                               gpw_transfer_t **transfer_p) AS_MUST_USE;
const gpw_transfer_news_t *gpw_transfer_news(const gpw_transfer_t *transfer);
// Fetch: the layers [0, layers) are read; their slots may be overwritten.
void gpw_transfer_release(gpw_transfer_t *transfer, uint32_t layers);
// Attend: asks for a layer, when the one before was answered. `q` stays unchanged until the answer or `done`.
void gpw_transfer_attend(gpw_transfer_t *transfer, uint32_t layer, uint32_t rows, const float *q);
void gpw_transfer_cancel(gpw_transfer_t *transfer); // done comes all the same
void gpw_transfer_retire(gpw_transfer_t *transfer); // after done; the pointer is dead

#endif
