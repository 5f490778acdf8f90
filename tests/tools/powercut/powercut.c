// SPDX-License-Identifier: Apache-2.0
// A file system in memory that loses power, for tests: `powercut MOUNTPOINT` (until SIGTERM).
//
// Bytes are safe once fsync, fdatasync or O_SYNC has passed for their file, names once their directory
// was synced: what POSIX promises, and no more. Text written to MOUNTPOINT/.control commands it:
//
//   cut SEED        power goes: of what is not safe a part stays, by the seed, in no order: pages of
//                   4096 bytes whole or torn into sectors of 512, sizes, names. EBUSY while a file is
//                   open: end the program first.
//   limit BYTES     of the disk; 0: none
//   fail WHAT N     the next N calls fail with EIO; WHAT: read, write, sync, or catalog: writes and
//                   syncs of files in a folder of that name
//   short N         the next N reads and writes move half of what was asked; how many of them are still to
//                   come is what .control reads as
//   readonly 0|1    as after a remount
//
// Direct I/O: every read and write of a program comes here. One thread.
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <string.h>

#include "tests/tools/powercut/powercut.h"

#define SECTOR  512u
#define CONTROL "/.control"

static uint32_t opens;
static uint32_t fail_reads, fail_writes, fail_syncs, fail_catalog, shorts;
static bool read_only;

static int command(const char *text)
{
    unsigned long long number = 0;
    char what[16] = "";
    if (sscanf(text, "cut %llu", &number) == 1) {
        if (opens > 0) {
            return -EBUSY;
        }
        power_cut(number);
    } else if (sscanf(text, "limit %llu", &number) == 1) {
        power_limit_pages = number / PAGE;
    } else if (sscanf(text, "fail %15s %llu", what, &number) == 2) {
        uint32_t *count = strcmp(what, "read") == 0      ? &fail_reads
                          : strcmp(what, "write") == 0   ? &fail_writes
                          : strcmp(what, "sync") == 0    ? &fail_syncs
                          : strcmp(what, "catalog") == 0 ? &fail_catalog
                                                         : NULL;
        if (!count) {
            return -EINVAL;
        }
        *count = (uint32_t)number;
    } else if (sscanf(text, "short %llu", &number) == 1) {
        shorts = (uint32_t)number;
    } else if (sscanf(text, "readonly %llu", &number) == 1) {
        read_only = number != 0;
    } else {
        return -EINVAL;
    }
    return 0;
}

// ---- FUSE

static bool happens(uint32_t *count)
{
    bool now = *count > 0;
    *count -= now;
    return now;
}

static bool fails(uint32_t *count, const char *path)
{
    bool catalog = path && strstr(path, "/catalog/") && happens(&fail_catalog);
    return happens(count) || catalog;
}

// The file of a path, and its directory and last name. NULL: there is none.
static file_t *find(const char *path, file_t **directory_p, const char **last_p)
{
    file_t *at = &power_root, *directory = NULL;
    const char *last = "";
    while (at && *path == '/' && path[1]) {
        char text[NAME];
        size_t length = strcspn(++path, "/");
        if (!at->is_directory || length >= sizeof(text)) {
            at = directory = NULL;
            break;
        }
        memcpy(text, path, length);
        text[length] = '\0';
        last = path;
        path += length;
        directory = at;
        name_t *name = power_names_find(&at->now_names, text);
        at = name ? name->file : NULL;
    }
    if (*path && path[1]) { // a directory on the way is missing
        at = directory = NULL;
    }
    if (directory_p) {
        *directory_p = directory;
    }
    if (last_p) {
        *last_p = last;
    }
    return at;
}

static file_t *file_of(const char *path, const struct fuse_file_info *info)
{
    return info && info->fh ? (file_t *)(uintptr_t)info->fh : path ? find(path, NULL, NULL) : NULL;
}

static int on_getattr(const char *path, struct stat *stat, struct fuse_file_info *info)
{
    memset(stat, 0, sizeof(*stat));
    stat->st_nlink = 1;
    if (path && strcmp(path, CONTROL) == 0) {
        stat->st_mode = S_IFREG | 0600;
        return 0;
    }
    const file_t *file = file_of(path, info);
    if (!file) {
        return -ENOENT;
    }
    stat->st_mode = file->is_directory ? S_IFDIR | 0700 : S_IFREG | 0600;
    stat->st_size = (off_t)file->now.size;
    stat->st_blocks = (blkcnt_t)(file->charged * (PAGE / SECTOR));
    return 0;
}

