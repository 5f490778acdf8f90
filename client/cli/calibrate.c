// SPDX-License-Identifier: Apache-2.0
// `assay calibrate`: the worker's program computes it, with the model; here it gets its text.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "common/mem.h"

// Whether one of the arguments is that option.
static bool is_given(int argc, char **argv, const char *option)
{
    size_t length = strlen(option);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], option, length) == 0 &&
            (argv[i][length] == '\0' || argv[i][length] == '=')) {
            return true;
        }
    }
    return false;
}

int cli_calibrate(int argc, char **argv)
{
    char folder[CLI_PATH_BYTES], binary[CLI_PATH_BYTES + 64];
    char path[CLI_PATH_BYTES], text[CLI_PATH_BYTES + 16];
    static char program[] = "assay-gpuworker", command[] = "calibrate";
    char **to = as_mem_zalloc((size_t)argc + 4, sizeof(*to));
    int count = 0;
    if (!to) {
        cli_complain("out of memory");
        return 1;
    }
    to[count++] = program;
    to[count++] = command;
    if (!is_given(argc, argv, "--text") && !is_given(argc, argv, "--help")) {
        if (!cli_find_text(NULL, path)) {
            as_mem_free(to);
            return 1;
        }
        snprintf(text, sizeof(text), "--text=%s", path);
        to[count++] = text;
    }
    for (int i = 1; i < argc; i++) {
        to[count++] = argv[i];
    }
    if (cli_own_folder(folder)) {
        snprintf(binary, sizeof(binary), "%s/%s", folder, program);
        execv(binary, to);
        cli_complain("cannot run %s: %s", binary, strerror(errno));
    }
    as_mem_free(to);
    return 1;
}
