// SPDX-License-Identifier: Apache-2.0
// The store's own state, shared by the files of this folder that serve messages. Not for others:
// see kvstore.h.
#ifndef KVS_STORE_H
#define KVS_STORE_H

#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "common/net.h"
#include "kvstore/index.h"
#include "kvstore/kvstore.h"
#include "kvstore/lease.h"
#include "proto/scheduler.pb-c.h"
#include "proto/wire.h"

#define KVS_STORE_MAGIC   0x65726f74732e736bull // "ks.store"
#define KVS_CONN_ASKS_MAX 256u // asks in flight on one connection, as its client is told
// Asks being sent on one connection: an answer that the client has, and the network here has not
// reported as sent, counts here and no longer there.
#define KVS_CONN_READS_MAX (2 * KVS_CONN_ASKS_MAX)
#define KVS_SCARCE_STALL_US                                                                        \
    1000000u // a connection that takes nothing keeps reads that others lack so long
#define KVS_CONN_WINDOW_BYTES                                                                      \
    (2u                                                                                            \
     << 20) // of a connection, handed to the network and not known to be sent; one ask may exceed it
#define KVS_BEHINDS_MAX     4096u    // blocks waiting to be written to disk
#define KVS_DISK_WAIT_US    5000000u // a durable put waits so long for the disk
#define KVS_SWEEP_US        50000u
#define KVS_STAGE_BYTES_MAX ((uint64_t)256 << 20) // of a client's memory
#define KVS_LEASE_GRACE_US  20000u // a lease is kept this much longer than the reader was told
#define KVS_VERIFY_BYTES_MAX                                                                       \
    (4u << 20) // checksummed in one turn of the loop, so that it stays live

typedef enum kvs_metric {
    KVS_METRIC_HITS,
    KVS_METRIC_MISSES,
    KVS_METRIC_BYTES_READ,
    KVS_METRIC_BYTES_WRITTEN,
    KVS_METRIC_EVICTIONS,
    KVS_METRIC_EVICTIONS_QUOTA,
    KVS_METRIC_EVICTIONS_PURGE,
    KVS_METRIC_EVICTIONS_TTL,
    KVS_METRIC_GHOST_HITS,
    KVS_METRIC_SOFT_BYTES,
    KVS_METRIC_HARD_BYTES,
    KVS_METRIC_CHECKSUM_FAILURES,
    KVS_METRIC_CONFLICTS,
    KVS_METRIC_DENIED_TOKEN,
    KVS_METRIC_DENIED_KEY,
    KVS_METRIC_DENIED_FORGED,
    KVS_METRIC_DENIED_EXPIRED,
    KVS_METRIC_DENIED_RIGHT,
    KVS_METRIC_QUOTA_ROWS,
    KVS_METRIC_QUOTAS_TAKEN,
    KVS_METRIC_QUOTAS_REFUSED,
    KVS_METRIC_BUSY,
    KVS_METRIC_PROTOCOL_ERRORS,
    KVS_METRIC_REFUSED,
    KVS_METRIC_STALLS,
    KVS_METRIC_BLOCKS,
    KVS_METRIC_USED_BYTES,
    KVS_METRIC_POOL_BYTES,
    KVS_METRIC_POOL_PAGE_BYTES,
    KVS_METRIC_LEASES,
    KVS_METRIC_RESERVATIONS,
    KVS_METRIC_CONNECTIONS,
    KVS_METRIC_PROMOTIONS,
    KVS_METRIC_DISK_SKIPPED,
    KVS_METRIC_DISK_HUNG,
    KVS_METRIC_DISK_BLOCKS,
    KVS_METRIC_DISK_USED_BYTES,
    KVS_METRIC_DISK_BYTES,
    KVS_METRIC_DISK_QUEUE_BYTES,
    KVS_METRIC_DISK_FAILURES,
    KVS_METRIC_DISK_CORRUPT,
    KVS_METRIC_DISK_CATALOG_FAULTS,
    KVS_METRIC_DISK_CATALOG_MEMORY,
    KVS_METRIC_DISK_DROPPED,
    KVS_METRIC_DISK_READ_ONLY,
    KVS_METRIC_SCRUB_PASSES,
    KVS_METRIC_SCRUB_BYTES,
    KVS_METRIC_SCRUB_BAD_RAM,
    KVS_METRIC_SCRUB_BAD_DISK,
    KVS_METRIC_SCRUB_RESTORED,
    KVS_METRIC_DRAINING,
    KVS_METRIC_DRAINED_BLOCKS,
    KVS_METRIC_DRAINED_BYTES,
    KVS_METRIC_REPAIRED_BLOCKS,
    KVS_METRIC_REPAIRED_BYTES,
    KVS_METRIC_REPAIR_PENDING,
    KVS_METRIC_ATTENDS,
    KVS_METRIC_ATTENDS_REFUSED,
    KVS_METRIC_ATTENDS_OUT,
    KVS_METRIC_ATTEND_PAGES,
    KVS_METRIC_ATTEND_BYTES,
    KVS_METRIC_ATTEND_US,
    KVS_METRIC_PUT_US,
    KVS_METRIC_COUNT
} kvs_metric_t;
extern as_metric_t kvs_metrics[KVS_METRIC_COUNT];

