// SPDX-License-Identifier: Apache-2.0
// A store node put together: its options, memory, net, and what runs beside the messages (sweep,
// eviction).
#include "kvstore/store.h"

#include <sys/random.h>

#include "common/assert.h"
#include "common/log.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/image.h"
#include "kvstore/evict.h"
#include "kvstore/locate.h"
#include "kvstore/pages.h"

#define BLOCKS_MIN      1024u
#define BLOCKS_LIMIT    (1u << 20)
#define BYTES_PER_BLOCK 16384u
#define EVICT_VAIN_US   1000u // where nothing could go, nobody looks again for so long

void kvs_store_options_init(kvs_store_options_t *options)
{
    *options = (kvs_store_options_t){
        .data_address = "127.0.0.1:0",
        .incarnation = 1,
        .leases_max = 4096,
        .reservations_max = 1024,
        .reads_max = 4096,
        .connections_max = 4096,
        .lease_us_max = 30000000,
        .reservation_us = 10000000,
        .stall_us = 60000000,
        .evict_high_percent = 95,
        .evict_low_percent = 90,
        .pin_percent = 25,
        .disk_queue_bytes = 256u << 20,
        .scrub_pause_us = 3600000000u,
        .drain_us = KVS_DRAIN_US_USUAL,
        .repair_bytes_per_second = 64u << 20,
        .repair_wait_us = 5000000,
        .attend_threads = 1,
    };
}

static as_status_t options_check(const kvs_store_options_t *options)
{
    const char *wrong = NULL;
    if (!options->loop || !options->net_alloc || !options->data_address) {
        wrong = "loop, net and address must be given";
    } else if (options->ram_bytes < 16 * KVS_POOL_GRAIN_BYTES) {
        wrong = "ram must be at least 64KiB";
    } else if (options->leases_max == 0 || options->reservations_max == 0 ||
               options->reads_max == 0 || options->connections_max == 0 ||
               options->attend_threads > 256 || options->stall_us == 0 ||
               options->blocks_max > BLOCKS_LIMIT * 16) {
        wrong = "a limit is 0 or too large";
    } else if (options->lease_us_max < 1000 ||
               options->lease_us_max / 1000 > AS_WIRE_LEASE_MS_MAX ||
               options->reservation_us < 1000 ||
               options->reservation_us / 1000 > AS_WIRE_LEASE_MS_MAX) {
        wrong = "leases and reservations last between 1ms and 600s";
    } else if (options->evict_high_percent > 100 ||
               options->evict_low_percent > options->evict_high_percent) {
        wrong = "eviction goes from the high share down to the low one";
    } else if (options->pin_percent > 100) {
        wrong = "at most all of the pool can be pinned";
    }
    if (wrong) {
        AS_ERROR("kvstore", "options: %s", wrong);
        return AS_ERR_CONFIG;
    }
    return AS_OK;
}

static uint64_t node_id_of(const uint8_t instance_id[16])
{
    uint64_t id = 0;
    for (int i = 7; i >= 0; i--) {
        id = id << 8 | instance_id[i];
    }
    return id;
}

static as_status_t identify(kvs_store_t *store)
{
    store->node_id = node_id_of(store->options.instance_id);
    while (store->node_id == 0) {
        if (getrandom(store->options.instance_id, 16, 0) != 16) {
            AS_ERROR("kvstore", "no random bytes for the instance id");
            return AS_ERR_IO;
        }
        store->node_id = node_id_of(store->options.instance_id);
    }
    return AS_OK;
}

// ---- beside the messages

