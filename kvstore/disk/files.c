// SPDX-License-Identifier: Apache-2.0
// The files of the disk tier, as its two threads use them: the writer (WRITE, SYNC, FORGET, SETTLE,
// DROP, REMOVE) and the reader (READ).
//
//   DIR/LOCK              held by the one store that may use the directory
//   DIR/catalog/          RocksDB
//   DIR/segments/N.seg    blocks one after the other, each at a multiple of 4096
//
// Order makes it safe. A block is written before the catalog names it, so a crash leaves dead bytes
// and nothing else; a durable one is on disk (fdatasync, then a synced write of the catalog) before
// its writer is told. The others are not waited for: after a power cut the catalog may name bytes
// that never came, which their checksums tell. What was removed is synced before that is said of it,
// since nothing else would tell. Names are made safe too: a directory is synced when
// something was made in it, since a file's own sync need not bring its name. What a start finds is
// synced then, so that it is durable from there.
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/checksum.h"
#include "common/fault.h"
#include "common/log.h"
#include "common/mem.h"
#include "kvstore/disk/check.h"
#include "kvstore/disk/image.h"
#include "kvstore/disk/io.h"
#include "kvstore/disk/worker.h"

struct kvs_files {
    char directory[3072];
    uint64_t segment_bytes;
    int lock_fd, segments_fd; // segments_fd: the directory
    kvs_catalog_t *catalog;
    kvs_io_t *write_io, *read_io;
    bool direct_refused; // the file system has no O_DIRECT
};

static as_status_t status_of(int error)
{
    return error == 0 ? AS_OK : kvs_is_full(error) ? AS_ERR_LIMIT : AS_ERR_IO;
}

static void segment_path(const kvs_files_t *files, uint32_t number, char path[4096])
{
    snprintf(path, 4096, "%s/segments/%08u.seg", files->directory, number);
}

// ---- opening

static as_status_t make_directory(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        AS_ERROR("disk", "cannot make the directory %s: %s", path, strerror(errno));
        return AS_ERR_IO;
    }
    return AS_OK;
}

// The names in a directory, on disk.
static as_status_t sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    if (error != 0) {
        AS_ERROR("disk", "cannot sync the directory %s: %s", path, strerror(error));
    }
    return error == 0 ? AS_OK : AS_ERR_IO;
}

// After everything in it was made: the directory's own names, and its name in its parent.
static as_status_t sync_tree(const kvs_files_t *files)
{
    char parent[4096];
    snprintf(parent, sizeof(parent), "%s/..", files->directory);
    as_status_t status = sync_directory(files->directory);
    return status == AS_OK ? sync_directory(parent) : status;
}

static as_status_t lock_directory(kvs_files_t *files)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/LOCK", files->directory);
    files->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (files->lock_fd < 0) {
        AS_ERROR("disk", "cannot open %s: %s", path, strerror(errno));
        return AS_ERR_IO;
    }
    if (flock(files->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        AS_ERROR("disk", "%s is in use by another store: give each its own --disk",
                 files->directory);
        return AS_ERR_EXISTS;
    }
    return AS_OK;
}

