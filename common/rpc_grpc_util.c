// SPDX-License-Identifier: Apache-2.0
// What the gRPC server and client both need: codes, addresses, credentials, messages.
#include "common/rpc_grpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/rpc_message.h"

grpc_status_code rpc_code_of(as_status_t status)
{
    switch (status) {
    case AS_ERR_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case AS_ERR_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case AS_ERR_LIMIT:
        return GRPC_STATUS_OUT_OF_RANGE;
    case AS_ERR_BUSY:
    case AS_ERR_NO_MEMORY:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case AS_ERR_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    case AS_ERR_DEADLINE:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case AS_ERR_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case AS_ERR_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case AS_ERR_CHECKSUM:
        return GRPC_STATUS_DATA_LOSS;
    case AS_ERR_UNREACHABLE:
    case AS_ERR_PEER_LOST:
        return GRPC_STATUS_UNAVAILABLE;
    case AS_ERR_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case AS_ERR_LEASE:
    case AS_ERR_CONFIG:
        return GRPC_STATUS_FAILED_PRECONDITION;
    default:
        return GRPC_STATUS_INTERNAL;
    }
}

// For peers that send no status of ours, and for what gRPC itself decides.
as_status_t rpc_status_of(grpc_status_code code, bool was_connected)
{
    switch (code) {
    case GRPC_STATUS_INVALID_ARGUMENT:
        return AS_ERR_INVALID;
    case GRPC_STATUS_UNIMPLEMENTED:
        return AS_ERR_UNSUPPORTED;
    case GRPC_STATUS_OUT_OF_RANGE:
    case GRPC_STATUS_RESOURCE_EXHAUSTED: // a message over the receiver's limit
        return AS_ERR_LIMIT;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return AS_ERR_DEADLINE;
    case GRPC_STATUS_NOT_FOUND:
        return AS_ERR_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return AS_ERR_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED:
        return AS_ERR_DENIED;
    case GRPC_STATUS_CANCELLED: // by the peer; our own cancel is known before this is asked
    case GRPC_STATUS_UNAVAILABLE:
        return was_connected ? AS_ERR_PEER_LOST : AS_ERR_UNREACHABLE;
    default:
        return AS_ERR_PROTOCOL;
    }
}

bool rpc_address_valid(const char *address)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || strlen(address) >= RPC_ADDRESS_BYTES_MAX ||
        strchr(address, '/')) {
        return false;
    }
    size_t digits = strspn(colon + 1, "0123456789");
    return digits > 0 && digits <= 5 && colon[1 + digits] == '\0' &&
           strtoul(colon + 1, NULL, 10) <= 65535;
}

as_status_t rpc_pack(const ProtobufCMessage *message, grpc_byte_buffer **buffer_p)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > AS_RPC_MESSAGE_BYTES_MAX) {
        return AS_ERR_LIMIT;
    }
    grpc_slice slice = grpc_slice_malloc(bytes);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    *buffer_p = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return AS_OK;
}

as_status_t rpc_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                       ProtobufCMessage **message_p)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        return AS_ERR_INVALID;
    }
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    as_status_t status = as_rpc_message_unpack(descriptor, GRPC_SLICE_START_PTR(slice),
                                               GRPC_SLICE_LENGTH(slice), message_p);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return status;
}

gpr_timespec rpc_deadline(uint64_t delay_us)
{
    int64_t us = delay_us < INT64_MAX / 2 ? (int64_t)delay_us : INT64_MAX / 2;
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(us, GPR_TIMESPAN));
}

grpc_arg rpc_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}
