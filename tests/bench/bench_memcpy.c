// SPDX-License-Identifier: Apache-2.0
// What any copy is limited by: memcpy of pieces from a set of memory into another. Prints a line of
// JSON.
//
//     bench_memcpy PIECE_BYTES SET_MIB ROOM_MIB SECONDS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "tests/bench/clock.h"

int main(int argc, char **argv)
{
    size_t bytes = argc == 5 ? strtoul(argv[1], NULL, 10) : 0;
    size_t set = argc == 5 ? strtoul(argv[2], NULL, 10) << 20 : 0;
    size_t room = argc == 5 ? strtoul(argv[3], NULL, 10) << 20 : 0;
    if (bytes == 0 || set < bytes || room < bytes || set % bytes != 0 || room % bytes != 0) {
        fprintf(
            stderr,
            "usage: bench_memcpy PIECE_BYTES SET_MIB ROOM_MIB SECONDS, set and room multiples of "
            "the piece\n");
        return 2;
    }
    double seconds = strtod(argv[4], NULL), took;
    uint8_t *from = as_mem_aligned(4096, set), *to = as_mem_aligned(4096, room);
    if (!from || !to) {
        fprintf(stderr, "bench_memcpy: no memory\n");
        return 1;
    }
    memset(from, 1, set);
    memset(to, 2, room);
    double began = now_s();
    uint64_t count = 0;
    do {
        memcpy(to + count * bytes % room, from + count * bytes % set, bytes);
        __asm__ volatile("" : : "r"(to) : "memory");
        count++;
        took = now_s() - began;
    } while (took < seconds);
    printf("{\"bench\":\"memcpy\",\"gb_per_s\":%.3f}\n", (double)(count * bytes) / took * 1e-9);
    as_mem_free(from);
    as_mem_free(to);
    return 0;
}
