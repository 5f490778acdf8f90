// SPDX-License-Identifier: Apache-2.0
// Mutual TLS of remote calls, with certificates made for the test.
#include <fcntl.h>

#include "tests/unit/common/capture.h"
#include "tests/unit/common/certificates.h"
#include "tests/unit/common/rpc_fixture.h"

static void run(const char *format, const char *from, const char *name, const char *to)
{
    char command[256];
    snprintf(command, sizeof(command), format, from, name, to, name);
    assert_int_equal(system(command), 0);
}

static void copy(const char *from, const char *names, const char *to)
{
    run("cp %s/%s %s", from, names, to);
}

static void append(const char *from, const char *name, const char *to)
{
    run("cat %s/%s >> %s/%s", from, name, to);
}

static void discard(const char *folder)
{
    shell("rm -r %s", folder);
}

// It is its own authority.
static const as_rpc_tls_t *stranger(identity_t *id, const char *folder)
{
    identity(id, folder, "stranger");
    memcpy(id->ca, id->cert, sizeof(id->ca));
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

    client_start(f, stranger(&client, folder));
    assert_int_not_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);

    client_start(f, NULL); // plain text
    assert_int_not_equal(route_status(f, 64), AS_OK);
    as_rpc_client_free(f->client);
    f->client = NULL;

    // A server that the client's CA did not sign.
    as_rpc_server_free(f->server);
    server_start(f, "127.0.0.1:0", stranger(&server, folder));
    client_start(f, identity(&client, folder, "client"));
    assert_int_not_equal(route_status(f, 64), AS_OK);

    as_rpc_server_t *none;
    assert_int_equal(
        as_rpc_server_alloc(f->loop, "127.0.0.1:0", identity(&server, folder, "nobody"), &none),
        AS_ERR_CONFIG);
    identity(&server, folder, "server");
    memcpy(server.key, client.key, sizeof(server.key)); // as a change that stopped half way
    assert_int_equal(as_rpc_server_alloc(f->loop, "127.0.0.1:0", &server.tls, &none),
                     AS_ERR_CONFIG);
    discard(folder);
}

static void call_with(fixture_t *f, const char *folder, const char *who, bool works)
{
    as_rpc_client_t *ours = f->client;
    identity_t id;
    client_start(f, identity(&id, folder, who));
    as_status_t status = route_status(f, 64);
    as_rpc_client_free(f->client);
    f->client = ours;
    assert_int_equal(status == AS_OK, works);
}

// Certificates of two authorities. `in` is used by a server and a client, and has the old ones; the test
// copies into it, as an operator does.
typedef struct folders {
    char in[32], old[32], new[32];
} folders_t;

static void make_folders(folders_t *folders)
{
    *folders =
        (folders_t){"/tmp/assay_rpc_XXXXXX", "/tmp/assay_rpc_XXXXXX", "/tmp/assay_rpc_XXXXXX"};
    assert_non_null(mkdtemp(folders->in));
    assert_non_null(mkdtemp(folders->old));
    assert_non_null(mkdtemp(folders->new));
    make_certificates(folders->old);
    make_certificates(folders->new);
    copy(folders->old, "*", folders->in);
}

static void discard_folders(const folders_t *folders)
{
    discard(folders->in);
    discard(folders->old);
    discard(folders->new);
}

static void certificates_are_replaced_while_calls_go_on(void **state)
{
    fixture_t *f = *state;
    folders_t with;
    const char *in = with.in, *old = with.old, *new = with.new;
    make_folders(&with);
    identity_t server, client;
    server_start(f, "127.0.0.1:0", identity(&server, in, "server"));
    client_start(f, identity(&client, in, "client"));
    outcome_t under_way;
    f->hold = true;
    assert_int_equal(route(f, 32, 20 * SECOND_US, &under_way, NULL), AS_OK);
    while (f->held_count < 1) {
        as_loop_run_once(f->loop, true);
    }
    f->hold = false;

    append(new, "ca.pem", in); // both authorities, for the time of the change
    as_rpc_tls_reload();
    assert_int_equal(route_status(f, 64), AS_OK);
    call_with(f, new, "client", false); // it does not know the server's authority yet
    copy(new, "server.*", in);
    copy(new, "client.*", in);
    as_rpc_tls_reload();
    assert_int_equal(route_status(f, 64), AS_OK);
    call_with(f, new, "client", true);
    copy(new, "ca.pem", in);
    as_rpc_tls_reload();
    assert_int_equal(route_status(f, 64), AS_OK);
    call_with(f, old, "client", false);

    reply_route(&f->held[0], 1, 0); // by a connection of the first certificates
    wait_done(f, &under_way);
    assert_int_equal(under_way.status, AS_OK);
    discard_folders(&with);
}

// Each is a change that stopped half way.
static void a_bad_file_leaves_all_as_it_was(void **state)
{
    fixture_t *f = *state;
    static const char *const half[] = {"ca.pem", "server.pem", "server.key"};
    folders_t with;
    const char *in = with.in, *old = with.old, *new = with.new;
    make_folders(&with);
    identity_t server;
    server_start(f, "127.0.0.1:0", identity(&server, in, "server"));
    for (size_t i = 0; i < sizeof(half) / sizeof(half[0]); i++) {
        capture_t capture;
        copy(old, "*", in);
        copy(new, half[i], in);
        capture_begin(&capture);
        as_rpc_tls_reload();
        const char *said = capture_end(&capture);
        assert_non_null(
            strstr(said, "the certificates in use are kept, since of the files now --tls-"));
        call_with(f, old, "client", true);
        call_with(f, new, "client", false);
    }
    shell("rm %s/server.key", in);
    as_rpc_tls_reload();
    call_with(f, old, "client", true);
    copy(new, "*", in);
    as_rpc_tls_refresh(); // as it changed
    call_with(f, old, "client", false);
    call_with(f, new, "client", true);
    discard_folders(&with);
}

// Replaces the files while they are read: the certificate was, and of the key the old one comes.
static void *replace_meanwhile(void *arg)
{
    const folders_t *with = arg;
    char path[64], text[4096];
    snprintf(path, sizeof(path), "%s/server.key", with->old);
    FILE *old = fopen(path, "r");
    size_t bytes = old ? fread(text, 1, sizeof(text), old) : 0;
    snprintf(path, sizeof(path), "%s/server.key", with->in);
    int pipe = open(path, O_WRONLY); // waits until it is read
    unlink(path);
    copy(with->new, "server.*", with->in);
    assert_true(bytes > 0 && write(pipe, text, bytes) == (ssize_t)bytes);
    close(pipe);
    fclose(old);
    return NULL;
}

static void what_changes_while_it_is_read_first_is_read_again(void **state)
{
    fixture_t *f = *state;
    folders_t with;
    const char *in = with.in, *new = with.new;
    make_folders(&with);
    append(new, "ca.pem", in);
    shell("rm %s/server.key && mkfifo %s/server.key", in);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, replace_meanwhile, &with), 0);
    identity_t server;
    server_start(f, "127.0.0.1:0", identity(&server, in, "server"));
    assert_int_equal(pthread_join(thread, NULL), 0);
    call_with(f, new, "client", false); // it does not know the server's authority
    as_rpc_tls_refresh();
    call_with(f, new, "client", true);
    discard_folders(&with);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(mutual_tls_admits_only_who_the_ca_signed),
        WITH_LOOP(certificates_are_replaced_while_calls_go_on),
        WITH_LOOP(a_bad_file_leaves_all_as_it_was),
        WITH_LOOP(what_changes_while_it_is_read_first_is_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
