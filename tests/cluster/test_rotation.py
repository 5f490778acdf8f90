# SPDX-License-Identifier: Apache-2.0
"""Certificates, keys and quotas of a cluster are replaced while it works: SIGHUP, and nothing is restarted or fails."""
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.request

from harness import BIN, Cluster, wait_until
from test_tenants import Authority as Keys
from test_tls import Authority

NAMES = ("scheduler", "store", "person")


class Load(threading.Thread):
    """Puts a file and gets it again until it is told to stop, as a person with a token and a certificate."""

    def __init__(self, folder, scheduler, options):
        super().__init__()
        self.folder, self.scheduler, self.options = str(folder), scheduler, options
        self.rounds, self.failed, self.ending = 0, None, threading.Event()

    def path(self, name):
        return os.path.join(self.folder, name)

    def ask(self, name, *arguments):
        return subprocess.run([os.path.join(BIN, "assay"), name, f"--scheduler={self.scheduler}", *self.options,
                               *arguments], capture_output=True, text=True, timeout=60)

    def assay(self, name, *arguments):
        reply = self.ask(name, *arguments)
        assert reply.returncode == 0, (name, reply.stderr)
        return reply.stdout

    def run(self):
        try:
            while not self.ending.is_set():
                content = os.urandom(300000)
                with open(self.path("file"), "wb") as file:
                    file.write(content)
                with open(self.path("chain"), "w") as file:
                    file.write(self.assay("put", "--json", self.path("file")))
                self.assay("get", self.path("chain"), "--out=" + self.path("back"))
                with open(self.path("back"), "rb") as file:
                    assert file.read() == content
                self.rounds += 1
        except BaseException as error:
            self.failed = error

    def some_rounds(self):
        goal = self.rounds + 2
        wait_until(lambda: self.rounds >= goal or self.failed, 30, "the load goes on")
        assert self.failed is None, self.failed


def replace(source, target):
    shutil.copy(source, target + ".new")
    os.rename(target + ".new", target)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def counts(process, words):
    return process.log_text().count(words)


def figure(process, name):
    text = urllib.request.urlopen(f"http://{process.address['http']}/metrics", timeout=30).read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).rsplit(" ", 1)[1])


def hang_up(processes, words):
    """SIGHUP, and what is to be in each log once more."""
    before = [counts(process, words) for process in processes]
    for process in processes:
        process.signal(signal.SIGHUP)
    for process, count in zip(processes, before):
        wait_until(lambda: counts(process, words) > count, 10, words)


