// SPDX-License-Identifier: Apache-2.0
// Names of the statuses, as they are shown in logs, replies and metrics labels.
#include "common/status.h"

static const char *const names[] = {
    [AS_OK] = "ok",
    [AS_ERR_INVALID] = "invalid",
    [AS_ERR_UNSUPPORTED] = "unsupported",
    [AS_ERR_LIMIT] = "limit exceeded",
    [AS_ERR_BUSY] = "busy",
    [AS_ERR_CANCELLED] = "cancelled",
    [AS_ERR_DEADLINE] = "deadline exceeded",
    [AS_ERR_NOT_FOUND] = "not found",
    [AS_ERR_EXISTS] = "exists",
    [AS_ERR_CONFLICT] = "exists with other bytes",
    [AS_ERR_CHECKSUM] = "checksum mismatch",
    [AS_ERR_LEASE] = "lease expired",
    [AS_ERR_UNREACHABLE] = "unreachable",
    [AS_ERR_PEER_LOST] = "peer lost",
    [AS_ERR_PROTOCOL] = "protocol violation",
    [AS_ERR_DENIED] = "denied",
    [AS_ERR_DEVICE] = "device failed",
    [AS_ERR_NO_MEMORY] = "out of memory",
    [AS_ERR_IO] = "input/output error",
    [AS_ERR_CONFIG] = "bad configuration",
};
_Static_assert(sizeof(names) / sizeof(names[0]) == AS_STATUS_COUNT, "every status has a name");

const char *as_status_str(as_status_t status)
{
    // A status may come off the wire, so a value outside the enum is not a broken invariant.
    if ((unsigned)status >= AS_STATUS_COUNT || !names[status]) {
        return "unknown status";
    }
    return names[status];
}
