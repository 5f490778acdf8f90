// SPDX-License-Identifier: Apache-2.0
// The client put together: its options, its stores, its life. See internal.h for its parts.
#include "client/client.h"

#include <string.h>
#include <sys/random.h>

#include "client/internal.h"
#include "common/assert.h"
#include "common/log.h"

#define COUNTER(metric, text)                                                                      \
    {                                                                                              \
        .name = "assay_client_" metric, .help = text, .type = AS_METRIC_COUNTER                    \
    }
#define FALLBACKS(cause)                                                                           \
    {                                                                                              \
        .name = "assay_client_fallback_blocks_total",                                              \
        .help = "Blocks that were asked of the next copy, by what was wrong with the one before",  \
        .type = AS_METRIC_COUNTER, .label = "cause=\"" cause "\""                                  \
    }
#define TIMES(metric, text)                                                                        \
    {                                                                                              \
        .name = "assay_client_" metric, .help = text, .type = AS_METRIC_HISTOGRAM                  \
    }

as_metric_t assay_metrics[ASSAY_METRIC_COUNT] = {
    [ASSAY_METRIC_LOCATED_HITS] =
        COUNTER("located_blocks_total", "Blocks that were found when fetching"),
    [ASSAY_METRIC_LOCATED_MISSES] =
        COUNTER("missed_blocks_total", "Blocks that were not found when fetching"),
    [ASSAY_METRIC_FETCHED_BYTES] =
        COUNTER("fetched_bytes_total", "Bytes that arrived and were checked"),
    [ASSAY_METRIC_CHECKSUM_FAILURES] = COUNTER(
        "checksum_failures_total", "Extents that were not what was promised; each became a miss"),
    [ASSAY_METRIC_CIPHER_FAILURES] =
        COUNTER("cipher_failures_total",
                "Extents that could not be decrypted; each became a miss: a store changed them"),
    [ASSAY_METRIC_LEASES_EXPIRED] =
        COUNTER("leases_expired_total", "Reads that took longer than their lease"),
    [ASSAY_METRIC_HOLES] = COUNTER("holes_total", "Fetches that ended before their last block"),
    [ASSAY_METRIC_LINKS_LOST] = COUNTER("stores_lost_total", "Connections to stores that failed"),
    [ASSAY_METRIC_CONNECTS] = COUNTER("connects_total", "Connections to stores that were begun"),
    [ASSAY_METRIC_REFUSED_CALLS] = COUNTER(
        "refused_calls_total", "Questions that were not put to a store because it had just failed"),
    [ASSAY_METRIC_STRANGERS] =
        COUNTER("strangers_total", "Connections that reached another store than the one meant"),
    [ASSAY_METRIC_FALLBACKS_MISSING] = FALLBACKS("missing"),
    [ASSAY_METRIC_FALLBACKS_CHECKSUM] = FALLBACKS("checksum"),
    [ASSAY_METRIC_FALLBACKS_LEASE] = FALLBACKS("lease"),
    [ASSAY_METRIC_FALLBACKS_STORE] = FALLBACKS("store"),
    [ASSAY_METRIC_RESCUED] =
        COUNTER("rescued_blocks_total", "Blocks that another copy gave when the first could not"),
    [ASSAY_METRIC_PUT_BLOCKS] = COUNTER("put_blocks_total", "Blocks that were stored"),
    [ASSAY_METRIC_PUT_EXISTS] = COUNTER("put_exists_total", "Blocks that were there already"),
    [ASSAY_METRIC_PUT_FAILURES] = COUNTER("put_failures_total", "Blocks that could not be stored"),
    [ASSAY_METRIC_PUT_CONFLICTS] =
        COUNTER("put_conflicts_total", "Blocks that a store has with other bytes"),
    [ASSAY_METRIC_PUT_COPIES] = COUNTER("put_copies_total", "Copies of blocks that were stored"),
    [ASSAY_METRIC_PUT_DEGRADED] =
        COUNTER("put_degraded_total", "Blocks stored in fewer copies than were asked for"),
    [ASSAY_METRIC_ATTENDS] =
        COUNTER("attended_layers_total", "Layers whose attention stores computed"),
    [ASSAY_METRIC_ATTEND_FAILURES] =
        COUNTER("attend_failures_total", "Questions for attention that a store did not answer"),
    [ASSAY_METRIC_ATTEND_BYTES] =
        COUNTER("attend_bytes_total", "Bytes of attention that arrived and were checked"),
    [ASSAY_METRIC_ATTEND_US] = TIMES("attend_us", "From the queries of a layer to its attention"),
    [ASSAY_METRIC_FETCH_US] = TIMES("fetch_us", "From the start of a fetch to its end"),
    [ASSAY_METRIC_PUT_US] = TIMES("put_us", "From the start of a put to its end"),
};

void assay_client_options_init(assay_client_options_t *options)
{
    *options = (assay_client_options_t){
        .verify_checksums = true,
        .puts_max = 64,
        .fetches_max = 64,
        .bytes_in_flight_max = (size_t)16 << 20,
        .stage_bytes = (size_t)16 << 20,
        .connect_timeout_us = 2000000,
        .stall_timeout_us = 2000000,
        .retry_after_us = 1000000,
        .retry_after_us_max = 15000000,
    };
}

