// SPDX-License-Identifier: Apache-2.0
// What the tests of a store with a disk share: a world whose first store is looked at, and a folder for
// its disk, made and removed with each test.
#ifndef TESTS_CLIENT_DISK_WORLD_H
#define TESTS_CLIENT_DISK_WORLD_H

#include "../common/temporary_folder.h"
#include "world.h"

#include "kvstore/store.h"

static world_t world;
static char directory[TEMPORARY_FOLDER_BYTES];

// Errors are what these tests make: at most the level `shown` is printed.
static inline void disk_world_begin(as_log_level_t shown)
{
    temporary_folder_make(directory);
    as_log_set_level(shown);
}

static inline int disk_world_end(void **state)
{
    (void)state;
    world_close(&world);
    as_log_set_level(AS_LOG_INFO);
    return temporary_folder_remove(directory);
}

static inline world_options_t disk_world_options(uint64_t disk_bytes)
{
    world_options_t options = world_defaults(false);
    options.store.disk_directory = directory;
    options.store.disk_bytes = disk_bytes;
    return options;
}

static inline kvs_stat_t stat_now(void)
{
    kvs_stat_t stat;
    kvs_store_stat(world.stores[0], &stat);
    return stat;
}

// Another store on the same directory, with nothing in RAM.
static inline void start_again(const world_options_t *options)
{
    kvs_store_free(world.stores[0]);
    assert_int_equal(world_store_start(&world, 0, &options->store), AS_OK);
    world_tell_stores(&world);
}

#endif
