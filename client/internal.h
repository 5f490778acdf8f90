// SPDX-License-Identifier: Apache-2.0
// The client's own state, shared by the files of this folder. Not for others: see client.h.
//
// A link is the connection to one store. A call is one question on a link, from when it is
// submitted until its answer or failure. A fetch is made of parts (what one LOCATE asks of one
// store) and, once located, of reads (extents asked for or arriving). A put is made of copies, each
// of one call.
#ifndef ASSAY_INTERNAL_H
#define ASSAY_INTERNAL_H

#include "client/client.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "proto/wire.h"

#define CALLS_MAX 4096u // questions waiting or on the wire, of one client
#define READS_MAX 4096u // extents or runs of extents under way, of one client
#define GET_BYTES_TARGET                                                                           \
    (1u << 20) // of one one-sided read: large enough to hide its cost, small enough to interleave
#define ASK_BYTES_TARGET                                                                           \
    (256u << 10) // of several small extents in one answer: what comes with its message
// The store's network gathers an answer of few blocks from where they lie; of more it first makes a
// copy, and small answers are the better then.
#define ASK_BLOCKS_LARGE 8u
#define ASK_BYTES_MANY   (64u << 10)
#define COPY_BYTES_TURN                                                                            \
    (1u << 20) // copied from shared memory in one turn of the loop: about 0.1 ms
// What a store that is busy has refused is asked again after so long: at first, and at most, since it doubles
// as long as nothing comes.
#define BUSY_AGAIN_US     5000u
#define BUSY_AGAIN_US_MAX 80000u
#define NO_BLOCK          UINT32_MAX

typedef enum assay_metric {
    ASSAY_METRIC_LOCATED_HITS,
    ASSAY_METRIC_LOCATED_MISSES,
    ASSAY_METRIC_FETCHED_BYTES,
    ASSAY_METRIC_CHECKSUM_FAILURES,
    ASSAY_METRIC_CIPHER_FAILURES,
    ASSAY_METRIC_LEASES_EXPIRED,
    ASSAY_METRIC_HOLES,
    ASSAY_METRIC_LINKS_LOST,
    ASSAY_METRIC_CONNECTS,
    ASSAY_METRIC_REFUSED_CALLS,
    ASSAY_METRIC_STRANGERS,
    ASSAY_METRIC_FALLBACKS_MISSING,
    ASSAY_METRIC_FALLBACKS_CHECKSUM,
    ASSAY_METRIC_FALLBACKS_LEASE,
    ASSAY_METRIC_FALLBACKS_STORE,
    ASSAY_METRIC_RESCUED,
    ASSAY_METRIC_PUT_BLOCKS,
    ASSAY_METRIC_PUT_EXISTS,
    ASSAY_METRIC_PUT_FAILURES,
    ASSAY_METRIC_PUT_CONFLICTS,
    ASSAY_METRIC_PUT_COPIES,
    ASSAY_METRIC_PUT_DEGRADED,
    ASSAY_METRIC_ATTENDS,
    ASSAY_METRIC_ATTEND_FAILURES,
    ASSAY_METRIC_ATTEND_BYTES,
    ASSAY_METRIC_ATTEND_US,
    ASSAY_METRIC_FETCH_US,
    ASSAY_METRIC_PUT_US,
    ASSAY_METRIC_COUNT
} assay_metric_t;
extern as_metric_t assay_metrics[ASSAY_METRIC_COUNT];

// ---- links and calls (connection.c)

typedef struct assay_link assay_link_t;
typedef struct assay_call assay_call_t;

typedef enum link_state { LINK_IDLE, LINK_CONNECTING, LINK_READY, LINK_DOWN } link_state_t;

// Whether the store takes blocks out of our memory (stage.c); ASKED is no, until it says yes.
typedef enum link_stage { LINK_STAGE_UNKNOWN, LINK_STAGE_ASKED, LINK_STAGE_SHARED } link_stage_t;

// How fast a store is (rate.c).
typedef struct link_rate {
    double locate_us, bytes_per_us; // running means; 0: not known
    uint64_t measured_us;           // when
    bool busy;                      // bytes are owed
    uint64_t since_us, spent_us, bytes;
} link_rate_t;

