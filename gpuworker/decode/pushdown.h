// SPDX-License-Identifier: Apache-2.0
// Push-down: a verification whose attention over the stored blocks is computed by the stores.
//
// The other direction of a swap: of each layer the rows' queries go to the stores, and partials come
// back (client/client.h, assay_attend). What the worker holds itself, the tail and the rows' own K and V, is
// folded behind them. The bits are those of attention over the blocks themselves.
//
// Such a pass goes through its layers by itself, in turns of its request: before each layer's attention it
// waits for an answer. Its logits are computed in the batch, as those of others.
#ifndef GPW_PUSHDOWN_H
#define GPW_PUSHDOWN_H

#include "gpuworker/decode/pass.h"

struct gpw_engine;

// What the choice between swap and push-down rests on; of one engine.
typedef struct gpw_push_rates {
    double load_us_per_byte; // of bringing blocks, as the client sees the links; 0: not known
    uint64_t load_seen_us;
    double
        wait_us_per_unit; // of a pushed verification, for each (layer, row, stored token); 0: not known
    uint64_t wait_seen_us;
    uint64_t refused_until_us; // a store refused: not to be asked before
} gpw_push_rates_t;

// One verification, as the choice sees it.
typedef struct gpw_push_question {
    uint64_t bytes; // that a swap would bring
    uint64_t units; // layers * rows * stored tokens
    uint64_t now_us;
    // Nothing that is not pushed would tell how long loading takes: what is not known is tried.
    bool bold;
} gpw_push_question_t;

// `auto`: whether pushing down is expected to take less time than bringing the blocks.
bool gpw_push_pays(const gpw_push_rates_t *rates, const gpw_push_question_t *question);
void gpw_push_saw_load(gpw_push_rates_t *rates, uint64_t load_us, uint64_t bytes, uint64_t now_us);
void gpw_push_saw_wait(gpw_push_rates_t *rates, uint64_t wait_us, uint64_t units, uint64_t now_us);

// What is reserved for the ring of a session that needs `ring` bytes for swaps: more only where every
// verification is to be pushed down and that takes more, within `limit`. Where the ring has no room for it,
// a verification swaps.
uint64_t gpw_push_ring(const struct gpw_request *request, uint64_t ring, uint64_t limit);
// Begins to have the blocks of the next verification ready, by push-down where the worker's option and the
// request's state say so, else by a swap of [first, first + count).
as_status_t gpw_push_or_swap(struct gpw_request *request, uint32_t first,
                             uint32_t count) AS_MUST_USE;
// Whether the rows behind a stored prefix of `blocks` blocks are to be computed by push-down, which spares
// the fetch of these where stores have their `sealed` form; and the beginning of that: the blocks are adopted.
bool gpw_push_prefix_pays(const struct gpw_request *request, uint32_t blocks, uint32_t rows,
                          bool sealed);
as_status_t gpw_push_prefix(struct gpw_request *request) AS_MUST_USE;
void gpw_push_prefix_done(struct gpw_request *request);
// The turn of a request whose pass is pushed down.
gpw_turn_t gpw_push_turn(struct gpw_request *request);
// The stores could not: what was begun is begun again with a swap, the verification in gpw_push_failed.
void gpw_push_give_up(struct gpw_request *request);
gpw_turn_t gpw_push_failed(struct gpw_request *request);
// It is complete.
void gpw_push_done(struct gpw_request *request);

#endif
