// SPDX-License-Identifier: Apache-2.0
// A folder for one test, which goes with all that is in it.
#ifndef TEMPORARY_FOLDER_H
#define TEMPORARY_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TEMPORARY_FOLDER_BYTES 32

static inline void temporary_folder_make(char path[TEMPORARY_FOLDER_BYTES])
{
    strcpy(path, "/tmp/assay-test-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static inline int temporary_folder_remove_one(const char *path, const struct stat *stat, int type,
                                              struct FTW *at)
{
    (void)stat;
    (void)type;
    (void)at;
    return remove(path);
}

// For its owner only, as files of secrets are to be.
static inline void temporary_file_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0);
}

// 0, as a teardown of cmocka wants it.
static inline int temporary_folder_remove(const char *path)
{
    return nftw(path, temporary_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
