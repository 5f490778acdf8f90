// SPDX-License-Identifier: Apache-2.0
// Named fault sites. A site is a line in fault_sites.def (name and what goes wrong there); code
// asks as_fault(AS_FAULT_X) where the real fault would show. Off unless a test or --fault arms it.
#ifndef AS_FAULT_H
#define AS_FAULT_H

#include <stdbool.h>
#include <stdint.h>
#include "common/status.h"

typedef enum as_fault_site {
#define AS_FAULT_SITE(name, text) AS_FAULT_##name,
#include "common/fault_sites.def"
#undef AS_FAULT_SITE
    AS_FAULT_COUNT
} as_fault_site_t;

// True when the fault happens now. One relaxed atomic load when nothing is armed.
bool as_fault(as_fault_site_t site);
// The site fires on its n-th visit from now (1: the next), once.
void as_fault_arm(as_fault_site_t site, uint64_t nth);
// The site fires with the given chance at each visit, from a seed.
void as_fault_arm_chance(as_fault_site_t site, uint32_t ppm, uint64_t seed);
void as_fault_clear(void);
uint64_t as_fault_fired(as_fault_site_t site);
// "site=nth" or "site=ppm@seed"; for the --fault option.
as_status_t as_fault_parse(const char *text) AS_MUST_USE;
const char *as_fault_name(as_fault_site_t site);

#endif
