// SPDX-License-Identifier: Apache-2.0
// Logging: one line to stderr, "time level component: message". Lower case, `noun value` pairs.
//
// What one call of the program says is written 100 times at once, and then twice a second: peers make
// us say things, and must not fill a disk with them. What was left out is counted at the end of the
// next line that is written, "(and 12 more like it)". Level debug is not limited. What is to be told less
// often asks as_log_is_due.
#ifndef AS_LOG_H
#define AS_LOG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum as_log_level { AS_LOG_DEBUG, AS_LOG_INFO, AS_LOG_WARN, AS_LOG_ERROR } as_log_level_t;

void as_log_set_level(as_log_level_t level);                       // default: info
int as_log_parse_level(const char *name, as_log_level_t *level_p); // 1 on success
void as_log_write(as_log_level_t level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Number of lines written so far: tests assert that nothing unexpected was logged.
unsigned long as_log_count(as_log_level_t level);
// The clock of the limit, in milliseconds; NULL: the machine's, as at the start. What was left out before is
// forgotten. For tests.
void as_log_set_clock(int64_t (*now_ms)(void));

// When something was told last; all zero at first.
typedef struct as_log_due {
    uint64_t told_us; // of its owner's clock
    uint64_t untold;  // times since then
} as_log_due_t;

// Whether to tell of something that happens often: at its first time, and not before `every_us` after it was told
// last. *untold_p (may be NULL): how often it was not told since.
bool as_log_is_due(as_log_due_t *due, uint64_t now_us, uint64_t every_us, uint64_t *untold_p);

#define AS_DEBUG(component, ...) as_log_write(AS_LOG_DEBUG, component, __VA_ARGS__)
#define AS_INFO(component, ...)  as_log_write(AS_LOG_INFO, component, __VA_ARGS__)
#define AS_WARN(component, ...)  as_log_write(AS_LOG_WARN, component, __VA_ARGS__)
#define AS_ERROR(component, ...) as_log_write(AS_LOG_ERROR, component, __VA_ARGS__)

#endif
