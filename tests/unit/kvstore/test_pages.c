// SPDX-License-Identifier: Apache-2.0
// The pages of the pool: what is said of them is what the kernel gives.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvstore/pages.h"

#define BYTES ((size_t)8 << 20)

// Whether a file of the kernel's has one of two words.
static int has_word(const char *path, const char *one, const char *other)
{
    char line[128] = "";
    FILE *file = fopen(path, "r");
    int has = file && fgets(line, sizeof(line), file) && (strstr(line, one) || strstr(line, other));
    if (file) {
        fclose(file);
    }
    return has;
}

// Of the mapping that holds `memory`, in KiB; SIZE_MAX: it has no such line.
static size_t smaps_kib(const void *memory, const char *name)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    int is_it = 0;
    size_t kib = SIZE_MAX;
    assert_non_null(file);
    while (kib == SIZE_MAX && fgets(line, sizeof(line), file)) {
        uintptr_t first, end;
        if (sscanf(line, "%lx-%lx ", &first, &end) == 2) {
            is_it = first <= (uintptr_t)memory && (uintptr_t)memory < end;
        } else if (is_it && strncmp(line, name, strlen(name)) == 0) {
            assert_int_equal(sscanf(line + strlen(name), ": %zu", &kib), 1);
        }
    }
    fclose(file);
    return kib;
}

static void memory_of_ones_own_gets_transparent_huge_pages(void **state)
{
    (void)state;
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    kvs_pages_t pages = kvs_pages_use(memory, BYTES);
    if (!has_word("/sys/kernel/mm/transparent_hugepage/enabled", "[always]", "[madvise]")) {
        assert_int_equal(pages.bytes, sysconf(_SC_PAGESIZE));
        assert_string_equal(pages.kind, "plain pages");
    } else {
        assert_true(pages.bytes > (size_t)sysconf(_SC_PAGESIZE));
        assert_string_equal(pages.kind, "transparent huge pages");
        memset(memory, 1, BYTES);
        printf("%zu KiB of %zu are in huge pages\n", smaps_kib(memory, "AnonHugePages"),
               BYTES >> 10);
    }
    munmap(memory, BYTES);
}

static void shared_memory_is_as_the_kernel_allows(void **state)
{
    (void)state;
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    kvs_pages_t pages = kvs_pages_use(memory, BYTES);
    if (has_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "[never]", "[deny]")) {
        assert_int_equal(pages.bytes, sysconf(_SC_PAGESIZE));
        assert_string_equal(pages.kind, "plain pages");
    }
    munmap(memory, BYTES);
}

static void huge_pages_are_kept(void **state)
{
    (void)state;
    void *memory =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (memory == MAP_FAILED) {
        printf("this machine has no huge pages set aside (vm.nr_hugepages)\n");
        skip();
    }
    kvs_pages_t pages = kvs_pages_use(memory, BYTES);
    assert_string_equal(pages.kind, "huge pages");
    assert_int_equal(pages.bytes, smaps_kib(memory, "KernelPageSize") << 10);
    munmap(memory, BYTES);
}

static void memory_that_is_not_mapped_is_told_as_plain(void **state)
{
    (void)state;
    kvs_pages_t pages = kvs_pages_use((void *)8, 4096);
    assert_int_equal(pages.bytes, sysconf(_SC_PAGESIZE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_ones_own_gets_transparent_huge_pages),
        cmocka_unit_test(shared_memory_is_as_the_kernel_allows),
        cmocka_unit_test(huge_pages_are_kept),
        cmocka_unit_test(memory_that_is_not_mapped_is_told_as_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
