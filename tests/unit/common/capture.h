// SPDX-License-Identifier: Apache-2.0
// What a test writes to stdout and stderr, caught in a file, to be looked at.
#ifndef TEST_CAPTURE_H
#define TEST_CAPTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct capture {
    FILE *file;
    int saved_out, saved_err;
    char text[65536];
} capture_t;

static inline void capture_begin(capture_t *capture)
{
    fflush(stdout);
    fflush(stderr);
    capture->file = tmpfile();
    capture->saved_out = dup(STDOUT_FILENO);
    capture->saved_err = dup(STDERR_FILENO);
    if (!capture->file || capture->saved_out < 0 || capture->saved_err < 0 ||
        dup2(fileno(capture->file), STDOUT_FILENO) < 0 ||
        dup2(fileno(capture->file), STDERR_FILENO) < 0) {
        abort();
    }
}

static inline const char *capture_end(capture_t *capture)
{
    fflush(stdout);
    fflush(stderr);
    if (dup2(capture->saved_out, STDOUT_FILENO) < 0 ||
        dup2(capture->saved_err, STDERR_FILENO) < 0) {
        abort();
    }
    close(capture->saved_out);
    close(capture->saved_err);
    rewind(capture->file);
    size_t bytes = fread(capture->text, 1, sizeof(capture->text) - 1, capture->file);
    capture->text[bytes] = '\0';
    fclose(capture->file);
    return capture->text;
}

#endif
