// SPDX-License-Identifier: Apache-2.0
// A peer of a real store that speaks UCX and says HELLO, and then does what no client of ours would.
//
//     rogue HOST:PORT WHAT
//
// The blocks 0 .. BLOCKS-1 of tests/tools/store_load.c are there. Prints a word for each answer, TYPE=STATUS, and
// at last "closed" when the store ended the connection, "open" when a question was still answered.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/checksum.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/net.h"
#include "proto/wire.h"
#include "tests/tools/numbered.h"

#define BLOCKS      32u
#define ASKS        240u // below what a connection may have
#define ALL_ASKS    510u // what it may have
#define READ_ASKS   30u
#define RENEWS      30000u // whose answers fill what a store's network has for a connection
#define LEASE_MS    60000u
#define DEADLINE_US 60000000u
#define LARGE_BYTES ((size_t)8 << 20)
#define HOLES_BYTES ((size_t)32 << 20)
#define LAST        99u // request number of the question at the end

typedef struct rogue rogue_t;

typedef struct act {
    const char *name;
    void (*start)(rogue_t *rogue);
    void (*next)(rogue_t *rogue, uint32_t answers); // after so many; NULL: the question at the end
} act_t;

struct rogue {
    as_loop_t *loop;
    as_net_t *net;
    as_conn_t *conn;
    const act_t *act;
    uint32_t answers;
    uint64_t lease_id; // the first
    uint8_t *large;
    as_key_t keys[BLOCKS];
};

static void finish(rogue_t *rogue, const char *how)
{
    printf("%s\n", how);
    fflush(stdout);
    as_loop_stop(rogue->loop);
}

static void on_sent(void *ctx, as_status_t status)
{
    (void)ctx;
    (void)status;
}

static void say(rogue_t *rogue, const void *header, size_t header_bytes, const void *data,
                size_t data_bytes)
{
    if (as_net_send(rogue->conn, header, header_bytes, data, data_bytes, on_sent, NULL) != AS_OK) {
        finish(rogue, "cannot send");
    }
}

static void hello(rogue_t *rogue, size_t payload_bytes)
{
    const as_wire_hello_t hello = {.head = as_wire_head(AS_WIRE_HELLO, 1), .role = AS_WIRE_CLIENT};
    say(rogue, &hello, sizeof(hello), rogue->large, payload_bytes);
}

static void locate(rogue_t *rogue, uint64_t request, uint32_t key_count, size_t bytes)
{
    const as_wire_locate_t locate = {.head = as_wire_head(AS_WIRE_LOCATE, request),
                                     .key_count = key_count,
                                     .lease_ms = LEASE_MS,
                                     .kind = AS_WIRE_FULL};
    say(rogue, &locate, sizeof(locate),
        bytes > sizeof(rogue->keys) ? rogue->large : (void *)rogue->keys, bytes);
}

static void locate_all(rogue_t *rogue)
{
    locate(rogue, 2, BLOCKS, sizeof(rogue->keys));
}

// Asks for a layer of all blocks, again and again.
static void read_many(rogue_t *rogue, uint32_t count)
{
    as_wire_read_t read = {
        .head = as_wire_head(AS_WIRE_READ, 0), .lease_id = rogue->lease_id, .ask_count = count};
    for (uint32_t i = 0; i < count && i < AS_WIRE_ASKS_MAX; i++) {
        read.asks[i] = (as_wire_ask_t){
            .request = 3, .layer_first = 0, .layer_count = 1, .index_count = BLOCKS};
    }
    say(rogue, &read, sizeof(read), NULL, 0);
}

static void renew(rogue_t *rogue)
{
    const as_wire_renew_t renew = {
        .head = as_wire_head(AS_WIRE_RENEW, 4), .lease_id = rogue->lease_id, .lease_ms = LEASE_MS};
    say(rogue, &renew, sizeof(renew), NULL, 0);
}

static void release(rogue_t *rogue, size_t payload_bytes)
{
    const as_wire_release_t release = {.head = as_wire_head(AS_WIRE_RELEASE, 5),
                                       .lease_id = rogue->lease_id};
    say(rogue, &release, sizeof(release), rogue->large, payload_bytes);
}

// ---- what it does

