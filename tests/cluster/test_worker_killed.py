# SPDX-License-Identifier: Apache-2.0
"""A worker that is killed with eight sessions running: nothing of them stays behind at the store, and the worker that is
started again answers the same prompts from it, with the same bits."""
import http.client
import re
import threading
import urllib.request

from harness import Cluster, Stream, ask, wait_until

SESSIONS = 8


def together(function):
    """function(0) to function(SESSIONS - 1) at once; their results."""
    results = [None] * SESSIONS

    def run(number):
        results[number] = function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def held(store):
    """What readers and writers hold of a store."""
    text = urllib.request.urlopen(f"http://{store.address['http']}/metrics", timeout=30).read().decode()
    return sum(float(re.search(rf"^assay_kvstore_{name} (\S+)$", text, re.M).group(1)) for name in ("leases", "reservations", "attends"))


def until_cut_off(url, body, begun):
    """Reads a stream, which is to have no end; returns why it ended, as it said."""
    stream, why = Stream(url, body), None
    try:
        for event in stream.events():
            why = event["choices"][0]["finish_reason"]
            begun.release()
    except (http.client.HTTPException, OSError):
        pass
    stream.close()
    return why


def test_a_worker_that_is_killed_with_eight_sessions_running_costs_time_only(tmp_path, prompt):
    prompts = [f"Chapter {number}. {prompt[100 * number:100 * number + 900]}" for number in range(SESSIONS)]
    with Cluster(tmp_path, worker_options=[f"--sessions={SESSIONS}", "--recompute-rate=-1", "--route-deadline=5s"]) as world:
        expected = together(lambda n: ask(world.url(), prompts[n], compressor="none", tokens=12))
        blocks = sum(answer.usage["prompt_tokens"] // 64 for answer in expected)
        wait_until(lambda: world.stat()["directory_blocks"] >= blocks, 60, "the prompts are stored")
        begun = threading.Semaphore(0)
        body = {"max_tokens": 1800, "temperature": 0, "cache_salt": "a", "assay": {"horizon": 4, "ignore_end": True}}
        ends = []
        running = threading.Thread(
            target=lambda: ends.extend(together(lambda n: until_cut_off(world.url(), {**body, "prompt": prompts[n]}, begun))))
        running.start()
        for _ in range(4 * SESSIONS):
            assert begun.acquire(timeout=60)
        wait_until(lambda: world.metric("assay_worker_sessions") == SESSIONS, 60, "all of them run")
        world.workers[0].kill()
        running.join(60)
        assert ends == [None] * SESSIONS
        wait_until(lambda: held(world.stores[0]) == 0, 60, "the store has its memory back")
        world.workers[0] = world.launch_worker().wait_ready()
        answers = together(lambda n: ask(world.url(), prompts[n], tokens=12))
        assert [answer.bits for answer in answers] == [answer.bits for answer in expected]
        assert all(answer.cached >= 64 for answer in answers)
        wait_until(lambda: world.metric("assay_worker_reserved_bytes") == 0, 60, "the worker has its memory back")
