// SPDX-License-Identifier: Apache-2.0
// How fast each store is, as this client saw it, and what loading blocks will take.
//
// Of each link: the time of a LOCATE, and bytes over the time in which bytes were owed. A reader that
// is slow itself, with a ring of few layers, leaves the link idle meanwhile, and that time does not
// count. Both are running means. What was measured long ago counts as not known, so that somebody
// tries again: a link that was slow once may be fast now.
#include "client/internal.h"

#define FRESH_US 30000000u // as long a measurement is believed
#define SAMPLE_BYTES                                                                               \
    (256u << 10)    // fewer bytes tell more of the time there and back than of the rate
#define NEWEST 0.25 // weight of the newest sample

static double mean(double before, double sample)
{
    return before > 0 ? before + NEWEST * (sample - before) : sample;
}

void assay_rate_located(assay_link_t *link, uint64_t us)
{
    link->rate.locate_us = mean(link->rate.locate_us, us > 0 ? (double)us : 1);
}

// The answer would have taken longer still. What was given up sooner than it usually comes tells
// nothing.
void assay_rate_waited(assay_link_t *link, uint64_t us)
{
    if ((double)us > link->rate.locate_us) {
        assay_rate_located(link, us);
    }
}

// Bytes are owed from here on; `us`: now.
void assay_rate_begin(assay_link_t *link, uint64_t us)
{
    if (!link->rate.busy) {
        link->rate.busy = true;
        link->rate.since_us = us;
    }
}

void assay_rate_arrived(assay_link_t *link, size_t bytes)
{
    if (link->rate.busy) { // else it was reset meanwhile: its time is not known
        link->rate.bytes += bytes;
    }
}

// Nothing is owed any more, or enough is here for a sample.
void assay_rate_end(assay_link_t *link, uint64_t us, bool idle)
{
    link_rate_t *rate = &link->rate;
    if (!rate->busy || (!idle && rate->bytes < SAMPLE_BYTES)) {
        return;
    }
    rate->spent_us += us - rate->since_us;
    rate->since_us = us;
    rate->busy = !idle;
    if (rate->bytes < SAMPLE_BYTES) {
        return; // goes on with the next
    }
    double spent_us = rate->spent_us > 0 ? (double)rate->spent_us : 1;
    rate->bytes_per_us = mean(rate->bytes_per_us, (double)rate->bytes / spent_us);
    rate->measured_us = us;
    rate->bytes = rate->spent_us = 0;
}

// What is under way is void with its connection.
void assay_rate_reset(assay_link_t *link)
{
    link->rate.busy = false;
    link->rate.bytes = link->rate.spent_us = 0;
}

static bool is_known(const assay_link_t *link, uint64_t now_us)
{
    return link->rate.bytes_per_us > 0 && link->rate.locate_us > 0 &&
           now_us - link->rate.measured_us < FRESH_US;
}

uint64_t assay_client_load_us(const assay_client_t *client, const uint64_t *node_ids,
                              uint32_t block_count, size_t block_bytes)
{
    uint64_t now_us = assay_now_us(client);
    double longest_us = 0;
    uint32_t counted = 0;
    for (const assay_link_t *link = client->links; link; link = link->next) {
        uint32_t own = 0;
        for (uint32_t b = 0; link->member && b < block_count; b++) {
            own += node_ids[b] == link->store.node_id;
        }
        if (own == 0) {
            continue;
        }
        if (!is_known(link, now_us)) {
            return 0;
        }
        counted += own;
        // Stores are read at the same time; what is owed already comes first.
        double bytes = (double)own * (double)block_bytes + (double)link->bytes_in_flight;
        double us = link->rate.locate_us + bytes / link->rate.bytes_per_us;
        longest_us = us > longest_us ? us : longest_us;
    }
    return counted == block_count && block_count > 0 ? (uint64_t)longest_us + 1 : 0;
}

uint32_t assay_client_rates(const assay_client_t *client, assay_rate_t *rates, uint32_t count_max)
{
    uint64_t now_us = assay_now_us(client);
    uint32_t count = 0;
    for (const assay_link_t *link = client->links; link && count < count_max; link = link->next) {
        if (link->member) {
            bool known = is_known(link, now_us);
            rates[count++] =
                (assay_rate_t){.store = link->store,
                               .is_connected = link->state == LINK_READY,
                               .locate_us = (uint64_t)link->rate.locate_us,
                               .bytes_per_s = known ? (uint64_t)(link->rate.bytes_per_us * 1e6) : 0,
                               .window_bytes = assay_window_bytes(link)};
        }
    }
    return count;
}