struct kvs_read;

// What a connection has asked for and was not handed to the network yet, by class (read.c).
typedef struct kvs_turns {
    struct kvs_read *first[AS_WIRE_CLASS_COUNT], *last[AS_WIRE_CLASS_COUNT];
    int64_t credit[AS_WIRE_CLASS_COUNT]; // bytes that the class may still send in its turn
    uint32_t turn;                       // whose it is
    size_t sending_bytes;                // handed to the network and not known to be sent
} kvs_turns_t;

// One client. Lives until it is closed and nothing that refers to it is under way.
typedef struct kvs_conn {
    kvs_store_t *store;
    as_conn_t *net; // NULL once closed
    struct kvs_conn *prev, *next;
    bool greeted; // HELLO came, and it was admitted
    bool foreign; // it speaks another version, and was told ours
    // of its token (admit.c)
    uint32_t tenant, rights, key_id;
    uint64_t until_us, accepted_us;
    uint32_t ops;                      // callbacks that will still come with this connection
    uint32_t awaited;                  // of these, those that its peer has to do something for
    uint64_t progress_us;              // when it last took something, or the first was begun
    uint32_t reads;                    // answers to READ, waiting or being sent
    uint32_t locates, locates_waiting; // LOCATEs that it has here; of them those that wait
    uint32_t answers;                  // to LOCATEs, being sent
    uint32_t attends;                  // ATTENDs that it has here
    kvs_turns_t turns;
    kvs_lease_owner_t leases;
    uint32_t first_put; // of put.c
    uint32_t puts;      // too: those under way
    bool share_asked;
    const uint8_t *stage; // memory of the client's, mapped; NULL: none
    size_t stage_bytes, stage_mapped;
} kvs_conn_t;

typedef struct kvs_locates kvs_locates_t;
typedef struct kvs_attends kvs_attends_t;
typedef struct kvs_promotions kvs_promotions_t;
typedef struct kvs_puts kvs_puts_t;
typedef struct kvs_tier kvs_tier_t;
typedef struct kvs_scrub kvs_scrub_t;
typedef struct kvs_suspects kvs_suspects_t;
typedef struct kvs_admit kvs_admit_t;
typedef struct kvs_quotas kvs_quotas_t;
typedef struct kvs_peers kvs_peers_t;
typedef struct kvs_drain kvs_drain_t;
typedef struct kvs_repair kvs_repair_t;
typedef struct kvs_drops kvs_drops_t;

