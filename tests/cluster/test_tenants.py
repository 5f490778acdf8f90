# SPDX-License-Identifier: Apache-2.0
"""Tenants: keys of a cluster, tokens under them, and stores that admit and separate by them."""
import json
import os
import stat
import subprocess

from harness import BIN


def assay(*arguments, **options):
    return subprocess.run([os.path.join(BIN, "assay"), *arguments], capture_output=True, text=True, timeout=60, **options)


class Authority:
    """The cluster's key file, and tokens under it."""

    def __init__(self, folder, name="keys"):
        self.folder, self.file = str(folder), os.path.join(str(folder), name)
        self.add_key()

    def add_key(self):
        reply = assay("token", "key", self.file)
        assert reply.returncode == 0, reply.stderr
        return reply.stdout.split()[1]

    def issue(self, name, *options):
        path = os.path.join(self.folder, name)
        reply = assay("token", "issue", f"--cluster-key={self.file}", f"--out={path}", *options)
        assert reply.returncode == 0, reply.stderr
        return path

    def show(self, path):
        reply = assay("token", "show", "--json", f"--cluster-key={self.file}", path)
        return reply.returncode, json.loads(reply.stdout)


def test_keys_and_tokens_are_made_shown_and_outlive_a_new_key(tmp_path):
    keys = Authority(tmp_path)
    assert stat.S_IMODE(os.stat(keys.file).st_mode) == 0o600
    old = keys.issue("old", "--tenant=7", "--ttl=2d")
    assert stat.S_IMODE(os.stat(old).st_mode) == 0o600
    code, said = keys.show(old)
    assert code == 0 and said["tenant"] == 7 and said["rights"] == "read,write" and said["verdict"] == "is good"
    assert 2 * 86400 - 60 < said["left_s"] <= 2 * 86400
    second = keys.add_key()
    assert keys.show(old)[0] == 0, "a key before it takes nothing from an old one"
    new = keys.issue("new", "--rights=peer,read")
    assert keys.show(new)[1]["key"] == second
    with open(keys.file) as file:
        lines = file.read().split("\n")
    with open(keys.file, "w") as file:  # the old key is retired
        file.write("\n".join(lines[:2]))
    code, said = keys.show(old)
    assert code == 1 and "signed by a key that is not in" in said["verdict"]
    assert keys.show(new)[0] == 0


def test_a_token_that_makes_no_sense_is_not_issued(tmp_path):
    keys = Authority(tmp_path)
    for options, word in ((["--rights=read"], "--tenant"), (["--tenant=1", "--rights=peer"], "--tenant"),
                          (["--tenant=1", "--rights=all"], "--rights"), (["--tenant=-1"], "--tenant"),
                          (["--tenant=1", "--ttl=0"], "--ttl")):
        reply = assay("token", "issue", f"--cluster-key={keys.file}", *options)
        assert reply.returncode == 2 and word in reply.stderr and reply.stdout == ""
    reply = assay("token", "issue", "--tenant=1", f"--cluster-key={tmp_path}/none")
    assert reply.returncode == 1 and "No such file" in reply.stderr
    (tmp_path / "text").write_text("hello\n")
    reply = assay("token", "show", str(tmp_path / "text"))
    assert reply.returncode == 1 and "holds no token" in reply.stderr
