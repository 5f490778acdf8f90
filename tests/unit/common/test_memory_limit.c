// SPDX-License-Identifier: Apache-2.0
// What a process may take, from files as Linux writes them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory_limit.h"
#include "temporary_folder.h"

static char root[TEMPORARY_FOLDER_BYTES];

static int begin(void **state)
{
    (void)state;
    temporary_folder_make(root);
    return 0;
}

static int end(void **state)
{
    (void)state;
    return temporary_folder_remove(root);
}

// A file under the root, with the directories above it.
static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const char meminfo[] = "MemTotal:       24731628 kB\n"
                              "MemFree:         1000000 kB\n"
                              "MemAvailable:    2000000 kB\n"
                              "Buffers:           10000 kB\n";

static void without_files_nothing_is_known(void **state)
{
    (void)state;
    assert_true(as_memory_available(root) == UINT64_MAX);
}

static void the_machine_tells_what_is_available(void **state)
{
    (void)state;
    put("/proc/meminfo", meminfo);
    assert_int_equal(as_memory_available(root), 2000000ull * 1024);
}

static void a_group_may_leave_less(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/memory.current", "73741824\n");
    assert_int_equal(as_memory_available(root), 1000000000);
    put("/sys/fs/cgroup/memory.current", "2073741824\n");
    assert_int_equal(as_memory_available(root), 0);
    put("/sys/fs/cgroup/memory.max", "max\n");
    assert_int_equal(as_memory_available(root), 2000000ull * 1024);
}

static void so_may_a_group_of_version_1(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
    assert_int_equal(as_memory_available(root), 2000000ull * 1024);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
    assert_int_equal(as_memory_available(root), 4000);
}

static void this_machine_has_some(void **state)
{
    (void)state;
    uint64_t bytes = as_memory_available("");
    assert_true(bytes > (1u << 20) && bytes < UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_files_nothing_is_known),
        cmocka_unit_test(the_machine_tells_what_is_available),
        cmocka_unit_test(a_group_may_leave_less),
        cmocka_unit_test(so_may_a_group_of_version_1),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