// How much is asked for at a time (window.c).
typedef struct link_window {
    uint64_t came_bytes;
    uint64_t since_us;        // when the present period began
    double rate, rate_before; // bytes/us, the largest of this period and of the one before
    uint64_t delay_us, delay_before_us; // the smallest; 0: not known
} link_window_t;

struct assay_link {
    assay_client_t *client;
    assay_link_t *next; // of the client
    assay_store_t store;
    bool member;   // in the present set of stores
    uint32_t refs; // of fetches' parts and puts
    link_state_t state;
    uint64_t epoch; // grows with each connection: what belongs to an older one is void
    uint64_t down_until_us;
    bool denied;       // it refused our token, or a question that the token has no right to
    uint32_t failures; // one after the other, since it last answered a question
    uint64_t
        silent_since_us; // when the question was put that it let time out; 0: it answered since
    as_conn_t *conn;     // CONNECTING and READY
    as_timer_t *timer;   // of connecting
    assay_call_t *calls; // waiting for READY or for their answer, newest first
    // from HELLO_REPLY
    as_net_rkey_t *rkey;  // NULL: messages only
    const uint8_t *local; // the pool, when it can be read by pointer
    uint64_t pool_address, pool_bytes;
    uint32_t lease_ms_max, asks_max;
    uint8_t rkey_packed[AS_NET_RKEY_BYTES_MAX];
    size_t rkey_bytes;
    uint32_t reads_in_flight;
    size_t bytes_in_flight, urgent_bytes[ASSAY_URGENCY_COUNT]; // all; of each urgency
    link_stage_t stage;
    assay_call_t *sharing; // the question that ASKED is
    link_rate_t rate;
    link_window_t window;
    as_wire_read_t asking; // a READ that is being filled (read.c)
};

struct assay_call {
    uint32_t generation;
    bool used, sent;
    assay_link_t *link;
    assay_call_t *prev, *next; // of the link; next of the unused ones
    uint16_t answer_type;
    void *owner;
    // The link is READY: send the question, whose head is as_wire_head(type, assay_call_id(call)).
    as_status_t (*send)(assay_call_t *call);
    // The call is over and dropped when these run; one that is answered in pieces is dropped by its
    // owner, with the last. The header is checked and of answer_type.
    void (*answered)(void *owner, const void *header, as_net_msg_t *msg);
    void (*failed)(void *owner, as_status_t status);
    bool in_pieces; // set by its owner
};

typedef struct assay_call_params {
    void *owner;
    uint16_t answer_type;
    as_status_t (*send)(assay_call_t *call);
    void (*answered)(void *owner, const void *header, as_net_msg_t *msg);
    void (*failed)(void *owner, as_status_t status);
} assay_call_params_t;

assay_link_t *assay_link_find(const assay_client_t *client, uint64_t node_id); // a member, or NULL
as_status_t assay_link_make(assay_client_t *client, const assay_store_t *store,
                            assay_link_t **link_p) AS_MUST_USE;
void assay_link_get(assay_link_t *link);
void assay_link_put(assay_link_t *link);                      // may free it, when it is no member
bool assay_link_is(const assay_link_t *link, uint64_t epoch); // READY, and still that connection
// Closes the connection; its calls fail with `status`; it is not tried again for a while.
void assay_link_fail(assay_link_t *link, as_status_t status);
// A question of begun_us, last put at asked_us, will not be waited for any longer. When it has had its
// time, and so has one that was begun before it, the link fails.
void assay_link_silent(assay_link_t *link, uint64_t begun_us, uint64_t asked_us);
void assay_link_close(assay_link_t *link); // for assay_client_free
void assay_link_renew(assay_link_t *link); // there is another token
// Sends the question now or once the link is READY; connects it when it is idle. On an error
// nothing is called.
as_status_t assay_call_start(assay_link_t *link, const assay_call_params_t *params,
                             assay_call_t **call_p) AS_MUST_USE;
void assay_call_drop(assay_call_t *call); // a late answer is ignored
uint64_t assay_call_id(const assay_call_t *call);
void assay_handlers_init(assay_client_t *client, as_net_handlers_t *handlers_p);

