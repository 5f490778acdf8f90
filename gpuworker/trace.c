// SPDX-License-Identifier: Apache-2.0
// Trace events of the JSON array format; the closing bracket may be missing, which readers allow.
#include "gpuworker/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"

#define GAP_US 500u // device spans that are as near to each other are shown as one

struct gpw_trace {
    FILE *file; // NULL: it took no more
    uint64_t busy_begin_us, busy_end_us;
};

static const char *const lanes[GPW_TRACE_LANES] = {"draft",     "swap",   "verify",
                                                   "push-down", "device", "choose"};

static void give_up(gpw_trace_t *trace)
{
    AS_WARN("trace", "the file of --trace takes no more: %s", strerror(errno));
    fclose(trace->file);
    trace->file = NULL;
}

static void name_lanes(gpw_trace_t *trace)
{
    fprintf(trace->file, "[\n");
    for (int lane = 0; lane < GPW_TRACE_LANES; lane++) {
        fprintf(trace->file,
                "{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": {\"name\": "
                "\"%s\"}},\n",
                lane, lanes[lane]);
    }
}

as_status_t gpw_trace_alloc(const char *path, gpw_trace_t **trace_p)
{
    *trace_p = NULL;
    if (!path) {
        return AS_OK;
    }
    gpw_trace_t *trace = as_mem_zalloc(1, sizeof(*trace));
    if (!trace) {
        return AS_ERR_NO_MEMORY;
    }
    trace->file = fopen(path, "we");
    if (!trace->file) {
        AS_ERROR("trace", "--trace %s: %s: give a file that can be written", path, strerror(errno));
        as_mem_free(trace);
        return AS_ERR_INVALID;
    }
    name_lanes(trace);
    *trace_p = trace;
    return AS_OK;
}

static void write_span(gpw_trace_t *trace, const gpw_trace_span_t *span)
{
    if (!trace->file) {
        return;
    }
    int written = fprintf(
        trace->file,
        "{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %d, \"tid\": %llu, \"ts\": %llu, "
        "\"dur\": %llu, \"args\": {\"%s\": %llu}},\n",
        lanes[span->lane], (int)span->lane, (unsigned long long)span->session,
        (unsigned long long)span->begin_us, (unsigned long long)(span->end_us - span->begin_us),
        span->noun, (unsigned long long)span->amount);
    if (written < 0) {
        give_up(trace);
    }
}

static void flush_busy(gpw_trace_t *trace)
{
    if (trace->busy_end_us > trace->busy_begin_us) {
        const gpw_trace_span_t span = {.lane = GPW_TRACE_DEVICE,
                                       .begin_us = trace->busy_begin_us,
                                       .end_us = trace->busy_end_us,
                                       .noun = "us",
                                       .amount = trace->busy_end_us - trace->busy_begin_us};
        write_span(trace, &span);
    }
}

void gpw_trace_add(gpw_trace_t *trace, const gpw_trace_span_t *span)
{
    if (trace) {
        write_span(trace, span);
    }
}

void gpw_trace_busy(gpw_trace_t *trace, uint64_t begin_us, uint64_t end_us)
{
    if (!trace) {
        return;
    }
    if (begin_us > trace->busy_end_us + GAP_US) {
        flush_busy(trace);
        trace->busy_begin_us = begin_us;
    }
    trace->busy_end_us = end_us;
}

void gpw_trace_free(gpw_trace_t *trace)
{
    if (!trace) {
        return;
    }
    flush_busy(trace);
    if (trace->file) {
        fprintf(trace->file, "{\"ph\": \"M\", \"pid\": 0, \"name\": \"trace_end\"}\n]\n");
        if (fclose(trace->file) != 0) {
            AS_WARN("trace", "the file of --trace is not complete: %s", strerror(errno));
        }
    }
    as_mem_free(trace);
}
