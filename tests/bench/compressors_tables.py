#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `./dev bench compressors --json > RAW.json` measured as tables: compressors_tables.py RAW.json [RAW.json ...] FILE puts them
between the lines <!-- compressors tables --> and <!-- end --> of that Markdown. Parts that were measured one by one are put together.
"""
import argparse
import json
from pathlib import Path

import plots

MARK = "<!-- compressors tables -->"


def markdown(header, lines):
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *("| " + " | ".join(line) + " |" for line in lines), ""]


def attention(results):
    header = ["attention's tokens/s, of f16's"] + [f"{run['tokens']:,} tokens, {run['threads']} thread{'s' * (run['threads'] > 1)}" for run in results]
    of = [{one["name"]: one["ratio"] for one in run["methods"][1:]} for run in results]
    lines = [[name, *(f"{ratios[name]:.2f}" for ratios in of)] for name in of[0]]
    return markdown(header, [*lines, ["others' cores", *(f"{run['others_cores']:.1f}" for run in results)]])


def by_method(title, cells):
    """A line a method, a column a context; cells: {(method, context): text}."""
    contexts = sorted({context for _, context in cells})
    names = dict.fromkeys(name for name, _ in cells)
    return markdown([title] + [f"{context:,} tokens" for context in contexts], [[name, *(cells.get((name, context), "") for context in contexts)] for name in names])


def off(held, formula):
    return "" if formula is None else f", {100 * (held / formula - 1):+.2f} %"


def held(raw):
    segments = {(one["name"], run["tokens"]): f"{one['allocated'] * run['tokens'] / 1e6:.2f} MB{off(one['allocated'], one['formula'])}"
                for run in raw["results"] for one in run["methods"]}
    sessions = {(one["name"], one["context"]): f"{one['resident_bytes'] / 1e6:.2f} MB"
                + off(one["resident_bytes"], one["formula_bytes"] and one["formula_bytes"] + one["tail_bytes"]) for one in raw["sessions"]}
    return by_method("segment, and what it is over its formula", segments) + by_method("session with its tail, and the same", sessions)


def sealing(results):
    cells = {(one["name"], one["context"]): f"{100 * one['share']:.1f} %" for one in results}
    for context in {one["context"] for one in results}:
        loads = [one["others_cores"] for one in results if one["context"] == context]
        cells["others' cores", context] = f"{min(loads):.1f} to {max(loads):.1f}"
    return by_method("sealing, of the rest of the prefill", cells)


def runs(results):
    lines = [[one["compressor"], f"{one['mean_accepted_run']:.1f} of {one['mean_draft']:.1f}", str(one["verifications"]), f"{one['others_cores']:.1f}",
              one["identical"]] for one in results if one["verifications"] and one["mean_draft"]]
    return markdown(["drafts of 64", "accepted", "verifications", "others' cores", "identical"], lines)


def rows(measured):
    """Of those with a target, only the ones that miss are spelled out."""
    aimed = [row for one in measured for row in one["rows"] if row["verdict"] != "info"]
    missed = [[row["row"], str(row["value"]), row["target"].replace("<", "&lt;")] for row in aimed if row["verdict"] == "miss"]
    said = f"{len(aimed) - len(missed)} of {len(aimed)} rows with a target pass" + ("; these miss:" if missed else ".")
    return [said, "", *(markdown(["row", "value", "target"], missed) if missed else [])]


WRITERS = {"attention": lambda raw: attention(raw["results"]), "bytes": held, "sealing": lambda raw: sealing(raw["results"]),
           "runs": lambda raw: runs(raw["results"])}


def tables(measured):
    lines = [f"{measured[0]['machine']}; " + "; ".join(f"`{one['command']}` at {one['commit']}" for one in measured), ""]
    for part, write in WRITERS.items():
        for one in measured:
            if part in one["raw"] and "failed" not in one["raw"][part]:
                lines += write(one["raw"][part])
    return lines + rows(measured)


def main():
    parser = argparse.ArgumentParser(prog="compressors_tables.py", description=__doc__.splitlines()[0])
    parser.add_argument("raw", nargs="+", type=Path)
    parser.add_argument("file", type=Path, help="Markdown that has the two marks")
    args = parser.parse_args()
    plots.write_between(args.file, MARK, tables([json.loads(path.read_text()) for path in args.raw]))


if __name__ == "__main__":
    main()
