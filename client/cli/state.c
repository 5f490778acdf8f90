// SPDX-License-Identifier: Apache-2.0
// The state file of `assay up`: which processes make up the cluster of this machine, and their
// addresses.
//
// <run dir>/cluster.json is written once all are ready (to a second name, then renamed: readers see
// all or nothing) and removed at the end. A file whose writer is dead (lock.c tells) is stale, and
// counts as none.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/cli.h"

#define RUN_DIR_BYTES_MAX 950 // leaves room in a path for the names of files

bool cli_run_dir(const char *given, char path[CLI_PATH_BYTES])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int length;
    if (given && given[0]) {
        length = snprintf(path, CLI_PATH_BYTES, "%s", given);
    } else if (runtime && runtime[0]) {
        length = snprintf(path, CLI_PATH_BYTES, "%s/assay", runtime);
    } else {
        length = snprintf(path, CLI_PATH_BYTES, "/tmp/assay-%u", (unsigned)getuid());
    }
    if (length < 0 || length > RUN_DIR_BYTES_MAX) {
        cli_complain("the path of the run directory is too long");
        return false;
    }
    struct stat status;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        cli_complain("cannot make the run directory %s: %s; choose another with --run-dir", path,
                     strerror(errno));
        return false;
    }
    // Others must not be able to point us at processes of theirs.
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != getuid()) {
        cli_complain(
            "the run directory %s is not a directory of yours; choose another with --run-dir",
            path);
        return false;
    }
    return true;
}

static void state_path(const char *run_dir, const char *suffix, char path[CLI_PATH_BYTES])
{
    snprintf(path, CLI_PATH_BYTES, "%.950s/cluster.json%s", run_dir, suffix);
}

bool cli_cluster_write(const char *run_dir, const cli_cluster_t *cluster)
{
    char path[CLI_PATH_BYTES], draft[CLI_PATH_BYTES];
    state_path(run_dir, "", path);
    state_path(run_dir, ".new", draft);
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        const cli_node_t *node = &cluster->nodes[i];
        json_array_append_new(nodes, json_pack("{s:s, s:s, s:I, s:s, s:s, s:s}", "name", node->name,
                                               "role", node->role, "pid", (json_int_t)node->pid,
                                               "rpc_address", node->rpc, "data_address", node->data,
                                               "http_address", node->http));
    }
    json_t *state =
        json_pack("{s:i, s:I, s:o}", "version", 1, "pid", (json_int_t)cluster->pid, "nodes", nodes);
    bool written =
        state && json_dump_file(state, draft, JSON_INDENT(2)) == 0 && rename(draft, path) == 0;
    if (!written) {
        cli_complain("cannot write %s: %s", path, strerror(errno));
    }
    json_decref(state);
    return written;
}

static void copy_member(const json_t *object, const char *name, char *out, size_t bytes)
{
    const char *text = json_string_value(json_object_get(object, name));
    snprintf(out, bytes, "%s", text ? text : "");
}

static bool parse_state(const json_t *state, cli_cluster_t *cluster)
{
    const json_t *nodes = json_object_get(state, "nodes");
    memset(cluster, 0, sizeof(*cluster));
    cluster->pid = (pid_t)json_integer_value(json_object_get(state, "pid"));
    if (cluster->pid <= 0 || !json_is_array(nodes) || json_array_size(nodes) > CLI_NODES_MAX) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *item = json_array_get(nodes, i);
        cli_node_t *node = &cluster->nodes[cluster->node_count++];
        copy_member(item, "name", node->name, sizeof(node->name));
        copy_member(item, "role", node->role, sizeof(node->role));
        copy_member(item, "rpc_address", node->rpc, sizeof(node->rpc));
        copy_member(item, "data_address", node->data, sizeof(node->data));
        copy_member(item, "http_address", node->http, sizeof(node->http));
        node->pid = (pid_t)json_integer_value(json_object_get(item, "pid"));
    }
    return true;
}

