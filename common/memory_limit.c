// SPDX-License-Identifier: Apache-2.0
// The limits that Linux tells in /proc/meminfo and /sys/fs/cgroup. In a container the latter shows
// the container's own group. Files that are missing or unreadable set no limit.
#include "common/memory_limit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 512

static FILE *open_under(const char *root, const char *name)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof(path), "%s%s", root, name);
    return length > 0 && length < PATH_BYTES ? fopen(path, "re") : NULL;
}

// The number that a file holds. False when there is none, as in "max".
static bool read_number(const char *root, const char *name, uint64_t *value_p)
{
    FILE *file = open_under(root, name);
    if (!file) {
        return false;
    }
    bool found = fscanf(file, "%" SCNu64, value_p) == 1;
    fclose(file);
    return found;
}

static uint64_t available_of_machine(const char *root)
{
    FILE *file = open_under(root, "/proc/meminfo");
    uint64_t kib = UINT64_MAX / 1024;
    char line[128];
    while (file && fgets(line, sizeof(line), file) &&
           sscanf(line, "MemAvailable: %" SCNu64, &kib) != 1) {
    }
    if (file) {
        fclose(file);
    }
    return kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

static uint64_t left_of_group(const char *root, const char *limit_name, const char *used_name)
{
    uint64_t limit, used;
    if (!read_number(root, limit_name, &limit) || !read_number(root, used_name, &used)) {
        return UINT64_MAX;
    }
    return limit > used ? limit - used : 0;
}

uint64_t as_memory_available(const char *root)
{
    const uint64_t left[] = {
        available_of_machine(root),
        left_of_group(root, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        left_of_group(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                      "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    };
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        least = left[i] < least ? left[i] : least;
    }
    return least;
}
