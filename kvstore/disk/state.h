// SPDX-License-Identifier: Apache-2.0
// The disk tier's own state, shared by the files of this folder. Not for others: see disk.h.
#ifndef KVS_DISK_STATE_H
#define KVS_DISK_STATE_H

#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "kvstore/disk/worker.h"

#define KVS_DISK_NONE UINT32_MAX

typedef struct kvs_entry {
    kvs_record_t record;
    kvs_segment_t *segment; // NULL: unused
    bool writing;
    bool durable;        // a power cut cannot lose it
    kvs_job_t *waiting;  // while it is written: SYNCs of it
    bool unwanted;       // removed while it was written: it goes when it is
    uint32_t key_next;   // same bucket; next unused one
    uint32_t prev, next; // of the segment
} kvs_entry_t;

struct kvs_disk {
    kvs_disk_options_t options;
    kvs_files_t *files;
    kvs_worker_t *writer, *reader;
    kvs_entry_t *entries;
    uint32_t *buckets; // as many as entries
    uint32_t entries_max, unused;
    kvs_segment_t *segments; // slots
    uint32_t slots_last;     // segments_max at the start: one more may be going
    uint32_t segments_max, segment_count;
    uint32_t files_max; // segment files that a full disk had room for; 0: it was never full
    kvs_segment_t *oldest, *newest; // newest: written now
    uint32_t last_number;
    kvs_job_t *jobs; // out
    uint32_t reads;
    uint32_t unwanted; // entries: removed while they are written
    bool unforgotten;  // a removed block is still in the catalog
    bool forgot_late;  // one was taken out of it by kvs_disk_free
    uint32_t failures_in_a_row;
    kvs_disk_stat_t stat;
};

// table.c: entries by key, and by segment.
as_status_t kvs_table_init(kvs_disk_t *disk) AS_MUST_USE;
void kvs_table_free(kvs_disk_t *disk);
uint32_t kvs_table_find(const kvs_disk_t *disk, const as_key_t *key,
                        kvs_realm_t realm); // also WRITING
as_status_t kvs_table_add(kvs_disk_t *disk, const kvs_record_t *record, kvs_segment_t *segment,
                          uint32_t *at_p) AS_MUST_USE;
void kvs_table_found(kvs_disk_t *disk, uint32_t at); // it can be found from here
void kvs_table_remove(kvs_disk_t *disk, uint32_t at);

// segments.c: the files in their order.
kvs_segment_t *kvs_segment_begin(kvs_disk_t *disk, uint32_t number); // NULL: no slot
void kvs_segment_link(kvs_disk_t *disk, kvs_segment_t *segment);     // as the newest
void kvs_segment_unlink(kvs_disk_t *disk, kvs_segment_t *segment);
as_status_t kvs_segment_for(kvs_disk_t *disk, size_t bytes, kvs_segment_t **segment_p) AS_MUST_USE;
void kvs_segment_broke(kvs_disk_t *disk, kvs_segment_t *segment);
bool kvs_segments_make_room(kvs_disk_t *disk); // the disk is full; false: nothing can go
void kvs_segment_remove_if_unread(kvs_disk_t *disk, kvs_segment_t *segment);

// disk.c
kvs_job_t *kvs_disk_job(kvs_disk_t *disk, kvs_job_kind_t kind); // NULL: no memory
// A READ of an entry, for the reader; NULL: no more now.
kvs_job_t *kvs_disk_read_job(kvs_disk_t *disk, uint32_t at);
void kvs_disk_give_read(kvs_disk_t *disk, kvs_job_t *job);
void kvs_disk_job_done(void *job);

#endif