struct kvs_store {
    uint64_t magic;
    kvs_store_options_t options;
    uint64_t node_id;
    as_net_t *net;
    void *memory;
    size_t page_bytes; // of it
    as_net_mem_t *mem;
    kvs_pool_t *pool;
    kvs_index_t *index;
    kvs_leases_t *leases;
    kvs_puts_t *puts;
    kvs_tier_t *tier; // NULL: RAM only
    kvs_scrub_t *scrub;
    kvs_suspects_t *suspects;
    kvs_admit_t *admit;   // NULL: everybody is admitted
    kvs_quotas_t *quotas; // NULL: no --quota-file
    kvs_peers_t *peers;
    kvs_drain_t *drain;
    kvs_repair_t *repair;
    kvs_drops_t *drops;
    kvs_report_t *report; // NULL: no scheduler is told
    kvs_event_fn listener;
    void *listener_ctx;
    as_pool_t *reads;
    kvs_locates_t *locates;
    kvs_promotions_t *promotions; // NULL: RAM only
    kvs_attends_t *attends;       // NULL: no attention is computed here
    kvs_conn_t *conns;
    uint32_t conn_count;
    as_timer_t *sweep;
    bool sweeping;
    as_task_t evict;
    size_t evict_goal_bytes;
    uint64_t evict_vain_us; // when nothing could go for a block to be put
    as_task_t quota_evict;
    uint64_t epoch_us; // what the store's clock is ahead of the loop's
    uint32_t expiry_cursor, expiry_disk_cursor;
    as_log_due_t conflict_due, soft_due;
    kvs_stat_t counted; // the counters of kvs_stat_t; the gauges are asked for
    struct kvs_admin *admin;
};

// store.c
void kvs_store_watch(
    kvs_store_t *store); // there is a lease or reservation: sweep until there is none
void kvs_store_evict_soon(kvs_store_t *store,
                          size_t wanted_bytes); // when above the high mark, or for wanted_bytes
// kvs_index_reserve for a block that comes, with room made at once where there is none, as much as one turn
// may: not of its parents, since it is of no use without them, unless there is a disk.
as_status_t kvs_store_reserve(kvs_store_t *store, const kvs_spec_t *spec,
                              kvs_block_t **block_p) AS_MUST_USE;
// Whether with so many bytes more it is fuller than eviction leaves it.
bool kvs_store_is_full(const kvs_store_t *store, size_t bytes);
static inline void kvs_count(uint64_t *counter, kvs_metric_t metric, uint64_t amount)
{
    *counter += amount;
    as_metric_add(&kvs_metrics[metric], (int64_t)amount);
}

// admit.c: who may do what.
as_status_t kvs_admit_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_admit_free(kvs_store_t *store);
void kvs_admit_reload(kvs_store_t *store); // of the key file
// AS_ERR_DENIED: its token does not do, which was counted and logged. AS_ERR_INVALID: the protocol
// forbids it.
bool kvs_admit_knock(void *store, const void *token, size_t bytes); // before it is connected
as_status_t kvs_admit_hello(kvs_conn_t *conn, const as_wire_hello_t *hello) AS_MUST_USE;
// Whether its token still holds and has all these rights. AS_ERR_DENIED: it has not;
// AS_ERR_PEER_LOST: it no longer holds, the connection is closed and may be gone.
as_status_t kvs_admit_ask(kvs_conn_t *conn, uint32_t rights) AS_MUST_USE;
// Whose blocks a question is about, which names `named`. False: it may not name one.
bool kvs_admit_tenant(const kvs_conn_t *conn, uint32_t named, uint32_t *tenant_p);
// A token by which other stores admit this one as a peer. False: this one asks for none.
bool kvs_admit_peer(kvs_store_t *store, uint64_t seconds, as_token_sealed_t *token_p);
uint32_t kvs_admit_signer(const kvs_store_t *store); // id of the key that signs them; 0: none

// serve.c: connections and leases.
void kvs_serve_init(kvs_store_t *store, as_net_handlers_t *handlers_p);
uint64_t kvs_lease_time_us(const kvs_store_t *store, uint32_t lease_ms);
uint64_t kvs_lease_grace_us(uint64_t lease_us);
void kvs_conn_close(
    kvs_conn_t *conn); // ends its leases and reservations; the pointer may be dead after it
// Closes those whose peers take nothing for too long; whether something is under way.
bool kvs_conns_sweep(kvs_store_t *store, uint64_t now_us);
void kvs_conn_hold(kvs_conn_t *conn); // a callback will come with it
void kvs_conn_drop(kvs_conn_t *conn);
// Its peer has to take what was handed to the network for it, or to send what it announced; it has, or need
// no longer. `took`: a sign that it takes what it asks for, which nothing that it sends is.
void kvs_conn_await(kvs_conn_t *conn);
void kvs_conn_awaited(kvs_conn_t *conn, bool took);
void kvs_conn_offend(kvs_conn_t *conn, const char *what); // broke the protocol: closed
void kvs_conn_reply(kvs_conn_t *conn, const void *header, size_t bytes);

