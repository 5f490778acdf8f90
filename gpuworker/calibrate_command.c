// SPDX-License-Identifier: Apache-2.0
// `assay-gpuworker calibrate`, which `assay calibrate` runs.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/small_file.h"
#include "gpuworker/calibrate.h"
#include "gpuworker/calibrate_summary.h"
#include "gpuworker/model/tokenizer.h"

#define PROGRAM        "assay calibrate"
#define TEXT_BYTES_MAX (1u << 20) // what is read of a text; passages need far less
#define SHARED_SHARE   8u         // an eighth of the layers, as in the authors' demonstration

static const char *model_path, *text_path, *output_path;
static int64_t shared_layers, summary_epochs, threads;
static double cosine_min;

static const as_option_t table[] = {
    {.name = "model",
     .type = AS_OPTION_STRING,
     .value = &model_path,
     .metavar = "FILE",
     .help = "GGUF file of the model",
     .required = true},
    {.name = "output",
     .type = AS_OPTION_STRING,
     .value = &output_path,
     .metavar = "FILE",
     .help = "the calibration, for assay-gpuworker --calibration",
     .required = true},
    {.name = "text",
     .type = AS_OPTION_STRING,
     .value = &text_path,
     .metavar = "FILE",
     .help = "text of some pages, like what the model will be asked (default: one that comes with "
             "Assay)",
     .required = true},
    {.name = "share-layers",
     .type = AS_OPTION_INT,
     .value = &shared_layers,
     .fallback = "0",
     .metavar = "N",
     .help = "most layers that attend to what another layer holds; 0: an eighth of them",
     .min = 0,
     .max = AS_LAYERS_MAX},
    {.name = "cosine",
     .type = AS_OPTION_DOUBLE,
     .value = &cosine_min,
     .fallback = "0.5",
     .metavar = "X",
     .help = "that the model's hidden states must still have with what they were, in the mean",
     .min = -1,
     .max = 1},
    {.name = "summary-epochs",
     .type = AS_OPTION_INT,
     .value = &summary_epochs,
     .fallback = "60",
     .metavar = "N",
     .help = "passes over the text by which the maps of summaries are learnt (less); 0: without",
     .min = 0,
     .max = 10000},
    {.name = "threads",
     .type = AS_OPTION_INT,
     .value = &threads,
     .fallback = "0",
     .metavar = "N",
     .help = "threads that compute; 0: one for each processor",
     .min = 0,
     .max = 256},
};

static const as_options_t command_options = {
    .program = PROGRAM,
    .summary =
        "Finds out which layers of a model may share their cache (kvsharer), and learns to sum "
        "up what is dropped (less), for compressors that need to know.",
    .usage = "--model FILE --output FILE [OPTIONS]",
    .table = table,
    .count = sizeof(table) / sizeof(table[0]),
};

static void on_trial(void *ctx, const gpw_calibrate_trial_t *trial)
{
    (void)ctx;
    printf("layer %u with layer %u: cosine %.3f, %s (%u of %u layers share)\n", trial->layer,
           trial->source, trial->cosine, trial->shares ? "shares" : "does not", trial->shared,
           trial->wanted);
    fflush(stdout);
}

// Tokens of the text; NULL: a message was printed.
static int32_t *read_tokens(const gpw_model_t *model, size_t *count_p)
{
    size_t bytes = 0, max = GPW_SUMMARY_TOKENS_MAX; // more than layers are compared on
    char *text = as_mem_alloc(TEXT_BYTES_MAX + 1);
    int32_t *tokens = as_mem_zalloc(max, sizeof(*tokens));
    as_status_t status = text && tokens ? AS_OK : AS_ERR_NO_MEMORY;
    const char *why = as_status_str(status);
    if (status == AS_OK) {
        status = as_file_read(text_path, text, TEXT_BYTES_MAX, &bytes);
        why = status == AS_ERR_LIMIT ? "it is longer than 1 MiB" : strerror(errno);
    }
    if (status == AS_OK) {
        status = gpw_tokenizer_encode(model->tokenizer, text, bytes, (gpw_encode_options_t){0},
                                      tokens, max, count_p);
        status = status == AS_ERR_LIMIT ? AS_OK : status; // it goes on behind what is needed
        *count_p = *count_p < max ? *count_p : max;
        why = as_status_str(status);
    }
    as_mem_free(text);
    if (status != AS_OK) {
        fprintf(stderr, PROGRAM ": cannot read --text %s: %s\n", text_path, why);
        as_mem_free(tokens);
        return NULL;
    }
    return tokens;
}

