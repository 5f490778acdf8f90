// SPDX-License-Identifier: Apache-2.0
// What powercut.c holds: files and directories, each as it is now and as it is safe from a power cut.
#ifndef POWERCUT_H
#define POWERCUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PAGE 4096u
#define NAME 256u

typedef struct file file_t;

typedef struct name {
    char text[NAME];
    file_t *file;
} name_t;

typedef struct names {
    name_t *all;
    size_t count;
} names_t;

typedef struct bytes {
    uint8_t **pages; // NULL: zeros
    size_t count;
    uint64_t size;
} bytes_t;

// A change of a directory that is not safe: `from` goes (""), `to` comes ("").
typedef struct change {
    char from[NAME], to[NAME];
    file_t *file; // that comes
} change_t;

struct file {
    bool is_directory;
    uint32_t refs;     // names, changes, opens
    uint64_t charged;  // pages of the limit
    bytes_t now, safe; // a page that both have is shared
    names_t now_names, safe_names;
    change_t *changes;
    size_t change_count;
};

extern file_t power_root;
extern uint64_t power_limit_pages; // of the disk; 0: none

void *power_enough(void *memory); // memory that there is
file_t *power_file_new(bool is_directory);
void power_file_put(file_t *file);                   // gives one reference back
bool power_take_pages(file_t *file, uint64_t pages); // false: the disk is full
uint8_t *power_page_at(const bytes_t *bytes, size_t i);
uint8_t *power_page_own(file_t *file, size_t i); // one that may be written to
void power_file_resize(file_t *file, uint64_t size);
void power_file_sync(file_t *file);
name_t *power_names_find(const names_t *names, const char *text);
void power_directory_change(file_t *directory, const change_t *change);
void power_directory_sync(file_t *directory);
void power_cut(uint64_t seed);

#endif