static int on_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
                      struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
    (void)offset;
    (void)flags;
    const file_t *directory = file_of(path, info);
    if (!directory || !directory->is_directory) {
        return -ENOTDIR;
    }
    fill(buffer, ".", NULL, 0, 0);
    fill(buffer, "..", NULL, 0, 0);
    for (size_t i = 0; i < directory->now_names.count; i++) {
        fill(buffer, directory->now_names.all[i].text, NULL, 0, 0);
    }
    return 0;
}

static void opened(file_t *file, struct fuse_file_info *info)
{
    file->refs++;
    opens++;
    info->fh = (uint64_t)(uintptr_t)file;
    info->direct_io = 1;
}

static int make(const char *path, bool is_directory, file_t **file_p)
{
    file_t *directory;
    change_t change = {0};
    const char *last;
    if (read_only) {
        return -EROFS;
    }
    if (find(path, &directory, &last)) {
        return -EEXIST;
    }
    if (!directory) {
        return -ENOENT;
    }
    snprintf(change.to, sizeof(change.to), "%s", last);
    change.file = power_file_new(is_directory);
    power_directory_change(directory, &change);
    *file_p = change.file;
    return 0;
}

static int on_mkdir(const char *path, mode_t mode)
{
    (void)mode;
    file_t *file;
    return make(path, true, &file);
}

static int on_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
    (void)mode;
    file_t *file;
    int result = make(path, false, &file);
    if (result == 0) {
        opened(file, info);
    }
    return result;
}

static int on_open(const char *path, struct fuse_file_info *info)
{
    if (strcmp(path, CONTROL) == 0) {
        info->direct_io = 1;
        return 0;
    }
    file_t *file = find(path, NULL, NULL);
    if (!file) {
        return -ENOENT;
    }
    if (read_only && (info->flags & O_ACCMODE) != O_RDONLY) {
        return -EROFS;
    }
    opened(file, info);
    return 0;
}

static int on_release(const char *path, struct fuse_file_info *info)
{
    (void)path;
    if (info->fh) {
        opens--;
        power_file_put((file_t *)(uintptr_t)info->fh);
    }
    return 0;
}

static int on_unlink(const char *path)
{
    file_t *directory, *file;
    change_t change = {0};
    const char *last;
    if (read_only) {
        return -EROFS;
    }
    file = find(path, &directory, &last);
    if (!file || !directory) {
        return -ENOENT;
    }
    if (file->is_directory && file->now_names.count > 0) {
        return -ENOTEMPTY;
    }
    snprintf(change.from, sizeof(change.from), "%s", last);
    power_directory_change(directory, &change);
    return 0;
}

// One change: after a cut there is the old name or the new one.
static int on_rename(const char *from, const char *to, unsigned flags)
{
    file_t *from_directory, *to_directory;
    change_t change = {0};
    const char *from_last, *to_last;
    if (read_only || flags != 0) {
        return read_only ? -EROFS : -EINVAL;
    }
    change.file = find(from, &from_directory, &from_last);
    find(to, &to_directory, &to_last);
    if (!change.file || !to_directory) {
        return -ENOENT;
    }
    if (from_directory != to_directory) {
        return -EXDEV;
    }
    snprintf(change.from, sizeof(change.from), "%s", from_last);
    snprintf(change.to, sizeof(change.to), "%s", to_last);
    power_directory_change(from_directory, &change);
    return 0;
}

static int on_read(const char *path, char *buffer, size_t bytes, off_t offset,
                   struct fuse_file_info *info)
{
    const file_t *file = file_of(path, info);
    if (!file) { // .control
        char text[16];
        int length = snprintf(text, sizeof(text), "%u", shorts);
        memcpy(buffer, text, offset == 0 && bytes >= sizeof(text) ? (size_t)length : 0);
        return offset == 0 && bytes >= sizeof(text) ? length : 0;
    }
    if (happens(&fail_reads)) {
        return -EIO;
    }
    uint64_t at = (uint64_t)offset;
    uint64_t left = at < file->now.size ? file->now.size - at : 0;
    bytes = bytes < left ? bytes : (size_t)left;
    if (bytes > SECTOR && happens(&shorts)) {
        bytes = bytes / 2 / SECTOR * SECTOR;
    }
    for (size_t done = 0, now; done < bytes; done += now) {
        size_t in_page = (size_t)((at + done) % PAGE);
        now = bytes - done < PAGE - in_page ? bytes - done : PAGE - in_page;
        const uint8_t *page = power_page_at(&file->now, (size_t)((at + done) / PAGE));
        if (page) {
            memcpy(buffer + done, page + in_page, now);
        } else {
            memset(buffer + done, 0, now);
        }
    }
    return (int)bytes;
}

