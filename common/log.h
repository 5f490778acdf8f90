// SPDX-License-Identifier: Apache-2.0
// Logging: one line to stderr, "time level component: message". Lower case, `noun value` pairs.
//
// What one call of the program says is written 200 times at once, and then twice a second: peers make
// us say things, and must not fill a disk with them. What was left out is counted at the end of the
// next line that is written, "(and 12 more like it)". Level debug is not limited.
#ifndef AS_LOG_H
#define AS_LOG_H

typedef enum as_log_level { AS_LOG_DEBUG, AS_LOG_INFO, AS_LOG_WARN, AS_LOG_ERROR } as_log_level_t;

void as_log_set_level(as_log_level_t level);                       // default: info
int as_log_parse_level(const char *name, as_log_level_t *level_p); // 1 on success
void as_log_write(as_log_level_t level, const char *component, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Number of lines so far, with those that were left out: tests assert that nothing unexpected was logged.
unsigned long as_log_count(as_log_level_t level);

#define AS_DEBUG(component, ...) as_log_write(AS_LOG_DEBUG, component, __VA_ARGS__)
#define AS_INFO(component, ...)  as_log_write(AS_LOG_INFO, component, __VA_ARGS__)
#define AS_WARN(component, ...)  as_log_write(AS_LOG_WARN, component, __VA_ARGS__)
#define AS_ERROR(component, ...) as_log_write(AS_LOG_ERROR, component, __VA_ARGS__)

#endif
