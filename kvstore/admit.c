// SPDX-License-Identifier: Apache-2.0
// Who may do what: tokens of connections. A store with --cluster-key lets nobody connect without a good
// token, and admits a connection by the token of its HELLO; without the key everybody may do
// everything, as one tenant.
//
// A connection keeps what its token says: tenant, rights, until when. It ends when the token expires
// or its key is taken out of the key file, unless a HELLO with another token of the same tenant came
// before; so what it leased is no longer read either. One that says no HELLO is ended too, so that
// strangers do not use up the connections.
#include <string.h>

#include "common/assert.h"
#include "common/log.h"
#include "kvstore/store.h"

#define TELL_US    1000000u // between two lines in the log
#define LOOK_US    1000000u // between two looks at the key file and at the connections
#define HELLO_US   5000000u // in which a connection must say HELLO
#define FOREVER_S  (UINT64_MAX / 1000000 / 2)
#define NO_RIGHT   AS_TOKEN_FAULT_COUNT
#define EVERYTHING ((uint32_t)AS_TOKEN_RIGHTS)

struct kvs_admit {
    as_cluster_ring_t ring;
    as_timer_t *timer;
    as_log_due_t due; // of denials
};

static void deny(kvs_store_t *store, as_token_fault_t fault, uint32_t tenant)
{
    static const kvs_metric_t metrics[] = {
        [AS_TOKEN_MALFORMED] = KVS_METRIC_DENIED_TOKEN,
        [AS_TOKEN_UNKNOWN_KEY] = KVS_METRIC_DENIED_KEY,
        [AS_TOKEN_FORGED] = KVS_METRIC_DENIED_FORGED,
        [AS_TOKEN_EXPIRED] = KVS_METRIC_DENIED_EXPIRED,
        [NO_RIGHT] = KVS_METRIC_DENIED_RIGHT,
    };
    kvs_count(&store->counted.denied, metrics[fault], 1);
    uint64_t untold, now_us = as_loop_now_us(store->options.loop);
    if (as_log_is_due(&store->admit->due, now_us, TELL_US, &untold)) {
        AS_WARN("kvstore",
                "denied: a client of tenant %u: its token %s (and %llu more since the line before)",
                tenant,
                fault == (as_token_fault_t)NO_RIGHT ? "has not the right for what it asks"
                                                    : as_token_fault_str(fault),
                (unsigned long long)untold);
    }
}

// ---- who comes

// What the token claims, for the log: nobody has checked it.
static uint32_t claimed_tenant(const void *sealed, size_t bytes)
{
    as_token_t token = {0};
    return as_token_parse(sealed, bytes, &token) == AS_OK ? token.tenant : AS_TENANT_NONE;
}

static bool is_good(kvs_store_t *store, const void *sealed, size_t bytes, as_token_t *token_p)
{
    as_cluster_ring_refresh(&store->admit->ring);
    as_token_fault_t fault =
        as_token_check(&store->admit->ring.keys, sealed, bytes, as_token_now_s(), token_p);
    if (fault != AS_TOKEN_GOOD) {
        deny(store, fault, claimed_tenant(sealed, bytes));
    }
    return fault == AS_TOKEN_GOOD;
}

bool kvs_admit_knock(void *ctx, const void *sealed, size_t bytes)
{
    kvs_store_t *store = ctx;
    as_token_t token;
    return !store->admit || is_good(store, sealed, bytes, &token);
}

as_status_t kvs_admit_hello(kvs_conn_t *conn, const as_wire_hello_t *hello)
{
    kvs_store_t *store = conn->store;
    if (hello->token_bytes != 0 && hello->token_bytes != AS_TOKEN_BYTES) {
        return AS_ERR_INVALID;
    }
    if (!store->admit) {
        conn->rights = EVERYTHING;
        conn->until_us = UINT64_MAX;
        return AS_OK;
    }
    as_token_t token;
    if (!is_good(store, hello->token, hello->token_bytes, &token)) {
        return AS_ERR_DENIED;
    }
    if (conn->greeted && token.tenant != conn->tenant) {
        return AS_ERR_INVALID;
    }
    uint64_t now_s = as_token_now_s();
    uint64_t left_s = token.not_after_s > now_s ? token.not_after_s - now_s : 0;
    left_s = left_s < FOREVER_S ? left_s : FOREVER_S;
    conn->tenant = token.tenant;
    conn->rights = token.rights;
    conn->key_id = token.key_id;
    conn->until_us = as_loop_now_us(store->options.loop) + left_s * 1000000;
    return AS_OK;
}