void kvs_store_gauge(kvs_store_t *store)
{
    as_metric_set(&kvs_metrics[KVS_METRIC_BLOCKS], kvs_index_count(store->index, KVS_SEALED));
    as_metric_set(&kvs_metrics[KVS_METRIC_USED_BYTES], (int64_t)kvs_pool_used(store->pool));
    as_metric_set(&kvs_metrics[KVS_METRIC_POOL_BYTES], (int64_t)kvs_pool_bytes(store->pool));
    as_metric_set(&kvs_metrics[KVS_METRIC_POOL_PAGE_BYTES], (int64_t)store->page_bytes);
    as_metric_set(&kvs_metrics[KVS_METRIC_GHOST_HITS],
                  (int64_t)kvs_ghosts_hits(kvs_index_ghosts(store->index)));
    as_metric_set(&kvs_metrics[KVS_METRIC_SOFT_BYTES],
                  (int64_t)kvs_index_guarded_bytes(store->index, KVS_GUARD_SOFT));
    as_metric_set(&kvs_metrics[KVS_METRIC_HARD_BYTES],
                  (int64_t)kvs_index_guarded_bytes(store->index, KVS_GUARD_HARD));
    as_metric_set(&kvs_metrics[KVS_METRIC_LEASES], kvs_leases_count(store->leases));
    as_metric_set(&kvs_metrics[KVS_METRIC_RESERVATIONS], kvs_puts_count(store->puts));
    kvs_disk_stat_t disk;
    kvs_tier_stat(store, &disk);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_BLOCKS], (int64_t)disk.blocks);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_USED_BYTES], (int64_t)disk.bytes);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_BYTES], (int64_t)disk.bytes_max);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_QUEUE_BYTES], (int64_t)disk.queued_bytes);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_FAILURES], (int64_t)disk.failures);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_CORRUPT], (int64_t)disk.corrupt_blocks);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_CATALOG_FAULTS], (int64_t)disk.catalog_faults);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_CATALOG_MEMORY], (int64_t)disk.catalog_memory_bytes);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_DROPPED], (int64_t)disk.dropped_blocks);
    as_metric_set(&kvs_metrics[KVS_METRIC_DISK_READ_ONLY], disk.read_only);
}

static void on_sweep(void *ctx)
{
    kvs_store_t *store = ctx;
    uint64_t now_us = as_loop_now_us(store->options.loop);
    kvs_leases_sweep(store->leases, now_us);
    kvs_puts_sweep(store->puts, now_us);
    bool waiting = kvs_locates_sweep(store, now_us);
    waiting |= kvs_attends_sweep(store, now_us);
    waiting |= kvs_conns_sweep(store, now_us);
    waiting |= kvs_expire_some(store);
    kvs_store_gauge(store);
    store->sweeping =
        waiting || kvs_leases_count(store->leases) > 0 || kvs_puts_count(store->puts) > 0;
    if (store->sweeping) {
        as_timer_start(store->sweep, KVS_SWEEP_US);
    }
}

void kvs_store_watch(kvs_store_t *store)
{
    if (!store->sweeping) {
        store->sweeping = true;
        as_timer_start(store->sweep, KVS_SWEEP_US);
    }
}

static size_t percent_of_pool(const kvs_store_t *store, uint32_t percent)
{
    return kvs_pool_bytes(store->pool) * percent / 100;
}

bool kvs_store_is_full(const kvs_store_t *store, size_t bytes)
{
    uint32_t low = store->options.evict_low_percent;
    uint64_t max = kvs_index_blocks_max(store->index);
    uint64_t entries = max - kvs_index_unused(store->index);
    return kvs_pool_used(store->pool) + bytes > percent_of_pool(store, low) ||
           (entries + 1) * 100 > max * low;
}

static void on_evict(void *ctx)
{
    kvs_store_t *store = ctx;
    uint64_t evicted = 0;
    bool more = kvs_evict_some(store->index, store->pool, store->evict_goal_bytes, &evicted);
    kvs_count(&store->counted.evictions, KVS_METRIC_EVICTIONS, evicted);
    kvs_store_gauge(store);
    if (more) {
        as_loop_post(store->options.loop, &store->evict);
    } else {
        store->evict_goal_bytes = SIZE_MAX;
    }
}

