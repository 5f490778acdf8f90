// SPDX-License-Identifier: Apache-2.0
// The memory that caches live in, as a seam: host memory (device_host.c) or a GPU's.
//
// One device has one limit. A session reserves its worst case when it is admitted and allocates
// within that, so an allocation in mid-request fails only when the machine itself is out of memory,
// and two sessions never wait for each other. Engine thread only.
#ifndef GPW_DEVICE_H
#define GPW_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

typedef struct gpw_device_ops {
    const char *name;
    void *(*alloc)(size_t bytes); // 64-byte aligned; NULL when there is none
    void (*free)(void *memory);
    void (*copy)(void *to, const void *from, size_t bytes);
} gpw_device_ops_t;

typedef struct gpw_device {
    const gpw_device_ops_t *ops;
    uint64_t bytes_max;
    uint64_t reserved_bytes; // never above bytes_max
    uint64_t used_bytes;     // never above reserved_bytes
} gpw_device_t;

// One session's share of a device.
typedef struct gpw_budget {
    gpw_device_t *device;
    uint64_t reserved_bytes, used_bytes;
} gpw_budget_t;

const gpw_device_ops_t *gpw_device_host(void);

// Adds to the reservation; false when the device has no room.
bool gpw_budget_reserve(gpw_budget_t *budget, uint64_t bytes);
// Gives back `bytes` of the reservation that nothing uses.
void gpw_budget_shrink(gpw_budget_t *budget, uint64_t bytes);
// Within the reservation. NULL when the machine is out of memory.
void *gpw_budget_alloc(gpw_budget_t *budget, size_t bytes);
void gpw_budget_free(gpw_budget_t *budget, void *memory, size_t bytes); // NULL is fine
// Counts memory that someone else allocated (a segment): the new total in place of the old one.
void gpw_budget_recount(gpw_budget_t *budget, uint64_t old_bytes, uint64_t new_bytes);
// Gives the whole reservation back; asserts that nothing is used.
void gpw_budget_end(gpw_budget_t *budget);

#endif
