// SPDX-License-Identifier: Apache-2.0
// Many reads and writes of files at once, waited for together: io_uring, or plain calls where the
// kernel or a container's filter does not let us have it. For the disk tier's own threads: it
// blocks.
#ifndef KVS_DISK_IO_H
#define KVS_DISK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define KVS_IO_DEPTH 32u // in flight at once

typedef struct kvs_io kvs_io_t;

typedef struct kvs_io_op {
    int fd;
    bool write;
    void *buffer; // O_DIRECT: buffer, bytes and offset are multiples of 4096
    size_t bytes;
    uint64_t offset;
    int error;   // out: 0 or an errno; a file that ends early is EIO
    size_t done; // out: bytes
} kvs_io_op_t;

// Where operations come from and go to. Both are called from kvs_io_run, while others are in flight:
// what is done makes room for the next, which goes before `done` is called.
typedef struct kvs_io_source {
    kvs_io_op_t *(*next)(void *ctx); // NULL: none now
    void (*done)(void *ctx, kvs_io_op_t *op);
    void *ctx;
} kvs_io_source_t;

as_status_t kvs_io_alloc(kvs_io_t **io_p) AS_MUST_USE;
void kvs_io_free(kvs_io_t *io);              // NULL is fine
bool kvs_io_is_parallel(const kvs_io_t *io); // has io_uring
// Returns when the source has no more and all are done or have failed; each has its own error.
void kvs_io_run(kvs_io_t *io, const kvs_io_source_t *source);
// From any thread: the source has more, which kvs_io_run need not find out by what is done next.
void kvs_io_wake(kvs_io_t *io);

#endif
