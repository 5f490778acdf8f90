// SPDX-License-Identifier: Apache-2.0
// The rotary embedding's table: base frequencies, and the scaling for long contexts that the file
// asks for.
//
// Scaling, all of it per frequency, so that the kernels see nothing but a table: linear (all
// frequencies divided by a factor), yarn (high frequencies kept, low ones divided, a ramp between,
// and one factor on cosine and sine), and a tensor of divisors (rope_freqs.weight, as Llama 3 files
// have it). Others are refused by name.
#include "gpuworker/model/model_internal.h"

#include <string.h>

#include "common/mem.h"
#include "gpuworker/model/dequant.h"
#include "gpuworker/model/fixed_math.h"

#define FREQ_BASE_DEFAULT 10000.0
#define TWO_PI            6.283185307179586
#define DIVISOR_MAX       1e6

typedef struct yarn {
    double factor, attention_factor, beta_fast, beta_slow;
    uint32_t context_original;
} yarn_t;

static double read_f64(const gpw_loader_t *loader, const char *name, double fallback)
{
    char key[128];
    double value = fallback;
    gpw_gguf_f64(loader->gguf, gpw_loader_key(loader, name, key), &value);
    return value;
}

// The dimension that turns `beta` times over the original context.
static double yarn_dimension(const yarn_t *yarn, uint32_t dim, double base, double beta)
{
    double turns = (double)yarn->context_original / (beta * TWO_PI);
    return (double)dim * gpw_ln(turns) / (2 * gpw_ln(base));
}

static double whole(double value, bool up)
{
    double cut = (double)(int64_t)value;
    if (up) {
        return cut < value ? cut + 1 : cut;
    }
    return cut > value ? cut - 1 : cut;
}

static double bounded(double value, double min, double max)
{
    return value < min ? min : value > max ? max : value;
}

static void apply_yarn(const yarn_t *yarn, uint32_t dim, double base, double *inv_freq)
{
    double low = whole(yarn_dimension(yarn, dim, base, yarn->beta_fast), false);
    double high = whole(yarn_dimension(yarn, dim, base, yarn->beta_slow), true);
    low = low < 0 ? 0 : low;
    high = high > dim - 1 ? dim - 1 : high;
    double width = high - low < 0.001 ? 0.001 : high - low;
    for (uint32_t i = 0; i < dim / 2; i++) {
        double kept = 1 - bounded(((double)i - low) / width, 0, 1);
        inv_freq[i] = inv_freq[i] / yarn->factor * (1 - kept) + inv_freq[i] * kept;
    }
}

// Reads the scaling entries; *attention_factor_p and inv_freq are changed by what they ask for.
static as_status_t apply_scaling(gpw_loader_t *loader, double base, double *inv_freq,
                                 double *attention_factor_p)
{
    char key[128];
    uint32_t dim = loader->model->rope.dim;
    gpw_gguf_string_t type = {"", 0};
    gpw_gguf_text(loader->gguf, gpw_loader_key(loader, "rope.scaling.type", key), &type);
    double factor = read_f64(loader, "rope.scaling.factor", 1);
    double scale_linear = read_f64(loader, "rope.scale_linear", 1); // the name in old files
    if (!(factor >= 1 && factor <= DIVISOR_MAX && scale_linear >= 1 &&
          scale_linear <= DIVISOR_MAX)) {
        return gpw_loader_fail(loader, AS_ERR_INVALID,
                               "the RoPE scaling factor is not in 1 to 1e6");
    }
    factor *= scale_linear;
    if (type.bytes == 0 || gpw_gguf_string_is(type, "none")) {
        factor = type.bytes == 0 ? factor : 1;
    }
    if (gpw_gguf_string_is(type, "yarn")) {
        yarn_t yarn = {.factor = factor,
                       .attention_factor = read_f64(loader, "rope.scaling.attn_factor", 1),
                       .beta_fast = read_f64(loader, "rope.scaling.yarn_beta_fast", 32),
                       .beta_slow = read_f64(loader, "rope.scaling.yarn_beta_slow", 1),
                       .context_original = loader->model->context_max};
        gpw_gguf_u32(loader->gguf,
                     gpw_loader_key(loader, "rope.scaling.original_context_length", key),
                     &yarn.context_original);
        if (read_f64(loader, "rope.scaling.yarn_log_multiplier", 0) != 0) {
            return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                                   "the YaRN log multiplier is not supported");
        }
        if (!(yarn.beta_slow > 0 && yarn.beta_fast > 0 && yarn.context_original > 0)) {
            return gpw_loader_fail(loader, AS_ERR_INVALID, "the YaRN parameters are not positive");
        }
        apply_yarn(&yarn, dim, base, inv_freq);
        *attention_factor_p = yarn.attention_factor * (1 + 0.1 * gpw_ln(factor));
        return AS_OK;
    }
    if (type.bytes > 0 && !gpw_gguf_string_is(type, "none") &&
        !gpw_gguf_string_is(type, "linear")) {
        return gpw_loader_fail(loader, AS_ERR_UNSUPPORTED,
                               "RoPE scaling \"%.*s\" is not supported (linear, yarn and "
                               "rope_freqs are)",
                               (int)bounded((double)type.bytes, 0, 40), type.text);
    }
    for (uint32_t i = 0; i < dim / 2; i++) {
        inv_freq[i] /= factor;
    }
    return AS_OK;
}

