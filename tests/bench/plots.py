#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `./dev bench engine --json > RAW.json` measured: plots.py RAW.json [RAW.json ...] FOLDER writes SVG files.

throughput by sessions, by context, by link and by compressor, acceptance by position in the draft, and the lanes of what overlaps.
A chart whose part was not measured is left out. Parts that were measured one by one (--only) are put together.

--tables FILE writes the tables of arms and rows, too: between the lines <!-- engine tables --> and <!-- end --> of that Markdown.
"""
import argparse
import json
import sys
from pathlib import Path

import svg
from svg import Chart

NAMES = {"kivi4": "kivi4", "kivi2": "kivi2", "streaming": "streaming", "snapkv": "snapkv", "full_swap": "full cache swapped",
         "no_overlap": "kivi4, no overlap", "push_down": "kivi4, push-down", "push_down_auto": "kivi4, push or swap",
         "prompt_lookup": "kivi4, prompt lookup", "resident": "full cache resident"}
COLOUR = {"kivi4": 0, "kivi2": 2, "streaming": 5, "snapkv": 3, "full_swap": 1, "no_overlap": 4, "push_down": 2, "prompt_lookup": 3,
          "push_down_auto": 5}
LANES = {"draft": 0, "swap": 1, "verify": 2, "push-down": 3}
LANES_S = 12  # seconds that are drawn


def find(results, **want):
    return next((one for one in results if all(one[key] == value for key, value in want.items())), None)


def busy(results):
    return "; others took part of the processors" if any(one["others_cores"] > 0.2 for one in results) else ""


def against(results, folder, key, fixed, name, x_name):
    """Lines of kivi4 and the full cache swapped over one of the cell's dimensions, the others fixed."""
    series = {arm: sorted((one[key], one["tokens_per_s"]) for one in results if one["arm"] == arm and all(one[k] == v for k, v in fixed.items()))
              for arm in ("kivi4", "full_swap")}
    values = sorted({value for points in series.values() for value, _ in points})
    if len(values) < 2 or not all(series.values()):
        return
    share = {value: (i + 0.5) / len(values) for i, value in enumerate(values)}
    rates = [rate for points in series.values() for _, rate in points]
    held = ", ".join({"sessions": f"{v} sessions", "context": f"{v:,} tokens", "gbit": f"link of {v} Gbit/s"}[k] for k, v in fixed.items())
    chart = Chart(f"Tokens per second by {x_name}", held + busy(results), "tokens/s, logarithmic", max(rates) * 1.6, min(rates) * 0.6)
    chart.x_axis(x_name, [(share[value], f"{value:,}") for value in values])
    chart.names([chart.line(COLOUR[arm], NAMES[arm], [(share[value], rate) for value, rate in points]) for arm, points in series.items()])
    chart.write(folder / f"engine-{name}.svg")


def arms_by_link(results, folder, arms, name, title, note):
    """Bars of arms at each link rate, with the ceiling as a stroke."""
    links = sorted({one["gbit"] for one in results})
    here = [arm for arm in arms if any(find(results, arm=arm, gbit=gbit) for gbit in links)]
    if not here:
        return
    chosen = [one for one in results if one["arm"] in here]
    tops = [max(one["tokens_per_s"], one.get("ceiling", {}).get("tokens_per_s", 0)) for one in chosen]
    chart = Chart(title, note + busy(results), "tokens/s", max(tops) * 1.15)
    chart.x_axis("link", [((i + 0.5) / len(links), f"{gbit:g} Gbit/s") for i, gbit in enumerate(links)])
    wide = 0.8 / len(links) / len(here)
    for i, gbit in enumerate(links):
        for j, arm in enumerate(here):
            one = find(results, arm=arm, gbit=gbit)
            if one:
                share = (i + 0.5) / len(links) + (j - (len(here) - 1) / 2) * wide
                chart.bar(COLOUR[arm], share, wide * 0.8 * (svg.WIDTH - svg.LEFT - svg.RIGHT), one["tokens_per_s"],
                          one.get("ceiling", {}).get("tokens_per_s"))
    chart.legend([(COLOUR[arm], NAMES[arm]) for arm in here])
    chart.write(folder / f"engine-{name}.svg")