// rate.c
void assay_rate_located(assay_link_t *link, uint64_t us);
void assay_rate_waited(assay_link_t *link, uint64_t us);    // so long, and no answer came
void assay_rate_begin(assay_link_t *link, uint64_t now_us); // bytes are owed
void assay_rate_arrived(assay_link_t *link, size_t bytes);
void assay_rate_end(assay_link_t *link, uint64_t now_us, bool idle); // idle: none are owed any more
void assay_rate_reset(assay_link_t *link);

// ---- fetches

typedef struct assay_read assay_read_t;

// window.c
void assay_window_reset(assay_link_t *link);                    // the connection is a new one
void assay_window_asked(assay_read_t *read);                    // before it counts as in flight
void assay_window_came(const assay_read_t *read, size_t bytes); // they count as arrived
size_t assay_window_bytes(const assay_link_t *link);

// What one LOCATE asks of one store.
typedef struct assay_part {
    assay_fetch_t *fetch;
    struct assay_part *next; // of the fetch, in the order they were made
    assay_link_t *link;
    uint32_t *blocks; // of the fetch, ascending; position = index of the LOCATE
    as_key_t *keys;
    uint32_t count;
    assay_call_t *call;   // while it is asked
    bool begun, answered; // answered: or failed
    bool waits;           // its store was busy: it is asked again
    bool sending;         // the keys may still be read
    bool silent;          // had time enough to answer
    uint64_t begun_us;
    uint64_t epoch; // of the link, when it was asked
    uint64_t asked_us;
    uint8_t *answer; // of an answer that did not come with its message
    as_wire_located_t located;
    uint64_t lease_id, lease_until_us; // 0: none
    uint64_t lease_us;                 // for how long it was granted last
    assay_call_t *renewal;             // while it is asked for
    uint64_t renewal_us;               // when it was
    // what is next to be asked for (read.c)
    uint32_t position, layer;
    uint32_t outstanding; // its reads
    uint32_t refused;     // of those, that wait to be asked again
    size_t outstanding_bytes;
    uint64_t progress_us; // when one of them last arrived
} assay_part_t;

// REFUSED: the store was busy, or there was no call left here; it is asked again.
typedef enum read_state { READ_ASKED, READ_REFUSED, READ_ARRIVING } read_state_t;

// Extents [position, position + count) x [layer, layer + layer_count) of a part; count or
// layer_count is 1.
struct assay_read {
    assay_part_t *part;
    struct assay_read *prev, *next; // of the fetch
    read_state_t state;
    assay_call_t *call; // while ASKED
    uint32_t position, count;
    uint32_t layer, layer_count;
    uint64_t epoch;
    uint64_t refused_us;            // for the first time; 0: never
    uint64_t asked_us, came_before; // when, and what the link had brought then (window.c)
    bool asked_alone;
    size_t arrived_bytes;
    bool scattered; // pieces of it did not come in order
    uint32_t crc;   // of those that came, if in order
    uint8_t *stage; // where encrypted extents arrive; made when it is needed
};

typedef enum fetch_state { FETCH_LOCATING, FETCH_READING, FETCH_ENDING, FETCH_ENDED } fetch_state_t;

typedef enum ask_state { ASK_NOT, ASK_UNDER_WAY, ASK_DONE } ask_state_t;

typedef struct assay_block {
    assay_part_t *part; // who has it; NULL: nobody
    uint32_t position;  // in the part
    uint32_t arrived;   // layers
    uint64_t address;
    uint32_t asked; // parts that ask for it
    uint32_t reads; // under way
    // who may have it (candidates.c)
    uint8_t candidates, sure, tries; // there are; are asked in any case; were asked
    uint16_t bad;                    // candidates, by number, that it could not be read from
    bool placed;                     // the node of its run is known
    bool lost;                       // a store failed that may have it
    bool busy;                       // one was too busy for it: it is asked for again
    bool found;                      // somebody had it
    bool is_hole;                    // it is not to be had; known once all is located
    ask_state_t everywhere;          // the question to every store
    as_status_t status;              // why it could not be had
} assay_block_t;

