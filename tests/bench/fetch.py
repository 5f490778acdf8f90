#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetch of a 64-block chain beside ucx_perftest, in alternating rounds on the same machine.

Both use the same transport and error mode (endpoints with error handling) and the same settings of UCX. ucx_perftest
is asked for its best of active message, tag and get at three message sizes: one extent, 1 MiB, and the whole chain.

The judged row is against the size of the chain, where ucx_perftest too moves 94 MB of memory. At the smaller sizes it
moves one buffer that stays in the processor's caches, faster than memcpy can move a chain; those ratios, and the one to
memcpy, are printed beside it.

Prints rows "row value target pass|miss" and, with --json FILE, everything that was measured.
"""
import argparse
import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys

CHAIN_BYTES = 64 * 30 * 49152
SIZES = {"extent": 49152, "1MiB": 1 << 20, "chain": CHAIN_BYTES}
TESTS = ["ucp_am_bw", "tag_bw", "ucp_get"]
TLS = {"shm": "posix,tcp", "tcp": "tcp"}
TARGET = 0.8
START_SECONDS = 5
SETTINGS = {
    "UCX_TCP_TX_SEG_SIZE": "64K",
    "UCX_TCP_RX_SEG_SIZE": "256K",
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "fatal",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(server):
    """Waits for the line that ucx_perftest prints once it listens; False when it ends before, or takes too long."""
    ready = select.select([server.stdout], [], [], START_SECONDS)[0]
    return bool(ready) and server.stdout.readline().startswith(b"Waiting for connection")


def perftest(transport, test, size, total_bytes):
    """GB/s of one run of ucx_perftest, or 0 where it cannot run."""
    env = dict(os.environ, UCX_TLS=TLS[transport], **SETTINGS)
    port = free_port()
    count = max(3, total_bytes // size)
    args = ["ucx_perftest", "-p", str(port), "-e", "-s", str(size), "-n", str(count), "-w", "2", "-t", test, "-f"]
    server = subprocess.Popen(["stdbuf", "-oL", *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if not listens(server):
            return 0.0
        done = subprocess.run(args + ["127.0.0.1"], env=env, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return 0.0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    numbers = re.findall(r"[\d.]+", done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else []
    # iterations, 50th percentile, average and overall time, average and overall MiB/s, ...
    return float(numbers[5]) * (1 << 20) / 1e9 if len(numbers) >= 8 else 0.0


def ours(program, repeats):
    done = subprocess.run([program, str(repeats)], capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def one_round(args):
    sample = {"ours": {}, "perftest": {}}
    for row in ours(args.program, args.repeats):
        if row["bench"] == "memcpy":
            sample["memcpy"] = row["gb_per_s_median"]
            continue
        name = row["transport"] + ("" if row["checksums"] else "_unchecked")
        sample["ours"][name] = row["gb_per_s_median"]
    for transport in TLS:
        for size_name, size in SIZES.items():
            for test in TESTS:
                if transport == "tcp" and test == "ucp_get":
                    continue  # UCX emulates it there, at a tenth of the rate
                total = args.mib << 20
                sample["perftest"][f"{transport}_{size_name}_{test}"] = perftest(transport, test, size, total)
    return sample


def best(samples, transport, size_name):
    """Best test at this size, by the median over the rounds."""
    prefix = f"{transport}_{size_name}_"
    names = [n for n in samples[0]["perftest"] if n.startswith(prefix)]
    return max(statistics.median(s["perftest"][n] for s in samples) for n in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="path of bench_fetch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10, help="fetches in a round")
    parser.add_argument("--mib", type=int, default=512, help="MiB that each ucx_perftest moves")
    parser.add_argument("--json", help="file for all that was measured")
    args = parser.parse_args()
    samples = [one_round(args) for _ in range(args.rounds)]
    rows = []
    for transport in TLS:
        mine = statistics.median(s["ours"][transport] for s in samples)
        unchecked = statistics.median(s["ours"][transport + "_unchecked"] for s in samples)
        peers = {size: best(samples, transport, size) for size in SIZES}
        print(f"# {transport}: fetch {mine:.2f} GB/s, without checksums {unchecked:.2f}; ucx_perftest "
              + ", ".join(f"{size} {value:.2f}" for size, value in peers.items()))
        judged = peers.pop("chain")
        rows.append((f"fetch_{transport}_vs_ucx_perftest", mine / judged if judged else 0.0, TARGET))
        for size, value in peers.items():
            if value:
                rows.append((f"fetch_{transport}_vs_ucx_perftest_{size}_in_cache", mine / value, 0))
        rows.append((f"fetch_{transport}_vs_memcpy", mine / statistics.median(s["memcpy"] for s in samples), 0))
    for name, value, target in rows:
        verdict = ("pass" if value >= target else "miss") if target else "info"
        print(f"{name} {value:.3f} {target if target else '-'} {verdict}")
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"rows": rows, "samples": samples}, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
