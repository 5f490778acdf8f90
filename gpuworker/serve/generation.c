// SPDX-License-Identifier: Apache-2.0
// One generation: admit (parse, tokenize, submit each choice), then reply as verified tokens come.
// A long prompt leaves for the tokenizer's thread in between.
//
// An answer begins late: the status of a stream is sent with its first tokens (or its place in the
// queue, if that was asked for), so that whatever goes wrong before has a status code of its own. Whatever happens, each submitted choice ends with
// exactly one on_finish; the last one answers and frees. A client that leaves, or reads too slowly,
// cancels all choices.
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/assert.h"
#include "common/log.h"
#include "common/mem.h"
#include "gpuworker/serve/serve_internal.h"

#define COMPONENT "http"

// ---- Life

static gpw_generation_t *generation_alloc(gpw_serve_t *serve, as_http_request_t *http)
{
    gpw_generation_t *generation = as_mem_zalloc(1, sizeof(*generation));
    if (!generation) {
        return NULL;
    }
    generation->magic = GPW_GENERATION_MAGIC;
    generation->serve = serve;
    generation->http = http;
    generation->created_s = (int64_t)time(NULL);
    generation->next = serve->generations;
    if (serve->generations) {
        serve->generations->previous = generation;
    }
    serve->generations = generation;
    serve->generation_count++;
    gpw_http_metric_add(GPW_HTTP_GENERATIONS, 1);
    return generation;
}

void gpw_generation_free(gpw_generation_t *generation)
{
    gpw_serve_t *serve = generation->serve;
    AS_ASSERT(generation->magic == GPW_GENERATION_MAGIC);
    for (uint32_t i = 0; i < GPW_API_CHOICES_MAX; i++) {
        gpw_choice_fini(&generation->choices[i]);
    }
    if (generation->is_tokenizing) { // the thread has ended
        as_loop_unpost(serve->options.loop, &generation->tokenizing.done);
    }
    as_mem_free((char *)generation->body.bytes);
    as_mem_free(generation->tokenizing.tokens);
    gpw_prompt_fini(&generation->conversation);
    gpw_api_request_fini(&generation->request);
    if (generation->previous) {
        generation->previous->next = generation->next;
    } else {
        serve->generations = generation->next;
    }
    if (generation->next) {
        generation->next->previous = generation->previous;
    }
    generation->magic = 0;
    as_mem_free(generation);
    serve->generation_count--;
    gpw_http_metric_add(GPW_HTTP_GENERATIONS, -1);
    gpw_serve_generation_ended(serve);
}

void gpw_generation_cancel(gpw_generation_t *generation)
{
    if (generation->is_tokenizing) {
        return; // nothing is submitted, and the request may just be written
    }
    for (uint32_t i = 0; i < generation->request.choices; i++) {
        if (generation->choices[i].active) {
            gpw_worker_cancel(generation->serve->worker, generation->choices[i].request_id);
        }
    }
}

void gpw_generation_abort(gpw_generation_t *generation)
{
    gpw_http_metric_add(GPW_HTTP_ABORTED, 1);
    generation->http = NULL;
    gpw_generation_cancel(generation);
}

// ---- Reply

// Sends one event of the stream. False: there is no client any more, or it reads too slowly.
static bool send_event(gpw_generation_t *generation, json_t *json)
{
    char *text = json ? json_dumps(json, GPW_REPLY_JSON) : NULL;
    json_decref(json);
    gpw_string_t event = {0};
    as_status_t status = text ? gpw_string_append(&event, "data: ", 6) : AS_ERR_NO_MEMORY;
    if (status == AS_OK) {
        status = gpw_string_append(&event, text, strlen(text));
    }
    if (status == AS_OK) {
        status = gpw_string_append(&event, "\n\n", 2);
    }
    if (status == AS_OK) {
        status = as_http_stream_write(generation->http, event.bytes, event.count);
    }
    as_mem_free(text);
    gpw_string_fini(&event);
    if (status != AS_OK && status != AS_ERR_PEER_LOST) {
        AS_WARN(COMPONENT, "stream of %s cut: %s", generation->id, as_status_str(status));
    }
    return status == AS_OK;
}

// The client cannot be served further: ends the stream where it is.
static void cut(gpw_generation_t *generation)
{
    if (generation->http) {
        as_http_request_t *http = generation->http;
        generation->http = NULL;
        as_http_request_set_user(http, NULL);
        as_http_stream_end(http);
    }
    gpw_generation_cancel(generation);
}

