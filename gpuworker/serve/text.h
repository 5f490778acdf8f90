// SPDX-License-Identifier: Apache-2.0
// The text of a reply as its tokens arrive: what may be shown already, and where a stop string ends
// it.
//
// Tokens are pieces of bytes: one may end in the middle of a UTF-8 character or of a stop string.
// So bytes are held back while they may still be part of a stop string, or are the beginning of a
// character; what is let out is valid UTF-8 and is never taken back. Bytes that cannot be part of a
// character become U+FFFD.
#ifndef GPW_TEXT_H
#define GPW_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/status.h"

#define GPW_STOPS_MAX      4u   // stop strings of one request
#define GPW_STOP_BYTES_MAX 256u // one stop string; as many bytes may be held back

// A growing string, NUL-terminated once anything was appended. Zeroed is empty.
typedef struct gpw_string {
    char *bytes;
    size_t count, capacity;
} gpw_string_t;

as_status_t gpw_string_append(gpw_string_t *string, const char *bytes, size_t count) AS_MUST_USE;
void gpw_string_fini(gpw_string_t *string);

typedef struct gpw_text {
    const char *stops[GPW_STOPS_MAX]; // not copied
    uint32_t stop_count;
    gpw_string_t held;    // arrived, not yet let out
    uint64_t shown_bytes; // of the bytes that arrived: let out so far
    bool stopped;         // a stop string was met: what follows is dropped
} gpw_text_t;

void gpw_text_init(gpw_text_t *text, const char *const *stops, uint32_t stop_count);
void gpw_text_fini(gpw_text_t *text);
// Takes the bytes of the next token and appends to `shown` what can be let out now.
as_status_t gpw_text_push(gpw_text_t *text, const char *bytes, size_t count,
                          gpw_string_t *shown) AS_MUST_USE;
// No more tokens: lets out what was held back.
as_status_t gpw_text_finish(gpw_text_t *text, gpw_string_t *shown) AS_MUST_USE;

// Length of the UTF-8 character at `bytes` (1 to 4); 0: all `count` bytes are the beginning of one;
// negative: so many bytes are not part of any character.
int gpw_utf8_step(const char *bytes, size_t count);
bool gpw_utf8_valid(const char *bytes, size_t count);

#endif
