# SPDX-License-Identifier: Apache-2.0
"""One store under load that is killed: what it has acknowledged, and what it says of it afterwards."""
import json
import os
import subprocess

from harness import BIN, Process

LOAD = os.path.join(BIN, "store_load")
FULL = bool(os.environ.get("ASSAY_TEST_FULL"))
SECONDS = 120
# Of a client: what it puts and reads goes over TCP, and not through the memory of its host.
BY_MESSAGES = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}


class Acknowledged:
    """Numbers of blocks by what the store said of them. What it said nothing of may be there or not."""

    def __init__(self):
        self.durable, self.taken, self.next = [], [], 0

    def note(self, line):
        word, number = line.split()
        assert word in ("durable", "taken", "failed"), line
        {"durable": self.durable, "taken": self.taken, "failed": []}[word].append(int(number))
        self.next = max(self.next, int(number) + 1)


def start_store(folder, disk, *options):
    number = len(list(folder.glob("store-*.log")))
    arguments = ["--ram=96MiB", f"--disk={disk}", "--disk-size=512MiB", *options]
    return Process("assay-kvstore", arguments, folder / f"store-{number}.log").wait_ready()


def load(store, acknowledged, until, then, count=100000, env=None):
    """Puts blocks; calls `then` once `until` were acknowledged, and reads on to the end."""
    arguments = [LOAD, "put", store.address["data"], store.address["node_id"], str(acknowledged.next), str(count)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            lines = 0
            for line in child.stdout:
                acknowledged.note(line)
                lines += 1
                if lines == until:
                    then()
            child.wait(SECONDS)
        finally:
            child.kill()
    acknowledged.next += 16  # those in flight had no answer


def check(store, numbers, env=None):
    """What the store has of these blocks: a list of numbers for each of right, missing and wrong."""
    arguments = [LOAD, "check", store.address["data"], store.address["node_id"]]
    done = subprocess.run(arguments, input=" ".join(map(str, numbers)), capture_output=True, text=True, timeout=SECONDS, env=env)
    assert done.returncode == 0, done.stderr
    found = {"right": [], "missing": [], "wrong": []}
    for line in done.stdout.splitlines():
        word, number = line.split()
        found[word].append(int(number))
    assert sum(map(len, found.values())) == len(numbers)
    return found


def expect_kept(store, acknowledged, last=4000, env=None):
    """Every durable block is right, no other is wrong."""
    durable = check(store, acknowledged.durable[-last:], env)
    assert not durable["wrong"] and not durable["missing"], durable
    assert not check(store, acknowledged.taken[-last:], env)["wrong"]


# ---- blocks of a store that is in a cluster


def assay(world, *arguments, expect=0):
    """What a command says: on stdout, or on stderr where it is to fail."""
    command = [os.path.join(BIN, "assay"), *arguments, f"--scheduler={world.scheduler.address['rpc']}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, done.stderr
    return done.stderr if expect else done.stdout


def keys(world):
    """Of the blocks in memory, by their numbers, which lie in them (store_load.c)."""
    listed = json.loads(assay(world, "ls", "--json", "--limit=10000"))
    return {int.from_bytes(bytes.fromhex(block["key"])[16:20], "little"): block["key"] for block in listed}


def put(store, first, count):
    """Every second one durable; the others may still be on their way to disk when it returns."""
    command = [LOAD, "put", store.address["data"], store.address["node_id"], str(first), str(count)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
