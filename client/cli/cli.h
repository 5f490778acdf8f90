// SPDX-License-Identifier: Apache-2.0
// The `assay` command: what its subcommands share.
//
// One process, one thread, blocking calls with deadlines. A subcommand is one file with one
// function; it returns the exit code: 0 done, 1 failed, 2 wrong usage. Messages for people go to
// stderr, results to stdout.
#ifndef ASSAY_CLI_H
#define ASSAY_CLI_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include "client/assay.h"
#include "common/tls.h"
#include "proto/scheduler.pb-c.h"

#define CLI_NODES_MAX     64u
#define CLI_ADDRESS_BYTES 128u
#define CLI_URL_BYTES     512u
#define CLI_PATH_BYTES    1024u
#define CLI_RPC_US        5000000u

typedef struct cli_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); // argv[0] is the name
} cli_command_t;

int cli_up(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_stat(int argc, char **argv);
int cli_ls(int argc, char **argv);
int cli_scrub(int argc, char **argv);
int cli_drain(int argc, char **argv);
int cli_pin(int argc, char **argv);
int cli_unpin(int argc, char **argv);
int cli_drop(int argc, char **argv);
int cli_quota(int argc, char **argv);
int cli_token(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_demo(int argc, char **argv);
int cli_put(int argc, char **argv);
int cli_get(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_calibrate(int argc, char **argv);
int cli_ruler(int argc, char **argv);
int cli_compressors(int argc, char **argv);
int cli_compare(int argc, char **argv);

// "assay: <message>\n" to stderr.
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Of the subcommands' tables, for every remote call: AS_TLS_OPTIONS(cli_tls).
extern as_rpc_tls_t cli_tls;
// Of the subcommands that talk to the stores themselves: CLI_CLIENT_OPTIONS.
extern const char *cli_token_file;
extern const char *cli_encrypt_key_file; // of `put` and `get`: CLI_ENCRYPT_OPTION
// Of the tables of subcommands that print JSON or ask a cluster: each sets the variable it names.
#define CLI_JSON_OPTION(as_json_, help_)                                                           \
    {                                                                                              \
        .name = "json", .type = AS_OPTION_BOOL, .value = &(as_json_), .fallback = "false",         \
        .help = (help_)                                                                            \
    }
#define CLI_RUN_DIR_OPTION(run_dir_)                                                               \
    {                                                                                              \
        .name = "run-dir", .type = AS_OPTION_STRING, .value = &(run_dir_), .metavar = "DIR",       \
        .help = "of the cluster, as for `assay up`"                                                \
    }
#define CLI_CLUSTER_OPTIONS(scheduler_, run_dir_)                                                  \
    {.name = "scheduler",                                                                          \
     .type = AS_OPTION_STRING,                                                                     \
     .value = &(scheduler_),                                                                       \
     .metavar = "HOST:PORT",                                                                       \
     .help = "of which cluster (default: the one here)"},                                          \
        CLI_RUN_DIR_OPTION(run_dir_)
#define CLI_CLIENT_OPTIONS(scheduler_, run_dir_)                                                   \
    CLI_CLUSTER_OPTIONS(scheduler_, run_dir_), AS_TLS_OPTIONS(cli_tls),                            \
    {                                                                                              \
        .name = "token", .type = AS_OPTION_STRING, .value = &cli_token_file, .metavar = "FILE",    \
        .help = "token for stores that have tenants (`assay token issue`)"                         \
    }
#define CLI_ENCRYPT_OPTION                                                                         \
    {                                                                                              \
        .name = "encrypt-key-file", .type = AS_OPTION_STRING, .value = &cli_encrypt_key_file,      \
        .metavar = "FILE",                                                                         \
        .help = "key (`assay token key`) by which blocks are encrypted here; stores never see it"  \
    }
// Parses a subcommand's options. False: exit with the code. `rest_p` NULL: positional arguments are
// refused.
bool cli_options(const as_options_t *options, int argc, char **argv, int *rest_p, int *code_p);
// Counts the names of --compressor. False, with a message: there are none, or more than `max`.
bool cli_count_names(const char *const *names, uint32_t max, uint32_t *count_p);

// ---- state.c: where the cluster of this machine is

typedef struct cli_node {
    char name[32];
    char role[16]; // "scheduler", "store", "worker"
    pid_t pid;     // 0: has ended
    int ready_fd;  // of the starter: the process's stdout
    char rpc[CLI_ADDRESS_BYTES], data[CLI_ADDRESS_BYTES],
        http[CLI_ADDRESS_BYTES]; // "" where there is none
} cli_node_t;

typedef struct cli_cluster {
    pid_t pid; // of `assay up`
    cli_node_t nodes[CLI_NODES_MAX];
    uint32_t node_count;
} cli_cluster_t;

// The run directory: `given`, or $XDG_RUNTIME_DIR/assay, or /tmp/assay-<uid>. Made if it is not
// there.
bool cli_run_dir(const char *given, char path[CLI_PATH_BYTES]);
bool cli_cluster_write(const char *run_dir, const cli_cluster_t *cluster);
// Removes the file where this process wrote it, or whoever did.
void cli_cluster_remove(const char *run_dir, bool stale_too);
// False, without a message, when no cluster is running.
bool cli_cluster_read(const char *run_dir, cli_cluster_t *cluster);
const cli_node_t *cli_cluster_find(const cli_cluster_t *cluster, const char *role);
// The scheduler's address: `given`, or from the cluster of the run directory. False: a message was
// printed.
bool cli_find_scheduler(const char *given, const char *run_dir, char address[CLI_ADDRESS_BYTES]);
// "http://host:port" of a worker: `given` (with or without http:// and /v1), or from the cluster.
// Returns the exit code; after one other than 0 a message was printed.
int cli_find_worker(const char *given, const char *run_dir, char url[CLI_URL_BYTES]);

// ---- lock.c: one cluster for each run directory

// Takes the run directory for a cluster that starts; the end of the process gives it back. False: a
// message was printed.
bool cli_lock(const char *run_dir);
// The start is over: the state file is written.
void cli_lock_started(void);
// Whether the holder lives.
bool cli_is_alive(const char *run_dir);
// Reads the state file, and first waits while the cluster starts. False: a message was printed, which
// says by what option one is named that no state file tells of.
bool cli_cluster_await(const char *run_dir, const char *elsewhere, cli_cluster_t *cluster);

// ---- http.c

typedef struct cli_text {
    char *bytes; // NUL-terminated once there is any
    size_t count, capacity;
} cli_text_t;
bool cli_text_append(cli_text_t *text, const char *bytes, size_t count);
void cli_text_fini(cli_text_t *text);
// A whole file, or stdin for "-"; at most 4 MiB, and no NUL byte, which would end a prompt. False:
// a message was printed.
bool cli_read_file(const char *path, cli_text_t *text);

// GETs JSON. NULL: a message was printed.
json_t *cli_http_get(const char *url);
// POSTs JSON. The answer, also one that is an error: code_p has the HTTP code. NULL: a message was
// printed.
json_t *cli_http_post(const char *url, const json_t *body, long *code_p);
// POSTs JSON and reads the answer's stream of events; on_event returns false to end it. False: a
// message was printed.
typedef bool (*cli_event_fn)(void *ctx, json_t *event);
bool cli_http_stream(const char *url, const json_t *body, cli_event_fn on_event, void *ctx);

// ---- demo.c

// The path of a text: `given`, or that of the demo's. False: a message was printed.
bool cli_find_text(const char *given, char path[CLI_PATH_BYTES]);

// ---- compressors.c

// A worker's /v1/compressors: at least one in "data", each with its "name"; bytes of a token of the
// full cache in "full_token_bytes". NULL: a message was printed.
json_t *cli_get_compressors(const char *url);

// ---- generate.c: one generation

typedef struct cli_ask {
    const char *url;    // of the worker
    const char *prompt; // or the user's message
    json_t *tokens;     // the prompt as token ids; NULL: it is text
    bool chat;
    const char *system; // chat: NULL leaves it to the model's template
    int64_t max_tokens;
    double temperature, top_p;
    int64_t seed;
    const char *compressor, *cache_salt; // NULL: the worker's default; none
    int64_t horizon, prompt_lookup;      // negative: the worker's default
    bool verify_off, ignore_end, bits;   // bits: ask for token ids and logits hashes
    // Token ids that the answer is to be, instead of max_tokens chosen ones, and how likely they are;
    // NULL: it is chosen. Not of chats.
    json_t *continuation;
    FILE *echo; // where the text goes as it comes; NULL: nowhere
} cli_ask_t;

// Rows of a command's table of options; ask_ is a cli_ask_t.
#define CLI_DRAFT_OPTIONS(ask_)                                                                    \
    {.name = "horizon",                                                                            \
     .type = AS_OPTION_INT,                                                                        \
     .value = &(ask_).horizon,                                                                     \
     .fallback = "-1",                                                                             \
     .metavar = "TOKENS",                                                                          \
     .help = "tokens of each draft, 0: plain decoding over the full cache; -1: chosen anew for "   \
             "each, up to the worker's --horizon",                                                 \
     .min = -1,                                                                                    \
     .max = 64},                                                                                   \
    {                                                                                              \
        .name = "prompt-lookup", .type = AS_OPTION_INT, .value = &(ask_).prompt_lookup,            \
        .fallback = "-1", .metavar = "TOKENS",                                                     \
        .help =                                                                                    \
            "most tokens of a step that prompt lookup proposes, 0: off; -1: the worker's default", \
        .min = -1, .max = 15                                                                       \
    }

typedef struct cli_answer {
    cli_text_t text, bits; // bits: a line "token hash" for each token
    uint32_t bit_count;
    json_t *tokens; // of `bits`: their ids
    // Of a continuation: -ln of the probabilities, summed over its tokens behind the first.
    double nats;
    uint32_t logprob_count; // with the first
    char finish[16];
    double first_token_ms, total_ms; // as seen here
    json_t *usage;
    json_t *drafted_on; // `compressor`, and `chosen` where the worker chose it; NULL: not told
} cli_answer_t;

// That every text of it is UTF-8. False: a message was printed.
bool cli_check_ask(const cli_ask_t *ask);
// False: a message was printed. Free the answer in either case.
bool cli_ask(const cli_ask_t *ask, cli_answer_t *answer);
void cli_answer_fini(cli_answer_t *answer);
// A number of the usage: "prompt_tokens", or "assay.drafted_tokens". 0 when absent.
double cli_usage(const cli_answer_t *answer, const char *path);
void cli_print_usage(FILE *out, const cli_answer_t *answer);
double cli_now_ms(void);

// ---- tokens.c: what the worker at a URL makes of texts

// Tokens of the body of a request to /v1/<path>. *tokens_p is NULL where they are more than the
// worker's context. False: a message was printed.
bool cli_tokenize(const char *url, const char *path, const json_t *body, json_t **tokens_p);
bool cli_tokenize_text(const char *url, const char *text, json_t **tokens_p);
// How many tokens the model wants before any text. False: a message was printed.
bool cli_tokenize_lead(const char *url, size_t *lead_p);
// Whether the worker's context holds so many; `option` is what asked for them. False: a message was
// printed.
bool cli_check_context(const char *url, const char *option, int64_t tokens);

// ---- local.c: a worker to ask: one that runs, or one that is started for the while

typedef struct cli_local_options {
    const char *model, *worker, *run_dir; // each may be NULL
    int64_t threads;
} cli_local_options_t;

// Rows of a command's table of options; local_ is a cli_local_options_t.
#define CLI_LOCAL_OPTIONS(local_)                                                                  \
    {.name = "worker",                                                                             \
     .type = AS_OPTION_STRING,                                                                     \
     .value = &(local_).worker,                                                                    \
     .metavar = "URL",                                                                             \
     .help = "which worker (default: the first of the cluster here), or"},                         \
        {.name = "model",                                                                          \
         .type = AS_OPTION_STRING,                                                                 \
         .value = &(local_).model,                                                                 \
         .metavar = "FILE",                                                                        \
         .help = "GGUF file of the model of which a worker is started, and ended, where no "       \
                 "cluster is running here"},                                                       \
        {.name = "threads",                                                                        \
         .type = AS_OPTION_INT,                                                                    \
         .value = &(local_).threads,                                                               \
         .fallback = "0",                                                                          \
         .metavar = "N",                                                                           \
         .help = "of a worker that is started; 0: one for each processor",                         \
         .min = 0,                                                                                 \
         .max = 256},                                                                              \
        CLI_RUN_DIR_OPTION((local_).run_dir), AS_TLS_OPTIONS(cli_tls)

typedef struct cli_local {
    char url[CLI_URL_BYTES];
    char run_dir[40];      // of what was started
    cli_cluster_t cluster; // without nodes: it was running already
} cli_local_t;

// Returns the exit code; after one other than 0 a message was printed, and there is nothing to close.
int cli_local_open(const cli_local_options_t *options, cli_local_t *local);
// Ends what was started. `good`: the logs are of no use any more. False: it ended badly.
bool cli_local_close(cli_local_t *local, bool good);

// ---- call.c: remote calls

// Hints of who could not be asked.
#define CLI_NO_SCHEDULER "is the scheduler running? (start a cluster with `assay up`)"
#define CLI_NO_STORE                                                                               \
    "the scheduler counts this store as alive still: see its log, or look again in 10 s"
// Calls and gives a copy of the reply. NULL: a message was printed, which ends with the hint. Free it
// with protobuf_c_message_free_unpacked.
ProtobufCMessage *cli_call(const char *target, const ProtobufCServiceDescriptor *service,
                           const char *method, const ProtobufCMessage *request, const char *hint);
// What the scheduler at this address knows of the cluster. NULL: a message was printed. Free it with
// assay__stat_reply__free_unpacked.
Assay__StatReply *cli_stat_of_cluster(const char *scheduler);

// ---- blocks.c, chain.c: what put, get and bench share

#define CLI_KEY_BYTES 32u
#define CLI_SHAPE     "16,2,2,128,64,2" // blocks of 1 MiB

// Blocks of one file, or single ones.
typedef struct cli_chain {
    assay_shape_t shape;
    uint64_t bytes; // of the file; the last block may be filled up
    uint8_t *keys;
    uint32_t count;
} cli_chain_t;

// A client of libassay. NULL: a message was printed. in_flight 0: the library's default.
assay_t *cli_open(const char *scheduler, const char *run_dir, uint32_t in_flight);
// False, for these three: a message was printed.
bool cli_shape_parse(const char *text, assay_shape_t *shape_p);
bool cli_chain_read(const char *path, cli_chain_t *chain_p);
// False: it is no chain; nothing is printed. Either way cli_chain_fini takes what chain_p holds.
bool cli_chain_take(const json_t *json, cli_chain_t *chain_p);
bool cli_chain_resize(cli_chain_t *chain, uint32_t count);
void cli_chain_fini(cli_chain_t *chain);
json_t *cli_chain_json(const cli_chain_t *chain);
bool cli_key_parse(const char *hex, uint8_t *key_p);
void cli_key_hex(const uint8_t *key, char hex_p[65]);

// A bar on stderr, where that is a terminal. Begin with {0}.
typedef struct cli_progress {
    double began_ms, last_ms;
    bool shown;
} cli_progress_t;
void cli_progress(cli_progress_t *progress, uint64_t done, uint64_t total);
void cli_progress_end(cli_progress_t *progress); // before anything else is printed

// ---- table.c

typedef struct cli_table cli_table_t;
// Columns of a table for people; a name that begins with '>' is right-aligned.
cli_table_t *cli_table_new(const char *const *columns, uint32_t count);
// The next cell, row by row.
void cli_cell(cli_table_t *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void cli_table_print(cli_table_t *table, FILE *out); // and frees
// "12.3 MB" in a static ring of buffers.
const char *cli_bytes(double bytes);
const char *cli_duration(double ms);

// ---- cluster.c: the processes of a cluster on this machine

typedef struct cli_cluster_options {
    const char *model;
    int64_t stores, workers, ram_bytes, port, threads, context, horizon;
    const char *compressor, *log_level, *run_dir;
    const char *full_cache, *draft_model,
        *calibration; // as the worker's options; NULL: its default
    // Handed through where given; 0 and NULL leave it to the daemons.
    int64_t replicas, disk_bytes, sessions, queue, device_bytes;
    const char *disk, *cluster_key, *token, *quota_file, *encrypt_key_file;
    double start_seconds; // limit of the start
} cli_cluster_options_t;

// The folder of this program, where the daemons are too. False: a message was printed.
bool cli_own_folder(char path[CLI_PATH_BYTES]);

// Starts scheduler, stores and workers and waits until all are ready. False: a message was printed,
// nothing is left.
bool cli_cluster_start(const cli_cluster_options_t *options, cli_cluster_t *cluster);
// Ends all by SIGTERM, and by SIGKILL what is left after the grace. True when each ended well.
bool cli_cluster_stop(cli_cluster_t *cluster);
// Looks for children that ended: reports them, marks their pid 0, and returns how many.
uint32_t cli_cluster_reap(cli_cluster_t *cluster, const char *run_dir);
// Removes the logs, and the run directory where nothing else is in it.
void cli_cluster_forget(const cli_cluster_t *cluster, const char *run_dir);

// ---- demo.c

// The text that comes with Assay, unless another one is given. False: a message was printed.
bool cli_find_text(const char *given, char path[CLI_PATH_BYTES]);

#endif
