// SPDX-License-Identifier: Apache-2.0
// Leases of what was located: kept for as long as the fetch needs the blocks, and given back.
//
// A store grants so much time at once. When half of it is over the fetch asks for more, so a caller
// that reads slowly, or a slow link, does not lose what it located. By our clock a lease ends before
// it ends at the store: it counts from when the question was sent.
//
// A deadline is for the stores: it stands still while the caller has every slot of its ring (or asks for
// no layer of an attend). Else a caller that computes longer on a layer than a store may take for all of
// them would lose what it was about to read.
#include "client/internal.h"

#define CALLER_LEASE_MS 1000u // asked for at least, while the deadline stands still

void assay_lease_take(assay_part_t *part, uint32_t lease_ms, uint64_t asked_us)
{
    part->lease_us = (uint64_t)lease_ms * 1000;
    uint64_t until_us = asked_us + part->lease_us;
    part->lease_until_us = until_us > part->lease_until_us ? until_us : part->lease_until_us;
}

bool assay_lease_holds(const assay_part_t *part)
{
    bool holds = part->lease_id != 0 && assay_now_us(part->fetch->client) < part->lease_until_us;
    if (!holds) {
        as_metric_add(&assay_metrics[ASSAY_METRIC_LEASES_EXPIRED], 1);
    }
    return holds;
}

// ---- renewing

static as_status_t send_renew(assay_call_t *call)
{
    const assay_part_t *part = call->owner;
    const assay_fetch_t *fetch = part->fetch;
    uint64_t left_ms = (fetch->deadline_us - part->renewal_us) / 1000 + 1;
    if (fetch->caller_since_us != 0 && left_ms < CALLER_LEASE_MS) {
        left_ms = CALLER_LEASE_MS;
    }
    const as_wire_renew_t renew = {
        .head = as_wire_head(AS_WIRE_RENEW, assay_call_id(call)),
        .lease_id = part->lease_id,
        .lease_ms = left_ms < AS_WIRE_LEASE_MS_MAX ? (uint32_t)left_ms : AS_WIRE_LEASE_MS_MAX,
    };
    return as_net_send(part->link->conn, &renew, sizeof(renew), NULL, 0, NULL, NULL);
}

static void on_renewed(void *owner, const void *header, as_net_msg_t *msg)
{
    (void)msg;
    assay_part_t *part = owner;
    const as_wire_renewed_t *renewed = header;
    part->renewal = NULL;
    if (renewed->status == AS_WIRE_OK) {
        assay_lease_take(part, renewed->lease_ms, part->renewal_us);
    }
}

// The lease runs out by itself, and what is read after that is lost there.
static void on_renew_failed(void *owner, as_status_t status)
{
    (void)status;
    ((assay_part_t *)owner)->renewal = NULL;
}

// Whether the part still brings something.
static bool is_needed(const assay_part_t *part)
{
    bool unfinished = part->layer < part->fetch->layer_end || part->outstanding > 0;
    return unfinished && part->lease_id != 0 && assay_link_is(part->link, part->epoch);
}

uint64_t assay_lease_renew(assay_fetch_t *fetch, uint64_t now_us, uint64_t until_us)
{
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        bool outlasts = part->lease_until_us >= fetch->deadline_us && fetch->caller_since_us == 0;
        if (!is_needed(part) || now_us >= part->lease_until_us || outlasts) {
            continue;
        }
        uint64_t half_us = part->lease_until_us - part->lease_us / 2;
        uint64_t next_us = now_us < half_us ? half_us : now_us + part->lease_us / 4 + 1;
        until_us = next_us < until_us ? next_us : until_us;
        bool is_asked = part->renewal && now_us - part->renewal_us < part->lease_us / 4;
        if (now_us < half_us || is_asked) {
            continue;
        }
        if (part->renewal) { // its answer was lost
            assay_call_drop(part->renewal);
            part->renewal = NULL;
        }
        part->renewal_us = now_us;
        const assay_call_params_t params = {part, AS_WIRE_RENEWED, send_renew, on_renewed,
                                            on_renew_failed};
        if (assay_call_start(part->link, &params, &part->renewal) != AS_OK) {
            part->renewal = NULL;
        }
    }
    return until_us;
}

// ---- the deadline

static bool waits_for_caller(const assay_fetch_t *fetch)
{
    if (fetch->state != FETCH_READING) {
        return false;
    }
    if (fetch->attend) {
        return assay_attend_is_idle(fetch->attend);
    }
    uint32_t slots = fetch->args.layer_slots, next = fetch->next_layer;
    return next < fetch->layer_end && next - fetch->layer_first >= slots &&
           !fetch->released[next - slots];
}

void assay_fetch_keep_time(assay_fetch_t *fetch)
{
    uint64_t now_us = assay_now_us(fetch->client);
    if (fetch->caller_since_us != 0) {
        uint64_t us = now_us - fetch->caller_since_us;
        fetch->deadline_us += us < UINT64_MAX - fetch->deadline_us ? us : 0;
    }
    bool waits = waits_for_caller(fetch);
    if (waits && fetch->caller_since_us == 0) {
        as_timer_start(fetch->timer, 0); // leases are to be renewed from now on
    }
    fetch->caller_since_us = waits ? now_us : 0;
}

// ---- giving back

void assay_lease_give(assay_part_t *part)
{
    if (part->renewal) {
        assay_call_drop(part->renewal);
        part->renewal = NULL;
    }
    if (part->lease_id != 0 && assay_link_is(part->link, part->epoch)) {
        const as_wire_release_t release = {as_wire_head(AS_WIRE_RELEASE, 0), part->lease_id};
        as_status_t status =
            as_net_send(part->link->conn, &release, sizeof(release), NULL, 0, NULL, NULL);
        (void)status; // else it ends by its deadline
    }
    part->lease_id = 0;
}

void assay_lease_release(assay_fetch_t *fetch)
{
    for (assay_part_t *part = fetch->parts; part; part = part->next) {
        assay_lease_give(part);
    }
}