static as_status_t apply_divisors(gpw_loader_t *loader, double *inv_freq)
{
    const gpw_gguf_tensor_t *tensor = gpw_loader_tensor(loader, "rope_freqs.weight");
    if (!tensor) {
        return AS_OK;
    }
    uint32_t count = loader->model->rope.dim / 2;
    as_status_t status = gpw_loader_check(loader, tensor, count, 1);
    if (status != AS_OK) {
        return status;
    }
    float divisors[KRN_HEAD_DIM_MAX / 2];
    gpw_dequant(tensor->type, tensor->data, count, divisors);
    for (uint32_t i = 0; i < count; i++) {
        double divisor = (double)divisors[i];
        if (!(divisor >= 1 / DIVISOR_MAX && divisor <= DIVISOR_MAX)) {
            return gpw_loader_fail(loader, AS_ERR_INVALID,
                                   "rope_freqs.weight holds a value that is no divisor");
        }
        inv_freq[i] /= divisor;
    }
    return AS_OK;
}

as_status_t gpw_loader_rope(gpw_loader_t *loader)
{
    gpw_model_t *model = loader->model;
    as_status_t status = gpw_loader_u32(loader, "rope.dimension_count", model->head_dim,
                                        model->head_dim, &model->rope.dim);
    if (status != AS_OK) {
        return status;
    }
    double base = read_f64(loader, "rope.freq_base", FREQ_BASE_DEFAULT);
    if (model->rope.dim % 2 != 0 || !(base > 1 && base <= 1e12)) {
        return gpw_loader_fail(loader, AS_ERR_INVALID,
                               "rope.dimension_count is odd or rope.freq_base is out of range");
    }
    model->rope.neox = model->architecture != GPW_LLAMA;
    double inv_freq[KRN_HEAD_DIM_MAX / 2];
    for (uint32_t i = 0; i < model->rope.dim / 2; i++) {
        inv_freq[i] = gpw_exp(-gpw_ln(base) * (2.0 * i) / model->rope.dim);
    }
    double attention_factor = 1;
    status = apply_scaling(loader, base, inv_freq, &attention_factor);
    if (status == AS_OK) {
        status = apply_divisors(loader, inv_freq);
    }
    if (status != AS_OK) {
        return status;
    }
    uint32_t positions = model->context_max;
    float *table = as_mem_aligned(64, (size_t)positions * model->rope.dim * sizeof(*table));
    if (!table) {
        return gpw_loader_fail(loader, AS_ERR_NO_MEMORY, "out of memory for the RoPE table");
    }
    krn_rope_fill(table, model->rope.dim, inv_freq, (float)attention_factor, 0, positions);
    model->rope.cos_sin = table;
    model->rope.position_count = positions;
    return AS_OK;
}
