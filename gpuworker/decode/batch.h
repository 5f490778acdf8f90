// SPDX-License-Identifier: Apache-2.0
// Continuous batching: the passes of all sessions share the reads of the weights, and come and go
// at every layer.
//
// A step computes one layer (or the logits) for rows of as many passes as are there. Who is there
// is asked anew for each step, so a request joins by handing in a pass (GPW_TURN_COMPUTE) and
// leaves when it is done, waits, fails or is cancelled; nothing has to be undone. There are four
// lanes:
//
//   STREAM  few rows over a full cache that a swap brings layer by layer: each pass at the pace of
//           its link
//   STEP    few rows that wait for nothing (drafts, plain decoding, verifications of what is here):
//           all in step. The foremost go on; the others wait at layer 0 until these begin their
//           next pass. So sessions fall into step by themselves and stay in it.
//   PROMPT  many rows (prompts, recomputed blocks, and whatever does not fit a step whole): a step
//           takes a bounded piece of one layer, so that nobody waits for a long prompt
//   PROPOSE rows of the draft model, which has weights of its own (decode/draft_model.h). Passes of
//           STEP that have not begun wait for proposals that are a few small steps away, so that
//           their sessions stay in step
//
// Lanes that have work share the time evenly: the one that has had least is next, for about
// GPW_UNIT_ROWS (row, layer) pairs. So a long prompt slows drafts down to half their speed and is
// slowed down as much. A step that is going to read a layer's weights takes along the few rows of
// other lanes that are at that layer. Where a step's rows do not suffice for all, those go first
// that were served longest ago.
//
// A row's bits do not depend on the company it is in (model/forward.h), and a step's order is that
// of attention only: so none of this can be seen in an answer.
#ifndef GPW_BATCH_H
#define GPW_BATCH_H

#include "gpuworker/decode/pass.h"
#include "gpuworker/decode/price.h"

struct gpw_engine;

#define GPW_LOGITS_ROWS 64u // rows of logits computed together
#define GPW_UNIT_ROWS   64u // (row, layer) pairs after which the loop's events have a turn

typedef enum gpw_lane {
    GPW_LANE_STREAM,
    GPW_LANE_STEP,
    GPW_LANE_PROMPT,
    GPW_LANE_PROPOSE,
    GPW_LANES,
    GPW_LANE_NONE = GPW_LANES
} gpw_lane_t;

typedef struct gpw_batch {
    gpw_workspace_t *workspace;
    gpw_attend_scratch_t scratch; // of an attention by all threads
    gpw_attend_scratch_t *thread; // [threads]: of one thread that attends for a session alone
    float *logits;                // [GPW_LOGITS_ROWS][vocab]
    gpw_row_price_t price;        // of the lane STEP
    uint64_t spent_us[GPW_LANES];
    bool active[GPW_LANES]; // had work at the last look
    uint64_t served;        // counts who was taken along
} gpw_batch_t;

as_status_t gpw_batch_init(struct gpw_engine *engine) AS_MUST_USE;
void gpw_batch_fini(struct gpw_engine *engine);       // also after a failed init
bool gpw_batch_busy(const struct gpw_engine *engine); // there are passes in it
// A unit of compute of one lane.
void gpw_batch_run(struct gpw_engine *engine);

#endif