struct assay_fetch {
    assay_client_t *client;
    assay_fetch_t *prev, *next;
    assay_fetch_args_t args;
    bool locate_only;
    assay_attend_t *attend; // NULL: it brings extents
    size_t extent_bytes;    // in the caller's buffer
    size_t stored_bytes;    // of an extent at a store: more where it is encrypted
    uint8_t *copied;        // an encrypted extent out of shared memory; made when it is needed
    fetch_state_t state;
    as_timer_t *timer; // deadline, time to locate, stalls
    as_task_t pump;    // there may be something to ask for or to copy
    uint64_t began_us, deadline_us, locate_until_us;
    uint64_t caller_since_us; // since when it only waits for the caller; 0: it does not
    uint64_t again_us;        // when what was refused is asked again; 0: nothing was
    uint64_t wait_us;         // for that, the last time; 0: something came since
    bool renewing;     // then, too: blocks that a store was too busy for are asked of all again
    uint64_t found_us; // when a block was last located for the first time
    void *arena;
    as_key_t *keys;
    assay_block_t *blocks;
    uint64_t *candidates; // [block][candidates_max]: the nodes that may have it, in order
    uint32_t candidates_max;
    assay_part_t *parts, *last_part;
    uint32_t parts_open;
    bool seeking;     // some block is to be asked of its next candidate
    uint32_t *crcs;   // [block][layer]
    bool *here;       // [block][layer]: arrived, checked
    uint32_t *layers; // [layer]: extents that have not arrived
    bool *released;   // [layer]
    uint32_t limit;   // blocks before it are fetched; a hole lowers it
    bool holed;
    bool by_block; // the layers of a block are neighbours in the buffer, so they are asked for
                   // together
    uint32_t layer_first, layer_end; // of those that are brought
    uint32_t next_layer;             // to be handed out
    uint64_t missing;                // extents before the limit
    uint64_t bytes;
    assay_read_t *reads;
    uint32_t arriving;  // reads whose bytes may still be written into the buffer
    uint32_t ops;       // callbacks that refer to the fetch, but not to the buffer
    bool calling;       // inside one of the owner's callbacks
    as_status_t status; // what on_done will say, with the next
    uint32_t hole;
};

// candidates.c
extern assay_link_t assay_everyone;                          // no link: stands for all of them
uint32_t assay_candidates_max(const assay_client_t *client); // of one block
void assay_candidates_list(assay_fetch_t *fetch, const uint64_t *node_ids);
// Who is to be asked next; NULL: there is nobody (any more).
assay_link_t *assay_candidates_next(assay_fetch_t *fetch, uint32_t block);
// Whether another store has a copy, as far as is known, and was not asked.
bool assay_candidates_are_left(const assay_fetch_t *fetch, uint32_t block);
// It could not be read from this node, which is not asked for it again.
void assay_candidates_fail(assay_fetch_t *fetch, uint32_t block, uint64_t node_id);
// This node has the block: whether it is the one to read it from.
bool assay_candidates_take(assay_fetch_t *fetch, uint32_t block, uint64_t node_id);

// locate.c
as_status_t assay_locate_plan(assay_fetch_t *fetch) AS_MUST_USE; // makes the parts
void assay_locate_start(assay_fetch_t *fetch);
// Asks the next candidate of each block that nobody has and nobody is asked for; what has none left
// is asked of all of them once more where one was busy (fetch->renewing), else a hole, once the fetch is
// reading.
void assay_locate_again(assay_fetch_t *fetch);
void assay_locate_give_up(assay_fetch_t *fetch, uint64_t begun_us); // what was asked until then
void assay_locate_retry(assay_fetch_t *fetch);                      // of stores that were busy

// lease.c
void assay_lease_take(assay_part_t *part, uint32_t lease_ms, uint64_t asked_us); // it was granted
bool assay_lease_holds(const assay_part_t *part); // what was read under it until now is right
// Asks for more time where half of it is over. Returns when to look again, at `until_us` at the latest.
uint64_t assay_lease_renew(assay_fetch_t *fetch, uint64_t now_us, uint64_t until_us);
void assay_lease_give(assay_part_t *part); // back
// Lets the deadline stand still for as long as only the caller was waited for. To be called when that
// may have begun or ended, and before the deadline is looked at.
void assay_fetch_keep_time(assay_fetch_t *fetch);
void assay_lease_release(assay_fetch_t *fetch); // gives all back

