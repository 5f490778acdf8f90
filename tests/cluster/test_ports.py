# SPDX-License-Identifier: Apache-2.0
"""Strangers at the ports of a real store and a real worker: bytes of other protocols, none, too slow, too many at once.

Every port that the process listens on gets them, as /proc/net/tcp names them, and among them the port that UCX opens
by itself. UCX's listener is behind a gate in the kernel: nobody who was not admitted at the data port gets as far as a
connection. Nor does anybody from another host than an admitted peer's at the ports that UCX opens on interfaces; from
such a host frames that begin with UCX's own magic are left out: those it trusts (docs/operating.md).
"""
import glob
import os
import random
import re
import socket
import struct
import subprocess
import time

import pytest

from harness import BIN, Cluster, ask, wait_until

LISTENING = "0A"
LOOPBACK = ("0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F")  # as the kernel writes them
UCX_MAGIC = struct.pack("<Q", 0xCAFEBABE12345678)
HELLO = b"ASNH\x02\x00"
CROWD = 300


@pytest.fixture()
def world(tmp_path):
    with Cluster(tmp_path, stores=1, workers=1, worker_options=["--data-interface=lo"]) as running:
        yield running


def listening(process):
    """Addresses and ports that a process listens on, as (hexadecimal address, port)."""
    inodes = set()
    for link in glob.glob(f"/proc/{process.pid}/fd/*"):
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        except FileNotFoundError:
            pass
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{process.pid}/net/{table}", encoding="ascii") as lines:
            for fields in map(str.split, list(lines)[1:]):
                if fields[3] == LISTENING and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    found.add((address, int(port, 16)))
    return found


def is_gated(port, source="127.0.0.1"):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1, source_address=(source, 0)).close()
    except TimeoutError:
        return True
    return False


def ports(process):
    """Those that take connections of anybody, and those that take none."""
    found = sorted(port for _, port in listening(process))
    gated = {port for port in found if is_gated(port)}
    return [port for port in found if port not in gated], gated


def data_port(store):
    return int(store.address["data"].rsplit(":", 1)[1])


def knock(port):
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def is_shut(connection, seconds=30):
    """Waits until the other side has closed."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    connection.close()
    return True


def say(port, data):
    with knock(port) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed in the middle of it


def garbage():
    chance = random.Random(5)
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(512)
    yield HELLO + b"\x01\x00" + b"\xff" * 8
    yield HELLO + bytes(9000)
    yield b"ASNH\x03\x00" + bytes(64)
    yield HELLO + b"\x01\x00" + bytes(7)
    for length in (1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 255, 1024, 9000, 70000):
        yield bytes(length)
        yield b"\xff" * length
        noise = chance.randbytes(length)
        assert not noise.startswith(UCX_MAGIC)
        yield noise


def serves(world, prompt, salt):
    """A prefix goes to the store and comes back from it."""
    cold = ask(world.url(), prompt, salt=salt)
    stored = world.stat()["directory_blocks"]
    wait_until(lambda: world.stat()["directory_blocks"] >= max(stored, cold.usage["prompt_tokens"] // 64), 20, "stored")
    warm = ask(world.url(), prompt, salt=salt)
    assert warm.bits == cold.bits and warm.cached >= 5 * 64


def test_garbage_on_every_port_harms_nobody(world, prompt):
    store, worker = world.stores[0], world.workers[0]
    serves(world, prompt, "before")
    for process in (store, worker):
        taking, gated = ports(process)
        assert len(taking) >= 2 and len(gated) == (1 if process is store else 0)
        for port in taking:
            for data in garbage():
                say(port, data)
                assert process.child.poll() is None, (process.program, port, data[:64], process.log_text()[-2000:])
    serves(world, prompt, "after")
    log = store.log_text()
    assert "data port: connection from 127.0.0.1" in log
    for reason in ("what it sent is not of this protocol", "closed without a word", "it speaks version 3",
                   "it left in mid hello"):
        assert reason in log, reason


def unannounced(process):
    """The ports that UCX opened by itself."""
    told = {int(port) for port in re.findall(r":(\d+)(?![\w:])", " ".join(map(str, process.address.values())))}
    return {port for _, port in listening(process)} - told


def connect_hello(credential=b""):
    """The hello of a peer on this host; the parser's own test holds it against the C."""
    head = HELLO + struct.pack("<HHHHH", 1, 9, 0, len(credential), 0) + credential
    return head + struct.pack("<I", crc32c(head))


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_ports_of_ucx_are_shut_to_hosts_without_a_peer(world, prompt):
    serves(world, prompt, "before")
    for process in (world.stores[0], world.workers[0]):
        assert unannounced(process), "UCX's own port"
        for port in unannounced(process):
            assert is_gated(port, "127.0.0.2"), process.program
    # Who says hello is a peer's host from then on: without a cluster key everybody may.
    store = world.stores[0]
    with socket.create_connection(("127.0.0.1", data_port(store)), 10, ("127.0.0.2", 0)) as peer:
        peer.sendall(connect_hello())
        assert peer.recv(6) == HELLO
        assert [port for port in unannounced(store) if not is_gated(port, "127.0.0.2")]
    wait_until(lambda: all(is_gated(port, "127.0.0.2") for port in unannounced(store)), 20, "it has left")
    serves(world, prompt, "after")


