// SPDX-License-Identifier: Apache-2.0
// Copies that other stores hand to this one, for a store that is gone (repair.c) or goes (drain.c).
//
// A copy is refused when it was dropped here lately (drops.c); and, while the pool is full, when it was
// evicted here lately: to take it would evict what is used more, and the next repair would bring it again.
// Nobody has asked for it here, so it is nothing that came back, and the ghosts learn nothing from it.
//
// A store that drains says what was used there lately, and what operators have pinned: these are taken in
// any case. Hot copies stand behind what is used here, instead of being the first to go, but in a part of
// the pool only: so a drain cannot flush the store that takes it over. Pins go over as they were; where the
// hard ones of this store have their share already, they are soft here.
#include "common/log.h"
#include "kvstore/disk/image.h"
#include "kvstore/store.h"

#define TELL_US 10000000u // between two lines in the log

as_status_t kvs_copy_check(kvs_store_t *store, const kvs_spec_t *spec, uint32_t flags)
{
    if (kvs_drops_has(store, spec)) {
        return AS_ERR_NOT_FOUND;
    }
    bool is_full = kvs_store_is_full(store, kvs_image_bytes(spec));
    bool is_cold = (flags & (AS_WIRE_HOT | AS_WIRE_PINS)) == 0;
    return is_full && is_cold && kvs_index_was_evicted(store->index, &spec->key, spec->tenant)
               ? AS_ERR_LIMIT
               : AS_OK;
}

static void tell_soft(kvs_store_t *store)
{
    if (as_log_is_due(&store->soft_due, as_loop_now_us(store->options.loop), TELL_US, NULL)) {
        AS_WARN("kvstore", "a store that drains hands over hard pins for which --pin-max leaves no "
                           "room here: they are soft now; unpin others and pin them again");
    }
}

void kvs_copy_pin(kvs_store_t *store, kvs_block_t *block, uint32_t flags)
{
    if ((flags & AS_WIRE_PIN_HARD) && kvs_pin(store, block, KVS_GUARD_HARD) == AS_OK) {
        return;
    }
    if (flags & AS_WIRE_PIN_HARD) {
        tell_soft(store);
    }
    if ((flags & AS_WIRE_PINS) && block->guard == KVS_GUARD_NONE) {
        kvs_index_guard(store->index, block, KVS_GUARD_SOFT);
    }
}

void kvs_copy_seal(kvs_store_t *store, kvs_block_t *block, uint32_t flags)
{
    uint64_t now_us = as_loop_now_us(store->options.loop);
    kvs_index_seal_copy(store->index, block, now_us, flags & AS_WIRE_HOT);
    kvs_copy_pin(store, block, flags);
}
