// SPDX-License-Identifier: Apache-2.0
// Two reservation rings, of link time and of device bytes: in which windows of the time to come the
// sessions' swaps are, so that they follow each other instead of meeting (VeriCache, staggered
// verification).
//
// Time is cut into windows. A booking takes `link_us` of the link from some window on, without a gap
// (the link is serial: what it carries comes one after the other), and `bytes` of the device in every
// window that it touches. No window ever has more link time than it is long, nor more bytes than
// bytes_max. What lies in the past is forgotten.
#ifndef GPW_RINGS_H
#define GPW_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#define GPW_RINGS_WINDOWS   1024u  // that can be booked ahead
#define GPW_RINGS_WINDOW_US 40000u // so: 41 seconds

typedef struct gpw_rings {
    uint64_t first;     // number of the window of now, counted from time 0
    uint64_t bytes_max; // of each window
    uint32_t link_us[GPW_RINGS_WINDOWS];
    uint64_t bytes[GPW_RINGS_WINDOWS];
} gpw_rings_t;

typedef struct gpw_booking {
    uint64_t begin, end; // windows [begin, end), counted from time 0; equal: none
    uint32_t head_us;    // of the link in the first of them
    uint32_t tail_us;    // and in the last, where there are several; all of those between
    uint64_t bytes;
} gpw_booking_t;

// One swap, as it is asked for.
typedef struct gpw_rings_ask {
    uint64_t now_us, earliest_us;
    uint64_t link_us, bytes;
} gpw_rings_ask_t;

void gpw_rings_init(gpw_rings_t *rings, uint64_t bytes_max);
// Moves on to the window of now.
void gpw_rings_advance(gpw_rings_t *rings, uint64_t now_us);
// The first windows from earliest_us on that have room. False: there are none as far ahead as rings go.
bool gpw_rings_book(gpw_rings_t *rings, const gpw_rings_ask_t *ask, gpw_booking_t *booking_p);
// Gives back what is still to come of it; of an empty one nothing.
void gpw_rings_cancel(gpw_rings_t *rings, gpw_booking_t *booking);
uint64_t gpw_booking_begin_us(const gpw_booking_t *booking); // of a booking that is not empty
static inline bool gpw_booking_is_empty(const gpw_booking_t *booking)
{
    return booking->begin == booking->end;
}

#endif
