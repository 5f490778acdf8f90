// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take: of the machine, or of its control group.
#ifndef AS_MEMORY_LIMIT_H
#define AS_MEMORY_LIMIT_H

#include <stdint.h>

// Bytes that are free or can be freed: the least of what /proc/meminfo calls available and what
// the control groups (version 2, and version 1 of memory) leave. UINT64_MAX where nothing is known.
// root: "" on a live system; a directory that holds proc/ and sys/ in tests.
uint64_t as_memory_available(const char *root);

#endif
