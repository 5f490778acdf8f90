// SPDX-License-Identifier: Apache-2.0
// A store node: blocks of KV cache in a bounded, registered pool of RAM, named by content.
//
// Life of a block. An entry of the index is in one state, and only index.c moves it:
//
//           kvs_index_reserve       kvs_index_fill        kvs_index_seal
//   ABSENT -------------------> RESERVED ---------> FILLING ----------> SEALED
//      ^                           |                   |                  |
//      |                           |  kvs_index_doom   |                  | kvs_index_doom
//      |                           +---------+---------+                  | (evict, drop)
//      |   last unpin or unlease             v                            |
//      +---------------------------------- DYING <------------------------+
//
//   RESERVED  its memory is allocated and its key is taken, but nobody can find it. Held by one put,
//             or by its promotion from disk.
//   FILLING   its bytes are written: the only state in which they change. Held by the same.
//   SEALED    whole and checked. Found by LOCATE; its bytes never change again.
//   DYING     unknown to the index, so that its key is free for another; its memory waits for the
//             last pin or lease.
//
// A pin (a count) or a lease (a count with a deadline, kept in lease.c) is needed to touch bytes:
// the network pins what it sends or receives, a remote reader holds a lease. DYING waits for both
// and is freed with the last of them. A seal is refused when the bytes do not have the promised
// checksums (put.c); a put whose bytes are not here by its deadline, or whose connection ends,
// is doomed.
//
// Threads: a store lives on one loop; all calls are on its thread. Limits: bytes (`ram_bytes`),
// blocks (`blocks_max`), leases, reservations, reads, locates and connections are all bounded; over
// a bound the peer is told BUSY.
#ifndef KVS_KVSTORE_H
#define KVS_KVSTORE_H

#include <stdbool.h>
#include "common/block.h"
#include "common/net.h"
#include "common/rpc.h"
#include "kvstore/account.h"

typedef struct kvs_store kvs_store_t;
typedef struct kvs_report kvs_report_t;

typedef struct kvs_store_options {
    as_loop_t *loop;
    // Makes the net on which the store listens: real or simulated.
    as_status_t (*net_alloc)(void *ctx, as_loop_t *loop, const as_net_handlers_t *handlers,
                             as_net_t **net_p);
    void *net_ctx;
    void *peer_net_ctx;       // of the net on which it connects to other stores
    const char *data_address; // "host:port", port 0 picks one
    uint8_t instance_id[16];  // names the node; its first 8 bytes, little-endian, are the node id.
                              // All 0: random
    uint64_t incarnation;     // grows with each start of the same instance
    size_t ram_bytes;         // the pool, checksums included
    uint32_t blocks_max;      // 0: from ram_bytes, one for each 16 KiB, between 1024 and 1 Mi
    uint32_t leases_max;
    uint32_t reservations_max;
    uint32_t reads_max; // answers to READ being sent, of all connections
    uint32_t connections_max;
    uint64_t lease_us_max;
    uint64_t reservation_us;
    uint64_t
        stall_us; // a peer that takes and sends nothing of what is under way loses its connection
    uint32_t evict_high_percent;     // above this share of the pool eviction begins
    uint32_t evict_low_percent;      // and at this it ends
    uint32_t pin_percent;            // of the pool that hard pins may have
    uint64_t quota_bytes;            // of the pool, of each namespace; 0: no quota
    const char *quota_file;          // of owners and tenants (quota_file.h); NULL: none. Must stay
    const char *disk_directory;      // of the disk tier; NULL: RAM only. Needs a loop in real time
    uint64_t disk_bytes;             // of its files, at most
    uint64_t disk_queue_bytes;       // waiting to be written; beyond it new blocks stay in RAM only
    uint64_t scrub_bytes_per_second; // checked by the scrubber by itself; 0: only when asked
    uint64_t scrub_pause_us;         // between two passes of its own
    // File of the cluster's keys (common/cluster_key.h), read again when it changes: a connection
    // needs a token. NULL: everybody may do everything.
    const char *cluster_key;
    uint64_t
        repair_bytes_per_second;   // sent to give blocks another copy when a store is gone; 0: none
    uint64_t repair_wait_us;       // from when it is gone
    uint64_t drain_us;             // that a drain may take, where it is not said; 0: as usual
    uint32_t attend_threads;       // that compute attention for clients; 0: none is computed
    void (*on_drained)(void *ctx); // a drain is over; may be NULL
    void *drained_ctx;
} kvs_store_options_t;

