# SPDX-License-Identifier: Apache-2.0
"""One real store and many clients, or one that does what none of ours would; and what the store takes of the machine."""
import json
import os
import subprocess
import urllib.request

from crash import BY_MESSAGES, LOAD, check
from harness import BIN, END_SECONDS, Process

RAM_MIB = 32
SANITIZED = bool(os.environ.get("ASSAY_TEST_SANITIZED"))  # keeps what was freed, and red zones


class Crowd:
    """So many clients that have read a block once, and stay."""

    def __init__(self, store, count):
        self.child = subprocess.Popen([os.path.join(BIN, "crowd"), store.address["data"], store.address["node_id"], str(count)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env=BY_MESSAGES)
        self.count = count

    def said(self):
        return json.loads(self.child.stdout.readline())

    def again(self):
        self.child.stdin.write("again\n")
        self.child.stdin.flush()
        return self.said()

    def all_read(self, said):
        assert said == {"right": self.count, "wrong": 0, "failed": 0}
        return True

    def end(self):
        self.child.stdin.close()
        self.child.stdout.close()
        assert self.child.wait(END_SECONDS) == 0


def start(tmp_path, limits, *options, blocks=1):
    """A store with these soft and hard limits of open files, and some blocks."""
    command = [f"--nofile={limits[0]}:{limits[1]}", os.path.join(BIN, "assay-kvstore"), f"--ram={RAM_MIB}MiB", *options]
    store = Process("/usr/bin/prlimit", command, tmp_path / "store.log").wait_ready()
    subprocess.run([LOAD, "put", store.address["data"], store.address["node_id"], "0", str(blocks)], check=True, stdout=subprocess.DEVNULL)
    return store


def rss_kib(store):
    with open(f"/proc/{store.pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def metric(store, name):
    text = urllib.request.urlopen(f"http://{store.address['http']}/metrics", timeout=30).read().decode()
    of = (f"assay_kvstore_{name} ", f"assay_kvstore_{name}{{")  # with labels: the sum
    found = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(of)]
    assert found, name
    return sum(found)


def others_are_served(store, first, env=None):
    numbers = range(first, first + 20)
    subprocess.run([LOAD, "put", store.address["data"], store.address["node_id"], str(first), "20"], check=True,
                   stdout=subprocess.DEVNULL, timeout=30, env=env)
    assert len(check(store, numbers, env)["right"]) == 20
