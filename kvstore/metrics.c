// SPDX-License-Identifier: Apache-2.0
// The metrics of a store, by kvs_metric_t.
#include "kvstore/store.h"

#define COUNTER(metric, text)                                                                      \
    {                                                                                              \
        .name = "assay_kvstore_" metric, .help = text, .type = AS_METRIC_COUNTER                   \
    }
#define GAUGE(metric, text)                                                                        \
    {                                                                                              \
        .name = "assay_kvstore_" metric, .help = text, .type = AS_METRIC_GAUGE                     \
    }

#define EVICTED(reason_)                                                                           \
    {                                                                                              \
        .name = "assay_kvstore_evicted_blocks_total",                                              \
        .help = "Blocks that left before they were asked to, by reason",                           \
        .type = AS_METRIC_COUNTER, .label = "reason=\"" reason_ "\""                               \
    }

#define DENIED(reason_)                                                                            \
    {                                                                                              \
        .name = "assay_kvstore_denied_total",                                                      \
        .help = "Connections and questions that were denied, by what was wrong with the token",    \
        .type = AS_METRIC_COUNTER, .label = "reason=\"" reason_ "\""                               \
    }

#define QUOTA_READS(result_)                                                                       \
    {                                                                                              \
        .name = "assay_kvstore_quota_file_reads_total",                                            \
        .help = "Quota files that were read, by what became of it", .type = AS_METRIC_COUNTER,     \
        .label = "result=\"" result_ "\""                                                          \
    }

