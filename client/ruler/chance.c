// SPDX-License-Identifier: Apache-2.0
// Chance without state: numbers and orders by seed, purpose and index.
#include <stdlib.h>

#include "client/ruler/internal.h"
#include "common/assert.h"

#define ROUNDS 4u // of the Feistel network: enough that an order looks like none

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

uint64_t ruler_chance(uint64_t seed, ruler_stream_t stream, uint64_t index)
{
    return mix(mix(mix(seed) ^ (uint64_t)stream) ^ index);
}

uint64_t ruler_below(uint64_t seed, ruler_stream_t stream, uint64_t index, uint64_t bound)
{
    // Bounds are small beside 2^64: the modulo's bias is below 2^-40.
    return ruler_chance(seed, stream, index) % bound;
}

// A Feistel network is a permutation of the numbers of 2 * half bits, whatever its rounds compute;
// walking on while the result is too large makes it one of 0 .. count - 1 (Black, Rogaway 2002).
uint64_t ruler_permute(uint64_t seed, ruler_stream_t stream, uint64_t count, uint64_t index)
{
    AS_ASSERT(index < count && count < 1ull << 32);
    uint32_t half = 1;
    while (1ull << (2 * half) < count) {
        half++;
    }
    uint64_t mask = (1ull << half) - 1;
    uint64_t key = ruler_chance(seed, stream, count);
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(key ^ (right << 8 | round)) & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

void ruler_pick_sorted(uint64_t seed, uint64_t count, uint32_t picks, uint32_t *picked_p)
{
    for (uint32_t i = 0; i < picks; i++) {
        picked_p[i] = (uint32_t)ruler_permute(seed, RULER_STREAM_PLACES, count, i);
    }
    qsort(picked_p, picks, sizeof(picked_p[0]), compare);
}
