# SPDX-License-Identifier: Apache-2.0
"""`assay compressors` and `assay compare` against a real worker and a false one, and answers that are given instead of chosen."""
import http.server
import json
import math
import os
import re
import subprocess
import threading
import urllib.request
import xml.dom.minidom

import pytest

from harness import BIN, MODEL, ask, post


def assay(*arguments, **more):
    return subprocess.run([os.path.join(BIN, "assay"), *arguments], capture_output=True, text=True, timeout=400, **more)


def get(url):
    return json.loads(urllib.request.urlopen(url, timeout=30).read())


# ---- Answers that are given


def given(cluster, prompt, tokens, compressor, verify, **more):
    body = {"prompt": prompt, "logprobs": 0, **more, "assay": {"continuation": tokens, "compressor": compressor, "verify": verify, "logits_hash": True}}
    status, reply = post(cluster.url() + "/v1/completions", body)
    assert status == 200, reply
    return reply


def test_a_given_answer_has_the_logits_of_choosing_it(cluster, prompt):
    chosen = ask(cluster.url(), prompt, "none", tokens=24, horizon=0)
    tokens = [token for token, _ in chosen.bits]
    for compressor, verify in (("none", "off"), ("kivi2", "full")):
        reply = given(cluster, prompt, tokens, compressor, verify)
        choice, usage = reply["choices"][0], reply["usage"]
        assert choice["text"] == chosen.text and choice["finish_reason"] == "length" and usage["completion_tokens"] == 24
        assert list(zip(choice["assay"]["tokens"], choice["assay"]["logits_hashes"])) == chosen.bits
        assert len(choice["logprobs"]["token_logprobs"]) == 24 and max(choice["logprobs"]["token_logprobs"]) <= 0
    lossy = given(cluster, prompt, tokens, "kivi2", "off")["choices"][0]["assay"]
    assert lossy["tokens"] == tokens and lossy["logits_hashes"][0] == chosen.bits[0][1]  # the first follows the exact prompt
    assert sum(a != b for a, (_, b) in zip(lossy["logits_hashes"], chosen.bits)) > 16


def test_a_given_answer_has_to_fit_and_to_stand_alone(cluster):
    for body, param, says in [({"assay": {"continuation": [5] * 2047}}, "assay.continuation", "lower assay.continuation to"),
                              ({"assay": {"continuation": [5] * 2049}}, "assay.continuation", "holds 2048"),
                              ({"assay": {"continuation": "text"}}, "assay.continuation", "array of token ids"),
                              ({"max_tokens": 4, "assay": {"continuation": [5]}}, "max_tokens", "the whole answer")]:
        status, reply = post(cluster.url() + "/v1/completions", {"prompt": "one two three", **body})
        assert status == 400 and reply["error"]["param"] == param and says in reply["error"]["message"], reply


def test_sealing_is_a_counted_part_of_the_prefill(cluster, prompt):
    seconds = [[cluster.metric(f"assay_worker_{name}") for name in ("sealing_us_total", "prefill_us_sum")]]
    for compressor in "none", "kivi4", "snapkv":
        ask(cluster.url(), prompt, compressor, salt=f"sealing {compressor}", tokens=1)
        seconds.append([cluster.metric(f"assay_worker_{name}") for name in ("sealing_us_total", "prefill_us_sum")])
    sealing, prefill = ([after[i] - before[i] for before, after in zip(seconds, seconds[1:])] for i in range(2))
    assert sealing[0] == 0 and min(prefill) > 0
    assert all(0 < part < whole for part, whole in zip(sealing[1:], prefill[1:]))


# ---- assay compressors


