# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store over TCP, as a peer of the table of stores. Runs in an environment of its own that has the package
mooncake-transfer-engine-non-cuda; store.py starts it.

    mooncake_load.py segment MASTER BYTES              holds memory for the store until it is ended; says "ready"
    mooncake_load.py load MASTER BYTES SET_MIB BATCH SECONDS SEGMENT_PID
                                                       reads and writes in batches, into and from registered memory, as
                                                       bench_store and bench_peer do; a line of JSON for each
"""
import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time

from mooncake.store import MooncakeDistributedStore

SEGMENT_MIB_MIN = 16
FILL_SECONDS = 20  # it may have to evict first


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_store(master, segment_bytes, buffer_bytes):
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master)
    if code != 0:
        sys.exit(f"setup answers {code}")
    return store


def segment(master, size):
    store = open_store(master, int(size), SEGMENT_MIB_MIN << 20)
    print("ready", flush=True)
    signal.pause()
    store.close()


class Load:
    def __init__(self, master, size, set_mib, batch):
        self.store = open_store(master, 0, SEGMENT_MIB_MIN << 20)
        self.size, self.batch = size, batch
        self.keys = [f"set-{size}-{i}" for i in range(max(batch, (set_mib << 20) // size // batch * batch))]
        self.memory = mmap.mmap(-1, batch * size)
        self.memory.write(b"\x5a" * (batch * size))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if self.store.register_buffer(base, batch * size) != 0:
            sys.exit("the buffer cannot be registered")
        self.places, self.sizes, self.next = [base + i * size for i in range(batch)], [size] * batch, 0

    def put(self, keys):
        """Bytes that were taken."""
        return sum(self.size for code in self.store.batch_put_from(keys, self.places, self.sizes) if code == 0)

    def get(self, keys):
        return sum(code for code in self.store.batch_get_into(keys, self.places, self.sizes) if code > 0)

    def step(self, op):
        self.next += 1
        if op == "set":
            return self.put([f"new-{os.getpid()}-{self.next}-{i}" for i in range(self.batch)])
        first = self.next * self.batch % len(self.keys)
        return self.get(self.keys[first:first + self.batch])

    def fill(self):
        deadline = time.monotonic() + FILL_SECONDS
        for first in range(0, len(self.keys), self.batch):
            while self.put(self.keys[first:first + self.batch]) != self.batch * self.size:
                if time.monotonic() > deadline:
                    sys.exit("the store does not take the blocks to be read")

    def run(self, op, seconds):
        moved, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            moved += self.step(op)
        return moved, time.monotonic() - began


def load(master, size, set_mib, batch, seconds, pid):
    one = Load(master, int(size), int(set_mib), int(batch))
    one.fill()
    for op in ("get", "set"):
        one.run(op, min(0.5, float(seconds) / 2))
        cpu = cpu_seconds(pid)
        moved, took = one.run(op, float(seconds))
        print(json.dumps({"peer": "mooncake", "op": op, "block_bytes": int(size), "seconds": took, "bytes": moved,
                          "gb_per_s": moved / took * 1e-9, "store_cpu_s": cpu_seconds(pid) - cpu,
                          "own_cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2])}), flush=True)
    os._exit(0)  # its threads take their time


if __name__ == "__main__":
    {"segment": segment, "load": load}[sys.argv[1]](*sys.argv[2:])