static bool begin_stream(gpw_generation_t *generation)
{
    if (generation->streaming) {
        return true;
    }
    if (as_http_stream_begin(generation->http, 200, "text/event-stream; charset=utf-8") != AS_OK) {
        gpw_api_error_set(&generation->error, (gpw_api_fault_t){503, "out_of_memory", NULL},
                          "out of memory: try again later");
        generation->failed = true;
        gpw_generation_cancel(generation);
        return false;
    }
    generation->streaming = true;
    gpw_http_metric_add(GPW_HTTP_STREAMS, 1);
    for (uint32_t i = 0;
         generation->request.kind == GPW_API_CHAT && i < generation->request.choices; i++) {
        if (!send_event(generation, gpw_reply_role(generation, &generation->choices[i]))) {
            cut(generation);
            return false;
        }
    }
    return true;
}

static void send_news(gpw_generation_t *generation, gpw_choice_t *choice)
{
    if (!generation->http || generation->failed || !gpw_choice_has_news(choice) ||
        !begin_stream(generation)) {
        return;
    }
    if (!send_event(generation, gpw_reply_chunk(generation, choice, false))) {
        cut(generation);
        return;
    }
    gpw_choice_sent(choice);
}

static void send_last(gpw_generation_t *generation, gpw_choice_t *choice)
{
    send_news(generation, choice);
    if (!generation->http || generation->failed || !begin_stream(generation)) {
        return;
    }
    if (!send_event(generation, gpw_reply_chunk(generation, choice, true))) {
        cut(generation);
    }
}

static void reply_failure(gpw_generation_t *generation, as_http_request_t *http)
{
    if (!generation->streaming) {
        gpw_serve_reply_error(generation->serve, http, &generation->error);
        return;
    }
    gpw_http_metric_add(GPW_HTTP_FAILED, 1);
    (void)send_event(generation, gpw_reply_error(&generation->error));
    as_http_stream_end(http);
}

// Every choice has ended.
static void reply_end(gpw_generation_t *generation)
{
    as_http_request_t *http = generation->http;
    if (!http) {
        return; // answered or gone
    }
    as_http_request_set_user(http, NULL);
    if (generation->failed) {
        reply_failure(generation, http);
    } else if (!generation->request.stream) {
        gpw_serve_reply_json(http, 200, gpw_reply_whole(generation));
    } else {
        bool sent = !generation->request.include_usage ||
                    send_event(generation, gpw_reply_usage_chunk(generation));
        sent = sent && as_http_stream_write(http, "data: [DONE]\n\n", 14) == AS_OK;
        if (!sent) {
            AS_DEBUG(COMPONENT, "end of stream %s not delivered", generation->id);
        }
        as_http_stream_end(http);
    }
    generation->http = NULL;
}

// ---- Events of the worker

static void fail(gpw_generation_t *generation, as_status_t status, const char *message)
{
    if (!generation->failed) {
        const char *reason =
            status == AS_ERR_LIMIT ? "context_length_exceeded" : as_status_str(status);
        gpw_api_error_set(&generation->error,
                          (gpw_api_fault_t){gpw_reply_code(status), reason, NULL}, "%s",
                          message && message[0] ? message : as_status_str(status));
        generation->failed = true;
    }
    gpw_generation_cancel(generation);
}

static void on_tokens(void *ctx, const gpw_token_event_t *tokens, uint32_t count)
{
    gpw_choice_t *choice = ctx;
    gpw_generation_t *generation = choice->generation;
    if (choice->text.stopped || generation->failed || !generation->http) {
        return; // cancelled already: what is under way is not wanted
    }
    as_status_t status = AS_OK;
    for (uint32_t i = 0; i < count && status == AS_OK && !choice->text.stopped; i++) {
        status = gpw_choice_take(choice, &tokens[i]);
    }
    if (status != AS_OK) {
        fail(generation, status, "out of memory: try again later");
        return;
    }
    if (choice->text.stopped) {
        gpw_worker_stop(generation->serve->worker, choice->request_id);
    }
    if (generation->request.stream) {
        send_news(generation, choice);
    }
}

// Only for who asked: a stream that has begun can fail by an event only, no longer by a status.
static void on_place(void *ctx, uint32_t place)
{
    gpw_choice_t *choice = ctx;
    gpw_generation_t *generation = choice->generation;
    if (!generation->request.include_queue || generation->failed || !generation->http ||
        !begin_stream(generation)) {
        return;
    }
    if (!send_event(generation, gpw_reply_place(generation, choice, place))) {
        cut(generation);
    }
}

