// SPDX-License-Identifier: Apache-2.0
// `assay token`: makes keys of a cluster, issues tokens under them, and shows what a token says.
//
// Keys and tokens are secrets: files are made for their owner only, and keys never reach stdout.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/token.h"

static const char *key_file, *rights_text, *out_file, *scheduler;
static int64_t tenant, ttl_us;
static bool as_json;

#define KEY_OPTION(required_, help_)                                                               \
    {                                                                                              \
        .name = "cluster-key", .type = AS_OPTION_STRING, .value = &key_file, .metavar = "FILE",    \
        .help = (help_), .required = (required_)                                                   \
    }

static bool is_last;

static const as_option_t key_table[] = {
    {.name = "last",
     .type = AS_OPTION_BOOL,
     .value = &is_last,
     .fallback = "false",
     .help = "put it behind those that are there: it signs nothing until its line is moved to the "
             "top, once every "
             "daemon has the file"},
};

static const as_options_t key_options = {
    .program = "assay token key",
    .summary = "Puts a new key before those of a file, which is made where there is none: new "
               "tokens are signed by it, those of the other keys stay good.",
    .usage = "[OPTIONS] FILE",
    .table = key_table,
    .count = sizeof(key_table) / sizeof(key_table[0]),
};

static const as_option_t issue_table[] = {
    KEY_OPTION(false, "the cluster's keys; the first one signs"),
    {.name = "scheduler",
     .type = AS_OPTION_STRING,
     .value = &scheduler,
     .metavar = "HOST:PORT",
     .help = "without --cluster-key: ask this scheduler (--issue-tokens), by a certificate of the "
             "cluster"},
    AS_TLS_OPTIONS(cli_tls),
    {.name = "tenant",
     .type = AS_OPTION_INT,
     .value = &tenant,
     .fallback = "0",
     .metavar = "N",
     .help = "number of the tenant, from 1 on; left out for a peer",
     .min = 0,
     .max = 4294967295.0},
    {.name = "rights",
     .type = AS_OPTION_STRING,
     .value = &rights_text,
     .fallback = "read,write",
     .metavar = "LIST",
     .help = "read, write; direct: read the stores' memory itself, where every tenant's blocks can "
             "be seen; peer: for stores among each other, of any tenant"},
    {.name = "ttl",
     .type = AS_OPTION_DURATION,
     .value = &ttl_us,
     .fallback = "30d",
     .metavar = "TIME",
     .help = "how long it holds, as 12h or 30d",
     .min = 1e6,
     .max = 3.2e15},
    {.name = "out",
     .type = AS_OPTION_STRING,
     .value = &out_file,
     .metavar = "FILE",
     .help = "where it goes, for its owner only; replaced at once; without it to stdout"},
};

static const as_options_t issue_options = {
    .program = "assay token issue",
    .summary = "Issues a token, which --token of the other commands and of workers takes.",
    .usage = "[OPTIONS]",
    .table = issue_table,
    .count = sizeof(issue_table) / sizeof(issue_table[0]),
};

static const as_option_t show_table[] = {
    KEY_OPTION(false, "checks the token against these keys; exits with 1 where it does not hold"),
    CLI_JSON_OPTION(as_json, "print JSON"),
};

static const as_options_t show_options = {
    .program = "assay token show",
    .summary = "Says what the token in a file (- is stdin) allows, to whom and until when.",
    .usage = "[OPTIONS] FILE",
    .table = show_table,
    .count = sizeof(show_table) / sizeof(show_table[0]),
};

// ---- files

// Replaces the file whole, for its owner only: who reads it sees the old or the new one.
static bool write_secret(const char *path, const char *text)
{
    char aside[CLI_PATH_BYTES];
    if (snprintf(aside, sizeof(aside), "%s.%ld", path, (long)getpid()) >= (int)sizeof(aside)) {
        cli_complain("%s: the path is too long", path);
        return false;
    }
    int file = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t bytes = strlen(text);
    bool written = file >= 0 && write(file, text, bytes) == (ssize_t)bytes && fsync(file) == 0;
    int error = errno;
    if (file >= 0) {
        close(file);
    }
    if (!written || rename(aside, path) != 0) {
        cli_complain("%s: %s", path, strerror(written ? errno : error));
        if (file >= 0) {
            unlink(aside);
        }
        return false;
    }
    return true;
}