// ---- questions

static bool is_over(const kvs_conn_t *conn)
{
    return conn->until_us != UINT64_MAX &&
           conn->until_us <= as_loop_now_us(conn->store->options.loop);
}

as_status_t kvs_admit_ask(kvs_conn_t *conn, uint32_t rights)
{
    if (is_over(conn)) {
        deny(conn->store, AS_TOKEN_EXPIRED, conn->tenant);
        kvs_conn_close(conn);
        return AS_ERR_PEER_LOST;
    }
    if ((conn->rights & rights) != rights) {
        deny(conn->store, (as_token_fault_t)NO_RIGHT, conn->tenant);
        return AS_ERR_DENIED;
    }
    return AS_OK;
}

bool kvs_admit_tenant(const kvs_conn_t *conn, uint32_t named, uint32_t *tenant_p)
{
    bool is_peer = conn->rights & AS_TOKEN_PEER;
    *tenant_p = is_peer ? named : conn->tenant;
    return is_peer || named == AS_TENANT_NONE;
}

// ---- of this store, at others

bool kvs_admit_peer(kvs_store_t *store, uint64_t seconds, as_token_sealed_t *token_p)
{
    if (!store->admit) {
        return false;
    }
    as_token_t token = {.tenant = AS_TENANT_NONE,
                        .rights = AS_TOKEN_READ | AS_TOKEN_WRITE | AS_TOKEN_PEER,
                        .not_after_s = as_token_now_s() + seconds};
    return as_token_sign(&store->admit->ring.keys, &token, token_p) == AS_OK;
}

uint32_t kvs_admit_signer(const kvs_store_t *store)
{
    return store->admit ? store->admit->ring.keys.keys[0].id : 0;
}

// ---- its life

// What no message will tell: that a token has expired, or that its key is no longer there.
static void look_at(kvs_conn_t *conn, uint64_t now_us)
{
    kvs_store_t *store = conn->store;
    if (!conn->greeted) {
        if (now_us - conn->accepted_us >= HELLO_US) {
            AS_DEBUG("kvstore", "connection closed: it said no HELLO");
            kvs_conn_close(conn);
        }
        return;
    }
    bool has_key = as_cluster_key_find(&store->admit->ring.keys, conn->key_id);
    if (!has_key || is_over(conn)) {
        deny(store, has_key ? AS_TOKEN_EXPIRED : AS_TOKEN_UNKNOWN_KEY, conn->tenant);
        kvs_conn_close(conn);
    }
}

static void look_at_all(kvs_store_t *store)
{
    uint64_t now_us = as_loop_now_us(store->options.loop);
    for (kvs_conn_t *conn = store->conns, *next; conn; conn = next) {
        next = conn->next;
        look_at(conn, now_us);
    }
}

static void on_look(void *ctx)
{
    kvs_store_t *store = ctx;
    as_cluster_ring_refresh(&store->admit->ring);
    look_at_all(store);
    as_timer_start(store->admit->timer, LOOK_US);
}

void kvs_admit_reload(kvs_store_t *store)
{
    if (store->admit && as_cluster_ring_reload(&store->admit->ring)) {
        look_at_all(store);
    }
}

as_status_t kvs_admit_alloc(kvs_store_t *store)
{
    const char *path = store->options.cluster_key;
    if (!path) {
        AS_INFO("kvstore",
                "no --cluster-key: who reaches the data port may read and write all of it");
        return AS_OK;
    }
    kvs_admit_t *admit = as_mem_zalloc(1, sizeof(*admit));
    if (!admit) {
        return AS_ERR_NO_MEMORY;
    }
    store->admit = admit;
    as_status_t status = as_cluster_ring_open(&admit->ring, path);
    if (status == AS_OK) {
        status = as_timer_alloc(store->options.loop, on_look, store, &admit->timer);
    } else if (status != AS_ERR_NO_MEMORY) {
        status = AS_ERR_CONFIG;
    }
    if (status == AS_OK) {
        as_timer_start(admit->timer, LOOK_US);
    }
    return status;
}

void kvs_admit_free(kvs_store_t *store)
{
    kvs_admit_t *admit = store->admit;
    if (admit) {
        as_timer_free(admit->timer);
        as_cluster_keys_wipe(&admit->ring.keys);
        as_mem_free(admit);
        store->admit = NULL;
    }
}