def test_certificates_and_keys_are_replaced_under_load(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new, keys = Authority(tmp_path / "old", "ca"), Authority(tmp_path / "new", "ca"), Keys(tmp_path)
    options = {name: old.sign(name) for name in NAMES}
    retired = [shutil.copy(old.path(*file), tmp_path) for file in (("ca", "pem"), ("person", "pem"), ("person", "key"))]
    retired = [f"--tls-{option}={path}" for option, path in zip(("ca", "cert", "key"), retired)]
    for name in NAMES:
        new.sign(name)
    first, token = keys.issue("first", "--tenant=7"), keys.issue("token", "--tenant=7")
    more = [f"--cluster-key={keys.file}"]
    with Cluster(tmp_path, workers=0, scheduler_options=options["scheduler"] + more,
                 store_options=options["store"] + more, cli_options=options["person"]) as cluster:
        daemons = [cluster.scheduler, cluster.stores[0]]
        load = Load(tmp_path, cluster.scheduler.address["rpc"], [f"--token={token}", *options["person"]])
        load.start()
        try:
            load.some_rounds()
            both = tmp_path / "both.pem"  # authorities, for the time of the change
            both.write_text("".join(open(authority.path("ca", "pem")).read() for authority in (old, new)))
            replace(both, old.path("ca", "pem"))
            hang_up(daemons, "certificates are read again")
            load.some_rounds()
            replace(new.path("store", "pem"), old.path("store", "pem"))  # and not its key
            hang_up(daemons[1:], "is not the key of the certificate in --tls-cert")
            load.some_rounds()
            for name in ("scheduler", "store"):
                replace(new.path(name, "pem"), old.path(name, "pem"))
                replace(new.path(name, "key"), old.path(name, "key"))
            hang_up(daemons, "certificates are read again")
            load.some_rounds()
            # Keys of tokens: the new one is known to all before it signs, and signs before the old one goes.
            keys.add_key("--last")
            hang_up(daemons, "read the cluster's keys again: 2")
            with open(keys.file) as file:
                signs, added = re.findall(r"^[0-9a-f]{64}$", file.read(), re.M)
            write(keys.file, f"{added}\n{signs}\n")
            hang_up(daemons, "read the cluster's keys again: 2")
            os.rename(keys.issue("token.new", "--tenant=7"), token)
            load.some_rounds()
            write(keys.file, f"{added}\n")
            hang_up(daemons, "read the cluster's keys again: 1")
            load.some_rounds()
        finally:
            load.ending.set()
            load.join()
        assert load.failed is None, load.failed
        scheduler = f"--scheduler={cluster.scheduler.address['rpc']}"
        reply = subprocess.run([os.path.join(BIN, "assay"), "put", scheduler, f"--token={first}", *options["person"],
                                str(tmp_path / "file")], capture_output=True, text=True, timeout=60)
        assert reply.returncode == 1 and "not signed by a key of that store" in reply.stderr, reply.stderr
        # The old authority goes: its people, too.
        for suffix in ("pem", "key"):
            replace(new.path("person", suffix), old.path("person", suffix))
        replace(new.path("ca", "pem"), old.path("ca", "pem"))
        hang_up(daemons, "certificates are read again")
        reply = subprocess.run([os.path.join(BIN, "assay"), "stat", scheduler, *retired], capture_output=True, text=True,
                               timeout=60)
        assert reply.returncode == 1 and "no connection over tls" in reply.stderr
        nodes = cluster.stat()["nodes"]  # with the new certificates
        assert [node["state"] for node in nodes] == ["alive"]
        assert figure(cluster.scheduler, "assay_scheduler_joins_total") == 1, "the store has never been lost"
        assert figure(cluster.stores[0], 'assay_tls_reloads_total{result="taken"}') == 6
        assert figure(cluster.stores[0], 'assay_tls_reloads_total{result="refused"}') == 1
        assert figure(cluster.stores[0], "assay_cluster_keys") == 1


def test_quotas_of_a_file_hold_from_the_start_and_are_replaced(tmp_path):
    quotas = str(tmp_path / "quotas")
    write(quotas, "# tenant namespace bytes\n0 * 8MiB\n")
    with Cluster(tmp_path, workers=0, store_options=[f"--quota-file={quotas}"]) as cluster:
        store, load = cluster.stores[0], Load(tmp_path, cluster.scheduler.address["rpc"], [])
        for number in range(4):
            with open(load.path("file"), "wb") as file:
                file.write(os.urandom(3 << 20))
            wait_until(lambda: load.ask("put", load.path("file")).returncode == 0, 10, "eviction makes room")
        assert 3 << 20 <= figure(store, "assay_kvstore_pool_used_bytes") <= 8 << 20
        shown = load.assay("quota").splitlines()
        assert any("all of the tenant" in line and "8.4 MB" in line for line in shown), shown
        write(quotas, "0 * 8MiB\n0 namespace 1MiB\n")
        hang_up([store], "line 2 names no namespace: 64 hexadecimal digits")
        wait_until(lambda: counts(store, "the quotas in force are kept"), 10, "it says what holds")
        write(quotas, "0 * 4MiB\n")
        hang_up([store], "1 quotas are in force")
        wait_until(lambda: figure(store, "assay_kvstore_pool_used_bytes") <= 4 << 20, 10, "the new quota holds")
        assert figure(store, 'assay_kvstore_quota_file_reads_total{result="refused"}') == 1
    wrong = subprocess.run([os.path.join(BIN, "assay-kvstore"), "--ram=16MiB", f"--quota-file={tmp_path}/none"],
                           capture_output=True, text=True, timeout=30)
    assert wrong.returncode == 1 and "--quota-file" in wrong.stderr and "No such file" in wrong.stderr
