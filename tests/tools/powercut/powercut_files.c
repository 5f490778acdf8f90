// SPDX-License-Identifier: Apache-2.0
// Files, names and the power cut of powercut.c.
#include "tests/tools/powercut/powercut.h"

#include <stdlib.h>
#include <string.h>

#define SECTOR 512u

file_t power_root = {.is_directory = true, .refs = 1};
uint64_t power_limit_pages;
static uint64_t charged_all;
static uint64_t chance_state;

void *power_enough(void *memory)
{
    if (!memory) {
        abort();
    }
    return memory;
}

static uint32_t chance(uint32_t below)
{
    chance_state = chance_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(chance_state >> 33) % below;
}

// ---- bytes

// As a journal commits when it runs out of room: files that have no name any more go.
static void commit_names(file_t *directory)
{
    power_directory_sync(directory);
    for (size_t i = 0; i < directory->now_names.count; i++) {
        if (directory->now_names.all[i].file->is_directory) {
            commit_names(directory->now_names.all[i].file);
        }
    }
}

bool power_take_pages(file_t *file, uint64_t pages)
{
    if (pages <= file->charged) {
        return true;
    }
    if (power_limit_pages > 0 && charged_all + pages - file->charged > power_limit_pages) {
        commit_names(&power_root);
    }
    if (power_limit_pages > 0 && charged_all + pages - file->charged > power_limit_pages) {
        return false;
    }
    charged_all += pages - file->charged;
    file->charged = pages;
    return true;
}

static void bytes_grow(bytes_t *bytes, size_t count)
{
    if (count > bytes->count) {
        bytes->pages = power_enough(realloc(bytes->pages, count * sizeof(bytes->pages[0])));
        memset(bytes->pages + bytes->count, 0, (count - bytes->count) * sizeof(bytes->pages[0]));
        bytes->count = count;
    }
}

uint8_t *power_page_at(const bytes_t *bytes, size_t i)
{
    return i < bytes->count ? bytes->pages[i] : NULL;
}

static void page_free(file_t *file, size_t i) // the present one, unless it is safe
{
    if (power_page_at(&file->now, i) != power_page_at(&file->safe, i)) {
        free(file->now.pages[i]);
    }
}

// A page that may be written to.
uint8_t *power_page_own(file_t *file, size_t i)
{
    bytes_grow(&file->now, i + 1);
    uint8_t *page = file->now.pages[i];
    if (!page || page == power_page_at(&file->safe, i)) {
        uint8_t *own = power_enough(calloc(1, PAGE));
        if (page) {
            memcpy(own, page, PAGE);
        }
        file->now.pages[i] = page = own;
    }
    return page;
}

void power_file_resize(file_t *file, uint64_t size)
{
    size_t whole = (size_t)((size + PAGE - 1) / PAGE);
    for (size_t i = whole; i < file->now.count; i++) {
        page_free(file, i);
        file->now.pages[i] = NULL;
    }
    if (size % PAGE != 0 && power_page_at(&file->now, whole - 1)) {
        memset(power_page_own(file, whole - 1) + size % PAGE, 0, PAGE - size % PAGE);
    }
    file->now.size = size;
}

void power_file_sync(file_t *file)
{
    bytes_grow(&file->safe, file->now.count);
    bytes_grow(&file->now, file->safe.count);
    for (size_t i = 0; i < file->now.count; i++) {
        if (file->safe.pages[i] != file->now.pages[i]) {
            free(file->safe.pages[i]);
            file->safe.pages[i] = file->now.pages[i];
        }
    }
    file->safe.size = file->now.size;
}

// ---- names

file_t *power_file_new(bool is_directory)
{
    file_t *file = power_enough(calloc(1, sizeof(*file)));
    file->is_directory = is_directory;
    return file;
}

name_t *power_names_find(const names_t *names, const char *text)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->all[i].text, text) == 0) {
            return &names->all[i];
        }
    }
    return NULL;
}

static void names_remove(names_t *names, const char *text)
{
    name_t *name = power_names_find(names, text);
    if (name) {
        file_t *file = name->file;
        *name = names->all[--names->count];
        power_file_put(file);
    }
}

