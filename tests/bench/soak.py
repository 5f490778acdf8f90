# SPDX-License-Identifier: Apache-2.0
"""`./dev bench store --soak MINUTES`: one store with a disk, held at 80 % of its link for as long as is wanted. The link is one of
2 Gbit/s between two network namespaces, or, without root or /dev/net/tun, loopback, and then as fast as the store can.

Reads of 1 MiB over TCP from twice as many blocks as RAM holds, beside puts of new ones: so blocks are evicted, brought back
from disk and overwritten on disk all the time. A second store, which has their second copies, is killed and started empty
again and again, so the first repairs what was lost. Judged: no error, the rate is held, memory and descriptors of the store and of
the client do not grow (the line through what they hold, after a fifth of the time in which caches fill).
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

from pathlib import Path

import table

from peers import BIN, LINK_BYTES_PER_S, Assay

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import netns  # noqa: E402

RAM_MIB, DISK_MIB, SET_MIB = 128, 1024, 256
LOAD = {"batch": 1, "slots": 8, "set_mib": SET_MIB, "puts": 15}
SHARE = 0.8
GROWTH_MIB_MAX = 8
GROWTH_FDS_MAX = 4
MATE_SECONDS_MAX = 40
REPORT_SECONDS = 2


def holds(pid):
    """MiB in memory, and open descriptors."""
    rss = next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS:"))
    return rss / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def slope(points):
    """Of the line nearest to the points (x, y): least squares."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


class Mate:
    """The second store: from time to time it loses everything."""

    def __init__(self, store, seconds):
        self.store, self.seconds = store, seconds
        self.start()

    def start(self):
        self.child, _ = self.store.launch_store(RAM_MIB)
        self.began = time.monotonic()

    def turn(self):
        if time.monotonic() - self.began > self.seconds:
            self.child.kill()
            self.child.wait()
            self.start()


def watch(store, rate, seconds, mate):
    """Runs the load; a sample for each report: seconds, what the client counted, what both processes hold."""
    command = [*store.client_in, BIN / "bench_store", "--store", store.name, "--op", "mixed", "--pid", store.pid, "--rate", rate, "--seconds", seconds,
               "--report", REPORT_SECONDS, *(part for name, value in LOAD.items() for part in (f"--{name.replace('_', '-')}", value))]
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True, env=dict(os.environ, UCX_TLS="tcp"))
    samples, began = [], time.monotonic()
    for line in child.stdout:
        sample = {"at_s": time.monotonic() - began, "load": json.loads(line), "catalog_mib": catalog_mib(store)}
        for name, pid in (("store", store.pid), ("client", child.pid)):
            try:
                sample[f"{name}_mib"], sample[f"{name}_fds"] = holds(pid)
            except (OSError, StopIteration):  # the client has just ended
                break
        else:
            samples.append(sample)
        mate.turn()
    if child.wait() != 0:
        sys.exit(f"bench store: the load ended with {child.returncode} after {time.monotonic() - began:.0f} s")
    return samples[:-1]  # the client was ending at the last


def catalog_mib(store):
    """What RocksDB holds for the catalog: it comes to its write buffer of 8 MiB, again and again."""
    text = subprocess.run([*store.run_in, "curl", "-sS", f"http://{store.ready['http']}/metrics"], capture_output=True, text=True, check=True).stdout
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("assay_kvstore_disk_catalog_memory_bytes")) / 2**20


def rows(samples, rate, before, after):
    settled = samples[len(samples) // 5:]
    minutes = (settled[-1]["at_s"] - settled[0]["at_s"]) / 60
    for name in ("store", "client"):
        per_minute = slope([(one["at_s"] / 60, one[f"{name}_mib"]) for one in settled])
        table.row(f"soak_{name}_memory_growth_mib", per_minute * minutes, GROWTH_MIB_MAX, at_most=True)
        table.row(f"soak_{name}_memory_mib_an_hour", per_minute * 60)
        # Those of a mate that is just coming or going are there at one moment and not at the next.
        per_minute = slope([(one["at_s"] / 60, one[f"{name}_fds"]) for one in settled])
        table.row(f"soak_{name}_descriptors_growth", per_minute * minutes, GROWTH_FDS_MAX, at_most=True)
    loads = [one["load"] for one in samples]
    table.row("soak_errors", sum(one["errors"] for one in loads), 0, at_most=True)
    moved = sum(one["read_bytes"] + one["written_bytes"] for one in loads) / sum(one["seconds"] for one in loads)
    table.row("soak_rate_held", moved / rate, 0.95)
    reads = sum(one["reads"] for one in loads)
    table.row("soak_missed_reads_share", sum(one["misses"] for one in loads) / max(reads, 1))
    table.row("soak_read_p99_ms", sorted(one["p99_us"] for one in loads)[len(loads) // 2] / 1e3)
    table.row("soak_catalog_memory_growth_mib", minutes * slope([(one["at_s"] / 60, one["catalog_mib"]) for one in settled]))
    for what in ("evictions", "promotions", "repaired_blocks"):
        table.row(f"soak_{what}", after[what] - before[what], 1)


@contextlib.contextmanager
def link():
    """Where store and client are, as options of Assay, and the rate of the link between them; 0: it is to be found out."""
    if netns.missing():
        table.say(f"soak: over loopback: {netns.missing()}")
        yield {}, 0
        return
    with netns.Network(2) as network:
        here, there = network.hosts
        network.tell("rate", 0, 1, LINK_BYTES_PER_S)
        yield {"host": there.address, "run_in": there.run_in, "client_in": here.run_in}, LINK_BYTES_PER_S


def main():
    parser = argparse.ArgumentParser(prog="./dev bench store", description=__doc__.splitlines()[0])
    parser.add_argument("--soak", type=float, metavar="MINUTES", required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object with all that was measured")
    args = parser.parse_args()
    seconds = args.soak * 60
    if seconds < 20:
        parser.error("--soak: give at least 0.4 minutes")
    disk = ["--disk=disk", f"--disk-size={DISK_MIB}MiB"]
    with link() as (at, top), Assay(RAM_MIB, disk, scheduler_options=["--replicas=2"], **at) as store:
        top = top or store.load("mixed", "tcp", seconds=min(20, seconds / 2), **LOAD)["gb_per_s"] * 1e9
        rate = SHARE * top
        table.say(f"soak: {rate / 1e6:.0f} MB/s of {top / 1e6:.0f} for {seconds:.0f} s")
        before = store.node()["store"]
        samples = watch(store, rate, seconds, Mate(store, min(MATE_SECONDS_MAX, seconds / 4)))
        rows(samples, rate, before, store.node()["store"])
    return table.show("store", args.json, samples)