static void observe(const gpw_choice_t *choice)
{
    gpw_http_metric_add(GPW_HTTP_TOKENS, choice->token_count);
    if (choice->token_count > 0) {
        gpw_http_metric_observe(GPW_HTTP_FIRST_TOKEN, choice->usage.first_token_us);
        gpw_http_metric_observe(GPW_HTTP_TOTAL, choice->usage.total_us);
        gpw_serve_t *serve = choice->generation->serve;
        uint64_t us = choice->usage.total_us - choice->usage.queue_us;
        serve->service_us = serve->service_us ? (7 * serve->service_us + us) / 8 : us;
    }
}

static void on_finish(void *ctx, gpw_finish_t finish, as_status_t status, const char *error,
                      const gpw_usage_t *usage)
{
    gpw_choice_t *choice = ctx;
    gpw_generation_t *generation = choice->generation;
    AS_ASSERT(generation->magic == GPW_GENERATION_MAGIC && choice->active);
    choice->active = false;
    choice->finish = finish;
    if (usage) {
        choice->usage = *usage;
    }
    observe(choice);
    bool complete =
        choice->text.stopped || finish == GPW_FINISH_STOP || finish == GPW_FINISH_LENGTH;
    if (!complete && generation->http) {
        as_status_t why = status != AS_OK ? status : AS_ERR_CANCELLED;
        bool drained = finish == GPW_FINISH_CANCELLED && generation->serve->drain != GPW_DRAIN_NO;
        fail(generation, why,
             drained ? "the server is shutting down: send the request to another, or later"
                     : error);
    } else if (complete && !generation->failed && gpw_choice_finish(choice) != AS_OK) {
        fail(generation, AS_ERR_NO_MEMORY, "out of memory: try again later");
    } else if (complete && generation->request.stream) {
        send_last(generation, choice);
    }
    if (--generation->active_count == 0) {
        reply_end(generation);
        gpw_generation_free(generation);
    }
}

// ---- Admit

static bool refuse(gpw_generation_t *generation)
{
    generation->failed = true;
    return false;
}

static bool check_model(gpw_generation_t *generation)
{
    const char *asked = generation->request.model, *here = generation->serve->options.model_name;
    if (!asked || strcmp(asked, here) == 0) {
        return true;
    }
    gpw_api_error_set(&generation->error, (gpw_api_fault_t){404, "model_not_found", "model"},
                      "model \"%.200s\" is not served here; this server has \"%.200s\"", asked,
                      here);
    return refuse(generation);
}

// The conversation by the model's chat template. False: the error is set.
static bool render(gpw_generation_t *generation)
{
    const gpw_api_request_t *request = &generation->request;
    as_status_t status =
        gpw_tokenizer_chat(generation->serve->options.model->tokenizer, request->messages,
                           request->message_count, &generation->conversation);
    if (status == AS_OK) {
        return true;
    }
    bool unknown = status == AS_ERR_UNSUPPORTED;
    gpw_api_error_set(
        &generation->error,
        (gpw_api_fault_t){gpw_reply_code(status), unknown ? "no_chat_template" : "invalid_value",
                          "messages"},
        "%s",
        unknown ? "this model has no chat template that is known here: use /v1/completions"
                : "messages do not fit the model's chat template: let user and assistant "
                  "alternate, with at most one system message before them");
    return refuse(generation);
}

static bool refuse_prompt(gpw_generation_t *generation, as_status_t status)
{
    bool limit = status == AS_ERR_LIMIT;
    gpw_api_error_set(
        &generation->error,
        (gpw_api_fault_t){status == AS_OK ? 400 : gpw_reply_code(status),
                          limit ? "context_length_exceeded" : "invalid_value",
                          generation->request.kind == GPW_API_CHAT ? "messages" : "prompt"},
        limit ? "the prompt is longer than the context of %u tokens: shorten it"
              : "the prompt has no tokens (context %u): write something into it",
        generation->serve->limits.context_max);
    return refuse(generation);
}

