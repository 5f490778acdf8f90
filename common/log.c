// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr, each by one write(2), so that lines of several threads and processes do not
// mix.
//
// A line is bounded and free of control characters whatever the message quotes: a peer or a client
// cannot forge a second line or drive a terminal.
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2048 // below PIPE_BUF (4096): one write to a pipe stays whole

static const char *const level_names[] = {"debug", "info", "warn", "error"};
enum { LEVEL_COUNT = sizeof(level_names) / sizeof(level_names[0]) };

// What a line costs, and the most that a call has at a time: a token is a millisecond.
#define LINE_MS    500
#define TOKENS_MAX (100 * LINE_MS)
#define CALLS_MAX  512u // that are limited; a power of two

typedef struct limit {
    const char *format; // names the call
    int64_t at_ms;
    int64_t tokens;
    unsigned long left_out;
} limit_t;

static int64_t machine_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static pthread_mutex_t limits_lock = PTHREAD_MUTEX_INITIALIZER;
static limit_t limits[CALLS_MAX];
static int64_t (*now_ms)(void) = machine_ms;

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

void as_log_set_clock(int64_t (*clock)(void))
{
    pthread_mutex_lock(&limits_lock);
    now_ms = clock ? clock : machine_ms;
    memset(limits, 0, sizeof(limits));
    pthread_mutex_unlock(&limits_lock);
}

bool as_log_is_due(as_log_due_t *due, uint64_t now_us, uint64_t every_us, uint64_t *untold_p)
{
    if (due->told_us != 0 && now_us - due->told_us < every_us) {
        due->untold++;
        return false;
    }
    if (untold_p) {
        *untold_p = due->untold;
    }
    *due = (as_log_due_t){.told_us = now_us + (now_us == 0)};
    return true;
}

static limit_t *limit_of(const char *format, int64_t at_ms)
{
    size_t first = (size_t)((uintptr_t)format * 0x9e3779b97f4a7c15ull >> 40);
    for (size_t i = 0; i < CALLS_MAX; i++) {
        limit_t *limit = &limits[(first + i) & (CALLS_MAX - 1)];
        if (!limit->format) {
            *limit = (limit_t){format, at_ms, TOKENS_MAX, 0};
        }
        if (limit->format == format) {
            return limit;
        }
    }
    return NULL;
}

// Whether the call may write a line now, and how many it has left out since its last one.
static bool may_write(const char *format, unsigned long *left_out_p)
{
    *left_out_p = 0;
    pthread_mutex_lock(&limits_lock);
    int64_t at_ms = now_ms();
    limit_t *limit = limit_of(format, at_ms);
    bool may = true;
    if (limit) {
        limit->tokens += at_ms > limit->at_ms ? at_ms - limit->at_ms : 0;
        limit->tokens = limit->tokens < TOKENS_MAX ? limit->tokens : TOKENS_MAX;
        limit->at_ms = at_ms;
        may = limit->tokens >= LINE_MS;
        limit->tokens -= may ? LINE_MS : 0;
        *left_out_p = may ? limit->left_out : 0;
        limit->left_out = may ? 0 : limit->left_out + 1;
    }
    pthread_mutex_unlock(&limits_lock);
    return may;
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
    unsigned long left_out = 0;
    if (level != AS_LOG_DEBUG && !may_write(format, &left_out)) {
        errno = error;
        return;
    }
    char line[LINE_BYTES_MAX + 1];
    int start = write_prefix(line, level, component);
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(line + start, (size_t)(LINE_BYTES_MAX - start), format, arguments);
    va_end(arguments);
    size_t length = (size_t)start + (size_t)(added > 0 ? added : 0);
    char tail[48] = "";
    size_t tail_bytes =
        left_out > 0 ? (size_t)snprintf(tail, sizeof(tail), " (and %lu more like it)", left_out)
                     : 0;
    if (length > LINE_BYTES_MAX - 1 - tail_bytes) {
        length = LINE_BYTES_MAX - 1 - tail_bytes;
        memcpy(line + length - 3, "...", 3);
    }
    memcpy(line + length, tail, tail_bytes);
    length += tail_bytes;
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
