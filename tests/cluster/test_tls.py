# SPDX-License-Identifier: Apache-2.0
"""A cluster whose remote calls are under mutual TLS, with certificates made for the test."""
import os
import subprocess

import pytest

from harness import BIN, MODEL, Cluster, Process, ask, wait_until
from test_cli import Up
from test_tenants import Authority as Keys, exists

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
LOOPBACK = "subjectAltName=IP:127.0.0.1"


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class Authority:
    """A CA, and the options of whom it signs."""

    def __init__(self, folder, name):
        self.folder, self.name = str(folder), name
        openssl("req", "-x509", *KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self.path(name, "key"), "-out",
                self.path(name, "pem"))

    def path(self, name, suffix):
        return os.path.join(self.folder, f"{name}.{suffix}")

    def sign(self, name):
        request, extension = self.path(name, "csr"), self.path(name, "ext")
        with open(extension, "w") as file:
            file.write(LOOPBACK)
        openssl("req", *KEY, "-subj", f"/CN={name}", "-keyout", self.path(name, "key"), "-out", request)
        openssl("x509", "-req", "-days", "2", "-in", request, "-CA", self.path(self.name, "pem"), "-CAkey",
                self.path(self.name, "key"), "-CAcreateserial", "-extfile", extension, "-out", self.path(name, "pem"))
        return self.options(name)

    def options(self, name):
        return [f"--tls-ca={self.path(self.name, 'pem')}", f"--tls-cert={self.path(name, 'pem')}",
                f"--tls-key={self.path(name, 'key')}"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """One of each under mutual TLS: the cluster, the options of its people, and those of strangers."""
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    people, strangers = ours.sign("person"), theirs.sign("stranger")
    with Cluster(folder, scheduler_options=ours.sign("scheduler"), store_options=ours.sign("store"),
                 worker_options=ours.sign("worker"), cli_options=people) as running:
        yield running, people, strangers, folder


def command(cluster, name, *options):
    return subprocess.run([os.path.join(BIN, "assay"), name, f"--scheduler={cluster.scheduler.address['rpc']}",
                           *options], capture_output=True, text=True, timeout=60)


def test_a_cluster_works_under_mutual_tls(secured, prompt):
    cluster, people, _, _ = secured
    wait_until(lambda: len([n for n in cluster.stat()["nodes"] if n["state"] == "alive"]) == 2, 30, "both nodes join")
    first = ask(cluster.url(), prompt)
    wait_until(lambda: cluster.stat()["directory_blocks"] >= 6, 30, "the prompt's blocks are published")
    again = ask(cluster.url(), prompt)
    assert again.bits == first.bits and again.cached > 0
    stat = cluster.stat()  # asks the scheduler and the store
    assert [node["store"]["blocks"] for node in stat["nodes"] if node["role"] == "store"][0] >= 6
    blocks = command(cluster, "ls", *people)
    assert blocks.returncode == 0 and "KEY" in blocks.stdout and len(blocks.stdout.splitlines()) > 6


def test_a_certificate_of_another_authority_is_refused(secured):
    cluster, _, strangers, _ = secured
    reply = command(cluster, "stat", *strangers)
    assert reply.returncode == 1 and "no connection over tls to " + cluster.scheduler.address["rpc"] in reply.stderr
    assert "a certificate that --tls-ca signed" in reply.stderr


def test_plain_text_is_refused(secured):
    cluster, _, _, _ = secured
    reply = command(cluster, "stat")
    assert reply.returncode == 1 and "--tls-ca" in reply.stderr


def test_a_worker_and_a_store_of_another_authority_do_not_join(secured, tmp_path):
    cluster, _, strangers, _ = secured
    scheduler = f"--scheduler={cluster.scheduler.address['rpc']}"
    before = len(cluster.stat()["nodes"])
    for program, more in (("assay-kvstore", ["--ram=16MiB"]), ("assay-gpuworker", [f"--model={MODEL}",
                                                                                 "--listen=127.0.0.1:0"])):
        process = Process(program, [scheduler, *strangers, *more], str(tmp_path / program)).wait_ready()
        try:
            wait_until(lambda: "no connection over tls to" in process.log_text(), 30, "the refusal is logged")
        finally:
            process.end()
        process.check()
    assert len(cluster.stat()["nodes"]) == before


@pytest.mark.parametrize("program", ["assay-scheduler", "assay-kvstore", "assay-gpuworker", "assay"])
def test_a_certificate_that_does_not_fit_its_authority_ends_the_start(secured, program):
    _, people, strangers, _ = secured
    start = [os.path.join(BIN, program)] + {"assay-gpuworker": [f"--model={MODEL}"], "assay": ["stat"]}.get(program, [])
    reply = subprocess.run([*start, people[0], *strangers[1:]], capture_output=True, text=True, timeout=60)
    assert reply.returncode == 2 and reply.stdout == ""
    assert "--tls-cert" in reply.stderr and "is not accepted by --tls-ca" in reply.stderr
    reply = subprocess.run([*start, people[0]], capture_output=True, text=True, timeout=60)
    assert reply.returncode == 2 and "--tls-cert is missing" in reply.stderr


def test_put_get_and_bench_work_under_mutual_tls(secured, tmp_path):
    cluster, people, strangers, _ = secured
    file, chain = tmp_path / "file", tmp_path / "chain"
    file.write_bytes(os.urandom(2 << 20))
    put = command(cluster, "put", "--json", str(file), *people)
    assert put.returncode == 0, put.stderr
    chain.write_text(put.stdout)
    assert command(cluster, "get", str(chain), f"--out={tmp_path}/back", *people).returncode == 0
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert command(cluster, "bench", "--size=1MiB", "--count=4", "--repeat=1", *people).returncode == 0
    for options, words in ((strangers, "a certificate that tls_ca signed"), ([], "give tls_ca, tls_cert and tls_key")):
        reply = command(cluster, "put", str(file), *options)
        assert reply.returncode == 1 and words in reply.stderr, reply.stderr


@pytest.mark.skipif("ASSAY_TEST_SANITIZED" in os.environ, reason="the interpreter does not load a sanitized library")
def test_the_library_speaks_mutual_tls(secured):
    cluster, people, strangers, _ = secured
    scheduler = cluster.scheduler.address["rpc"]

    def files(options):
        return {name.lstrip("-").replace("-", "_"): path for name, path in (option.split("=", 1) for option in options)}

    reply = exists(scheduler, "00" * 32, **files(people))
    assert reply.returncode == 0 and reply.stdout == "0\n", reply.stderr
    for options, error, words in (
            (files(strangers), "Unreachable", "a certificate that tls_ca signed"),
            ({}, "Unreachable", "if it has TLS, give tls_ca"),
            (files([people[0], *strangers[1:]]), "Invalid", "is not accepted by --tls-ca"),
            (files(people[:2]), "Invalid", "tls-key is missing"),
            ({**files(people), "tls_cert": "/none"}, "Invalid", "No such file")):
        reply = exists(scheduler, "00" * 32, **options)
        assert reply.returncode == 1 and f"assay._errors.{error}" in reply.stderr and words in reply.stderr, reply.stderr


def test_a_scheduler_issues_tokens_to_who_has_a_certificate(secured, tmp_path):
    _, people, strangers, _ = secured
    keys = Keys(tmp_path)
    issue = ["--issue-tokens", f"--cluster-key={keys.file}"]
    start = [os.path.join(BIN, "assay-scheduler"), "--listen=127.0.0.1:0"]
    for options, words in ((issue, "mutual TLS"), (["--issue-tokens", *people], "--cluster-key")):
        reply = subprocess.run([*start, *options], capture_output=True, text=True, timeout=60)
        assert reply.returncode == 2 and words in reply.stderr
    scheduler = Process("assay-scheduler", ["--listen=127.0.0.1:0", *issue, *people], str(tmp_path / "log")).wait_ready()

    def ask_for(*options):
        return subprocess.run([os.path.join(BIN, "assay"), "token", "issue", "--tenant=9", "--ttl=1h",
                               f"--scheduler={scheduler.address['rpc']}", f"--out={tmp_path}/token", *options],
                              capture_output=True, text=True, timeout=60)

    try:
        for options in (strangers, []):
            assert ask_for(*options).returncode == 1 and not (tmp_path / "token").exists()
        assert ask_for(*people).returncode == 0
        code, said = keys.show(str(tmp_path / "token"))
        assert code == 0 and said["tenant"] == 9 and said["rights"] == "read,write"
        assert 3500 < said["left_s"] <= 3600
    finally:
        scheduler.end()
    scheduler.check()


def test_only_operators_change_things_where_they_are_named(tmp_path):
    authority, keys = Authority(tmp_path, "ca"), Keys(tmp_path)
    chief, other = authority.sign("chief"), authority.sign("other")
    more = [f"--cluster-key={keys.file}", "--operator=chief", "--operator=deputy"]
    with Cluster(tmp_path, workers=0, scheduler_options=authority.sign("scheduler") + more + ["--issue-tokens"],
                 store_options=authority.sign("store") + more, cli_options=other) as cluster:
        store = cluster.stores[0].address["data"]
        changes = (("drop", "--all"), ("pin", "00" * 32), ("unpin", "--all"), ("scrub",), ("drain", store),
                   ("quota", "--namespace=" + "00" * 32, "--bytes=1MiB"))
        for name, *rest in changes:
            reply = command(cluster, name, *rest, *other)
            assert reply.returncode == 1 and "denied; your certificate is none of the store's --operator" in reply.stderr, reply.stderr
        issue = ("issue", "--tenant=9", f"--scheduler={cluster.scheduler.address['rpc']}")
        reply = subprocess.run([os.path.join(BIN, "assay"), "token", *issue, *other], capture_output=True, text=True,
                               timeout=60)
        assert reply.returncode == 1 and "--operator" in reply.stderr, reply.stderr
        assert "nobody of --operator (and " in cluster.stores[0].log_text()
        assert command(cluster, "unpin", "--all", *chief).returncode == 0
        assert command(cluster, "scrub", *chief).returncode == 0
        reply = subprocess.run([os.path.join(BIN, "assay"), "token", *issue, *chief], capture_output=True, timeout=60)
        assert reply.returncode == 0, reply.stderr
        assert [node["state"] for node in cluster.stat()["nodes"]] == ["alive"], "to look, any certificate does"
    wrong = subprocess.run([os.path.join(BIN, "assay-kvstore"), "--operator=chief"], capture_output=True, text=True,
                           timeout=60)
    assert wrong.returncode == 2 and "mutual TLS" in wrong.stderr


def test_up_starts_a_cluster_under_mutual_tls(secured, tmp_path):
    _, _, _, folder = secured
    options = Authority(folder, "up-ca").sign("up")
    running = Up(tmp_path, *options)
    try:
        reply = running.assay("stat", "--json", *options)
        assert reply.returncode == 0 and "store-1" in reply.stdout, reply.stderr
        assert running.assay("stat").returncode == 1
    finally:
        assert running.end() == 0
