#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of `./dev bench store`: each figure is a ratio against a peer or a limit, measured in this run.

disk    the disk tier by itself: cold reads of 1 MiB blocks in random order, checked, against fio's direct reads at the same
        depth; writes behind and durable writes beside them; seconds from a start to ready with 100,000 blocks

Needs fio. Prints `row value target pass|miss`, after lines that name the machine, the commit and the command.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import table

BIN = Path(os.environ["ASSAY_BIN"])
DEPTH = 8
MIB = 512
START_BLOCKS = 100000


def fio(folder, pattern):
    """GB/s of direct reads or writes of 1 MiB at the depth of bench_disk."""
    done = subprocess.run(["fio", "--name=fio", f"--directory={folder}", f"--rw={pattern}", "--bs=1M", f"--size={MIB}M",
                           "--direct=1", "--ioengine=io_uring", f"--iodepth={DEPTH}", "--output-format=json"],
                          capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return job["write" if "write" in pattern else "read"]["bw_bytes"] / 1e9


def bench_disk(quick):
    if not shutil.which("fio"):
        sys.exit("bench store: fio is missing: install the package fio")
    ours, reads, writes = [], [], []
    for i in range(2 if quick else 5):
        table.say(f"disk: round {i + 1}")
        with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
            ours.append(table.one_line([BIN / "bench_disk", folder, str(MIB), str(START_BLOCKS)]))
        with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
            writes.append(fio(folder, "write"))
            reads.append(fio(folder, "randread"))
    median = {key: statistics.median(run[key] for run in ours) for key in ours[0] if key.endswith(("_s", "_seconds"))}
    read, write = statistics.median(reads), statistics.median(writes)
    table.say(f"disk: reads {median['read_gb_per_s']:.2f} GB/s, fio {read:.2f}; writes behind {median['write_gb_per_s']:.2f}, "
              f"durable {median['durable_gb_per_s']:.2f}, fio {write:.2f}")
    table.row("disk_cold_read_vs_fio", median["read_gb_per_s"] / read, 0.8)
    table.row("disk_write_behind_vs_fio", median["write_gb_per_s"] / write)
    table.row("disk_durable_write_vs_fio", median["durable_gb_per_s"] / write)
    table.row("disk_start_seconds_100k_blocks", median["start_seconds"], 2, at_most=True)
    return {"assay": ours, "fio_read": reads, "fio_write": writes}


PARTS = {"disk": bench_disk}

if __name__ == "__main__":
    sys.exit(table.main("store", __doc__, PARTS))
