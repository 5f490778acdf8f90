// SPDX-License-Identifier: Apache-2.0
// Proposals by prompt lookup: the index, the match, and how far it is trusted.
#include "gpuworker/decode/lookup.h"

#include "common/assert.h"
#include "common/mem.h"
#include "gpuworker/worker.h"

#define ORDERS          4u    // lengths of indexed runs: 1, 2, 4, 8
#define SLOTS_PER_TOKEN 4u    // as many as runs that end at it
#define DECAY           0.95f // weight of the past: about the last twenty proposed tokens

// Before anything is known; of text and code alike, from continuations of this project's own files.
static const float start[GPW_LOOKUP_LENGTHS] = {0,     0.1f, 0.25f, 0.4f, 0.5f,
                                                0.55f, 0.6f, 0.65f, 0.8f};

void gpw_lookup_init(gpw_lookup_t *lookup, uint32_t most)
{
    *lookup = (gpw_lookup_t){.most = most < GPW_LOOKUP_MAX ? most : GPW_LOOKUP_MAX};
    for (uint32_t l = 0; l < GPW_LOOKUP_LENGTHS; l++) {
        lookup->acceptance[l] = start[l];
    }
}

as_status_t gpw_lookup_open(gpw_lookup_t *lookup, uint32_t tokens_max)
{
    AS_ASSERT(!lookup->ends);
    if (lookup->most == 0) {
        return AS_OK;
    }
    uint32_t bits = 1;
    while (((uint64_t)1 << bits) < (uint64_t)SLOTS_PER_TOKEN * tokens_max) {
        bits++;
    }
    lookup->ends = as_mem_zalloc((size_t)1 << bits, sizeof(*lookup->ends));
    lookup->slot_bits = bits;
    lookup->indexed = 0;
    lookup->length = 0;
    return lookup->ends ? AS_OK : AS_ERR_NO_MEMORY;
}

void gpw_lookup_close(gpw_lookup_t *lookup)
{
    as_mem_free(lookup->ends);
    lookup->ends = NULL;
}

// ---- The index ---------------------------------------------------------------------------------

// Where the run tokens[end - length, end) is noted.
static uint32_t *slot_of(const gpw_lookup_t *lookup, const int32_t *tokens, uint32_t end,
                         uint32_t length)
{
    uint64_t hash = length;
    for (uint32_t i = end - length; i < end; i++) {
        hash = (hash ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return &lookup->ends[(hash * 0x9e3779b97f4a7c15u) >> (64 - lookup->slot_bits)];
}

void gpw_lookup_index(gpw_lookup_t *lookup, const int32_t *tokens, uint32_t count)
{
    if (!lookup->ends) {
        return;
    }
    for (; lookup->indexed < count;
         lookup->indexed++) { // a run counts once its next token is known
        for (uint32_t o = 0; o < ORDERS && (1u << o) <= lookup->indexed; o++) {
            *slot_of(lookup, tokens, lookup->indexed, 1u << o) = lookup->indexed;
        }
    }
}

// How many tokens before `end` are those before `at`, up to what an estimate tells apart.
static uint32_t matching(const int32_t *tokens, uint32_t at, uint32_t end)
{
    uint32_t length = 0;
    while (length < at && length + 1 < GPW_LOOKUP_LENGTHS &&
           tokens[at - 1 - length] == tokens[end - 1 - length]) {
        length++;
    }
    return length;
}

// The position behind the newest of the longest indexed runs that end as tokens[0, end) does; 0: none.
static uint32_t find(gpw_lookup_t *lookup, const int32_t *tokens, uint32_t end)
{
    for (uint32_t o = ORDERS; o-- > 0;) {
        uint32_t at = (1u << o) < end ? *slot_of(lookup, tokens, end, 1u << o) : 0;
        if (at > 0 && at < end) {
            lookup->length = matching(tokens, at, end);
            if (lookup->length >= (1u << o)) {
                return at;
            }
        }
    }
    lookup->length = 0;
    return 0;
}

// ---- Proposals ---------------------------------------------------------------------------------

uint32_t gpw_lookup_propose(gpw_lookup_t *lookup, int32_t *tokens, uint32_t end, uint32_t room,
                            float price)
{
    lookup->length = lookup->count = 0;
    uint32_t from = lookup->ends ? find(lookup, tokens, end) : 0;
    if (from == 0) {
        return 0;
    }
    lookup->first = tokens[from];
    float one = lookup->acceptance[lookup->length];
    uint32_t most = room < lookup->most ? room : lookup->most;
    for (float chance = one; lookup->count < most && chance > price; chance *= one) {
        // Where the match lies close behind, what was just written is copied on: a repetition.
        tokens[end + lookup->count] = tokens[from + lookup->count];
        lookup->count++;
    }
    return lookup->count;
}

void gpw_lookup_learn(gpw_lookup_t *lookup, int32_t next, uint32_t accepted)
{
    if (lookup->length == 0) {
        return;
    }
    uint32_t right = lookup->count > 0 ? accepted : next == lookup->first;
    uint32_t count = lookup->count > 0 ? lookup->count : 1;
    float *estimate = &lookup->acceptance[lookup->length];
    for (uint32_t i = 0; i < count && i <= right;
         i++) { // those behind the first wrong one tell nothing
        *estimate = DECAY * *estimate + (1.0f - DECAY) * (i < right ? 1.0f : 0.0f);
    }
    lookup->length = 0;
}
