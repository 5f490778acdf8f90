// SPDX-License-Identifier: Apache-2.0
// Known sealed forms: a table by key, each in one place.
#include "gpuworker/decode/forms.h"

#include "common/assert.h"

static bool is_noted(uint32_t block)
{
    return (block + 1) % GPW_FORMS_EVERY == 0;
}

static uint64_t place_of(const as_key_t *key)
{
    return as_key_hash(key) % GPW_FORMS_SLOTS;
}

void gpw_forms_note(gpw_forms_t *forms, const as_key_t *key, uint32_t block, uint32_t method)
{
    AS_ASSERT(method < 64);
    if (!is_noted(block)) {
        return;
    }
    uint64_t at = place_of(key);
    if (!as_key_equal(&forms->slot[at].key, key)) {
        forms->slot[at].key = *key;
        forms->slot[at].methods = 0;
    }
    forms->slot[at].methods |= 1ull << method;
}

static bool is_known(const gpw_forms_t *forms, const as_key_t *key, uint32_t method)
{
    uint64_t at = place_of(key);
    return (forms->slot[at].methods >> method & 1) && as_key_equal(&forms->slot[at].key, key);
}

void gpw_forms_forget(gpw_forms_t *forms, const as_key_t *keys, uint32_t count, uint32_t method)
{
    for (uint32_t b = 0; b < count; b++) {
        if (is_known(forms, &keys[b], method)) {
            forms->slot[place_of(&keys[b])].methods &= ~(1ull << method);
        }
    }
}

uint32_t gpw_forms_blocks(const gpw_forms_t *forms, const as_key_t *keys, uint32_t count,
                          uint32_t method)
{
    uint32_t noted = count - count % GPW_FORMS_EVERY, blocks = noted;
    while (blocks > 0 && !is_known(forms, &keys[blocks - 1], method)) {
        blocks -= GPW_FORMS_EVERY;
    }
    return blocks > 0 && blocks == noted ? count : blocks;
}