static bool read_keys(as_cluster_keys_t *keys_p)
{
    char why[AS_CLUSTER_KEY_WHY_BYTES];
    if (as_cluster_keys_read(key_file, keys_p, why) != AS_OK) {
        cli_complain("--cluster-key %s: %s", key_file, why);
        return false;
    }
    return true;
}

// ---- assay token key

static int make_key(int argc, char **argv)
{
    int rest, code;
    if (!cli_options(&key_options, argc, argv, &rest, &code)) {
        return code;
    }
    if (rest + 1 != argc) {
        cli_complain("token key: name the file that the key goes to");
        return 2;
    }
    const char *path = argv[rest];
    as_cluster_keys_t keys = {0};
    char why[AS_CLUSTER_KEY_WHY_BYTES], hex[2 * AS_CLUSTER_KEY_BYTES + 1];
    if (access(path, F_OK) == 0 && as_cluster_keys_read(path, &keys, why) != AS_OK) {
        cli_complain("%s: %s", path, why);
        return 1;
    }
    if (keys.count == AS_CLUSTER_KEYS_MAX) {
        cli_complain("%s: holds %u keys already, as many as there may be: take out old ones", path,
                     keys.count);
        return 1;
    }
    as_cluster_key_t key;
    if (as_cluster_key_make(&key) != AS_OK) {
        cli_complain("the machine gives no random bytes");
        return 1;
    }
    static char text[(AS_CLUSTER_KEYS_MAX + 1) * 128];
    uint32_t place = is_last ? keys.count : 0;
    int at = snprintf(text, sizeof(text), "# keys of the cluster; the first one signs\n");
    for (uint32_t i = 0; i <= keys.count; i++) {
        as_cluster_key_hex(i == place ? &key : &keys.keys[i - (i > place)], hex);
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s\n", hex);
    }
    if (!write_secret(path, text)) {
        return 1;
    }
    printf("key %08x is the %s of %u in %s\n", key.id, place == 0 ? "first" : "last",
           keys.count + 1, path);
    return 0;
}

// ---- assay token issue

static bool sign(as_token_t *token, as_token_sealed_t *sealed_p)
{
    as_cluster_keys_t keys;
    if (!read_keys(&keys)) {
        return false;
    }
    as_status_t status = as_token_sign(&keys, token, sealed_p);
    as_cluster_keys_wipe(&keys);
    if (status != AS_OK) {
        cli_complain("no token was made: %s", as_status_str(status));
    }
    return status == AS_OK;
}

static bool ask_scheduler(const as_token_t *token, as_token_sealed_t *sealed_p)
{
    Assay__TokenRequest request = ASSAY__TOKEN_REQUEST__INIT;
    request.tenant = token->tenant;
    request.rights = token->rights;
    request.ttl_s = (uint64_t)ttl_us / 1000000;
    Assay__TokenReply *reply = (Assay__TokenReply *)cli_call(
        scheduler, &assay__scheduler__descriptor, "Token", &request.base,
        "its --issue-tokens must be on and, with its --operator, your certificate one of "
        "those; stores sign peers' tokens themselves");
    bool whole = reply && reply->token.len == sizeof(sealed_p->bytes);
    if (whole) {
        memcpy(sealed_p->bytes, reply->token.data, sizeof(sealed_p->bytes));
    } else if (reply) {
        cli_complain("Token at %s: the answer is no token", scheduler);
    }
    if (reply) {
        assay__token_reply__free_unpacked(reply, NULL);
    }
    return whole;
}

