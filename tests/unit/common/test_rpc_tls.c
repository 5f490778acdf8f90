// SPDX-License-Identifier: Apache-2.0
// Mutual TLS of remote calls, with certificates made for the test.
#include "tests/unit/common/rpc_fixture.h"

static void shell(const char *format, const char *folder)
{
    char command[1024];
    snprintf(command, sizeof(command), format, folder, folder, folder, folder, folder);
    assert_int_equal(system(command), 0);
}

// ca.pem, server.pem (for 127.0.0.1), client.pem, and a stranger.pem that signs itself.
static void make_certificates(const char *folder)
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

static const as_rpc_tls_t *identity(identity_t *id, const char *folder, const char *who)
{
    snprintf(id->ca, sizeof(id->ca), "%s/ca.pem", folder);
    snprintf(id->cert, sizeof(id->cert), "%s/%s.pem", folder, who);
    snprintf(id->key, sizeof(id->key), "%s/%s.key", folder, who);
    id->tls = (as_rpc_tls_t){id->ca, id->cert, id->key};
    return &id->tls;
}

static void mutual_tls_admits_only_who_the_ca_signed(void **state)
{
    fixture_t *f = *state;
    char folder[] = "/tmp/assay_rpc_XXXXXX";
    assert_non_null(mkdtemp(folder));
    make_certificates(folder);
    identity_t server, client;
    server_start(f, "127.0.0.1:0", identity(&server, folder, "server"));

    client_start(f, identity(&client, folder, "client"));
    assert_int_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);

    client_start(f, identity(&client, folder, "stranger"));
    assert_int_not_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);

    client_start(f, NULL); // plain text
    assert_int_not_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);
    f->client = NULL;

    // A server that the client's CA did not sign.
    as_rpc_server_free(f->server);
    server_start(f, "127.0.0.1:0", identity(&server, folder, "stranger"));
    client_start(f, identity(&client, folder, "client"));
    assert_int_not_equal(route_status(f, 64), AS_OK);

    as_rpc_server_t *none;
    assert_int_equal(
        as_rpc_server_alloc(f->loop, "127.0.0.1:0", identity(&server, folder, "nobody"), &none),
        AS_ERR_CONFIG);
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(mutual_tls_admits_only_who_the_ca_signed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