typedef struct kvs_stat {
    uint64_t ram_bytes_used, ram_bytes_max;
    uint64_t blocks;       // sealed
    uint64_t dying;        // condemned, waiting for their last pin or lease
    uint64_t leases, pins; // pins: sum over all entries
    uint64_t reservations;
    uint64_t hits, misses; // keys located
    uint64_t bytes_read;   // sent; one-sided readers do not tell
    uint64_t bytes_written;
    uint64_t evictions;              // for want of room
    uint64_t quota_evictions;        // for the quota of their owner
    uint64_t expired;                // at the end of their time
    uint64_t purged;                 // with their namespace, also on disk
    uint64_t ghost_hits;             // blocks that came back soon after their eviction
    uint64_t soft_bytes, hard_bytes; // pinned by operators
    uint64_t promotions;             // blocks brought back from disk
    uint64_t disk_skipped;           // blocks that were not queued for disk
    uint64_t disk_blocks, disk_bytes_used, disk_bytes_max;
    bool disk_read_only;
    uint64_t checksum_failures; // puts refused
    uint64_t conflicts;         // puts of a key that is there with other bytes
    uint64_t denied;            // connections and questions, for their token
    uint64_t connections;
    uint64_t scrub_passes, scrub_bytes;
    uint64_t scrub_bad_ram, scrub_bad_disk;   // blocks that the scrubber found and dropped
    uint64_t scrub_restored;                  // of those in RAM: brought back from disk
    uint64_t repaired_blocks, repaired_bytes; // given another copy
    uint64_t repair_pending;                  // blocks that a repair has yet to ask about
    double fragmentation; // 1 - largest free run / free bytes; 0 when nothing is free
} kvs_stat_t;

// A pass of the scrubber (scrub.c), running or the last one.
typedef struct kvs_scrub_stat {
    uint64_t pass; // 1 is the first; 0: none yet
    bool running;
    uint64_t took_us;
    uint64_t bytes; // that there were to check when it began, about
    uint64_t ram_blocks, ram_bytes, disk_blocks, disk_bytes; // checked so far
    uint64_t bad_ram_blocks, bad_disk_blocks;
    uint64_t restored_blocks; // from disk
} kvs_scrub_stat_t;

#define KVS_SCRUB_RATE_USUAL (32u << 20) // bytes per second

#define KVS_DRAIN_US_USUAL 30000000u

// A store that hands its blocks to others (drain.c).
typedef struct kvs_drain_stat {
    bool running, is_over; // both false: it was not asked to
    uint64_t took_us;
    uint64_t blocks, bytes; // to hand over, when it began
    uint64_t handed_blocks, handed_bytes;
    uint64_t kept_blocks;                // of which other stores had copies enough
    uint64_t on_disk_blocks;             // once it is over: of the others, those on its own disk
    uint64_t pinned_blocks, handed_pins; // by operators; pinned there now
} kvs_drain_stat_t;

// What became of a block: for the scheduler's directory, by the key that it has there (as_key_scope).
typedef enum kvs_event { KVS_BLOCK_ADDED, KVS_BLOCK_REMOVED } kvs_event_t;
typedef void (*kvs_event_fn)(void *ctx, kvs_event_t event, const as_key_t *key);