def test_compressors_are_listed_with_their_parts_and_bytes(cluster):
    reply = get(cluster.url() + "/v1/compressors")
    names = [one["name"] for one in reply["data"]]
    usable = [one["name"] for one in reply["data"] if one["segments"]]
    assert [*usable, "none", "auto"] == get(cluster.url() + "/v1/models")["data"][0]["assay"]["compressors"]
    assert set(names) - set(usable) == {"kvsharer", "less"}  # which need a calibration
    of = {one["name"]: one for one in reply["data"]}
    full = reply["full_token_bytes"]
    for name, least, most in ("kivi4", .31, .33), ("kivi2", .18, .21), ("snapkv", .25, .27), ("dbudgetkv", 1, 1.02):
        assert [segment["tokens"] for segment in of[name]["segments"]] == [1024, 2048]
        for segment in of[name]["segments"]:
            assert least < segment["bytes"] / segment["tokens"] / full < most, (name, segment)
    assert of["kivi4"]["parameters"] == {"bits": 4, "group": 32}
    assert [of["kivi4"][part] for part in ("selector", "codec", "holder")] == [None, "kivi", "blocks"]
    assert [of["knorm"][part] for part in ("selector", "codec", "holder")] == ["norms", "f16", "some of each block"]
    assert of["kivi4"]["quantizes"] and not of["kivi4"]["drops"] and of["snapkv"]["drops"] and of["dbudgetkv"]["data_sized"]
    shared = {name: (one["query_free"], one["shared"]) for name, one in of.items()}
    assert (shared["kivi4"], shared["streaming"], shared["snapkv"]) == ((True, True), (True, False), (False, False))
    done = assay("compressors", f"--worker={cluster.url()}", "--json")
    assert json.loads(done.stdout) == reply
    rows = assay("compressors", f"--worker={cluster.url()}", "--tokens=1000").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:len(names) + 1]] == names and "of a prompt of 1024" in rows[len(names) + 2]


