# SPDX-License-Identifier: Apache-2.0
"""Tenants: keys of a cluster, tokens under them, and stores that admit and separate by them."""
import json
import os
import stat
import subprocess
import sys
import urllib.request

import pytest

from harness import BIN, Cluster, ask, wait_until

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
HIT, SENT = "assay_kvstore_hit_blocks_total", "assay_kvstore_read_bytes_total"
EXISTS = """
import assay, sys
with assay.Client(sys.argv[1], timeout=5, **eval(sys.argv[2])) as client:
    print(client.exists(bytes.fromhex(sys.argv[3])))
"""


def assay(*arguments, **options):
    return subprocess.run([os.path.join(BIN, "assay"), *arguments], capture_output=True, text=True, timeout=60, **options)


class Authority:
    """The cluster's key file, and tokens under it."""

    def __init__(self, folder, name="keys"):
        self.folder, self.file = str(folder), os.path.join(str(folder), name)
        self.add_key()

    def add_key(self, *options):
        reply = assay("token", "key", *options, self.file)
        assert reply.returncode == 0, reply.stderr
        return reply.stdout.split()[1]

    def issue(self, name, *options):
        path = os.path.join(self.folder, name)
        reply = assay("token", "issue", f"--cluster-key={self.file}", f"--out={path}", *options)
        assert reply.returncode == 0, reply.stderr
        return path

    def show(self, path):
        reply = assay("token", "show", "--json", f"--cluster-key={self.file}", path)
        return reply.returncode, json.loads(reply.stdout)


def test_keys_and_tokens_are_made_shown_and_outlive_a_new_key(tmp_path):
    keys = Authority(tmp_path)
    assert stat.S_IMODE(os.stat(keys.file).st_mode) == 0o600
    old = keys.issue("old", "--tenant=7", "--ttl=2d")
    assert stat.S_IMODE(os.stat(old).st_mode) == 0o600
    code, said = keys.show(old)
    assert code == 0 and said["tenant"] == 7 and said["rights"] == "read,write" and said["verdict"] == "is good"
    assert 2 * 86400 - 60 < said["left_s"] <= 2 * 86400
    second = keys.add_key()
    assert keys.show(old)[0] == 0, "a key before it takes nothing from an old one"
    new = keys.issue("new", "--rights=peer,read")
    assert keys.show(new)[1]["key"] == second
    keys.add_key("--last")
    assert keys.show(keys.issue("third", "--tenant=7"))[1]["key"] == second, "the last one signs nothing yet"
    with open(keys.file) as file:
        lines = file.read().split("\n")
    with open(keys.file, "w") as file:  # the old key is retired
        file.write("\n".join(lines[:2]))
    code, said = keys.show(old)
    assert code == 1 and "signed by a key that is not in" in said["verdict"]
    assert keys.show(new)[0] == 0


def test_a_token_that_makes_no_sense_is_not_issued(tmp_path):
    keys = Authority(tmp_path)
    for options, word in ((["--rights=read"], "--tenant"), (["--tenant=1", "--rights=peer"], "--tenant"),
                          (["--tenant=1", "--rights=all"], "--rights"), (["--tenant=-1"], "--tenant"),
                          (["--tenant=1", "--ttl=0"], "--ttl")):
        reply = assay("token", "issue", f"--cluster-key={keys.file}", *options)
        assert reply.returncode == 2 and word in reply.stderr and reply.stdout == ""
    reply = assay("token", "issue", "--tenant=1", f"--cluster-key={tmp_path}/none")
    assert reply.returncode == 1 and "No such file" in reply.stderr
    (tmp_path / "text").write_text("hello\n")
    reply = assay("token", "show", str(tmp_path / "text"))
    assert reply.returncode == 1 and "holds no token" in reply.stderr


# ---- a cluster of tenants

