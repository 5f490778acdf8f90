// SPDX-License-Identifier: Apache-2.0
// Looks at the files of mutual TLS before they are used: a peer that refuses them says nothing.
#include "common/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <string.h>

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

static as_status_t read_ca(char *text, const char *file, identity_t *identity)
{
    FILE *probe = fopen(file, "re");
    if (!probe) {
        return complain(text, "tls-ca", file, strerror(errno));
    }
    fclose(probe);
    identity->ca = X509_STORE_new();
    if (!identity->ca || X509_STORE_load_locations(identity->ca, file, NULL) != 1) {
        return complain(text, "tls-ca", file, "holds no certificate in PEM");
    }
    return AS_OK;
}

static as_status_t read_cert(char *text, const char *file, identity_t *identity)
{
    FILE *in = fopen(file, "re");
    if (!in) {
        return complain(text, "tls-cert", file, strerror(errno));
    }
    identity->cert = PEM_read_X509(in, NULL, no_password, NULL);
    identity->chain = sk_X509_new_null();
    X509 *more;
    while (identity->cert && identity->chain &&
           (more = PEM_read_X509(in, NULL, no_password, NULL)) != NULL) {
        if (sk_X509_push(identity->chain, more) == 0) {
            X509_free(more);
            break;
        }
    }
    fclose(in);
    ERR_clear_error(); // of the end of the file
    return identity->cert ? AS_OK : complain(text, "tls-cert", file, "holds no certificate in PEM");
}

static as_status_t read_key(char *text, const char *file, identity_t *identity)
{
    FILE *in = fopen(file, "re");
    if (!in) {
        return complain(text, "tls-key", file, strerror(errno));
    }
    identity->key = PEM_read_PrivateKey(in, NULL, no_password, NULL);
    fclose(in);
    if (!identity->key) {
        return complain(text, "tls-key", file, "holds no private key in PEM, or an encrypted one");
    }
    if (X509_check_private_key(identity->cert, identity->key) != 1) {
        return complain(text, "tls-key", file, "is not the key of the certificate in --tls-cert");
    }
    return AS_OK;
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

as_status_t as_tls_look(const as_rpc_tls_t *given, char text[AS_TLS_TEXT_BYTES])
{
    int files = (given->ca_file != NULL) + (given->cert_file != NULL) + (given->key_file != NULL);
    if (files == 0) {
        return AS_OK;
    }
    if (files < 3) {
        snprintf(text, AS_TLS_TEXT_BYTES, "%s",
                 !given->ca_file     ? "tls-ca is missing: mutual TLS needs all three files"
                 : !given->cert_file ? "tls-cert is missing: mutual TLS needs all three files"
                                     : "tls-key is missing: mutual TLS needs all three files");
        return AS_ERR_CONFIG;
    }
    identity_t identity = {0};
    as_status_t status = read_ca(text, given->ca_file, &identity);
    if (status == AS_OK) {
        status = read_cert(text, given->cert_file, &identity);
    }
    if (status == AS_OK) {
        status = read_key(text, given->key_file, &identity);
    }
    if (status == AS_OK) {
        status = check_signature(text, given, &identity);
    }
    EVP_PKEY_free(identity.key);
    sk_X509_pop_free(identity.chain, X509_free);
    X509_free(identity.cert);
    X509_STORE_free(identity.ca);
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
