// SPDX-License-Identifier: Apache-2.0
// What kind of pages the pool's memory is of.
#ifndef KVS_PAGES_H
#define KVS_PAGES_H

#include <stddef.h>

typedef struct kvs_pages {
    size_t bytes;     // of a page, or of one that the kernel may make of several
    const char *kind; // for people
} kvs_pages_t;

// Memory that has huge pages keeps them; for other memory the kernel is asked to make huge pages of
// plain ones.
kvs_pages_t kvs_pages_use(void *memory, size_t bytes);

#endif
