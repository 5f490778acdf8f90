// SPDX-License-Identifier: Apache-2.0
// Bodies of API requests: the first byte picks the endpoint. A refusal has a code, a message and a
// name in valid UTF-8.
#include <stdlib.h>
#include <string.h>

#include "gpuworker/resident/compressor.h"
#include "gpuworker/serve/openai.h"

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const gpw_api_limits_t limits = {
        .vocab = 49152, .context_max = 2048, .compressors = gpw_compressor_names(0)};
    if (bytes == 0) {
        return 0;
    }
    gpw_api_kind_t kind = data[0] & 1 ? GPW_API_CHAT : GPW_API_COMPLETION;
    gpw_api_request_t request;
    gpw_api_error_t error;
    const gpw_api_body_t body = {kind, (const char *)data + 1, bytes - 1};
    if (!gpw_api_parse(&body, &limits, &request, &error)) {
        check(error.code >= 400 && error.message[0] != '\0');
        check(gpw_utf8_valid(error.message, strlen(error.message)));
        check(gpw_utf8_valid(error.param, strlen(error.param)));
        return 0;
    }
    check(kind == GPW_API_CHAT ? request.message_count > 0
                               : request.prompt != NULL || request.token_count > 0);
    check(request.choices >= 1 && request.choices <= GPW_API_CHOICES_MAX);
    check(request.max_tokens <= limits.context_max && request.token_count <= limits.context_max);
    check(request.choose.temperature >= 0 && request.choose.temperature <= 2);
    check(request.choose.top_p >= 0 && request.choose.top_p <= 1);
    for (uint32_t i = 0; i < request.token_count; i++) {
        check(request.tokens[i] >= 0 && request.tokens[i] < limits.vocab);
    }
    check(request.continuation_count == 0 || request.max_tokens == request.continuation_count);
    for (uint32_t i = 0; i < request.continuation_count; i++) {
        check(request.continuation[i] >= 0 && request.continuation[i] < limits.vocab);
    }
    // A text in pieces and whole shows the same.
    if (request.prompt) {
        gpw_text_t text;
        gpw_string_t shown = {0};
        gpw_text_init(&text, request.stops, request.stop_count);
        for (const char *at = request.prompt; *at && !text.stopped; at++) {
            check(gpw_text_push(&text, at, 1, &shown) == AS_OK);
        }
        check(gpw_text_finish(&text, &shown) == AS_OK);
        check(shown.count <= strlen(request.prompt));
        check(memcmp(shown.bytes ? shown.bytes : "", request.prompt, shown.count) == 0);
        gpw_string_fini(&shown);
        gpw_text_fini(&text);
    }
    gpw_api_request_fini(&request);
    return 0;
}
