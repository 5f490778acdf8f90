// SPDX-License-Identifier: Apache-2.0
// Options from the command line, the environment and a config file, and the help that lists them.
//
// The sources are taken in order of weight, the weakest first: default, file, environment, flags.
// Each stronger one overwrites what a weaker one stored, so every value of every source is checked
// even where it is not used. The command line is walked first for what must be known before
// (--help, --version, --config), and to find unknown flags and missing values, before anything is
// stored.
#include "common/options.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/mem.h"
#include "common/options_impl.h"

#define ENVIRONMENT_NAME_MAX 128

const as_option_t *as_options_find(const as_options_t *options, const char *name, size_t bytes)
{
    for (size_t i = 0; i < options->count; i++) {
        const as_option_t *option = &options->table[i];
        if (strlen(option->name) == bytes && memcmp(option->name, name, bytes) == 0) {
            return option;
        }
    }
    return NULL;
}

// ---- Names

// "data-port" gives "ASSAY_DATA_PORT".
static void environment_name(const char *name, char out[ENVIRONMENT_NAME_MAX])
{
    snprintf(out, ENVIRONMENT_NAME_MAX, "ASSAY_%s", name);
    for (char *c = out; *c; c++) {
        if (*c >= 'a' && *c <= 'z') {
            *c = (char)(*c - 'a' + 'A');
        } else if (*c == '-') {
            *c = '_';
        }
    }
}

// Number of single-letter changes from a to b, both cut to 31 letters.
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[32];
    size_t a_length = strnlen(a, 31), b_length = strnlen(b, 31);
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            unsigned changed = diagonal + (a[i - 1] != b[j - 1]);
            unsigned shorter = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = changed < shorter ? changed : shorter;
        }
    }
    return row[b_length];
}

static void complain_unknown(const as_options_t *options, const char *argument, const char *name,
                             size_t bytes)
{
    char asked[32] = "";
    const char *nearest = NULL;
    unsigned nearest_distance = 3; // farther than two letters is no typing mistake
    memcpy(asked, name, bytes < sizeof(asked) - 1 ? bytes : sizeof(asked) - 1);
    for (size_t i = 0; i < options->count; i++) {
        unsigned distance = edit_distance(asked, options->table[i].name);
        if (distance < nearest_distance) {
            nearest_distance = distance;
            nearest = options->table[i].name;
        }
    }
    fprintf(stderr, "%s: unknown option '%s'", options->program, argument);
    if (nearest) {
        fprintf(stderr, "; did you mean --%s?", nearest);
    }
    fprintf(stderr, " (--help lists all)\n");
}

// ---- The command line

typedef struct flag {
    const as_option_t *option; // NULL: one of those answered here
    const char *name;
    size_t name_bytes;
    const char *value; // NULL: none
    int arguments;     // of argv taken: 1 or 2
} flag_t;

static bool name_is(const flag_t *flag, const char *name)
{
    return flag->name_bytes == strlen(name) && memcmp(flag->name, name, flag->name_bytes) == 0;
}

static bool is_flag(const char *argument)
{
    return argument[0] == '-' && argument[1] != '\0';
}

// Reads the flag at argv[at]. `next` is the argument after it, or NULL.
static as_status_t read_flag(const as_options_t *options, const char *argument, const char *next,
                             flag_t *flag)
{
    bool is_long = argument[1] == '-';
    memset(flag, 0, sizeof(*flag));
    flag->arguments = 1;
    flag->name = strcmp(argument, "-h") == 0 ? "help" : argument + 2;
    flag->name_bytes = strcspn(flag->name, "=");
    if (flag->name[flag->name_bytes] == '=') {
        flag->value = flag->name + flag->name_bytes + 1;
    }
    if (!flag->value && (name_is(flag, "help") || name_is(flag, "version"))) {
        return AS_OK;
    }
    flag->option = is_long ? as_options_find(options, flag->name, flag->name_bytes) : NULL;
    if (!flag->option && !(is_long && name_is(flag, "config"))) {
        complain_unknown(options, argument, is_long ? flag->name : argument + 1,
                         is_long ? flag->name_bytes : 1);
        return AS_ERR_INVALID;
    }
    if (flag->option && flag->option->type == AS_OPTION_BOOL) {
        flag->value = flag->value ? flag->value : "true";
        return AS_OK;
    }
    if (!flag->value) {
        flag->value = next;
        flag->arguments = 2;
    }
    if (!flag->value) {
        const char *metavar = flag->option ? flag->option->metavar : "FILE";
        fprintf(stderr, "%s: --%s needs a value: --%s=%s\n", options->program, flag->name,
                flag->name, metavar ? metavar : "VALUE");
        return AS_ERR_INVALID;
    }
    return AS_OK;
}