// Small blocks, and parents that are elsewhere, use up the entries of the index before the bytes of the pool.
static bool is_short_of_entries(const kvs_store_t *store)
{
    uint64_t max = kvs_index_blocks_max(store->index);
    uint64_t used = max - kvs_index_unused(store->index);
    return used * 100 > max * store->options.evict_high_percent;
}

void kvs_store_evict_soon(kvs_store_t *store, size_t wanted_bytes)
{
    size_t used = kvs_pool_used(store->pool), all = kvs_pool_bytes(store->pool);
    const kvs_store_options_t *options = &store->options;
    bool is_short = is_short_of_entries(store);
    if (wanted_bytes == 0 && !is_short &&
        used <= percent_of_pool(store, options->evict_high_percent)) {
        return;
    }
    // Twice what was wanted: one large enough run is what counts, and the writer will come again.
    size_t goal = percent_of_pool(store, store->options.evict_low_percent);
    size_t room = wanted_bytes < all / 2 ? all - 2 * wanted_bytes : 0;
    goal = wanted_bytes > 0 && room < goal ? room : goal;
    if (wanted_bytes > 0 &&
        goal >= used) { // free, but in pieces, or no entry is free: make some room all the same
        goal = used > wanted_bytes ? used - wanted_bytes : 0;
    }
    if (is_short) { // the share of the blocks that is to go, as a share of their bytes
        uint32_t high = options->evict_high_percent > 0 ? options->evict_high_percent : 1;
        size_t share = used / high * options->evict_low_percent;
        goal = share < goal ? share : goal;
    }
    store->evict_goal_bytes = goal < store->evict_goal_bytes ? goal : store->evict_goal_bytes;
    as_loop_post(store->options.loop, &store->evict);
}

// False: there was nothing that could go in this turn.
static bool evict_for(kvs_store_t *store, const kvs_spec_t *spec)
{
    uint64_t before = store->counted.evictions;
    if (store->evict_vain_us > 0 &&
        as_loop_now_us(store->options.loop) - store->evict_vain_us < EVICT_VAIN_US) {
        return false; // else each of many puts would walk over all that is held
    }
    kvs_block_t *parent = NULL;
    if (!store->tier) { // else they are on disk
        parent = kvs_index_find(store->index, &spec->parent, kvs_realm_of(spec));
    }
    if (parent) {
        kvs_index_pin(store->index, parent);
    }
    kvs_store_evict_soon(store, kvs_image_bytes(spec));
    on_evict(store); // a batch; the rest follows
    if (parent) {
        kvs_index_unpin(store->index, parent);
    }
    bool evicted = store->counted.evictions > before;
    uint64_t ended_us = as_loop_now_us(store->options.loop); // the walk may take longer than that
    store->evict_vain_us = evicted ? 0 : ended_us + (ended_us == 0);
    return evicted;
}

as_status_t kvs_store_reserve(kvs_store_t *store, const kvs_spec_t *spec, kvs_block_t **block_p)
{
    as_status_t status = kvs_index_reserve(store->index, spec, block_p);
    // Those of one turn of the loop may take more than the last one has freed.
    if (status == AS_ERR_BUSY && evict_for(store, spec)) {
        status = kvs_index_reserve(store->index, spec, block_p);
    }
    return status;
}

// ---- its life

static as_status_t store_start_net(kvs_store_t *store)
{
    const kvs_store_options_t *options = &store->options;
    as_net_handlers_t handlers;
    kvs_serve_init(store, &handlers);
    as_status_t status =
        options->net_alloc(options->net_ctx, options->loop, &handlers, &store->net);
    if (status == AS_OK) {
        status = as_net_mem_alloc(store->net, options->ram_bytes, &store->memory, &store->mem);
    }
    if (status == AS_OK) {
        kvs_pages_t pages = kvs_pages_use(store->memory, options->ram_bytes);
        AS_INFO("kvstore", "%zu MiB of memory, in %s of %zu KiB", options->ram_bytes >> 20,
                pages.kind, pages.bytes >> 10);
        store->page_bytes = pages.bytes;
    }
    return status;
}