// read.c
as_status_t kvs_reads_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_read_serve(kvs_conn_t *conn, const as_wire_read_t *read);
bool kvs_reads_are_scarce(const kvs_store_t *store);           // few are left to all
void kvs_reads_end_conn(kvs_conn_t *conn);                     // those that wait
void kvs_reads_end_lease(kvs_conn_t *conn, uint64_t lease_id); // of those, of one fetch: it is over

// attend.c: attention over leased blocks.
as_status_t kvs_attends_alloc(kvs_store_t *store) AS_MUST_USE; // none with 0 threads
void kvs_attends_stop(kvs_store_t *store);                     // all connections are closed
void kvs_attends_free(kvs_store_t *store);                     // after the net
void kvs_attend_serve(kvs_conn_t *conn, const as_wire_attend_t *ask, as_net_msg_t *msg);
void kvs_attends_end_conn(kvs_conn_t *conn);
void kvs_attends_end_lease(kvs_conn_t *conn, uint64_t lease_id);
// Refuses those that have waited long enough; whether others still wait.
bool kvs_attends_sweep(kvs_store_t *store, uint64_t now_us);

// put.c: the write path.
as_status_t kvs_puts_alloc(kvs_store_t *store, uint32_t max, kvs_puts_t **puts_p) AS_MUST_USE;
void kvs_puts_free(kvs_puts_t *puts); // NULL is fine
uint32_t kvs_puts_count(const kvs_puts_t *puts);
void kvs_puts_sweep(kvs_puts_t *puts, uint64_t now_us);
void kvs_puts_end_conn(kvs_conn_t *conn);
void kvs_put_serve(kvs_conn_t *conn, const as_wire_put_t *ask, uint32_t tenant, as_net_msg_t *msg);
// Of a put whose bytes are still coming in pieces; of others it does nothing.
void kvs_put_give_up(kvs_conn_t *conn, uint64_t request, as_status_t status);
void kvs_put_piece(kvs_conn_t *conn, const as_wire_piece_t *piece, const as_net_msg_t *msg);

// stage.c: the memory that a client on this host puts from.
void kvs_stage_share(kvs_conn_t *conn, const as_wire_share_t *ask);
// AS_ERR_INVALID: not all of it is there.
as_status_t kvs_stage_find(const kvs_conn_t *conn, uint64_t offset, size_t bytes,
                           const uint8_t **source_p) AS_MUST_USE;
void kvs_stage_end(kvs_conn_t *conn);

// Ends the copies under way of what was dropped (drops.c).
void kvs_puts_end_dropped(kvs_puts_t *puts);

// drops.c: what was dropped lately, and is not taken as a copy for a while.
as_status_t kvs_drops_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_drops_free(kvs_store_t *store);
// What is dropped now: blocks of a key, of an owner, all of them. Ends copies of them on their way here.
void kvs_drops_key(kvs_store_t *store, const as_key_t *key, uint32_t tenant);
void kvs_drops_owner(kvs_store_t *store, const kvs_owner_t *owner);
void kvs_drops_all(kvs_store_t *store);
bool kvs_drops_has(kvs_store_t *store, const kvs_spec_t *spec);
void kvs_drops_forget(kvs_store_t *store, const kvs_spec_t *spec); // a worker puts it again

// copies.c: whether a copy from another store is taken. AS_ERR_NOT_FOUND: it was dropped lately;
// AS_ERR_LIMIT: it was evicted lately. `flags` of PUT.
as_status_t kvs_copy_check(kvs_store_t *store, const kvs_spec_t *spec, uint32_t flags) AS_MUST_USE;
void kvs_copy_seal(kvs_store_t *store, kvs_block_t *block, uint32_t flags);
void kvs_copy_pin(kvs_store_t *store, kvs_block_t *block, uint32_t flags); // it was here

