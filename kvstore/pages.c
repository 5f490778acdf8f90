// SPDX-License-Identifier: Apache-2.0
// Pages of the pool. The network allocates it, and takes huge pages where the machine has some set
// aside (vm.nr_hugepages). Else the kernel is asked for transparent ones, which for shared memory it
// makes only where shmem_enabled says so.
#include "kvstore/pages.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRANSPARENT "/sys/kernel/mm/transparent_hugepage/"

typedef struct mapping {
    size_t page_bytes;
    bool is_shared;
} mapping_t;

// False: the kernel does not tell.
static bool find_mapping(const void *memory, mapping_t *mapping)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    bool is_it = false, found = false;
    while (file && !found && fgets(line, sizeof(line), file)) {
        uintptr_t first, end;
        char rights[5];
        size_t kib;
        if (sscanf(line, "%lx-%lx %4s", &first, &end, rights) == 3) {
            is_it = first <= (uintptr_t)memory && (uintptr_t)memory < end;
            mapping->is_shared = rights[3] == 's';
        } else if (is_it && sscanf(line, "KernelPageSize: %zu kB", &kib) == 1) {
            mapping->page_bytes = kib << 10;
            found = true;
        }
    }
    if (file) {
        fclose(file);
    }
    return found;
}

// Whether the word in brackets in a file of the kernel's is one of those that let madvise decide.
static bool is_allowed(const char *path)
{
    static const char *const words[] = {"[always]", "[madvise]", "[within_size]", "[advise]",
                                        "[force]"};
    char line[128] = "";
    FILE *file = fopen(path, "r");
    bool has = file && fgets(line, sizeof(line), file);
    if (file) {
        fclose(file);
    }
    for (size_t i = 0; has && i < sizeof(words) / sizeof(words[0]); i++) {
        if (strstr(line, words[i])) {
            return true;
        }
    }
    return false;
}

static size_t transparent_bytes(void)
{
    size_t bytes = 0;
    FILE *file = fopen(TRANSPARENT "hpage_pmd_size", "r");
    if (file) {
        bytes = fscanf(file, "%zu", &bytes) == 1 ? bytes : 0;
        fclose(file);
    }
    return bytes;
}

kvs_pages_t kvs_pages_use(void *memory, size_t bytes)
{
    size_t plain = (size_t)sysconf(_SC_PAGESIZE), huge = transparent_bytes();
    mapping_t mapping;
    if (!find_mapping(memory, &mapping)) {
        return (kvs_pages_t){plain, "plain pages"};
    }
    if (mapping.page_bytes > plain) {
        return (kvs_pages_t){mapping.page_bytes, "huge pages"};
    }
    uintptr_t first = ((uintptr_t)memory + plain - 1) / plain * plain;
    uintptr_t end = ((uintptr_t)memory + bytes) / plain * plain;
    bool allowed =
        is_allowed(mapping.is_shared ? TRANSPARENT "shmem_enabled" : TRANSPARENT "enabled");
    if (huge > plain && allowed && end > first &&
        madvise((void *)first, end - first, MADV_HUGEPAGE) == 0) {
        return (kvs_pages_t){huge, "transparent huge pages"};
    }
    return (kvs_pages_t){plain, "plain pages"};
}
