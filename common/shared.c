// SPDX-License-Identifier: Apache-2.0
// Memory that processes of the same host read by pointer.
//
// UCX's own shared memory would do that too, but it carries messages as well, and there all senders
// of a host write into one queue of the receiver: one that is killed or stopped between taking a
// place in it and filling it silences all the others for good (UCX 1.13). So messages go by TCP or
// RDMA, and only the memory itself is shared: an anonymous file, of which peers learn the process and
// the descriptor, and which they map for reading only. It goes with the last process that has it. A
// peer makes sure that it is the file that was meant, by the secret that is the file's name, and that
// nobody can make it shorter, since reading behind the end of a file ends a process.
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/shared.h"
#include "common/siphash.h"

#define HUGE_BYTES      ((size_t)2 << 20)
#define FILE_NAME_BYTES 64u
#ifdef F_SEAL_FUTURE_WRITE // mappings that are there stay as they are, later ones can only be read
#define READ_ONLY F_SEAL_FUTURE_WRITE
#else
#define READ_ONLY 0
#endif

bool as_shared_is_allowed(void)
{
    const char *transports = getenv("UCX_TLS");
    static const char *const sharing[] = {"all", "shm", "sm", "posix", "sysv"};
    if (!transports || strcmp(transports, AS_SHARED_NO_MESSAGES) == 0) {
        return true;
    }
    for (size_t i = 0; transports[0] != '^' && i < sizeof(sharing) / sizeof(sharing[0]); i++) {
        if (strstr(transports, sharing[i])) {
            return true;
        }
    }
    return false;
}

// The same for all processes that see each other under /proc, and for no others.
static uint64_t host_id(void)
{
    char text[64] = "";
    struct stat pids;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool known = file && fgets(text, sizeof(text), file) && stat("/proc/self/ns/pid", &pids) == 0;
    if (file) {
        fclose(file);
    }
    if (!known) {
        return 0;
    }
    size_t used = strlen(text);
    snprintf(text + used, sizeof(text) - used, "%" PRIu64, (uint64_t)pids.st_ino);
    const uint64_t no_secret[2] = {0}; // it is to be the same everywhere
    return as_siphash(no_secret, text, strlen(text)) | 1;
}

static void close_if_open(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

// What /proc shows of it where it is open.
static void file_name(const uint64_t secret[2], char name[FILE_NAME_BYTES])
{
    snprintf(name, FILE_NAME_BYTES, "assay-%016" PRIx64 "%016" PRIx64, secret[0], secret[1]);
}

static as_status_t shared_make(as_shared_t *shared, size_t bytes, unsigned flags)
{
    uint64_t secret[2];
    if (getrandom(secret, sizeof(secret), 0) != sizeof(secret)) {
        return AS_ERR_NO_MEMORY;
    }
    char name[FILE_NAME_BYTES];
    file_name(secret, name);
    size_t page = flags & MFD_HUGETLB ? HUGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    void *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)whole) == 0) {
        memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | READ_ONLY | F_SEAL_SEAL) != 0) {
        if (memory != MAP_FAILED) {
            munmap(memory, whole);
        }
        close_if_open(fd);
        return AS_ERR_NO_MEMORY;
    }
    *shared = (as_shared_t){fd, memory, whole, {secret[0], secret[1]}};
    return AS_OK;
}

as_status_t as_shared_alloc(as_shared_t *shared, size_t bytes)
{
    as_status_t status = AS_ERR_NO_MEMORY;
    if (bytes >= HUGE_BYTES) { // where some are set aside (vm.nr_hugepages)
        status = shared_make(shared, bytes, MFD_HUGETLB);
    }
    return status == AS_OK ? AS_OK : shared_make(shared, bytes, 0);
}

void as_shared_free(as_shared_t *shared)
{
    munmap(shared->memory, shared->bytes);
    close(shared->fd);
}