// conflict.c: what a PUT with these checksums meets. Whether its figures are within all limits.
as_status_t kvs_put_check(const as_wire_put_t *ask) AS_MUST_USE;
// AS_OK: nobody has the key, and it may be taken.
as_status_t kvs_put_meets(kvs_store_t *store, const kvs_spec_t *spec, uint32_t digest,
                          uint32_t flags) AS_MUST_USE;
// The digest that another writer of the block promised.
bool kvs_puts_digest(const kvs_puts_t *puts, const kvs_spec_t *spec, uint32_t *digest_p);

// quota_file.c: quotas from a file. AS_ERR_CONFIG: the file is wrong, which was logged.
as_status_t kvs_quotas_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_quotas_free(kvs_store_t *store);
void kvs_quotas_reload(kvs_store_t *store);

// limits.c: pins, quotas of owners. AS_ERR_LIMIT: hard pins have their share of the pool.
as_status_t kvs_pin(kvs_store_t *store, kvs_block_t *block, kvs_guard_t guard) AS_MUST_USE;
void kvs_quota_on_evict(void *store);
// Whether a block fits into its owner's quota; evicts for it when not. AS_ERR_LIMIT: it never does.
// AS_ERR_BUSY: not now, or there are too many owners, for which nobody is evicted.
as_status_t kvs_quota_room(kvs_store_t *store, const kvs_spec_t *spec) AS_MUST_USE;
void kvs_quota_watch(kvs_store_t *store, const kvs_block_t *block); // it was reserved

// expiry.c: blocks with a time to live.
void kvs_expiry_init(kvs_store_t *store);
uint64_t kvs_expiry_at(const kvs_store_t *store, uint32_t ttl_ms); // 0 is never
uint64_t kvs_expiry_left_us(const kvs_store_t *store, uint64_t expires_us);
// Drops the block where its time is over: before anybody looks for it.
void kvs_expire_key(kvs_store_t *store, const as_key_t *key, kvs_realm_t realm);
bool kvs_expire_some(kvs_store_t *store); // a step of the walk; whether any block expires

// tier.c: between RAM and disk.
struct kvs_disk_stat;
typedef void (*kvs_tier_done_fn)(void *ctx, as_status_t status);
as_status_t kvs_tier_alloc(kvs_store_t *store) AS_MUST_USE; // none without a directory
void kvs_tier_free(kvs_store_t *store);
void kvs_tier_on_index_event(void *store, kvs_event_t event, const kvs_spec_t *spec);
void kvs_tier_write_behind(kvs_store_t *store, kvs_block_t *block);
// `done` once a power cut can no longer lose the block. AS_ERR_EXISTS: it cannot now;
// AS_ERR_UNSUPPORTED: there is no disk.
as_status_t kvs_tier_write_durable(kvs_store_t *store, kvs_block_t *block, kvs_tier_done_fn done,
                                   void *ctx) AS_MUST_USE;
// The same of a block that is in RAM or on disk. AS_ERR_NOT_FOUND: it is in neither.
as_status_t kvs_tier_affirm(kvs_store_t *store, const kvs_spec_t *spec, kvs_tier_done_fn done,
                            void *ctx) AS_MUST_USE;
bool kvs_tier_digest(const kvs_store_t *store, const kvs_spec_t *spec, uint32_t *digest_p);
bool kvs_tier_remove(kvs_store_t *store, const as_key_t *key, kvs_realm_t realm);
uint64_t kvs_tier_remove_all(kvs_store_t *store);
// `done` once what was removed until now cannot be there again. AS_ERR_UNSUPPORTED: there is no disk.
as_status_t kvs_tier_settle(kvs_store_t *store, kvs_tier_done_fn done, void *ctx) AS_MUST_USE;
// On disk, or NULL. Valid until the disk is asked anything else.
const kvs_spec_t *kvs_tier_find(const kvs_store_t *store, const as_key_t *key, kvs_realm_t realm);
const kvs_spec_t *kvs_tier_next(const kvs_store_t *store, uint32_t *cursor_p); // as kvs_disk_next
void kvs_tier_stat(const kvs_store_t *store, struct kvs_disk_stat *stat_p);
struct kvs_disk *kvs_tier_disk(const kvs_store_t *store); // NULL: RAM only
// promote.c: brings back from disk what went from RAM since it was bad, if it is there; counted when it
// is here.
void kvs_tier_restore(kvs_store_t *store, const kvs_spec_t *spec);

