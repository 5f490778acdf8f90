// SPDX-License-Identifier: Apache-2.0
// Certificates made for a test, in a folder of its own.
#ifndef TEST_CERTIFICATES_H
#define TEST_CERTIFICATES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc.h"

static inline void shell(const char *format, const char *folder)
{
    char command[1024];
    snprintf(command, sizeof(command), format, folder, folder, folder, folder, folder);
    assert_int_equal(system(command), 0);
}

// ca.pem, server.pem (for 127.0.0.1), client.pem, and a stranger.pem that signs itself.
static inline void make_certificates(const char *folder)
{
    shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
          "-subj /CN=ca -keyout %s/ca.key -out %s/ca.pem 2>/dev/null",
          folder);
    static const char *const who[] = {"server", "client"};
    for (int i = 0; i < 2; i++) {
        char format[512];
        snprintf(format, sizeof(format),
                 "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=%s "
                 "-addext subjectAltName=IP:127.0.0.1 -keyout %%s/%s.key -out %%s/%s.csr "
                 "2>/dev/null",
                 who[i], who[i], who[i]);
        shell(format, folder);
        snprintf(format, sizeof(format),
                 "printf 'subjectAltName=IP:127.0.0.1' > %%s/ext && openssl x509 -req -days 2 "
                 "-in %%s/%s.csr -CA %%s/ca.pem -CAkey %%s/ca.key -CAcreateserial "
                 "-extfile %%s/ext ",
                 who[i]);
        char command[2048];
        snprintf(command, sizeof(command), format, folder, folder, folder, folder, folder);
        size_t length = strlen(command);
        snprintf(command + length, sizeof(command) - length, "-out %s/%s.pem 2>/dev/null", folder,
                 who[i]);
        assert_int_equal(system(command), 0);
    }
    shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
          "-subj /CN=stranger -addext subjectAltName=IP:127.0.0.1 -keyout %s/stranger.key "
          "-out %s/stranger.pem 2>/dev/null",
          folder);
}

typedef struct identity {
    char ca[128], cert[128], key[128];
    as_rpc_tls_t tls;
} identity_t;

static inline const as_rpc_tls_t *identity(identity_t *id, const char *folder, const char *who)
{
    snprintf(id->ca, sizeof(id->ca), "%s/ca.pem", folder);
    snprintf(id->cert, sizeof(id->cert), "%s/%s.pem", folder, who);
    snprintf(id->key, sizeof(id->key), "%s/%s.key", folder, who);
    id->tls = (as_rpc_tls_t){id->ca, id->cert, id->key};
    return &id->tls;
}

#endif
