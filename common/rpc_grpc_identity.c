// SPDX-License-Identifier: Apache-2.0
// Certificates in use, and their replacement while calls go on.
//
// An identity is what the three files held when they were read last. gRPC asks a server's for each
// handshake, so the next one uses what is there now. A channel keeps what it was made with, so a
// client makes another channel when the generation has changed (rpc_grpc_client.c). What is read is
// checked as a whole and replaced as a whole: a bad file leaves all as it was.
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "common/rpc_grpc.h"
#include "common/small_file.h"
#include "common/tls.h"

#define FILES 3

struct rpc_identity {
    char *names[FILES]; // CA, certificate, key
    as_file_stamp_t stamps[FILES];
    as_tls_pem_t pem;
    uint64_t generation; // from 1
    uint32_t users;
    rpc_identity_t *next;
};

enum { TAKEN, REFUSED, NOT_AFTER, METRIC_COUNT };

#define RELOADS(result_)                                                                           \
    {                                                                                              \
        .name = "assay_tls_reloads_total",                                                         \
        .help = "Files of mutual TLS that were read again, by what became of it",                  \
        .type = AS_METRIC_COUNTER, .label = "result=\"" result_ "\""                               \
    }

static as_metric_t metrics[METRIC_COUNT] = {
    [TAKEN] = RELOADS("taken"),
    [REFUSED] = RELOADS("refused"),
    [NOT_AFTER] = {.name = "assay_tls_certificate_not_after_s",
                   .help = "End of the time of the certificate in use, in seconds since 1970",
                   .type = AS_METRIC_GAUGE},
};

// gRPC's threads read identities, too.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rpc_identity_t *identities;

static as_rpc_tls_t files_of(const rpc_identity_t *identity)
{
    return (as_rpc_tls_t){identity->names[0], identity->names[1], identity->names[2]};
}

// ---- reading again

// Reads the three and looks whether they belong together; `text` says what is wrong.
static as_status_t read_whole(const as_rpc_tls_t *files, as_tls_pem_t *pem_p,
                              int64_t *not_after_s_p, char text[AS_TLS_TEXT_BYTES])
{
    as_tls_pem_t pem;
    as_status_t status = as_tls_pem_read(files, &pem, text);
    if (status != AS_OK) {
        return status;
    }
    status = as_tls_pem_check(&pem, files, not_after_s_p, text);
    if (status != AS_OK) {
        as_tls_pem_free(&pem);
        return status;
    }
    *pem_p = pem;
    return AS_OK;
}

static void read_again(rpc_identity_t *identity)
{
    as_rpc_tls_t files = files_of(identity);
    char text[AS_TLS_TEXT_BYTES];
    as_tls_pem_t pem;
    int64_t not_after_s;
    as_status_t status = read_whole(&files, &pem, &not_after_s, text);
    as_metric_add(&metrics[status == AS_OK ? TAKEN : REFUSED], 1);
    if (status != AS_OK) {
        AS_ERROR("rpc", "the certificates in use are kept, since of the files now --%s", text);
        return;
    }
    as_tls_pem_free(&identity->pem);
    identity->pem = pem;
    identity->generation++;
    as_metric_set(&metrics[NOT_AFTER], not_after_s);
    AS_INFO("rpc", "certificates are read again: %s is used from now on, for %lld s at most",
            files.cert_file, (long long)(not_after_s - (int64_t)time(NULL)));
}

static bool has_changed(rpc_identity_t *identity)
{
    bool changed = false;
    for (int i = 0; i < FILES; i++) {
        changed |= as_file_changed(identity->names[i], &identity->stamps[i]);
    }
    return changed;
}

static void reload(bool always)
{
    pthread_mutex_lock(&lock);
    for (rpc_identity_t *identity = identities; identity; identity = identity->next) {
        if (has_changed(identity) || always) {
            read_again(identity);
        }
    }
    pthread_mutex_unlock(&lock);
}

void as_rpc_tls_reload(void)
{
    reload(true);
}

void as_rpc_tls_refresh(void)
{
    reload(false);
}

// ---- who uses them

static void identity_free(rpc_identity_t *identity)
{
    for (int i = 0; i < FILES; i++) {
        as_mem_free(identity->names[i]);
    }
    as_tls_pem_free(&identity->pem);
    as_mem_free(identity);
}

