// SPDX-License-Identifier: Apache-2.0
// What the scheduler is told: that the store is there (Join), that it lives (Heartbeat), and what
// it holds (Events).
//
//   JOINING -> JOINED -> JOINING ...       back when the scheduler does not know the node (any
//   more)
//
// Block events wait in a bounded ring and go out in batches, one batch in flight, kept until it is
// acknowledged, so a lost answer is repaired by sending it again. An event gets its sequence number
// when its batch is made. When the ring overflows, or the scheduler asks, a listing goes out
// instead: a batch that makes the scheduler forget, then all blocks, a batch at a time, with what
// happens meanwhile between them. What is listed is read from the index when its batch is made and
// news go before it, so the last word about a block is always its true state.
//
// A scheduler that does not answer costs a retry with backoff; the store serves all the same.
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "kvstore/store.h"
#include "proto/scheduler.pb-c.h"

#define BATCH_MAX        1024u  // events of one call: 33 KiB
#define RING_MAX         16384u // events that wait; a power of two
#define HEARTBEAT_MS_MIN 10u
#define SILENT_CALLS     3u // joins and heartbeats in a row that fail before that is told

typedef struct batch {
    uint64_t first_sequence;
    uint32_t count;
    bool unacknowledged; // is to be sent, or sent again, before another is made
    bool in_flight;
    bool listing_begin, listing_end;
    uint8_t keys[BATCH_MAX * sizeof(as_key_t)];
    uint8_t ops[BATCH_MAX];
} batch_t;

struct kvs_report {
    kvs_report_options_t options;
    as_loop_t *loop;
    as_timer_t *retry; // of joining, and of events
    as_timer_t *beat;
    as_task_t flush;
    bool joined, joining, beating;
    bool beat_again;  // at once
    bool leaving;     // the last word is said
    bool is_stranger; // the scheduler refuses this store by their options, and that was told
    void (*left)(void *ctx);
    void *left_ctx;
    uint32_t calls;  // callbacks that will still come
    uint32_t failed; // joins and heartbeats in a row
    uint64_t retry_us;
    uint64_t heartbeat_us;
    uint64_t placement_epoch;
    uint64_t next_sequence;
    // listing
    bool listing_wanted; // from the beginning, with the next batch
    bool listing;
    uint32_t cursor;      // of the index
    uint32_t disk_cursor; // then of what is on disk only
    batch_t batch;
    uint32_t ring_first, ring_count;
    uint8_t ring_ops[RING_MAX];
    as_key_t ring_keys[RING_MAX];
};

static void join(kvs_report_t *report);
static void flush(void *ctx);

// ---- the ring

static void on_event(void *ctx, kvs_event_t event, const as_key_t *key)
{
    kvs_report_t *report = ctx;
    if (report->ring_count == RING_MAX) {
        report->listing_wanted = true; // which tells it all
        return;
    }
    uint32_t at = (report->ring_first + report->ring_count++) & (RING_MAX - 1);
    report->ring_keys[at] = *key;
    report->ring_ops[at] = event == KVS_BLOCK_ADDED ? ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED
                                                    : ASSAY__EVENT_OP__EVENT_OP_FULL_REMOVED;
    as_loop_post(report->loop, &report->flush);
}

static void batch_add(batch_t *batch, const as_key_t *key, uint8_t op)
{
    memcpy(batch->keys + batch->count * sizeof(*key), key, sizeof(*key));
    batch->ops[batch->count++] = op;
}

static void batch_add_block(batch_t *batch, const as_key_t *unscoped, uint32_t tenant)
{
    as_key_t key;
    as_key_scope(unscoped, tenant, &key);
    batch_add(batch, &key, ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED);
}

