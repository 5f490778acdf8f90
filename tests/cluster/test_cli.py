# SPDX-License-Identifier: Apache-2.0
"""The command line: up, run, stat, ls, verify, and how a cluster that it started ends."""
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest

from harness import BIN, END_SECONDS, MODEL, START_SECONDS, wait_until

ASSAY = os.path.join(BIN, "assay")


class Up:
    """`assay up`, in a run directory of its own."""

    def __init__(self, run_dir, *options, environment=None):
        self.launch(run_dir, *options, environment=environment)
        self.wait_ready()

    def launch(self, run_dir, *options, environment=None):
        self.run_dir, self.output = str(run_dir), b""
        self.child = subprocess.Popen([ASSAY, "up", f"--model={MODEL}", "--port=0", "--ram=64MiB", "--context=2048",
                                       f"--run-dir={run_dir}", *options], env={**os.environ, **(environment or {})},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def wait_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while b"Ctrl-C" not in self.output:
            assert time.monotonic() < deadline and self.child.poll() is None, self.output
            if select.select([self.child.stdout], [], [], 1)[0]:
                self.output += os.read(self.child.stdout.fileno(), 4096)
        with open(os.path.join(self.run_dir, "cluster.json")) as file:
            self.nodes = {node["name"]: node for node in json.load(file)["nodes"]}

    def read_until(self, text):
        deadline = time.monotonic() + END_SECONDS
        while text not in self.output.decode():
            assert time.monotonic() < deadline, self.output
            if select.select([self.child.stdout], [], [], 1)[0]:
                self.output += os.read(self.child.stdout.fileno(), 4096)

    def is_alive(self, name):
        try:
            with open(f"/proc/{self.nodes[name]['pid']}/stat") as file:
                return file.read().split(") ")[1][0] != "Z"
        except FileNotFoundError:
            return False

    def end(self, number=signal.SIGINT):
        if self.child.poll() is None:
            self.child.send_signal(number)
        code = self.child.wait(END_SECONDS)
        self.child.stdout.close()
        return code

    def assay(self, *arguments):
        return subprocess.run([ASSAY, arguments[0], f"--run-dir={self.run_dir}", *arguments[1:]], capture_output=True,
                              text=True, timeout=180)


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    running = Up(tmp_path_factory.mktemp("up"), "--stores=2")
    yield running
    assert running.end() == 0
    assert not any(running.is_alive(name) for name in running.nodes)
    assert not os.path.exists(os.path.join(running.run_dir, "cluster.json"))


def test_run_prints_the_answer_and_then_the_figures(up):
    done = up.assay("run", "--max-tokens=8", "The capital of France is")
    assert done.returncode == 0 and "Paris" in done.stdout
    assert "answer 8 tokens" in done.stderr and "first token" in done.stderr


def test_verify_says_identical(up, prompt):
    done = up.assay("verify", f"--prompt={prompt}", "--max-tokens=6", "--horizon=4", "--temperature=0.8", "--seed=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("identical: yes")
    assert all(name in done.stdout for name in ("kivi4", "kivi2", "streaming"))


def test_stat_and_ls_show_the_stored_blocks(up, prompt):
    assert up.assay("run", f"{prompt}", "--max-tokens=2").returncode == 0
    wait_until(lambda: json.loads(up.assay("stat", "--json").stdout)["directory_blocks"] > 0, 20, "blocks are stored")
    stat = up.assay("stat")
    assert stat.returncode == 0 and "worker-1" in stat.stdout and "store-2" in stat.stdout
    blocks = json.loads(up.assay("ls", "--json").stdout)
    assert blocks and all(len(block["key"]) == 64 and block["tokens"] == 64 for block in blocks)
    # Both readers and stores are on this machine: blocks are read by shared memory, which no store can count.
    assert up.assay("run", f"{prompt}", "--max-tokens=2").returncode == 0
    stores = [node["store"] for node in json.loads(up.assay("stat", "--json").stdout)["nodes"] if "store" in node]
    unseen = any(store["hits"] > 0 and store["bytes_read"] == 0 for store in stores)
    assert unseen == ("READ -:" in up.assay("stat").stdout)
    assert len(json.loads(up.assay("ls", "--json", "--limit=2").stdout)) == 2
    assert up.assay("ls").stdout.startswith("KEY")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(20 * (1 << 20) // 8 + 12345))  # two blocks and a part of one
    return path


def test_a_file_is_put_and_brought_back(up, file, tmp_path):
    done = up.assay("put", "--json", str(file))
    assert done.returncode == 0, done.stderr
    chain, out = json.loads(done.stdout), tmp_path / "out"
    assert (chain["stored"], chain["existed"], chain["bytes"]) == (3, 0, file.stat().st_size)
    (tmp_path / "chain").write_text(done.stdout)
    done = up.assay("get", str(tmp_path / "chain"), f"--out={out}", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["blocks"] == 3
    assert out.read_bytes() == file.read_bytes()
    piped = subprocess.run([ASSAY, "get", f"--run-dir={up.run_dir}", "-"], input=json.dumps(chain).encode(),
                           capture_output=True, timeout=60)
    assert piped.stdout == file.read_bytes() and b"3 blocks" in piped.stderr
    # The same bytes are the same blocks, and any of them can be had by its key.
    again = up.assay("put", str(file))
    assert again.stdout.split() == chain["keys"] and "0 stored, 3 were there" in again.stderr
    assert up.assay("get", chain["keys"][1], chain["keys"][0], f"--out={out}").returncode == 0
    assert out.read_bytes() == file.read_bytes()[1 << 20:2 << 20] + file.read_bytes()[:1 << 20]
    other = up.assay("put", "--namespace=another", "--shape=4,2,2,128,64,2", str(file))
    assert len(other.stdout.split()) == 11 and not set(other.stdout.split()) & set(chain["keys"])


def test_what_is_not_stored_or_not_sound_is_told(up, file, tmp_path):
    chain = json.loads(up.assay("put", "--json", str(file)).stdout)
    chain["keys"][2] = "ab" * 32
    broken, empty, wrong = tmp_path / "chain", tmp_path / "empty", tmp_path / "wrong"
    broken.write_text(json.dumps(chain))
    empty.write_bytes(b"")
    wrong.write_text('{"keys": []}')
    done = up.assay("get", str(broken), f"--out={tmp_path / 'out'}")
    assert done.returncode == 1 and "block 3 of 3 is not stored" in done.stderr
    assert (tmp_path / "out").read_bytes() == file.read_bytes()[:2 << 20]
    assert up.assay("get", "ab" * 32, f"--out={tmp_path / 'out'}").returncode == 1
    assert (tmp_path / "out").stat().st_size == 2 << 20  # nothing was had, so it is as it was
    for code, text, arguments in [
        (2, "name one file", ["put"]), (1, "No such file", ["put", "/nowhere"]), (1, "nothing to put", ["put", str(empty)]),
        (2, "give layers", ["put", "--shape=1,2", str(file)]),
        (1, "--disk", ["put", "--durable", "--namespace=durable", str(file)]),
        (2, "give keys", ["get"]), (2, "neither a key", ["get", str(file)]), (2, "no key of 64", ["get", "ab" * 32, "cd"]),
        (2, "is no chain", ["get", str(wrong)]), (2, "need --out", ["get", "--json", str(broken)]),
        (2, "powers of two", ["bench", "--size=5"]), (2, "--depth", ["bench", "--depth=0"]),
        (2, "--interval", ["top", "--interval=0s"]),
    ]:
        done = up.assay(*arguments)
        assert done.returncode == code and text in done.stderr, (arguments, done.returncode, done.stderr)
    for name in ("put", "get", "bench", "top"):
        done = subprocess.run([ASSAY, name, "--help"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and f"assay {name}" in done.stdout and "--json" in done.stdout


def on_terminal(up, *arguments, until=None):
    """What a terminal shows of it; Ctrl-C once `until` is content."""
    mine, its = os.openpty()
    child = subprocess.Popen([ASSAY, arguments[0], f"--run-dir={up.run_dir}", *arguments[1:]], stdout=its, stderr=its,
                             stdin=its)
    os.close(its)
    shown, deadline = b"", time.monotonic() + END_SECONDS
    while time.monotonic() < deadline and not (until and until(shown)):
        if select.select([mine], [], [], 1)[0]:
            try:
                shown += os.read(mine, 65536)
            except OSError:  # it has ended
                break
    if until:
        child.send_signal(signal.SIGINT)
    child.wait(END_SECONDS)
    os.close(mine)
    return shown.decode()


def test_a_terminal_sees_progress_and_a_live_table(up, file):
    shown = on_terminal(up, "put", "--namespace=terminal", str(file))
    assert "100 %" in shown and "#" in shown and "3 stored" in shown
    assert "%" not in up.assay("put", "--namespace=terminal", str(file)).stderr
    assert "give --out" in on_terminal(up, "get", "ab" * 32)
    shown = on_terminal(up, "top", "--interval=100ms", until=lambda text: text.count(b"STORE") >= 3)
    assert shown.count("\033[H") >= 3 and "store-1" in shown and "store-2" in shown


def test_top_shows_rates(up):
    once = up.assay("top", "--interval=100ms")
    assert once.returncode == 0 and once.stdout.count("STORE") == 1 and "\033" not in once.stdout
    busy = subprocess.Popen([ASSAY, "bench", f"--run-dir={up.run_dir}", "--count=8", "--size=64KiB", "--repeat=100000"],
                            stdout=subprocess.DEVNULL)
    try:
        def hits():
            done = up.assay("top", "--json", "--interval=200ms", "--looks=2")
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            assert done.returncode == 0 and len(lines) == 2 and all(len(line) == 2 for line in lines)
            return sum(store["hits_per_second"] for store in lines[1])

        wait_until(lambda: hits() > 0, 30, "the table shows the hits of the bench")
    finally:
        busy.kill()
        busy.wait()


def test_bench_measures_and_leaves_nothing(up):
    before = json.loads(up.assay("ls", "--json", "--limit=1000").stdout)
    done = up.assay("bench", "--json", "--count=16", "--depth=4", "--repeat=2", "--size=4KiB,1MiB")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["op"], row["block_bytes"], row["done"]) for row in rows] == [
        ("put", 4096, 16), ("get", 4096, 32), ("put", 1 << 20, 16), ("get", 1 << 20, 32)]
    assert all(row["bytes_per_second"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
    keys = {block["key"] for block in before}
    assert all(block["key"] in keys for block in json.loads(up.assay("ls", "--json", "--limit=1000").stdout))
    assert up.assay("bench", "--count=4", "--size=64KiB").stdout.startswith("OP")


def test_scrub_checks_every_block_of_every_store(up, prompt):
    assert up.assay("run", prompt, "--max-tokens=2").returncode == 0
    wait_until(lambda: json.loads(up.assay("ls", "--json").stdout), 20, "blocks are stored")
    done = up.assay("scrub", "--json", "--rate=1GiB")
    passes = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert len(passes) == 2 and not any(store["running"] for store in passes)
    assert sum(store["ram_blocks"] for store in passes) >= len(json.loads(up.assay("ls", "--json").stdout))
    assert all(store["bad_ram_blocks"] == store["bad_disk_blocks"] == 0 for store in passes)
    again = json.loads(up.assay("scrub", "--json", "--show").stdout)
    assert [store["pass"] for store in again] == [store["pass"] for store in passes]
    stores = [node["store"] for node in json.loads(up.assay("stat", "--json").stdout)["nodes"] if "store" in node]
    assert all(store["scrub_passes"] >= 1 and store["scrub_bad_ram"] == 0 for store in stores)
    assert up.assay("scrub").stdout.startswith("RAM BLOCKS")


def test_pins_quotas_and_drops_reach_every_store(up, prompt):
    assert up.assay("run", prompt, "--max-tokens=2").returncode == 0
    wait_until(lambda: json.loads(up.assay("ls", "--json").stdout), 20, "blocks are stored")

    def blocks():
        return json.loads(up.assay("ls", "--json", "--limit=1000").stdout)

    block = blocks()[0]
    done = up.assay("pin", "--soft", block["key"])
    assert done.returncode == 0 and done.stdout == "1 blocks are pinned\n", done.stderr
    assert [b["pin"] for b in blocks() if b["key"] == block["key"]] == ["soft"]
    done = up.assay("pin", "0" * 64)
    assert done.returncode == 1 and "in no store's memory" in done.stderr
    assert up.assay("unpin", "--all").stdout == "1 blocks are no longer pinned\n"
    assert all(b["pin"] == "none" for b in blocks())
    owner = block["namespace"]
    done = up.assay("quota", f"--namespace={owner}", "--bytes=1TiB")
    assert done.returncode == 0 and owner in done.stdout and "*" in done.stdout
    assert "*" not in up.assay("quota", f"--namespace={owner}", "--reset").stdout
    done = up.assay("drop", f"--namespace={owner}")
    assert done.returncode == 0 and done.stdout.endswith(" blocks are dropped\n") and not done.stdout.startswith("0 ")
    assert not any(b["namespace"] == owner for b in blocks())


def test_every_metric_that_the_documents_name_is_there(up):
    root = os.path.join(os.path.dirname(__file__), "..", "..", "docs")
    text = "".join(open(os.path.join(root, name), encoding="utf-8").read() for name in ("faults.md", "operating.md"))
    named = set(re.findall(r"`(assay_(?:kvstore|scheduler|gpuworker|client)_[a-z0-9_]*[a-z0-9])(?:\{[^`]*)?`", text))
    pages = "".join(urllib.request.urlopen(f"http://{node['http_address']}/metrics", timeout=30).read().decode() for node in up.nodes.values())
    there = set(re.findall(r"^# HELP (\S+)", pages, re.M))
    assert len(named) > 40 and not named - there


def test_what_an_operator_decides_is_told_as_json(up, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3 << 20))
    key = json.loads(up.assay("put", "--json", str(file)).stdout)["keys"][0]

    def told(*arguments, code=0):
        done = up.assay(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    block = next(block for block in told("ls", "--limit=1000") if block["key"] == key)
    owner = block["namespace"]
    assert told("pin", key) == {"pinned_blocks": 1, "refused_blocks": 0, "missing_keys": 0}
    assert told("pin", "0" * 64, code=1) == {"pinned_blocks": 0, "refused_blocks": 0, "missing_keys": 1}
    assert told("unpin", key) == {"unpinned_blocks": 1}
    account = next(one for one in told("quota", f"--namespace={owner}", "--bytes=1TiB") if one["store"] == block["store"])
    assert account["quota_bytes"] == 1 << 40 and not account["is_default"] and account["namespace"] == owner
    assert account["tenant"] == 0 and account["blocks"] > 0 and account["bytes"] >= block["bytes"]
    assert all(one["is_default"] for one in told("quota", f"--namespace={owner}", "--reset"))
    assert told("drop", key) == {"dropped_blocks": 1, "not_on_disk": False}


def test_a_file_that_is_put_with_a_time_to_live_is_forgotten(up, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3 << 20))
    chain = tmp_path / "chain"
    chain.write_text(up.assay("put", "--json", "--ttl=3s", "--namespace=ttl", str(file)).stdout)

    def held():
        return [b for b in json.loads(up.assay("ls", "--json", "--limit=1000").stdout) if b["expires_in_us"] > 0]

    assert len(held()) == 3 and all(b["expires_in_us"] <= 3000000 for b in held())
    assert up.assay("get", str(chain), f"--out={tmp_path / 'back'}").returncode == 0
    wait_until(lambda: not held(), 20, "their time is over")
    assert up.assay("get", str(chain), f"--out={tmp_path / 'gone'}").returncode == 1


@pytest.mark.parametrize("arguments", [["pin"], ["pin", "12ab"], ["unpin"], ["unpin", "--all", "0" * 64], ["drop"],
                                       ["drop", "--all", "--namespace=" + "0" * 64], ["drop", "--namespace=xyz"],
                                       ["drop", "--all", "--tenant=7"], ["unpin", "--all", "--tenant=7"], ["quota", "--bytes=1MiB"],
                                       ["quota", "--reset"]])
def test_what_is_meant_must_be_said_whole(arguments):
    done = assay(*arguments)
    assert done.returncode == 2 and done.stderr.startswith(b"assay: ") and not done.stdout


def assay(*arguments):
    """A command that is to end before it looks for a cluster."""
    return subprocess.run([ASSAY, *arguments], capture_output=True, timeout=30)


@pytest.mark.parametrize("command, most", [(["verify", "--prompt=x"], 64), (["demo", "--model=/nonexistent.gguf"], 16)])
def test_an_empty_or_overlong_list_of_compressors_is_refused(command, most):
    done = assay(*command, "--compressor=")
    assert done.returncode == 2 and b"name at least one compressor" in done.stderr and not done.stdout
    done = assay(*command, "--compressor=" + ",".join(["kivi4"] * (most + 1)))
    assert done.returncode == 2 and f"{most + 1} compressors are named".encode() in done.stderr and not done.stdout


@pytest.mark.parametrize("name", ["--cache-salt", "--system", "--compressor"])
def test_an_option_that_is_not_utf8_is_refused_and_not_dropped(name):
    done = assay("run", "--chat", "--worker=127.0.0.1:9", name.encode() + b"=\xff\xfe", "hello")
    assert done.returncode == 2 and f"{name} is not UTF-8".encode() in done.stderr


def test_a_prompt_that_is_not_utf8_is_refused():
    for command in ([b"run", b"\xff"], [b"verify", b"--prompt=\xff"]):
        done = assay(*command)
        assert done.returncode == 2 and b"the prompt is not UTF-8" in done.stderr
    for command in ([b"verify", b"--prompt=x"], [b"demo", b"--model=/nonexistent.gguf"]):
        done = assay(*command, b"--compressor=kivi4,\xff")
        assert done.returncode == 2 and b"--compressor is not UTF-8" in done.stderr and not done.stdout


@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_file_that_is_no_text_is_refused(command, tmp_path):
    cut = tmp_path / "cut.txt"
    cut.write_bytes(b"Once upon a time\0there was")
    done = assay(command, f"--file={cut}")
    assert done.returncode == 2 and b"NUL byte at offset 16" in done.stderr
    done = assay(command, f"--file={tmp_path}")
    assert done.returncode == 2 and b"is a directory" in done.stderr


def run_demo(tmp_path, *options):
    text = tmp_path / "text.txt"
    text.write_text("It was a bright cold day in April, and the clocks were striking thirteen. " * 12)
    done = subprocess.run([ASSAY, "demo", f"--model={MODEL}", f"--text={text}", "--max-tokens=4", *options],
                          capture_output=True, text=True, timeout=START_SECONDS)
    folder = re.search(r"logs are in (/tmp/assay-demo-\w+)", done.stdout).group(1)
    return done, folder


def test_a_good_demo_leaves_no_folder(tmp_path):
    done, folder = run_demo(tmp_path, "--compressor=kivi4")
    assert done.returncode == 0 and "identical: yes" in done.stdout, done
    assert not os.path.exists(folder)


def test_a_failed_demo_keeps_its_logs_and_says_where(tmp_path):
    done, folder = run_demo(tmp_path, "--compressor=nonsense")
    assert done.returncode == 1 and f"its logs are kept in {folder}" in done.stderr
    assert "identical: yes" not in done.stdout
    assert os.path.getsize(os.path.join(folder, "worker-1.log")) > 0
    shutil.rmtree(folder)


def test_a_system_message_without_chat_is_refused():
    done = assay("run", "--system=Be brief.", "hello")
    assert done.returncode == 2 and b"--system needs --chat" in done.stderr


def test_the_url_that_up_prints_names_the_worker(up):
    address = up.nodes["worker-1"]["http_address"]
    assert f"http://{address}/v1\n" in up.output.decode()
    for url in (f"http://{address}/v1", f"http://{address}/v1/", f"http://{address}/", f"HTTP://{address}", address):
        done = up.assay("run", f"--worker={url}", "--max-tokens=2", "hello")
        assert done.returncode == 0, (url, done.stderr)


def test_a_worker_that_cannot_be_named_so_is_refused(tmp_path):
    for url, message in ((b"https://127.0.0.1:9", b"http alone"), (b"http://", b"names no host"),
                         (b"http:///v1", b"names no host"), (b"h" * 600, b"longer than")):
        for command in ([b"run", b"hello"], [b"verify", b"--prompt=hello"]):
            done = assay(*command, b"--worker=" + url)
            assert done.returncode == 2 and message in done.stderr, done


def test_a_second_cluster_in_the_same_run_dir_is_refused(up):
    done = subprocess.run([ASSAY, "up", f"--model={MODEL}", f"--run-dir={up.run_dir}"], capture_output=True, text=True,
                          timeout=30)
    assert done.returncode == 1 and "running" in done.stderr and "--run-dir" in done.stderr


def test_a_cluster_has_a_disk_copies_and_a_key_where_they_are_asked_for(tmp_path):
    key, token, disk = (str(tmp_path / name) for name in ("keys", "token", "disk"))
    subprocess.run([ASSAY, "token", "key", key], check=True, timeout=30)
    subprocess.run([ASSAY, "token", "issue", f"--cluster-key={key}", "--tenant=7", "--ttl=1h", f"--out={token}"], check=True,
                   timeout=30)
    refused = (([f"--cluster-key={key}"], "--token"), (["--disk-size=1GiB"], "--disk"), (["--replicas=2"], "--stores"),
               ([f"--disk={tmp_path / 'none' / 'disk'}"], "cannot make the directory --disk"))
    for options, message in refused:
        done = subprocess.run([ASSAY, "up", f"--model={MODEL}", f"--run-dir={tmp_path}", *options], capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    up = Up(tmp_path / "up", "--stores=2", "--replicas=2", f"--disk={disk}", "--disk-size=64MiB", f"--cluster-key={key}",
            f"--token={token}", "--sessions=1", "--queue=2", "--device-memory=1GiB", "--full-cache=drop")
    try:
        assert up.assay("run", "--max-tokens=4", "--horizon=4", "word " * 200).returncode == 0

        def on_disk():
            nodes = json.loads(up.assay("stat", "--json").stdout)["nodes"]
            return [(node["store"]["disk_blocks"], node["store"]["disk_bytes_max"]) for node in nodes if node["role"] == "store"]

        wait_until(lambda: on_disk() == [(3, 64 << 20)] * 2, 20, "both have all on disk")
        assert sorted(os.listdir(disk)) == ["store-1", "store-2"]
        stored = json.loads(up.assay("ls", "--json").stdout)[0]["key"]
        done = up.assay("pin", "--json", "--tenant=7", stored, "0" * 64)  # two copies of one do not stand in for the other
        assert done.returncode == 1 and "1 of 2 keys" in done.stderr, done.stderr
        assert json.loads(done.stdout) == {"pinned_blocks": 2, "refused_blocks": 0, "missing_keys": 1}
    finally:
        assert up.end() == 0


class Starting(Up):
    """`assay up` that is not waited for."""

    def __init__(self, run_dir, *options):
        self.launch(run_dir, *options)


def test_commands_wait_for_a_cluster_that_is_starting(tmp_path):
    running = Starting(tmp_path)  # and at once, as when both are pasted
    done = running.assay("run", "--max-tokens=2", "hello")
    assert done.returncode == 0, done.stderr
    assert "is starting: waiting for it" in done.stderr
    running.wait_ready()
    assert running.end() == 0


def test_commands_stop_waiting_for_a_start_that_fails(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    running = Starting(tmp_path, f"--model={bad}")
    done = running.assay("stat")
    assert done.returncode == 1 and "no cluster is running" in done.stderr
    assert running.end() == 1


def test_of_two_starts_in_one_run_dir_one_is_refused(tmp_path):
    both = [Starting(tmp_path), Starting(tmp_path)]
    wait_until(lambda: any(one.child.poll() is not None for one in both), END_SECONDS, "one is refused")
    refused, running = sorted(both, key=lambda one: one.child.poll() is None)
    assert refused.child.returncode == 1
    refused.read_until("already")  # "a cluster is being started in ... already"
    running.wait_ready()
    assert json.loads(running.assay("stat", "--json").stdout)["nodes"]
    assert refused.end() == 1 and running.end() == 0


def test_a_start_after_a_kill_takes_the_run_dir_again(tmp_path):
    killed = Up(tmp_path)
    killed.end(signal.SIGKILL)
    with open(tmp_path / "cluster.json") as file:  # what it left, as if its pid were in use again
        state = json.load(file)
    state["pid"] = os.getpid()
    with open(tmp_path / "cluster.json", "w") as file:
        json.dump(state, file)
    assert "no cluster is running" in killed.assay("stat").stderr
    running = Up(tmp_path)
    with open(tmp_path / "cluster.json") as file:
        state = json.load(file)
    assert state["pid"] == running.child.pid
    state["pid"] = os.getpid()  # written by another: not its own to remove
    with open(tmp_path / "cluster.json", "w") as file:
        json.dump(state, file)
    assert running.end() == 0 and os.path.exists(tmp_path / "cluster.json")


def test_variables_and_config_of_up_do_not_reach_its_children(tmp_path):
    config = tmp_path / "up.json"
    config.write_text(json.dumps({"stores": 2, "port": 0}))
    running = Up(tmp_path, environment={"ASSAY_CONFIG": str(config), "ASSAY_HORIZON": "-1", "ASSAY_RUN_DIR": "/tmp"})
    assert "store-2" in running.nodes
    assert running.end() == 0


def test_a_long_path_of_a_model_reaches_the_worker_whole(tmp_path):
    folder = tmp_path
    while len(str(folder)) < 1500:
        folder = folder / ("d" * 120)
    folder.mkdir(parents=True)
    os.symlink(MODEL, folder / "model.gguf")
    running = Up(tmp_path, f"--model={folder / 'model.gguf'}")
    assert running.end() == 0


def test_a_run_dir_whose_files_would_be_cut_is_refused(tmp_path):
    for count, message in ((950, b"cannot make the run directory"), (951, b"too long")):
        folder = "/nonexistent" + "/" + "d" * (count - 13)
        done = assay("up", f"--model={MODEL}", f"--run-dir={folder}")
        assert done.returncode == 1 and message in done.stderr


def test_a_fifo_as_model_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    done = assay("up", f"--model={tmp_path / 'fifo'}", f"--run-dir={tmp_path}", "--port=0")
    assert done.returncode == 1 and b"not a regular file" in done.stderr


def test_without_a_cluster_commands_say_how_to_start_one(tmp_path):
    for command in (["stat"], ["ls"], ["run", "hello"], ["verify", "--prompt=hello"]):
        done = subprocess.run([ASSAY, command[0], f"--run-dir={tmp_path}", *command[1:]], capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 1 and "assay up" in done.stderr, done


def test_a_child_that_cannot_start_is_named_with_its_reason(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF but not really")
    done = subprocess.run([ASSAY, "up", f"--model={bad}", f"--run-dir={tmp_path}", "--port=0"], capture_output=True,
                          text=True, timeout=START_SECONDS)
    assert done.returncode == 1 and "worker-1 ended before it was ready" in done.stderr
    assert "cannot load --model" in done.stderr


def test_a_dead_store_is_reported_and_a_dead_worker_ends_the_rest(tmp_path):
    running = Up(tmp_path)
    os.kill(running.nodes["store-1"]["pid"], signal.SIGKILL)
    running.read_until("store-1")
    running.read_until("goes on without it")
    stat = running.assay("stat")  # the scheduler is there: nobody is to start a cluster
    assert stat.returncode == 0 and "worker-1" in stat.stdout and "`assay up`" not in stat.stderr
    assert running.assay("run", "--max-tokens=2", "hello").returncode == 0
    os.kill(running.nodes["worker-1"]["pid"], signal.SIGKILL)
    running.read_until("no worker is left")
    assert running.end() == 1
    assert not any(running.is_alive(name) for name in running.nodes)


def test_children_end_with_a_starter_that_is_killed(tmp_path):
    running = Up(tmp_path)
    running.end(signal.SIGKILL)
    wait_until(lambda: not any(running.is_alive(name) for name in running.nodes), END_SECONDS, "the children end")
    assert "assay up" in running.assay("stat").stderr  # the state file is stale, and known to be