static int on_write(const char *path, const char *buffer, size_t bytes, off_t offset,
                    struct fuse_file_info *info)
{
    if (!info->fh) {
        char text[64] = "";
        memcpy(text, buffer, bytes < sizeof(text) ? bytes : sizeof(text) - 1);
        int result = command(text);
        return result == 0 ? (int)bytes : result;
    }
    file_t *file = file_of(path, info);
    uint64_t at = (uint64_t)offset;
    if (read_only || fails(&fail_writes, path)) {
        return read_only ? -EROFS : -EIO;
    }
    if (bytes > SECTOR && happens(&shorts)) {
        bytes = bytes / 2 / SECTOR * SECTOR;
    }
    if (!power_take_pages(file, (at + bytes + PAGE - 1) / PAGE)) {
        return -ENOSPC;
    }
    for (size_t done = 0, now; done < bytes; done += now) {
        size_t in_page = (size_t)((at + done) % PAGE);
        now = bytes - done < PAGE - in_page ? bytes - done : PAGE - in_page;
        memcpy(power_page_own(file, (size_t)((at + done) / PAGE)) + in_page, buffer + done, now);
    }
    file->now.size = file->now.size > at + bytes ? file->now.size : at + bytes;
    if (info->flags & (O_SYNC | O_DSYNC)) {
        power_file_sync(file);
    }
    return (int)bytes;
}

static int on_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
    if (path && strcmp(path, CONTROL) == 0) {
        return 0;
    }
    file_t *file = file_of(path, info);
    if (!file || read_only) {
        return file ? -EROFS : -ENOENT;
    }
    power_file_resize(file, (uint64_t)size);
    return 0;
}

static int on_fallocate(const char *path, int mode, off_t offset, off_t bytes,
                        struct fuse_file_info *info)
{
    file_t *file = file_of(path, info);
    uint64_t end = (uint64_t)(offset + bytes);
    if (!file || read_only) {
        return file ? -EROFS : -ENOENT;
    }
    if ((mode & ~FALLOC_FL_KEEP_SIZE) != 0) {
        return -EOPNOTSUPP;
    }
    if (mode == 0) {
        if (!power_take_pages(file, (end + PAGE - 1) / PAGE)) {
            return -ENOSPC;
        }
        file->now.size = file->now.size > end ? file->now.size : end;
    }
    return 0;
}

static int on_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)data_only;
    file_t *file = file_of(path, info);
    if (!file || fails(&fail_syncs, path)) {
        return -EIO;
    }
    power_file_sync(file);
    return 0;
}

static int on_fsyncdir(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)data_only;
    file_t *directory = file_of(path, info);
    if (!directory || happens(&fail_syncs)) {
        return -EIO;
    }
    power_directory_sync(directory);
    return 0;
}

static int on_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *info)
{
    (void)path;
    (void)times;
    (void)info;
    return 0;
}

static void *on_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    config->direct_io = 1;
    config->hard_remove = 1;
    config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct fuse_operations operations = {
        .init = on_init,
        .getattr = on_getattr,
        .readdir = on_readdir,
        .mkdir = on_mkdir,
        .rmdir = on_unlink,
        .create = on_create,
        .open = on_open,
        .release = on_release,
        .unlink = on_unlink,
        .rename = on_rename,
        .read = on_read,
        .write = on_write,
        .truncate = on_truncate,
        .fallocate = on_fallocate,
        .fsync = on_fsync,
        .fsyncdir = on_fsyncdir,
        .utimens = on_utimens,
    };
    if (argc != 2) {
        fprintf(stderr, "usage: powercut MOUNTPOINT\n");
        return 2;
    }
    char foreground[] = "-f", single[] = "-s";
    char *arguments[] = {argv[0], foreground, single, argv[1], NULL};
    int result = fuse_main(4, arguments, &operations, NULL);
    return result == 8 ? 0 : result; // 8: by a signal
}
