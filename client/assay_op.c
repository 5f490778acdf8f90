// SPDX-License-Identifier: Apache-2.0
// Operations of libassay: started, waited for, cancelled, over.
//
//   started -> (on the client's thread) begun -> over
//
// A caller's handle and the client each hold a reference, so either may let go first. Over means:
// the results are written, on_done has returned, and only then are waiters woken.
#include <errno.h>
#include <time.h>

#include "client/assay_internal.h"
#include "common/mem.h"

static void on_begin(void *ctx)
{
    assay_request_begin(ctx);
}

static void on_cancel(void *ctx)
{
    assay_request_cancel(ctx);
}

static void op_unref(assay_op_t *op)
{
    pthread_mutex_lock(&op->lock);
    bool last = --op->refs == 0;
    pthread_mutex_unlock(&op->lock);
    if (last) {
        pthread_cond_destroy(&op->over);
        pthread_mutex_destroy(&op->lock);
        as_mem_free(op->arena);
        as_mem_free(op);
    }
}

static assay_op_t *op_new(assay_t *assay)
{
    assay_op_t *op = as_mem_zalloc(1, sizeof(*op));
    if (!op) {
        return NULL;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&op->over, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&op->lock, NULL);
    op->assay = assay;
    op->thread = assay->thread;
    op->refs = 1;
    op->result = ASSAY_PENDING;
    op->begin = (as_task_t){.fn = on_begin, .ctx = op};
    op->cancel = (as_task_t){.fn = on_cancel, .ctx = op};
    return op;
}

// ---- starting

// Takes a place in flight and posts it.
static int op_post(assay_op_t *op)
{
    assay_t *assay = op->assay;
    pthread_mutex_lock(&assay->lock);
    int result = assay->closing ? ASSAY_CANCELLED : ASSAY_OK;
    if (result == ASSAY_OK && assay->stats.in_flight == assay->stats.in_flight_max) {
        assay->stats.operations_busy++;
        result = ASSAY_BUSY;
    }
    if (result == ASSAY_OK) {
        assay->stats.in_flight++;
        assay->stats.operations++;
        op->refs++;
        as_loop_post(assay->loop, &op->begin); // here, so that it comes before the end
    }
    pthread_mutex_unlock(&assay->lock);
    if (result == ASSAY_BUSY) {
        return assay_fail(result, "%u operations are in flight, as many as in_flight_max allows",
                          assay->stats.in_flight_max);
    }
    return result == ASSAY_OK ? result : assay_fail(result, "the client is being closed");
}

int assay_start(assay_t *assay, const assay_request_t *request, assay_op_t **op_p)
{
    if (!assay || !request) {
        return assay_fail(ASSAY_INVALID, "start: a client and a request must be given");
    }
    assay_op_t *op = op_new(assay);
    if (!op) {
        return assay_fail(ASSAY_FAILED, "start: out of memory");
    }
    int result = assay_request_take(assay, request, op);
    if (result == ASSAY_OK) {
        result = op_post(op);
    }
    if (result != ASSAY_OK || !op_p) {
        op_unref(op);
        return result;
    }
    *op_p = op;
    return ASSAY_OK;
}

int assay_op_run(assay_t *assay, const assay_request_t *request, assay_op_t **op_p)
{
    if (assay && pthread_equal(pthread_self(), assay->thread)) {
        return assay_fail(ASSAY_INVALID, "a callback must not wait: use assay_start there");
    }
    assay_op_t *op;
    int result = assay_start(assay, request, &op);
    if (result != ASSAY_OK) {
        return result;
    }
    pthread_mutex_lock(&op->lock);
    while (!op->is_over) { // every step of it has a deadline
        pthread_cond_wait(&op->over, &op->lock);
    }
    pthread_mutex_unlock(&op->lock);
    if (op->result < 0) {
        assay_fail(op->result, "%s", op->error);
    }
    *op_p = op;
    return op->result;
}

int assay_run(assay_t *assay, const assay_request_t *request, uint32_t *hit_p)
{
    assay_op_t *op = NULL;
    int result = assay_op_run(assay, request, &op);
    if (hit_p) {
        *hit_p = op ? op->hit : 0;
    }
    if (op) {
        op_unref(op);
    }
    return result;
}

// ---- the end

uint64_t assay_op_left_us(const assay_op_t *op)
{
    uint64_t now_us = as_loop_now_us(op->assay->loop);
    return op->deadline_us > now_us + 1000 ? op->deadline_us - now_us : 1000;
}

static bool is_stored(const assay_op_t *op, uint32_t i)
{
    return op->statuses[i] == AS_OK ||
           (op->kind == ASSAY_KIND_PUT && op->statuses[i] == AS_ERR_EXISTS);
}

