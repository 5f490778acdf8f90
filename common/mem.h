// SPDX-License-Identifier: Apache-2.0
// Memory: every allocation goes through here, so that tests can make the n-th one fail; and bounded
// pools of equal objects, for paths that must not call malloc.
#ifndef AS_MEM_H
#define AS_MEM_H

#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

void *as_mem_alloc(size_t bytes);                // NULL when out of memory
void *as_mem_zalloc(size_t count, size_t bytes); // zeroed; NULL also when count * bytes overflows
void *as_mem_realloc(void *memory, size_t bytes);
void *as_mem_aligned(size_t alignment, size_t bytes); // free with as_mem_free
char *as_mem_strdup(const char *text);
void as_mem_free(void *memory);
// The n-th allocation from now (1 is the next) returns NULL, once; 0 switches it off. Returns how
// many allocations have been made since the last call.
uint64_t as_mem_fail_nth(uint64_t n);

// Bytes that this thread has asked for and got so far: a difference is what something takes that
// frees nothing meanwhile.
uint64_t as_mem_requested(void);

// A pool of `count_max` objects of `object_bytes`, allocated at once. Single-threaded. take returns
// NULL when empty: the caller answers AS_ERR_BUSY.
typedef struct as_pool as_pool_t;
as_status_t as_pool_alloc(const char *name, size_t object_bytes, uint32_t count_max,
                          as_pool_t **pool_p) AS_MUST_USE;
void as_pool_free(as_pool_t *pool);  // asserts that every object was given back
void *as_pool_take(as_pool_t *pool); // zeroed
void as_pool_give(as_pool_t *pool, void *object);
uint32_t as_pool_used(const as_pool_t *pool);

#endif
