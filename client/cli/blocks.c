// SPDX-License-Identifier: Apache-2.0
// What `put`, `get` and `bench` share: a client of libassay, shapes, a progress bar.
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/block.h"
#include "common/mem.h"

#define BAR_WIDTH      30
#define PROGRESS_EVERY 100.0 // ms
#define TIMEOUT_MS     30000u
#define SHAPE_MEMBERS  6u

// ---- the client

assay_t *cli_open(const char *scheduler, const char *run_dir, uint32_t in_flight)
{
    char address[CLI_ADDRESS_BYTES];
    if (!cli_find_scheduler(scheduler, run_dir, address)) {
        return NULL;
    }
    const assay_config_t config = {.scheduler = address,
                                   .timeout_ms = TIMEOUT_MS,
                                   .in_flight_max = in_flight,
                                   .tls_ca = cli_tls.ca_file,
                                   .tls_cert = cli_tls.cert_file,
                                   .tls_key = cli_tls.key_file,
                                   .token_file = cli_token_file,
                                   .encrypt_key_file = cli_encrypt_key_file};
    assay_t *assay;
    assay_result_t result = assay_open(&config, &assay);
    if (result != ASSAY_OK) {
        bool lost = result == ASSAY_UNREACHABLE;
        cli_complain("%s%s%s", assay_last_error(), lost ? "; " : "", lost ? CLI_NO_SCHEDULER : "");
        return NULL;
    }
    return assay;
}

// ---- shapes

bool cli_shape_parse(const char *text, assay_shape_t *shape_p)
{
    unsigned n[SHAPE_MEMBERS];
    char rest;
    int read = sscanf(text, "%u,%u,%u,%u,%u,%u%c", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &rest);
    *shape_p = (assay_shape_t){0};
    if (read == (int)SHAPE_MEMBERS) {
        *shape_p = (assay_shape_t){n[0], n[1], n[2], n[3], n[4], n[5]};
    }
    if (assay_block_bytes(shape_p) == 0) {
        cli_complain(
            "--shape=%s: give layers, query heads, K and V heads, head dimension, tokens of "
            "a block and bytes of an element (2 or 4), such as 30,9,3,64,64,2",
            text);
        return false;
    }
    return true;
}

// ---- progress

void cli_progress(cli_progress_t *progress, uint64_t done, uint64_t total)
{
    double now_ms = cli_now_ms();
    if (progress->began_ms == 0) {
        progress->began_ms = now_ms;
        progress->shown = isatty(STDERR_FILENO);
    }
    if (!progress->shown || (done < total && now_ms - progress->last_ms < PROGRESS_EVERY)) {
        return;
    }
    progress->last_ms = now_ms;
    double part = total > 0 ? (double)done / (double)total : 1;
    double seconds = (now_ms - progress->began_ms) / 1e3;
    char bar[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = i < (int)(part * BAR_WIDTH) ? '#' : '.';
    }
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %3.0f %%  %s of %s  %s/s \033[K", bar, 100 * part,
            cli_bytes((double)done), cli_bytes((double)total),
            cli_bytes(seconds > 0 ? (double)done / seconds : 0));
}

void cli_progress_end(cli_progress_t *progress)
{
    if (progress->shown && progress->last_ms > 0) {
        fputs("\r\033[K", stderr);
    }
}
