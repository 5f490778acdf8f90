// SPDX-License-Identifier: Apache-2.0
// Proposals by a draft model: a second, smaller model of the same vocabulary says what may follow.
//
// What it says is a hint, as a match of prompt lookup is: further rows of a pass of the model itself,
// whose choices decide (decode/draft.c). So nothing of it can be seen in an answer. After Leviathan et al.,
// Fast Inference from Transformers via Speculative Decoding (2023); a proposal is chosen with the noise of
// its position (model/choose.h), so that sampling, too, accepts what both models would have said.
//
// Its cache is a window of the newest tokens of a session, at positions of its own that begin with the
// window: [first, first + count) of the session's tokens. It is filled when proposals are first asked for
// and holds a copy of the tokens it was computed from: what a rejected draft left behind is found by
// comparing, and computed over. A window that is full begins again with its newest half, so the small model
// computes each token about twice and never a long prompt.
//
// How many tokens are proposed follows from what became of earlier ones. With a the chance that one is
// right, p the price of a row (decode/price.h), s the time of a step of the small model and t that of a
// row of the model itself, the i-th is worth it while a^i > p + s / t. Where none is, it is tried again after
// a pause, longer each time that it was for nothing.
//
// A step takes rows of all sessions that ask, in the batch's lane PROPOSE (decode/batch.h); windows that are
// being filled give it a bounded piece. Units of the lane may end between layers, so a session may leave
// in mid-step. Engine thread only.
#ifndef GPW_DRAFT_MODEL_H
#define GPW_DRAFT_MODEL_H

#include <stdbool.h>
#include "gpuworker/device.h"
#include "gpuworker/model/forward.h"
#include "gpuworker/worker.h"

struct gpw_engine;
struct gpw_request;

#define GPW_DRAFT_FEW_ROWS  64u // of a step, for sessions that wait for their next proposal
#define GPW_DRAFT_FILL_ROWS 64u // of a step, for windows that are being filled
#define GPW_DRAFT_ROWS      (GPW_DRAFT_FEW_ROWS + GPW_DRAFT_FILL_ROWS)

// A session's.
typedef struct gpw_draft_window {
    uint32_t most;        // proposed at once; 0: off
    gpw_budget_t *budget; // NULL: closed
    size_t bytes;
    uint8_t *memory; // [pages], a block of the small model's shape each
    int32_t *seen;   // [tokens of the window]: what it was computed from
    uint32_t first, count;
    // What is asked for: `wanted` proposals behind tokens[0, end), of which `made` are there.
    uint32_t end, wanted, made;
    // Of what was taken and not yet learned from.
    uint32_t taken;
    float acceptance;
    uint32_t pause, waited; // steps without proposals before it is tried again, and so far
} gpw_draft_window_t;

typedef struct gpw_draft_part {
    struct gpw_request *request; // NULL: it has left
    uint32_t row0, rows;
    bool logits; // of its last row
} gpw_draft_part_t;

// The engine's.
typedef struct gpw_draft_model {
    const gpw_model_t *model; // NULL: there is none
    as_shape_t shape;
    uint32_t window_tokens;
    gpw_workspace_t *workspace;
    gpw_forward_t *forward; // rows of all sessions in the step
    void *attention;        // scratch
    krn_page_t *pages;      // [pages of a window]
    int32_t tokens[GPW_DRAFT_ROWS], positions[GPW_DRAFT_ROWS];
    gpw_draft_part_t parts[GPW_REQUESTS_MAX]; // of the step in progress
    uint32_t part_count, rows;                // 0: none is
    double busy_us;                           // device time of it so far
    double step_us, row_us;                   // s and t; 0: not known
} gpw_draft_model_t;

// Whether a small model may propose for a model: both say the same with every token. Else a sentence names
// the first difference.
bool gpw_draft_model_fits(const gpw_model_t *model, const gpw_model_t *draft, char *error,
                          size_t error_bytes);

as_status_t gpw_draft_model_init(struct gpw_engine *engine) AS_MUST_USE;
void gpw_draft_model_fini(struct gpw_engine *engine); // also after a failed init

void gpw_draft_window_init(gpw_draft_window_t *window, uint32_t most);
uint64_t gpw_draft_window_bytes(const struct gpw_request *request); // of the device
as_status_t gpw_draft_window_open(struct gpw_request *request) AS_MUST_USE;
void gpw_draft_window_close(struct gpw_request *request);

// Asks for up to `room` proposals behind the session's tokens and drafts; false: they are not worth it.
// They are written there, and the request is woken when all are.
bool gpw_draft_model_ask(struct gpw_request *request, uint32_t room);
bool gpw_draft_model_is_asked(const struct gpw_request *request);
// True once what was asked for is there: *count_p of them, at most `room`.
bool gpw_draft_model_take(struct gpw_request *request, uint32_t room, uint32_t *count_p);
// `accepted` of those taken were right; row_us is the device time of a row of the model's own pass.
// Returns how many were taken.
uint32_t gpw_draft_model_learn(struct gpw_request *request, uint32_t accepted, double row_us);
void gpw_draft_model_stop(struct gpw_request *request); // nothing is asked for any more

// For the batch.
bool gpw_draft_model_busy(const struct gpw_engine *engine);
bool gpw_draft_model_is_near(
    const struct gpw_engine *engine);                // somebody has proposals in a few small steps
void gpw_draft_model_run(struct gpw_engine *engine); // a unit

#endif