@pytest.fixture
def impostor():
    """A server that answers any GET with `impostor.body`."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.server.body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_what_lists_no_compressors_is_told(impostor):
    url = f"--worker=http://127.0.0.1:{impostor.server_port}"
    for body in ("<html>", "[]", "{}", '{"data": [], "full_token_bytes": 1}', '{"data": [7], "full_token_bytes": 1}',
                 '{"data": [{"name": null}], "full_token_bytes": 1}', '{"data": [{"name": "x"}], "full_token_bytes": 0}'):
        impostor.body = body
        done = assay("compressors", url)
        assert done.returncode == 1 and "assay: " in done.stderr and not done.stdout, (body, done)
    long = "name" * 75
    for one in ({}, {"segments": "x", "parameters": 3, "selector": 7}, {"segments": [{"tokens": 0}, {"tokens": -3, "bytes": "y"}, 5]},
                {"segments": [{"tokens": 64}], "parameters": {long: 1}, "codec": long}):
        impostor.body = json.dumps({"data": [{"name": long, **one}], "full_token_bytes": 9})
        done = assay("compressors", url)
        assert done.returncode == 0 and "NAME" in done.stdout and "namename" in done.stdout, (one, done)


# ---- assay compare


def compare(*arguments, **more):
    return assay("compare", *arguments, **more)


def answers(prompt):
    return {answer["compressor"]: answer for answer in prompt["answers"]}


@pytest.fixture(scope="module")
def raw(cluster, tmp_path_factory):
    """Raw data of two methods on built-in prompts of two lengths."""
    path = tmp_path_factory.mktemp("compare") / "raw.json"
    done = compare(f"--worker={cluster.url()}", "--compressor=streaming,kivi2", "--context=192,320", "--tokens=24", "--samples=1", "--json")
    assert done.returncode == 0, done.stderr
    path.write_text(done.stdout)
    return path


def test_methods_are_compared_on_the_same_prompts(cluster, raw):
    data = json.loads(raw.read_text())
    assert [(prompt["context"], prompt["format"]) for prompt in data["prompts"]] == [(192, "text"), (192, "json"), (320, "text"), (320, "json")]
    assert "--context=192,320" in data["command"] and data["full_token_bytes"] == get(cluster.url() + "/v1/compressors")["full_token_bytes"]
    for prompt in data["prompts"]:
        assert prompt["context"] * .7 < prompt["prompt_tokens"] <= prompt["context"]
        of = answers(prompt)
        assert list(of) == ["none", "kivi2", "streaming"]  # in the order of the worker's table
        for name in "kivi2", "streaming":
            verified, plain = of[name]["verified"], of[name]["unverified"]
            assert verified["identical"] and verified["tokens"] == plain["tokens"] == 23 and verified["verifications"] > 0
            assert verified["accepted_tokens"] <= verified["drafted_tokens"]
            assert plain["first_difference"] is None or 0 < plain["first_difference"] < 24
            assert (plain["parses"] is None) == (not prompt["full_parses"])
            assert of[name]["continued"]["tokens"] == of["none"]["continued"]["tokens"] == 23
        # All of so short a prompt is within streaming's window: nothing is lost.
        assert of["streaming"]["unverified"]["first_difference"] is None
        assert math.isclose(of["streaming"]["continued"]["nats"], of["none"]["continued"]["nats"], rel_tol=1e-3)
        assert not math.isclose(of["kivi2"]["continued"]["nats"], of["none"]["continued"]["nats"], rel_tol=1e-4)


def test_perplexity_is_that_of_the_text_that_follows(cluster, tmp_path):
    # Of 113 tokens, of which the first 64 are sealed whether they are computed or come from a store.
    text, follows = "The quick brown fox jumps over the lazy dog. " * 11 + "The quick brown", " fox jumps over the lazy dog."
    lines = tmp_path / "prompts.jsonl"
    lines.write_text(json.dumps({"prompt": text, "continuation": follows, "context": 100}) + "\n\n" + json.dumps({"prompt": text}) + "\n")
    done = compare(f"--worker={cluster.url()}", f"--prompts={lines}", "--compressor=kivi4", "--tokens=6", "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["prompts"]
    tokens = post(cluster.url() + "/v1/completions/tokenize", {"prompt": follows})[1]["tokens"][:6]
    for prompt, continuation in (first, tokens), (second, [token for token, _ in ask(cluster.url(), text, "none", tokens=6, horizon=0).bits]):
        for name in "none", "kivi4":
            told = answers(prompt)[name]["continued"]
            logprobs = given(cluster, text, continuation, name, "off", cache_salt=name)["choices"][0]["logprobs"]["token_logprobs"]
            assert told["tokens"] == 5 and math.isclose(told["nats"], -sum(logprobs[1:]), rel_tol=1e-5)


def test_json_that_no_longer_parses_is_counted(cluster, tmp_path):
    line = '{"name": "Ann", "age": 31}\n'
    lines = tmp_path / "prompts.jsonl"
    lines.write_text(json.dumps({"prompt": line * 12, "prefix": '{"name":', "format": "json", "name": "people"}) + "\n" +
                     json.dumps({"prompt": "Once upon a time", "prefix": "{once", "format": "json", "name": "no JSON"}) + "\n")
    done = compare(f"--worker={cluster.url()}", f"--prompts={lines}", "--compressor=kivi4,kivi2", "--tokens=20", "--json")
    assert done.returncode == 0, done.stderr
    people, prose = json.loads(done.stdout)["prompts"]
    assert people["full_parses"] and not prose["full_parses"]
    assert answers(people)["kivi4"]["unverified"]["parses"] in (True, False)
    assert answers(prose)["kivi4"]["unverified"]["parses"] is None


def test_tables_and_plots_are_made_of_raw_data_alone(raw, tmp_path):
    page, plots = tmp_path / "page.md", tmp_path / "plots"
    page.write_text("before\n<!-- assay compare -->\nold\n<!-- end -->\nafter\n")
    done = compare(f"--from={raw}", f"--markdown={page}", f"--plots={plots}")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][0] == "COMPRESSOR" and [row[:2] for row in rows[1:7]] == [[name, context] for context in ("192", "320")
                                                                            for name in ("none", "kivi2", "streaming")]
    text = page.read_text()
    assert text.startswith("before\n<!-- assay compare -->\n`assay compare --worker=") and text.endswith("<!-- end -->\nafter\n") and "old" not in text
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert len(cells) == 8 and {len(row) for row in cells} == {12} and cells[2][0] == "none"
    prompts = json.loads(raw.read_text())["prompts"][:2]
    continued = [answers(prompt)["kivi2"]["continued"] for prompt in prompts]
    perplexity = math.exp(sum(one["nats"] for one in continued) / sum(one["tokens"] for one in continued))
    share = sum(one["resident_bytes"] for one in continued) / sum(one["full_bytes"] for one in continued)
    assert cells[3][0] == "kivi2" and math.isclose(float(cells[3][10]), perplexity, rel_tol=5e-3) and cells[3][3] == f"{share:.3f}"
    assert cells[3][7] == "yes"
    names = sorted(path.name for path in plots.iterdir())
    assert names == [f"compare-{kind}-{context}.svg" for kind in ("perplexity", "run") for context in (192, 320)]
    for path in plots.iterdir():
        svg = xml.dom.minidom.parse(str(path))
        assert len(svg.getElementsByTagName("circle")) == (3 if "perplexity" in path.name else 2)
        assert "kivi2" in path.read_text() and "nan" not in path.read_text()


def test_raw_data_of_another_kind_is_told_and_no_answer_is_invented(tmp_path):
    for text, says in [("{", "--from"), ("[]", "no \"prompts\""), ('{"prompts": [{"answers": [{}]}]}', "no \"compressor\""), ("7", "--from")]:
        path = tmp_path / "raw.json"
        path.write_text(text)
        done = compare(f"--from={path}")
        assert done.returncode == 1 and says in done.stderr and not done.stdout, (text, done)
    answer = {"compressor": "a<b", "verified": {"identical": False, "tokens": 4, "ms": 0}, "unverified": {"parses": "x", "tokens": 3}, "continued": 9}
    path.write_text(json.dumps({"model": "<m>", "full_token_bytes": "x", "prompts": [{"context": 5, "answers": [answer]}]}))
    done = compare(f"--from={path}", f"--plots={tmp_path}")
    assert done.returncode == 1 and re.search(r"a<b +5 +- +- +- +- +- +NO +0 of 1 +3 +- +-", done.stdout), done.stdout


def test_what_cannot_be_compared_is_told(cluster, tmp_path):
    lines = tmp_path / "prompts.jsonl"
    worker = f"--worker={cluster.url()}"
    for text, says in [("", "has no prompts"), ('{"prompt": "x"}\n{', "line 2: it is not JSON"), ('{"text": "x"}', "its members are"),
                       ('{"prompt": ""}', 'it has no "prompt"'), ('{"prompt": "x", "format": "yaml"}', '"json" or "text"'),
                       ('{"prompt": "x", "context": -1}', "its members are"), (json.dumps({"prompt": "word " * 3000}), "longer than the worker's context")]:
        lines.write_text(text)
        done = compare(worker, f"--prompts={lines}", "--compressor=kivi4")
        assert done.returncode == 1 and says in done.stderr, (text, done)
    for code, says, arguments in [
            (2, "--context x", ["--context=64,x"]), (2, "--context 8", ["--context=8"]), (2, "at least one compressor", ["--compressor="]),
            (2, "either --prompts or --text", ["--text=a", "--prompts=b"]), (2, "there is no task 'x'", ["--ruler=x"]),
            (1, "the worker has no 'zip'", ["--compressor=zip"]), (1, "context is 2048", ["--context=2048"]),
            (1, "more than the text has", ["--context=1024", f"--text={lines}"]), (1, "cannot read /nowhere", ["--text=/nowhere"])]:
        done = compare(worker, *arguments)
        assert done.returncode == code and says in done.stderr, (arguments, done)
    page = tmp_path / "page.md"
    page.write_text("no marks")
    lines.write_text('{"prompt": "one two three"}')
    done = compare(worker, f"--prompts={lines}", "--compressor=kivi4", "--tokens=4", f"--markdown={page}")
    assert done.returncode == 1 and "has no lines <!-- assay compare -->" in done.stderr and page.read_text() == "no marks"


def test_scores_of_ruler_stand_beside(cluster):
    done = compare(f"--worker={cluster.url()}", "--compressor=kivi4", "--context=512", "--tokens=4", "--samples=1", "--ruler=niah_single_2",
                   "--ruler-samples=1", "--json")
    assert done.returncode == 0, done.stderr
    assert [(one["context"], one["compressor"]) for one in json.loads(done.stdout)["ruler"]] == [(512, "none"), (512, "kivi4")]
    assert all(0 <= one["score"] <= 100 for one in json.loads(done.stdout)["ruler"])


def test_a_worker_is_started_where_none_is_running(tmp_path):
    done = assay("compressors", f"--model={MODEL}", f"--run-dir={tmp_path}", "--json")
    assert done.returncode == 0 and "starting a worker" in done.stderr, done.stderr
    assert json.loads(done.stdout)["data"][0]["name"] == "kivi4"
    done = assay("compressors", f"--run-dir={tmp_path}", env={name: value for name, value in os.environ.items() if name != "ASSAY_MODEL"})
    assert done.returncode == 1 and "no cluster is running" in done.stderr
