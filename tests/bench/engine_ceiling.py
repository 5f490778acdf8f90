# SPDX-License-Identifier: Apache-2.0
"""The ceiling of `./dev bench engine`: tokens per second that the machine's measured rates allow a cell, and which of them binds.

A round of a session drafts k tokens on its resident cache, verifies k + 1 rows over its full cache and emits e = a + 1 tokens, a
being the drafts that were accepted (k and a as the cell had them). It takes

    device  D = k * (Pd + Ad) + (k + 1) * (Pv + Av)      seconds of the processors
        Pd, Pv  products of a row: two operations for each weight / the rate of products of as many rows as share a step: those of all
                sessions that draft together (measured in the cell); k + 1 of a verification
        Ad      attention of a draft row: resident bytes / the rate of reading memory
        Av      attention of a verified row: F * tokens / the rate of attention of k + 1 rows
        F = 4 * layers * query heads * head dimension, operations for each token that is attended to
    link    L = bytes brought / the cable's rate

and the device and the link are both serial: however many sessions there are and whatever overlaps, no more than e / max(D, L) tokens
leave in a second. Rates are measured in the same run: bench_kernels, iperf3 over the same cable.

Where store, cable and worker have the same cores, bytes that are moved take of the time to compute. So beside this ceiling stands
one of e / max(D + c, L), c the processor time of store and worker for the bytes, by what a fetch of a prefix costs, over the threads.
"""
import os
import re
import subprocess

import table
from engine_cells import FULL_TOKEN_BYTES
from engine_cluster import THREADS, cached_tokens, cpu_s
from peers import BIN, Iperf

LAYERS, Q_HEADS, DIM = 30, 9, 64  # of SmolLM2-135M
# Bytes that a draft row attends to, as full-cache tokens.
KEPT_TOKENS = {"kivi4": lambda tokens: tokens / 3, "kivi2": lambda tokens: tokens / 5, "streaming": lambda tokens: min(tokens, 384),
               "snapkv": lambda tokens: tokens / 4}


def kernel_rates(model):
    """GFLOP/s of products and attention, GB/s of reading memory, as bench_kernels prints them; bytes of the weights."""
    one = table.one_line([BIN / "bench_model", "--model", model, "--threads", str(THREADS), "--prompt", "64", "--decode", "1"])
    text = "".join(subprocess.run([BIN / "bench_kernels", str(THREADS), one["kernels"]], capture_output=True, text=True, check=True,
                                  env={**os.environ, "ONLY": part}).stdout for part in ("products", "attention"))
    products, attention = {}, {}
    for rows, rate in re.findall(r"matmul (\d+) x \d+ x \d+ +([\d.]+) GFLOP", text):
        products[int(rows)] = max(products.get(int(rows), 0), float(rate))
    for rows, rate in re.findall(r"attention (\d+) rows of \d+ +([\d.]+) GFLOP", text):
        attention[int(rows)] = max(attention.get(int(rows), 0), float(rate))
    memory = re.findall(r"reading ([\d.]+) MB +([\d.]+) GB/s", text)
    return {"kernels": one["kernels"], "weight_bytes": one["weight_bytes"], "products_gflops": products, "attention_gflops": attention,
            "memory_gb_per_s": float(max(memory, key=lambda pair: float(pair[0]))[1])}


def at_rows(rates, rows):
    """Operations per second where so many rows share what is read: the best rate that was measured of no more rows than the next
    count above."""
    above = min((count for count in rates if count >= rows), default=max(rates))
    return 1e9 * max(rate for count, rate in rates.items() if count <= above)


def link_rates(cluster, links):
    """Bytes per second that iperf3 moves from the store's host to the worker's."""
    store, worker = cluster.cable.hosts
    rates = {}
    with Iperf(host=store.address, run_in=store.run_in, client_in=worker.run_in) as iperf:
        for gbit in links:
            cluster.cable.shape(gbit * 125e6)
            rates[str(gbit)] = iperf.gb_per_s(1, omit=1) * 1e9
    return rates


def fetch_cpu_s_per_byte(cluster, prompts, options):
    """Processor seconds of store and worker for a byte of a stored prefix, without those of the tokens that are computed."""
    prompts = [{**prompt, "tokens": prompt["tokens"][:cached_tokens(prompt) + 1]} for prompt in prompts]

    def used(tokens):
        before = cpu_s(worker.child.pid) + cpu_s(cluster.store.pid)
        for prompt in prompts:
            worker.ask(prompt, tokens, {"compressor": "none"})
        return cpu_s(worker.child.pid) + cpu_s(cluster.store.pid) - before

    with cluster.worker(["--sessions=1", *options]) as worker:
        worker.ask(prompts[0], 1, {"compressor": "none"})
        one, five = used(1), used(5)
    return (one - (five - one) / 4) / sum(cached_tokens(prompt) * FULL_TOKEN_BYTES for prompt in prompts)


def measure(cluster, links, prompts, options):
    rates = kernel_rates(cluster.model)
    rates["link_bytes_per_s"] = link_rates(cluster, links)
    rates["fetch_cpu_s_per_byte"] = fetch_cpu_s_per_byte(cluster, prompts, options)
    table.say(f"rates: {rates}")
    return rates


def ceiling(result, rates):
    """Of one cell that drafted and verified: seconds of a round by what they are spent on, tokens per second, and what binds."""
    compressor, tokens = result["compressor"], result["context"]
    k, accepted = result["mean_draft"], result["mean_accepted_run"]
    operations = 4 * LAYERS * Q_HEADS * DIM
    kept_bytes = FULL_TOKEN_BYTES * KEPT_TOKENS[compressor](tokens)
    weights = rates["weight_bytes"]  # of two bytes each, two operations each
    draft = {"products": weights / at_rows(rates["products_gflops"], result["batch"]), "attention": kept_bytes / (rates["memory_gb_per_s"] * 1e9)}
    verify = {"products": weights / at_rows(rates["products_gflops"], k + 1),
              "attention": operations * tokens / at_rows(rates["attention_gflops"], k + 1)}
    moved = (result["swapped_bytes_per_token"] + result["pushed_bytes_per_token"]) * (accepted + 1)
    parts = {"draft_products_s": k * draft["products"], "draft_attention_s": k * draft["attention"],
             "verify_products_s": (k + 1) * verify["products"], "verify_attention_s": (k + 1) * verify["attention"],
             "link_s": moved / rates["link_bytes_per_s"][str(result["gbit"])]}
    device = sum(seconds for what, seconds in parts.items() if what != "link_s")
    moving = moved * rates["fetch_cpu_s_per_byte"] / THREADS
    return {**parts, "device_s": device, "moving_s": moving, "binds": "link" if parts["link_s"] > device else "device",
            "tokens_per_s": (accepted + 1) / max(device, parts["link_s"]),
            "with_moving_tokens_per_s": (accepted + 1) / max(device + moving, parts["link_s"])}
