// SPDX-License-Identifier: Apache-2.0
// Placement: weighted rendezvous hashing of runs of blocks over the store nodes. The copies of a
// run are at the nodes of the highest scores, and readers look for them in that order.
//
// Every client computes the same node from the same list, without asking anyone; when a node comes
// or goes, only the runs that it wins or loses move; one that drains has gone already. The weight of a node is its capacity: the
// score is -weight / ln(u) with u uniform in (0, 1) from the hash of run and node, which chooses
// each node in proportion to its weight.
#include <math.h>

#include "client/internal.h"

// Mixes 64 bits well (the finalizer of splitmix64); a key is uniform already, a node id need not
// be.
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static double score(const assay_store_t *store, const as_key_t *run_key)
{
    uint64_t hash = mix(as_key_hash(run_key) ^ mix(store->node_id));
    double uniform = ((double)(hash >> 11) + 0.5) * 0x1p-53;
    double weight = store->capacity_bytes > 0 ? (double)store->capacity_bytes : 1.0;
    return -weight / log(uniform);
}

uint32_t assay_rank(const assay_store_t *stores, uint32_t store_count, const as_key_t *run_key,
                    uint64_t *node_ids, uint32_t max)
{
    double scores[ASSAY_STORES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < store_count; i++) {
        if (stores[i].draining) {
            continue;
        }
        uint64_t id = stores[i].node_id;
        double s = score(&stores[i], run_key);
        uint32_t at = count;
        while (at > 0 && (s > scores[at - 1] || (s == scores[at - 1] && id < node_ids[at - 1]))) {
            at--;
        }
        if (at == max) {
            continue;
        }
        count += count < max;
        for (uint32_t j = count - 1; j > at; j--) {
            scores[j] = scores[j - 1];
            node_ids[j] = node_ids[j - 1];
        }
        scores[at] = s;
        node_ids[at] = id;
    }
    return count;
}

uint32_t assay_client_rank(const assay_client_t *client, const as_key_t *run_key,
                           uint64_t *node_ids, uint32_t max)
{
    return assay_rank(client->stores, client->store_count, run_key, node_ids, max);
}

uint64_t assay_client_place(const assay_client_t *client, const as_key_t *run_key)
{
    uint64_t best = 0;
    return assay_client_rank(client, run_key, &best, 1) == 1 ? best : 0;
}
