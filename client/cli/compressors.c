// SPDX-License-Identifier: Apache-2.0
// `assay compressors`: the methods that a worker has, of what parts each is made, and what a token
// takes of the device with the worker's model.
#include <string.h>

#include "client/cli/cli.h"

#define PARAMETERS_BYTES 72u // of a table's cell

static cli_local_options_t local_options;
static int64_t tokens;
static bool as_json;

static const as_option_t table[] = {
    {.name = "tokens",
     .type = AS_OPTION_INT,
     .value = &tokens,
     .fallback = "4096",
     .metavar = "TOKENS",
     .help =
         "length of the prompts whose bytes are shown; the worker tells of some lengths, and the "
         "nearest is taken",
     .min = 1,
     .max = 1048576},
    CLI_JSON_OPTION(as_json, "print JSON: the worker's /v1/compressors"),
    CLI_LOCAL_OPTIONS(local_options),
};

static const as_options_t options = {
    .program = "assay compressors",
    .summary = "Lists the compressors of a worker, with the parts that each is made of.",
    .usage = "[OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

json_t *cli_get_compressors(const char *url)
{
    char path[CLI_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/v1/compressors", url);
    json_t *reply = cli_http_get(path);
    const json_t *list = json_object_get(reply, "data");
    bool good = json_array_size(list) > 0 &&
                json_number_value(json_object_get(reply, "full_token_bytes")) > 0;
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        good = json_is_string(json_object_get(json_array_get(list, i), "name"));
    }
    if (reply && !good) {
        cli_complain("%s does not list compressors: is the worker of this version?", path);
        json_decref(reply);
        reply = NULL;
    }
    return reply;
}

// Of the lengths that are told of the nearest to the one that is asked for; NULL: none.
static const json_t *segment_of(const json_t *compressor)
{
    const json_t *list = json_object_get(compressor, "segments"), *best = NULL;
    json_int_t distance = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        json_int_t length = json_integer_value(json_object_get(one, "tokens"));
        json_int_t from = length > tokens ? length - tokens : tokens - length;
        if (length > 0 && (!best || from < distance)) {
            best = one;
            distance = from;
        }
    }
    return best;
}

static bool is_true(const json_t *compressor, const char *name)
{
    return json_is_true(json_object_get(compressor, name));
}

static const char *text_of(const json_t *compressor, const char *name, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(compressor, name));
    return text ? text : otherwise;
}

static void describe_parameters(const json_t *compressor, char out[PARAMETERS_BYTES])
{
    json_t *parameters = json_object_get(compressor, "parameters");
    const char *name;
    json_t *value;
    size_t used = 0;
    out[0] = '\0';
    json_object_foreach(parameters, name, value)
    {
        used += (size_t)snprintf(out + used, PARAMETERS_BYTES - used, "%s%.40s %lld",
                                 used > 0 ? ", " : "", name, (long long)json_integer_value(value));
        if (used >= PARAMETERS_BYTES) {
            memcpy(out + PARAMETERS_BYTES - 4, "...", 4);
            return;
        }
    }
}

static void show_bytes(cli_table_t *out, const json_t *compressor, double full_token_bytes)
{
    const json_t *segment = segment_of(compressor);
    const char *most = is_true(compressor, "data_sized") ? "<= " : "";
    if (!segment) {
        cli_cell(out, "-");
        cli_cell(out, "no fit");
        return;
    }
    double bytes = json_number_value(json_object_get(segment, "bytes")) /
                   json_number_value(json_object_get(segment, "tokens"));
    cli_cell(out, "%s%.0f", most, bytes);
    cli_cell(out, "%s%.3f", most, bytes / full_token_bytes);
}

static void show(const json_t *reply)
{
    static const char *const columns[] = {"NAME",   "SELECTOR",  "CODEC",        "HOLDER",
                                          "READER", "LOSES",     ">BYTES/TOKEN", ">OF F16",
                                          "OF",     "PARAMETERS"};
    const json_t *list = json_object_get(reply, "data");
    double full = json_number_value(json_object_get(reply, "full_token_bytes"));
    cli_table_t *out = cli_table_new(columns, sizeof(columns) / sizeof(columns[0]));
    json_int_t length = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        bool drops = is_true(one, "drops"), quantizes = is_true(one, "quantizes");
        char parameters[PARAMETERS_BYTES];
        describe_parameters(one, parameters);
        cli_cell(out, "%s", text_of(one, "name", "?"));
        cli_cell(out, "%s", text_of(one, "selector", "all"));
        cli_cell(out, "%s", text_of(one, "codec", "?"));
        cli_cell(out, "%s", text_of(one, "holder", "?"));
        cli_cell(out, "%s", text_of(one, "reader", "all"));
        cli_cell(out, "%s",
                 drops && quantizes ? "tokens, bits"
                 : drops            ? "tokens"
                 : quantizes        ? "bits"
                                    : "-");
        show_bytes(out, one, full);
        cli_cell(out, "%s",
                 is_true(one, "shared")       ? "a chain"
                 : is_true(one, "query_free") ? "a session"
                                              : "a request");
        cli_cell(out, "%s", parameters);
        const json_t *segment = segment_of(one);
        length = segment ? json_integer_value(json_object_get(segment, "tokens")) : length;
    }
    cli_table_print(out, stdout);
    printf(
        "\nbytes of the device for each token of a prompt of %lld, of %s, whose full cache takes "
        "%.0f (f16)\nof a chain: sessions on one prefix share it, and stores keep it; of a "
        "session: it depends on the\ntext alone, but is not shared; of a request: chosen by its "
        "last tokens, and its own\n",
        (long long)length, text_of(reply, "model", "?"), full);
}

int cli_compressors(int argc, char **argv)
{
    cli_local_t local;
    int code;
    if (!cli_options(&options, argc, argv, NULL, &code)) {
        return code;
    }
    as_options_clear_environment(&options);
    code = cli_local_open(&local_options, &local);
    if (code != 0) {
        return code;
    }
    json_t *reply = cli_get_compressors(local.url);
    bool good = cli_local_close(&local, reply != NULL) && reply;
    if (good && as_json) {
        json_dumpf(reply, stdout, JSON_INDENT(2));
        putchar('\n');
    } else if (good) {
        show(reply);
    }
    json_decref(reply);
    return good ? 0 : 1;
}