as_metric_t kvs_metrics[KVS_METRIC_COUNT] = {
    [KVS_METRIC_HITS] = COUNTER("hit_blocks_total", "Blocks that were located"),
    [KVS_METRIC_MISSES] =
        COUNTER("miss_blocks_total", "Blocks that were asked for and are not here"),
    [KVS_METRIC_BYTES_READ] =
        COUNTER("read_bytes_total", "Bytes sent to readers; one-sided reads are not counted"),
    [KVS_METRIC_BYTES_WRITTEN] = COUNTER("written_bytes_total", "Bytes received from writers"),
    [KVS_METRIC_EVICTIONS] = EVICTED("capacity"),
    [KVS_METRIC_EVICTIONS_QUOTA] = EVICTED("quota"),
    [KVS_METRIC_EVICTIONS_TTL] = EVICTED("ttl"),
    [KVS_METRIC_EVICTIONS_PURGE] = EVICTED("purge"),
    [KVS_METRIC_GHOST_HITS] =
        GAUGE("ghost_hits", "Blocks that came back soon after their eviction, since the start"),
    [KVS_METRIC_SOFT_BYTES] = GAUGE("soft_pinned_bytes", "Bytes that operators pinned softly"),
    [KVS_METRIC_HARD_BYTES] = GAUGE("hard_pinned_bytes", "Bytes that operators pinned hard"),
    [KVS_METRIC_CHECKSUM_FAILURES] = COUNTER(
        "put_checksum_failures_total", "Puts refused, since the bytes were not what was promised"),
    [KVS_METRIC_CONFLICTS] =
        COUNTER("put_conflicts_total", "Puts refused, since the key is there with other bytes"),
    [KVS_METRIC_DENIED_TOKEN] = DENIED("missing or malformed"),
    [KVS_METRIC_DENIED_KEY] = DENIED("unknown key"),
    [KVS_METRIC_DENIED_FORGED] = DENIED("forged"),
    [KVS_METRIC_DENIED_EXPIRED] = DENIED("expired"),
    [KVS_METRIC_DENIED_RIGHT] = DENIED("right"),
    [KVS_METRIC_QUOTA_ROWS] = GAUGE("quota_file_rows", "Quotas of --quota-file in force"),
    [KVS_METRIC_QUOTAS_TAKEN] = QUOTA_READS("taken"),
    [KVS_METRIC_QUOTAS_REFUSED] = QUOTA_READS("refused"),
    [KVS_METRIC_BUSY] = COUNTER("busy_total", "Requests refused, since a pool or queue was full"),
    [KVS_METRIC_REFUSED] = COUNTER("refused_connections_total",
                                   "Connections refused, since --connections-max were open"),
    [KVS_METRIC_STALLS] =
        COUNTER("stalled_connections_total",
                "Connections closed since their peer took and sent nothing of what was under way"),
    [KVS_METRIC_PROTOCOL_ERRORS] =
        COUNTER("protocol_errors_total", "Connections closed for breaking the protocol"),
    [KVS_METRIC_BLOCKS] = GAUGE("stored_blocks", "Blocks that can be read"),
    [KVS_METRIC_USED_BYTES] = GAUGE("pool_used_bytes", "Bytes of the pool that hold blocks"),
    [KVS_METRIC_POOL_BYTES] = GAUGE("pool_bytes", "Bytes of the pool"),
    [KVS_METRIC_POOL_PAGE_BYTES] = GAUGE(
        "pool_page_bytes", "A page of the pool; transparent huge pages where there may be some"),
    [KVS_METRIC_LEASES] = GAUGE("leases", "Leases that are out"),
    [KVS_METRIC_RESERVATIONS] = GAUGE("reservations", "Puts under way"),
    [KVS_METRIC_CONNECTIONS] = GAUGE("connections", "Open connections on the data port"),
    [KVS_METRIC_PROMOTIONS] = COUNTER("promoted_blocks_total", "Blocks brought back from disk"),
    [KVS_METRIC_DISK_SKIPPED] =
        COUNTER("disk_skipped_blocks_total", "Blocks that stay in RAM only: the queue was full"),
    [KVS_METRIC_DISK_HUNG] =
        COUNTER("disk_hung_puts_total", "Durable puts that the disk kept waiting for too long"),
    [KVS_METRIC_DISK_BLOCKS] = GAUGE("disk_stored_blocks", "Blocks on disk"),
    [KVS_METRIC_DISK_USED_BYTES] = GAUGE("disk_used_bytes", "Bytes of the blocks on disk"),
    [KVS_METRIC_DISK_BYTES] = GAUGE("disk_bytes", "Bytes that the files may have"),
    [KVS_METRIC_DISK_QUEUE_BYTES] = GAUGE("disk_queue_bytes", "Bytes waiting to be written"),
    [KVS_METRIC_DISK_FAILURES] =
        GAUGE("disk_failures", "Reads and writes that failed since the start"),
    [KVS_METRIC_DISK_CORRUPT] =
        GAUGE("disk_corrupt_blocks", "Blocks whose bytes were not what was promised"),
    [KVS_METRIC_DISK_CATALOG_FAULTS] = GAUGE(
        "disk_catalog_faults", "Damage of the catalog found at the start, and records of no block"),
    [KVS_METRIC_DISK_CATALOG_MEMORY] =
        GAUGE("disk_catalog_memory_bytes", "Memory that RocksDB holds for the catalog"),
    [KVS_METRIC_DISK_DROPPED] =
        GAUGE("disk_dropped_blocks", "Blocks that went with the oldest segment"),
    [KVS_METRIC_DISK_READ_ONLY] =
        GAUGE("disk_read_only", "1: too many writes failed, the disk is only read"),
    [KVS_METRIC_SCRUB_PASSES] =
        COUNTER("scrub_passes_total", "Passes of the scrubber that came to their end"),
    [KVS_METRIC_SCRUB_BYTES] =
        COUNTER("scrub_bytes_total", "Bytes in RAM and on disk that the scrubber checked"),
    [KVS_METRIC_SCRUB_BAD_RAM] =
        COUNTER("scrub_bad_ram_blocks_total", "Blocks in RAM that the scrubber found to be bad"),
    [KVS_METRIC_SCRUB_BAD_DISK] =
        COUNTER("scrub_bad_disk_blocks_total", "Blocks on disk that the scrubber found to be bad"),
    [KVS_METRIC_SCRUB_RESTORED] = COUNTER("scrub_restored_blocks_total",
                                          "Bad blocks in RAM that were brought back from disk"),
    [KVS_METRIC_DRAINING] = GAUGE("draining", "1: the store hands its blocks to others, and ends"),
    [KVS_METRIC_DRAINED_BLOCKS] =
        COUNTER("drained_blocks_total", "Blocks that a drain handed to other stores"),
    [KVS_METRIC_DRAINED_BYTES] = COUNTER("drained_bytes_total", "Their bytes"),
    [KVS_METRIC_REPAIRED_BLOCKS] =
        COUNTER("repaired_blocks_total", "Blocks that were given another copy at other stores"),
    [KVS_METRIC_REPAIRED_BYTES] = COUNTER("repaired_bytes_total", "Their bytes"),
    [KVS_METRIC_REPAIR_PENDING] =
        GAUGE("repair_pending_blocks", "Blocks here that a repair has yet to ask about"),
    [KVS_METRIC_ATTENDS] = COUNTER("attends_total", "Questions for attention that were answered"),
    [KVS_METRIC_ATTENDS_REFUSED] =
        COUNTER("attend_refused_total", "Questions for attention that were refused"),
    [KVS_METRIC_ATTENDS_OUT] = GAUGE("attends", "Questions for attention that are here now"),
    [KVS_METRIC_ATTEND_PAGES] =
        COUNTER("attend_blocks_total", "Layers of blocks that were attended to"),
    [KVS_METRIC_ATTEND_BYTES] = COUNTER("attend_bytes_total", "Bytes of attention sent"),
    [KVS_METRIC_ATTEND_US] = {.name = "assay_kvstore_attend_us",
                              .help = "From a question for attention to its answer",
                              .type = AS_METRIC_HISTOGRAM},
    [KVS_METRIC_PUT_US] = {.name = "assay_kvstore_put_us",
                           .help = "From a put's message to its block being visible",
                           .type = AS_METRIC_HISTOGRAM},
};
