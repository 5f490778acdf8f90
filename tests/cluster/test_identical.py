# SPDX-License-Identifier: Apache-2.0
"""Real prompts, verified, by real processes that are killed, stopped and cut off: the bits of full-cache decoding.

Every prompt (tests/tools/prompts.py) runs with every compressor, greedy and sampled, on a worker that swaps and on one that
pushes down, some as two choices of one chain, with fixed and adaptive horizons; many at a time, in random order. Beside it
plain decoding (`compressor: none`) on the other worker or the same, on a chain of its own, whose token ids and logits hashes
are the reference.

Without ASSAY_TEST_FULL a sample, on loopback; with it all prompts, over a network of hosts whose links are cut, too. A seed
chooses order, horizons and faults: ASSAY_TEST_SEED repeats them, as far as processes repeat themselves.
"""
import collections
import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time

from crash import FULL
from harness import Cluster, ask, post, wait_until
from hosts import HostsCluster

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))
import netns  # noqa: E402
import prompts  # noqa: E402

SEED = int(os.environ.get("ASSAY_TEST_SEED", "1"))
COMPRESSORS = ["kivi4", "kivi2", "streaming", "snapkv"]  # for each prompt, and one of these:
OTHERS = ["turbo4", "turbo3", "knorm", "dbudgetkv", "rdkv", "adakv", "keydiff", "expected", "pyramidkv", "tova", "h2o-window",
          "quest", "clusterkv", "specache", "rocketkv"]
SWAPS, PUSHES = 0, 1  # the workers
STORES = 3 if FULL else 2
CLIENTS = 8 if FULL else 4
WINDOW = 24  # jobs that are shuffled: the runs of a prompt stay near each other, and share its chain
LONG = 1300  # tokens: such prompts come last, and are verified in larger steps
ANSWER_SECONDS = 3000  # a long prompt that is lost again and again, on a machine that has other work
DEADLINES = ["--route-deadline=500ms", "--fetch-deadline=2s", "--put-deadline=3s", f"--request-deadline={ANSWER_SECONDS}s"]
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40}


@contextlib.contextmanager
def network_of(hosts):
    """A network, and this thread on its first host; None where there is to be none."""
    if not FULL:
        yield None
        return
    assert netns.missing() is None and shutil.which("tc"), "the long form needs root, /dev/net/tun and tc"
    with netns.Network(hosts) as network, network.hosts[0].entered():
        yield network


class Faults(threading.Thread):
    """What happens to stores and their links, one after the other, until it is ended; then all is whole again. Between two there
    are some seconds, and answers: a slow machine is not to lose blocks faster than it computes them."""

    def __init__(self, world, network, chance):
        super().__init__()
        self.world, self.network, self.random, self.over = world, network, chance, threading.Event()
        self.made, self.failed, self.answers = collections.Counter(), None, threading.Semaphore(0)

    def wait(self, least, most):
        self.over.wait(self.random.uniform(least, most) * (1 if FULL else 0.3))

    def end(self):
        self.over.set()
        for _ in range(4):
            self.answers.release()
        self.join()

    def kill(self, number):
        self.world.stores[number].kill()
        self.wait(0.2, 3)
        if self.network:
            self.world.next_store = number + 1
        self.world.stores[number] = self.world.start_store()
        self.world.stores.pop()

    def stop(self, number):
        self.world.stores[number].signal(signal.SIGSTOP)
        self.wait(0.1, 4)
        self.world.stores[number].signal(signal.SIGCONT)

    def cut(self, number):
        self.network.tell("cut", 0, number + 1)
        self.wait(0.1, 4)
        self.network.tell("heal", 0, number + 1)

    def run(self):
        kinds = [self.kill, self.stop] + [self.cut] * bool(self.network)
        try:
            while not self.over.is_set():
                self.wait(0.5, 6)
                for _ in range(self.random.randint(1, 4)):
                    self.answers.acquire(timeout=30)
                kind = self.random.choice(kinds)
                kind(self.random.randrange(STORES))
                self.made[kind.__name__] += 1
        except BaseException as error:
            self.failed = error
            raise


class Job:
    """One request of a prompt; `same` names those that must give the same bits."""

    def __init__(self, prompt, worker, same, **request):
        self.prompt, self.worker, self.same, self.request = prompt, worker, same, request
        self.answer = None

    def run(self, world):
        self.answer = ask(world.url(self.worker), self.prompt.text, seconds=ANSWER_SECONDS, **self.request)