static as_status_t store_fill(kvs_store_t *store)
{
    const kvs_store_options_t *options = &store->options;
    size_t by_bytes = options->ram_bytes / BYTES_PER_BLOCK;
    uint32_t blocks_max = options->blocks_max               ? options->blocks_max
                          : by_bytes < BLOCKS_MIN           ? BLOCKS_MIN
                          : by_bytes > (size_t)BLOCKS_LIMIT ? BLOCKS_LIMIT
                                                            : (uint32_t)by_bytes;
    as_status_t status = kvs_pool_alloc(options->ram_bytes, blocks_max, &store->pool);
    if (status == AS_OK) {
        const kvs_index_options_t index = {blocks_max, store->memory, store->pool};
        status = kvs_index_alloc(&index, &store->index);
    }
    if (status == AS_OK) {
        kvs_quota_set_default(kvs_index_accounts(store->index),
                              options->quota_bytes ? options->quota_bytes : KVS_QUOTA_NONE);
        kvs_index_set_listener(store->index, kvs_tier_on_index_event, store);
        status = kvs_tier_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_leases_alloc(store->index, options->leases_max, &store->leases);
    }
    if (status == AS_OK) {
        status = kvs_puts_alloc(store, options->reservations_max, &store->puts);
    }
    if (status == AS_OK) {
        status = kvs_reads_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_locates_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_attends_alloc(store);
    }
    if (status == AS_OK) {
        status = as_timer_alloc(options->loop, on_sweep, store, &store->sweep);
    }
    if (status == AS_OK) {
        status = kvs_scrub_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_suspects_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_peers_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_drain_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_repair_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_drops_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_admin_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_admit_alloc(store);
    }
    if (status == AS_OK) {
        status = kvs_quotas_alloc(store);
    }
    return status;
}

as_status_t kvs_store_alloc(const kvs_store_options_t *options, kvs_store_t **store_p)
{
    as_status_t status = options_check(options);
    if (status != AS_OK) {
        return status;
    }
    kvs_store_t *store = as_mem_zalloc(1, sizeof(*store));
    if (!store) {
        return AS_ERR_NO_MEMORY;
    }
    store->magic = KVS_STORE_MAGIC;
    store->options = *options;
    store->evict = (as_task_t){.fn = on_evict, .ctx = store};
    store->evict_goal_bytes = SIZE_MAX;
    store->quota_evict = (as_task_t){.fn = kvs_quota_on_evict, .ctx = store};
    as_metric_register(kvs_metrics, KVS_METRIC_COUNT);
    kvs_expiry_init(store);
    status = identify(store);
    if (status == AS_OK) {
        status = store_start_net(store);
    }
    if (status == AS_OK) {
        status = store_fill(store);
    }
    if (status == AS_OK) { // last: from here peers may come
        status = as_net_listen(store->net, options->data_address);
    }
    if (status != AS_OK) {
        kvs_store_free(store);
        return status;
    }
    kvs_store_gauge(store);
    kvs_store_watch(store); // blocks that the disk has may expire
    *store_p = store;
    return AS_OK;
}

void kvs_store_reload(kvs_store_t *store)
{
    kvs_admit_reload(store);
    kvs_quotas_reload(store);
}