class Tenants:
    """A scheduler and a store with keys, one worker of tenant 7 and one of tenant 8, and tokens of both."""

    def __init__(self, folder):
        self.folder = folder
        self.keys = Authority(folder)
        self.tokens = {tenant: self.keys.issue(f"token-{tenant}", f"--tenant={tenant}") for tenant in (7, 8)}
        self.cluster = Cluster(folder, workers=0, scheduler_options=[f"--cluster-key={self.keys.file}"],
                               store_options=[f"--cluster-key={self.keys.file}"])

    def worker(self, *options):
        self.cluster.worker_options = list(options)
        self.cluster.workers.append(self.cluster.launch_worker().wait_ready())
        return "http://" + self.cluster.workers[-1].address["http"]

    def scheduler(self):
        return self.cluster.scheduler.address["rpc"]

    def command(self, name, *arguments, token=None):
        options = [f"--token={token}"] if token else []
        return assay(name, f"--scheduler={self.scheduler()}", *options, *arguments)

    def put(self, path, token=None):
        return self.command("put", "--json", str(path), token=token)

    def figure(self, name):
        text = urllib.request.urlopen("http://" + self.cluster.stores[0].address["http"] + "/metrics", timeout=30)
        lines = [line.rsplit(" ", 1) for line in text.read().decode().splitlines() if line.startswith(name)]
        return {label: float(value) for label, value in lines}

    def denied(self, reason):
        return self.figure("assay_kvstore_denied_total")[f'assay_kvstore_denied_total{{reason="{reason}"}}']


@pytest.fixture(scope="module")
def tenants(tmp_path_factory):
    made = Tenants(tmp_path_factory.mktemp("tenants"))
    with made.cluster:
        yield made


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 << 20))
    return path


def test_two_tenants_with_the_same_prompt_share_nothing(tenants, prompt):
    ours, theirs = (tenants.worker(f"--token={tenants.tokens[tenant]}") for tenant in (7, 8))
    again = tenants.worker(f"--token={tenants.tokens[7]}")
    wait_until(lambda: len([n for n in tenants.cluster.stat()["nodes"] if n["state"] == "alive"]) >= 4, 30, "all join")
    first = ask(ours, prompt)
    wait_until(lambda: tenants.cluster.stat()["directory_blocks"] >= 6, 30, "the prompt's blocks are published")
    before = tenants.cluster.stat()["route_blocks_hit"]
    other = ask(theirs, prompt)
    assert other.bits == first.bits and other.cached == 0
    assert tenants.cluster.stat()["route_blocks_hit"] == before
    wait_until(lambda: tenants.cluster.stat()["directory_blocks"] >= 12, 30, "the other tenant has its own")
    shared = ask(again, prompt)  # another worker of the first tenant
    assert shared.bits == first.bits and shared.cached > 0
    assert tenants.cluster.stat()["route_blocks_hit"] > before
    blocks = json.loads(tenants.command("ls", "--json").stdout)
    assert {block["tenant"] for block in blocks} == {7, 8}
    assert {b["key"] for b in blocks if b["tenant"] == 7} & {b["key"] for b in blocks if b["tenant"] == 8}


def test_a_store_without_the_key_is_not_taken(tenants):
    stray = tenants.cluster.start_store(["--name=stray"])
    try:
        wait_until(lambda: "not joined: the scheduler has a --cluster-key and this store has none" in stray.log_text(), 20,
                   "the store says so")
        assert "store stray at 127.0.0.1:" in tenants.cluster.scheduler.log_text()
        assert stray.address["node_id"] not in {node["node_id"] for node in tenants.cluster.stat()["nodes"]}
    finally:
        tenants.cluster.stores.remove(stray)
        assert stray.end() == 0


