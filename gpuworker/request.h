// SPDX-License-Identifier: Apache-2.0
// One request: its step, its session's cache, and what it is waiting for.
//
//   ADMIT -> ROUTE -> FETCH -> PREFILL -> SEAL -> DRAFT -> SWAP -> VERIFY -> (SEAL ...) -> PUBLISH
//   -> freed
//                                                            \ RECOMPUTE /
// A step has one name: of its function gpw_<step>_turn (decode/<step>.c), its state, its counter
// and its histogram. A turn moves on, hands a forward pass to the batch, or does nothing when it must
// wait; what it waits for wakes it. Verified tokens leave in reply.c (at the end of PREFILL and VERIFY). Puts go on
// beside the steps; PUBLISH only waits for those that are left when the answer is complete. When
// memory for a recompute is short, the request lets go of everything and returns to ADMIT: what it
// has said so far is then part of its prompt, so the same bits follow.
//
// Threads: `io_*` fields belong to the io loop, the rest to the engine. A request is freed by the
// engine after the io loop has said goodbye.
#ifndef GPW_REQUEST_H
#define GPW_REQUEST_H

#include <stdatomic.h>
#include "gpuworker/decode/candidates.h"
#include "gpuworker/decode/draft_model.h"
#include "gpuworker/decode/horizon.h"
#include "gpuworker/decode/lookup.h"
#include "gpuworker/decode/observe.h"
#include "gpuworker/decode/pass.h"
#include "gpuworker/decode/round.h"
#include "gpuworker/decode/swap.h"
#include "gpuworker/link.h"
#include "gpuworker/resident/blocks.h"
#include "gpuworker/resident/sealed.h"
#include "gpuworker/resident/tail.h"
#include "gpuworker/worker.h"

#define GPW_PUTS_MAX                                                                               \
    4u // of one request in flight: keeps a store's reservations and our held blocks few

typedef enum gpw_step {
    GPW_STEP_ADMIT,
    GPW_STEP_ROUTE,
    GPW_STEP_FETCH,
    GPW_STEP_PREFILL,
    GPW_STEP_SEAL,
    GPW_STEP_DRAFT,
    GPW_STEP_SWAP,
    GPW_STEP_VERIFY,
    GPW_STEP_RECOMPUTE,
    GPW_STEP_PUBLISH,
    GPW_STEP_COUNT
} gpw_step_t;

struct gpw_engine;
struct gpw_worker;

typedef struct gpw_token_batch {
    struct gpw_token_batch *next;
    uint32_t count;
    gpw_token_event_t tokens[];
} gpw_token_batch_t;

typedef struct gpw_put {
    struct gpw_request *request;
    gpw_transfer_t *transfer; // NULL: free
    uint32_t block;
    uint8_t *sealed; // what is put is its sealed form, here; NULL: the full block
} gpw_put_t;

typedef struct gpw_request {
    uint64_t id;
    struct gpw_worker *worker;
    struct gpw_engine *engine;
    struct gpw_request *next;    // the engine's list, in order of arrival
    gpw_request_params_t params; // its pointers are not used after submit
    as_key_t namespace_key;
    const gpw_compressor_t *compressor; // NULL: nothing is sealed
    gpw_chosen_t chosen;                // where the worker chooses it
    bool keep_full; // the full cache stays in worker memory: plain decoding, nothing is brought
    bool verify;
    gpw_horizon_t horizon;
    gpw_lookup_t lookup;
    gpw_draft_window_t draft_window;
    uint64_t submitted_us, deadline_us, step_us, first_us;
    uint64_t prefill_us; // when its prompt's computation began; 0: it waits for what is loaded, too

    gpw_step_t step;
    bool runnable;   // wants a turn
    bool computing;  // its pass is in the batch
    uint64_t served; // when the batch last took rows of it, counted in such takes; 0: never
    bool finished;   // the outcome is decided and on its way to the io loop
    bool released;   // nothing of it is left but itself
    bool goodbye;    // the io loop will not touch the request again
    bool holds_session;
    bool lacks_memory; // waits in ADMIT for what others hold
    bool in_line;      // in ADMIT, and found no room
    uint32_t place;    // in line, as told; 0: not yet
    int32_t *tokens;   // [tokens_max]: prompt, emitted; behind them the drafts
    uint32_t token_count, prompt_count, tokens_max;
    uint32_t draft_count;  // drafts at tokens[token_count ...)
    int32_t *continuation; // [max_tokens]: what the answer is to be; NULL: it is chosen

    gpw_budget_t budget;
    gpw_blocks_t blocks;
    gpw_sealed_t sealed;
    gpw_tail_t tail;
    gpw_observer_t observer;
    bool cached;                      // blocks, sealed and tail are made
    gpw_forward_slot_t *forward;      // for a few rows; from admission to the end
    gpw_forward_slot_t *long_forward; // for many rows; NULL unless in PREFILL or RECOMPUTE
    gpw_pass_t pass;
    bool passing;  // a pass is in progress
    bool drafting; // provisional pages are in use
    gpw_swap_t swap;
    uint64_t ring_bytes; // the most that its swaps' ring needs
    uint64_t swap_retry_us;
    bool push_failed;   // the present verification, which is then one by swap
    bool sealed_missed; // stores do not have its prefix sealed: it is sealed from the full blocks
    uint32_t swap_failures; // since the last verified token
    uint32_t recompute_from, recompute_to;
    uint32_t hit_limit;    // prefix blocks that may still be tried to fetch
    uint32_t exact_tokens; // tokens whose K and V are exact although nothing is verified
    uint32_t restarts;
    gpw_round_t round;
    uint32_t accepted_before; // usage.accepted_tokens at its verification's begin

    gpw_transfer_t *route;
    gpw_put_t puts[GPW_PUTS_MAX];
    uint32_t puts_used;
    uint64_t publish_retry_us, publish_backoff_us;
    uint32_t publish_failures;
    uint64_t linger_until_us;

    gpw_usage_t usage;
    gpw_token_batch_t *batch; // tokens of this turn, not yet handed over
    bool out_of_memory;       // a token could not be handed over
    // engine writes, io reads
    _Atomic(gpw_token_batch_t *) handed; // newest first
    _Atomic uint32_t place_told;
    gpw_finish_t finish;
    as_status_t finish_status;
    const char *finish_text;
    gpw_usage_t finish_usage;
    // io
    gpw_request_events_t io_events;
    uint32_t io_slot;
    bool in_engine; // engine writes; read at the very end
    as_task_t submit_task, cancel_task, stop_task, goodbye_task; // run on the engine's loop
    as_task_t tokens_task, place_task, finish_task;              // run on the io loop
} gpw_request_t;

