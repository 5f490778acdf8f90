// SPDX-License-Identifier: Apache-2.0
// What sessions did when, as a file of trace events that chrome://tracing and ui.perfetto.dev show:
// the lanes draft, swap, verify and push-down of each session, how long it waited for the choice of its
// compressor and what was chosen, and when the device computed. Engine thread only.
#ifndef GPW_TRACE_H
#define GPW_TRACE_H

#include <stdint.h>
#include "common/status.h"

typedef struct gpw_trace gpw_trace_t;

typedef enum gpw_trace_lane {
    GPW_TRACE_DRAFT,
    GPW_TRACE_SWAP,
    GPW_TRACE_VERIFY,
    GPW_TRACE_PUSH_DOWN,
    GPW_TRACE_DEVICE, // the same for all sessions
    GPW_TRACE_CHOOSE, // from its arrival; counts expected tokens a second under the compressor's name
    GPW_TRACE_LANES
} gpw_trace_lane_t;

typedef struct gpw_trace_span {
    gpw_trace_lane_t lane;
    uint64_t session; // the request's id
    uint64_t begin_us, end_us;
    const char *noun; // constant: what `amount` counts, such as "tokens"
    uint64_t amount;
} gpw_trace_span_t;

// A new file, in place of what was there. Path NULL: *trace_p is NULL, and nothing is traced.
as_status_t gpw_trace_alloc(const char *path, gpw_trace_t **trace_p) AS_MUST_USE;
void gpw_trace_free(gpw_trace_t *trace); // writes what is left; NULL is fine
// When the file takes no more, tracing ends with a line in the log.
void gpw_trace_add(gpw_trace_t *trace, const gpw_trace_span_t *span); // NULL is fine
// The device computed; spans that touch are one.
void gpw_trace_busy(gpw_trace_t *trace, uint64_t begin_us, uint64_t end_us);

#endif
