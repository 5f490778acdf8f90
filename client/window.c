// SPDX-License-Identifier: Apache-2.0
// How many bytes are asked for on a link before the first of them are here: its window.
//
// A link is kept busy by what it carries in the time that an answer takes, its rate times its delay.
// All beyond that waits in some queue, and what is urgent waits behind it. Twice as much is asked
// for, so that the window grows until the link has no more to give; it follows the largest rate and
// the smallest delay of the last seconds, as BBR's does (Cardwell et al. 2016). A near store has the
// least window.
//
// The rate of an answer is what came from when it was asked for until it is here, over that time: of
// bytes that gathered while this process slept it tells nothing wrong. Its delay counts only where
// nothing was under way when it was asked for. Others would come before it, and a window that makes
// its own delay never stops growing.
#include "client/internal.h"

#define LEAST_BYTES ((size_t)2 << 20) // more is no faster where the store is near
#define GAIN        2.0
#define PERIOD_US   5000000u // a measurement counts for one to two of them, or until there is another

static void next_period(link_window_t *window, uint64_t now_us)
{
    window->since_us = now_us;
    window->rate_before = window->rate > 0 ? window->rate : window->rate_before;
    window->delay_before_us = window->delay_us > 0 ? window->delay_us : window->delay_before_us;
    window->rate = 0;
    window->delay_us = 0;
}

static void note_rate(link_window_t *window, double rate)
{
    window->rate = rate > window->rate ? rate : window->rate;
}

static void note_delay(link_window_t *window, uint64_t us)
{
    window->delay_us = window->delay_us == 0 || us < window->delay_us ? us : window->delay_us;
}

void assay_window_reset(assay_link_t *link)
{
    link->window = (link_window_t){.since_us = assay_now_us(link->client)};
}

void assay_window_asked(assay_read_t *read)
{
    const assay_link_t *link = read->part->link;
    read->asked_us = assay_now_us(link->client);
    read->asked_alone = link->bytes_in_flight == 0;
    read->came_before = link->window.came_bytes;
}

void assay_window_came(const assay_read_t *read, size_t bytes)
{
    assay_link_t *link = read->part->link;
    link_window_t *window = &link->window;
    uint64_t now_us = assay_now_us(link->client);
    uint64_t took_us = now_us > read->asked_us ? now_us - read->asked_us : 1;
    if (now_us - window->since_us >= PERIOD_US) {
        next_period(window, now_us);
    }
    window->came_bytes += bytes;
    note_rate(window, (double)(window->came_bytes - read->came_before) / (double)took_us);
    if (read->asked_alone && read->arrived_bytes == bytes) { // the first of it
        note_delay(window, took_us);
    }
}

size_t assay_window_bytes(const assay_link_t *link)
{
    const link_window_t *window = &link->window;
    size_t most = link->client->options.bytes_in_flight_max;
    size_t least = LEAST_BYTES < most ? LEAST_BYTES : most;
    double rate = window->rate > window->rate_before ? window->rate : window->rate_before;
    uint64_t now_us = window->delay_us, before_us = window->delay_before_us;
    uint64_t delay_us = now_us == 0 || (before_us > 0 && before_us < now_us) ? before_us : now_us;
    double bytes = GAIN * rate * (double)delay_us;
    return bytes <= (double)least ? least : bytes >= (double)most ? most : (size_t)bytes;
}
