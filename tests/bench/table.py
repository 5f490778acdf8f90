# SPDX-License-Identifier: Apache-2.0
"""What the tables of `./dev bench` share: rows `row value target pass|miss`, after lines that name the machine, the commit
and the command. A row with target None is there to be read, and passes nothing.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = []


def say(text):
    print(f"# {text}", file=sys.stderr, flush=True)


def row(name, value, target=None, at_most=False):
    verdict = "info"
    if target is not None:
        verdict = "pass" if (value <= target if at_most else value >= target) else "miss"
    shown = "-" if target is None else f"{'<=' if at_most else '>='}{target:.3g}"
    ROWS.append({"row": name, "value": round(value, 3), "target": shown, "verdict": verdict})


def one_line(command, env=None):
    """The last line of a program's output, as JSON."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}"


def main(name, doc, parts):
    parser = argparse.ArgumentParser(prog=f"./dev bench {name}", description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all that was measured")
    parser.add_argument("--only", action="append", choices=list(parts), help="one part; may be given again")
    args = parser.parse_args()
    raw = {part: run_part(part, run, args.quick) for part, run in parts.items() if not args.only or part in args.only}
    return show(name, args.json, raw)


def run_part(part, run, quick):
    """A part that fails is a row that misses: the others are measured all the same."""
    try:
        return run(quick)
    except (Exception, SystemExit) as error:
        say(f"{part}: failed: {error!r}")
        row(f"{part}_runs", 0, 1)
        return {"failed": repr(error)}


def show(name, as_json, raw):
    """Prints all rows; returns the exit code: 1 when one missed."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    facts = {"machine": machine(), "commit": commit.stdout.strip(), "command": " ".join(["./dev bench", name, *sys.argv[1:]])}
    if as_json:
        print(json.dumps({**facts, "rows": ROWS, "raw": raw}, indent=1))
    else:
        for fact, value in facts.items():
            print(f"# {fact}: {value}")
        for r in ROWS:
            print(r["row"], r["value"], r["target"], r["verdict"])
    return 0 if all(r["verdict"] != "miss" for r in ROWS) else 1