// False: there is nothing to tell.
static bool batch_make(kvs_report_t *report)
{
    batch_t *batch = &report->batch;
    const kvs_index_t *index = report->options.store->index;
    batch->count = 0;
    batch->listing_begin = batch->listing_end = false;
    if (report->listing_wanted) {
        report->listing_wanted = false;
        report->listing = true;
        report->cursor = report->disk_cursor = 0;
        report->ring_count = 0; // the listing tells what became of these
        batch->listing_begin = true;
    }
    while (report->ring_count > 0 && batch->count < BATCH_MAX) {
        batch_add(batch, &report->ring_keys[report->ring_first],
                  report->ring_ops[report->ring_first]);
        report->ring_first = (report->ring_first + 1) & (RING_MAX - 1);
        report->ring_count--;
    }
    uint32_t blocks_max = kvs_index_blocks_max(index);
    for (; report->listing && report->cursor < blocks_max && batch->count < BATCH_MAX;
         report->cursor++) {
        const kvs_block_t *block = kvs_index_at(index, report->cursor);
        if (block->state == KVS_SEALED && block->kind == AS_WIRE_FULL) {
            batch_add_block(batch, &block->key, block->tenant);
        }
    }
    const kvs_spec_t *spec = NULL;
    while (report->listing && report->cursor == blocks_max && batch->count < BATCH_MAX &&
           (spec = kvs_tier_next(report->options.store, &report->disk_cursor)) != NULL) {
        if (spec->kind == AS_WIRE_FULL && !kvs_index_find(index, &spec->key, kvs_realm_of(spec))) {
            batch_add_block(batch, &spec->key, spec->tenant);
        }
    }
    if (report->listing && report->cursor == blocks_max && !spec && batch->count < BATCH_MAX) {
        report->listing = false;
        batch->listing_end = true;
    }
    batch->first_sequence = report->next_sequence;
    report->next_sequence += batch->count;
    batch->unacknowledged = batch->count > 0 || batch->listing_begin || batch->listing_end;
    return batch->unacknowledged;
}

// ---- answers in common

static uint64_t backoff(kvs_report_t *report)
{
    uint64_t delay_us = report->retry_us;
    report->retry_us =
        2 * delay_us < report->options.retry_us_max ? 2 * delay_us : report->options.retry_us_max;
    return delay_us;
}

static void list_anew(kvs_report_t *report)
{
    report->listing_wanted = true;
    report->batch.unacknowledged = false;
    as_loop_post(report->loop, &report->flush);
}

static void take_status(kvs_report_t *report, Assay__NodeStatus status)
{
    if (status == ASSAY__NODE_STATUS__NODE_STATUS_UNKNOWN_NODE) {
        AS_INFO("kvstore", "the scheduler does not know this store: joining again");
        report->joined = false;
        join(report);
    } else if (status == ASSAY__NODE_STATUS__NODE_STATUS_RESYNC) {
        list_anew(report);
    }
}

// ---- Events

static void on_events_done(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    kvs_report_t *report = ctx;
    batch_t *batch = &report->batch;
    report->calls--;
    batch->in_flight = false;
    if (status != AS_OK) {
        if (status != AS_ERR_CANCELLED) {
            as_timer_start(report->retry, backoff(report)); // sends the same batch again
        }
        return;
    }
    const Assay__EventsReply *reply = (const Assay__EventsReply *)message;
    if (reply->status == ASSAY__NODE_STATUS__NODE_STATUS_OK) {
        report->retry_us = report->options.retry_us_min;
        batch->unacknowledged = false;
        as_loop_post(report->loop, &report->flush);
    }
    take_status(report, reply->status);
}

static void flush(void *ctx)
{
    kvs_report_t *report = ctx;
    batch_t *batch = &report->batch;
    if (!report->joined || batch->in_flight || (!batch->unacknowledged && !batch_make(report))) {
        return;
    }
    Assay__EventsRequest request = ASSAY__EVENTS_REQUEST__INIT;
    request.node_id = kvs_store_node_id(report->options.store);
    request.incarnation = report->options.store->options.incarnation;
    request.first_sequence = batch->first_sequence;
    request.keys = (ProtobufCBinaryData){batch->count * sizeof(as_key_t), batch->keys};
    request.ops = (ProtobufCBinaryData){batch->count, batch->ops};
    request.listing_begin = batch->listing_begin;
    request.listing_end = batch->listing_end;
    as_status_t status = as_rpc_call(report->options.scheduler, "Events", &request.base,
                                     report->options.call_timeout_us, on_events_done, report, NULL);
    if (status == AS_OK) {
        batch->in_flight = true;
        report->calls++;
    } else {
        as_timer_start(report->retry, backoff(report));
    }
}

// ---- Heartbeat

static void count_failed(kvs_report_t *report, as_status_t status)
{
    if (status == AS_ERR_CANCELLED) {
        return;
    }
    if (++report->failed == SILENT_CALLS) {
        AS_WARN("kvstore",
                "%sthe scheduler does not answer: %s (is it there, and with TLS where this store "
                "has it?); asking again until it does",
                report->joined ? "" : "not joined: ", as_status_str(status));
    }
}

static void end_failed(kvs_report_t *report)
{
    if (report->failed >= SILENT_CALLS) {
        AS_INFO("kvstore", "the scheduler answers");
    }
    report->failed = 0;
}

