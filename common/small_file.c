// SPDX-License-Identifier: Apache-2.0
// Small files, read whole.
#include "common/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool as_file_changed(const char *path, as_file_stamp_t *stamp)
{
    struct stat now;
    if (stat(path, &now) != 0) {
        return false;
    }
    as_file_stamp_t seen = {.device = now.st_dev,
                            .inode = now.st_ino,
                            .bytes = (uint64_t)now.st_size,
                            .modified_ns =
                                (int64_t)now.st_mtim.tv_sec * 1000000000 + now.st_mtim.tv_nsec,
                            .status_ns = // of its owner and rights, too
                            (int64_t)now.st_ctim.tv_sec * 1000000000 + now.st_ctim.tv_nsec};
    bool changed = memcmp(&seen, stamp, sizeof(seen)) != 0;
    *stamp = seen;
    return changed;
}

as_status_t as_file_read(const char *path, char *text, size_t bytes_max, size_t *bytes_p)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return AS_ERR_IO;
    }
    size_t bytes = 0;
    ssize_t some;
    do {
        some = read(file, text + bytes, bytes_max + 1 - bytes);
        bytes += some > 0 ? (size_t)some : 0;
    } while ((some > 0 && bytes <= bytes_max) || (some < 0 && errno == EINTR));
    int error = errno;
    close(file);
    if (some < 0 || bytes > bytes_max) {
        OPENSSL_cleanse(text, bytes); // half a secret is one, too
        errno = some < 0 ? error : EFBIG;
        return some < 0 ? AS_ERR_IO : AS_ERR_LIMIT;
    }
    text[bytes] = '\0';
    *bytes_p = bytes;
    return AS_OK;
}