static bool check_context(gpw_generation_t *generation, size_t token_count)
{
    gpw_api_request_t *request = &generation->request;
    uint32_t context_max = generation->serve->limits.context_max;
    const char *name = request->kind == GPW_API_CHAT ? "messages" : "prompt";
    if (token_count >= context_max) {
        gpw_api_error_set(
            &generation->error, (gpw_api_fault_t){400, "context_length_exceeded", name},
            "%s has %zu tokens and leaves no room for an answer in the context of %u: shorten it",
            name, token_count, context_max);
        return refuse(generation);
    }
    if (request->max_tokens == 0) {
        request->max_tokens = context_max - (uint32_t)token_count;
    }
    if (request->max_tokens > context_max - token_count) {
        const char *more = request->continuation ? "assay.continuation" : "max_tokens";
        gpw_api_error_set(&generation->error,
                          (gpw_api_fault_t){400, "context_length_exceeded", more},
                          "%s has %zu tokens and %s asks for %u more, but the context holds %u: "
                          "lower %s to %zu, or shorten the prompt",
                          name, token_count, more, request->max_tokens, context_max, more,
                          context_max - token_count);
        return refuse(generation);
    }
    return true;
}

static bool submit(gpw_generation_t *generation, uint32_t index, const int32_t *tokens,
                   size_t token_count)
{
    const gpw_api_request_t *request = &generation->request;
    gpw_choice_t *choice = &generation->choices[index];
    if (gpw_choice_init(choice, generation, index) != AS_OK) {
        fail(generation, AS_ERR_NO_MEMORY, "out of memory: try again later");
        return false;
    }
    gpw_request_params_t params = {
        .tokens = tokens,
        .token_count = (uint32_t)token_count,
        .max_tokens = request->max_tokens,
        .continuation = request->continuation,
        .choose = request->choose,
        .cache_salt = request->cache_salt,
        .compressor = request->compressor,
        .horizon = request->horizon,
        .horizon_set = request->horizon_set,
        .prompt_lookup = request->prompt_lookup,
        .prompt_lookup_set = request->prompt_lookup_set,
        .verify = request->verify,
        .logprobs = request->logprobs,
        .want_logprobs = request->want_logprobs,
        .logits_hash = request->logits_hash,
        .ignore_end = request->ignore_end,
        .deadline_us = request->deadline_us,
    };
    params.choose.seed += index;
    gpw_request_events_t events = {
        .ctx = choice, .on_tokens = on_tokens, .on_place = on_place, .on_finish = on_finish};
    char error[256] = "";
    as_status_t status = gpw_worker_submit(generation->serve->worker, &params, &events, error,
                                           sizeof(error), &choice->request_id);
    if (status != AS_OK) {
        fail(generation, status,
             status == AS_ERR_BUSY && !error[0] ? "the queue is full: try again later" : error);
        return false;
    }
    choice->active = true;
    generation->active_count++;
    return true;
}

// The tokens are the answer. False: nothing was submitted.
static bool reply_tokens(gpw_generation_t *generation, const int32_t *tokens, size_t token_count)
{
    as_http_request_t *http = generation->http;
    generation->http = NULL;
    as_http_request_set_user(http, NULL);
    gpw_serve_reply_json(http, 200, gpw_reply_tokens(generation, tokens, token_count));
    return false;
}

// Hands the tokens of the prompt to the worker. False: the error is set, or all is answered.
static bool submit_all(gpw_generation_t *generation, const int32_t *tokens, size_t token_count)
{
    gpw_serve_t *serve = generation->serve;
    gpw_api_request_t *request = &generation->request;
    if (generation->only_tokens) {
        return reply_tokens(generation, tokens, token_count);
    }
    if (!check_context(generation, token_count)) {
        return false;
    }
    if (!request->seed_set &&
        getrandom(&request->choose.seed, sizeof(request->choose.seed), 0) < 0) {
        request->choose.seed = serve->ids * 0x9e3779b97f4a7c15ull;
    }
    snprintf(generation->id, sizeof(generation->id), "%s-%016llx",
             request->kind == GPW_API_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)serve->ids++);
    for (uint32_t i = 0; i < request->choices; i++) {
        if (!submit(generation, i, tokens, token_count)) {
            return false;
        }
    }
    return true;
}

static bool submit_prepared(gpw_generation_t *generation)
{
    gpw_api_request_t *request = &generation->request;
    gpw_tokenize_job_t *job = &generation->tokenizing;
    if (generation->failed) {
        return false;
    }
    if (request->tokens) {
        return submit_all(generation, request->tokens, request->token_count);
    }
    if (job->status != AS_OK || job->token_count == 0) {
        return refuse_prompt(generation, job->status);
    }
    bool submitted = submit_all(generation, job->tokens, job->token_count);
    as_mem_free(job->tokens); // the worker has copies
    job->tokens = NULL;
    return submitted;
}

