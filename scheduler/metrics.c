// SPDX-License-Identifier: Apache-2.0
// The scheduler's metrics, one row each.
#include "scheduler/scheduler.h"

#define ROW(index, name_, help_, type_)                                                            \
    [index] = {.name = "assay_scheduler_" name_, .help = help_, .type = AS_METRIC_##type_}

as_metric_t sch_metrics[SCH_METRIC_COUNT] = {
    ROW(SCH_ROUTES_TOTAL, "routes_total", "Routes answered.", COUNTER),
    ROW(SCH_ROUTE_US, "route_us", "Time to find a route.", HISTOGRAM),
    ROW(SCH_ASKED_BLOCKS_TOTAL, "route_asked_blocks_total", "Blocks of the chains asked for.",
        COUNTER),
    ROW(SCH_HIT_BLOCKS_TOTAL, "route_hit_blocks_total", "Blocks of the prefixes that were held.",
        COUNTER),
    ROW(SCH_EVENTS_TOTAL, "events_total", "Block events applied.", COUNTER),
    ROW(SCH_RESYNCS_TOTAL, "resyncs_total", "Full listings asked for because of a gap.", COUNTER),
    ROW(SCH_DROPPED_EVENTS_TOTAL, "dropped_events_total",
        "Added blocks that found no room in the directory.", COUNTER),
    ROW(SCH_REFUSED_MESSAGES_TOTAL, "refused_messages_total", "Messages outside the stated limits.",
        COUNTER),
    ROW(SCH_DENIED_ROUTES_TOTAL, "denied_routes_total", "Routes denied, for their token.", COUNTER),
    ROW(SCH_ISSUED_TOKENS_TOTAL, "issued_tokens_total", "Tokens issued.", COUNTER),
    ROW(SCH_JOINS_TOTAL, "joins_total", "Nodes that joined, or joined again.", COUNTER),
    ROW(SCH_DEATHS_TOTAL, "deaths_total", "Nodes given up after silence.", COUNTER),
    ROW(SCH_DIRECTORY_BLOCKS, "directory_blocks", "Blocks that some node holds.", GAUGE),
    ROW(SCH_DIRECTORY_BYTES, "directory_bytes", "Memory of the directory's table.", GAUGE),
};