static as_status_t identity_make(const as_rpc_tls_t *tls, rpc_identity_t **identity_p)
{
    rpc_identity_t *identity = as_mem_zalloc(1, sizeof(*identity));
    if (!identity) {
        return AS_ERR_NO_MEMORY;
    }
    char text[AS_TLS_TEXT_BYTES];
    int64_t not_after_s;
    const char *names[FILES] = {tls->ca_file, tls->cert_file, tls->key_file};
    for (int i = 0; i < FILES && names[i]; i++) {
        as_file_changed(names[i], &identity->stamps[i]); // what changes from here on is seen
    }
    as_status_t status = read_whole(tls, &identity->pem, &not_after_s, text);
    if (status != AS_OK) {
        AS_ERROR("rpc", "--%s", text);
        as_mem_free(identity);
        return status;
    }
    for (int i = 0; i < FILES; i++) {
        identity->names[i] = as_mem_strdup(names[i]);
        if (!identity->names[i]) {
            identity_free(identity);
            return AS_ERR_NO_MEMORY;
        }
    }
    as_metric_register(metrics, METRIC_COUNT);
    as_metric_set(&metrics[NOT_AFTER], not_after_s);
    identity->generation = 1;
    identity->next = identities;
    identities = identity;
    *identity_p = identity;
    return AS_OK;
}

static rpc_identity_t *identity_find(const as_rpc_tls_t *tls)
{
    rpc_identity_t *identity = identities;
    while (identity && (strcmp(identity->names[0], tls->ca_file) != 0 ||
                        strcmp(identity->names[1], tls->cert_file) != 0 ||
                        strcmp(identity->names[2], tls->key_file) != 0)) {
        identity = identity->next;
    }
    return identity;
}

as_status_t rpc_credentials_take(const as_rpc_tls_t *tls, rpc_credentials_t *credentials_p)
{
    *credentials_p = (rpc_credentials_t){0};
    if (!tls) {
        return AS_OK;
    }
    pthread_mutex_lock(&lock);
    bool complete = tls->ca_file && tls->cert_file && tls->key_file;
    rpc_identity_t *identity = complete ? identity_find(tls) : NULL;
    as_status_t status = identity ? AS_OK : identity_make(tls, &identity);
    if (status == AS_OK) {
        identity->users++;
        credentials_p->identity = identity;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void rpc_credentials_give(rpc_credentials_t *credentials)
{
    rpc_identity_t *identity = credentials->identity;
    if (!identity) {
        return;
    }
    pthread_mutex_lock(&lock);
    credentials->identity = NULL;
    if (--identity->users == 0) {
        rpc_identity_t **at = &identities;
        while (*at != identity) {
            at = &(*at)->next;
        }
        *at = identity->next;
        identity_free(identity);
    }
    pthread_mutex_unlock(&lock);
}

bool rpc_credentials_changed(const rpc_credentials_t *credentials)
{
    if (!credentials->identity) {
        return false;
    }
    pthread_mutex_lock(&lock);
    bool changed = credentials->identity->generation != credentials->generation;
    pthread_mutex_unlock(&lock);
    return changed;
}

// ---- gRPC

static grpc_ssl_certificate_config_reload_status
on_handshake(void *ctx, grpc_ssl_server_certificate_config **config_p)
{
    rpc_credentials_t *credentials = ctx;
    grpc_ssl_certificate_config_reload_status result = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pthread_mutex_lock(&lock);
    const rpc_identity_t *identity = credentials->identity;
    if (credentials->generation != identity->generation) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = identity->pem.key,
                                           .cert_chain = identity->pem.cert};
        *config_p = grpc_ssl_server_certificate_config_create(identity->pem.ca, &pair, 1);
        result = *config_p ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                           : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
        credentials->generation = *config_p ? identity->generation : credentials->generation;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

as_status_t rpc_credentials_of_server(rpc_credentials_t *credentials,
                                      grpc_server_credentials **creds_p)
{
    if (!credentials->identity) {
        *creds_p = grpc_insecure_server_credentials_create();
        return AS_OK;
    }
    *creds_p = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, on_handshake, credentials));
    return *creds_p ? AS_OK : AS_ERR_CONFIG;
}

as_status_t rpc_credentials_of_channel(rpc_credentials_t *credentials,
                                       grpc_channel_credentials **creds_p)
{
    rpc_identity_t *identity = credentials->identity;
    if (!identity) {
        *creds_p = grpc_insecure_credentials_create();
        return AS_OK;
    }
    pthread_mutex_lock(&lock);
    grpc_ssl_pem_key_cert_pair pair = {.private_key = identity->pem.key,
                                       .cert_chain = identity->pem.cert};
    *creds_p = grpc_ssl_credentials_create_ex(identity->pem.ca, &pair, NULL, NULL);
    credentials->generation = identity->generation;
    pthread_mutex_unlock(&lock);
    return *creds_p ? AS_OK : AS_ERR_CONFIG;
}
