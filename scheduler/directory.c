// SPDX-License-Identifier: Apache-2.0
// Block key -> nodes that hold it: an open-addressing table of 32-byte entries in bounded memory.
//
// Why truncated keys are enough: an entry keeps 16 of the 32 bytes. Among 10^8 blocks the chance
// that any two share them is n^2 / 2^129, about 1.5e-23; and if two did, a route would name a
// holder that does not have the block, which that node, asked by the full key, answers as a miss.
// A wrong entry can cost time, never a wrong block.
//
// Size: 2.5 GiB hold 67 million blocks, 4 GiB 107 million.
//
// Probing is linear from a home that follows from the key, upward, without wrapping: the table has
// PROBE_MAX spare entries at its end. Removal shifts later entries back, so there are no
// tombstones and every entry stays within PROBE_MAX of its home. The sweep walks downward, so an
// entry that a removal shifts meanwhile moves to where the sweep has yet to come.
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "scheduler/scheduler.h"

#define BYTES_MIN  (64u << 10)
#define PROBE_MAX  1024u
#define LOAD_TENTH 8u // of ten entries at most 8 are in use: 13 probes for a miss on average
// From here on the table asks for huge pages; smaller ones are not worth 2 MiB a touched page.
#define HUGE_BYTES_MIN (1ull << 30)
#define PAGE_BYTES     4096u

_Static_assert(sizeof(sch_entry_t) == 32, "two entries a cache line");
_Static_assert(SCH_SLOTS_MAX - 1 <= UINT16_MAX >> 2, "a holder is a slot and two bits");

enum slot_state { SLOT_FREE, SLOT_USED, SLOT_DROPPED, SLOT_SWEPT };

struct sch_directory {
    sch_entry_t *entries; // home_count + PROBE_MAX
    size_t home_count;
    size_t used;
    size_t used_max;
    uint64_t seed;
    uint32_t dropped_count;
    uint32_t swept_count; // slots that the sweep in progress clears
    size_t sweep_at;      // entries below it are still to be looked at
    uint16_t next_slot;   // where to look for a free one
    uint8_t slots[SCH_SLOTS_MAX];
};

as_status_t sch_directory_alloc(size_t bytes, uint64_t seed, sch_directory_t **directory_p)
{
    if (bytes < BYTES_MIN) {
        return AS_ERR_CONFIG;
    }
    sch_directory_t *directory = as_mem_zalloc(1, sizeof(*directory));
    if (!directory) {
        return AS_ERR_NO_MEMORY;
    }
    size_t count = bytes / sizeof(sch_entry_t);
    directory->entries = as_mem_zalloc(count, sizeof(sch_entry_t));
    if (!directory->entries) {
        AS_ERROR("directory", "no memory for a table of %zu bytes", bytes);
        as_mem_free(directory);
        return AS_ERR_NO_MEMORY;
    }
    if (bytes >= HUGE_BYTES_MIN) {
        uintptr_t begin = ((uintptr_t)directory->entries + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1ull);
        (void)madvise((void *)begin, bytes - PAGE_BYTES, MADV_HUGEPAGE); // slower without, no more
    }
    directory->home_count = count - PROBE_MAX;
    directory->used_max = directory->home_count / 10 * LOAD_TENTH;
    directory->seed = seed;
    *directory_p = directory;
    return AS_OK;
}

void sch_directory_free(sch_directory_t *directory)
{
    if (directory) {
        as_mem_free(directory->entries);
        as_mem_free(directory);
    }
}

static size_t home_of(const sch_directory_t *directory, const uint8_t *key)
{
    uint64_t hash;
    memcpy(&hash, key, sizeof(hash));
    hash ^= directory->seed; // keys are uniform unless chosen; then not knowing the seed helps
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
    hash ^= hash >> 31;
    return (size_t)(((unsigned __int128)hash * directory->home_count) >> 64);
}

void sch_directory_prefetch(const sch_directory_t *directory, const uint8_t *key)
{
    const sch_entry_t *home = &directory->entries[home_of(directory, key)];
    __builtin_prefetch(home);
    __builtin_prefetch(home + 2); // two probes are the average, and there are two a cache line
}

