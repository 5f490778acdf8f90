// SPDX-License-Identifier: Apache-2.0
// Chains of blocks as JSON: what `assay put --json` prints and `assay get` takes.
#include <string.h>

#include "client/cli/cli.h"
#include "common/block.h"
#include "common/mem.h"

#define SHAPE_MEMBERS 6u

void cli_chain_fini(cli_chain_t *chain)
{
    as_mem_free(chain->keys);
    *chain = (cli_chain_t){0};
}

bool cli_chain_resize(cli_chain_t *chain, uint32_t count)
{
    void *keys = as_mem_realloc(chain->keys, (size_t)(count ? count : 1) * CLI_KEY_BYTES);
    if (!keys) {
        cli_complain("out of memory for %u keys", count);
        return false;
    }
    chain->keys = keys;
    chain->count = count;
    return true;
}

bool cli_key_parse(const char *hex, uint8_t *key_p)
{
    as_key_t key;
    if (strlen(hex) != 2 * CLI_KEY_BYTES || as_key_parse(hex, &key) != AS_OK) {
        return false;
    }
    memcpy(key_p, &key, sizeof(key));
    return true;
}

void cli_key_hex(const uint8_t *key, char hex_p[65])
{
    as_key_t typed;
    memcpy(&typed, key, sizeof(typed));
    as_key_hex(&typed, hex_p);
}

json_t *cli_chain_json(const cli_chain_t *chain)
{
    const assay_shape_t *s = &chain->shape;
    json_t *keys = json_array();
    char hex[65];
    for (uint32_t i = 0; i < chain->count; i++) {
        cli_key_hex(chain->keys + (size_t)i * CLI_KEY_BYTES, hex);
        json_array_append_new(keys, json_string(hex));
    }
    json_t *shape = json_pack("[I, I, I, I, I, I]", (json_int_t)s->layers, (json_int_t)s->q_heads,
                              (json_int_t)s->kv_heads, (json_int_t)s->head_dim,
                              (json_int_t)s->block_tokens, (json_int_t)s->element_bytes);
    return json_pack("{s:o, s:I, s:o}", "shape", shape, "bytes", (json_int_t)chain->bytes, "keys",
                     keys);
}

bool cli_chain_take(const json_t *json, cli_chain_t *chain_p)
{
    json_int_t n[SHAPE_MEMBERS], bytes;
    json_t *keys;
    if (json_unpack((json_t *)(uintptr_t)json, "{s:[I, I, I, I, I, I], s:I, s:o}", "shape", &n[0],
                    &n[1], &n[2], &n[3], &n[4], &n[5], "bytes", &bytes, "keys", &keys) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < SHAPE_MEMBERS; i++) {
        if (n[i] < 0 || n[i] > UINT32_MAX) {
            return false;
        }
    }
    chain_p->shape = (assay_shape_t){(uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2],
                                     (uint32_t)n[3], (uint32_t)n[4], (uint32_t)n[5]};
    size_t block_bytes = assay_block_bytes(&chain_p->shape), count = json_array_size(keys);
    bool sound = block_bytes > 0 && count > 0 && count <= AS_CHAIN_BLOCKS_MAX && bytes >= 0 &&
                 (uint64_t)bytes <= count * block_bytes &&
                 (uint64_t)bytes > (count - 1) * block_bytes;
    if (!sound || !cli_chain_resize(chain_p, (uint32_t)count)) {
        return false;
    }
    chain_p->bytes = (uint64_t)bytes;
    for (size_t i = 0; i < count; i++) {
        const char *hex = json_string_value(json_array_get(keys, i));
        if (!hex || !cli_key_parse(hex, chain_p->keys + i * CLI_KEY_BYTES)) {
            return false;
        }
    }
    return true;
}

bool cli_chain_read(const char *path, cli_chain_t *chain_p)
{
    json_error_t error;
    json_t *json =
        strcmp(path, "-") == 0 ? json_loadf(stdin, 0, &error) : json_load_file(path, 0, &error);
    if (!json) {
        cli_complain(
            "%s: neither a key of 64 hexadecimal digits nor a chain that `assay put --json` "
            "printed: %s",
            path, error.text);
        return false;
    }
    bool taken = cli_chain_take(json, chain_p);
    json_decref(json);
    if (!taken) {
        cli_complain("%s: this JSON is no chain that `assay put --json` printed", path);
        cli_chain_fini(chain_p);
    }
    return taken;
}
