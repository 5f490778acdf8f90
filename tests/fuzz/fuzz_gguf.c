// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: parsed, looked through, and its tokenizer built.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpuworker/model/dequant.h"
#include "gpuworker/model/gguf.h"
#include "gpuworker/model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// Touches the first and last byte that a tensor's bounds promise.
static uint32_t look_at_tensors(const gpw_gguf_t *gguf)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < gpw_gguf_tensor_count(gguf); i++) {
        const gpw_gguf_tensor_t *tensor = gpw_gguf_tensor(gguf, i);
        if (tensor->bytes_max > 0) {
            sum += tensor->data[0] + tensor->data[tensor->bytes_max - 1];
        }
        uint32_t elements = gpw_dequant_block_elements(tensor->type);
        if (elements > 0 && gpw_dequant_block_bytes(tensor->type) <= tensor->bytes_max) {
            float values[256];
            gpw_dequant(tensor->type, tensor->data, elements, values);
            sum += values[0] > 0;
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char error[GPW_GGUF_ERROR_BYTES];
    gpw_gguf_t *gguf = NULL;
    void *copy =
        malloc(bytes > 0 ? bytes : 1); // of the exact size, so that a byte too many is seen
    memcpy(copy, data, bytes);
    if (gpw_gguf_open_memory(copy, bytes, error, &gguf) == AS_OK) {
        volatile uint32_t sum = look_at_tensors(gguf);
        (void)sum;
        gpw_tokenizer_t *tokenizer = NULL;
        if (gpw_tokenizer_alloc(gguf, error, &tokenizer) == AS_OK) {
            int32_t tokens[64];
            size_t count;
            gpw_encode_options_t options = {.add_bos = true, .parse_special = true};
            (void)!gpw_tokenizer_encode(tokenizer, "Hello  w\xc3\xb6rld\n\xff", 16, options, tokens,
                                        64, &count);
        }
        gpw_tokenizer_free(tokenizer);
        gpw_gguf_close(gguf);
    }
    free(copy);
    return 0;
}
