// SPDX-License-Identifier: Apache-2.0
// assay-gpuworker: loads a model and serves it over the OpenAI API.
#include "gpuworker/serve/daemon.h"

int main(int argc, char **argv)
{
    gpw_daemon_config_t config;
    int code;
    if (!gpw_daemon_options(argc, argv, &config, &code)) {
        return code;
    }
    return gpw_daemon_run(&config);
}
