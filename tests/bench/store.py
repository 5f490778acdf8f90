#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of `./dev bench store`: each figure is a ratio against a peer or a limit, measured in this run.

wire     reads of 1 MiB extents over shared memory and TCP loopback beside ucx_perftest (best of active message, tag and get,
         with error handling), iperf3 and memcpy; checks on beside checks off
objects  reads and writes of 1 MiB and 64 KiB beside Redis and memcached, over TCP and on one host (we over shared memory, they
         over a Unix socket or TCP, whichever is faster), each with a pipelining client written for it (bench_peer.c) and as much
         in flight; processor time of the store for each GB; beside memcpy and a plain socket, what the machine allows
mooncake the same reads and writes beside Mooncake Store over TCP
sizes    the same reads from 4 KiB to 8 MiB, to be read
locate   keys a second of one store, 1,000 a batch
latency  p99 of reads of 1 MiB while 30 % of the traffic is puts and the store evicts, over p99 without
distance reads of 64 blocks of 1 MiB from another host at round trips of 0, 1 and 10 ms, as a share of what the link allows
         (a round trip, then its rate) and beside iperf3 over the same link: network namespaces and a bridge in user space
         (tests/tools); skipped without root or /dev/net/tun
index    bytes that a store keeps for each block that it may have
disk     the disk tier by itself: cold reads of 1 MiB blocks in random order, checked, against fio's direct reads at the same
         depth; writes behind and durable writes beside them; seconds from a start to ready with 100,000 blocks

