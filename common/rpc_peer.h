// SPDX-License-Identifier: Apache-2.0
// Who asks, where mutual TLS tells: operators are named by the common name of their certificate.
#ifndef AS_RPC_PEER_H
#define AS_RPC_PEER_H

#include <stdbool.h>

// Of all servers of this process: the names of operators, ended by NULL, which must stay. NULL:
// everybody is one. Before the first server.
void as_rpc_set_operators(const char *const *names);
// Whether the caller may do what is for operators. From a handler, with the data it was given.
bool as_rpc_is_operator(void *closure_data);

#endif