// The step table.
typedef struct gpw_step_entry {
    const char *name;
    gpw_turn_t (*turn)(gpw_request_t *request);
} gpw_step_entry_t;
extern const gpw_step_entry_t gpw_steps[GPW_STEP_COUNT];

gpw_turn_t gpw_admit_turn(gpw_request_t *request);
gpw_turn_t gpw_route_turn(gpw_request_t *request);
gpw_turn_t gpw_fetch_turn(gpw_request_t *request);
gpw_turn_t gpw_prefill_turn(gpw_request_t *request);
gpw_turn_t gpw_seal_turn(gpw_request_t *request);
gpw_turn_t gpw_draft_turn(gpw_request_t *request);
void gpw_draft_start_swap(gpw_request_t *request); // its turn on the link has come
gpw_turn_t gpw_swap_turn(gpw_request_t *request);
gpw_turn_t gpw_verify_turn(gpw_request_t *request);
gpw_turn_t gpw_recompute_turn(gpw_request_t *request);
gpw_turn_t gpw_publish_turn(gpw_request_t *request);

// Moves to another step; always returns GPW_TURN_AGAIN.
gpw_turn_t gpw_request_go(gpw_request_t *request, gpw_step_t step);
void gpw_request_wake(gpw_request_t *request);
// Decides the outcome: nothing more is computed; what still moves is let run out. `text` is
// constant. Returns GPW_TURN_AGAIN.
gpw_turn_t gpw_request_finish(gpw_request_t *request, gpw_finish_t finish, as_status_t status,
                              const char *text);
// The common failure.
gpw_turn_t gpw_request_fail(gpw_request_t *request, as_status_t status, const char *text);
// Lets go of all memory and starts again from ADMIT with what was said so far.
gpw_turn_t gpw_request_restart(gpw_request_t *request);
// Whether it holds what stores have as well: the full cache here needs no swap. Where it may do without,
// it lets go for those that wait for the memory.
bool gpw_request_keeps_blocks(const gpw_request_t *request);
bool gpw_request_moving(gpw_request_t *request); // a transfer is in flight
// Makes and unmakes the session's cache within its reservation.
as_status_t gpw_request_open_cache(gpw_request_t *request) AS_MUST_USE;
void gpw_request_close_cache(gpw_request_t *request);
// Gives back all memory and the reservation. Nothing may be moving.
void gpw_request_release(gpw_request_t *request);
// Takes its tasks back from the loops, when the worker goes in mid-request.
void gpw_request_unpost(gpw_request_t *request);
// Frees the request itself.
void gpw_request_free(gpw_request_t *request);
// Worst case of the session's memory.
uint64_t gpw_request_bytes_max(const gpw_request_t *request);
uint64_t gpw_request_ring_bytes(const gpw_request_t *request);    // of these, for its swaps' ring
uint64_t gpw_request_segment_bytes(const gpw_request_t *request); // and for its segment; 0: none
// What it needs once its prompt is computed and stores have its blocks.
uint64_t gpw_request_resident_bytes(const gpw_request_t *request);
uint32_t gpw_request_drafts_left(
    const gpw_request_t *request); // drafts that may still be followed by a token

// decode/reply.c: takes the token that follows tokens[token_count - 1], with the logits that chose
// it. True when the request is complete with it.
bool gpw_reply_token(gpw_request_t *request, int32_t token, const float *logits);
void gpw_reply_flush(gpw_request_t *request); // hands the tokens of this turn to the io loop
int32_t gpw_reply_choose(gpw_request_t *request, const float *logits, uint32_t position);
gpw_turn_t gpw_reply_complete(gpw_request_t *request); // after gpw_reply_token said so

// decode/publish.c
void gpw_publish_pump(gpw_request_t *request); // starts what puts may start
void gpw_publish_cancel(gpw_request_t *request);
bool gpw_publish_pending(const gpw_request_t *request); // blocks that should still go out

#endif