All run in turn in each round; a figure is the median of the rounds. Peers are started and ended here. Needs ucx_perftest,
iperf3, redis-server, memcached and fio. With --soak MINUTES instead: soak.py. Prints `row value target pass|miss`, after lines that name the machine, the commit
and the command.
"""
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import fetch
import soak
import table
from peers import BIN, LINK_BYTES_PER_S, MIB, MOONCAKE, Assay, Iperf, Memcached, Mooncake, Redis, peer_load

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import netns  # noqa: E402

DEPTH = 8
DISK_MIB = 512
START_BLOCKS = 100000
SET_MIB = 64
TARGETS = {"redis": 1.5, "memcached": 1.1}
TARGETS_ONE_HOST = {"redis": 4, "memcached": 3}
CPU_TARGETS = {"redis": 0.5, "memcached": 0.8}
ROUND_TRIPS_MS = [0, 1, 10]
LINK_BLOCKS = 64
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20]


def need(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        sys.exit(f"bench store: missing: {', '.join(missing)}; ./dev bench installs them")


def size_text(size):
    return f"{size // MIB}MiB" if size >= MIB else f"{size >> 10}KiB"


def batch_of(size):
    """Blocks of one fetch: 16 MiB, 256 at most. Two are in flight, and a peer has as many values."""
    return max(1, min(256, 16 * MIB // size))


def read(store, size, tls, seconds, **options):
    shape = {"bytes": size, "batch": batch_of(size), "slots": 2, "set_mib": SET_MIB, "seconds": seconds}
    return store.load("read", tls, **{**shape, **options})


def write(store, size, tls, seconds):
    """Puts are single: as many in flight as fit into 8 MiB, which the store has free while it evicts."""
    return store.load("write", tls, bytes=size, slots=max(2, min(64, 8 * MIB // size)), batch=1, set_mib=1, seconds=seconds)


def medians(rounds):
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


# ---- wire

def perftests(tls, size, quick):
    """GB/s of ucx_perftest by test; get is emulated over TCP, at a tenth of the rate."""
    tests = [test for test in fetch.TESTS if tls == "shm" or test != "ucp_get"]
    return {f"{tls}_{size_text(size)}_{test}": fetch.perftest(tls, test, size, (256 if quick else 1024) * MIB) for test in tests}


def wire_round(store, iperf, quick):
    seconds, one, hot = 0.4 if quick else 1, {}, {"set_mib": 8, "batch": 8}
    for name, tls in (("shm", None), ("tcp", "tcp")):
        one[f"{name}_on"] = read(store, MIB, tls, seconds)["gb_per_s"]
        one[f"{name}_off"] = read(store, MIB, tls, seconds, unchecked=1)["gb_per_s"]
        one.update(perftests(name, MIB, quick))
        one.update(perftests(name, SET_MIB * MIB, quick))
    one["shm_hot_off"] = read(store, MIB, None, seconds, unchecked=1, **hot)["gb_per_s"]
    for name, room in (("memcpy", SET_MIB), ("memcpy_hot", 8)):
        one[name] = table.one_line([BIN / "bench_memcpy", str(MIB), str(room), str(room // 2), str(seconds)])["gb_per_s"]
    one["iperf3"] = iperf.gb_per_s(1)
    return one


def bench_wire(quick):
    need("ucx_perftest", "iperf3")
    rounds = []
    with Assay() as store, Iperf() as iperf:
        for i in range(1 if quick else 5):
            table.say(f"wire: round {i + 1}")
            rounds.append(wire_round(store, iperf, quick))
    m = medians(rounds)
    for key, value in m.items():
        table.say(f"{key} {value:.2f} GB/s")

    def best(tls, size):
        return max(value for key, value in m.items() if key.startswith(f"{tls}_{size_text(size)}_"))

    # Judged where ucx_perftest moves as much memory as we do. At 1 MiB it moves one buffer that stays in the caches of its core,
    # as no blocks of a cache do: that is there to be read, beside our reads of a set as small as is of use.
    table.row("read_shm_unchecked_vs_ucx_perftest", m["shm_off"] / best("shm", SET_MIB * MIB), 0.9)
    table.row("read_shm_unchecked_in_cache_vs_ucx_perftest", m["shm_hot_off"] / best("shm", MIB))
    table.row("read_shm_unchecked_vs_memcpy", m["shm_off"] / m["memcpy"], 0.7)
    table.row("read_shm_unchecked_in_cache_vs_memcpy", m["shm_hot_off"] / m["memcpy_hot"])
    table.row("read_tcp_vs_ucx_perftest", m["tcp_on"] / max(best("tcp", MIB), best("tcp", SET_MIB * MIB)), 0.9)
    table.row("read_tcp_vs_iperf3", m["tcp_on"] / m["iperf3"], 0.7)
    table.row("read_tcp_checked_vs_unchecked", m["tcp_on"] / m["tcp_off"], 0.95)
    table.row("read_shm_checked_vs_unchecked", m["shm_on"] / m["shm_off"], 0.5)
    return rounds


# ---- objects

def objects_round(servers, size, seconds):
    store, *peers = servers
    one = {"memcpy": table.one_line([BIN / "bench_memcpy", str(MIB), str(SET_MIB), str(SET_MIB // 2), str(seconds)]),
           "socket": table.one_line([BIN / "bench_socket", str(256 << 10), str(SET_MIB), str(seconds)])}
    for op, ours, theirs in (("read", read, "get"), ("write", write, "set")):
        for tls in ("tcp", None):
            one["assay", op, tls] = ours(store, size, tls, seconds)
            for peer in peers:
                one[peer.kind, op, tls] = peer_load(peer, theirs, tls, size, 2 * batch_of(size), SET_MIB, seconds)
    return one


def cpu_per_gb(results):
    return statistics.median(one["store_cpu_s"] * 1e9 / (one.get("read_bytes") or one["bytes"]) for one in results)


def objects_rows(rounds, size):
    speed = {key: statistics.median(one[key]["gb_per_s"] for one in rounds) for key in rounds[0]}
    for op in ("read", "write"):
        for peer in ("redis", "memcached"):
            fastest = max(speed[peer, op, "tcp"], speed[peer, op, None])
            table.say(f"{op} of {size_text(size)}: tcp {speed['assay', op, 'tcp']:.2f} GB/s, shm {speed['assay', op, None]:.2f}; "
                      f"{peer} tcp {speed[peer, op, 'tcp']:.2f}, unix {speed[peer, op, None]:.2f}")
            table.row(f"{op}_{size_text(size)}_tcp_vs_{peer}", speed["assay", op, "tcp"] / speed[peer, op, "tcp"], TARGETS[peer])
            table.row(f"{op}_{size_text(size)}_one_host_vs_{peer}", speed["assay", op, None] / fastest, TARGETS_ONE_HOST[peer])
        # What the machine allows: one copy by one core, and bytes through a socket that nobody looks at.
        table.row(f"{op}_{size_text(size)}_one_host_vs_memcpy", speed["assay", op, None] / speed["memcpy"])
        table.row(f"{op}_{size_text(size)}_tcp_vs_socket", speed["assay", op, "tcp"] / speed["socket"])
    if size == MIB:
        ours = cpu_per_gb([one["assay", "read", "tcp"] for one in rounds])
        for peer, target in CPU_TARGETS.items():
            theirs = cpu_per_gb([one[peer, "read", "tcp"] for one in rounds])
            table.say(f"processor seconds a GB read: store {ours:.3f}, {peer} {theirs:.3f}")
            table.row(f"cpu_a_gb_read_tcp_vs_{peer}", ours / theirs, target, at_most=True)
        table.row("cpu_a_gb_read_tcp_vs_socket", ours / statistics.median(one["socket"]["send_cpu_s_per_gb"] for one in rounds))


def bench_objects(quick):
    need("redis-server", "memcached")
    raw = {}
    for size in (MIB, 64 << 10):
        rounds = []
        with Assay() as store, Redis() as redis, Memcached() as memcached:
            for i in range(1 if quick else 5):
                table.say(f"objects of {size_text(size)}: round {i + 1}")
                rounds.append(objects_round((store, redis, memcached), size, 0.3 if quick else 0.7))
        objects_rows(rounds, size)
        raw[size_text(size)] = [{key if isinstance(key, str) else "_".join(map(str, key)): value for key, value in one.items()} for one in rounds]
    return raw


def bench_mooncake(quick):
    if not (MOONCAKE / "bin" / "python").exists():
        table.say("mooncake: left out: the package mooncake-transfer-engine-non-cuda is not installed (tools/requirements-mooncake.txt)")
        return None
    raw, seconds = {}, 0.3 if quick else 1
    for size in (MIB, 64 << 10):
        rounds = []
        with Assay() as store, Mooncake() as mooncake:
            for i in range(1 if quick else 3):
                table.say(f"mooncake, {size_text(size)}: round {i + 1}")
                try:
                    theirs = mooncake.load(size, 2 * batch_of(size), SET_MIB, seconds)
                except RuntimeError as error:
                    table.say(f"mooncake: left out: it does not run here: {error}")
                    return {"failed": str(error)}
                rounds.append({"read": read(store, size, "tcp", seconds), "write": write(store, size, "tcp", seconds),
                               "their_read": theirs["get"], "their_write": theirs["set"]})
        speed = {key: statistics.median(one[key]["gb_per_s"] for one in rounds) for key in rounds[0]}
        for op in ("read", "write"):
            table.say(f"{op} of {size_text(size)}: tcp {speed[op]:.2f} GB/s, mooncake {speed[f'their_{op}']:.2f}")
            table.row(f"{op}_{size_text(size)}_tcp_vs_mooncake", speed[op] / speed[f"their_{op}"], 1.5)
        raw[size_text(size)] = rounds
    return raw


def bench_sizes(quick):
    need("redis-server", "memcached")
    raw, seconds = {}, 0.2 if quick else 0.6
    for size in SIZES:
        with Assay(options=["--blocks-max=65536"]) as store, Redis() as redis, Memcached() as memcached:
            one = {"tcp": read(store, size, "tcp", seconds), "shm": read(store, size, None, seconds)}
            for peer in (redis, memcached):
                one[peer.kind] = peer_load(peer, "get", "tcp", size, 2 * batch_of(size), SET_MIB, seconds)
        raw[size_text(size)] = one
        for name, result in one.items():
            table.row(f"read_{size_text(size)}_{name}_gb_per_s", result["gb_per_s"])
    return raw


# ---- the store by itself

def bench_locate(quick):
    runs = []
    with Assay() as store:
        for i in range(2 if quick else 5):
            table.say(f"locate: round {i + 1}")
            runs.append(store.load("locate", None, bytes=4096, batch=1000, slots=4, set_mib=16, seconds=0.5 if quick else 1))
    # The store is one thread, so it cannot do more than a core's worth; the client has the other core.
    table.row("locate_million_keys_per_s", statistics.median(one["keys_per_s"] for one in runs) / 1e6, 2)
    table.row("locate_million_keys_a_store_cpu_second",
              statistics.median(one["located"] / max(one["store_cpu_s"], 1e-9) for one in runs) / 1e6)
    return runs


def fill_up(store, tls):
    """Puts until the store evicts, so that the puts to come evict too; returns how often it has."""
    for _ in range(100):
        write(store, MIB, tls, 0.3)
        evictions = store.node()["store"]["evictions"]
        if evictions:
            return evictions
    sys.exit("bench store: a store that is full does not evict")


def bench_latency(quick):
    raw = {}
    for name, tls in (("tcp", "tcp"), ("shm", None)):
        alone, beside, seconds = [], [], 1 if quick else 3
        for i in range(1 if quick else 3):
            table.say(f"latency over {name}: round {i + 1}")
            with Assay(ram_mib=SET_MIB * 3 // 2) as store:  # little beside what is read, so that puts evict at once
                load = {"batch": 1, "slots": 4, "set_mib": SET_MIB, "seconds": seconds}
                alone.append(store.load("mixed", tls, puts=0, **load))
                before = fill_up(store, tls)
                beside.append(store.load("mixed", tls, puts=30, **load))
                beside[-1]["evictions"] = store.node()["store"]["evictions"] - before
        p99 = [statistics.median(one["p99_us"] for one in runs) for runs in (alone, beside)]
        evictions = min(one["evictions"] for one in beside)
        table.say(f"p99 of reads over {name}: {p99[0]:.0f} us alone, {p99[1]:.0f} beside puts, {evictions} evictions")
        if evictions == 0:
            sys.exit("bench store: nothing was evicted, so the row of latency means nothing: let it run longer")
        table.row(f"p99_read_beside_puts_{name}", p99[1] / p99[0], 2.0, at_most=True)
        raw[name] = {"alone": alone, "beside": beside}
    return raw


# ---- over a distance

def distance_round(network, store, iperf, rtt_ms, quick):
    network.tell("delay", 0, 1, rtt_ms * 500)
    one = store.load("read", bytes=MIB, batch=LINK_BLOCKS, slots=1, set_mib=LINK_BLOCKS, seconds=1 if quick else 3)
    return {"fetch_s": one["p50_us"] * 1e-6, "iperf3": iperf.gb_per_s(1 if quick else 3, omit=1)}


def bench_distance(quick):
    need("iperf3")
    missing = netns.missing()
    if missing:
        table.say(f"distance: skipped: {missing}")
        return {"skipped": missing}
    rounds = {rtt_ms: [] for rtt_ms in ROUND_TRIPS_MS}
    with netns.Network(2) as network:
        here, there = network.hosts
        at = {"host": there.address, "run_in": there.run_in, "client_in": here.run_in}
        network.tell("rate", 0, 1, LINK_BYTES_PER_S)
        with Assay(**at) as store, Iperf(**at) as iperf:
            for i in range(1 if quick else 3):
                for rtt_ms in ROUND_TRIPS_MS:
                    table.say(f"distance of {rtt_ms} ms: round {i + 1}")
                    rounds[rtt_ms].append(distance_round(network, store, iperf, rtt_ms, quick))
    for rtt_ms, each in rounds.items():
        m, bytes_read = medians(each), LINK_BLOCKS * MIB
        table.say(f"{rtt_ms} ms: {bytes_read / m['fetch_s'] * 1e-9:.3f} GB/s, iperf3 {m['iperf3']:.3f}, "
                  f"the link {LINK_BYTES_PER_S * 1e-9:.3f}")
        table.row(f"read_at_{rtt_ms}ms_vs_link", (bytes_read / LINK_BYTES_PER_S + rtt_ms * 1e-3) / m["fetch_s"])
        table.row(f"read_at_{rtt_ms}ms_vs_iperf3", bytes_read / m["fetch_s"] * 1e-9 / m["iperf3"])
    return rounds


def bench_index(quick):
    one = table.one_line([BIN / "bench_index"])
    table.row("index_bytes_a_block", one["bytes_a_block"], 192, at_most=True)
    return one


def bench_evict(quick):
    """Hits on conversations among scans; with a trace: build/bin/bench_evict FILE."""
    runs = [json.loads(line) for line in subprocess.run([BIN / "bench_evict"], capture_output=True, text=True,
                                                        check=True).stdout.splitlines()]
    for run in runs:
        table.say(f"eviction, {run['blocks']} blocks: {run['store_percent']} % of a conversation's blocks are here, "
                  f"with LRU {run['lru_percent']}, with FIFO {run['fifo_percent']}")
    table.row("evict_hits_among_scans_vs_lru", min(run["store_percent"] / run["lru_percent"] for run in runs), 1.0)
    return runs


# ---- disk

def fio(folder, pattern):
    """GB/s of direct reads or writes of 1 MiB at the depth of bench_disk."""
    done = subprocess.run(["fio", "--name=fio", f"--directory={folder}", f"--rw={pattern}", "--bs=1M", f"--size={DISK_MIB}M",
                           "--direct=1", "--ioengine=io_uring", f"--iodepth={DEPTH}", "--output-format=json"],
                          capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return job["write" if "write" in pattern else "read"]["bw_bytes"] / 1e9


def bench_disk(quick):
    need("fio")
    ours, reads, writes = [], [], []
    for i in range(2 if quick else 5):
        table.say(f"disk: round {i + 1}")
        with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
            ours.append(table.one_line([BIN / "bench_disk", folder, str(DISK_MIB), str(START_BLOCKS)]))
        with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
            writes.append(fio(folder, "write"))
            reads.append(fio(folder, "randread"))
    median = {key: statistics.median(run[key] for run in ours) for key in ours[0] if key.endswith(("_s", "_seconds"))}
    read_rate, write_rate = statistics.median(reads), statistics.median(writes)
    table.say(f"disk: reads {median['read_gb_per_s']:.2f} GB/s, fio {read_rate:.2f}; writes behind {median['write_gb_per_s']:.2f}, "
              f"durable {median['durable_gb_per_s']:.2f}, fio {write_rate:.2f}")
    table.row("disk_cold_read_vs_fio", median["read_gb_per_s"] / read_rate, 0.8)
    table.row("disk_write_behind_vs_fio", median["write_gb_per_s"] / write_rate)
    table.row("disk_durable_write_vs_fio", median["durable_gb_per_s"] / write_rate)
    table.row("disk_start_seconds_100k_blocks", median["start_seconds"], 2, at_most=True)
    return {"assay": ours, "fio_read": reads, "fio_write": writes}


PARTS = {"wire": bench_wire, "objects": bench_objects, "mooncake": bench_mooncake, "sizes": bench_sizes, "locate": bench_locate, "latency": bench_latency,
         "distance": bench_distance, "index": bench_index, "evict": bench_evict, "disk": bench_disk}

if __name__ == "__main__":
    sys.exit(soak.main() if any(word.startswith("--soak") for word in sys.argv) else table.main("store", __doc__, PARTS))