static int issue(int argc, char **argv)
{
    int code;
    if (!cli_options(&issue_options, argc, argv, NULL, &code)) {
        return code;
    }
    as_token_t token = {.tenant = (uint32_t)tenant,
                        .not_after_s = as_token_now_s() + (uint64_t)ttl_us / 1000000};
    if (as_token_rights_parse(rights_text, &token.rights) != AS_OK) {
        cli_complain("--rights %s: must be some of read, write, direct and peer, with commas",
                     rights_text);
        return 2;
    }
    if ((token.tenant == AS_TENANT_NONE) != ((token.rights & AS_TOKEN_PEER) != 0)) {
        cli_complain(token.tenant ? "--tenant: a peer acts for any tenant, and has none"
                                  : "--tenant: must be given, from 1 on");
        return 2;
    }
    if (!key_file && !scheduler) {
        cli_complain("token issue: give --cluster-key FILE, or --scheduler HOST:PORT");
        return 2;
    }
    as_token_sealed_t sealed;
    if (!(key_file ? sign(&token, &sealed) : ask_scheduler(&token, &sealed))) {
        return 1;
    }
    char text[AS_TOKEN_TEXT_BYTES], line[AS_TOKEN_TEXT_BYTES + 1];
    as_token_format(&sealed, text);
    snprintf(line, sizeof(line), "%s\n", text);
    if (out_file) {
        return write_secret(out_file, line) ? 0 : 1;
    }
    fputs(line, stdout);
    return 0;
}

// ---- assay token show

static bool read_token(const char *path, as_token_sealed_t *sealed_p)
{
    cli_text_t text = {0};
    if (!cli_read_file(path, &text)) {
        return false;
    }
    as_status_t status = as_token_read(text.bytes ? text.bytes : "", text.count, sealed_p);
    cli_text_fini(&text);
    if (status != AS_OK) {
        cli_complain("%s: holds no token: 96 characters that `assay token issue` printed", path);
    }
    return status == AS_OK;
}

static void print_token(const as_token_t *token, const char *verdict)
{
    char rights[AS_TOKEN_RIGHTS_BYTES], key[16];
    as_token_rights_format(token->rights, rights);
    snprintf(key, sizeof(key), "%08x", token->key_id);
    uint64_t now_s = as_token_now_s();
    int64_t left_s = (int64_t)(token->not_after_s - now_s);
    if (as_json) {
        json_t *json =
            json_pack("{s:I, s:s, s:s, s:I, s:I, s:s}", "tenant", (json_int_t)token->tenant,
                      "rights", rights, "key", key, "not_after", (json_int_t)token->not_after_s,
                      "left_s", (json_int_t)left_s, "verdict", verdict);
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(json);
        return;
    }
    printf("tenant %u%s, rights %s, signed by key %s\n", token->tenant,
           token->tenant ? "" : " (any)", rights, key);
    printf("%s %s\n", left_s > 0 ? "holds for another" : "expired, since",
           cli_duration(1e3 * (double)(left_s > 0 ? left_s : -left_s)));
    printf("it %s\n", verdict);
}

static int show(int argc, char **argv)
{
    int rest, code;
    if (!cli_options(&show_options, argc, argv, &rest, &code)) {
        return code;
    }
    if (rest + 1 != argc) {
        cli_complain("token show: name the file of the token (- is stdin)");
        return 2;
    }
    as_token_sealed_t sealed;
    as_token_t token;
    if (!read_token(argv[rest], &sealed)) {
        return 1;
    }
    if (as_token_parse(sealed.bytes, AS_TOKEN_BYTES, &token) != AS_OK) {
        cli_complain("%s: %s", argv[rest], as_token_fault_str(AS_TOKEN_MALFORMED));
        return 1;
    }
    if (!key_file) {
        print_token(&token, "was not checked: give --cluster-key");
        return 0;
    }
    as_cluster_keys_t keys;
    if (!read_keys(&keys)) {
        return 1;
    }
    as_token_t good;
    as_token_fault_t fault =
        as_token_check(&keys, sealed.bytes, AS_TOKEN_BYTES, as_token_now_s(), &good);
    as_cluster_keys_wipe(&keys);
    print_token(&token, as_token_fault_str(fault));
    return fault == AS_TOKEN_GOOD ? 0 : 1;
}

int cli_token(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } verbs[] = {{"key", make_key}, {"issue", issue}, {"show", show}};
    const char *verb = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verb, verbs[i].name) == 0) {
            return verbs[i].run(argc - 1, argv + 1);
        }
    }
    bool help = strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0;
    fputs("usage: assay token key FILE             make a key of the cluster\n"
          "       assay token issue [OPTIONS]      issue a token\n"
          "       assay token show [OPTIONS] FILE  say what a token allows\n"
          "`assay token issue --help` tells the options\n",
          help ? stdout : stderr);
    return help ? 0 : 2;
}
