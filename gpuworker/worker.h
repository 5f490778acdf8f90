// SPDX-License-Identifier: Apache-2.0
// The worker: model, engine, client and scheduler link behind one small interface that the HTTP
// face, the simulation and the tests use.
//
// Threads: the engine runs on its own loop (compute and the state of every request); the io loop
// carries UCX, gRPC and HTTP. In the simulation both are the one simulated loop. The face talks
// from the io loop: submit and cancel post to the engine; events come back on the io loop.
#ifndef GPW_WORKER_H
#define GPW_WORKER_H

#include <stdbool.h>
#include "client/client.h"
#include "common/rpc.h"
#include "gpuworker/model/choose.h"
#include "gpuworker/model/model.h"
#include "gpuworker/model/tokenizer.h"

#define GPW_LOGPROBS_MAX 20u
#define GPW_REQUESTS_MAX 64u  // most sessions_max, and most queue_max
#define GPW_HORIZON_MAX  64u  // drafted tokens before a verification
#define GPW_LOOKUP_MAX   15u  // proposed tokens of a step: with the last token sixteen rows
#define GPW_CHOSEN_BYTES 192u // of a reason for a compressor

#define GPW_DRAFT_WINDOW_MIN 128u // tokens of the draft model's window
#define GPW_DRAFT_WINDOW_MAX 65536u

typedef struct gpw_worker gpw_worker_t;

typedef enum gpw_verify { GPW_VERIFY_FULL, GPW_VERIFY_OFF } gpw_verify_t;

// How a verification comes to the stored blocks: they are brought (off), or their attention is computed at
// the stores (on), or what is expected to take less time (auto). Same bits.
typedef enum gpw_push_down {
    GPW_PUSH_DOWN_OFF,
    GPW_PUSH_DOWN_ON,
    GPW_PUSH_DOWN_AUTO
} gpw_push_down_t;

typedef enum gpw_finish {
    GPW_FINISH_STOP,
    GPW_FINISH_LENGTH,
    GPW_FINISH_CANCELLED,
    GPW_FINISH_ERROR
} gpw_finish_t;

// One request, already tokenized. Pointers are copied by submit.
typedef struct gpw_request_params {
    const int32_t *tokens;
    uint32_t token_count;
    uint32_t max_tokens; // to generate
    gpw_choose_params_t choose;
    const char *cache_salt; // tenant salt of the namespace; NULL: none
    const char
        *compressor;  // one of gpw_worker_compressors(); NULL: default. "auto": full verification
    uint32_t horizon; // tokens of each draft; 0: plain decoding over the full cache
    bool horizon_set; // else chosen anew for each draft, up to the worker's `horizon`
    uint32_t
        prompt_lookup; // most tokens of a step that prompt lookup proposes, to GPW_LOOKUP_MAX; 0: off
    bool prompt_lookup_set; // else the worker's default
    gpw_verify_t verify;
    uint32_t logprobs; // 0: none; else this many most likely tokens a position (and the chosen one)
    bool want_logprobs;
    // [max_tokens]: not chosen, the answer is these, whatever the logits say (teacher forcing); with
    // want_logprobs, how likely the cache that is attended to makes them. End tokens among them end
    // nothing. NULL: tokens are chosen.
    const int32_t *continuation;
    bool logits_hash;     // each token event carries a hash of its logits' bits
    bool ignore_end;      // go on after an end token (benches, tests)
    uint64_t deadline_us; // from now; 0: the worker's default
} gpw_request_params_t;

typedef struct gpw_token_event {
    int32_t token;
    uint64_t logits_hash; // when asked for: first 8 bytes of SHA-256 of the f32 logits row
    float logprob;
    uint32_t top_count;
    int32_t top_tokens[GPW_LOGPROBS_MAX];
    float top_logprobs[GPW_LOGPROBS_MAX];
} gpw_token_event_t;

// What a request did; complete in the finish event, so far in others.
typedef struct gpw_usage {
    uint32_t prompt_tokens,
        cached_tokens; // cached: prefix tokens whose K and V came from store nodes
    uint32_t completion_tokens;
    uint32_t drafted_tokens,
        accepted_tokens; // accepted: drafted tokens that verification confirmed
    uint32_t verifications;
    uint32_t proposed_tokens,
        proposals_accepted; // by prompt lookup, and which of these became drafts
    uint32_t model_proposed_tokens, model_proposals_accepted; // the same by the draft model
    uint64_t fetched_bytes, swapped_bytes,
        published_bytes; // prefix fetch; verification swaps; puts
    uint64_t resident_bytes,
        full_bytes; // of the session's cache at its end: held on the device / uncompressed
    uint32_t pushed_verifications; // of these, computed at the stores
    uint64_t pushed_bytes;         // that went over links for them, both ways
    uint32_t recomputed_blocks;    // after a store, checksum or lease fault
    uint32_t chosen_blocks; // stored, but computed: that was expected to be faster than loading
    uint64_t queue_us, first_token_us, total_us;
    const char *compressor;        // that it drafts on, constant; "none"; NULL: not chosen yet
    char chosen[GPW_CHOSEN_BYTES]; // why, where the worker chose it; else empty
} gpw_usage_t;