// Asks for 15 MiB and stops taking when the first of them come. Woken, it takes them all.
static void stand_still(rogue_t *rogue, uint32_t answers)
{
    if (answers == 1) {
        for (uint32_t i = 0; i < ASKS; i += READ_ASKS) {
            read_many(rogue, READ_ASKS);
        }
    } else if (answers == 2) {
        printf("stopped\n");
        fflush(stdout);
        raise(SIGSTOP);
    } else if (answers == 1 + ASKS) {
        locate(rogue, LAST, 1, sizeof(as_key_t));
    }
}

// Asks for as much as a connection may have, and takes next to none of it.
static void ask_for_all_and_stand_still(rogue_t *rogue, uint32_t answers)
{
    for (uint32_t i = 0; answers == 1 && i < ALL_ASKS; i += READ_ASKS) {
        read_many(rogue, READ_ASKS);
    }
    if (answers == 2) {
        printf("stopped\n");
        fflush(stdout);
        raise(SIGSTOP);
    }
}

// Besides asks and asks what is answered at once.
static void ask_on_and_stand_still(rogue_t *rogue, uint32_t answers)
{
    ask_for_all_and_stand_still(rogue, answers);
    const as_wire_renew_t renew = {.head = as_wire_head(AS_WIRE_RENEW, 4)};
    for (uint32_t i = 0; answers == 1 && i < RENEWS; i++) {
        if (as_net_send(rogue->conn, &renew, sizeof(renew), NULL, 0, NULL, NULL) != AS_OK) {
            finish(rogue, "cannot send");
            return;
        }
    }
}

static void replay(rogue_t *rogue, uint32_t answers)
{
    if (answers == 1) { // the lease of the first LOCATED is used, the second's stays
        locate_all(rogue);
        hello(rogue, 0);
    } else if (answers == 3) {
        read_many(rogue, 1);
        read_many(rogue, 1);
        renew(rogue);
        renew(rogue);
    } else if (answers == 7) {
        release(rogue, 0);
        release(rogue, 0);
        read_many(rogue, 1);
        renew(rogue);
    } else if (answers == 9) {
        locate(rogue, LAST, 1, sizeof(as_key_t));
    }
}

static void read_of_a_lease_that_is_not_its_own(rogue_t *rogue, uint32_t answers)
{
    if (answers == 1) {
        rogue->lease_id ^= 1;
        read_many(rogue, 1);
    } else if (answers == 2) {
        rogue->lease_id = UINT64_MAX;
        read_many(rogue, 1);
    } else {
        locate(rogue, LAST, 1, sizeof(as_key_t));
    }
}

static void hello_with_a_payload(rogue_t *rogue)
{
    hello(rogue, LARGE_BYTES);
}

static void release_with_a_payload(rogue_t *rogue)
{
    release(rogue, LARGE_BYTES);
    locate(rogue, LAST, 1, sizeof(as_key_t));
}

static void locate_with_more_than_its_keys(rogue_t *rogue)
{
    locate(rogue, 2, 1, LARGE_BYTES);
}

static void locate_with_less_than_its_keys(rogue_t *rogue)
{
    locate(rogue, 2, BLOCKS, sizeof(as_key_t));
}

static void locate_of_too_many_keys(rogue_t *rogue)
{
    locate(rogue, 2, UINT32_MAX, LARGE_BYTES);
}

static void read_of_too_many(rogue_t *rogue)
{
    read_many(rogue, UINT32_MAX);
}

static void header_of_the_largest_size(rogue_t *rogue)
{
    uint8_t header[AS_NET_HEADER_BYTES_MAX] = {0};
    as_wire_head_t head = as_wire_head(AS_WIRE_LOCATE, 2);
    memcpy(header, &head, sizeof(head));
    say(rogue, header, sizeof(header), rogue->large, LARGE_BYTES);
}

static void header_that_is_cut(rogue_t *rogue)
{
    as_wire_head_t head = as_wire_head(AS_WIRE_LOCATE, 2);
    say(rogue, &head, sizeof(head) - 1, NULL, 0);
}

static void answer_in_place_of_a_question(rogue_t *rogue)
{
    const as_wire_data_t data = {.head = as_wire_head(AS_WIRE_DATA, 3)};
    say(rogue, &data, sizeof(data), rogue->large, LARGE_BYTES);
}

// ---- puts

