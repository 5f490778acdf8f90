// SPDX-License-Identifier: Apache-2.0
// The simulated world under net_sim.c and rpc_sim.c: events in virtual time, chance, and the trace.
//
// Everything that happens is an event: made with sim_event_alloc, scheduled once, fired by the one
// timer of the world in order of (time, making), and freed after, unless its handler scheduled or
// parked it anew. Objects are named by ids that are never reused, so an event whose object has gone
// finds nothing and does nothing.
#ifndef AS_NET_SIM_WORLD_H
#define AS_NET_SIM_WORLD_H

#include <stddef.h>

#include "common/net_sim.h"

typedef struct sim_event sim_event_t;
struct sim_event {
    as_sim_t *sim;
    void (*fire)(sim_event_t *event);
    uint64_t due_us;
    uint64_t order;
    sim_event_t *next; // in a sim_parked_t
    void *owned;       // freed with the event
    bool kept;         // scheduled or parked again by its handler
};

// Events that wait for something else than time, oldest first.
typedef struct sim_parked {
    sim_event_t *first, *last;
} sim_parked_t;

typedef struct sim_net sim_net_t;
typedef struct sim_rpc sim_rpc_t;

struct as_sim {
    as_loop_t *loop;
    as_timer_t *timer;
    uint64_t random_state;
    as_sim_faults_t faults;
    struct {
        size_t bytes_min; // 0: none is to come
        uint32_t skip;
        uint64_t done;
    } flip;
    bool onesided;
    size_t piece_bytes;
    uint64_t trace;
    uint64_t id_next;
    uint32_t port_next;
    uint64_t order_next;
    sim_event_t **heap; // heap[0] is due first
    uint32_t heap_count, heap_capacity;
    sim_net_t *nets; // of net_sim.c
    sim_rpc_t *rpc;  // of rpc_sim.c; made when first used
};

// Never NULL: a world that cannot make its events is of no use to a test. An allocation that a test
// has made fail is tried once more.
void *sim_must_alloc(size_t bytes);
// `bytes` is the size of the struct that begins with the event. Schedule, park or free it.
void *sim_event_alloc(as_sim_t *sim, size_t bytes, void (*fire)(sim_event_t *event));
void sim_event_schedule(sim_event_t *event, uint64_t delay_us);
void sim_event_free(sim_event_t *event);
void sim_park(sim_parked_t *parked, sim_event_t *event);
sim_event_t *sim_unpark(sim_parked_t *parked); // the oldest, or NULL
void sim_parked_free(sim_parked_t *parked);

bool sim_chance(as_sim_t *sim, uint32_t ppm);
uint64_t sim_delay_us(as_sim_t *sim); // of one message; at least 1, so that time moves
void sim_corrupt(as_sim_t *sim, void *data, size_t bytes); // flips a byte, by chance
void sim_trace_add(as_sim_t *sim, uint64_t what, uint64_t value);

// rpc_sim.c
void sim_rpc_free(sim_rpc_t *rpc);

#endif
