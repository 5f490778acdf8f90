// SPDX-License-Identifier: Apache-2.0
// Proposals by prompt lookup: what followed the newest tokens when they last stood somewhere before.
//
// An answer often repeats its prompt or itself (code, JSON, quotations). A step of a draft then takes the
// proposed tokens along as further rows of its pass: each row's choice becomes a draft up to the first that
// is not what was proposed, so one pass gives several drafts. A wrong proposal costs rows, never a token.
// After Saxena, Prompt Lookup Decoding (2023).
//
// How many tokens are proposed follows from what became of earlier ones: the chance a that a proposed token
// is right is estimated, with decay, for each length of match; the i-th is proposed while a^i is above the
// price of a row (decode/price.h). A match that is not proposed is watched all the same, so an estimate that
// has fallen can rise again at no cost.
//
// The index is a table of the ends of runs of 1, 2, 4 and 8 tokens, the newest of each hash, filled with
// verified tokens as they come. What it finds is compared with the tokens themselves. It is host memory, 16 to
// 32 bytes for each token that the session can have.
#ifndef GPW_LOOKUP_H
#define GPW_LOOKUP_H

#include <stdint.h>
#include "common/status.h"

#define GPW_LOOKUP_LENGTHS                                                                         \
    9u // estimates: of matches of 1, 2, ... tokens; the last is for all longer ones

typedef struct gpw_lookup {
    uint32_t most;      // proposed at once; 0: off
    uint32_t *ends;     // [slots]: position behind the newest run with this hash; 0: none
    uint32_t slot_bits; // slots are 2^slot_bits
    uint32_t indexed;   // runs that end before this position are in the table
    float acceptance[GPW_LOOKUP_LENGTHS];
    // What was found last and not yet learned from.
    uint32_t length; // of the match; 0: none
    uint32_t count;  // proposed of it
    int32_t first;   // the token that followed
} gpw_lookup_t;

void gpw_lookup_init(gpw_lookup_t *lookup, uint32_t most);
// Takes and gives back the table, for up to tokens_max tokens. What was learned stays.
as_status_t gpw_lookup_open(gpw_lookup_t *lookup, uint32_t tokens_max) AS_MUST_USE;
void gpw_lookup_close(gpw_lookup_t *lookup);
// tokens[0, count) are verified.
void gpw_lookup_index(gpw_lookup_t *lookup, const int32_t *tokens, uint32_t count);
// Writes what may follow tokens[0, end) to tokens[end ...], at most `room` and `most`; returns how many.
// `price` is that of a row: the chance of being right from which one is worth it.
uint32_t gpw_lookup_propose(gpw_lookup_t *lookup, int32_t *tokens, uint32_t end, uint32_t room,
                            float price);
// What became of it: `next` is the token that did follow, `accepted` how many of those proposed were right.
void gpw_lookup_learn(gpw_lookup_t *lookup, int32_t next, uint32_t accepted);

#endif