static as_wire_put_t put_of(const rogue_t *rogue, uint32_t bytes)
{
    as_wire_put_t put = {.head = as_wire_head(AS_WIRE_PUT, 6),
                         .key = numbered_key(BLOCKS),
                         .parent = rogue->keys[0],
                         .namespace_key = rogue->keys[0],
                         .kind = AS_WIRE_FULL,
                         .layers = 1,
                         .extent_bytes = bytes,
                         .tokens = 16};
    put.crcs[0] = as_crc32c(0, rogue->large, bytes);
    return put;
}

static void say_put(rogue_t *rogue, const as_wire_put_t *put, size_t bytes)
{
    say(rogue, put, as_wire_put_bytes(1), rogue->large, bytes);
}

static void put_again(rogue_t *rogue)
{
    const as_wire_put_t put = put_of(rogue, 4096);
    say_put(rogue, &put, 4096);
    say_put(rogue, &put, 4096);
}

static void put_with_more_than_its_bytes(rogue_t *rogue)
{
    const as_wire_put_t put = put_of(rogue, 4096);
    say_put(rogue, &put, LARGE_BYTES);
}

static void put_whose_pieces_do_not_follow(rogue_t *rogue)
{
    as_wire_put_t put = put_of(rogue, LARGE_BYTES);
    put.key = numbered_key(BLOCKS + 1); // that nobody has put
    const as_wire_piece_t again = {as_wire_head(AS_WIRE_PIECE, 6), 0};
    say_put(rogue, &put, 4096);
    say(rogue, &again, sizeof(again), rogue->large, 4096);
}

static void put_of_too_many_layers(rogue_t *rogue)
{
    as_wire_put_t put = put_of(rogue, 4096);
    put.layers = UINT32_MAX;
    say(rogue, &put, sizeof(put), rogue->large, LARGE_BYTES);
}

static void put_out_of_memory_that_it_has_not_shared(rogue_t *rogue)
{
    as_wire_put_t put = put_of(rogue, 4096);
    put.flags = AS_WIRE_STAGED;
    say_put(rogue, &put, 0);
}

static void share(rogue_t *rogue, uint64_t bytes, uint64_t twist)
{
    static as_shared_t memory;
    if (!memory.memory &&
        (as_shared_alloc(&memory, 4096) != AS_OK || as_shared_back(&memory) != AS_OK)) {
        finish(rogue, "no memory");
    }
    as_wire_share_t share = {as_wire_head(AS_WIRE_SHARE, 7), bytes, as_shared_name(&memory)};
    share.name.secret[0] ^= twist;
    say(rogue, &share, sizeof(share), NULL, 0);
}

static void share_what_is_not_its_own(rogue_t *rogue)
{
    share(rogue, 4096, 1);
}

static void share_more_than_there_is(rogue_t *rogue)
{
    share(rogue, 4097 + 65536, 0);
}

static void share_twice(rogue_t *rogue)
{
    share(rogue, 4096, 0);
    share(rogue, 4096, 0);
}

// The memory that it shares is not there: what a store reads of it would be made at the store's cost.
static void put_out_of_holes(rogue_t *rogue)
{
    as_shared_t memory;
    if (as_shared_alloc(&memory, 2 * HOLES_BYTES) != AS_OK) {
        finish(rogue, "no memory");
        return;
    }
    memset((uint8_t *)memory.memory + HOLES_BYTES, 1, HOLES_BYTES);
    const as_wire_share_t share = {as_wire_head(AS_WIRE_SHARE, 7), HOLES_BYTES,
                                   as_shared_name(&memory)};
    say(rogue, &share, sizeof(share), NULL, 0);
    as_wire_put_t put = put_of(rogue, LARGE_BYTES);
    put.flags = AS_WIRE_STAGED;
    for (; put.offset < HOLES_BYTES; put.offset += LARGE_BYTES) {
        say_put(rogue, &put, 0);
        put.key.bytes[0] ^= (uint8_t)(put.offset >> 20) + 1u;
    }
}

#define SAYS(what)                                                                                 \
    {                                                                                              \
        .name = #what, .start = what                                                               \
    }
#define DOES(what)                                                                                 \
    {                                                                                              \
        .name = #what, .start = locate_all, .next = what                                           \
    }

