// SPDX-License-Identifier: Apache-2.0
// Load on a cluster through libassay, for tests that take parts of it away: the latest chains are
// read, every byte of what is read is compared with what it must be, and what is missing is put. One
// read of eight is of a new chain.
//
//     load SCHEDULER TIMEOUT_MS SEED
//
// Prints a line of JSON with all counts each 100 ms, and ends with stdin.
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/assay.h"

#define THREADS     2u
#define CHAINS      96u
#define BLOCKS      4u
#define TOKENS      64u
#define BLOCK_WORDS (4u * 2 * 2 * TOKENS * 16 / 4) // of 8 bytes: 4 layers, 2 heads of 16, F16

static const assay_shape_t shape = {.layers = 4,
                                    .q_heads = 2,
                                    .kv_heads = 2,
                                    .head_dim = 16,
                                    .block_tokens = TOKENS,
                                    .element_bytes = 2};

static assay_t *assay;
static uint8_t namespace_key[32];
static uint64_t seed, timeout_us;
static atomic_bool ended;
static atomic_uint newest; // chain; those that are read are it and the CHAINS before it
// wrong: blocks whose bytes are not theirs; late: reads that took longer than they may
static atomic_ullong reads, hit_blocks, missed_blocks, wrong, put_blocks, refused_blocks, late,
    longest_us;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static void make_block(uint32_t chain, uint32_t block, uint64_t *words)
{
    for (uint64_t i = 0; i < BLOCK_WORDS; i++) {
        words[i] = mix(seed ^ ((uint64_t)chain << 40 | (uint64_t)block << 32 | i));
    }
}

static uint64_t now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static void took(uint64_t us)
{
    atomic_fetch_add(&late, us > timeout_us);
    unsigned long long longest = atomic_load(&longest_us);
    while (us > longest && !atomic_compare_exchange_weak(&longest_us, &longest, us)) {
    }
}

static void name_chain(uint32_t chain, uint8_t keys[BLOCKS][32])
{
    int32_t tokens[BLOCKS * TOKENS];
    for (uint32_t i = 0; i < BLOCKS * TOKENS; i++) {
        tokens[i] = (int32_t)(chain * BLOCKS * TOKENS + i);
    }
    assay_chain(namespace_key, tokens, BLOCKS * TOKENS, TOKENS, &keys[0][0], BLOCKS);
}

static void read_chain(uint32_t chain, uint64_t *buffer, uint64_t *want)
{
    uint8_t keys[BLOCKS][32];
    name_chain(chain, keys);
    uint32_t hit = 0;
    uint64_t began_us = now_us();
    int result = assay_get(assay, &shape, &keys[0][0], BLOCKS, buffer, &hit);
    took(now_us() - began_us);
    hit = result == ASSAY_OK || result == ASSAY_MISS ? hit : 0;
    atomic_fetch_add(&reads, 1);
    atomic_fetch_add(&hit_blocks, hit);
    atomic_fetch_add(&missed_blocks, BLOCKS - hit);
    for (uint32_t block = 0; block < hit; block++) {
        make_block(chain, block, want);
        if (memcmp(want, buffer + (size_t)block * BLOCK_WORDS, BLOCK_WORDS * 8) != 0) {
            atomic_fetch_add(&wrong, 1);
        }
    }
    for (uint32_t block = hit; block < BLOCKS && !ended; block++) {
        make_block(chain, block, want);
        result = assay_put(assay, &shape, namespace_key, &keys[0][0], block, want);
        bool stored = result == ASSAY_OK || result == ASSAY_EXISTS;
        atomic_fetch_add(stored ? &put_blocks : &refused_blocks, 1);
    }
}

static void *work(void *number)
{
    uint64_t random = seed + (uint64_t)(uintptr_t)number;
    uint64_t *buffer = malloc((size_t)BLOCKS * BLOCK_WORDS * 8), *want = malloc(BLOCK_WORDS * 8);
    while (buffer && want && !ended) {
        random += 0x9e3779b97f4a7c15ull;
        uint64_t chosen = mix(random);
        bool is_new = chosen % 8 == 0;
        uint32_t last = is_new ? atomic_fetch_add(&newest, 1) + 1 : atomic_load(&newest);
        read_chain(is_new ? last : last - (uint32_t)(chosen >> 32) % CHAINS, buffer, want);
    }
    free(buffer);
    free(want);
    return NULL;
}

static void print(void)
{
    printf("{\"reads\":%llu,\"hit_blocks\":%llu,\"missed_blocks\":%llu,\"wrong\":%llu,\"put_"
           "blocks\":%llu,"
           "\"refused_blocks\":%llu,\"late\":%llu,\"longest_us\":%llu}\n",
           reads, hit_blocks, missed_blocks, wrong, put_blocks, refused_blocks, late, longest_us);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: load SCHEDULER TIMEOUT_MS SEED\n");
        return 2;
    }
    seed = strtoull(argv[3], NULL, 10);
    const assay_config_t config = {.scheduler = argv[1],
                                   .timeout_ms = (uint32_t)strtoul(argv[2], NULL, 10)};
    timeout_us = config.timeout_ms * 1000ull;
    atomic_store(&newest, CHAINS);
    static const uint8_t fingerprint[32] = {1};
    if (assay_namespace(fingerprint, &shape, "load", NULL, namespace_key) != ASSAY_OK) {
        fprintf(stderr, "load: %s\n", assay_last_error());
        return 1;
    }
    if (assay_open(&config, &assay) != ASSAY_OK) {
        fprintf(stderr, "load: %s\n", assay_last_error());
        return 1;
    }
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            return 1;
        }
    }
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, 100) == 0) {
        print();
    }
    ended = true;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    print();
    assay_close(assay);
    return 0;
}
