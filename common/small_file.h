// SPDX-License-Identifier: Apache-2.0
// A small file of secrets or settings that is read whole, and again when it has changed.
#ifndef AS_SMALL_FILE_H
#define AS_SMALL_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

// What a file was when it was last looked at. Begin with {0}: then it has changed.
typedef struct as_file_stamp {
    uint64_t device, inode, bytes;
    int64_t modified_ns, status_ns;
} as_file_stamp_t;

// Whether the file is another one than at the last look, by its name, size, rights or times. One that is not
// there has not changed.
bool as_file_changed(const char *path, as_file_stamp_t *stamp);
// Reads a file of at most bytes_max into `text`, which has room for one byte more: its end. On an
// error nothing of it is left there, and errno says why; AS_ERR_LIMIT: it is longer.
as_status_t as_file_read(const char *path, char *text, size_t bytes_max,
                         size_t *bytes_p) AS_MUST_USE;

#endif