static bool key_equal(const sch_entry_t *entry, const uint64_t parts[2])
{
    uint64_t own[2];
    memcpy(own, entry->key, sizeof(own));
    return own[0] == parts[0] && own[1] == parts[1];
}

// The key's entry, or else the unused one where it would go; NULL: neither within PROBE_MAX.
static sch_entry_t *probe(const sch_directory_t *directory, const uint8_t *key)
{
    uint64_t parts[2];
    memcpy(parts, key, sizeof(parts));
    sch_entry_t *entry = &directory->entries[home_of(directory, key)];
    for (uint32_t i = 0; i < PROBE_MAX; i++, entry++) {
        if (entry->holders[0] == 0 || key_equal(entry, parts)) {
            return entry;
        }
    }
    return NULL;
}

const sch_entry_t *sch_directory_find(const sch_directory_t *directory, const uint8_t *key)
{
    const sch_entry_t *entry = probe(directory, key);
    return entry && entry->holders[0] != 0 ? entry : NULL;
}

static bool is_gone(const sch_directory_t *directory, uint16_t holder)
{
    return directory->slots[holder >> 2] != SLOT_USED;
}

// Takes out the holders whose slot was dropped.
static void purge(const sch_directory_t *directory, sch_entry_t *entry)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < SCH_HOLDERS_MAX && entry->holders[i]; i++) {
        if (!is_gone(directory, entry->holders[i])) {
            entry->holders[kept++] = entry->holders[i];
        }
    }
    while (kept < SCH_HOLDERS_MAX && entry->holders[kept]) {
        entry->holders[kept++] = 0;
    }
}

static as_status_t holder_add(const sch_directory_t *directory, sch_entry_t *entry, uint16_t slot,
                              unsigned kind)
{
    uint32_t at = 0;
    while (at < SCH_HOLDERS_MAX && entry->holders[at] && entry->holders[at] >> 2 < slot) {
        at++;
    }
    if (at < SCH_HOLDERS_MAX && entry->holders[at] && entry->holders[at] >> 2 == slot) {
        if (entry->holders[at] & kind) {
            return AS_ERR_EXISTS;
        }
        entry->holders[at] |= (uint16_t)kind;
        return AS_OK;
    }
    if (entry->holders[SCH_HOLDERS_MAX - 1]) {
        purge(directory, entry);
        return entry->holders[SCH_HOLDERS_MAX - 1] ? AS_ERR_LIMIT
                                                   : holder_add(directory, entry, slot, kind);
    }
    memmove(&entry->holders[at + 1], &entry->holders[at],
            (SCH_HOLDERS_MAX - 1 - at) * sizeof(entry->holders[0]));
    entry->holders[at] = (uint16_t)(slot << 2 | kind);
    return AS_OK;
}

as_status_t sch_directory_add(sch_directory_t *directory, const uint8_t *key, uint16_t slot,
                              unsigned kind)
{
    AS_ASSERT(slot < SCH_SLOTS_MAX && directory->slots[slot] == SLOT_USED);
    AS_ASSERT(kind == SCH_FULL || kind == SCH_SEALED);
    sch_entry_t *entry = probe(directory, key);
    if (!entry) {
        return AS_ERR_LIMIT;
    }
    if (entry->holders[0] != 0) {
        return holder_add(directory, entry, slot, kind);
    }
    if (directory->used >= directory->used_max) {
        return AS_ERR_LIMIT;
    }
    memcpy(entry->key, key, sizeof(entry->key));
    entry->holders[0] = (uint16_t)(slot << 2 | kind);
    directory->used++;
    return AS_OK;
}

// Makes the entry unused, and moves those that probed past it back.
static void entry_clear(sch_directory_t *directory, sch_entry_t *entry)
{
    const sch_entry_t *end = directory->entries + directory->home_count + PROBE_MAX;
    sch_entry_t *hole = entry;
    for (sch_entry_t *next = entry + 1; next < end && next->holders[0] != 0; next++) {
        if (&directory->entries[home_of(directory, next->key)] <= hole) {
            *hole = *next;
            hole = next;
        }
    }
    memset(hole, 0, sizeof(*hole));
    directory->used--;
}