// An empty list: it is the one before.
static void take_stores(kvs_report_t *report, Assay__StoreNode **nodes, size_t count,
                        uint32_t replicas)
{
    kvs_peers_set_replicas(report->options.store, replicas);
    if (count > 0) {
        kvs_peers_set(report->options.store, nodes, count);
    }
}

static void on_beat_done(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    kvs_report_t *report = ctx;
    report->calls--;
    report->beating = false;
    if (report->beat_again) {
        report->beat_again = false;
        as_timer_start(report->beat, 0);
    }
    if (status != AS_OK) {
        count_failed(report, status);
        return; // the next one is coming
    }
    end_failed(report);
    const Assay__HeartbeatReply *reply = (const Assay__HeartbeatReply *)message;
    report->placement_epoch = reply->placement_epoch;
    take_stores(report, reply->nodes, reply->n_nodes, reply->replicas);
    take_status(report, reply->status);
}

static void on_beat(void *ctx)
{
    kvs_report_t *report = ctx;
    const kvs_store_t *store = report->options.store;
    if (!report->joined) {
        return;
    }
    as_timer_start(report->beat, report->heartbeat_us);
    if (report->beating) {
        return;
    }
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    Assay__NodeLoad load = ASSAY__NODE_LOAD__INIT;
    load.used_bytes = kvs_pool_used(store->pool);
    load.capacity_bytes = kvs_pool_bytes(store->pool);
    load.queued_bytes = 0;
    request.node_id = store->node_id;
    request.incarnation = store->options.incarnation;
    request.load = &load;
    request.events_next_sequence =
        report->batch.unacknowledged ? report->batch.first_sequence : report->next_sequence;
    request.placement_epoch = report->placement_epoch;
    request.draining = kvs_drain_is_on(store);
    as_status_t status = as_rpc_call(report->options.scheduler, "Heartbeat", &request.base,
                                     report->options.call_timeout_us, on_beat_done, report, NULL);
    if (status == AS_OK) {
        report->beating = true;
        report->calls++;
    }
}

bool kvs_report_beat(kvs_report_t *report)
{
    if (!report || !report->joined) {
        return false;
    }
    if (report->beating) {
        report->beat_again = true;
    } else {
        as_timer_start(report->beat, 0);
    }
    return true;
}

static void on_leave_done(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    (void)message;
    kvs_report_t *report = ctx;
    report->calls--;
    if (status != AS_ERR_CANCELLED) {
        report->left(report->left_ctx);
    }
}

bool kvs_report_leave(kvs_report_t *report, void (*done)(void *ctx), void *ctx)
{
    if (!report || !report->joined || report->leaving) {
        return false;
    }
    Assay__HeartbeatRequest request = ASSAY__HEARTBEAT_REQUEST__INIT;
    request.node_id = kvs_store_node_id(report->options.store);
    request.incarnation = report->options.store->options.incarnation;
    request.leaving = true;
    report->left = done;
    report->left_ctx = ctx;
    report->leaving = true;
    report->joined = false; // nothing is told any more
    as_timer_stop(report->beat);
    as_status_t status = as_rpc_call(report->options.scheduler, "Heartbeat", &request.base,
                                     report->options.call_timeout_us, on_leave_done, report, NULL);
    report->calls += status == AS_OK;
    return status == AS_OK;
}

// ---- Join

static void take_join(kvs_report_t *report, const Assay__JoinReply *reply)
{
    if (reply->node_id != kvs_store_node_id(report->options.store)) {
        AS_WARN("kvstore", "the scheduler names this store %llu",
                (unsigned long long)reply->node_id);
    }
    end_failed(report);
    AS_INFO("kvstore", "joined cluster %s", reply->cluster_id ? reply->cluster_id : "");
    uint64_t heartbeat_ms =
        reply->heartbeat_ms > HEARTBEAT_MS_MIN ? reply->heartbeat_ms : HEARTBEAT_MS_MIN;
    report->joined = true;
    report->heartbeat_us = heartbeat_ms * 1000;
    report->placement_epoch = reply->placement_epoch;
    take_stores(report, reply->nodes, reply->n_nodes, reply->replicas);
    report->retry_us = report->options.retry_us_min;
    uint64_t next =
        report->batch.unacknowledged ? report->batch.first_sequence : report->next_sequence;
    if (reply->needs_listing || reply->events_next_sequence != next) {
        list_anew(report);
    }
    as_timer_start(report->beat, report->heartbeat_us);
    as_loop_post(report->loop, &report->flush);
}

static char *text(const char *from)
{
    return (char *)(uintptr_t)(from ? from : "");
}

