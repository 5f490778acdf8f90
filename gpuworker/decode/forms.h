// SPDX-License-Identifier: Apache-2.0
// Which blocks stores are known to have in sealed form (resident/stored.h), and by which methods: what this
// worker put there or fetched from there lately.
//
// A hint for the choice of a compressor, no more: what is forgotten costs a fetch, and what is gone from the
// stores is noticed when it is asked for. Every fourth block of a chain is noted, since a key stands for all
// before it; a new one may displace an old one.
#ifndef GPW_FORMS_H
#define GPW_FORMS_H

#include <stdbool.h>

#include "common/block.h"

#define GPW_FORMS_SLOTS 4096u // some hundred chains of 8,192 tokens
#define GPW_FORMS_EVERY 4u    // blocks

typedef struct gpw_forms {
    struct {
        as_key_t key;
        uint64_t methods; // bit m: method m; 0: empty
    } slot[GPW_FORMS_SLOTS];
} gpw_forms_t;

// Zeroes are a beginning. Block `block` of a chain has this key; method below 64.
void gpw_forms_note(gpw_forms_t *forms, const as_key_t *key, uint32_t block, uint32_t method);
// Stores did not have the form of the blocks with these keys.
void gpw_forms_forget(gpw_forms_t *forms, const as_key_t *keys, uint32_t count, uint32_t method);
// How many blocks from the first of this chain on are taken to be stored so. Those behind the last that may be
// noted count as there with it: a prompt is stored to its end.
uint32_t gpw_forms_blocks(const gpw_forms_t *forms, const as_key_t *keys, uint32_t count,
                          uint32_t method);

#endif