// Fills the defaults (everything but loop, net and ram_bytes).
void kvs_store_options_init(kvs_store_options_t *options);
// Starts serving on data_address. AS_ERR_CONFIG names what is wrong with the options in the log.
as_status_t kvs_store_alloc(const kvs_store_options_t *options, kvs_store_t **store_p) AS_MUST_USE;
// Ends every connection, lease and reservation. NULL is fine.
void kvs_store_free(kvs_store_t *store);
// Reads the store's files again, on its loop: what is wrong with one is logged, and leaves what was in
// force.
void kvs_store_reload(kvs_store_t *store);
const char *kvs_store_address(const kvs_store_t *store); // of the data port
uint64_t kvs_store_node_id(const kvs_store_t *store);
void kvs_store_stat(const kvs_store_t *store, kvs_stat_t *stat_p);
void kvs_store_gauge(kvs_store_t *store); // sets the gauges of its metrics
// One listener; NULL function takes it away. Called from inside the store's work: it must not call
// back into it.
void kvs_store_set_listener(kvs_store_t *store, kvs_event_fn fn, void *ctx);
// Forgets one block (false: there is none), or all; returns how many. For a while it is not taken as a
// copy from another store, there or not.
bool kvs_store_drop(kvs_store_t *store, const as_key_t *key, uint32_t tenant);
uint64_t kvs_store_drop_all(kvs_store_t *store);
// Forgets all blocks of a namespace, in RAM and on disk; returns how many. One that is being written
// now comes all the same.
uint64_t kvs_store_purge(kvs_store_t *store, const kvs_owner_t *owner);

// An operator's pin. HARD: never evicted. SOFT: evicted after everything that has none.
typedef enum kvs_guard { KVS_GUARD_NONE, KVS_GUARD_SOFT, KVS_GUARD_HARD } kvs_guard_t;
// Pins a block in RAM, or takes its pin away; until the store ends. AS_ERR_NOT_FOUND; AS_ERR_LIMIT:
// hard pins have their share of the pool.
as_status_t kvs_store_pin(kvs_store_t *store, const as_key_t *key, uint32_t tenant,
                          kvs_guard_t guard) AS_MUST_USE;
uint64_t kvs_store_unpin_all(kvs_store_t *store); // returns how many
// What a namespace may have of the pool; SIZE_MAX: the default again. AS_ERR_BUSY: too many owners.
as_status_t kvs_store_set_quota(kvs_store_t *store, const kvs_owner_t *owner,
                                size_t bytes) AS_MUST_USE;
// What all namespaces of a tenant may have together; SIZE_MAX: no quota. AS_ERR_BUSY: too many tenants.
as_status_t kvs_store_set_total(kvs_store_t *store, uint32_t tenant, size_t bytes) AS_MUST_USE;
// Begins a pass over all blocks now, from the start; at 0 bytes per second at the usual rate.
void kvs_store_scrub(kvs_store_t *store, uint64_t bytes_per_second);
void kvs_store_scrub_stat(const kvs_store_t *store, kvs_scrub_stat_t *stat_p);

// Takes no new blocks, hands those that it has to other stores, for at most so long, and calls
// on_drained, for the owner to end it. Reads are served all the time.
void kvs_store_drain(kvs_store_t *store, uint64_t timeout_us);
// The same, and of what is on its disk only: it will not be started again. A drain without, which has
// begun, goes on with it, for so long from now. False: one is over that has left it there.
bool kvs_store_drain_disk(kvs_store_t *store, uint64_t timeout_us) AS_MUST_USE;
void kvs_store_drain_stat(kvs_store_t *store, kvs_drain_stat_t *stat_p);

// The admin service (proto/kvstore.proto), for as_rpc_server_add; lives as long as the store.
ProtobufCService *kvs_admin_service(kvs_store_t *store);

// Tells the scheduler about the store (report.c): joins, with retries and backoff, sends heartbeats
// and block events. The store serves whether or not a scheduler answers. Free the rpc client first
// (which ends the calls), then this, then the store.
typedef struct kvs_report_options {
    kvs_store_t *store;
    as_rpc_client_t *scheduler;             // of the service Scheduler
    const char *name;                       // for people; may be NULL
    const char *cluster_id;                 // the scheduler of another refuses it; NULL: any
    const char *data_address;               // as others reach it; NULL: kvs_store_address
    const char *rpc_address, *http_address; // may be NULL
    uint64_t call_timeout_us;               // 0: 2 s
    uint64_t retry_us_min, retry_us_max;    // backoff of joins; 0: 100 ms and 5 s
} kvs_report_options_t;

as_status_t kvs_report_alloc(const kvs_report_options_t *options,
                             kvs_report_t **report_p) AS_MUST_USE;
void kvs_report_free(kvs_report_t *report); // NULL is fine
// Joined, all blocks told and nothing waits to be told.
bool kvs_report_is_settled(const kvs_report_t *report);

#endif
