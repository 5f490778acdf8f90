// SPDX-License-Identifier: Apache-2.0
// Mutual TLS of remote calls, with certificates made for the test.
#include "tests/unit/common/certificates.h"
#include "tests/unit/common/rpc_fixture.h"

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
