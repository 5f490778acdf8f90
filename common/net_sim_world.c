// SPDX-License-Identifier: Apache-2.0
// The simulated world: its events, its chance and its trace. See net_sim_world.h.
#include "common/net_sim_world.h"

#include <string.h>

#include "common/assert.h"
#include "common/mem.h"

#define HEAP_EVENTS_MIN 256u
#define MILLION         1000000u

enum { TRACE_FIRE = 1 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t as_sim_random(as_sim_t *sim) // splitmix64 (Steele, Lea, Flood 2014)
{
    sim->random_state += 0x9e3779b97f4a7c15ull;
    return mix(sim->random_state);
}

uint64_t as_sim_trace(const as_sim_t *sim)
{
    return sim->trace;
}

void sim_trace_add(as_sim_t *sim, uint64_t what, uint64_t value)
{
    sim->trace = mix(sim->trace ^ mix(what) ^ (value * 0x9e3779b97f4a7c15ull));
}

bool sim_chance(as_sim_t *sim, uint32_t ppm)
{
    return ppm > 0 && as_sim_random(sim) % MILLION < ppm;
}

uint64_t sim_delay_us(as_sim_t *sim)
{
    const as_sim_faults_t *faults = &sim->faults;
    uint64_t spread_us = faults->delay_us_max > faults->delay_us_min
                             ? faults->delay_us_max - faults->delay_us_min
                             : 0;
    return 1 + faults->delay_us_min + (spread_us ? as_sim_random(sim) % (spread_us + 1) : 0);
}

void as_sim_flip(as_sim_t *sim, size_t bytes_min, uint32_t skip)
{
    sim->flip.bytes_min = bytes_min;
    sim->flip.skip = skip;
}

uint64_t as_sim_flips(const as_sim_t *sim)
{
    return sim->flip.done;
}

static bool is_aimed_at(as_sim_t *sim, size_t bytes)
{
    if (sim->flip.bytes_min == 0 || bytes < sim->flip.bytes_min) {
        return false;
    }
    if (sim->flip.skip > 0) {
        sim->flip.skip--;
        return false;
    }
    sim->flip.bytes_min = 0;
    sim->flip.done++;
    return true;
}

void sim_corrupt(as_sim_t *sim, void *data, size_t bytes)
{
    if (bytes > 0 && (is_aimed_at(sim, bytes) || sim_chance(sim, sim->faults.corrupt_ppm))) {
        uint64_t random = as_sim_random(sim);
        ((unsigned char *)data)[(random >> 8) % bytes] ^= (unsigned char)(1u << (random & 7));
    }
}

// ---- events

static bool due_before(const sim_event_t *a, const sim_event_t *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->order < b->order;
}

static void heap_push(as_sim_t *sim, sim_event_t *event)
{
    if (sim->heap_count == sim->heap_capacity) {
        uint32_t capacity = sim->heap_capacity ? 2 * sim->heap_capacity : HEAP_EVENTS_MIN;
        sim_event_t **heap = sim_must_alloc(capacity * sizeof(sim_event_t *));
        if (sim->heap_count > 0) {
            memcpy(heap, sim->heap, sim->heap_count * sizeof(sim_event_t *));
        }
        as_mem_free(sim->heap);
        sim->heap = heap;
        sim->heap_capacity = capacity;
    }
    uint32_t at = sim->heap_count++;
    while (at > 0 && due_before(event, sim->heap[(at - 1) / 2])) {
        sim->heap[at] = sim->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    sim->heap[at] = event;
}

static sim_event_t *heap_pop(as_sim_t *sim)
{
    sim_event_t *first = sim->heap[0];
    sim_event_t *moved = sim->heap[--sim->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < sim->heap_count && due_before(sim->heap[child + 1], sim->heap[child])) {
            child++;
        }
        if (child >= sim->heap_count || due_before(moved, sim->heap[child])) {
            break;
        }
        sim->heap[at] = sim->heap[child];
        at = child;
    }
    sim->heap[at] = moved;
    return first;
}

static void timer_set(as_sim_t *sim)
{
    if (sim->heap_count > 0) {
        uint64_t now_us = as_loop_now_us(sim->loop);
        uint64_t due_us = sim->heap[0]->due_us;
        as_timer_start(sim->timer, due_us > now_us ? due_us - now_us : 0);
    }
}

static void on_timer(void *ctx)
{
    as_sim_t *sim = ctx;
    if (sim->heap_count > 0 && sim->heap[0]->due_us <= as_loop_now_us(sim->loop)) {
        sim_event_t *event = heap_pop(sim);
        sim_trace_add(sim, TRACE_FIRE, event->due_us);
        sim_trace_add(sim, TRACE_FIRE, event->order);
        event->kept = false;
        event->fire(event);
        if (!event->kept) {
            sim_event_free(event);
        }
    }
    timer_set(sim);
}

void *sim_must_alloc(size_t bytes)
{
    void *memory = as_mem_zalloc(1, bytes);
    if (!memory) {
        memory = as_mem_zalloc(1, bytes);
    }
    AS_ASSERT(memory);
    return memory;
}

void *sim_event_alloc(as_sim_t *sim, size_t bytes, void (*fire)(sim_event_t *event))
{
    sim_event_t *event = sim_must_alloc(bytes);
    event->sim = sim;
    event->fire = fire;
    return event;
}

void sim_event_schedule(sim_event_t *event, uint64_t delay_us)
{
    as_sim_t *sim = event->sim;
    event->kept = true;
    event->due_us = as_loop_now_us(sim->loop) + delay_us;
    event->order = sim->order_next++;
    heap_push(sim, event);
    if (sim->heap[0] == event) {
        timer_set(sim);
    }
}

void sim_event_free(sim_event_t *event)
{
    as_mem_free(event->owned);
    as_mem_free(event);
}

void sim_park(sim_parked_t *parked, sim_event_t *event)
{
    event->kept = true;
    event->next = NULL;
    if (parked->last) {
        parked->last->next = event;
    } else {
        parked->first = event;
    }
    parked->last = event;
}

sim_event_t *sim_unpark(sim_parked_t *parked)
{
    sim_event_t *event = parked->first;
    if (event) {
        parked->first = event->next;
        if (!parked->first) {
            parked->last = NULL;
        }
    }
    return event;
}

void sim_parked_free(sim_parked_t *parked)
{
    for (sim_event_t *event; (event = sim_unpark(parked));) {
        sim_event_free(event);
    }
}

// ---- the world

as_status_t as_sim_alloc(as_loop_t *loop, uint64_t seed, as_sim_t **sim_p)
{
    as_sim_t *sim = as_mem_zalloc(1, sizeof(*sim));
    if (!sim) {
        return AS_ERR_NO_MEMORY;
    }
    sim->loop = loop;
    sim->random_state = mix(seed);
    sim->trace = mix(seed);
    sim->onesided = true;
    sim->piece_bytes = SIZE_MAX;
    sim->id_next = 1;
    sim->port_next = 1;
    as_status_t status = as_timer_alloc(loop, on_timer, sim, &sim->timer);
    if (status != AS_OK) {
        as_mem_free(sim);
        return status;
    }
    *sim_p = sim;
    return AS_OK;
}

void as_sim_free(as_sim_t *sim)
{
    if (!sim) {
        return;
    }
    AS_ASSERT(!sim->nets); // free every net first
    sim_rpc_free(sim->rpc);
    for (uint32_t i = 0; i < sim->heap_count; i++) {
        sim_event_free(sim->heap[i]);
    }
    as_mem_free(sim->heap);
    as_timer_free(sim->timer);
    as_mem_free(sim);
}

void as_sim_set_faults(as_sim_t *sim, const as_sim_faults_t *faults)
{
    sim->faults = *faults;
}

void as_sim_set_onesided(as_sim_t *sim, bool onesided)
{
    sim->onesided = onesided;
}

void as_sim_set_piece_bytes(as_sim_t *sim, size_t bytes)
{
    sim->piece_bytes = bytes;
}
