// SPDX-License-Identifier: Apache-2.0
// What RocksDB's table files say of themselves, looked at before RocksDB believes it.
#ifndef KVS_DISK_FOOTERS_H
#define KVS_DISK_FOOTERS_H

#include <stdbool.h>
#include <stdint.h>

// By which the catalog writes its tables.
#define KVS_TABLE_CHECKSUM 4 // XXH3
#define KVS_TABLE_VERSION  5 // of their format

// Puts each table file of the catalog's directory aside (as NAME.damaged) whose footer names another checksum or
// version than these; RocksDB misses it then, and its repair goes on without. Returns how many.
uint32_t kvs_footers_check(const char *catalog);
// The last 53 bytes of a table file.
bool kvs_footer_is_sound(const uint8_t footer[53]);

#endif