def acceptance(by_position, folder):
    chart = Chart("Acceptance by position in the draft", "of the drafts that are right up to a position, the share that is right there; drafts of 64",
                  "share", 1)
    count, ends = max(map(len, by_position.values())), []
    chart.x_axis("position", [((i - 1) / (count - 1), i) for i in (1, 16, 32, 48, count)])
    for arm, shares in by_position.items():
        points = [(i / (count - 1), share) for i, share in enumerate(smooth(shares)) if share is not None]
        ends.append(chart.line(COLOUR[arm], NAMES[arm], points, dots=False))
    chart.names(ends)
    chart.write(folder / "engine-acceptance.svg")


def smooth(shares, reach=2):
    """The mean of neighbours: few drafts reach far."""
    out = []
    for i in range(len(shares)):
        near = [share for share in shares[max(0, i - reach):i + reach + 1] if share is not None]
        out.append(sum(near) / len(near) if shares[i] is not None and near else None)
    return out


def lanes(result, folder, name):
    """What each session did when, one row a session, and when the device computed."""
    spans = result["lanes"]
    last = max(end for _, _, _, end in spans)
    begin = max(0, last * 0.6)
    end = min(last, begin + LANES_S)
    sessions = sorted({session for lane, session, _, _ in spans if lane in LANES})
    row_height, body = 26, []
    height = svg.TOP + row_height * (len(sessions) + 1) + 40

    def bar(kind, row, offset, tall, since, until):
        since, until = max(since, begin), min(until, end)
        if since < until:
            scale = (svg.WIDTH - svg.LEFT - svg.RIGHT) / (end - begin)
            body.append(f'<g class="{svg.SERIES[kind]}"><rect class="fill" x="{svg.LEFT + (since - begin) * scale:.1f}" '
                        f'y="{svg.TOP + row * row_height + offset}" width="{max((until - since) * scale, 0.6):.2f}" height="{tall}"/></g>')
    offsets = {"draft": (2, 6), "swap": (9, 6), "verify": (16, 6), "push-down": (9, 6)}
    for lane, session, since, until in spans:
        if lane in LANES:
            bar(LANES[lane], sessions.index(session), *offsets[lane], since, until)
        elif lane == "device":
            bar(4, len(sessions), 6, 12, since, until)
    for row, label in enumerate([*(f"session {i + 1}" for i in range(len(sessions))), "device"]):
        body.append(f'<text x="{svg.LEFT - 6}" y="{svg.TOP + row * row_height + 16}" text-anchor="end" class="value">{label}</text>')
    for i, (lane, kind) in enumerate([*LANES.items(), ("device computes", 4)]):
        x, y = svg.WIDTH - svg.RIGHT + 12, svg.TOP + 12 + 20 * i
        body.append(f'<g class="{svg.SERIES[kind]}"><rect class="fill" x="{x}" y="{y - 9}" width="11" height="11"/></g><text x="{x + 17}" y="{y + 1}">{lane}</text>')
    body.append(f'<text class="note" x="{svg.LEFT}" y="{height - 14}">{end - begin:.0f} s of {result["sessions"]} sessions of {result["context"]:,} tokens, '
                f'{result["gbit"]:g} Gbit/s</text>')
    hidden = "" if result["hidden"] is None else f"; {result['hidden']:.0%} of swap time hidden"
    svg.write(folder / f"engine-{name}.svg", svg.WIDTH, height, "What overlaps" if name == "lanes" else "In turn, without overlap",
              f"{NAMES[result['arm']]}: {result['tokens_per_s']:.1f} tokens/s{hidden}", body)


def moved(result):
    return result["swapped_bytes_per_token"] + result["pushed_bytes_per_token"]