def jobs_of(index, prompt, chance):
    tokens = 32 if FULL else 12
    for sampled in False, True:
        choice = {"seed": index, **SAMPLED} if sampled else {}
        if sampled and index % 3 == 0 and prompt.tokens <= 2000:
            choice["n"] = 2  # of one chain
        same = (index, sampled)
        worker = (index + sampled) % 2
        yield Job(prompt, worker, same, compressor="none", horizon=0, salt=f"plain-{index}", tokens=tokens, **choice)
        for number, compressor in enumerate([*COMPRESSORS, OTHERS[index % len(OTHERS)]]):
            yield Job(prompt, (index + number + sampled) % 2, same, compressor=compressor, salt=f"{index}", tokens=tokens,
                      horizon=chance.choice([16, 40, None] if prompt.tokens > LONG else [1, 3, 8, 16, 40, None]), **choice)


def fit(world, prompts):
    """The text they are cut out of changes with the repository: none is to be longer than it says."""
    for prompt in prompts:
        count = prompt.tokens + 1
        while count > prompt.tokens:
            status, reply = post(world.url(0) + "/v1/completions/tokenize", {"prompt": prompt.text})
            too_long = status == 400 and reply["error"]["code"] == "context_length_exceeded"
            assert status == 200 or too_long, reply
            count = prompt.tokens * 21 // 20 if too_long else reply["count"]
            if count > prompt.tokens:
                prompt.text = prompt.text[:len(prompt.text) * prompt.tokens // count - 1]


def all_jobs(chance):
    chosen = prompts.cut() if FULL else prompts.cut(per_kind=1, longest=260)
    chance.shuffle(chosen)
    chosen.sort(key=lambda prompt: prompt.tokens > LONG)
    jobs = [job for index, prompt in enumerate(chosen) for job in jobs_of(index, prompt, chance)]
    for begin in range(0, len(jobs), WINDOW // 2):
        window = jobs[begin:begin + WINDOW]
        chance.shuffle(window)
        jobs[begin:begin + WINDOW] = window
    return jobs


def run_all(world, jobs, faults):
    """Some at a time; returns what went wrong first, and what was not as plain decoding is."""
    left, failed, expected = collections.deque(jobs), [], {}

    def client():
        while not failed:
            try:
                job = left.popleft()
            except IndexError:
                return
            try:
                job.run(world)
                assert job.answer.bits == expected.setdefault(job.same, job.answer.bits), "other bits"
            except BaseException as error:
                failed.append((job.prompt.name, job.worker, job.request, repr(error)))
            faults.answers.release()
            if FULL and len(left) % 20 == 0:
                print(f"{time.strftime('%T')} {len(left)} left; {dict(faults.made)}", flush=True)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def report(jobs, faults, seconds):
    verified = [job.answer.usage["assay"] for job in jobs if job.request["compressor"] != "none"]
    total = {what: sum(usage[what] for usage in verified) for what in
             ("drafted_tokens", "accepted_tokens", "verifications", "pushed_verifications", "swapped_bytes", "recomputed_blocks")}
    lengths = [job.answer.usage["prompt_tokens"] for job in jobs]
    print(f"identical: yes; {len(verified)} verified answers of {len({id(job.prompt) for job in jobs})} prompts of {min(lengths)} "
          f"to {max(lengths)} tokens in {seconds:.0f} s; faults {dict(faults)}; {total}")
    return total


def test_verified_answers_are_identical_whatever_happens_to_stores_and_links(tmp_path):
    print(f"ASSAY_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    jobs, begun = all_jobs(chance), time.monotonic()
    options = {"stores": STORES, "workers": 0, "environment": {"UCX_TLS": "tcp"}, "scheduler_options": ["--replicas=2"],
               "store_options": ["--ram=640MiB" if FULL else "--ram=128MiB"]}
    with network_of(STORES + 1) as network:
        with HostsCluster(network, tmp_path, **options) if network else Cluster(tmp_path, **options) as world:
            for mode in "off", "on":
                world.worker_options = [*DEADLINES, f"--push-down={mode}", "--recompute-rate=-1", "--context=8192", f"--sessions={CLIENTS}",
                                        "--threads=1"]  # of two workers on as many cores as there are
                world.workers.append(world.launch_worker())
            for worker in world.workers:
                worker.wait_ready()
            fit(world, {id(job.prompt): job.prompt for job in jobs}.values())
            faults = Faults(world, network, random.Random(SEED + 1))
            faults.start()
            try:
                failed = run_all(world, jobs, faults)
            finally:
                faults.end()
            assert not failed and not faults.failed, (failed, faults.failed)
            total = report(jobs, faults.made, time.monotonic() - begun)
            for worker in SWAPS, PUSHES:
                wait_until(lambda worker=worker: world.metric("assay_worker_reserved_bytes", worker) == 0, 60, "memory is given back")
                assert world.metric("assay_worker_sessions", worker) == 0
                assert world.metric("assay_client_put_conflicts_total", worker) == 0, "other K and V under a key"
    assert total["swapped_bytes"] > 0 and total["pushed_verifications"] > 0
    assert 0 < total["accepted_tokens"] < total["drafted_tokens"]
    assert not FULL or (total["recomputed_blocks"] > 0 and set(faults.made) == {"kill", "stop", "cut"})
