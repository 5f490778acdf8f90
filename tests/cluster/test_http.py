# SPDX-License-Identifier: Apache-2.0
"""curl and raw HTTP: malformed requests, limits, leaving clients, shutdown."""
import json
import signal
import subprocess
import threading

import pytest

from harness import Cluster, Stream, post, wait_until

MALFORMED = [  # path, body, code, param, a part of the message
    ("completions", "", 400, None, "empty"),
    ("completions", "{\"prompt\": \"x\"", 400, None, "not valid JSON"),
    ("completions", "[1, 2]", 400, None, "JSON object"),
    ("completions", "[" * 100000, 400, None, "nested"),
    ("completions", {}, 400, "prompt", "missing"),
    ("completions", {"prompt": 7}, 400, "prompt", "but is 7"),
    ("completions", {"prompt": [1, -5]}, 400, "prompt[1]", "from 0 to"),
    ("completions", {"prompt": "x", "max_tokens": "many"}, 400, "max_tokens", "an integer from 1"),
    ("completions", {"prompt": "x", "max_tokens": 2048}, 400, "max_tokens", "lower max_tokens to"),
    ("completions", {"prompt": "word " * 5000}, 400, "prompt", "longer than the context of 2048"),
    ("completions", {"prompt": "x", "temperature": -1}, 400, "temperature", "from 0"),
    ("completions", {"prompt": "x", "top_p": 1.5}, 400, "top_p", "up to 1"),
    ("completions", {"prompt": "x", "n": 100}, 400, "n", "from 1 to 8"),
    ("completions", {"prompt": "x", "stop": ["a"] * 5}, 400, "stop", "up to 4"),
    ("completions", {"prompt": "x", "echo": True}, 400, "echo", "not supported"),
    ("completions", {"prompt": "x", "tempreature": 1}, 400, "tempreature", "spelling"),
    ("completions", {"prompt": "x", "assay": {"compressor": "zip"}}, 400, "assay.compressor", "\"kivi4\""),
    ("completions", {"prompt": "x", "assay": {"horizon": 1e9}}, 400, "assay.horizon", "an integer from 0"),
    ("completions", {"prompt": "x", "model": "gpt-9"}, 404, "model", "not served here"),
    ("chat/completions", {"messages": []}, 400, "messages", "1 to"),
    ("chat/completions", {"messages": [{"role": "user"}]}, 400, "messages[0].content", "a text"),
    ("chat/completions", {"messages": [{"role": "boss", "content": "x"}]}, 400, "messages[0].role", "\"user\""),
    ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}},
     400, "response_format", "not supported"),
    ("embeddings", {"input": "x"}, 404, None, "nothing at this path"),
]


def curl(*arguments, data=None):
    """Status code and body."""
    command = ["curl", "-s", "--max-time", "120", "-w", "\n%{http_code}", *arguments]
    if data is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    out = subprocess.run(command, input=data, capture_output=True, timeout=150).stdout.decode()
    body, _, code = out.rpartition("\n")
    return int(code), body


@pytest.mark.parametrize("path,body,code,param,says", MALFORMED)
def test_a_malformed_request_is_refused_with_a_remedy(cluster, path, body, code, param, says):
    data = body if isinstance(body, str) else json.dumps(body)
    status, text = curl(f"{cluster.url()}/v1/{path}", data=data.encode())
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (code, param) and says in error["message"], error
    assert error["type"] == "invalid_request_error" and error["code"]


def test_a_wrong_method_and_a_huge_body_are_refused(cluster):
    status, text = curl(f"{cluster.url()}/v1/completions")
    assert status == 405 and "POST" in json.loads(text)["error"]["message"]
    assert curl(f"{cluster.url()}/v1/completions", data=b"x" * (9 << 20))[0] == 413


def test_curl_completes_and_streams(cluster):
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    status, text = curl(f"{cluster.url()}/v1/completions", data=json.dumps(body).encode())
    whole = json.loads(text)["choices"][0]["text"]
    assert status == 200 and "Paris" in whole
    status, text = curl("-N", f"{cluster.url()}/v1/completions", data=json.dumps(dict(body, stream=True)).encode())
    lines = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    assert status == 200 and lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == whole


def test_health_models_and_metrics_answer(cluster):
    assert json.loads(curl(f"{cluster.url()}/health")[1])["status"] == "ok"
    model = json.loads(curl(f"{cluster.url()}/v1/models")[1])["data"][0]
    assert model["assay"]["context_tokens"] == 2048 and "kivi4" in model["assay"]["compressors"]
    assert "# TYPE assay_gpuworker_http_requests_total counter" in curl(f"{cluster.url()}/metrics")[1]


def test_a_client_that_leaves_frees_its_place(cluster):
    before = cluster.metric("assay_gpuworker_http_aborted_total")
    body = {"prompt": "A very long story:", "max_tokens": 1500, "temperature": 0, "assay": {"ignore_end": True}}
    stream = Stream(cluster.url(), body)
    next(stream.events())
    stream.close()
    wait_until(lambda: cluster.metric("assay_gpuworker_http_aborted_total") == before + 1, 30, "the abort is seen")
    wait_until(lambda: cluster.metric("assay_gpuworker_http_generations") == 0, 30, "the generation is gone")


@pytest.fixture()
def small(tmp_path):
    """A worker alone, with room for one request."""
    with Cluster(tmp_path, stores=0, scheduler=False, worker_options=["--sessions=1", "--queue=0"]) as running:
        yield running


def test_a_full_worker_answers_429_and_a_drained_one_ends_well(small):
    body = {"prompt": "A long story:", "max_tokens": 60, "temperature": 0, "assay": {"ignore_end": True}}
    stream = Stream(small.url(), body)
    events = stream.events()
    next(events)
    status, refusal = post(small.url() + "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert status == 429 and "try again later" in refusal["error"]["message"]
    assert refusal["error"]["type"] == "rate_limit_error"
    worker = small.workers[0]
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "draining" in worker.log_text(), 30, "the worker drains")
    status, refusal = post(small.url() + "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert status == 503 and "shutting down" in refusal["error"]["message"]
    rest = list(events)
    assert rest[-1]["choices"][0]["finish_reason"] == "length"  # what had begun was finished
    assert worker.child.wait(30) == 0


def test_many_clients_at_once_get_what_each_would_get_alone(cluster):
    prompts = [f"Number {number} is followed by" for number in range(6)]
    body = lambda prompt: {"prompt": prompt, "max_tokens": 12, "temperature": 0}
    alone = [post(cluster.url() + "/v1/completions", body(prompt))[1]["choices"][0]["text"] for prompt in prompts]
    together = [None] * len(prompts)

    def run(number):
        together[number] = post(cluster.url() + "/v1/completions", body(prompts[number]))[1]["choices"][0]["text"]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert together == alone
