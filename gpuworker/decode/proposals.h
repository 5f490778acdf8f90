// SPDX-License-Identifier: Apache-2.0
// Where proposals come from: prompt lookup (decode/lookup.h) where it has a match that it believes, else the
// draft model (decode/draft_model.h) where the worker has one.
#ifndef GPW_PROPOSALS_H
#define GPW_PROPOSALS_H

#include <stdbool.h>
#include <stdint.h>

struct gpw_request;

// What may follow the session's tokens and drafts, written behind them: *count_p tokens, at most `room`.
// False: the draft model is at it, and wakes the request.
bool gpw_proposals_get(struct gpw_request *request, uint32_t room, uint32_t *count_p);
// A pass is complete whose rows were proposed, if it had any behind its first; `next` is the token behind
// the first row, `accepted` how many rows chose what the next one was given.
void gpw_proposals_learn(struct gpw_request *request, int32_t next, uint32_t accepted);
// Those that are being made are not waited for any more.
void gpw_proposals_stop(struct gpw_request *request);

#endif
