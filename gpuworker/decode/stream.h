// SPDX-License-Identifier: Apache-2.0
// What is under way from stores: a transfer, its ring of device memory, and the passes that read it.
//
// A stream outlives its readers: one whose pass ends early leaves, and when the last has left the
// transfer is cancelled and its ring kept until it is done, since the client may still write there.
// So a request never waits for what it gave up. A layer's slot is free again when every reader has
// read it.
//
// The rings' memory is the engine's, not the sessions': streams follow each other over the link, so a
// few rings serve all. As much as the largest ring of a session that is admitted is reserved as long
// as there is one; more is taken where the device has it.
//
// The link has its turns (gpw_streams_next): what is wanted first begins first, and the next when so
// little of the one before is to come that all of it is asked for. One that is far behind what was
// expected of it does not hold up the others.
#ifndef GPW_STREAM_H
#define GPW_STREAM_H

#include "gpuworker/decode/rings.h"
#include "gpuworker/device.h"
#include "gpuworker/link.h"
#include "gpuworker/resident/compressor.h"

struct gpw_engine;
struct gpw_request;

typedef struct gpw_stream {
    struct gpw_engine *engine;
    struct gpw_stream *next;
    struct gpw_request *readers; // linked by swap.next_reader
    gpw_transfer_t *transfer;    // NULL before it has begun
    uint32_t joined;             // readers, also those that have left
    uint8_t *ring;
    size_t ring_bytes;
    uint32_t first_block, block_count;
    size_t layer_stride;
    uint32_t layer_slots;
    size_t extent_bytes;
    uint32_t layers;   // of what it brings: a sealed form may have fewer than the model
    uint32_t released; // layers, by all readers
    bool prefix;       // counted as fetched, not as swapped
    bool sealed;       // brings sealed blocks (resident/stored.h), which no pass reads
    bool pushed;       // an attend (decode/pushdown.h): the ring holds no extents
    bool arrived;      // all of it, or what will ever come
    uint64_t begin_us;
    uint64_t session;    // who began it
    uint64_t overdue_us; // when it is far behind what was expected
} gpw_stream_t;

// Of an engine.
typedef struct gpw_streams {
    gpw_stream_t *first;
    gpw_budget_t budget; // of all rings
    uint64_t base_bytes; // of the largest ring of a session that is admitted
    gpw_rings_t rings;
    uint32_t moving; // streams of extents that have not arrived
    uint64_t moving_since_us;
} gpw_streams_t;

typedef struct gpw_stream_range {
    const struct gpw_request *chain; // whose blocks; NULL: the request's own
    uint32_t first, count;
    const uint64_t *node_ids;       // who has each; NULL: as the blocks say
    const gpw_compressor_t *sealed; // brings their form sealed by it; NULL: the full blocks
} gpw_stream_range_t;

void gpw_streams_init(struct gpw_engine *engine);
void gpw_streams_fini(struct gpw_engine *engine); // the transfers are over, or die with the link
// Reserves what the request's ring may need beside those of others. False: the device has no room.
bool gpw_streams_admit(struct gpw_engine *engine, uint64_t ring_bytes);
// Gives back what no session that is admitted needs.
void gpw_streams_settle(struct gpw_engine *engine);

// Whether `request` may begin to move now; else it is in line (swap.waits) and its turn will come: a
// draft's swap is begun for it, others are woken.
bool gpw_streams_may_begin(struct gpw_request *request);
void gpw_streams_next(struct gpw_engine *engine);

// A stream with a ring of so many bytes, with `request` as its reader. AS_ERR_BUSY: no memory now; in
// line.
as_status_t gpw_stream_open(struct gpw_request *request, size_t ring_bytes) AS_MUST_USE;
// Begins the transfer into its ring; of `params` the kind's own part is given. When it fails the
// stream is gone.
as_status_t gpw_stream_begin(struct gpw_request *request, const gpw_stream_range_t *range,
                             const gpw_transfer_params_t *params) AS_MUST_USE;
void gpw_stream_join(gpw_stream_t *stream, struct gpw_request *request);
void gpw_stream_leave(struct gpw_request *request);
// The reader has read the layers [0, layers).
void gpw_stream_release(struct gpw_request *request, uint32_t layers);
// Counts time in which a stream moved up to now, and of it `busy_us` in which the device computed.
void gpw_streams_count(struct gpw_engine *engine, uint64_t busy_us);

#endif