static void tell_stranger(kvs_report_t *report, as_status_t status)
{
    bool has_key = report->options.store->options.cluster_key;
    if (status == AS_ERR_CONFIG) {
        AS_ERROR("kvstore",
                 "not joined: the scheduler is of another cluster than this store's "
                 "--cluster-id=%s; see --scheduler, and the --cluster-id of both",
                 text(report->options.cluster_id));
    } else {
        AS_ERROR("kvstore",
                 "not joined: the scheduler has %s --cluster-key and this store has %s; all stores "
                 "of a cluster and its scheduler have it, or none",
                 has_key ? "no" : "a", has_key ? "one" : "none");
    }
}

static void on_joined(void *ctx, as_status_t status, const ProtobufCMessage *message)
{
    kvs_report_t *report = ctx;
    report->calls--;
    report->joining = false;
    if (status == AS_OK) {
        take_join(report, (const Assay__JoinReply *)message);
    } else if (status != AS_ERR_CANCELLED) {
        bool is_stranger = status == AS_ERR_CONFIG || status == AS_ERR_DENIED;
        if (!is_stranger) {
            count_failed(report, status);
        } else if (!report->is_stranger) {
            tell_stranger(report, status);
        }
        report->is_stranger = is_stranger;
        as_timer_start(report->retry, backoff(report));
    }
}

static void join(kvs_report_t *report)
{
    const kvs_report_options_t *options = &report->options;
    if (report->joining || report->leaving) {
        return;
    }
    Assay__JoinRequest request = ASSAY__JOIN_REQUEST__INIT;
    request.role = ASSAY__ROLE__ROLE_STORE;
    request.instance_id = (ProtobufCBinaryData){16, options->store->options.instance_id};
    request.incarnation = options->store->options.incarnation;
    request.data_address =
        text(options->data_address ? options->data_address : kvs_store_address(options->store));
    request.rpc_address = text(options->rpc_address);
    request.http_address = text(options->http_address);
    request.capacity_bytes = kvs_pool_bytes(options->store->pool);
    request.name = text(options->name);
    request.cluster_id = text(options->cluster_id);
    request.wants_tokens = options->store->options.cluster_key != NULL;
    request.draining = kvs_drain_is_on(options->store);
    as_status_t status = as_rpc_call(options->scheduler, "Join", &request.base,
                                     options->call_timeout_us, on_joined, report, NULL);
    if (status == AS_OK) {
        report->joining = true;
        report->calls++;
    } else {
        as_timer_start(report->retry, backoff(report));
    }
}

static void on_retry(void *ctx)
{
    kvs_report_t *report = ctx;
    if (report->joined) {
        flush(report);
    } else {
        join(report);
    }
}

// ---- its life

as_status_t kvs_report_alloc(const kvs_report_options_t *options, kvs_report_t **report_p)
{
    kvs_report_t *report = as_mem_zalloc(1, sizeof(*report));
    if (!report) {
        return AS_ERR_NO_MEMORY;
    }
    report->options = *options;
    report->options.call_timeout_us = options->call_timeout_us ? options->call_timeout_us : 2000000;
    report->options.retry_us_min = options->retry_us_min ? options->retry_us_min : 100000;
    report->options.retry_us_max = options->retry_us_max ? options->retry_us_max : 5000000;
    report->retry_us = report->options.retry_us_min;
    report->loop = options->store->options.loop;
    report->next_sequence = 1;
    report->flush = (as_task_t){.fn = flush, .ctx = report};
    as_status_t status = as_timer_alloc(report->loop, on_retry, report, &report->retry);
    if (status == AS_OK) {
        status = as_timer_alloc(report->loop, on_beat, report, &report->beat);
    }
    if (status != AS_OK) {
        kvs_report_free(report);
        return status;
    }
    kvs_store_set_listener(options->store, on_event, report);
    options->store->report = report;
    join(report);
    *report_p = report;
    return AS_OK;
}

void kvs_report_free(kvs_report_t *report)
{
    if (!report) {
        return;
    }
    AS_ASSERT(report->calls == 0);
    kvs_store_set_listener(report->options.store, NULL, NULL);
    report->options.store->report = NULL;
    as_loop_unpost(report->loop, &report->flush);
    as_timer_free(report->retry);
    as_timer_free(report->beat);
    as_mem_free(report);
}

bool kvs_report_is_settled(const kvs_report_t *report)
{
    return report->joined && !report->batch.unacknowledged && !report->listing_wanted &&
           !report->listing && report->ring_count == 0;
}