// scrub.c
as_status_t kvs_scrub_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_scrub_stop(kvs_store_t *store); // before the disk ends
void kvs_scrub_free(kvs_store_t *store); // after it
void kvs_scrub_restored(kvs_store_t *store);
void kvs_scrub_bad(kvs_store_t *store, kvs_block_t *block); // drops it, and mends it from disk

// suspects.c
as_status_t kvs_suspects_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_suspects_free(kvs_store_t *store);
void kvs_suspect(kvs_store_t *store, const kvs_block_t *block); // that is put again

// peers.c: the other stores.
#define KVS_PUSHES_MAX 16u // blocks being handed over
as_status_t kvs_peers_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_peers_free(kvs_store_t *store);
// As the scheduler tells.
void kvs_peers_set(kvs_store_t *store, Assay__StoreNode *const *nodes, size_t count);
void kvs_peers_set_replicas(kvs_store_t *store, uint32_t replicas);
uint32_t kvs_peers_replicas(const kvs_store_t *store);
uint32_t kvs_peers_others(const kvs_store_t *store); // where blocks are placed, but for this one
bool kvs_peers_doubtful(const kvs_store_t *store);   // one may be gone, or not
bool kvs_peers_all_drain(
    const kvs_store_t *store); // there are others, and no block is placed there
// What this store is for the copies of a block.
typedef struct kvs_share {
    uint32_t rank;   // 0: the best; at least the number of stores where nothing is placed here
    uint32_t copies; // that other stores should have
} kvs_share_t;
kvs_share_t kvs_peers_share(const kvs_store_t *store, uint64_t place);
// Hands a SEALED block to the others that should have a copy, of which there must be one. `done`:
// AS_OK, one or more of them have it since now, AS_ERR_EXISTS, all had it; else not all have it:
// AS_ERR_LIMIT and AS_ERR_CONFLICT, for good; AS_ERR_NOT_FOUND, it was dropped there lately.
// `sent`: to how many its bytes went, whatever became of them.
typedef void (*kvs_push_done_fn)(void *ctx, kvs_block_t *block, as_status_t status, uint32_t sent);
// Of `spare` stores more, which are asked too, as many as fail may.
as_status_t kvs_push(kvs_store_t *store, kvs_block_t *block, uint32_t spare, kvs_push_done_fn done,
                     void *ctx) AS_MUST_USE;
// The same of one that lies elsewhere.
typedef struct kvs_push_image {
    const kvs_spec_t *spec;
    const void *image; // as in the pool (disk/image.h), until `done`
    uint32_t spare;
    kvs_push_done_fn done; // whose block is NULL
    void *ctx;
} kvs_push_image_t;
as_status_t kvs_push_image(kvs_store_t *store, const kvs_push_image_t *params) AS_MUST_USE;

// repair.c
as_status_t kvs_repair_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_repair_stop(kvs_store_t *store); // for good
void kvs_repair_free(kvs_store_t *store); // after the disk has ended
// Where blocks are placed has changed; a store is gone.
void kvs_repair_on_peers(kvs_store_t *store, bool changed, bool lost);
uint64_t kvs_repair_pending(const kvs_store_t *store);

// drain.c
as_status_t kvs_drain_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_drain_stop(kvs_store_t *store);        // for good
void kvs_drain_free(kvs_store_t *store);        // after the disk has ended
bool kvs_drain_is_on(const kvs_store_t *store); // nothing new is taken
// The scheduler's list is new; `told`: it knows that this store drains.
void kvs_drain_on_peers(kvs_store_t *store, bool told);

// report.c, for what runs beside it. False: there is nobody to tell.
bool kvs_report_beat(kvs_report_t *report); // now
// The last word: `done` once it was heard, or not.
bool kvs_report_leave(kvs_report_t *report, void (*done)(void *ctx), void *ctx);

// admin.c
as_status_t kvs_admin_alloc(kvs_store_t *store) AS_MUST_USE;
void kvs_admin_stop(kvs_store_t *store); // before the disk ends
void kvs_admin_free(kvs_store_t *store);

#endif
