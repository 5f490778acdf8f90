// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr, each by one write(2), so that lines of several threads and processes do not
// mix.
//
// A line is bounded and free of control characters whatever the message quotes: a peer or a client
// cannot forge a second line or drive a terminal.
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2048 // below PIPE_BUF (4096): one write to a pipe stays whole

static const char *const level_names[] = {"debug", "info", "warn", "error"};
enum { LEVEL_COUNT = sizeof(level_names) / sizeof(level_names[0]) };

static atomic_int level_min = AS_LOG_INFO;
static atomic_ulong line_counts[LEVEL_COUNT];

void as_log_set_level(as_log_level_t level)
{
    atomic_store_explicit(&level_min, (int)level, memory_order_relaxed);
}

int as_log_parse_level(const char *name, as_log_level_t *level_p)
{
    for (int level = 0; level < LEVEL_COUNT; level++) {
        if (strcmp(name, level_names[level]) == 0) {
            *level_p = (as_log_level_t)level;
            return 1;
        }
    }
    return 0;
}

unsigned long as_log_count(as_log_level_t level)
{
    return atomic_load_explicit(&line_counts[level], memory_order_relaxed);
}

// Writes "2026-01-02T03:04:05.678Z level component: " and returns its length.
static int write_prefix(char *line, as_log_level_t level, const char *component)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t length = strftime(line, LINE_BYTES_MAX, "%Y-%m-%dT%H:%M:%S", &utc);
    int added =
        snprintf(line + length, LINE_BYTES_MAX - length,
                 ".%03dZ %s %.32s: ", (int)(now.tv_nsec / 1000000), level_names[level], component);
    return (int)length + added;
}

static void write_all(const char *line, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(STDERR_FILENO, line, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; // a full or closed stderr must not stop the service
        }
        line += written;
        bytes -= (size_t)written;
    }
}

void as_log_write(as_log_level_t level, const char *component, const char *format, ...)
{
    if ((int)level < atomic_load_explicit(&level_min, memory_order_relaxed)) {
        return;
    }
    int error = errno; // callers may log before they look at errno
    char line[LINE_BYTES_MAX + 1];
    int start = write_prefix(line, level, component);
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(line + start, (size_t)(LINE_BYTES_MAX - start), format, arguments);
    va_end(arguments);
    size_t length = (size_t)start + (size_t)(added > 0 ? added : 0);
    if (length > LINE_BYTES_MAX - 1) {
        length = LINE_BYTES_MAX - 1;
        memcpy(line + length - 3, "...", 3);
    }
    for (size_t i = (size_t)start; i < length; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[length] = '\n';
    atomic_fetch_add_explicit(&line_counts[level], 1, memory_order_relaxed);
    write_all(line, length + 1);
    errno = error;
}
