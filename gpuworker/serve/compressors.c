// SPDX-License-Identifier: Apache-2.0
// The methods of the compressor table as JSON: of what parts each is made, and what a segment of it
// takes on the device with this model's shape.
//
// Bytes are those that a segment of this length counts in the budget once its blocks are reserved
// (bytes_max, which test_compressor holds against the allocator); of a method whose size follows from
// the text, the most. The exact tail of a session comes on top.
#include <stddef.h>

#include "gpuworker/resident/compressor.h"
#include "gpuworker/resident/read/reader.h"
#include "gpuworker/resident/select/selector.h"
#include "gpuworker/serve/serve_internal.h"

#define LENGTH_FIRST  1024u // tokens of the shortest segment that is told of, and
#define LENGTH_FACTOR 4u    // how many times longer each next one is, up to the context

static json_t *parameters(const gpw_compressor_params_t *params)
{
    static const struct {
        const char *name;
        size_t at;
    } known[] = {
        {"bits", offsetof(gpw_compressor_params_t, bits)},
        {"group", offsetof(gpw_compressor_params_t, group)},
        {"sink_tokens", offsetof(gpw_compressor_params_t, sink_tokens)},
        {"window_tokens", offsetof(gpw_compressor_params_t, window_tokens)},
        {"keep_percent", offsetof(gpw_compressor_params_t, keep_percent)},
        {"pool_tokens", offsetof(gpw_compressor_params_t, pool_tokens)},
        {"recent_percent", offsetof(gpw_compressor_params_t, recent_percent)},
        {"layer_slope", offsetof(gpw_compressor_params_t, layer_slope)},
        {"head_floor_percent", offsetof(gpw_compressor_params_t, head_floor_percent)},
        {"norm_drop_permille", offsetof(gpw_compressor_params_t, norm_drop_permille)},
        {"read_percent", offsetof(gpw_compressor_params_t, read_percent)},
        {"read_tokens", offsetof(gpw_compressor_params_t, read_tokens)},
        {"whole_layers", offsetof(gpw_compressor_params_t, whole_layers)},
        {"page_tokens", offsetof(gpw_compressor_params_t, page_tokens)},
        {"channel_percent", offsetof(gpw_compressor_params_t, channel_percent)},
    };
    json_t *json = json_object();
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t value = *(const uint32_t *)(const void *)((const char *)params + known[i].at);
        if (value > 0) {
            json_object_set_new(json, known[i].name, json_integer(value));
        }
    }
    return json;
}

static gpw_segment_options_t options_of(const gpw_compressor_t *compressor, const as_shape_t *shape,
                                        uint32_t tokens)
{
    uint32_t blocks = tokens / shape->block_tokens;
    return (gpw_segment_options_t){.params = &compressor->params,
                                   .shape = *shape,
                                   .ops = krn_cpu(),
                                   .blocks_max = blocks,
                                   .prompt_blocks = blocks};
}

static bool fits(const gpw_compressor_t *compressor, const as_shape_t *shape)
{
    gpw_segment_options_t options = options_of(compressor, shape, shape->block_tokens);
    gpw_segment_t *segment = NULL;
    as_status_t status = compressor->open(&options, &segment);
    compressor->close(segment);
    return status != AS_ERR_UNSUPPORTED;
}

// Of whole blocks.
static json_t *segment_of(const gpw_compressor_t *compressor, const as_shape_t *shape,
                          uint32_t tokens)
{
    gpw_segment_options_t options = options_of(compressor, shape, tokens);
    uint64_t bytes = compressor->bytes_max(&options, options.blocks_max);
    return json_pack("{s:I, s:I}", "tokens", (json_int_t)options.blocks_max * shape->block_tokens,
                     "bytes", (json_int_t)bytes);
}

// None where the method does not fit the shape.
static json_t *segments(const gpw_compressor_t *compressor, const as_shape_t *shape,
                        uint32_t context_max)
{
    json_t *list = json_array();
    if (!fits(compressor, shape)) {
        return list;
    }
    for (uint64_t tokens = LENGTH_FIRST; tokens < context_max; tokens *= LENGTH_FACTOR) {
        json_array_append_new(list, segment_of(compressor, shape, (uint32_t)tokens));
    }
    if (context_max >= shape->block_tokens) {
        json_array_append_new(list, segment_of(compressor, shape, context_max));
    }
    return list;
}

static json_t *describe(const gpw_serve_t *serve, const gpw_compressor_t *compressor)
{
    const gpw_compressor_params_t *params = &compressor->params;
    const as_shape_t *shape = gpw_worker_shape(serve->worker);
    bool query_free = compressor->flags & GPW_COMPRESSOR_QUERY_FREE;
    const char *codec = params->codec ? params->codec->name : compressor->form;
    return json_pack("{s:s, s:s, s:s?, s:s?, s:s?, s:s?, s:o, s:b, s:b, s:b, s:b, s:b, s:o}",
                     "name", compressor->name, "summary", compressor->summary, "selector",
                     params->selector ? params->selector->name : NULL, "codec", codec, "holder",
                     compressor->holder, "reader", params->reader ? params->reader->name : NULL,
                     "parameters", parameters(params), "drops",
                     (int)(compressor->flags & GPW_COMPRESSOR_DROPS) != 0, "quantizes",
                     (int)(compressor->flags & GPW_COMPRESSOR_QUANTIZES) != 0, "query_free",
                     (int)query_free, "shared", (int)(query_free && compressor->slot), "data_sized",
                     (int)(compressor->flags & GPW_COMPRESSOR_DATA_SIZED) != 0, "segments",
                     segments(compressor, shape, serve->limits.context_max));
}

json_t *gpw_reply_compressors(const gpw_serve_t *serve)
{
    const as_shape_t *shape = gpw_worker_shape(serve->worker);
    json_t *list = json_array();
    for (const gpw_compressor_t *c = gpw_worker_compressor_table(serve->worker); c->name; c++) {
        json_array_append_new(list, describe(serve, c));
    }
    json_int_t token_bytes = (json_int_t)(as_block_bytes(shape) / shape->block_tokens);
    return json_pack("{s:s, s:s, s:I, s:I, s:o}", "object", "list", "model",
                     serve->options.model_name, "block_tokens", (json_int_t)shape->block_tokens,
                     "full_token_bytes", token_bytes, "data", list);
}