def test_a_file_of_one_tenant_is_no_others(tenants, file, tmp_path):
    chain = tmp_path / "chain"
    put = tenants.put(file, tenants.tokens[7])
    assert put.returncode == 0, put.stderr
    chain.write_text(put.stdout)
    back = tenants.command("get", str(chain), f"--out={tmp_path}/back", token=tenants.tokens[7])
    assert back.returncode == 0 and (tmp_path / "back").read_bytes() == file.read_bytes(), back.stderr
    before = tenants.figure(HIT)[HIT], tenants.figure(SENT)[SENT]
    other = tenants.command("get", str(chain), f"--out={tmp_path}/other", token=tenants.tokens[8])
    assert other.returncode == 1 and not (tmp_path / "other").exists() and "not stored" in other.stderr
    assert (tenants.figure(HIT)[HIT], tenants.figure(SENT)[SENT]) == before
    twice = json.loads(tenants.put(file, tenants.tokens[8]).stdout)
    assert twice["keys"] == json.loads(put.stdout)["keys"] and twice["existed"] == 0
    key = twice["keys"][0]
    assert tenants.command("drop", "--tenant=8", key).stdout.startswith("1 blocks")
    assert tenants.command("drop", key).stdout.startswith("0 blocks")
    back = tenants.command("get", str(chain), f"--out={tmp_path}/again", token=tenants.tokens[7])
    assert back.returncode == 0, "the first tenant's block is still there"


def test_a_bad_token_gets_nothing(tenants, file, tmp_path):
    def forged(byte):
        with open(tenants.tokens[7]) as token:
            text = token.read()
        at = byte * 4 // 3
        path = tmp_path / f"forged-{byte}"
        path.write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1:])
        return str(path)

    stranger = Authority(tmp_path).issue("stranger", "--tenant=7")
    expired = tenants.keys.issue("expired", "--tenant=7", "--ttl=1s")
    wait_until(lambda: tenants.keys.show(expired)[0] == 1, 5, "it expires")
    for token, reason in ((None, "missing or malformed"), (forged(9), "forged"), (forged(60), "forged"),
                          (stranger, "unknown key"), (expired, "expired")):
        before = tenants.denied(reason)
        reply = tenants.put(file, token)
        assert reply.returncode == 1 and reply.stdout == "", (token, reply)
        assert "token" in reply.stderr, reply.stderr
        assert tenants.denied(reason) > before, reason
    log = tenants.cluster.stores[0].log_text()
    assert "denied: a client of tenant" in log
    reader = tenants.keys.issue("reader", "--tenant=7", "--rights=read")
    before = tenants.denied("right")
    reply = tenants.put(file, reader)
    assert reply.returncode == 1 and "token" in reply.stderr and tenants.denied("right") > before
    (tmp_path / "words").write_text("no token")
    for path, words in ((tmp_path / "words", "holds no token"), (tmp_path / "none", "No such file")):
        reply = tenants.put(file, str(path))
        assert reply.returncode == 1 and words in reply.stderr, reply.stderr


def test_a_worker_with_a_strangers_token_serves_from_what_it_computes(tenants, prompt, tmp_path):
    ours = tenants.worker(f"--token={tenants.tokens[7]}")
    first = ask(ours, prompt)
    stranger = Authority(tmp_path).issue("stranger", "--tenant=7")
    url = tenants.worker(f"--token={stranger}")
    reply = ask(url, prompt)
    assert reply.bits == first.bits and reply.cached == 0
    worker = tenants.cluster.workers[-1]
    wait_until(lambda: "refuses us: ours is not signed by a key of that store" in worker.log_text(), 10, "it is told")


