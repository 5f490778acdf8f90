// SPDX-License-Identifier: Apache-2.0
// assay-gpuworker: loads a model and serves it over the OpenAI API; or calibrates compressors for it.
#include <string.h>

#include "gpuworker/calibrate.h"
#include "gpuworker/serve/daemon.h"

int main(int argc, char **argv)
{
    gpw_daemon_config_t config;
    int code;
    if (argc > 1 && strcmp(argv[1], "calibrate") == 0) {
        return gpw_calibrate_command(argc - 1, argv + 1);
    }
    if (!gpw_daemon_options(argc, argv, &config, &code)) {
        return code;
    }
    return gpw_daemon_run(&config);
}
