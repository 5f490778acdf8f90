// SPDX-License-Identifier: Apache-2.0
// io_uring for the disk tier. A short transfer is continued from where it stopped. While it waits for
// the disk it also waits for an eventfd, so that an operation that comes meanwhile goes at once: a disk
// with fewer in flight than it was asked for is slower.
#include "kvstore/disk/io.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"

struct kvs_io {
    bool has_ring;
    struct io_uring ring;
    int wake_fd;
    bool waits_for_wake; // the ring does
};

as_status_t kvs_io_alloc(kvs_io_t **io_p)
{
    kvs_io_t *io = as_mem_zalloc(1, sizeof(*io));
    if (!io) {
        return AS_ERR_NO_MEMORY;
    }
    io->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (io->wake_fd < 0) {
        AS_ERROR("disk", "no eventfd (errno %d): raise the limit of open files", errno);
        as_mem_free(io);
        return AS_ERR_IO;
    }
    int error = io_uring_queue_init(KVS_IO_DEPTH + 1, &io->ring, 0);
    io->has_ring = error == 0;
    if (!io->has_ring) {
        AS_INFO("disk", "no io_uring here (errno %d): blocks are read and written one at a time",
                -error);
    }
    *io_p = io;
    return AS_OK;
}

void kvs_io_free(kvs_io_t *io)
{
    if (!io) {
        return;
    }
    if (io->has_ring) {
        io_uring_queue_exit(&io->ring);
    }
    close(io->wake_fd);
    as_mem_free(io);
}

bool kvs_io_is_parallel(const kvs_io_t *io)
{
    return io->has_ring;
}

// Takes in what one transfer brought: bytes, or a negative errno. True: it is over.
static bool settle(kvs_io_op_t *op, ssize_t result)
{
    if (result == -EINTR || result == -EAGAIN) {
        return false;
    }
    if (result <= 0) {
        op->error = result == 0 ? EIO : (int)-result;
        return true;
    }
    op->done += (size_t)result;
    return op->done >= op->bytes;
}

static void run_plainly(kvs_io_op_t *op)
{
    ssize_t result;
    do {
        char *at = (char *)op->buffer + op->done;
        size_t left = op->bytes - op->done;
        off_t offset = (off_t)(op->offset + op->done);
        result = op->write ? pwrite(op->fd, at, left, offset) : pread(op->fd, at, left, offset);
    } while (!settle(op, result < 0 ? -errno : result));
}

static void submit(kvs_io_t *io, kvs_io_op_t *op)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&io->ring);
    char *at = (char *)op->buffer + op->done;
    unsigned left = (unsigned)(op->bytes - op->done);
    if (op->write) {
        io_uring_prep_write(entry, op->fd, at, left, op->offset + op->done);
    } else {
        io_uring_prep_read(entry, op->fd, at, left, op->offset + op->done);
    }
    io_uring_sqe_set_data(entry, op);
}

static kvs_io_op_t *take(const kvs_io_source_t *source)
{
    kvs_io_op_t *op = source->next(source->ctx);
    if (op) {
        op->error = 0;
        op->done = 0;
    }
    return op;
}

// Puts in flight what there is room for.
static void fill(kvs_io_t *io, const kvs_io_source_t *source, uint32_t *in_flight_p)
{
    kvs_io_op_t *op;
    while (*in_flight_p < KVS_IO_DEPTH && (op = take(source)) != NULL) {
        submit(io, op);
        (*in_flight_p)++;
    }
}

void kvs_io_wake(kvs_io_t *io)
{
    eventfd_write(io->wake_fd, 1);
}

static void wait_for_wake(kvs_io_t *io)
{
    if (!io->waits_for_wake) {
        struct io_uring_sqe *entry = io_uring_get_sqe(&io->ring);
        io_uring_prep_poll_add(entry, io->wake_fd, POLLIN);
        io_uring_sqe_set_data(entry, NULL);
        io->waits_for_wake = true;
    }
}

static void reap(kvs_io_t *io, const kvs_io_source_t *source, uint32_t *in_flight_p)
{
    struct io_uring_cqe *event;
    while (io_uring_peek_cqe(&io->ring, &event) == 0) {
        kvs_io_op_t *op = io_uring_cqe_get_data(event);
        int result = event->res;
        io_uring_cqe_seen(&io->ring, event);
        if (!op) {
            eventfd_t count;
            eventfd_read(io->wake_fd, &count);
            io->waits_for_wake = false;
        } else if (settle(op, result)) {
            (*in_flight_p)--;
            fill(io, source, in_flight_p);
            io_uring_submit(&io->ring);
            source->done(source->ctx, op);
        } else {
            submit(io, op);
        }
    }
}

void kvs_io_run(kvs_io_t *io, const kvs_io_source_t *source)
{
    kvs_io_op_t *op;
    while (!io->has_ring && (op = take(source)) != NULL) {
        run_plainly(op);
        source->done(source->ctx, op);
    }
    for (uint32_t in_flight = 0; io->has_ring;) {
        fill(io, source, &in_flight);
        if (in_flight == 0) {
            return;
        }
        wait_for_wake(io);
        int error = io_uring_submit_and_wait(&io->ring, 1);
        if (error < 0 && error != -EINTR) {
            AS_ERROR("disk", "io_uring failed (errno %d)", -error);
        }
        reap(io, source, &in_flight);
    }
}