static void on_layer(void *ctx, const gpw_summary_layer_t *layer)
{
    (void)ctx;
    printf("summary of layer %u of %u: error %.4f without, %.4f with\n", layer->layer,
           layer->layers, layer->without, layer->with);
    fflush(stdout);
}

static as_status_t summarize(const gpw_summary_options_t *options, gpw_calibration_t *calibration)
{
    as_status_t status = gpw_calibrate_summary(options, calibration);
    if (status == AS_ERR_INVALID) {
        fprintf(stderr,
                PROGRAM ": --text %s is too short to learn summaries: %zu tokens, at least %u are "
                        "needed, in a model of at least %u positions; or give --summary-epochs 0\n",
                text_path, options->token_count, GPW_SUMMARY_TOKENS_MIN,
                GPW_SUMMARY_PASSAGE_TOKENS);
    } else if (status != AS_OK) {
        fprintf(stderr, PROGRAM ": %s\n", as_status_str(status));
    }
    return status;
}

static as_status_t calibrate(const gpw_model_t *model, gpw_calibration_t *calibration_p)
{
    size_t count = 0;
    int32_t *tokens = read_tokens(model, &count);
    if (!tokens) {
        return AS_ERR_IO;
    }
    uint32_t eighth = model->layers / SHARED_SHARE;
    gpw_calibrate_options_t options = {.model = model,
                                       .ops = krn_cpu(),
                                       .threads =
                                           threads ? (uint32_t)threads : (uint32_t)get_nprocs(),
                                       .tokens = tokens,
                                       .token_count = count,
                                       .shared_layers = shared_layers ? (uint32_t)shared_layers
                                                        : eighth      ? eighth
                                                                      : 1,
                                       .cosine_min = cosine_min,
                                       .on_trial = on_trial};
    as_status_t status = gpw_calibrate(&options, calibration_p);
    if (status == AS_ERR_INVALID) {
        fprintf(stderr, PROGRAM ": --text %s is too short: %zu tokens, at least %u are needed\n",
                text_path, count, GPW_CALIBRATE_PASSAGE_TOKENS);
    } else if (status != AS_OK) {
        fprintf(stderr, PROGRAM ": %s\n", as_status_str(status));
    }
    if (status == AS_OK && summary_epochs > 0) {
        gpw_summary_options_t summary = {.model = model,
                                         .ops = options.ops,
                                         .threads = options.threads,
                                         .tokens = tokens,
                                         .token_count = count,
                                         .epochs = (uint32_t)summary_epochs,
                                         .on_layer = on_layer};
        status = summarize(&summary, calibration_p);
    }
    as_mem_free(tokens);
    return status;
}

static int finish(gpw_calibration_t *calibration)
{
    char id[65];
    uint32_t held = gpw_calibration_held(calibration);
    if (held == calibration->layers) {
        fprintf(stderr,
                PROGRAM ": no two layers of this model may share a cache (--cosine %g): nothing "
                        "was written\n",
                cosine_min);
        return 1;
    }
    if (gpw_calibration_write(output_path, calibration) != AS_OK) {
        fprintf(stderr, PROGRAM ": cannot write --output %s: %s\n", output_path, strerror(errno));
        return 1;
    }
    as_key_hex(&calibration->id, id);
    printf("%s: %u of %u layers are held, id %.16s\n"
           "use it: assay-gpuworker --calibration %s --compressor kvsharer%s ...\n",
           output_path, held, calibration->layers, id, output_path,
           calibration->maps ? "|less" : "");
    return 0;
}

int gpw_calibrate_command(int argc, char **argv)
{
    as_options_outcome_t outcome;
    int rest, code = 1;
    if (as_options_parse(&command_options, argc, argv, &rest, &outcome) != AS_OK) {
        return 2;
    }
    if (outcome == AS_OPTIONS_EXIT) {
        return 0;
    }
    if (rest < argc) {
        fprintf(stderr, PROGRAM ": unexpected argument '%s' (--help lists the options)\n",
                argv[rest]);
        return 2;
    }
    as_log_set_level(AS_LOG_ERROR);
    char error[256] = "";
    gpw_model_t *model = NULL;
    gpw_calibration_t calibration;
    gpw_model_options_t load = {.path = model_path, .weights = KRN_WEIGHT_F16};
    as_status_t status = gpw_model_load(&load, error, sizeof(error), &model);
    if (status != AS_OK) {
        fprintf(stderr, PROGRAM ": cannot load --model %s: %s\n", model_path,
                error[0] ? error : as_status_str(status));
        return 1;
    }
    if (calibrate(model, &calibration) == AS_OK) {
        code = finish(&calibration);
        gpw_calibration_fini(&calibration);
    }
    gpw_model_free(model);
    return code;
}
