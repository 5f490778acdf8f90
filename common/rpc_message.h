// SPDX-License-Identifier: Apache-2.0
// Unpacking a protobuf message that an untrusted peer sent, within a bound on memory.
//
// A few bytes on the wire can stand for a large struct (an empty sub-message takes two), so the
// length of a message does not bound what protobuf-c allocates for it. The budget does.
#ifndef AS_RPC_MESSAGE_H
#define AS_RPC_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

// AS_ERR_INVALID: malformed, or over the budget; AS_ERR_LIMIT: longer than a message may be. Free
// with as_rpc_message_free.
as_status_t as_rpc_message_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                  size_t bytes, ProtobufCMessage **message_p) AS_MUST_USE;
void as_rpc_message_free(ProtobufCMessage *message); // NULL is fine

#endif