def test_who_has_no_token_reaches_no_port_of_ucx(tmp_path):
    key = tmp_path / "cluster.key"
    subprocess.run([os.path.join(BIN, "assay"), "token", "key", str(key)], check=True, timeout=60)
    with Cluster(tmp_path, stores=1, workers=0, scheduler=False, store_options=[f"--cluster-key={key}"]) as alone:
        store = alone.stores[0]
        for credential in (b"", bytes(72), b"ASTK\x01\x00\x03\x00" + bytes(64), b"x" * 128):
            with socket.create_connection(("127.0.0.1", data_port(store)), 10) as peer:
                peer.sendall(connect_hello(credential))
                kind, refusal = struct.unpack("<HH", peer.recv(64)[6:10])
                assert (kind, refusal) == (3, 2), "refused: denied"
            for port in unannounced(store):
                assert is_gated(port), credential
        assert store.child.poll() is None
        assert "denied: a client of tenant" in store.log_text()


def test_64_zero_bytes_do_not_end_a_store_that_is_alone(tmp_path):
    with Cluster(tmp_path, stores=1, workers=0, scheduler=False) as alone:
        for _ in range(10):
            connection = knock(data_port(alone.stores[0]))
            connection.sendall(bytes(64))
            assert is_shut(connection)
        assert alone.stores[0].child.poll() is None


def test_a_slow_drip_is_closed_by_its_deadline(world, prompt):
    port, begun = data_port(world.stores[0]), time.monotonic()
    connection, sent = knock(port), 0
    connection.settimeout(0.2)
    with pytest.raises((ConnectionError, EOFError)):
        while time.monotonic() < begun + 60:
            if sent < len(HELLO):
                connection.sendall(HELLO[sent:sent + 1])
                sent += 1
            try:
                if not connection.recv(1):
                    raise EOFError
            except TimeoutError:
                pass
    assert 2 < time.monotonic() - begun < 30
    assert "no hello in time" in world.stores[0].log_text()
    serves(world, prompt, "drip")


def test_a_crowd_of_silent_connections_keeps_nobody_out(world, prompt):
    store = world.stores[0]
    crowd = [knock(data_port(store)) for _ in range(CROWD)]
    crowd[-1].sendall(b"A")
    serves(world, prompt, "crowd")
    assert all(is_shut(connection) for connection in crowd)
    assert "too many wait for their hello" in store.log_text()
    ucx = set(ports(store)[0]) - {int(store.address[name].rsplit(":", 1)[1]) for name in ("data", "rpc", "http")}
    assert ucx, "UCX's own port"
    for port in ucx:
        held = [knock(port) for _ in range(CROWD)]
        serves(world, prompt, f"crowd-{port}")
        for connection in held:
            connection.close()
    serves(world, prompt, "after")


def test_a_cluster_on_loopback_listens_nowhere_else(world):
    for process in (world.stores[0], world.workers[0]):
        for address, port in listening(process):
            assert address in LOOPBACK, (process.program, address, port)


def test_a_store_on_every_interface_starts(tmp_path):
    with Cluster(tmp_path, stores=1, workers=0, scheduler=False, store_options=["--data-address=0.0.0.0:0"]) as alone:
        assert ("00000000", data_port(alone.stores[0])) in listening(alone.stores[0])


def test_a_store_on_every_interface_tells_an_address_that_others_reach(tmp_path):
    every = ["--data-address=0.0.0.0:0", "--rpc-address=0.0.0.0:0", "--http-address=0.0.0.0:0"]
    with Cluster(tmp_path, stores=0, workers=0) as cluster:
        refused = subprocess.run([os.path.join(BIN, "assay-kvstore"), *cluster.link(), *every], capture_output=True,
                                 timeout=60, text=True, check=False)
        assert refused.returncode == 2
        assert "which nobody can connect to" in refused.stderr and "--advertise HOST" in refused.stderr
        store = cluster.start_store([*every, "--advertise=localhost"])
        wait_until(lambda: cluster.stat()["nodes"], 10, "it has joined")
        told = cluster.stat()["nodes"][0]
        for name, port in (("data", "data_address"), ("rpc", "rpc_address"), ("http", "http_address")):
            assert told[port] == "localhost:" + store.address[name].rsplit(":", 1)[1]
        file = tmp_path / "file"
        file.write_bytes(os.urandom(300000))
        for command in (["put", str(file)], ["stat"]):
            subprocess.run([os.path.join(BIN, "assay"), *command, *cluster.link()], check=True, timeout=60)


def test_an_interface_that_is_not_there_is_said():
    ended = subprocess.run([os.path.join(BIN, "assay-kvstore"), "--data-address=203.0.113.7:0"], capture_output=True,
                           timeout=60, text=True, check=False)
    assert ended.returncode == 1
    assert "no network interface of this machine has the address 203.0.113.7:0" in ended.stderr