typedef struct gpw_request_events {
    void *ctx;
    // Verified tokens, one or several at once, in order. An end token is the last one of a request
    // that it stops.
    void (*on_tokens)(void *ctx, const gpw_token_event_t *tokens, uint32_t count);
    // Exactly once, last. `error` is a sentence for people when status is not AS_OK.
    void (*on_finish)(void *ctx, gpw_finish_t finish, as_status_t status, const char *error,
                      const gpw_usage_t *usage);
    // It waits for its turn to hold a cache, as the place-th in line (1: the next); told again
    // whenever that changes. May be NULL.
    void (*on_place)(void *ctx, uint32_t place);
} gpw_request_events_t;

typedef struct gpw_worker_options {
    const gpw_model_t *model;
    const krn_ops_t *ops;
    uint32_t threads;       // of the kernels' pool
    uint32_t block_tokens;  // AS_BLOCK_TOKENS_DEFAULT
    uint32_t context_max;   // tokens of one request, prompt and completion; 0: the model's
    uint32_t sessions_max;  // requests that hold a cache at once; more wait
    uint32_t queue_max;     // requests that wait; more are AS_ERR_BUSY
    const char *compressor; // default, as in requests
    // Of this model, for compressors that need one (copied); NULL: these are refused.
    const struct gpw_calibration *calibration;
    uint32_t horizon;       // longest draft of requests that fix none; 0: plain decoding
    uint32_t prompt_lookup; // default
    // A smaller model of the same vocabulary (gpw_draft_model_fits) that proposes where prompt lookup has
    // nothing to; NULL: none. At most so many tokens of a step, to GPW_LOOKUP_MAX; of what it sees of each
    // session's newest tokens.
    const gpw_model_t *draft_model;
    uint32_t draft_tokens, draft_window;
    uint32_t batch_rows; // most rows of a step of compute, at most GPW_FORWARD_STEP_ROWS
    gpw_push_down_t push_down;
    // Blocks that stores have stay here as well, until somebody waits for the memory.
    bool keep_while_room;
    // Of sessions without a compressor: what stores hold is brought for each token, not kept.
    bool swap_full_cache;
    // Sealed blocks are stored beside full ones and fetched first (decode/prefix.h).
    bool store_sealed;
    bool overlap;              // false: swap, verify and draft in turn, whole (for comparison)
    bool shared_verification;  // sessions on one chain come along in one swap
    uint32_t swap_ring_layers; // layers of full extents in flight to a verification
    uint64_t cache_bytes_max;  // all caches of all sessions: full, sealed, tails, rings
    // The same with the workspace of the computation; what that leaves is cache_bytes_max. 0: that alone
    // is limited.
    uint64_t device_bytes_max;
    uint64_t request_deadline_us;
    uint64_t route_deadline_us, fetch_deadline_us, put_deadline_us;
    // Tokens per second of computing a prompt, which loading a stored prefix is weighed against; 0:
    // as measured; negative: what is stored is always loaded.
    double recompute_tokens_per_s;
    as_loop_t *engine_loop, *io_loop; // the same loop in the simulation
    assay_client_t *client;           // on the io loop; NULL: no stores, every cache stays local
    as_rpc_client_t *scheduler;       // on the io loop; NULL: no scheduler
    const char *name, *http_address;  // for registration
    const char *cluster_id;           // as in cluster.h
    uint8_t instance_id[16];          // of this node for the scheduler; all 0: drawn at random
    uint64_t incarnation;             // 0: the wall clock
    const char *trace_path;           // file of trace events (trace.h); NULL: none
    uint64_t tick_us; // simulation: virtual time that one unit of compute takes; 0: it runs at
                      // once, in real time
} gpw_worker_options_t;

void gpw_worker_options_init(gpw_worker_options_t *options);
as_status_t gpw_worker_alloc(const gpw_worker_options_t *options,
                             gpw_worker_t **worker_p) AS_MUST_USE;
// Finishes what runs with GPW_FINISH_CANCELLED. Call when both loops have stopped and the client
// and the scheduler's rpc client are freed (they complete their transfers into the worker then);
// the loops are freed afterwards.
void gpw_worker_free(gpw_worker_t *worker);

// From the io loop. AS_ERR_INVALID, AS_ERR_LIMIT (longer than the context) and AS_ERR_BUSY come at
// once, with `error` (a sentence that names the parameter and the remedy); after AS_OK events
// follow and end with on_finish. The id names the request for cancel.
as_status_t gpw_worker_submit(gpw_worker_t *worker, const gpw_request_params_t *params,
                              const gpw_request_events_t *events, char *error, size_t error_bytes,
                              uint64_t *request_id_p) AS_MUST_USE;
void gpw_worker_cancel(gpw_worker_t *worker, uint64_t request_id);
// The caller has all it wants of it: it ends as one that is complete, with GPW_FINISH_STOP, and the
// blocks that it computed are stored.
void gpw_worker_stop(gpw_worker_t *worker, uint64_t request_id);

// Names of the compressors, in table order, then "none": full cache resident, no drafting; and "auto":
// the worker chooses one of these. `without` is that of gpw_compressor_names. NULL-terminated.
const char *const *gpw_worker_compressors(uint32_t without);
// The table of compressors as this worker has it, with its calibration; ends with a NULL name.
const struct gpw_compressor *gpw_worker_compressor_table(const gpw_worker_t *worker);
// "off", "on" or "auto". False: none of them.
bool gpw_push_down_find(const char *name, gpw_push_down_t *mode_p);
const gpw_model_t *gpw_worker_model(const gpw_worker_t *worker);
const as_shape_t *gpw_worker_shape(const gpw_worker_t *worker); // of its caches' blocks
bool gpw_worker_idle(
    const gpw_worker_t *worker); // no request, no publication in progress (tests, drains)

#endif
