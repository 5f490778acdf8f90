// SPDX-License-Identifier: Apache-2.0
// Text that grows; whoever builds it looks once, at its end, whether memory was there.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/ruler/internal.h"
#include "common/mem.h"

#define FIRST_BYTES 1024u

static bool reserve(ruler_text_t *text, size_t count)
{
    if (text->count + count < text->capacity) {
        return true;
    }
    size_t capacity = 2 * (text->count + count) + FIRST_BYTES;
    char *grown = as_mem_realloc(text->bytes, capacity);
    if (!grown) {
        text->failed = true;
        return false;
    }
    text->bytes = grown;
    text->capacity = capacity;
    return true;
}

void ruler_text_add(ruler_text_t *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int count = vsnprintf(NULL, 0, format, args);
    if (count >= 0 && !text->failed && reserve(text, (size_t)count)) {
        vsnprintf(text->bytes + text->count, (size_t)count + 1, format, again);
        text->count += (size_t)count;
    }
    va_end(again);
    va_end(args);
}

void ruler_text_fini(ruler_text_t *text)
{
    as_mem_free(text->bytes);
    memset(text, 0, sizeof(*text));
}
