// SPDX-License-Identifier: Apache-2.0
// The end of a process whose invariant is broken: one line, then abort, so that a core and a
// restart follow.
#include "common/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Formats into the stack and writes with write(2): the heap and stdio may be what is broken.
_Noreturn void as_assert_failed(const char *expression, const char *file, int line)
{
    char text[512];
    int length =
        snprintf(text, sizeof(text), "assertion failed: %s at %s:%d\n", expression, file, line);
    if (length >= (int)sizeof(text)) {
        length = (int)sizeof(text) - 1;
        text[length - 1] = '\n';
    }
    if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0) {
        abort(); // nobody listens; the core tells the rest
    }
    abort();
}
