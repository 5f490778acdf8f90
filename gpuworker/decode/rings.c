// SPDX-License-Identifier: Apache-2.0
// Two reservation rings, of link time and of device bytes.
#include "gpuworker/decode/rings.h"

#include <string.h>

#include "common/assert.h"

void gpw_rings_init(gpw_rings_t *rings, uint64_t bytes_max)
{
    memset(rings, 0, sizeof(*rings));
    rings->bytes_max = bytes_max;
}

void gpw_rings_advance(gpw_rings_t *rings, uint64_t now_us)
{
    uint64_t now = now_us / GPW_RINGS_WINDOW_US;
    for (uint32_t i = 0; rings->first < now; rings->first++, i++) {
        if (i == GPW_RINGS_WINDOWS) { // all of it is past
            rings->first = now;
            return;
        }
        rings->link_us[rings->first % GPW_RINGS_WINDOWS] = 0;
        rings->bytes[rings->first % GPW_RINGS_WINDOWS] = 0;
    }
}

// What the booking has of the link in one of its windows.
static uint32_t share_us(const gpw_booking_t *booking, uint64_t window)
{
    if (window == booking->begin) {
        return booking->head_us;
    }
    return window + 1 == booking->end ? booking->tail_us : GPW_RINGS_WINDOW_US;
}

static bool has_bytes(const gpw_rings_t *rings, uint64_t window, uint64_t bytes)
{
    return bytes <= rings->bytes_max &&
           rings->bytes[window % GPW_RINGS_WINDOWS] <= rings->bytes_max - bytes;
}

// Whether the swap can begin in this window. Else *next_p is the first in which it may.
static bool fits(const gpw_rings_t *rings, const gpw_rings_ask_t *ask, uint64_t window,
                 gpw_booking_t *booking, uint64_t *next_p)
{
    uint32_t room = GPW_RINGS_WINDOW_US - rings->link_us[window % GPW_RINGS_WINDOWS];
    uint64_t left = ask->link_us, w = window;
    *next_p = window + 1;
    if (room == 0 || !has_bytes(rings, window, ask->bytes)) {
        return false;
    }
    *booking = (gpw_booking_t){.begin = window, .bytes = ask->bytes};
    booking->head_us = left < room ? (uint32_t)left : room;
    left -= booking->head_us;
    for (w = window + 1; left > 0; w++) {
        uint32_t need = left < GPW_RINGS_WINDOW_US ? (uint32_t)left : GPW_RINGS_WINDOW_US;
        if (w == rings->first + GPW_RINGS_WINDOWS) {
            return false;
        }
        if (!has_bytes(rings, w, ask->bytes) ||
            rings->link_us[w % GPW_RINGS_WINDOWS] > GPW_RINGS_WINDOW_US - need) {
            *next_p = w;
            return false;
        }
        booking->tail_us = need;
        left -= need;
    }
    booking->end = w;
    return true;
}

static void take(gpw_rings_t *rings, const gpw_booking_t *booking)
{
    for (uint64_t w = booking->begin; w < booking->end; w++) {
        rings->link_us[w % GPW_RINGS_WINDOWS] += share_us(booking, w);
        rings->bytes[w % GPW_RINGS_WINDOWS] += booking->bytes;
        AS_ASSERT(rings->link_us[w % GPW_RINGS_WINDOWS] <= GPW_RINGS_WINDOW_US);
        AS_ASSERT(rings->bytes[w % GPW_RINGS_WINDOWS] <= rings->bytes_max);
    }
}

bool gpw_rings_book(gpw_rings_t *rings, const gpw_rings_ask_t *ask, gpw_booking_t *booking_p)
{
    gpw_rings_advance(rings, ask->now_us);
    uint64_t window = ask->earliest_us / GPW_RINGS_WINDOW_US, next;
    window = window > rings->first ? window : rings->first;
    gpw_booking_t booking;
    for (; window < rings->first + GPW_RINGS_WINDOWS; window = next) {
        if (fits(rings, ask, window, &booking, &next)) {
            take(rings, &booking);
            *booking_p = booking;
            return true;
        }
    }
    *booking_p = (gpw_booking_t){0};
    return false;
}

void gpw_rings_cancel(gpw_rings_t *rings, gpw_booking_t *booking)
{
    uint64_t from = booking->begin > rings->first ? booking->begin : rings->first;
    for (uint64_t w = from; w < booking->end; w++) {
        uint32_t us = share_us(booking, w);
        AS_ASSERT(rings->link_us[w % GPW_RINGS_WINDOWS] >= us);
        AS_ASSERT(rings->bytes[w % GPW_RINGS_WINDOWS] >= booking->bytes);
        rings->link_us[w % GPW_RINGS_WINDOWS] -= us;
        rings->bytes[w % GPW_RINGS_WINDOWS] -= booking->bytes;
    }
    *booking = (gpw_booking_t){0};
}

uint64_t gpw_booking_begin_us(const gpw_booking_t *booking)
{
    AS_ASSERT(!gpw_booking_is_empty(booking));
    return booking->begin * GPW_RINGS_WINDOW_US;
}
