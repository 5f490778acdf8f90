// SPDX-License-Identifier: Apache-2.0
// Holding back text until it is known to be a character and no part of a stop string.
//
// A stop string is valid UTF-8, so it can only begin where a character begins: cutting before it
// never cuts a character that was complete.
#include "gpuworker/serve/text.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

as_status_t gpw_string_append(gpw_string_t *string, const char *bytes, size_t count)
{
    size_t needed = string->count + count + 1;
    if (needed > string->capacity) {
        size_t capacity = needed < 128 ? 128 : needed + needed / 2;
        char *grown = as_mem_realloc(string->bytes, capacity);
        if (!grown) {
            return AS_ERR_NO_MEMORY;
        }
        string->bytes = grown;
        string->capacity = capacity;
    }
    if (count > 0) {
        memcpy(string->bytes + string->count, bytes, count);
    }
    string->count += count;
    string->bytes[string->count] = '\0';
    return AS_OK;
}

void gpw_string_fini(gpw_string_t *string)
{
    as_mem_free(string->bytes);
    memset(string, 0, sizeof(*string));
}

void gpw_text_init(gpw_text_t *text, const char *const *stops, uint32_t stop_count)
{
    AS_ASSERT(stop_count <= GPW_STOPS_MAX);
    memset(text, 0, sizeof(*text));
    for (uint32_t i = 0; i < stop_count; i++) {
        text->stops[i] = stops[i];
    }
    text->stop_count = stop_count;
}

void gpw_text_fini(gpw_text_t *text)
{
    gpw_string_fini(&text->held);
}

// The range of the second byte excludes overlong forms, surrogates and what is above U+10FFFF.
static int sequence_length(uint8_t first, uint8_t *low_p, uint8_t *high_p)
{
    *low_p = 0x80;
    *high_p = 0xbf;
    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xc2 && first <= 0xdf) {
        return 2;
    }
    if (first >= 0xe0 && first <= 0xef) {
        *low_p = first == 0xe0 ? 0xa0 : 0x80;
        *high_p = first == 0xed ? 0x9f : 0xbf;
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        *low_p = first == 0xf0 ? 0x90 : 0x80;
        *high_p = first == 0xf4 ? 0x8f : 0xbf;
        return 4;
    }
    return 0;
}

int gpw_utf8_step(const char *bytes, size_t count)
{
    AS_ASSERT(count > 0);
    const uint8_t *at = (const uint8_t *)bytes;
    uint8_t low, high;
    int length = sequence_length(at[0], &low, &high);
    if (length <= 1) {
        return length == 1 ? 1 : -1;
    }
    for (int i = 1; i < length; i++) {
        if ((size_t)i == count) {
            return 0;
        }
        if (at[i] < low || at[i] > high) {
            return -i;
        }
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

bool gpw_utf8_valid(const char *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        int step = gpw_utf8_step(bytes + at, count - at);
        if (step <= 0) {
            return false;
        }
        at += (size_t)step;
    }
    return true;
}

// Appends the first `count` held bytes as valid UTF-8. With `all` false an incomplete last
// character stays held.
static as_status_t show(gpw_text_t *text, size_t count, bool all, gpw_string_t *shown)
{
    gpw_string_t *held = &text->held;
    size_t at = 0;
    as_status_t status = AS_OK;
    while (at < count && status == AS_OK) {
        int step = gpw_utf8_step(held->bytes + at, count - at);
        if (step == 0 && !all) {
            break;
        }
        if (step > 0) {
            status = gpw_string_append(shown, held->bytes + at, (size_t)step);
            at += (size_t)step;
        } else {
            status = gpw_string_append(shown, "\xef\xbf\xbd", 3);
            at += step == 0 ? count - at : (size_t)-step;
        }
    }
    held->count -= at;
    text->shown_bytes += at;
    if (held->count > 0) {
        memmove(held->bytes, held->bytes + at, held->count);
    }
    return status;
}

// Where the earliest stop string begins, or the count of held bytes.
static size_t find_stop(const gpw_text_t *text)
{
    const gpw_string_t *held = &text->held;
    size_t first = held->count;
    for (uint32_t i = 0; i < text->stop_count; i++) {
        const char *match =
            memmem(held->bytes, held->count, text->stops[i], strlen(text->stops[i]));
        if (match && (size_t)(match - held->bytes) < first) {
            first = (size_t)(match - held->bytes);
        }
    }
    return first;
}

// Bytes at the end that may be the beginning of a stop string.
static size_t maybe_stop(const gpw_text_t *text)
{
    const gpw_string_t *held = &text->held;
    size_t longest = 0;
    for (uint32_t i = 0; i < text->stop_count; i++) {
        size_t length = strlen(text->stops[i]) - 1;
        for (length = length < held->count ? length : held->count; length > longest; length--) {
            if (memcmp(held->bytes + held->count - length, text->stops[i], length) == 0) {
                longest = length;
            }
        }
    }
    return longest;
}

as_status_t gpw_text_push(gpw_text_t *text, const char *bytes, size_t count, gpw_string_t *shown)
{
    if (text->stopped) {
        return AS_OK;
    }
    as_status_t status = gpw_string_append(&text->held, bytes, count);
    if (status != AS_OK) {
        return status;
    }
    size_t stop = find_stop(text);
    if (stop < text->held.count) {
        text->stopped = true;
        status = show(text, stop, true, shown);
        text->held.count = 0;
        return status;
    }
    return show(text, text->held.count - maybe_stop(text), false, shown);
}

as_status_t gpw_text_finish(gpw_text_t *text, gpw_string_t *shown)
{
    return show(text, text->held.count, true, shown);
}
