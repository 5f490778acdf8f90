// SPDX-License-Identifier: Apache-2.0
// Named fault sites: armed by count or by chance, asked from any thread.
//
// The chance of a visit depends only on the seed and on the visit's number at that site, so a run
// with the same order of visits meets the same faults.
#include "common/fault.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/log.h"

#define PPM_MAX         1000000u
#define SHOWN_BYTES_MAX 100u // of a name that nobody knows

static const char *const site_names[] = {
#define AS_FAULT_SITE(name, text) #name,
#include "common/fault_sites.def"
#undef AS_FAULT_SITE
};

typedef struct site {
    _Atomic uint64_t countdown; // fires when a visit takes it from 1 to 0; 0: not armed by count
    _Atomic uint32_t ppm;
    _Atomic uint64_t seed;
    _Atomic uint64_t visits; // since armed by chance
    _Atomic uint64_t fired;
} site_t;

static site_t sites[AS_FAULT_COUNT];
static atomic_bool armed; // any site

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull; // splitmix64
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

static bool countdown_ends(site_t *site)
{
    uint64_t left = atomic_load(&site->countdown);
    while (left > 0) {
        if (atomic_compare_exchange_weak(&site->countdown, &left, left - 1)) {
            return left == 1;
        }
    }
    return false;
}

static bool chance_hits(site_t *site)
{
    uint32_t ppm = atomic_load(&site->ppm);
    if (ppm == 0) {
        return false;
    }
    uint64_t visit = atomic_fetch_add(&site->visits, 1);
    return mix(mix(atomic_load(&site->seed)) + visit) % PPM_MAX < ppm;
}

bool as_fault(as_fault_site_t site)
{
    if (!atomic_load_explicit(&armed, memory_order_relaxed)) {
        return false;
    }
    AS_ASSERT((unsigned)site < AS_FAULT_COUNT);
    if (!countdown_ends(&sites[site]) && !chance_hits(&sites[site])) {
        return false;
    }
    atomic_fetch_add(&sites[site].fired, 1);
    return true;
}

void as_fault_arm(as_fault_site_t site, uint64_t nth)
{
    AS_ASSERT((unsigned)site < AS_FAULT_COUNT);
    atomic_store(&sites[site].countdown, nth);
    atomic_store(&armed, true);
}

void as_fault_arm_chance(as_fault_site_t site, uint32_t ppm, uint64_t seed)
{
    AS_ASSERT((unsigned)site < AS_FAULT_COUNT);
    atomic_store(&sites[site].seed, seed);
    atomic_store(&sites[site].visits, 0);
    atomic_store(&sites[site].ppm, ppm);
    atomic_store(&armed, true);
}

void as_fault_clear(void)
{
    atomic_store(&armed, false);
    for (int i = 0; i < AS_FAULT_COUNT; i++) {
        atomic_store(&sites[i].countdown, 0);
        atomic_store(&sites[i].ppm, 0);
        atomic_store(&sites[i].visits, 0);
        atomic_store(&sites[i].fired, 0);
    }
}

uint64_t as_fault_fired(as_fault_site_t site)
{
    return atomic_load(&sites[site].fired);
}

const char *as_fault_name(as_fault_site_t site)
{
    return (unsigned)site < AS_FAULT_COUNT ? site_names[site] : "unknown";
}

static bool parse_number(const char *text, const char *end, uint64_t *number_p)
{
    uint64_t number = 0;
    if (text == end) {
        return false;
    }
    for (; text < end; text++) {
        unsigned digit = (unsigned)(*text - '0');
        if (digit > 9 || number > (UINT64_MAX - digit) / 10) {
            return false;
        }
        number = 10 * number + digit;
    }
    *number_p = number;
    return true;
}

static bool find_site(const char *name, size_t bytes, as_fault_site_t *site_p)
{
    for (int i = 0; i < AS_FAULT_COUNT; i++) {
        if (strlen(site_names[i]) == bytes && memcmp(site_names[i], name, bytes) == 0) {
            *site_p = (as_fault_site_t)i;
            return true;
        }
    }
    return false;
}

static void log_unknown_site(const char *text, size_t bytes)
{
    char known[1024] = "";
    size_t length = 0;
    for (int i = 0; i < AS_FAULT_COUNT && length < sizeof(known); i++) {
        length += (size_t)snprintf(known + length, sizeof(known) - length, "%s%s",
                                   i > 0 ? ", " : "", site_names[i]);
    }
    AS_ERROR("fault", "unknown fault site %.*s; known: %s",
             (int)(bytes < SHOWN_BYTES_MAX ? bytes : SHOWN_BYTES_MAX), text, known);
}

as_status_t as_fault_parse(const char *text)
{
    const char *equals = strchr(text, '=');
    const char *end = text + strlen(text);
    size_t name_bytes = equals ? (size_t)(equals - text) : strlen(text);
    as_fault_site_t site;
    if (!find_site(text, name_bytes, &site)) {
        log_unknown_site(text, name_bytes);
        return AS_ERR_INVALID;
    }
    const char *at = equals ? strchr(equals, '@') : NULL;
    uint64_t number, seed = 0;
    bool good = equals && parse_number(equals + 1, at ? at : end, &number) &&
                (!at || parse_number(at + 1, end, &seed));
    if (!good || (at ? number > PPM_MAX : number == 0)) {
        AS_ERROR("fault", "'%s' must be SITE=NTH, NTH at least 1, or SITE=PPM@SEED, PPM at most %u",
                 text, PPM_MAX);
        return AS_ERR_INVALID;
    }
    if (at) {
        as_fault_arm_chance(site, (uint32_t)number, seed);
    } else {
        as_fault_arm(site, number);
    }
    return AS_OK;
}