as_status_t as_shared_back(const as_shared_t *shared)
{
    if (fallocate(shared->fd, 0, 0, (off_t)shared->bytes) != 0) {
        return AS_ERR_NO_MEMORY;
    }
    // What is only set aside counts as a hole until it is written.
    volatile unsigned char *memory = shared->memory;
    for (size_t at = 0; at < shared->bytes; at += (size_t)sysconf(_SC_PAGESIZE)) {
        memory[at] = memory[at];
    }
    return AS_OK;
}

as_shared_name_t as_shared_name(const as_shared_t *shared)
{
    struct stat file;
    if (!as_shared_is_allowed() || fstat(shared->fd, &file) != 0) {
        return (as_shared_name_t){0};
    }
    return (as_shared_name_t){host_id(),
                              (uint64_t)file.st_ino,
                              (uint64_t)file.st_dev,
                              {shared->secret[0], shared->secret[1]},
                              (uint32_t)getpid(),
                              (uint32_t)shared->fd};
}

// Whether what a name in /proc stands for is the memory with this secret: it is looked at before it is
// opened, since opening other things may do something, or hang.
static bool has_secret(const char *path, const uint64_t secret[2])
{
    char name[FILE_NAME_BYTES], is[160], want[160];
    ssize_t bytes = readlink(path, is, sizeof(is) - 1);
    if (bytes < 0) {
        AS_INFO("net", "the memory of another process cannot be shared: %s is not to be read",
                path);
        return false;
    }
    is[bytes] = 0;
    file_name(secret, name);
    snprintf(want, sizeof(want), "/memfd:%s (deleted)", name);
    return strcmp(is, want) == 0;
}

// What a mapping of it is made of: st_blksize says more where huge pages are only hoped for.
static size_t page_of(int fd)
{
    struct statfs system;
    bool is_huge = fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
    return is_huge ? (size_t)system.f_bsize : (size_t)sysconf(_SC_PAGESIZE);
}

// Whether the first `bytes` have no hole: whoever reads one pays for its memory. Huge pages tell nothing of
// holes, so of those all have to be there.
static bool is_backed(int fd, const struct stat *file, size_t bytes)
{
    off_t hole = lseek(fd, 0, SEEK_HOLE);
    return hole >= 0 && (uint64_t)hole >= bytes &&
           (uint64_t)file->st_blocks * 512 >= (uint64_t)file->st_size;
}

// Whether it is what the name says, and stays so: its length is looked at once it can no longer shrink.
static bool is_sound(int fd, const as_shared_name_t *name, size_t bytes, bool backed,
                     size_t *page_bytes_p)
{
    const int wanted = F_SEAL_SHRINK | READ_ONLY; // READ_ONLY: no hole is made in it either
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat file;
    if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &file) != 0) {
        return false;
    }
    *page_bytes_p = page_of(fd);
    return (uint64_t)file.st_ino == name->inode && (uint64_t)file.st_dev == name->device &&
           (uint64_t)file.st_size >= bytes && (size_t)file.st_size % *page_bytes_p == 0 &&
           (!backed || is_backed(fd, &file, bytes));
}

const void *as_shared_map(const as_shared_name_t *name, size_t bytes, bool backed, size_t *mapped_p)
{
    if (bytes == 0 || name->host == 0 || name->host != host_id() || !as_shared_is_allowed()) {
        return NULL;
    }
    char path[64], own[64];
    snprintf(path, sizeof(path), "/proc/%u/fd/%u", name->pid, name->fd);
    if (!has_secret(path, name->secret)) {
        return NULL;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    snprintf(own, sizeof(own), "/proc/self/fd/%d", fd);
    void *memory = MAP_FAILED;
    size_t page_bytes;
    if (fd >= 0 && has_secret(own, name->secret) &&
        is_sound(fd, name, bytes, backed, &page_bytes)) {
        *mapped_p = (bytes + page_bytes - 1) / page_bytes * page_bytes;
        memory = mmap(NULL, *mapped_p, PROT_READ, MAP_SHARED, fd, 0);
    }
    close_if_open(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

void as_shared_unmap(const void *memory, size_t mapped)
{
    if (memory) {
        int failed = munmap((void *)(uintptr_t)memory, mapped);
        AS_ASSERT(!failed);
    }
}