as_status_t kvs_files_open(const char *directory, uint64_t segment_bytes, kvs_files_t **files_p)
{
    kvs_files_t *files = as_mem_zalloc(1, sizeof(*files));
    if (!files) {
        return AS_ERR_NO_MEMORY;
    }
    files->lock_fd = files->segments_fd = -1;
    files->segment_bytes = segment_bytes;
    int length = snprintf(files->directory, sizeof(files->directory), "%s", directory);
    char segments[4096];
    snprintf(segments, sizeof(segments), "%s/segments", files->directory);
    as_status_t status =
        length > 0 && length < (int)sizeof(files->directory) ? AS_OK : AS_ERR_CONFIG;
    if (status == AS_OK) {
        status = make_directory(files->directory);
    }
    if (status == AS_OK) {
        status = lock_directory(files);
    }
    if (status == AS_OK) {
        status = make_directory(segments);
    }
    if (status == AS_OK) {
        files->segments_fd = open(segments, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = files->segments_fd >= 0 ? AS_OK : AS_ERR_IO;
    }
    if (status == AS_OK) {
        status = kvs_catalog_open(directory, &files->catalog);
    }
    if (status == AS_OK) {
        status = sync_tree(files);
    }
    if (status == AS_OK) {
        status = kvs_io_alloc(&files->write_io);
    }
    if (status == AS_OK) {
        status = kvs_io_alloc(&files->read_io);
    }
    if (status != AS_OK) {
        kvs_files_close(files);
        return status;
    }
    *files_p = files;
    return AS_OK;
}

void kvs_files_close(kvs_files_t *files)
{
    if (!files) {
        return;
    }
    kvs_io_free(files->read_io);
    kvs_io_free(files->write_io);
    kvs_catalog_close(files->catalog);
    if (files->segments_fd >= 0) {
        close(files->segments_fd);
    }
    if (files->lock_fd >= 0) {
        close(files->lock_fd);
    }
    as_mem_free(files);
}

kvs_catalog_t *kvs_files_catalog(kvs_files_t *files)
{
    return files->catalog;
}

static int open_direct(kvs_files_t *files, const char *path, int flags)
{
    if (!files->direct_refused) {
        int fd = open(path, flags | O_DIRECT, 0600);
        if (fd >= 0 || errno != EINVAL) {
            return fd;
        }
        AS_INFO("disk", "no direct I/O in this file system: blocks go through the page cache");
        files->direct_refused = true;
    }
    return open(path, flags, 0600);
}

as_status_t kvs_files_open_segment(kvs_files_t *files, kvs_segment_t *segment)
{
    char path[4096];
    segment_path(files, segment->number, path);
    segment->fd = open_direct(files, path, O_RDWR | O_CLOEXEC);
    struct stat stat;
    if (segment->fd < 0 || fstat(segment->fd, &stat) != 0 || fdatasync(segment->fd) != 0) {
        AS_WARN("disk", "cannot open %s: %s", path, strerror(errno));
        if (segment->fd >= 0) {
            close(segment->fd);
            segment->fd = -1;
        }
        return AS_ERR_IO;
    }
    // One of another size (--disk-size was changed) is not appended to.
    bool same = (uint64_t)stat.st_size == files->segment_bytes;
    segment->used_bytes = same ? 0 : files->segment_bytes;
    return AS_OK;
}

// Where the file system cannot reserve, a full disk shows when a block is written.
static int reserve_bytes(int fd, off_t bytes)
{
    int error = fallocate(fd, 0, 0, bytes) == 0 ? 0 : errno;
    if (error == EOPNOTSUPP) {
        error = ftruncate(fd, bytes) == 0 ? 0 : errno;
    }
    return error;
}

// Makes the file of a new segment, all of its bytes reserved: a full disk shows here and not in the
// middle of a block.
static void make_segment(kvs_files_t *files, kvs_segment_t *segment)
{
    char path[4096];
    segment_path(files, segment->number, path);
    segment->fd = open_direct(files, path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC);
    int error = segment->fd < 0 ? errno : 0;
    if (as_fault(AS_FAULT_disk_full)) {
        error = ENOSPC;
    } else if (as_fault(AS_FAULT_disk_quota)) {
        error = EDQUOT;
    } else if (error == 0) {
        error = reserve_bytes(segment->fd, (off_t)files->segment_bytes);
    }
    if (error == 0) {
        error = fsync(files->segments_fd) == 0 ? 0 : errno; // its name
    }
    if (error != 0) {
        AS_ERROR("disk", "cannot make %s of %llu bytes: %s", path,
                 (unsigned long long)files->segment_bytes, strerror(error));
        if (segment->fd >= 0) {
            close(segment->fd);
            segment->fd = -1;
            unlink(path);
        }
    }
    segment->failed = error;
}

as_status_t kvs_files_each_segment(kvs_files_t *files, void (*each)(void *ctx, uint32_t number),
                                   void *ctx)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/segments", files->directory);
    DIR *directory = opendir(path);
    if (!directory) {
        AS_ERROR("disk", "cannot read %s: %s", path, strerror(errno));
        return AS_ERR_IO;
    }
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        char *end;
        unsigned long number = strtoul(entry->d_name, &end, 10);
        if (end > entry->d_name && strcmp(end, ".seg") == 0 && number > 0 && number < UINT32_MAX) {
            each(ctx, (uint32_t)number);
        }
    }
    closedir(directory);
    return AS_OK;
}

void kvs_files_remove_segment(kvs_files_t *files, uint32_t number)
{
    char path[4096];
    segment_path(files, number, path);
    if (unlink(path) != 0 && errno != ENOENT) {
        AS_WARN("disk", "cannot remove %s: %s", path, strerror(errno));
    }
}

// ---- the writer

// The jobs of one run: of the writer its list, of the reader also what comes meanwhile.
typedef struct feed {
    kvs_files_t *files;
    kvs_worker_t *worker;
    kvs_job_t *next;
} feed_t;

static kvs_job_t *job_of(kvs_io_op_t *op)
{
    return (kvs_job_t *)(void *)((char *)op - offsetof(kvs_job_t, io));
}

static kvs_io_op_t *io_of(kvs_job_t *job, bool write)
{
    job->io = (kvs_io_op_t){.fd = job->segment->fd,
                            .write = write,
                            .buffer = job->image,
                            .bytes = job->bytes,
                            .offset = job->record.offset + job->at};
    return &job->io;
}

static kvs_io_op_t *next_write(void *ctx)
{
    feed_t *feed = ctx;
    while (feed->next) {
        kvs_job_t *job = feed->next;
        feed->next = job->next;
        if (job->kind != KVS_JOB_WRITE) {
            continue;
        }
        kvs_segment_t *segment = job->segment;
        if (segment->fd < 0 && segment->failed == 0) {
            make_segment(feed->files, segment);
        }
        job->error = segment->failed != 0 ? segment->failed : segment->unsafe;
        if (job->error == 0) {
            return io_of(job, true);
        }
    }
    return NULL;
}

