# SPDX-License-Identifier: Apache-2.0
"""Blocks that clients encrypt: stores hold nothing that can be read, and who has the key gets it back."""
import glob
import json
import os
import subprocess
import sys

import pytest

from harness import BIN, Cluster, ask, wait_until
from test_tenants import ROOT, assay

MARK = b"what nobody else is to read, over and over. "
ROUND_TRIP = """
import assay, sys
scheduler, key_file, wrong_file, mark = sys.argv[1:]
shape = assay.Shape(layers=4, q_heads=8, kv_heads=8, head_dim=64, block_tokens=64, element_bytes=2)
namespace = assay.namespace(bytes(32), shape, "test of encryption")
keys = assay.chain(namespace, range(128), block_tokens=64)
data = (mark.encode() * (2 * shape.block_bytes))[:2 * shape.block_bytes]
with assay.Client(scheduler, encrypt_key_file=key_file) as client:
    client.put_many(keys, shape, namespace, data)
    assert bytes(client.get(keys, shape)) == data
    one = bytearray(2 * shape.block_bytes // 4)  # the second layer of each
    client.get_into(keys, shape, one, layers=range(1, 2))
    part = shape.block_bytes // 4
    assert one == data[part:2 * part] + data[shape.block_bytes + part:shape.block_bytes + 2 * part]
    assert client.exists(keys) == 2
for options in ({}, {"encrypt_key_file": wrong_file}):
    with assay.Client(scheduler, **options) as client:
        assert client.exists(keys) == 0
print("good")
"""


def command(cluster, name, *arguments):
    return assay(name, f"--scheduler={cluster.scheduler.address['rpc']}", *arguments)


def memory_of(store):
    """The store's pool: the anonymous file that clients map."""
    pools = [path for path in glob.glob(f"/proc/{store.pid}/fd/*") if "memfd" in os.readlink(path)]
    content = b""
    for path in pools:
        with open(path, "rb") as file:
            content += file.read()
    return content


def holds(store, mark):
    files = [path for path in glob.glob(store.disk + "/**", recursive=True) if os.path.isfile(path)]
    disk = b"".join(open(path, "rb").read() for path in files)
    return mark in memory_of(store), mark in disk


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    """A cluster with a disk, and the files of two keys."""
    folder = tmp_path_factory.mktemp("encrypted")
    keys = [str(folder / name) for name in ("ours", "theirs")]
    for key in keys:
        assert assay("token", "key", key).returncode == 0
    with Cluster(folder, workers=0, store_options=[f"--disk={folder}/disk", "--disk-size=64MiB"]) as cluster:
        cluster.stores[0].disk = f"{folder}/disk"
        yield cluster, keys


def test_a_file_comes_back_and_is_nowhere_to_be_read(encrypted, tmp_path):
    cluster, (ours, theirs) = encrypted
    store, file, chain = cluster.stores[0], tmp_path / "file", tmp_path / "chain"
    file.write_bytes(MARK * 50000)
    put = command(cluster, "put", "--json", "--durable", f"--encrypt-key-file={ours}", str(file))
    assert put.returncode == 0, put.stderr
    chain.write_text(put.stdout)
    assert holds(store, MARK) == (False, False)
    again = command(cluster, "put", f"--encrypt-key-file={ours}", str(file))
    assert again.returncode == 0, "the same bytes are there already: " + again.stderr
    back = command(cluster, "get", f"--encrypt-key-file={ours}", str(chain), f"--out={tmp_path}/back")
    assert back.returncode == 0 and (tmp_path / "back").read_bytes() == file.read_bytes(), back.stderr
    for options in ([], [f"--encrypt-key-file={theirs}"]):
        other = command(cluster, "get", *options, str(chain), f"--out={tmp_path}/other")
        assert other.returncode == 1 and "not stored" in other.stderr, other.stderr
    plain = command(cluster, "put", "--durable", str(file))  # beside it, without a conflict
    assert plain.returncode == 0, plain.stderr
    assert holds(store, MARK) == (True, True), "or the test would find nothing ever"
    wrong = command(cluster, "put", f"--encrypt-key-file={tmp_path}/none", str(file))
    assert wrong.returncode == 1 and "encrypt_key_file" in wrong.stderr and "No such file" in wrong.stderr


@pytest.mark.skipif("ASSAY_TEST_SANITIZED" in os.environ, reason="the interpreter does not load a sanitized library")
def test_the_library_encrypts(encrypted):
    cluster, keys = encrypted
    mark = "of the library only, nowhere to be seen. "
    reply = subprocess.run([sys.executable, "-c", ROUND_TRIP, cluster.scheduler.address["rpc"], *keys, mark],
                           capture_output=True, text=True, timeout=60,
                           env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "client", "python"),
                                "ASSAY_LIBRARY": os.path.join(BIN, "..", "lib", "libassay.so.1")})
    assert reply.returncode == 0 and reply.stdout == "good\n", reply.stderr
    assert not holds(cluster.stores[0], mark.encode())[0]


def test_workers_of_one_key_share_a_prefix(encrypted, prompt):
    cluster, (ours, _) = encrypted
    cluster.worker_options = [f"--encrypt-key-file={ours}"]

    def worker():
        cluster.workers.append(cluster.launch_worker().wait_ready())
        return "http://" + cluster.workers[-1].address["http"]

    before = cluster.stat()["directory_blocks"]
    first = ask(worker(), prompt)
    wait_until(lambda: cluster.stat()["directory_blocks"] >= before + 6, 30, "the prompt's blocks are published")
    shared = ask(worker(), prompt)
    assert shared.bits == first.bits and shared.cached > 0
    assert cluster.metric("assay_client_cipher_failures_total", 1) == 0