def of_arm(result):
    run = "" if not result["mean_draft"] else f"{result['mean_accepted_run']:.1f} of {result['mean_draft']:.1f}"
    bytes_moved = f"{moved(result) / 1e6:.3g} MB" if moved(result) else ""
    ceiling = f"{result['ceiling']['tokens_per_s']:.0f}" if "ceiling" in result else ""
    return (f"| {result['sessions']} x {result['context']:,} | {result['gbit']:g} | {result['arm']} | {result['tokens_per_s']:.3g} | {ceiling} | {bytes_moved} | "
            f"{run} | {result['others_cores']:.1f} | {result.get('identical', '')} |")


def tables(measured):
    """Markdown of everything that was measured."""
    lines = [f"{measured[0]['machine']}; " + "; ".join(f"`{one['command']}` at {one['commit']}" for one in measured), ""]
    for part in ("main", "sweep", "sixteen", "shared", "first", "runs"):
        results = [result for one in measured for result in one["raw"].get(part, {}).get("results", [])]
        if results:
            lines += [f"Arms of the part `{part}`:", "", "| sessions x tokens | Gbit/s | arm | tokens/s | ceiling | verifying moves, a token | drafts accepted | others' cores | identical |",
                      "|---|---|---|---|---|---|---|---|---|", *map(of_arm, results), ""]
    lines += ["Rows:", "", "| row | value | target | |", "|---|---|---|---|"]
    for row in (row for one in measured for row in one["rows"]):
        lines.append(f"| {row['row']} | {row['value']} | {row['target'].replace('<', '&lt;')} | {row['verdict'] if row['verdict'] != 'info' else ''} |")
    return lines


def write_between(path, mark, lines):
    """Puts lines between this mark of a Markdown and the next <!-- end -->."""
    before, rest = path.read_text().split(mark, 1)
    after = rest.split("<!-- end -->", 1)[1]
    path.write_text("\n".join([before + mark, *lines, "<!-- end -->" + after]))


def write_tables(path, measured):
    write_between(path, "<!-- engine tables -->", [*tables(measured), ""])


def draw(raw, folder):
    folder.mkdir(parents=True, exist_ok=True)
    main_results = raw.get("main", {}).get("results", [])
    swept = [result for part in ("main", "sweep", "sixteen") for result in raw.get(part, {}).get("results", [])]
    if swept:
        sessions, context = max(one["sessions"] for one in main_results or swept), max(one["context"] for one in swept)
        against(swept, folder, "sessions", {"context": context, "gbit": 1}, "sessions", "sessions")
        against(swept, folder, "context", {"sessions": min(sessions, 8), "gbit": 1}, "context", "tokens of context")
        at = f"{sessions} sessions of {context:,} tokens"
        arms_by_link(main_results, folder, ["full_swap", "no_overlap", "kivi4", "push_down", "prompt_lookup"], "link", "Tokens per second by link",
                     at + "; strokes: the ceiling by measured rates")
        arms_by_link(main_results, folder, ["kivi4", "kivi2", "streaming", "snapkv"], "compressor", "Tokens per second by compressor",
                     at + "; strokes: the ceiling by measured rates")
    for arm, name in (("kivi4", "lanes"), ("no_overlap", "lanes-in-turn")):
        result = find(main_results, arm=arm, gbit=1)
        if result and result.get("lanes"):
            lanes(result, folder, name)
    if raw.get("runs", {}).get("by_position"):
        acceptance(raw["runs"]["by_position"], folder)
    print("\n".join(str(path) for path in sorted(folder.glob("engine-*.svg"))))



def main():
    parser = argparse.ArgumentParser(prog="plots.py", description=__doc__.splitlines()[0])
    parser.add_argument("raw", nargs="+", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=Path, metavar="FILE", help="Markdown that has the two marks")
    args = parser.parse_args()
    measured = [json.loads(path.read_text()) for path in args.raw]
    draw({part: raw for one in measured for part, raw in one["raw"].items()}, args.folder)
    if args.tables:
        write_tables(args.tables, measured)


if __name__ == "__main__":
    main()
