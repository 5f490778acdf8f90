// SPDX-License-Identifier: Apache-2.0
// Memory that processes of the same host read by pointer, without UCX.
//
// UCX's own shared memory would do that too, but it carries messages as well, and there all senders
// of a host write into one queue of the receiver: one that is killed or stopped between taking a
// place in it and filling it silences all the others for good (UCX 1.13). So messages go by TCP or
// RDMA, and only the memory itself is shared: an anonymous file, of which peers learn the process and
// the descriptor, and which they map for reading only. It goes with the last process that has it. A
// peer makes sure that it is the file that was meant, and that nobody can make it shorter, since
// reading behind the end of a file ends a process.
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/net_ucx.h"
#include "common/siphash.h"

#define HUGE_BYTES ((size_t)2 << 20)
#ifdef F_SEAL_FUTURE_WRITE // mappings that are there stay as they are, later ones can only be read
#define READ_ONLY F_SEAL_FUTURE_WRITE
#else
#define READ_ONLY 0
#endif

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

static as_status_t shared_make(ucx_shared_t *shared, size_t bytes, unsigned flags)
{
    size_t page = flags & MFD_HUGETLB ? HUGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    int fd = memfd_create("assay-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
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
    *shared = (ucx_shared_t){fd, memory, whole};
    return AS_OK;
}

as_status_t ucx_shared_alloc(ucx_shared_t *shared, size_t bytes)
{
    as_status_t status = AS_ERR_NO_MEMORY;
    if (bytes >= HUGE_BYTES) { // where some are set aside (vm.nr_hugepages)
        status = shared_make(shared, bytes, MFD_HUGETLB);
    }
    return status == AS_OK ? AS_OK : shared_make(shared, bytes, 0);
}

void ucx_shared_free(ucx_shared_t *shared)
{
    munmap(shared->memory, shared->bytes);
    close(shared->fd);
}

ucx_shared_name_t ucx_shared_name(const ucx_shared_t *shared)
{
    struct stat file;
    if (!ucx_shares_memory() || fstat(shared->fd, &file) != 0) {
        return (ucx_shared_name_t){0};
    }
    return (ucx_shared_name_t){host_id(), (uint64_t)file.st_ino, (uint64_t)file.st_dev,
                               (uint32_t)getpid(), (uint32_t)shared->fd};
}

const void *ucx_shared_map(const ucx_shared_name_t *name, size_t bytes, size_t *mapped_p)
{
    if (name->host == 0 || name->host != host_id() || !ucx_shares_memory()) {
        return NULL;
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/%u/fd/%u", name->pid, name->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat file;
    if (fd < 0 || fstat(fd, &file) != 0) {
        AS_INFO("net", "the memory of process %u cannot be shared: %s is not to be opened",
                name->pid, path);
        close_if_open(fd);
        return NULL;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    void *memory = MAP_FAILED;
    if (seals >= 0 && (seals & F_SEAL_SHRINK) && (uint64_t)file.st_ino == name->inode &&
        (uint64_t)file.st_dev == name->device && (uint64_t)file.st_size >= bytes) {
        *mapped_p = (size_t)file.st_size; // whole pages, of whatever size they are
        memory = mmap(NULL, *mapped_p, PROT_READ, MAP_SHARED, fd, 0);
    }
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

void ucx_shared_unmap(const void *memory, size_t mapped)
{
    if (memory) {
        int failed = munmap((void *)(uintptr_t)memory, mapped);
        AS_ASSERT(!failed);
    }
}