static as_status_t options_check(const assay_client_options_t *options)
{
    bool sound = options->loop && options->net_alloc && options->puts_max > 0 &&
                 options->fetches_max > 0 && options->bytes_in_flight_max > 0 &&
                 options->connect_timeout_us > 0 && options->stall_timeout_us > 0;
    if (!sound) {
        AS_ERROR("client",
                 "options: loop and net must be given, limits and timeouts must be positive");
    }
    return sound ? AS_OK : AS_ERR_CONFIG;
}

static as_status_t client_fill(assay_client_t *client)
{
    const assay_client_options_t *options = &client->options;
    client->calls = as_mem_zalloc(CALLS_MAX, sizeof(assay_call_t));
    if (!client->calls) {
        return AS_ERR_NO_MEMORY;
    }
    for (uint32_t i = CALLS_MAX; i > 0; i--) {
        client->calls[i - 1].next = client->calls_unused;
        client->calls_unused = &client->calls[i - 1];
    }
    as_status_t status =
        as_pool_alloc("client reads", sizeof(assay_read_t), READS_MAX, &client->reads);
    if (status == AS_OK) {
        status =
            as_pool_alloc("client puts", assay_put_bytes(), options->puts_max, &client->puts_pool);
    }
    if (status == AS_OK) {
        as_net_handlers_t handlers;
        assay_handlers_init(client, &handlers);
        status = options->net_alloc(options->net_ctx, options->loop, &handlers, &client->net);
    }
    return status;
}

as_status_t assay_client_alloc(const assay_client_options_t *options, assay_client_t **client_p)
{
    as_status_t status = options_check(options);
    if (status != AS_OK) {
        return status;
    }
    assay_client_t *client = as_mem_zalloc(1, sizeof(*client));
    if (!client) {
        return AS_ERR_NO_MEMORY;
    }
    client->magic = ASSAY_CLIENT_MAGIC;
    client->options = *options;
    client->replicas = 1;
    as_metric_register(assay_metrics, ASSAY_METRIC_COUNT);
    if (getrandom(client->instance_id, sizeof(client->instance_id), 0) !=
        sizeof(client->instance_id)) {
        AS_ERROR("client", "no random bytes for the instance id");
        status = AS_ERR_IO;
    }
    if (status == AS_OK) {
        status = client_fill(client);
    }
    if (status != AS_OK) {
        assay_client_free(client);
        return status;
    }
    *client_p = client;
    return AS_OK;
}

// Also of a client that is only half made.
void assay_client_free(assay_client_t *client)
{
    if (!client) {
        return;
    }
    AS_ASSERT(client->magic == ASSAY_CLIENT_MAGIC);
    client->closing = true;
    for (assay_fetch_t *fetch = client->fetches, *next; fetch; fetch = next) {
        next = fetch->next;
        assay_fetch_cancel(fetch);
    }
    assay_put_close_all(client);
    for (assay_link_t *link = client->links; link; link = link->next) {
        assay_link_fail(link, AS_ERR_CANCELLED);
    }
    as_net_free(client->net); // every callback that is still out comes now
    while (client->fetches) {
        assay_fetch_settle(client->fetches);
    }
    assay_put_close_all(client);
    while (client->links) {
        assay_link_close(client->links);
    }
    as_timer_free(client->token_timer);
    as_cipher_free(client->cipher);
    as_pool_free(client->reads);
    as_pool_free(client->puts_pool);
    assay_stage_free(client);
    as_mem_free(client->calls);
    client->magic = 0;
    as_mem_free(client);
}

// ---- stores

// The link of this store, made when there is none. NULL: no memory; the store is left out until the
// next set.
static assay_link_t *link_of(assay_client_t *client, const assay_store_t *store)
{
    for (assay_link_t *link = client->links; link; link = link->next) {
        if (link->store.node_id == store->node_id &&
            strcmp(link->store.data_address, store->data_address) == 0) {
            return link;
        }
    }
    assay_link_t *link;
    return assay_link_make(client, store, &link) == AS_OK ? link : NULL;
}

void assay_client_set_stores(assay_client_t *client, const assay_store_t *stores, uint32_t count)
{
    AS_ASSERT(client->magic == ASSAY_CLIENT_MAGIC);
    for (assay_link_t *link = client->links; link; link = link->next) {
        link->member = false;
    }
    client->store_count = 0;
    for (uint32_t i = 0; i < count && client->store_count < ASSAY_STORES_MAX; i++) {
        const assay_store_t *store = &stores[i];
        bool sound =
            store->node_id != 0 && memchr(store->data_address, 0, sizeof(store->data_address));
        if (!sound || assay_link_find(client, store->node_id)) {
            continue;
        }
        assay_link_t *link = link_of(client, store);
        if (link) {
            link->member = true;
            link->store = *store;
            client->stores[client->store_count++] = *store;
        }
    }
    for (assay_link_t *link = client->links, *next; link; link = next) {
        next = link->next;
        if (!link->member && link->refs == 0) {
            assay_link_close(link);
        }
    }
}

uint32_t assay_client_store_count(const assay_client_t *client)
{
    return client->store_count;
}

void assay_client_set_replicas(assay_client_t *client, uint32_t replicas)
{
    AS_ASSERT(client->magic == ASSAY_CLIENT_MAGIC);
    replicas = replicas > 0 ? replicas : 1; // 0: a scheduler that knows of none
    client->replicas = replicas < ASSAY_REPLICAS_MAX ? replicas : ASSAY_REPLICAS_MAX;
}
