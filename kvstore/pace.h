// SPDX-License-Identifier: Apache-2.0
// The pace of work that runs beside the requests: so many bytes per second, in small steps.
#ifndef KVS_PACE_H
#define KVS_PACE_H

#include <stdint.h>

#define KVS_PACE_CREDIT_US 10000u // a step that comes late makes up for so much

typedef struct kvs_pace {
    uint64_t due_us; // when all that was done so far is paid for
} kvs_pace_t;

// So many bytes were done. Returns how long to wait before the next step.
static inline uint64_t kvs_pace_spend(kvs_pace_t *pace, uint64_t bytes, uint64_t bytes_per_second,
                                      uint64_t now_us)
{
    if (pace->due_us + KVS_PACE_CREDIT_US < now_us) {
        pace->due_us = now_us - KVS_PACE_CREDIT_US;
    }
    pace->due_us += (uint64_t)((double)bytes * 1e6 / (double)bytes_per_second);
    return pace->due_us > now_us ? pace->due_us - now_us : 0;
}

#endif
