// SPDX-License-Identifier: Apache-2.0
// What nodes tell of their blocks, in order: the rules by which a lost, repeated or late message
// never leaves the directory wrong for longer than until the next heartbeat.
//
//   first_sequence == expected   applied
//   first_sequence <  expected   seen before: what is not new is skipped
//   first_sequence >  expected   a gap: RESYNC, and nothing more is applied until a listing begins
//   listing_begin                the node's blocks are forgotten, and numbers go on from this one;
//                                a begin that was seen before is an ordinary repetition, and one
//                                of an earlier listing (a late message) is ignored
#include "common/assert.h"
#include "common/log.h"
#include "scheduler/scheduler.h"

#define SWEEP_DELAY_US 1000

void sch_events_forget(sch_scheduler_t *scheduler, sch_node_t *node)
{
    if (node->slot != SCH_SLOT_NONE) {
        sch_router_set_slot(scheduler->router, node->slot, NULL);
        sch_directory_slot_drop(scheduler->directory, node->slot);
        as_timer_start(scheduler->sweep, SWEEP_DELAY_US);
    }
    node->slot = SCH_SLOT_NONE;
    node->needs_listing = true;
    node->listed = false;
    node->full_blocks = 0;
    node->sealed_blocks = 0;
    node->next_sequence = 0;
}

Assay__NodeStatus sch_events_resync(sch_scheduler_t *scheduler, sch_node_t *node)
{
    if (!node->needs_listing) {
        AS_INFO("events", "events of %016llx were lost at %llu: asking for a listing",
                (unsigned long long)node->id, (unsigned long long)node->next_sequence);
        scheduler->resyncs++;
        as_metric_add(&sch_metrics[SCH_RESYNCS_TOTAL], 1);
        // What is known stays in use meanwhile: much of it is still right.
        node->needs_listing = true;
        node->listed = false;
    }
    return ASSAY__NODE_STATUS__NODE_STATUS_RESYNC;
}

static Assay__NodeStatus listing_begin(sch_scheduler_t *scheduler, sch_node_t *node,
                                       uint64_t first_sequence)
{
    sch_events_forget(scheduler, node);
    if (sch_directory_slot_take(scheduler->directory, &node->slot) != AS_OK) {
        AS_WARN("events", "no slot is free for %016llx; it is asked again",
                (unsigned long long)node->id);
        node->slot = SCH_SLOT_NONE;
        return ASSAY__NODE_STATUS__NODE_STATUS_RESYNC;
    }
    sch_router_set_slot(scheduler->router, node->slot, node);
    node->needs_listing = false;
    node->listing_first = first_sequence;
    node->next_sequence = first_sequence;
    return ASSAY__NODE_STATUS__NODE_STATUS_OK;
}

static void apply_one(sch_scheduler_t *scheduler, sch_node_t *node, const uint8_t *key, uint8_t op)
{
    sch_directory_t *directory = scheduler->directory;
    bool full =
        op == ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED || op == ASSAY__EVENT_OP__EVENT_OP_FULL_REMOVED;
    bool added =
        op == ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED || op == ASSAY__EVENT_OP__EVENT_OP_SEALED_ADDED;
    unsigned kind = full ? SCH_FULL : SCH_SEALED;
    uint64_t *count = full ? &node->full_blocks : &node->sealed_blocks;
    if (!added) {
        *count -= sch_directory_remove(directory, key, node->slot, kind) == AS_OK;
        return;
    }
    as_status_t status = sch_directory_add(directory, key, node->slot, kind);
    *count += status == AS_OK;
    if (status == AS_ERR_LIMIT) {
        as_metric_add(&sch_metrics[SCH_DROPPED_EVENTS_TOTAL], 1);
    }
}

Assay__NodeStatus sch_events_apply(sch_scheduler_t *scheduler, sch_node_t *node,
                                   const Assay__EventsRequest *request)
{
    uint64_t first = request->first_sequence;
    uint64_t count = request->ops.len;
    if (request->listing_begin) {
        bool late = first < node->listing_first;
        bool repeated = !node->needs_listing && first == node->listing_first;
        if (late) {
            return node->needs_listing ? ASSAY__NODE_STATUS__NODE_STATUS_RESYNC
                                       : ASSAY__NODE_STATUS__NODE_STATUS_OK;
        }
        if (!repeated) {
            Assay__NodeStatus status = listing_begin(scheduler, node, first);
            if (status != ASSAY__NODE_STATUS__NODE_STATUS_OK) {
                return status;
            }
        }
    }
    if (node->needs_listing || first > node->next_sequence) {
        return sch_events_resync(scheduler, node);
    }
    uint64_t seen = node->next_sequence - first;
    for (uint64_t i = seen; i < count; i++) {
        apply_one(scheduler, node, request->keys.data + i * sizeof(as_key_t), request->ops.data[i]);
    }
    if (seen < count) {
        node->next_sequence = first + count;
        scheduler->events += count - seen;
        as_metric_add(&sch_metrics[SCH_EVENTS_TOTAL], (int64_t)(count - seen));
    }
    // A late repetition of an earlier message says nothing about the present listing's end.
    bool ends = request->listing_end && first + count == node->next_sequence;
    node->listed |= ends;
    if (ends && !node->introduced) { // a listing after a gap has what was put here since
        node->introduced = true;
        if (node->full_blocks > 0) {
            sch_cluster_grown(scheduler->cluster, node);
        }
    }
    return ASSAY__NODE_STATUS__NODE_STATUS_OK;
}