// What the whole is told, what each block is, and how many from the first are hits.
static void write_results(assay_op_t *op, as_status_t status)
{
    static const char *const names[] = {"", "exists", "get", "put"};
    uint32_t total = op->count - op->first, stored = 0;
    if (op->statuses) {
        op->hit = 0;
        for (uint32_t i = 0; i < total; i++) {
            stored += is_stored(op, i);
            op->hit += op->hit == i && is_stored(op, i);
        }
    }
    bool whole = op->kind != ASSAY_KIND_GET || (op->statuses ? stored : op->hit) == total;
    int result = assay_result_of(status);
    result = result == ASSAY_OK && !whole ? ASSAY_MISS : result;
    if (result < 0) {
        bool unsafe =
            op->kind == ASSAY_KIND_PUT && (op->flags & ASSAY_DURABLE) && status == AS_ERR_IO;
        assay_describe(status,
                       unsafe ? "durable put (does the store have a --disk, and does it answer?)"
                              : names[op->kind],
                       op->error);
    }
    for (uint32_t i = 0; op->results && i < total; i++) {
        op->results[i] = op->statuses  ? assay_result_of(op->statuses[i])
                         : i < op->hit ? ASSAY_OK
                         : result < 0  ? result
                                       : ASSAY_MISS;
    }
    op->result = result;
}

static void count_blocks(const assay_op_t *op, assay_stats_t *stats)
{
    uint32_t total = op->count - op->first, good = 0, existed = 0;
    for (uint32_t i = 0; op->statuses && i < total; i++) {
        good += op->statuses[i] == AS_OK;
        existed += op->statuses[i] == AS_ERR_EXISTS;
    }
    good = op->statuses ? good : op->hit;
    if (op->kind == ASSAY_KIND_PUT) {
        stats->blocks_put += good;
        stats->bytes_put += good * as_block_bytes(&op->shape);
        stats->blocks_existed += existed;
        stats->blocks_put_failed += total - good - existed;
        return;
    }
    stats->blocks_found += good;
    stats->blocks_missed += total - good;
    if (op->kind == ASSAY_KIND_GET) {
        stats->blocks_got += good;
        stats->bytes_got += (uint64_t)good * op->layer_count * as_extent_bytes(&op->shape);
    }
}

static void leave_flight(assay_op_t *op)
{
    assay_stats_t *stats = &op->assay->stats;
    pthread_mutex_lock(&op->assay->lock);
    stats->in_flight--;
    stats->operations_timeout += op->result == ASSAY_TIMEOUT;
    stats->operations_cancelled += op->result == ASSAY_CANCELLED;
    stats->operations_failed +=
        op->result < 0 && op->result != ASSAY_TIMEOUT && op->result != ASSAY_CANCELLED;
    count_blocks(op, stats);
    pthread_mutex_unlock(&op->assay->lock);
}

void assay_op_end(assay_op_t *op, as_status_t status)
{
    pthread_mutex_lock(&op->lock); // a poll may look at it
    write_results(op, status);
    pthread_mutex_unlock(&op->lock);
    leave_flight(op); // before the callback, which may start the next
    if (op->on_done) {
        op->on_done(op->ctx, op, op->result);
    }
    pthread_mutex_lock(&op->lock);
    op->is_over = true;
    if (op->cancel_posted) {
        as_loop_unpost(op->assay->loop, &op->cancel);
    }
    pthread_cond_broadcast(&op->over);
    pthread_mutex_unlock(&op->lock);
    op_unref(op);
}

// ---- the handle

int assay_op_wait(assay_op_t *op, uint32_t timeout_ms)
{
    if (!op) {
        return assay_fail(ASSAY_INVALID, "wait: an operation must be given");
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&op->lock);
    bool own = !op->is_over && pthread_equal(pthread_self(), op->thread);
    int error = 0;
    while (!own && !op->is_over && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&op->over, &op->lock, &until);
    }
    bool is_over = op->is_over;
    pthread_mutex_unlock(&op->lock);
    if (own) {
        return assay_fail(ASSAY_INVALID, "a callback must not wait: use assay_op_result there");
    }
    if (!is_over) {
        return assay_fail(ASSAY_TIMEOUT, "the operation is not over after %u ms", timeout_ms);
    }
    return op->result < 0 ? assay_fail(op->result, "%s", op->error) : op->result;
}

int assay_op_result(assay_op_t *op)
{
    if (!op) {
        return assay_fail(ASSAY_INVALID, "result: an operation must be given");
    }
    pthread_mutex_lock(&op->lock);
    int result = op->result;
    pthread_mutex_unlock(&op->lock);
    return result;
}

uint32_t assay_op_hit(assay_op_t *op)
{
    return op && assay_op_result(op) != ASSAY_PENDING ? op->hit : 0;
}

uint64_t assay_op_load_us(assay_op_t *op)
{
    return op && assay_op_result(op) != ASSAY_PENDING ? op->load_us : 0;
}

const char *assay_op_error(assay_op_t *op)
{
    return op && assay_op_result(op) != ASSAY_PENDING ? op->error : "";
}

void assay_op_cancel(assay_op_t *op)
{
    if (!op) {
        return;
    }
    pthread_mutex_lock(&op->lock);
    if (!op->is_over && !op->cancel_posted) {
        op->cancel_posted = true;
        as_loop_post(op->assay->loop, &op->cancel);
    }
    pthread_mutex_unlock(&op->lock);
}

void assay_op_free(assay_op_t *op)
{
    if (op) {
        op_unref(op);
    }
}