def test_a_store_that_ends_hands_each_tenant_its_blocks(tenants, file, tmp_path):
    chain = tmp_path / "chain"
    leaving = tenants.cluster.start_store(tenants.cluster.store_options + ["--drain-timeout=20s"])
    wait_until(lambda: len([n for n in tenants.cluster.stat()["nodes"] if n["role"] == "store"]) == 2, 30, "it joins")

    def is_on_it():  # placement is by random names
        file.write_bytes(os.urandom(3 << 20))
        chain.write_text(tenants.put(file, tenants.tokens[7]).stdout)
        keys = json.loads(chain.read_text())["keys"]
        blocks = json.loads(tenants.command("ls", "--json", "--limit=10000").stdout)
        return keys[0] in [b["key"] for b in blocks if b["store"] == leaving.address["data"] and b["tenant"] == 7]

    wait_until(is_on_it, 30, "a file is placed on the store")
    assert leaving.end() == 0
    log = leaving.log_text()
    back = tenants.command("get", str(chain), f"--out={tmp_path}/back", token=tenants.tokens[7])
    assert back.returncode == 0 and (tmp_path / "back").read_bytes() == file.read_bytes(), back.stderr + log
    other = tenants.command("get", str(chain), f"--out={tmp_path}/other", token=tenants.tokens[8])
    assert other.returncode == 1 and "not stored" in other.stderr


def exists(scheduler, key, environment=None, **options):
    """Through the Python package, over libassay."""
    return subprocess.run([sys.executable, "-c", EXISTS, scheduler, repr(options), key], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"),
                                           "ASSAY_LIBRARY": os.path.join(BIN, "..", "lib", "libassay.so.1"),
                                           **(environment or {})})


@pytest.mark.skipif("ASSAY_TEST_SANITIZED" in os.environ, reason="the interpreter does not load a sanitized library")
def test_the_library_takes_a_token(tenants, file):
    key = json.loads(tenants.put(file, tenants.tokens[7]).stdout)["keys"][0]
    assert exists(tenants.scheduler(), key, token_file=tenants.tokens[7]).stdout == "1\n"
    assert exists(tenants.scheduler(), key, token_file=tenants.tokens[8]).stdout == "0\n"
    for options in ({}, {"token_file": Authority(tenants.folder, "foreign").issue("foreign-token", "--tenant=7")}):
        reply = exists(tenants.scheduler(), key, **options)
        assert reply.returncode == 1 and "assay._errors.Denied" in reply.stderr and "token" in reply.stderr, reply.stderr
    reply = exists(tenants.scheduler(), key, token_file="/none")
    assert reply.returncode == 1 and "No such file" in reply.stderr


def test_keys_and_tokens_are_replaced_without_a_restart(tmp_path, prompt):
    tenants = Tenants(tmp_path)
    with tenants.cluster:
        token = tenants.tokens[7]
        url = tenants.worker(f"--token={token}")
        wait_until(lambda: len([n for n in tenants.cluster.stat()["nodes"] if n["state"] == "alive"]) == 2, 30, "both join")
        first = ask(url, prompt)
        wait_until(lambda: tenants.cluster.stat()["directory_blocks"] >= 6, 30, "the prompt's blocks are published")
        tenants.keys.add_key()
        store, scheduler = tenants.cluster.stores[0], tenants.cluster.scheduler
        for process in (store, scheduler):
            wait_until(lambda: "read the cluster's keys again" in process.log_text(), 10, "the keys are read")
        tenants.keys.issue("token-7", "--tenant=7")  # the worker's file
        worker = tenants.cluster.workers[0]
        wait_until(lambda: "the token's file is read again: what it holds is used" in worker.log_text(), 10, "it is read")
        with open(tenants.keys.file) as keys:
            lines = keys.read().split("\n")
        with open(tenants.keys.file, "w") as keys:  # the first key is retired
            keys.write("\n".join(lines[:2]))
        for process in (store, scheduler):
            wait_until(lambda: process.log_text().count("read the cluster's keys again") == 2, 10, "the keys are read")
        again = ask(url, prompt + " And then?")
        assert again.cached > 0, "its new token does"
        assert ask(url, prompt).bits == first.bits
        assert tenants.denied("unknown key") == 0 and tenants.denied("expired") == 0
        old = tenants.command("put", str(tmp_path / "keys"), token=tenants.tokens[8])  # of the key that went
        assert old.returncode == 1 and tenants.denied("unknown key") > 0