typedef struct command_line {
    flag_t *flags; // in order
    size_t flag_count;
    const char *config; // NULL: not given
    bool help, version;
} command_line_t;

static void note_own_flag(command_line_t *line, const flag_t *flag)
{
    line->help = line->help || name_is(flag, "help");
    line->version = line->version || name_is(flag, "version");
    if (name_is(flag, "config")) {
        line->config = flag->value;
    }
}

// Reads all flags and moves the positional arguments, in their order, to the end of argv.
static as_status_t read_command_line(const as_options_t *options, int argc, char **argv,
                                     int *rest_p, command_line_t *line)
{
    int positional_count = 0, at = 1, kept = 1;
    char **positional = as_mem_zalloc((size_t)argc + 1, sizeof(*positional));
    line->flags = as_mem_zalloc((size_t)argc + 1, sizeof(*line->flags));
    as_status_t status = positional && line->flags ? AS_OK : AS_ERR_NO_MEMORY;
    while (status == AS_OK && at < argc && strcmp(argv[at], "--") != 0) {
        if (!is_flag(argv[at])) {
            positional[positional_count++] = argv[at++];
            continue;
        }
        flag_t *flag = &line->flags[line->flag_count];
        status = read_flag(options, argv[at], at + 1 < argc ? argv[at + 1] : NULL, flag);
        if (status != AS_OK) {
            break;
        }
        if (flag->option) {
            line->flag_count++;
        } else {
            note_own_flag(line, flag);
        }
        for (int i = 0; i < flag->arguments; i++) {
            argv[kept++] = argv[at++];
        }
    }
    if (status == AS_OK) {
        if (at < argc) {
            argv[kept++] = argv[at++]; // "--"
        }
        if (positional_count > 0) {
            memcpy(argv + kept, positional, (size_t)positional_count * sizeof(*positional));
        }
        *rest_p = kept;
    }
    as_mem_free(positional);
    return status;
}

// ---- Sources

static as_status_t store_fallbacks(const as_options_t *options)
{
    as_option_text_t text = {.options = options, .source = AS_SOURCE_FALLBACK};
    for (size_t i = 0; i < options->count; i++) {
        text.option = &options->table[i];
        const char *fallback = text.option->fallback;
        as_status_t status = fallback ? as_option_store(&text, fallback, true) : AS_OK;
        if (status != AS_OK) {
            return status;
        }
    }
    return AS_OK;
}

