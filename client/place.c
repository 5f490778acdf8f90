// SPDX-License-Identifier: Apache-2.0
// Placement: weighted rendezvous hashing of runs of blocks over the store nodes.
//
// Every client computes the same node from the same list, without asking anyone; when a node comes
// or goes, only the runs that it wins or loses move. The weight of a node is its capacity: the
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

uint64_t assay_client_place(const assay_client_t *client, const as_key_t *run_key)
{
    uint64_t best = 0;
    double best_score = 0;
    for (uint32_t i = 0; i < client->store_count; i++) {
        double s = score(&client->stores[i], run_key);
        bool wins =
            best == 0 || s > best_score || (s == best_score && client->stores[i].node_id < best);
        if (wins) {
            best = client->stores[i].node_id;
            best_score = s;
        }
    }
    return best;
}
