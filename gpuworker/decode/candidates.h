// SPDX-License-Identifier: Apache-2.0
// The compressors that a request could have, as the chooser (decode/chooser.h) weighs them: what of each
// fits, swaps and is there already. And what the chooser learns of sessions, whoever chose for them.
//
// A compressor is a candidate where it takes the model's shape, and the worst case of the session's memory
// fits the device. Plain decoding is one where as many full caches fit as may be asked for at once: such a session
// gives nothing back to those that come later; or where nothing else fits. The choice is made when the
// request is the next to be admitted, and kept for its life: segments do not change. It never decides a
// token, since every answer is verified; so `auto` is for requests that are.
#ifndef GPW_CANDIDATES_H
#define GPW_CANDIDATES_H

#include "gpuworker/decode/chooser.h"
#include "gpuworker/decode/forms.h"

struct gpw_engine;
struct gpw_request;
struct gpw_compressor;

// What the requests of an engine have in common here.
typedef struct gpw_candidates {
    gpw_chooser_t chooser;
    gpw_forms_t forms;
    uint64_t supported; // bit m: method m takes the model's shape
} gpw_candidates_t;

// Of one request.
typedef struct gpw_chosen {
    bool wanted;       // and not chosen yet
    bool trial;        // of its method
    uint32_t method;   // of a trial
    uint32_t taught;   // drafts of its lessons
    double sealing_us; // device time in which its prompt was compressed
} gpw_chosen_t;

as_status_t gpw_candidates_init(struct gpw_engine *engine) AS_MUST_USE;
// The least that a request whose compressor is yet to be chosen may need of the device; of others what it
// may need. From the io loop, before the engine sees it.
uint64_t gpw_candidates_bytes_min(struct gpw_request *request);
// Chooses, where that is wanted. The request is the next to be admitted.
void gpw_candidates_choose(struct gpw_request *request);

// A verification of the request is done; its prompt is compressed; it has ended.
void gpw_candidates_learn(struct gpw_request *request, const gpw_horizon_outcome_t *outcome);
void gpw_candidates_sealed(struct gpw_request *request, uint32_t tokens);
void gpw_candidates_end(struct gpw_request *request, bool complete);
// What is known of drafts like those of the request. False: nothing.
bool gpw_candidates_expect(const struct gpw_request *request, gpw_horizon_t *horizon);
// Stores have, or have not, the sealed form of blocks [first, first + count) of its chain.
void gpw_candidates_stored(struct gpw_request *request, uint32_t first, uint32_t count, bool there);

#endif
