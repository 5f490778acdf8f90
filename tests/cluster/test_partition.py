# SPDX-License-Identifier: Apache-2.0
"""Three stores, each on a host of its own behind a network that is cut, and machines that die and return, under load.

The network is in network namespaces on this machine, joined by the bridge (tests/tools). Its links have a bounded rate (the
kernel's token bucket, where it has one), delay, and lose and reorder packets. Reads are never wrong and end by their
deadline, whatever is gone; what is there again is used again. There are two copies of each block, and those of a store that
is gone are made again, all of them.
"""
import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest

from crash import FULL
from harness import BIN, END_SECONDS, Process, wait_until
from load import Load

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))
import netns  # noqa: E402

# The long form is for machines that have everything: there nothing is left out.
MISSING = netns.missing() or (None if shutil.which("tc") or not FULL else "there is no tc: install iproute2")
pytestmark = pytest.mark.skipif(MISSING is not None and not FULL, reason=f"skipped: {MISSING}")
ROUNDS = 4 if FULL else 1  # of a cut, and of a death
DEADLINE_MS = 1500
# The loop may be late by a turn, and the machine by what other processes take of it.
LATE_MS = 500
RATE_BYTES = 50_000_000  # a second, of what leaves a host
DELAY_US, LOSS_PPM, REORDER_PPM = 300, 200, 1000  # of a link, one way; a lost packet may cost TCP a fifth of a second
TCP = {"UCX_TLS": "tcp"}  # or the hosts would find each other in the memory of this machine


def shape(network):
    """All links at once; True: by the kernel's token bucket."""
    for one, other in itertools.combinations(range(network.count), 2):
        network.tell("delay", one, other, DELAY_US)
        network.tell("loss", one, other, LOSS_PPM)
        network.tell("reorder", one, other, REORDER_PPM)
    bucket = ["tc", "qdisc", "add", "dev", "assay0", "root", "tbf", "rate", f"{RATE_BYTES}bps", "burst", "256kb", "latency", "50ms"]
    if shutil.which("tc") and all(subprocess.run([*host.run_in, *bucket], check=False).returncode == 0 for host in network.hosts):
        return True
    for one, other in itertools.combinations(range(network.count), 2):
        network.tell("rate", one, other, RATE_BYTES)
    return False


class World:
    """Host 0 has the scheduler and the load, hosts 1 to 3 a store each."""

    def __init__(self, network, folder):
        self.network, self.folder, self.all, self.load, self.stores = network, folder, [], None, {}
        self.hub = network.hosts[0]
        self.scheduler = self.launch(0, "assay-scheduler", "--replicas=2", "--heartbeat-ms=200", "--suspect-ms=600", "--dead-ms=1500",
                                     f"--listen={self.hub.address}:0", "--http=127.0.0.1:0").wait_ready().address["rpc"]

    def launch(self, number, program, *arguments):
        log = os.path.join(self.folder, f"{program}-{len(self.all)}.log")
        self.all.append(Process(program, list(arguments), log, TCP, self.network.hosts[number].run_in))
        return self.all[-1]

    def alone(self, number, what):
        """Cuts all links of a host, or heals them."""
        for other in range(self.network.count):
            if other != number:
                self.network.tell(what, number, other)

    def copies(self):
        """How many blocks the stores have, and how many of them lie in one store only."""
        done = subprocess.run([*self.hub.run_in, os.path.join(BIN, "assay"), "ls", "--json", "--limit=1000000",
                               f"--scheduler={self.scheduler}"], capture_output=True, timeout=END_SECONDS, check=True)
        stores = {}
        for block in json.loads(done.stdout):
            stores.setdefault(block["key"], set()).add(block["store"])
        return len(stores), sum(len(of) < 2 for of in stores.values())

    def start_store(self, number):
        host = self.network.hosts[number]
        self.stores[number] = self.launch(number, "assay-kvstore", f"--scheduler={self.scheduler}", "--ram=256MiB", "--drain-timeout=0s", "--repair-wait=300ms",
                                          f"--data-address={host.address}:0", f"--rpc-address={host.address}:0",
                                          "--http-address=127.0.0.1:0").wait_ready()

    def node(self, number):
        """What the scheduler knows of the store that runs there now; None: nothing."""
        done = subprocess.run([*self.hub.run_in, os.path.join(BIN, "assay"), "stat", "--json", f"--scheduler={self.scheduler}"],
                              capture_output=True, timeout=END_SECONDS)
        nodes = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
        return next((node for node in nodes if node["data_address"] == self.stores[number].address["data"]), None)

    def state(self, number):
        node = self.node(number)
        return node["state"] if node else None

    def serves(self, number, hits=0):
        node = self.node(number)
        return node is not None and node["state"] == "alive" and node["store"] is not None and node["store"]["hits"] > hits

    def repaired(self, *numbers):
        """How many blocks these stores have given another copy; None while one is at it or does not answer."""
        stores = [(self.node(number) or {}).get("store") for number in numbers]
        if not all(stores) or any(store["repair_pending"] for store in stores):
            return None
        return sum(store["repaired_blocks"] for store in stores)

    def end(self):
        counts = self.load.end() if self.load else None
        for process in reversed(self.all):
            process.end()
        return counts


