// SPDX-License-Identifier: Apache-2.0
// The hub of one loop's remote calls: a gRPC completion queue, its thread, and the way back to the
// loop. See rpc_grpc.h.
#include "common/rpc_grpc.h"

#include <errno.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <uv.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"

#define DRAIN_SECONDS_MAX 60 // completions of cancelled work are local; a queue this late is broken

struct rpc_hub {
    as_loop_t *loop;
    uint32_t users; // servers and clients
    uint32_t busy;  // servers, and calls in flight of clients: what the loop has to wait for
    grpc_completion_queue *queue;
    pthread_t thread;
    uv_async_t wake;
    _Atomic(rpc_event_t *) inbox; // newest first, from the thread
    rpc_event_t *ready;           // oldest first, loop only
    rpc_event_t **ready_end;
    atomic_bool draining; // the loop is waiting on `arrived`
    sem_t arrived;
    atomic_uint_fast64_t
        started; // orders what the loop wrote into an event before the thread's use
    rpc_hub_t *next;
};

static pthread_mutex_t hubs_lock = PTHREAD_MUTEX_INITIALIZER;
static rpc_hub_t *hubs;

static void grpc_log(gpr_log_func_args *args)
{
    AS_DEBUG("rpc", "grpc %s:%d %s", args->file, args->line, args->message);
}

static void *queue_main(void *ctx)
{
    rpc_hub_t *hub = ctx;
    for (;;) {
        grpc_event got =
            grpc_completion_queue_next(hub->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (got.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        AS_ASSERT(got.type == GRPC_OP_COMPLETE);
        (void)atomic_load_explicit(&hub->started, memory_order_acquire);
        rpc_event_t *event = got.tag;
        event->ok = got.success != 0;
        rpc_event_t *newest = atomic_load_explicit(&hub->inbox, memory_order_relaxed);
        do {
            event->next = newest;
        } while (!atomic_compare_exchange_weak(&hub->inbox, &newest, event));
        if (!newest) {
            uv_async_send(&hub->wake);
        }
        if (atomic_load(&hub->draining)) {
            sem_post(&hub->arrived);
        }
    }
}

// Moves what has arrived to the end of the ready list, oldest first.
static void hub_collect(rpc_hub_t *hub)
{
    rpc_event_t *event = atomic_exchange(&hub->inbox, NULL);
    rpc_event_t *oldest = NULL;
    while (event) {
        rpc_event_t *next = event->next;
        event->next = oldest;
        oldest = event;
        event = next;
    }
    *hub->ready_end = oldest;
    while (*hub->ready_end) {
        hub->ready_end = &(*hub->ready_end)->next;
    }
}

static void hub_handle(rpc_hub_t *hub, rpc_event_t **at)
{
    rpc_event_t *event = *at;
    *at = event->next;
    if (!*at) {
        hub->ready_end = at;
    }
    event->owner->owed--;
    event->fn(event->ctx, event->ok);
}

static void hub_on_wake(uv_async_t *wake)
{
    rpc_hub_t *hub = wake->data; // outlives this callback even when the last user is freed in it
    hub_collect(hub);
    while (hub->ready) {
        hub_handle(hub, &hub->ready);
    }
}

void rpc_hub_drain(rpc_hub_t *hub, rpc_owner_t *owner)
{
    atomic_store(&hub->draining, true);
    while (owner->owed > 0) {
        hub_collect(hub);
        rpc_event_t **at = &hub->ready;
        while (*at && (*at)->owner != owner) {
            at = &(*at)->next;
        }
        if (*at) {
            hub_handle(hub, at);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += DRAIN_SECONDS_MAX;
        while (sem_timedwait(&hub->arrived, &until) != 0) {
            AS_ASSERT(errno == EINTR);
        }
    }
    atomic_store(&hub->draining, false);
    if (hub->ready) {
        uv_async_send(&hub->wake);
    }
}

grpc_completion_queue *rpc_hub_queue(rpc_hub_t *hub)
{
    return hub->queue;
}

void rpc_hub_busy(rpc_hub_t *hub, int change)
{
    hub->busy += (uint32_t)change;
    if (hub->busy > 0) {
        uv_ref((uv_handle_t *)&hub->wake);
    } else {
        uv_unref((uv_handle_t *)&hub->wake);
    }
}

void rpc_owe(rpc_owner_t *owner)
{
    owner->owed++;
    atomic_fetch_add_explicit(&owner->hub->started, 1, memory_order_release);
}

static int hub_thread_start(rpc_hub_t *hub)
{
    sigset_t all, before; // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&hub->thread, NULL, queue_main, hub);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static as_status_t hub_alloc(as_loop_t *loop, rpc_hub_t **hub_p)
{
    rpc_hub_t *hub = as_mem_zalloc(1, sizeof(*hub));
    if (!hub) {
        return AS_ERR_NO_MEMORY;
    }
    hub->loop = loop;
    hub->ready_end = &hub->ready;
    hub->wake.data = hub;
    sem_init(&hub->arrived, 0, 0);
    gpr_set_log_function(grpc_log);
    grpc_init();
    hub->queue = grpc_completion_queue_create_for_next(NULL);
    bool started = hub_thread_start(hub) == 0;
    if (started && uv_async_init(as_loop_uv(loop), &hub->wake, hub_on_wake) == 0) {
        uv_unref((uv_handle_t *)&hub->wake);
        *hub_p = hub;
        return AS_OK;
    }
    AS_ERROR("rpc", "cannot start the thread of a completion queue");
    grpc_completion_queue_shutdown(hub->queue);
    if (started) {
        pthread_join(hub->thread, NULL);
    }
    grpc_completion_queue_destroy(hub->queue);
    grpc_shutdown_blocking();
    sem_destroy(&hub->arrived);
    as_mem_free(hub);
    return AS_ERR_NO_MEMORY;
}

as_status_t rpc_hub_get(as_loop_t *loop, rpc_hub_t **hub_p)
{
    pthread_mutex_lock(&hubs_lock);
    rpc_hub_t *hub = hubs;
    while (hub && hub->loop != loop) {
        hub = hub->next;
    }
    as_status_t status = hub ? AS_OK : hub_alloc(loop, &hub);
    if (status == AS_OK) {
        if (hub->users++ == 0) {
            hub->next = hubs;
            hubs = hub;
        }
        *hub_p = hub;
    }
    pthread_mutex_unlock(&hubs_lock);
    return status;
}

static void hub_on_closed(uv_handle_t *wake)
{
    as_mem_free(wake->data);
}

void rpc_hub_put(rpc_hub_t *hub)
{
    pthread_mutex_lock(&hubs_lock);
    if (--hub->users > 0) {
        pthread_mutex_unlock(&hubs_lock);
        return;
    }
    rpc_hub_t **at = &hubs;
    while (*at != hub) {
        at = &(*at)->next;
    }
    *at = hub->next;
    pthread_mutex_unlock(&hubs_lock);
    grpc_completion_queue_shutdown(hub->queue);
    pthread_join(hub->thread, NULL);
    AS_ASSERT(!hub->ready && !atomic_load(&hub->inbox));
    grpc_completion_queue_destroy(hub->queue);
    grpc_shutdown_blocking();
    sem_destroy(&hub->arrived);
    uv_close((uv_handle_t *)&hub->wake, hub_on_closed);
}