as_status_t sch_directory_remove(sch_directory_t *directory, const uint8_t *key, uint16_t slot,
                                 unsigned kind)
{
    sch_entry_t *entry = probe(directory, key);
    if (!entry) {
        return AS_ERR_NOT_FOUND;
    }
    for (uint32_t i = 0; i < SCH_HOLDERS_MAX && entry->holders[i]; i++) {
        if (entry->holders[i] >> 2 != slot || !(entry->holders[i] & kind)) {
            continue;
        }
        entry->holders[i] &= (uint16_t)~kind;
        if ((entry->holders[i] & (SCH_FULL | SCH_SEALED)) == 0) {
            memmove(&entry->holders[i], &entry->holders[i + 1],
                    (SCH_HOLDERS_MAX - 1 - i) * sizeof(entry->holders[0]));
            entry->holders[SCH_HOLDERS_MAX - 1] = 0;
        }
        if (entry->holders[0] == 0) {
            entry_clear(directory, entry);
        }
        return AS_OK;
    }
    return AS_ERR_NOT_FOUND;
}

as_status_t sch_directory_slot_take(sch_directory_t *directory, uint16_t *slot_p)
{
    for (uint32_t i = 0; i < SCH_SLOTS_MAX; i++) {
        uint16_t slot = (uint16_t)((directory->next_slot + i) % SCH_SLOTS_MAX);
        if (directory->slots[slot] == SLOT_FREE) {
            directory->slots[slot] = SLOT_USED;
            directory->next_slot = (uint16_t)((slot + 1) % SCH_SLOTS_MAX);
            *slot_p = slot;
            return AS_OK;
        }
    }
    return AS_ERR_LIMIT;
}

void sch_directory_slot_drop(sch_directory_t *directory, uint16_t slot)
{
    AS_ASSERT(slot < SCH_SLOTS_MAX && directory->slots[slot] == SLOT_USED);
    directory->slots[slot] = SLOT_DROPPED;
    directory->dropped_count++;
}

static void sweep_begin(sch_directory_t *directory)
{
    for (uint32_t slot = 0; slot < SCH_SLOTS_MAX; slot++) {
        if (directory->slots[slot] == SLOT_DROPPED) {
            directory->slots[slot] = SLOT_SWEPT;
        }
    }
    directory->swept_count = directory->dropped_count;
    directory->dropped_count = 0;
    directory->sweep_at = directory->home_count + PROBE_MAX;
}

static void sweep_end(sch_directory_t *directory)
{
    for (uint32_t slot = 0; slot < SCH_SLOTS_MAX; slot++) {
        if (directory->slots[slot] == SLOT_SWEPT) {
            directory->slots[slot] = SLOT_FREE;
        }
    }
    directory->swept_count = 0;
}

bool sch_directory_sweep(sch_directory_t *directory, size_t entries)
{
    if (directory->swept_count == 0) {
        if (directory->dropped_count == 0) {
            return false;
        }
        sweep_begin(directory);
    }
    for (size_t i = 0; i < entries && directory->sweep_at > 0; i++) {
        sch_entry_t *entry = &directory->entries[--directory->sweep_at];
        if (entry->holders[0] == 0) {
            continue;
        }
        purge(directory, entry);
        if (entry->holders[0] == 0) {
            entry_clear(directory, entry);
        }
    }
    if (directory->sweep_at == 0) {
        sweep_end(directory);
    }
    return directory->swept_count > 0 || directory->dropped_count > 0;
}

size_t sch_directory_blocks(const sch_directory_t *directory)
{
    return directory->used;
}

size_t sch_directory_blocks_max(const sch_directory_t *directory)
{
    return directory->used_max;
}

size_t sch_directory_bytes(const sch_directory_t *directory)
{
    return (directory->home_count + PROBE_MAX) * sizeof(sch_entry_t);
}