@pytest.fixture
def world(tmp_path):
    assert MISSING is None, MISSING
    with netns.Network(4) as network:
        print("token bucket" if shape(network) else "the bridge's rate")
        running = World(network, tmp_path)
        try:
            for number in (1, 2, 3):
                running.start_store(number)
            running.load = Load(running.scheduler, DEADLINE_MS, running.hub.run_in, TCP)
            running.load.goes_on()
            for number in (1, 2, 3):
                wait_until(lambda number=number: running.serves(number), 60, f"store {number} has been read from")
            yield running
        finally:
            running.end()
            for process in running.all:
                process.check()


def expect_two_copies(world):
    wait_until(lambda: world.copies()[1] == 0, 60, "two copies of each")
    assert world.copies()[0] > 400


def check(world):
    """Ends the load: 99 of 100 reads took no longer than the deadline, and none much longer; then all blocks have two copies."""
    counts, world.load = world.load.end(), None
    assert counts["wrong"] == 0 and counts["hit_blocks"] > 0, counts
    assert counts["longest_us"] <= (DEADLINE_MS + LATE_MS) * 1000, counts
    assert counts["late"] <= 0.01 * counts["reads"], counts
    print(counts)
    expect_two_copies(world)


def others(number):
    return [other for other in (1, 2, 3) if other != number]


def test_a_store_behind_a_cut_link_costs_reads_no_more_than_their_deadline_and_is_used_again_when_it_heals(world):
    for number in (n % 3 + 1 for n in range(ROUNDS)):
        hits = world.node(number)["store"]["hits"]
        world.alone(number, "cut")
        world.load.goes_on()
        wait_until(lambda: world.state(number) in ("dead", None), 60, "the scheduler misses the store")
        world.load.goes_on(500)
        assert all(world.state(other) == "alive" for other in others(number))
        wait_until(lambda: world.repaired(*others(number)), 60, "its copies are made again")
        world.alone(number, "heal")
        wait_until(lambda: world.serves(number, hits), 60, "the store is read from again")
    check(world)


def test_a_store_that_dies_and_returns_costs_reads_no_more_than_their_deadline_and_is_used_again(world):
    for number in ((n + 1) % 3 + 1 for n in range(ROUNDS)):
        world.stores[number].kill()
        world.load.goes_on()
        wait_until(lambda: world.state(number) in ("dead", None), 60, "the scheduler misses the store")
        world.load.goes_on(500)
        wait_until(lambda: world.repaired(*others(number)), 60, "its copies are made again")
        world.start_store(number)
        wait_until(lambda: world.serves(number), 60, "the new store is read from")
    check(world)


def test_a_network_that_loses_and_reorders_packets_makes_no_read_wrong_and_loses_no_copy(world):
    for number in (1, 2, 3):
        world.network.tell("loss", 0, number, 5000)
        world.network.tell("reorder", 0, number, 20000)
    world.load.goes_on(500)
    counts, world.load = world.load.end(), None
    assert counts["wrong"] == 0 and counts["longest_us"] <= (DEADLINE_MS + LATE_MS) * 1000, counts
    expect_two_copies(world)