static void names_set(names_t *names, const char *text, file_t *file)
{
    file->refs++;
    names_remove(names, text);
    names->all = power_enough(realloc(names->all, (names->count + 1) * sizeof(names->all[0])));
    name_t *name = &names->all[names->count++];
    snprintf(name->text, sizeof(name->text), "%s", text);
    name->file = file;
}

static void names_copy(names_t *to, const names_t *from)
{
    while (to->count > 0) {
        power_file_put(to->all[--to->count].file);
    }
    for (size_t i = 0; i < from->count; i++) {
        names_set(to, from->all[i].text, from->all[i].file);
    }
}

static void changes_clear(file_t *directory)
{
    for (size_t i = 0; i < directory->change_count; i++) {
        if (directory->changes[i].file) {
            power_file_put(directory->changes[i].file);
        }
    }
    directory->change_count = 0;
}

void power_directory_sync(file_t *directory)
{
    names_t before = directory->safe_names;
    directory->safe_names = (names_t){0};
    names_copy(&directory->safe_names, &directory->now_names);
    names_copy(&before, &(names_t){0});
    free(before.all);
    changes_clear(directory);
}

static void apply(names_t *names, const change_t *change)
{
    if (change->from[0]) {
        names_remove(names, change->from);
    }
    if (change->to[0]) {
        names_set(names, change->to, change->file);
    }
}

void power_directory_change(file_t *directory, const change_t *change)
{
    size_t count = directory->change_count + 1;
    directory->changes =
        power_enough(realloc(directory->changes, count * sizeof(directory->changes[0])));
    directory->changes[directory->change_count++] = *change;
    if (change->file) {
        change->file->refs++;
    }
    apply(&directory->now_names, change);
}

void power_file_put(file_t *file)
{
    if (--file->refs > 0) {
        return;
    }
    changes_clear(file);
    names_copy(&file->now_names, &(names_t){0});
    names_copy(&file->safe_names, &(names_t){0});
    for (size_t i = 0; i < file->now.count; i++) {
        page_free(file, i);
    }
    for (size_t i = 0; i < file->safe.count; i++) {
        free(file->safe.pages[i]);
    }
    charged_all -= file->charged;
    free(file->now.pages);
    free(file->safe.pages);
    free(file->now_names.all);
    free(file->safe_names.all);
    free(file->changes);
    free(file);
}

// ---- the power cut

// Of a page that was not safe: the old one, the new one, or sectors of both.
static void cut_page(file_t *file, size_t i)
{
    uint32_t fate = chance(4);
    if (fate == 1) {
        return;
    }
    uint8_t *own = power_page_own(file, i);
    const uint8_t *old = power_page_at(&file->safe, i);
    for (uint32_t at = 0; at < PAGE; at += SECTOR) {
        if (fate != 2 || chance(2)) {
            if (old) {
                memcpy(own + at, old + at, SECTOR);
            } else {
                memset(own + at, 0, SECTOR);
            }
        }
    }
}

static void cut_file(file_t *file, bool all)
{
    for (size_t i = 0; i < file->now.count || i < file->safe.count; i++) {
        if (power_page_at(&file->now, i) != power_page_at(&file->safe, i)) {
            bytes_grow(&file->now, i + 1);
            if (all) {
                page_free(file, i);
                file->now.pages[i] = power_page_at(&file->safe, i);
            } else {
                cut_page(file, i);
            }
        }
    }
    uint64_t size = all || chance(2) ? file->safe.size : file->now.size;
    file->now.size = size;
    power_file_resize(file, size);
    power_file_sync(file);
}

static void cut_directory(file_t *directory, bool all)
{
    for (size_t i = 0; i < directory->change_count; i++) {
        if (!all && chance(2)) {
            apply(&directory->safe_names, &directory->changes[i]);
        }
    }
    names_t before = directory->now_names;
    directory->now_names = (names_t){0};
    names_copy(&directory->now_names, &directory->safe_names);
    names_copy(&before, &(names_t){0});
    free(before.all);
    changes_clear(directory);
    for (size_t i = 0; i < directory->now_names.count; i++) {
        file_t *file = directory->now_names.all[i].file;
        if (file->is_directory) {
            cut_directory(file, all);
        } else {
            cut_file(file, all);
        }
    }
}

void power_cut(uint64_t seed)
{
    chance_state = seed * 0x9e3779b97f4a7c15ull + 1;
    cut_directory(&power_root, seed % 4 == 0); // each fourth loses all
}
