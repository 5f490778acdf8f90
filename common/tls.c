// SPDX-License-Identifier: Apache-2.0
// Looks at the files of mutual TLS before they are used: a peer that refuses them says nothing.
#include "common/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "common/small_file.h"

#define PEM_BYTES_MAX (1u << 20)

typedef struct identity {
    X509_STORE *ca;
    X509 *cert;
    STACK_OF(X509) * chain; // what else the certificate's file holds
    EVP_PKEY *key;
} identity_t;

// `text` is of the fault, and begins with the option.
static as_status_t complain(char *text, const char *option, const char *file, const char *what)
{
    snprintf(text, AS_TLS_TEXT_BYTES, "%s %.200s: %s", option, file, what);
    ERR_clear_error();
    return AS_ERR_CONFIG;
}

// A key that asks for a password has nobody to ask.
static int no_password(char *out, int bytes_max, int writing, void *ctx)
{
    (void)out;
    (void)bytes_max;
    (void)writing;
    (void)ctx;
    return -1;
}

// ---- files

static as_status_t read_file(char *text, const char *option, const char *file, char **pem_p)
{
    size_t bytes = 0;
    char *pem = as_mem_alloc(PEM_BYTES_MAX + 1);
    if (!pem) {
        return complain(text, option, file, "out of memory");
    }
    if (as_file_read(file, pem, PEM_BYTES_MAX, &bytes) != AS_OK) {
        const char *what = strerror(errno);
        as_mem_free(pem);
        return complain(text, option, file, what);
    }
    *pem_p = pem;
    return AS_OK;
}

as_status_t as_tls_pem_read(const as_rpc_tls_t *files, as_tls_pem_t *pem_p,
                            char text[AS_TLS_TEXT_BYTES])
{
    as_tls_pem_t pem = {0};
    if (!files->ca_file || !files->cert_file || !files->key_file) {
        snprintf(text, AS_TLS_TEXT_BYTES, "tls-%s is missing: mutual TLS needs all three files",
                 !files->ca_file     ? "ca"
                 : !files->cert_file ? "cert"
                                     : "key");
        return AS_ERR_CONFIG;
    }
    as_status_t status = read_file(text, "tls-ca", files->ca_file, &pem.ca);
    if (status == AS_OK) {
        status = read_file(text, "tls-cert", files->cert_file, &pem.cert);
    }
    if (status == AS_OK) {
        status = read_file(text, "tls-key", files->key_file, &pem.key);
    }
    if (status != AS_OK) {
        as_tls_pem_free(&pem);
        return status;
    }
    *pem_p = pem;
    return AS_OK;
}

void as_tls_pem_free(as_tls_pem_t *pem)
{
    as_mem_free(pem->ca);
    as_mem_free(pem->cert);
    if (pem->key) {
        OPENSSL_cleanse(pem->key, strlen(pem->key));
    }
    as_mem_free(pem->key);
    *pem = (as_tls_pem_t){0};
}

// ---- what they hold

static X509 *next_cert(BIO *from)
{
    return PEM_read_bio_X509(from, NULL, no_password, NULL);
}

static as_status_t read_ca(char *text, const char *file, const char *pem, identity_t *identity)
{
    BIO *from = BIO_new_mem_buf(pem, -1);
    identity->ca = X509_STORE_new();
    unsigned count = 0;
    X509 *one;
    while (from && identity->ca && (one = next_cert(from)) != NULL) {
        count += X509_STORE_add_cert(identity->ca, one) == 1;
        X509_free(one);
    }
    BIO_free(from);
    ERR_clear_error(); // of the end of the file
    return count > 0 ? AS_OK : complain(text, "tls-ca", file, "holds no certificate in PEM");
}

static as_status_t read_cert(char *text, const char *file, const char *pem, identity_t *identity)
{
    BIO *from = BIO_new_mem_buf(pem, -1);
    identity->cert = from ? next_cert(from) : NULL;
    identity->chain = sk_X509_new_null();
    X509 *more;
    while (identity->cert && identity->chain && (more = next_cert(from)) != NULL) {
        if (sk_X509_push(identity->chain, more) == 0) {
            X509_free(more);
            break;
        }
    }
    BIO_free(from);
    ERR_clear_error();
    return identity->cert ? AS_OK : complain(text, "tls-cert", file, "holds no certificate in PEM");
}

static as_status_t read_key(char *text, const char *file, const char *pem, identity_t *identity)
{
    BIO *from = BIO_new_mem_buf(pem, -1);
    identity->key = from ? PEM_read_bio_PrivateKey(from, NULL, no_password, NULL) : NULL;
    BIO_free(from);
    if (!identity->key) {
        return complain(text, "tls-key", file, "holds no private key in PEM, or an encrypted one");
    }
    if (X509_check_private_key(identity->cert, identity->key) != 1) {
        return complain(text, "tls-key", file, "is not the key of the certificate in --tls-cert");
    }
    return AS_OK;
}

static int64_t end_of(const X509 *cert)
{
    struct tm end;
    return ASN1_TIME_to_tm(X509_get0_notAfter(cert), &end) == 1 ? (int64_t)timegm(&end) : 0;
}

static as_status_t check_signature(char *text, const as_rpc_tls_t *tls, const identity_t *identity)
{
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    int good =
        check ? X509_STORE_CTX_init(check, identity->ca, identity->cert, identity->chain) : 0;
    good = good == 1 ? X509_verify_cert(check) : 0;
    char what[256];
    snprintf(what, sizeof(what), "is not accepted by --tls-ca %.100s: %s", tls->ca_file,
             check ? X509_verify_cert_error_string(X509_STORE_CTX_get_error(check))
                   : "out of memory");
    X509_STORE_CTX_free(check);
    return good == 1 ? AS_OK : complain(text, "tls-cert", tls->cert_file, what);
}

as_status_t as_tls_pem_check(const as_tls_pem_t *pem, const as_rpc_tls_t *files,
                             int64_t *not_after_s_p, char text[AS_TLS_TEXT_BYTES])
{
    identity_t identity = {0};
    as_status_t status = read_ca(text, files->ca_file, pem->ca, &identity);
    if (status == AS_OK) {
        status = read_cert(text, files->cert_file, pem->cert, &identity);
    }
    if (status == AS_OK) {
        status = read_key(text, files->key_file, pem->key, &identity);
    }
    if (status == AS_OK) {
        status = check_signature(text, files, &identity);
    }
    if (status == AS_OK) {
        *not_after_s_p = end_of(identity.cert);
    }
    EVP_PKEY_free(identity.key);
    sk_X509_pop_free(identity.chain, X509_free);
    X509_free(identity.cert);
    X509_STORE_free(identity.ca);
    return status;
}

as_status_t as_tls_look(const as_rpc_tls_t *given, char text[AS_TLS_TEXT_BYTES])
{
    if (!given->ca_file && !given->cert_file && !given->key_file) {
        return AS_OK;
    }
    as_tls_pem_t pem;
    int64_t not_after_s;
    as_status_t status = as_tls_pem_read(given, &pem, text);
    if (status == AS_OK) {
        status = as_tls_pem_check(&pem, given, &not_after_s, text);
        as_tls_pem_free(&pem);
    }
    return status;
}

as_status_t as_tls_check(const char *program, const as_rpc_tls_t *given, const as_rpc_tls_t **tls_p)
{
    char text[AS_TLS_TEXT_BYTES];
    as_status_t status = as_tls_look(given, text);
    *tls_p = status == AS_OK && given->ca_file ? given : NULL;
    if (status != AS_OK) {
        fprintf(stderr, "%s: --%s\n", program, text);
    }
    return status;
}