// Also of a store that is only half made.
void kvs_store_free(kvs_store_t *store)
{
    if (!store) {
        return;
    }
    AS_ASSERT(store->magic == KVS_STORE_MAGIC);
    while (store->conns) {
        kvs_conn_close(store->conns);
    }
    kvs_locates_stop(store);
    kvs_attends_stop(store); // its threads read blocks
    kvs_repair_stop(store);
    kvs_drain_stop(store);
    kvs_peers_free(store);
    kvs_scrub_stop(store);
    kvs_admin_stop(store);
    kvs_tier_free(store); // its threads use the memory
    kvs_promotions_free(store);
    kvs_scrub_free(store);
    kvs_repair_free(store);
    kvs_drain_free(store);
    as_net_mem_free(store->mem);
    as_net_free(store->net); // every callback that is still out comes now
    as_timer_free(store->sweep);
    as_loop_unpost(store->options.loop, &store->evict);
    as_loop_unpost(store->options.loop, &store->quota_evict);
    kvs_attends_free(store);
    kvs_suspects_free(store);
    kvs_drops_free(store);
    kvs_admin_free(store);
    kvs_admit_free(store);
    kvs_quotas_free(store);
    kvs_puts_free(store->puts);
    kvs_leases_free(store->leases);
    kvs_index_free(store->index);
    kvs_pool_free(store->pool);
    as_pool_free(store->reads);
    kvs_locates_free(store);
    store->magic = 0;
    as_mem_free(store);
}

const char *kvs_store_address(const kvs_store_t *store)
{
    return as_net_address(store->net);
}

uint64_t kvs_store_node_id(const kvs_store_t *store)
{
    return store->node_id;
}

void kvs_store_stat(const kvs_store_t *store, kvs_stat_t *stat_p)
{
    size_t used = kvs_pool_used(store->pool), all = kvs_pool_bytes(store->pool);
    *stat_p = store->counted;
    stat_p->ram_bytes_used = used;
    stat_p->ram_bytes_max = all;
    stat_p->blocks = kvs_index_count(store->index, KVS_SEALED);
    stat_p->dying = kvs_index_count(store->index, KVS_DYING);
    stat_p->leases = kvs_leases_count(store->leases);
    stat_p->pins = kvs_index_pins(store->index);
    stat_p->ghost_hits = kvs_ghosts_hits(kvs_index_ghosts(store->index));
    stat_p->soft_bytes = kvs_index_guarded_bytes(store->index, KVS_GUARD_SOFT);
    stat_p->hard_bytes = kvs_index_guarded_bytes(store->index, KVS_GUARD_HARD);
    stat_p->repair_pending = kvs_repair_pending(store);
    stat_p->reservations = kvs_puts_count(store->puts);
    stat_p->connections = store->conn_count;
    kvs_disk_stat_t disk;
    kvs_tier_stat(store, &disk);
    stat_p->disk_blocks = disk.blocks;
    stat_p->disk_bytes_used = disk.bytes;
    stat_p->disk_bytes_max = disk.bytes_max;
    stat_p->disk_read_only = disk.read_only;
    stat_p->fragmentation =
        used < all ? 1.0 - (double)kvs_pool_largest(store->pool) / (double)(all - used) : 0.0;
}

void kvs_store_set_listener(kvs_store_t *store, kvs_event_fn fn, void *ctx)
{
    store->listener = fn;
    store->listener_ctx = ctx;
}

bool kvs_store_drop(kvs_store_t *store, const as_key_t *key, uint32_t tenant)
{
    bool any = false;
    kvs_drops_key(store, key, tenant);
    for (uint32_t kind = AS_WIRE_FULL; kind <= AS_WIRE_SEALED; kind++) {
        any |=
            kvs_tier_remove(store, key, kvs_realm(tenant, kind)); // first: leaving RAM is told then
        kvs_block_t *block = kvs_index_find(store->index, key, kvs_realm(tenant, kind));
        if (block) {
            kvs_index_doom(store->index, block);
            any = true;
        }
    }
    kvs_store_gauge(store);
    return any;
}

uint64_t kvs_store_drop_all(kvs_store_t *store)
{
    kvs_drops_all(store);
    uint64_t dropped = kvs_tier_remove_all(store);
    for (uint32_t queue = 0; queue < KVS_QUEUES; queue++) {
        kvs_block_t *block;
        while ((block = kvs_index_oldest(store->index, queue)) != NULL) {
            kvs_tier_remove(store, &block->key, kvs_block_realm(block)); // also on its way there
            kvs_index_doom(store->index, block);
            dropped++;
        }
    }
    kvs_store_gauge(store);
    return dropped;
}
