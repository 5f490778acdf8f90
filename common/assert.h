// SPDX-License-Identifier: Apache-2.0
// Asserts that stay on in release. For broken invariants only, never for input from wire, disk,
// client or driver.
#ifndef AS_ASSERT_H
#define AS_ASSERT_H

_Noreturn void as_assert_failed(const char *expression, const char *file, int line);
#define AS_ASSERT(expression)                                                                      \
    ((expression) ? (void)0 : as_assert_failed(#expression, __FILE__, __LINE__))

#endif