static bool refuse_draining(gpw_generation_t *generation)
{
    gpw_api_error_set(&generation->error, (gpw_api_fault_t){503, "shutting_down", NULL},
                      "the server is shutting down: send the request to another, or later");
    return refuse(generation);
}

// Nothing was submitted: the generation ends here.
static void end_unsubmitted(gpw_generation_t *generation)
{
    if (generation->active_count == 0) {
        reply_end(generation);
        gpw_generation_free(generation);
    }
}

static void on_tokenized(void *ctx)
{
    gpw_generation_t *generation = ctx;
    AS_ASSERT(generation->magic == GPW_GENERATION_MAGIC && generation->is_tokenizing);
    generation->is_tokenizing = false;
    bool late =
        generation->serve->drain != GPW_DRAIN_NO && generation->serve->drain != GPW_DRAIN_WAITING;
    bool submitted =
        generation->http && (late ? refuse_draining(generation) : submit_prepared(generation));
    if (!submitted) {
        end_unsubmitted(generation);
    }
}

// The prompt or the conversation is what to encode. False: the error is set.
static bool prepare_text(gpw_generation_t *generation)
{
    gpw_serve_t *serve = generation->serve;
    gpw_tokenize_job_t *job = &generation->tokenizing;
    bool chat = generation->request.kind == GPW_API_CHAT;
    uint32_t context_max = serve->limits.context_max;
    if (chat && !render(generation)) {
        return false;
    }
    job->conversation = chat ? &generation->conversation : NULL;
    job->text = chat ? generation->conversation.text : generation->request.prompt;
    job->text_bytes = strlen(job->text);
    // A text of megabytes costs seconds; what cannot fit is not worth them.
    if (job->text_bytes >
        gpw_tokenizer_text_bytes_max(serve->options.model->tokenizer, context_max)) {
        return refuse_prompt(generation, AS_ERR_LIMIT);
    }
    job->options = (gpw_encode_options_t){.add_bos = true};
    job->tokens = as_mem_alloc((size_t)context_max * sizeof(*job->tokens));
    job->tokens_max = context_max;
    if (!job->tokens) {
        gpw_api_error_set(&generation->error, (gpw_api_fault_t){503, "out_of_memory", NULL},
                          "out of memory: try again later");
        return refuse(generation);
    }
    return true;
}

// Parses the body. On the tokenizer's thread if it is long: while `http` and the list of
// generations are the loop's.
static bool prepare(void *ctx)
{
    gpw_generation_t *generation = ctx;
    gpw_api_request_t *request = &generation->request;
    gpw_api_body_t body = generation->body;
    body.bytes = body.bytes ? body.bytes : "";
    bool parsed = gpw_api_parse(&body, &generation->serve->limits, request, &generation->error);
    as_mem_free((char *)generation->body.bytes);
    generation->body.bytes = NULL;
    if (!parsed) {
        return refuse(generation);
    }
    return check_model(generation) && !request->tokens && prepare_text(generation);
}

// False: the error is set.
static bool admit(gpw_generation_t *generation, gpw_api_kind_t kind, const as_http_call_t *call)
{
    gpw_tokenize_job_t *job = &generation->tokenizing;
    if (generation->serve->drain != GPW_DRAIN_NO) {
        return refuse_draining(generation);
    }
    char *bytes = as_http_request_take_body(generation->http);
    generation->body = (gpw_api_body_t){kind, bytes, call->body_bytes};
    job->bytes = call->body_bytes;
    job->prepare = prepare;
    job->done = (as_task_t){.fn = on_tokenized, .ctx = generation};
    if (gpw_tokenize_start(generation->serve->tokenize, job)) {
        return submit_prepared(generation);
    }
    generation->is_tokenizing = true;
    return true;
}

void gpw_generation_start(gpw_serve_t *serve, as_http_request_t *http, gpw_api_kind_t kind,
                          const as_http_call_t *call, bool only_tokens)
{
    gpw_generation_t *generation = generation_alloc(serve, http);
    if (!generation) {
        gpw_serve_reply_json(http, 503, NULL);
        return;
    }
    generation->only_tokens = only_tokens;
    as_http_request_set_user(http, generation);
    if (!admit(generation, kind, call)) {
        end_unsubmitted(generation);
    }
}
