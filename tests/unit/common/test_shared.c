// SPDX-License-Identifier: Apache-2.0
// Memory that processes of a host share: what a name from outside makes a reader map, and what not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/shared.h"

#define BYTES 10000u

static as_shared_t shared;
static as_shared_name_t name;
static size_t mapped;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(as_shared_alloc(&shared, BYTES), AS_OK);
    name = as_shared_name(&shared);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    as_shared_free(&shared);
    return 0;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    assert_true(shared.bytes >= BYTES && (uintptr_t)shared.memory % 4096 == 0);
    const unsigned char *read = as_shared_map(&name, BYTES, false, &mapped);
    assert_non_null(read);
    assert_ptr_not_equal(read, shared.memory);
    assert_int_equal(read[BYTES - 1], 0);
    memset(shared.memory, 7, BYTES);
    assert_int_equal(read[BYTES - 1], 7);
    assert_int_equal(mprotect((void *)(uintptr_t)read, BYTES, PROT_READ | PROT_WRITE), -1);
    as_shared_unmap(read, mapped);
    as_shared_unmap(NULL, 0);
}

static void nobody_else_makes_it_shorter_or_writes_it(void **state)
{
    (void)state;
    assert_int_equal(ftruncate(shared.fd, 1), -1);
    assert_ptr_equal(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd, 0),
                     MAP_FAILED);
    memset(shared.memory, 1, BYTES); // its owner does
}

static void no_more_is_mapped_than_was_asked_for_and_none_that_has_holes(void **state)
{
    (void)state;
    assert_null(as_shared_map(&name, BYTES, true, &mapped)); // nothing was written yet
    assert_null(as_shared_map(&name, 0, false, &mapped));
    assert_int_equal(as_shared_back(&shared), AS_OK);
    const void *read = as_shared_map(&name, 5000, true, &mapped);
    assert_non_null(read);
    assert_int_equal(mapped, 8192);
    as_shared_unmap(read, mapped);
    assert_int_equal(fallocate(shared.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
}

static void a_hole_is_seen_whatever_else_the_file_has(void **state)
{
    (void)state;
    unsigned char *memory = shared.memory;
    memory[8192] = 1;
    memory[4096] = 1;
    assert_null(as_shared_map(&name, 4096, true, &mapped)); // the first page is a hole
    memory[0] = 1;
    const void *read = as_shared_map(&name, BYTES, true, &mapped);
    assert_non_null(read);
    as_shared_unmap(read, mapped);
}

// The right name of another file.
static as_shared_name_t name_of(int fd)
{
    struct stat file;
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &file), 0);
    as_shared_name_t of = name;
    of.fd = (uint32_t)fd;
    of.inode = (uint64_t)file.st_ino;
    of.device = (uint64_t)file.st_dev;
    return of;
}

// As large as as_shared_alloc makes it, but with memory behind its end in the place of its first page.
static void memory_behind_the_end_does_not_stand_for_a_hole(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof(path), "assay-%016" PRIx64 "%016" PRIx64, name.secret[0], name.secret[1]);
    int fd = memfd_create(path, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, 8192), 0);
    assert_int_equal(pwrite(fd, "x", 1, 4096), 1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE), 0);
    as_shared_name_t other = name_of(fd);
    const void *read = as_shared_map(&other, 8192, false, &mapped);
    assert_non_null(read); // all else is right
    as_shared_unmap(read, mapped);
    assert_null(as_shared_map(&other, 8192, true, &mapped));
    close(fd);
}

static void another_name_is_not_mapped(void **state)
{
    (void)state;
    as_shared_name_t others[] = {name, name, name, name, name, name, {0}};
    others[0].host++;
    others[1].inode++;
    others[2].device++;
    others[3].pid = UINT32_MAX;
    others[4].fd = 12345;
    others[5].secret[1] ^= 1;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_null(as_shared_map(&others[i], BYTES, false, &mapped));
    }
    assert_null(as_shared_map(&name, shared.bytes + 1, false, &mapped));
}

static void a_file_that_can_be_made_shorter_is_not_mapped(void **state)
{
    (void)state;
    int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(unsealed, BYTES), 0);
    char path[] = "/tmp/assay-shared-XXXXXX";
    int plain = mkstemp(path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ftruncate(plain, BYTES), 0);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const int others[] = {unsealed, plain, pipes[0], open("/dev/zero", O_RDONLY)};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        as_shared_name_t other = name_of(others[i]);
        assert_null(as_shared_map(&other, BYTES, false,
                                  &mapped)); // and it does not wait for the pipe's other end
        close(others[i]);
    }
    close(pipes[1]);
}

static void where_other_transports_are_asked_for_it_is_not_shared(void **state)
{
    (void)state;
    setenv("UCX_TLS", "tcp", 1);
    assert_null(as_shared_map(&name, BYTES, false, &mapped));
    assert_int_equal(as_shared_name(&shared).host, 0);
    setenv("UCX_TLS", "tcp,shm", 1);
    const void *read = as_shared_map(&name, BYTES, false, &mapped);
    assert_non_null(read);
    as_shared_unmap(read, mapped);
    unsetenv("UCX_TLS");
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_is_read),
        TEST(nobody_else_makes_it_shorter_or_writes_it),
        TEST(no_more_is_mapped_than_was_asked_for_and_none_that_has_holes),
        TEST(a_hole_is_seen_whatever_else_the_file_has),
        TEST(memory_behind_the_end_does_not_stand_for_a_hole),
        TEST(another_name_is_not_mapped),
        TEST(a_file_that_can_be_made_shorter_is_not_mapped),
        TEST(where_other_transports_are_asked_for_it_is_not_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