static const act_t acts[] = {
    DOES(stand_still),
    DOES(ask_for_all_and_stand_still),
    DOES(ask_on_and_stand_still),
    DOES(replay),
    DOES(read_of_a_lease_that_is_not_its_own),
    SAYS(hello_with_a_payload),
    SAYS(release_with_a_payload),
    SAYS(locate_with_more_than_its_keys),
    SAYS(locate_with_less_than_its_keys),
    SAYS(locate_of_too_many_keys),
    SAYS(read_of_too_many),
    SAYS(header_of_the_largest_size),
    SAYS(header_that_is_cut),
    SAYS(answer_in_place_of_a_question),
    SAYS(put_again),
    SAYS(put_with_more_than_its_bytes),
    SAYS(put_whose_pieces_do_not_follow),
    SAYS(put_of_too_many_layers),
    SAYS(put_out_of_memory_that_it_has_not_shared),
    SAYS(share_what_is_not_its_own),
    SAYS(share_more_than_there_is),
    SAYS(share_twice),
    SAYS(put_out_of_holes),
};

// ---- the connection

static void on_accept(void *ctx, as_conn_t *conn)
{
    (void)ctx;
    as_net_close(conn);
}

static void on_lost(void *ctx, as_conn_t *conn, as_status_t status)
{
    (void)status;
    rogue_t *rogue = ctx;
    as_net_close(conn);
    rogue->conn = NULL;
    finish(rogue, "closed");
}

static const char *name_of(uint32_t type)
{
    return type == AS_WIRE_HELLO_REPLY ? "HELLO_REPLY"
           : type == AS_WIRE_LOCATED   ? "LOCATED"
           : type == AS_WIRE_DATA      ? "DATA"
           : type == AS_WIRE_RENEWED   ? "RENEWED"
           : type == AS_WIRE_SHARED    ? "SHARED"
           : type == AS_WIRE_STORED    ? "STORED"
                                       : "?";
}

static void on_message(void *ctx, as_conn_t *conn, as_net_msg_t *msg)
{
    (void)conn;
    rogue_t *rogue = ctx;
    if (!as_wire_check(msg->header, msg->header_bytes)) {
        finish(rogue, "not of this protocol");
        return;
    }
    const as_wire_located_t *header = msg->header; // all answers have the status there
    if (header->head.request == LAST) {
        finish(rogue, "open");
        return;
    }
    printf("%s=%u\n", name_of(header->head.type), header->status);
    if (header->head.type == AS_WIRE_LOCATED && rogue->lease_id == 0) {
        rogue->lease_id = header->lease_id;
    }
    if (header->head.type == AS_WIRE_HELLO_REPLY && rogue->answers == 0) {
        rogue->answers = 1;
        rogue->act->start(rogue);
    } else if (rogue->act->next) {
        rogue->act->next(rogue, rogue->answers++);
    } else {
        locate(rogue, LAST, 1, sizeof(as_key_t));
    }
}

static void on_deadline(void *ctx)
{
    finish(ctx, "silent");
}

static bool connect_to(rogue_t *rogue, const char *address)
{
    const as_net_handlers_t handlers = {rogue, on_accept, on_message, on_lost, NULL};
    as_timer_t *deadline;
    if (as_loop_alloc_uv(&rogue->loop) != AS_OK ||
        as_timer_alloc(rogue->loop, on_deadline, rogue, &deadline) != AS_OK ||
        as_net_alloc_ucx(rogue->loop, &handlers, &rogue->net) != AS_OK ||
        as_net_connect(rogue->net, address, &rogue->conn) != AS_OK) {
        return false;
    }
    as_timer_start(deadline, DEADLINE_US);
    return true;
}

int main(int argc, char **argv)
{
    static rogue_t rogue;
    as_log_set_level(AS_LOG_ERROR);
    for (size_t i = 0; argc == 3 && i < sizeof(acts) / sizeof(acts[0]); i++) {
        if (strcmp(argv[2], acts[i].name) == 0) {
            rogue.act = &acts[i];
        }
    }
    if (!rogue.act) {
        fprintf(stderr, "usage: rogue HOST:PORT WHAT\n");
        return 2;
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        rogue.keys[i] = numbered_key(i);
    }
    rogue.large = as_mem_zalloc(1, LARGE_BYTES);
    if (!rogue.large || !connect_to(&rogue, argv[1])) {
        return 1;
    }
    hello(&rogue, 0);
    as_loop_run(rogue.loop);
    return 0; // the process takes the connection with it
}