// fetch.c
void assay_fetch_answered(assay_fetch_t *fetch); // every part has answered
void assay_fetch_later(assay_fetch_t *fetch);    // something was refused: it is asked again, soon
// The part that has the block cannot give it: its next candidate is asked, or it is a hole.
void assay_fetch_lost(assay_part_t *part, uint32_t block, as_status_t status);
void assay_fetch_arrived(assay_fetch_t *fetch, uint32_t block, uint32_t layer);
void assay_fetch_hole(assay_fetch_t *fetch, uint32_t block, as_status_t status);
void assay_fetch_end(assay_fetch_t *fetch, as_status_t status, uint32_t hole);
void assay_fetch_settle(
    assay_fetch_t *fetch); // after a callback came: hands out, ends or frees what is ready
as_status_t assay_fetch_begin(assay_client_t *client, const assay_fetch_args_t *args,
                              bool locate_only, assay_fetch_t **fetch_p) AS_MUST_USE;
static inline uint32_t assay_fetch_layers(const assay_fetch_t *fetch)
{
    return fetch->layer_end - fetch->layer_first;
}
uint8_t *assay_fetch_place(const assay_fetch_t *fetch, uint32_t block, uint32_t layer);

// pump.c
uint32_t
assay_urgency_weight(assay_urgency_t urgency); // its share of what a link may have in flight
void assay_read_pump(assay_fetch_t *fetch);

// read.c
// One read of what is next in the part, which asks are sent for with assay_read_flush. False: none, and
// the fetch knows what it lacks.
bool assay_read_start(assay_part_t *part, uint32_t count, uint32_t layer_count);
void assay_read_flush(assay_link_t *link);
void assay_read_copy(assay_part_t *part);     // one extent, by pointer
void assay_read_again(assay_fetch_t *fetch);  // what was refused
void assay_read_forget(assay_fetch_t *fetch); // those that are only asked for
void assay_read_check_stalls(assay_fetch_t *fetch, uint64_t now_us);

// attend.c: of a fetch whose blocks are attended to where they are.
void assay_attend_pump(assay_attend_t *attend);
bool assay_attend_is_idle(const assay_attend_t *attend); // no layer is asked for
void assay_attend_forget(assay_attend_t *attend);        // what is only asked for
void assay_attend_cut(assay_attend_t *attend);           // what does not come in time
void assay_attend_free(assay_attend_t *attend);          // with its fetch; NULL is fine

// stage.c
typedef struct assay_stage assay_stage_t;
bool assay_stage_offer(assay_link_t *link); // whether the store takes blocks from it
// Room for a block; NULL: there is none. To be given back; may_be_read: a store has not answered.
void *assay_stage_take(assay_client_t *client, size_t bytes);
uint64_t assay_stage_offset(const assay_client_t *client, const void *block);
void assay_stage_give(assay_client_t *client, const void *block, bool may_be_read);
void assay_stage_free(assay_client_t *client);

// token.c: why a store may have refused our token, as the end of a sentence.
const char *assay_token_fault(const assay_client_t *client);

// ---- the client

struct assay_client {
    uint64_t magic;
    assay_client_options_t options;
    uint8_t instance_id[16];
    as_net_t *net;
    assay_store_t stores[ASSAY_STORES_MAX];
    uint32_t store_count;
    uint32_t replicas;
    assay_link_t *links;
    assay_call_t *calls, *calls_unused; // CALLS_MAX
    as_pool_t *reads;
    as_pool_t *puts_pool;
    assay_fetch_t *fetches;
    uint32_t fetch_count;
    uint32_t fetch_weights; // of all fetches (assay_urgency_weight)
    assay_put_t *puts;
    uint32_t put_count;
    assay_stage_t *stage; // NULL: none yet
    bool stage_failed;    // there is no memory for it
    as_log_due_t conflict_due;
    bool has_token;
    as_token_sealed_t token;
    const char *token_file; // NULL: none
    as_file_stamp_t token_stamp;
    as_timer_t *token_timer;
    as_cipher_t *cipher; // NULL: blocks are stored as they are
    bool closing;
};

#define ASSAY_CLIENT_MAGIC 0x746e65696c632e61ull // "a.client"

size_t assay_put_bytes(void); // of one put, for the pool
void assay_put_close_all(assay_client_t *client);

static inline uint64_t assay_now_us(const assay_client_t *client)
{
    return as_loop_now_us(client->options.loop);
}

#endif