// An empty variable is one that is not set: charts and unit files cannot easily leave one out.
static const char *environment_value(const char *name)
{
    char variable[ENVIRONMENT_NAME_MAX];
    environment_name(name, variable);
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

static as_status_t store_environment(const as_options_t *options, bool *set)
{
    as_option_text_t text = {.options = options, .source = AS_SOURCE_ENVIRONMENT};
    for (size_t i = 0; i < options->count; i++) {
        text.option = &options->table[i];
        const char *value = environment_value(text.option->name);
        as_status_t status = value ? as_option_store(&text, value, true) : AS_OK;
        if (status != AS_OK) {
            return status;
        }
        set[i] = set[i] || value;
    }
    return AS_OK;
}

// `seen` is a second array like `set`: the first flag of a list replaces it, the next ones add.
static as_status_t store_flags(const as_options_t *options, const command_line_t *line, bool *set,
                               bool *seen)
{
    as_option_text_t text = {.options = options, .source = AS_SOURCE_FLAG};
    for (size_t i = 0; i < line->flag_count; i++) {
        text.option = line->flags[i].option;
        size_t index = (size_t)(text.option - options->table);
        as_status_t status = as_option_store(&text, line->flags[i].value, !seen[index]);
        if (status != AS_OK) {
            return status;
        }
        set[index] = seen[index] = true;
    }
    return AS_OK;
}

static as_status_t check_required(const as_options_t *options, const bool *set)
{
    for (size_t i = 0; i < options->count; i++) {
        const as_option_t *option = &options->table[i];
        if (option->required && !set[i]) {
            char variable[ENVIRONMENT_NAME_MAX];
            environment_name(option->name, variable);
            fprintf(stderr,
                    "%s: --%s is required: give --%s=%s, %s or \"%s\" in the --config file\n",
                    options->program, option->name, option->name,
                    option->metavar ? option->metavar : "VALUE", variable, option->name);
            return AS_ERR_INVALID;
        }
    }
    return AS_OK;
}

static as_status_t store_all(const as_options_t *options, const command_line_t *line)
{
    bool *set = as_mem_zalloc(2 * options->count + 1, sizeof(*set));
    if (!set) {
        return AS_ERR_NO_MEMORY;
    }
    const char *config = line->config ? line->config : environment_value("config");
    as_status_t status = store_fallbacks(options);
    if (status == AS_OK && config) {
        status = as_options_read_file(options, config, set);
    }
    if (status == AS_OK) {
        status = store_environment(options, set);
    }
    if (status == AS_OK) {
        status = store_flags(options, line, set, set + options->count);
    }
    if (status == AS_OK) {
        status = check_required(options, set);
    }
    as_mem_free(set);
    return status;
}

as_status_t as_options_parse(const as_options_t *options, int argc, char **argv, int *rest_p,
                             as_options_outcome_t *outcome_p)
{
    command_line_t line = {0};
    int rest = argc;
    AS_ASSERT(argc >= 0);
    as_status_t status = read_command_line(options, argc, argv, &rest, &line);
    bool answered = line.help || line.version;
    if (status == AS_OK && line.help) {
        as_options_help(options);
    } else if (status == AS_OK && line.version) {
        printf("%s %s\n", options->program, AS_VERSION);
    } else if (status == AS_OK) {
        status = store_all(options, &line);
    }
    as_mem_free(line.flags);
    if (status == AS_ERR_NO_MEMORY) {
        fprintf(stderr, "%s: out of memory while reading options\n", options->program);
    }
    if (status != AS_OK) {
        return status;
    }
    *rest_p = rest;
    *outcome_p = answered ? AS_OPTIONS_EXIT : AS_OPTIONS_RUN;
    return AS_OK;
}

void as_options_clear_environment(const as_options_t *options)
{
    char variable[ENVIRONMENT_NAME_MAX];
    for (size_t i = 0; i < options->count; i++) {
        environment_name(options->table[i].name, variable);
        unsetenv(variable);
    }
    unsetenv("ASSAY_CONFIG");
}

// ---- Help

#define HELP_COLUMN 30

static void print_option(const char *name, const char *metavar, const char *help)
{
    int length = printf("  --%s", name);
    length += metavar ? printf("=%s", metavar) : 0;
    if (length >= HELP_COLUMN - 1) {
        printf("\n");
        length = 0;
    }
    printf("%*s%s", HELP_COLUMN - length, "", help);
}

void as_options_help(const as_options_t *options)
{
    printf("%s: %s\n\nUsage: %s %s\n\nOptions:\n", options->program, options->summary,
           options->program, options->usage);
    for (size_t i = 0; i < options->count; i++) {
        const as_option_t *option = &options->table[i];
        bool is_bool = option->type == AS_OPTION_BOOL;
        print_option(option->name,
                     is_bool           ? NULL
                     : option->metavar ? option->metavar
                                       : "VALUE",
                     option->help);
        if (option->required) {
            printf(" (required)");
        } else if (option->fallback && *option->fallback) {
            printf(" (default %s)", option->fallback);
        }
        printf("\n");
    }
    print_option("config", "FILE", "JSON file of options, {\"name\": value}\n");
    print_option("help", NULL, "show this and exit\n");
    print_option("version", NULL, "show the version and exit\n");
    printf("\nEach option may also be given in the environment (--an-option as ASSAY_AN_OPTION) or "
           "in the config\n"
           "file (\"an-option\"). A flag beats the environment, which beats the file, which beats "
           "the default.\n");
}