static void on_write(void *ctx, kvs_io_op_t *op)
{
    (void)ctx;
    job_of(op)->error = as_fault(AS_FAULT_disk_write_fails) ? EIO : op->error;
}

// A sync that failed is told once: the next one of the same file finds nothing to do, whatever became of
// the bytes. So it is not asked.
static int sync_segment(kvs_segment_t *segment)
{
    if (segment->unsafe == 0) {
        segment->unsafe = as_fault(AS_FAULT_disk_sync_fails) ? EIO
                          : fdatasync(segment->fd) == 0      ? 0
                                                             : errno;
    }
    return segment->unsafe;
}

// The bytes of durable blocks, on disk.
static void sync_bytes(kvs_job_t *jobs)
{
    const kvs_segment_t *synced = NULL;
    int error = 0;
    for (kvs_job_t *job = jobs; job; job = job->next) {
        bool wanted = (job->kind == KVS_JOB_WRITE && job->durable) || job->kind == KVS_JOB_SYNC;
        if (!wanted || job->error != 0) {
            continue;
        }
        if (job->segment != synced) {
            error = sync_segment(job->segment);
            synced = job->segment;
        }
        job->error = error;
    }
}

static void catalog_one(kvs_files_t *files, const kvs_job_t *job)
{
    if ((job->kind == KVS_JOB_WRITE || job->kind == KVS_JOB_SYNC) && job->error == 0) {
        kvs_catalog_put(files->catalog, &job->record);
    } else if (job->kind == KVS_JOB_FORGET) {
        kvs_catalog_delete(files->catalog, &job->record.spec);
    } else if (job->kind == KVS_JOB_DROP) {
        for (uint32_t i = 0; i < job->dropped_count; i++) {
            const kvs_spec_t *spec = &job->dropped[i].spec;
            kvs_catalog_delete(files->catalog, spec);
        }
    }
}

// Numbers are not used again: a record that still names it after a crash is dropped at the start.
static void remove_segment(kvs_files_t *files, kvs_segment_t *segment)
{
    kvs_files_remove_segment(files, segment->number);
    if (segment->fd >= 0) {
        close(segment->fd);
        segment->fd = -1;
    }
}

void kvs_files_write(void *ctx, kvs_worker_t *worker, kvs_job_t *jobs)
{
    kvs_files_t *files = ctx;
    feed_t feed = {files, worker, jobs};
    bool sync = false, failed = false;
    while (as_fault(AS_FAULT_disk_hangs)) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    kvs_io_run(files->write_io, &(kvs_io_source_t){next_write, on_write, &feed});
    sync_bytes(jobs);
    for (kvs_job_t *job = jobs; job; job = job->next) {
        sync |= job->durable;
        catalog_one(files, job);
        if (job->kind == KVS_JOB_REMOVE) { // first: the catalog may need the room
            remove_segment(files, job->segment);
        }
    }
    as_status_t committed = kvs_catalog_commit(files->catalog, sync);
    for (kvs_job_t *job = jobs, *next; job; job = next) {
        next = job->next;
        job->status = job->error != 0 ? status_of(job->error) : committed;
        job->failed_with = failed;
        job->unsafe = job->segment && job->segment->unsafe != 0;
        failed |= job->kind == KVS_JOB_WRITE && job->status != AS_OK;
        kvs_worker_finish(worker, job);
    }
}

// ---- the reader

static kvs_io_op_t *next_read(void *ctx)
{
    feed_t *feed = ctx;
    if (!feed->next) {
        feed->next = kvs_worker_more(feed->worker);
    }
    kvs_job_t *job = feed->next;
    if (!job) {
        return NULL;
    }
    feed->next = job->next;
    return io_of(job, false);
}

// Checked while others are on their way.
static void on_read(void *ctx, kvs_io_op_t *op)
{
    feed_t *feed = ctx;
    kvs_job_t *job = job_of(op);
    job->error = as_fault(AS_FAULT_disk_read_fails) ? EIO : op->error;
    if (as_fault(AS_FAULT_disk_read_corrupt)) {
        ((uint8_t *)job->image)[job->bytes / 3] ^= 1;
    }
    job->status = job->error != 0 ? AS_ERR_IO
                  : job->check    ? kvs_check_take(job->check)
                                  : kvs_image_check(&job->record, job->image);
    kvs_worker_finish(feed->worker, job);
}

void kvs_files_wake_reader(kvs_files_t *files)
{
    kvs_io_wake(files->read_io);
}

void kvs_files_read(void *ctx, kvs_worker_t *worker, kvs_job_t *jobs)
{
    kvs_files_t *files = ctx;
    feed_t feed = {files, worker, jobs};
    kvs_io_run(files->read_io, &(kvs_io_source_t){next_read, on_read, &feed});
}
