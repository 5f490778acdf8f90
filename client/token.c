// SPDX-License-Identifier: Apache-2.0
// The client's token: said in every HELLO, and said again to the stores that are connected when there
// is another one. A file of it is read again when it changes, so that a token is renewed without a
// restart: whoever issues tokens replaces the file before the old one expires.
#include <errno.h>
#include <string.h>

#include "client/internal.h"
#include "common/log.h"

#define LOOK_US 1000000u // between two looks at the file

void assay_client_set_token(assay_client_t *client, const as_token_sealed_t *token)
{
    client->has_token = token != NULL;
    if (token) {
        client->token = *token;
    }
    as_net_set_credential(client->net, client->token.bytes, token ? AS_TOKEN_BYTES : 0);
    for (assay_link_t *link = client->links; link; link = link->next) {
        assay_link_renew(link);
    }
}

bool assay_client_token(const assay_client_t *client, as_token_sealed_t *token_p)
{
    if (client->has_token) {
        *token_p = client->token;
    }
    return client->has_token;
}

bool assay_client_is_denied(const assay_client_t *client)
{
    for (const assay_link_t *link = client->links; link; link = link->next) {
        if (link->member && link->denied) {
            return true;
        }
    }
    return false;
}

static as_status_t read_file(assay_client_t *client)
{
    as_token_sealed_t token;
    as_status_t status = as_token_file(client->token_file, &token);
    if (status != AS_OK) {
        AS_ERROR("client", "--token %s: %s", client->token_file,
                 errno == EINVAL ? "holds no token: 96 characters that `assay token issue` printed"
                                 : strerror(errno));
        return AS_ERR_CONFIG;
    }
    assay_client_set_token(client, &token);
    return AS_OK;
}

void assay_client_reload(assay_client_t *client)
{
    if (client->token_file) {
        as_file_changed(client->token_file, &client->token_stamp);
        as_status_t status = read_file(client);
        AS_INFO("client", "the token's file is read again: %s",
                status == AS_OK ? "what it holds is used" : "the old one is kept");
    }
}

static void on_look(void *ctx)
{
    assay_client_t *client = ctx;
    if (as_file_changed(client->token_file, &client->token_stamp)) {
        assay_client_reload(client);
    }
    as_timer_start(client->token_timer, LOOK_US);
}

as_status_t assay_client_use_token_file(assay_client_t *client, const char *path)
{
    client->token_file = path;
    as_file_changed(path, &client->token_stamp);
    as_status_t status = read_file(client);
    if (status == AS_OK) {
        status = as_timer_alloc(client->options.loop, on_look, client, &client->token_timer);
    }
    if (status == AS_OK) {
        as_timer_start(client->token_timer, LOOK_US);
    }
    return status;
}

const char *assay_token_fault(const assay_client_t *client)
{
    as_token_t token;
    if (!client->has_token) {
        return "it wants a token: give --token FILE (`assay token issue` makes one)";
    }
    if (as_token_parse(client->token.bytes, AS_TOKEN_BYTES, &token) != AS_OK) {
        return "ours is malformed: give --token FILE another one";
    }
    if (token.not_after_s <= as_token_now_s()) {
        return "ours has expired: issue another one into its file";
    }
    return "ours is not signed by a key of that store, or has not the right: see `assay token "
           "show` and "
           "the store's log";
}
