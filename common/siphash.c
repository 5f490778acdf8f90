// SPDX-License-Identifier: Apache-2.0
#include "common/siphash.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "common/assert.h"

typedef struct sip {
    uint64_t v0, v1, v2, v3;
} sip_t;

static inline uint64_t turn(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline void rounds(sip_t *s, int count)
{
    for (int i = 0; i < count; i++) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = turn(s->v1, 13) ^ s->v0;
        s->v3 = turn(s->v3, 16) ^ s->v2;
        s->v0 = turn(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = turn(s->v1, 17) ^ s->v2;
        s->v3 = turn(s->v3, 21) ^ s->v0;
        s->v2 = turn(s->v2, 32);
    }
}

static inline void take(sip_t *s, uint64_t word)
{
    s->v3 ^= word;
    rounds(s, 2);
    s->v0 ^= word;
}

uint64_t as_siphash(const uint64_t secret[2], const void *bytes, size_t count)
{
    sip_t s = {0x736f6d6570736575u ^ secret[0], 0x646f72616e646f6du ^ secret[1],
               0x6c7967656e657261u ^ secret[0], 0x7465646279746573u ^ secret[1]};
    const uint8_t *from = bytes;
    uint64_t word;
    for (size_t left = count; left >= sizeof(word); left -= sizeof(word)) {
        memcpy(&word, from, sizeof(word)); // little-endian, as every machine that this builds for
        take(&s, word);
        from += sizeof(word);
    }
    word = (uint64_t)count << 56;
    for (size_t i = 0; i < count % sizeof(word); i++) {
        word |= (uint64_t)from[i] << (8 * i);
    }
    take(&s, word);
    s.v2 ^= 0xff;
    rounds(&s, 4);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static uint64_t own[2];
static pthread_once_t drawn = PTHREAD_ONCE_INIT;

static void draw(void)
{
    AS_ASSERT(getrandom(own, sizeof(own), 0) == (ssize_t)sizeof(own));
}

static void know(void)
{
    own[0] = 1;
    own[1] = 2;
}

void as_siphash_own_known(void)
{
    pthread_once(&drawn, know);
}

uint64_t as_siphash_own(const void *bytes, size_t count)
{
    pthread_once(&drawn, draw);
    return as_siphash(own, bytes, count);
}
