// SPDX-License-Identifier: Apache-2.0
// Checks of what came over the wire, before anything acts on it.
#include <string.h>

#include "scheduler/scheduler.h"

#define KEY_BYTES         sizeof(as_key_t)
#define FINGERPRINT_BYTES 32u

// Visible ASCII only: what a message names ends up in logs, lists and addresses.
static bool text_fits(const char *text, size_t bytes_max)
{
    size_t bytes = strnlen(text, bytes_max + 1);
    if (bytes > bytes_max) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return false;
        }
    }
    return true;
}

// "host:port", or empty.
static bool address_fits(const char *address)
{
    if (!text_fits(address, SCH_ADDRESS_BYTES_MAX)) {
        return false;
    }
    const char *colon = strrchr(address, ':');
    if (!colon) {
        return address[0] == '\0';
    }
    size_t digits = strspn(colon + 1, "0123456789");
    return colon != address && digits > 0 && digits <= 5 && colon[1 + digits] == '\0';
}

static as_status_t wrong(const char *text, const char **text_p)
{
    *text_p = text;
    return AS_ERR_INVALID;
}

static bool instance_fits(const ProtobufCBinaryData *instance)
{
    static const uint8_t zeros[8];
    return instance->len == SCH_INSTANCE_BYTES && memcmp(instance->data, zeros, sizeof(zeros)) != 0;
}

as_status_t sch_check_join(const Assay__JoinRequest *request, const char **text_p)
{
    bool store = request->role == ASSAY__ROLE__ROLE_STORE;
    if (!store && request->role != ASSAY__ROLE__ROLE_WORKER) {
        return wrong("role must be store or worker", text_p);
    }
    if (!instance_fits(&request->instance_id)) {
        return wrong("instance_id must be 16 bytes, the first 8 not all zero", text_p);
    }
    if (request->incarnation == 0) {
        return wrong("incarnation must not be 0", text_p);
    }
    if (!address_fits(request->data_address) || (store && !request->data_address[0])) {
        return wrong("data_address must be host:port of at most 255 bytes", text_p);
    }
    if (!address_fits(request->rpc_address)) {
        return wrong("rpc_address must be host:port of at most 255 bytes", text_p);
    }
    if (!address_fits(request->http_address)) {
        return wrong("http_address must be host:port of at most 255 bytes", text_p);
    }
    if (request->model_fingerprint.len != 0 &&
        request->model_fingerprint.len != FINGERPRINT_BYTES) {
        return wrong("model_fingerprint must be 32 bytes", text_p);
    }
    if (!text_fits(request->numerics_id, SCH_NUMERICS_BYTES_MAX)) {
        return wrong("numerics_id must be at most 127 visible characters", text_p);
    }
    if (!text_fits(request->name, SCH_NAME_BYTES_MAX)) {
        return wrong("name must be at most 63 visible characters", text_p);
    }
    if (!text_fits(request->cluster_id, SCH_NAME_BYTES_MAX)) {
        return wrong("cluster_id must be at most 63 visible characters", text_p);
    }
    return AS_OK;
}

as_status_t sch_check_events(const Assay__EventsRequest *request, const char **text_p)
{
    size_t count = request->ops.len;
    if (count > SCH_EVENTS_MAX) {
        *text_p = "ops must be at most 16384";
        return AS_ERR_LIMIT;
    }
    if (request->keys.len != count * KEY_BYTES) {
        return wrong("keys must be 32 bytes for each of ops", text_p);
    }
    if (request->first_sequence == 0 || request->first_sequence > UINT64_MAX - SCH_EVENTS_MAX) {
        return wrong("first_sequence must be at least 1", text_p);
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t op = request->ops.data[i];
        if (op < ASSAY__EVENT_OP__EVENT_OP_FULL_ADDED ||
            op > ASSAY__EVENT_OP__EVENT_OP_SEALED_REMOVED) {
            return wrong("ops must each be an EventOp", text_p);
        }
    }
    return AS_OK;
}

as_status_t sch_check_route(const Assay__RouteRequest *request, const char **text_p)
{
    if (request->keys.len % KEY_BYTES != 0) {
        return wrong("keys must be a multiple of 32 bytes", text_p);
    }
    if (request->keys.len / KEY_BYTES > AS_CHAIN_BLOCKS_MAX) {
        *text_p = "keys must be at most 16384";
        return AS_ERR_LIMIT;
    }
    if (request->namespace_key.len != 0 && request->namespace_key.len != KEY_BYTES) {
        return wrong("namespace_key must be 32 bytes", text_p);
    }
    if (request->block_tokens > AS_BLOCK_TOKENS_MAX) {
        *text_p = "block_tokens must be at most 256";
        return AS_ERR_LIMIT;
    }
    return AS_OK;
}

as_status_t sch_check_token(const Assay__TokenRequest *request, const char **text_p)
{
    const uint32_t known = AS_TOKEN_READ | AS_TOKEN_WRITE | AS_TOKEN_DIRECT;
    if (request->tenant == AS_TENANT_NONE) {
        return wrong("tenant must be at least 1", text_p);
    }
    if (request->rights == 0 || (request->rights & ~known) != 0) {
        return wrong("rights must be some of read, write and direct", text_p);
    }
    if (request->ttl_s == 0 || request->ttl_s > SCH_TOKEN_TTL_S_MAX) {
        return wrong("ttl_s must be from 1 to 31 days", text_p);
    }
    return AS_OK;
}