static bool load_state(const char *run_dir, cli_cluster_t *cluster)
{
    char path[CLI_PATH_BYTES];
    state_path(run_dir, "", path);
    json_t *state = json_load_file(path, 0, NULL);
    bool usable = state && parse_state(state, cluster);
    json_decref(state);
    return usable;
}

bool cli_cluster_read(const char *run_dir, cli_cluster_t *cluster)
{
    return load_state(run_dir, cluster) && cli_is_alive(run_dir);
}

void cli_cluster_remove(const char *run_dir, bool stale_too)
{
    cli_cluster_t cluster;
    char path[CLI_PATH_BYTES];
    if (stale_too || (load_state(run_dir, &cluster) && cluster.pid == getpid())) {
        state_path(run_dir, "", path);
        unlink(path);
    }
}

const cli_node_t *cli_cluster_find(const cli_cluster_t *cluster, const char *role)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (strcmp(cluster->nodes[i].role, role) == 0) {
            return &cluster->nodes[i];
        }
    }
    return NULL;
}

static const cli_node_t *find_node(const char *run_dir, const char *role, cli_cluster_t *cluster)
{
    char path[CLI_PATH_BYTES];
    const char *elsewhere = strcmp(role, "worker") == 0
                                ? "--worker URL"
                                : "--scheduler HOST:PORT, or ASSAY_SCHEDULER in the environment";
    if (!cli_run_dir(run_dir, path) || !cli_cluster_await(path, elsewhere, cluster)) {
        return NULL;
    }
    const cli_node_t *node = cli_cluster_find(cluster, role);
    if (!node) {
        cli_complain("the cluster of %s has no %s", path, role);
    }
    return node;
}

static bool is_host_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    return digits > 0 && digits <= 5 && colon[1 + digits] == '\0' && colon > text &&
           !strchr(text, '/');
}

bool cli_find_scheduler(const char *given, const char *run_dir, char address[CLI_ADDRESS_BYTES])
{
    cli_cluster_t cluster;
    if (!given || !given[0]) {
        const cli_node_t *node = find_node(run_dir, "scheduler", &cluster);
        if (!node) {
            return false;
        }
        given = node->rpc;
    }
    if (!is_host_port(given)) {
        cli_complain("--scheduler %s: must be HOST:PORT, such as 127.0.0.1:7700", given);
        return false;
    }
    if (snprintf(address, CLI_ADDRESS_BYTES, "%s", given) >= (int)CLI_ADDRESS_BYTES) {
        cli_complain("--scheduler is longer than %u bytes", CLI_ADDRESS_BYTES - 1);
        return false;
    }
    return true;
}

// Cuts what a base URL of OpenAI's clients ends with: slashes, and "/v1".
static void cut_base(char *url, size_t length)
{
    for (bool cut_version = true;; cut_version = false) {
        while (length > 0 && url[length - 1] == '/') {
            url[--length] = '\0';
        }
        if (!cut_version || length < 3 || strcmp(url + length - 3, "/v1") != 0) {
            return;
        }
        length -= 3;
        url[length] = '\0';
    }
}

int cli_find_worker(const char *given, const char *run_dir, char url[CLI_URL_BYTES])
{
    cli_cluster_t cluster;
    if (!given || !given[0]) {
        const cli_node_t *node = find_node(run_dir, "worker", &cluster);
        if (!node) {
            return 1;
        }
        given = node->http;
    }
    const char *scheme_end = strstr(given, "://");
    const char *address = scheme_end ? scheme_end + 3 : given;
    if (scheme_end && (scheme_end - given != 4 || strncasecmp(given, "http", 4) != 0)) {
        cli_complain("--worker %.100s: workers speak http alone: give http://HOST:PORT", given);
        return 2;
    }
    if (!address[0] || address[0] == '/') {
        cli_complain("--worker %.100s names no host: give http://HOST:PORT", given);
        return 2;
    }
    int length = snprintf(url, CLI_URL_BYTES, "http://%s", address);
    if (length < 0 || length >= (int)CLI_URL_BYTES) {
        cli_complain("--worker is longer than %u bytes", CLI_URL_BYTES - 1);
        return 2;
    }
    cut_base(url, (size_t)length);
    return 0;
}
