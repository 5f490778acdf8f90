// SPDX-License-Identifier: Apache-2.0
// CRC32C against memory: every implementation's sum and copy, as ratios of memcpy in the same run.
//
// "cold" walks over more memory than the caches hold, as blocks on their way through a store do;
// "hot" stays on one buffer. A number is the best of several rounds: other load only slows one.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/assert.h"
#include "common/checksum_impl.h"
#include "common/mem.h"
#include "tests/bench/clock.h"

#define ROUNDS      5
#define TOTAL_BYTES (512u << 20)
#define HOT_BYTES   (256u << 20) // moved in one round of a hot measurement

typedef enum work { SUM, COPY, MEMCPY } work_t;

static uint8_t *source, *destination;
static volatile uint32_t sink; // so that no sum is optimised away

static void do_work(work_t work, const as_crc32c_impl_t *impl, size_t offset, size_t bytes)
{
    if (work == SUM) {
        sink += impl->crc(0, source + offset, bytes);
    } else if (work == COPY) {
        sink += impl->copy(0, destination + offset, source + offset, bytes);
    } else {
        memcpy(destination + offset, source + offset, bytes);
        __asm__ volatile("" : : "r"(destination) : "memory");
    }
}

// Gigabytes a second.
static double rate(work_t work, const as_crc32c_impl_t *impl, size_t bytes, int hot)
{
    double best = 0;
    size_t count = (hot ? HOT_BYTES : TOTAL_BYTES) / bytes;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_s();
        for (size_t i = 0; i < count; i++) {
            do_work(work, impl, hot ? 0 : i * bytes, bytes);
        }
        double rate = (double)(count * bytes) / (now_s() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}

static void print_row(size_t bytes, int hot)
{
    double memcpy_rate = rate(MEMCPY, NULL, bytes, hot);
    printf("%-4s %9zu  memcpy %6.1f GB/s", hot ? "hot" : "cold", bytes, memcpy_rate);
    for (size_t i = 1; i < as_crc32c_impl_count; i++) {
        const as_crc32c_impl_t *impl = &as_crc32c_impls[i];
        if (impl->supported()) {
            double sum = rate(SUM, impl, bytes, hot), copy = rate(COPY, impl, bytes, hot);
            printf(" | %s sum %5.1f (%.2f) copy %5.1f (%.2f)", impl->name, sum, sum / memcpy_rate,
                   copy, copy / memcpy_rate);
        }
    }
    printf("\n");
}

int main(void)
{
    static const size_t sizes[] = {4096, 48 << 10, 256 << 10, 1 << 20, 8 << 20};
    source = as_mem_aligned(4096, TOTAL_BYTES);
    destination = as_mem_aligned(4096, TOTAL_BYTES);
    AS_ASSERT(source && destination);
    for (size_t i = 0; i < TOTAL_BYTES; i++) {
        source[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    memset(destination, 1, TOTAL_BYTES);
    for (int hot = 0; hot < 2; hot++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            print_row(sizes[i], hot);
        }
    }
    as_mem_free(destination);
    as_mem_free(source);
    return 0;
}
