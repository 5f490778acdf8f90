// SPDX-License-Identifier: Apache-2.0
// The simulated data plane: many nets in one process on one simulated loop, with faults from a
// seed.
//
// The same seed and the same calls give the same run, event for event. A fault plan is harsher than
// a real transport: single messages may vanish, be late or overtake each other.
#ifndef AS_NET_SIM_H
#define AS_NET_SIM_H

#include "common/net.h"

typedef struct as_sim as_sim_t; // the network

typedef struct as_sim_faults {
    uint32_t loss_ppm;    // chance that a message vanishes, per million
    uint32_t corrupt_ppm; // chance that one payload byte of a message or read is flipped
    uint64_t
        delay_us_min; // per message, uniform between min and max; unequal delays reorder messages
    uint64_t delay_us_max;
    uint64_t bandwidth_bytes_per_s; // per connection and direction; 0: unlimited
} as_sim_faults_t;

as_status_t as_sim_alloc(as_loop_t *loop, uint64_t seed, as_sim_t **sim_p) AS_MUST_USE;
void as_sim_free(as_sim_t *sim);
void as_sim_set_faults(as_sim_t *sim, const as_sim_faults_t *faults);
// Flips a byte of one payload of a message or read: of the next that has at least bytes_min, after
// `skip` others that have. Keys and checksums are smaller than any extent, so it can be aimed.
void as_sim_flip(as_sim_t *sim, size_t bytes_min, uint32_t skip);
uint64_t as_sim_flips(const as_sim_t *sim); // so far
// Whether connections offer one-sided reads (default: yes), as on shared memory or not, as on TCP.
void as_sim_set_onesided(as_sim_t *sim, bool onesided);
// The most that as_conn_piece_bytes says (default: SIZE_MAX). A payload of up to so many bytes, if more than
// the 4 KiB that always do, travels with its message, and is sent once the link has taken it.
void as_sim_set_piece_bytes(as_sim_t *sim, size_t bytes);
// Next pseudo-random number of the simulation's own stream (for test drivers).
uint64_t as_sim_random(as_sim_t *sim);
// A hash of all events so far, their times included: two runs are the same when it is.
uint64_t as_sim_trace(const as_sim_t *sim);

// `name` is the host part of its address: listening on "a:0" gives "a:<port>".
as_status_t as_net_alloc_sim(as_sim_t *sim, const char *name, const as_net_handlers_t *handlers,
                             as_net_t **net_p) AS_MUST_USE;
// The node vanishes as by kill -9: peers see on_lost after a short delay; nothing it had in flight
// arrives. Its own callbacks never run again, but that as_net_free, as ever, ends what was in
// flight, so that its owner can be freed.
void as_sim_kill(as_sim_t *sim, as_net_t *net);
// As by SIGSTOP: nothing is delivered to or from the node until it is resumed. Peers are told
// nothing.
void as_sim_stop(as_sim_t *sim, as_net_t *net);
void as_sim_resume(as_sim_t *sim, as_net_t *net);

#endif
