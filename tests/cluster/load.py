# SPDX-License-Identifier: Apache-2.0
"""Load on a cluster through libassay, from a process of its own."""
import json
import os
import select
import subprocess
import time

from harness import BIN, END_SECONDS


class Load:
    """tests/tools/load.c; `counts` are the latest that it has printed. run_in: a command that runs it on another host."""

    def __init__(self, scheduler, deadline_ms, run_in=(), environment=None):
        self.child = subprocess.Popen([*run_in, os.path.join(BIN, "load"), scheduler, str(deadline_ms), "1"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})})
        self.rest, self.counts = b"", None

    def read(self, seconds=0.0):
        while select.select([self.child.stdout], [], [], seconds)[0]:
            more = os.read(self.child.stdout.fileno(), 65536)
            if not more:
                return
            *lines, self.rest = (self.rest + more).split(b"\n")
            if lines:
                self.counts = json.loads(lines[-1])
            seconds = 0.0

    def wait(self, condition, seconds, what):
        """Until `condition` of the counts holds."""
        deadline = time.monotonic() + seconds
        while self.counts is None or not condition(self.counts):
            assert self.child.poll() is None and time.monotonic() < deadline, f"not in time: {what}: {self.counts}"
            self.read(0.2)

    def goes_on(self, more=50, what="reads"):
        """So many more reads have ended, or hit_blocks have been read."""
        self.read()
        want = (self.counts[what] if self.counts else 0) + more
        self.wait(lambda counts: counts[what] >= want, 60, f"{more} more {what}")

    def kill(self):
        """As kill -9 does."""
        self.child.kill()
        self.child.wait(END_SECONDS)
        self.child.stdin.close()
        self.child.stdout.close()

    def end(self):
        self.child.stdin.close()
        while self.child.poll() is None:
            self.read(END_SECONDS)
        self.read()
        self.child.stdout.close()
        assert self.child.returncode == 0
        return self.counts
