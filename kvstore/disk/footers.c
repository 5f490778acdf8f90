// SPDX-License-Identifier: Apache-2.0
// The ends of RocksDB's table files. Each says by which checksum its blocks are sealed, and nothing seals that:
// where a bad disk makes "none" of it, RocksDB takes whatever the blocks say, and what it then makes of them may
// end the process. So no file is opened whose end says what the catalog never writes.
//
// Footer of RocksDB's block based tables from version 1 to 5 (table/format.cc), 53 bytes:
//
//   offset bytes
//        0     1  checksum of the blocks: 0 none, 1 CRC32C, 2 xxHash, 3 xxHash64, 4 XXH3
//        1    40  where the first blocks are
//       41     4  version of the format, little-endian
//       45     8  magic
#include "kvstore/disk/footers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"

#define FOOTER_BYTES 53
#define VERSION_AT   41

static bool is_table(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".sst") == 0;
}

bool kvs_footer_is_sound(const uint8_t footer[FOOTER_BYTES])
{
    uint32_t version;
    memcpy(&version, footer + VERSION_AT, sizeof(version));
    return footer[0] == KVS_TABLE_CHECKSUM && version == KVS_TABLE_VERSION;
}

// One that cannot be read, or is too short to have a footer, is RocksDB's to tell of.
static bool says_what_is_written(int folder, const char *name)
{
    uint8_t footer[FOOTER_BYTES];
    struct stat stat;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    bool read = fd >= 0 && fstat(fd, &stat) == 0 && stat.st_size >= FOOTER_BYTES &&
                pread(fd, footer, FOOTER_BYTES, stat.st_size - FOOTER_BYTES) == FOOTER_BYTES;
    if (fd >= 0) {
        close(fd);
    }
    return !read || kvs_footer_is_sound(footer);
}

uint32_t kvs_footers_check(const char *catalog)
{
    DIR *folder = opendir(catalog);
    uint32_t aside = 0;
    if (!folder) {
        return 0; // there is none yet
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[sizeof(entry->d_name) + sizeof(".damaged")];
        if (!is_table(entry->d_name) || says_what_is_written(dirfd(folder), entry->d_name)) {
            continue;
        }
        snprintf(name, sizeof(name), "%s.damaged", entry->d_name);
        if (renameat(dirfd(folder), entry->d_name, dirfd(folder), name) != 0) {
            AS_ERROR("disk", "cannot put %s/%s aside: %s", catalog, entry->d_name, strerror(errno));
            continue;
        }
        AS_ERROR("disk", "the end of %s/%s is damaged: it is put aside as %s", catalog,
                 entry->d_name, name);
        aside++;
    }
    closedir(folder);
    return aside;
}
