// SPDX-License-Identifier: Apache-2.0
// SipHash-2-4 (Aumasson and Bernstein, 2012): a hash of bytes from outside that whoever does not know
// the secret can neither predict nor make collide.
#ifndef AS_SIPHASH_H
#define AS_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t as_siphash(const uint64_t secret[2], const void *bytes, size_t count);
// With a secret of the process's own, drawn at its first use.
uint64_t as_siphash_own(const void *bytes, size_t count);
// Before its first use: the secret is a known one, for simulations and tests, whose runs are to be
// repeated.
void as_siphash_own_known(void);

#endif
