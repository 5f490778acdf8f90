// SPDX-License-Identifier: Apache-2.0
// The options of mutual TLS, the same for every program that makes or takes remote calls.
#ifndef AS_TLS_H
#define AS_TLS_H

#include "common/options.h"
#include "common/rpc.h"

// Rows of a table of options; tls_ is an as_rpc_tls_t.
#define AS_TLS_OPTION(name_, value_, help_)                                                        \
    {                                                                                              \
        .name = name_, .type = AS_OPTION_STRING, .value = &(value_), .metavar = "FILE",            \
        .help = help_                                                                              \
    }
#define AS_TLS_OPTIONS(tls_)                                                                       \
    AS_TLS_OPTION("tls-ca", (tls_).ca_file,                                                        \
                  "PEM of the cluster's CA; turns on mutual TLS of remote calls"),                 \
        AS_TLS_OPTION("tls-cert", (tls_).cert_file, "PEM of own certificate, signed by that CA"),  \
        AS_TLS_OPTION("tls-key", (tls_).key_file, "PEM of own private key, not encrypted")

#define AS_TLS_TEXT_BYTES 640u

// What the three files hold.
typedef struct as_tls_pem {
    char *ca, *cert, *key;
} as_tls_pem_t;

// Reads them, all three or none at all. AS_ERR_CONFIG: `text` is what is wrong, and begins with the
// option, without its dashes.
as_status_t as_tls_pem_read(const as_rpc_tls_t *files, as_tls_pem_t *pem_p,
                            char text[AS_TLS_TEXT_BYTES]) AS_MUST_USE;
// Whether they belong together, as as_tls_check() says; `files` are for the text. *not_after_s_p is
// the end of the certificate's time, in seconds since 1970.
as_status_t as_tls_pem_check(const as_tls_pem_t *pem, const as_rpc_tls_t *files,
                             int64_t *not_after_s_p, char text[AS_TLS_TEXT_BYTES]) AS_MUST_USE;
void as_tls_pem_free(as_tls_pem_t *pem); // the key is wiped

// All three or none; readable; the key is the certificate's, and the CA signed it and it is valid
// now. Peers would find the same later, and could only hang up. *tls_p: `given`, or NULL for plain
// text. On AS_ERR_CONFIG the message, which names the option, was printed to stderr.
as_status_t as_tls_check(const char *program, const as_rpc_tls_t *given,
                         const as_rpc_tls_t **tls_p) AS_MUST_USE;

// The same for who has no command line: `text` is what is wrong and begins with the option, without its
// dashes. AS_OK also where no file is given.
as_status_t as_tls_look(const as_rpc_tls_t *given, char text[AS_TLS_TEXT_BYTES]) AS_MUST_USE;

#endif
