// SPDX-License-Identifier: Apache-2.0
// The addresses that the scheduler, and through it everybody, is told of a store.
#ifndef KVS_ADVERTISE_H
#define KVS_ADVERTISE_H

#include <stdbool.h>

#define KVS_ADDRESS_BYTES_MAX 256

// Whether its host means every interface (0.0.0.0, [::] or nothing): one can listen there, and nobody
// reach it.
bool kvs_is_every_interface(const char *address);

// Writes "host:port" as others reach what listens at `address`: with the host that --advertise names,
// else its own, else, where that is every interface, the host of `data_address`.
void kvs_advertise(const char *address, const char *advertise, const char *data_address,
                   char told[KVS_ADDRESS_BYTES_MAX]);

#endif
