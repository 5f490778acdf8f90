# SPDX-License-Identifier: Apache-2.0
"""Charts as plain SVG that read well on light and on dark pages: lines, bars and lanes.

A chart has one y axis, from 0 or logarithmic, thin grid lines, direct labels in place of a legend where there is room, and no
colours but those of the palettes, which are told apart by lightness too.
"""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 166, 80, 52
LIGHT = ("#1f6feb", "#d4622a", "#2a9d6e", "#9b51c9", "#8a8f96", "#c79a0a")
DARK = ("#5b9dff", "#f08a55", "#4fc796", "#c48ae8", "#9aa1a9", "#e3b93c")
SERIES = tuple(f"s{i}" for i in range(len(LIGHT)))
STYLE = """
text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #40464d }
.title { font-size: 15px; font-weight: 600; fill: #15191e } .note { fill: #6a727b } .value { font-size: 11px }
.grid { stroke: #d9dde2; stroke-width: 1 } .axis { stroke: #8b939c; stroke-width: 1 } .line { fill: none; stroke-width: 2.25 }
.name { font-weight: 600 } .page { fill: #ffffff } .mark { stroke: #15191e; stroke-width: 2 }
%LIGHT%
@media (prefers-color-scheme: dark) {
  text { fill: #b8c0c9 } .title { fill: #eef1f5 } .note { fill: #8d96a0 } .grid { stroke: #2d333b } .axis { stroke: #6a727b }
  .page { fill: #0f1318 } .mark { stroke: #eef1f5 }
%DARK%
}
"""


def colours(palette):
    return " ".join(f".{name} .fill, .{name} .name {{ fill: {colour} }} .{name} .stroke {{ stroke: {colour} }}"
                    for name, colour in zip(SERIES, palette))


def number(value):
    """Short, for people: 0.7, 31, 1,200."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


class Chart:
    def __init__(self, title, note, y_name, y_max, y_min=None, width=WIDTH, height=HEIGHT):
        """y_min: the axis is logarithmic, from there; else it begins at 0."""
        self.width, self.height, self.log = width, height, y_min is not None
        self.low, self.high = (math.log10(y_min), math.log10(y_max)) if self.log else (0, y_max)
        self.body, self.title, self.note = [], title, note
        for value in self.ticks(y_max, y_min):
            y = self.y(value)
            self.add(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(LEFT - 8, y + 4, number(value), anchor="end")
        self.text(16, TOP - 16, y_name, "note")

    def ticks(self, high, low):
        if self.log:
            return [10.0 ** power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
        step = 10 ** math.floor(math.log10(high))
        step = next(step * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if high / (step * part) <= 6)
        return [step * i for i in range(int(high / step + 1e-9) + 1)]

    def add(self, markup):
        self.body.append(markup)

    def text(self, x, y, words, kind="", anchor="start"):
        self.add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(words))}</text>')

    def x(self, share):
        return LEFT + share * (self.width - LEFT - RIGHT)

    def y(self, value):
        at = math.log10(max(value, 10 ** self.low)) if self.log else value
        return self.height - BOTTOM - (at - self.low) / (self.high - self.low) * (self.height - TOP - BOTTOM)

    def x_axis(self, name, places):
        """places: (share, label)."""
        base = self.height - BOTTOM
        self.add(f'<line class="axis" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{base}" y2="{base}"/>')
        for share, label in places:
            self.text(self.x(share), base + 18, label, anchor="middle")
        self.text(self.x(0.5), base + 38, name, "note", "middle")

    def line(self, number_of, name, points, dots=True):
        """points: (share, value)."""
        series, path = SERIES[number_of], " ".join(f"{self.x(share):.1f},{self.y(value):.1f}" for share, value in points)
        self.add(f'<g class="{series}"><polyline class="line stroke" points="{path}"/>')
        for share, value in points if dots else []:
            self.add(f'<circle class="fill" cx="{self.x(share):.1f}" cy="{self.y(value):.1f}" r="4"/>')
            self.text(self.x(share), self.y(value) - 9, number(value), "value", "middle")
        self.add("</g>")
        return self.y(points[-1][1]), series, name

    def names(self, ends):
        """Of lines, at their right ends, pushed apart where they would meet."""
        at = -1e9
        for y, series, name in sorted(ends):
            at = max(at + 15, y + 4)
            self.add(f'<g class="{series}">')
            self.text(self.width - RIGHT + 10, at, name, "name")
            self.add("</g>")

    def bar(self, number_of, share, wide, value, mark=None):
        """mark: a stroke at another value, such as a ceiling."""
        x, y, base = self.x(share), self.y(value), self.height - BOTTOM
        self.add(f'<g class="{SERIES[number_of]}"><rect class="fill" x="{x - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                 f'height="{max(base - y, 1):.1f}" rx="2"/></g>')
        top = self.y(mark) if mark and 0 <= y - self.y(mark) < 18 else y
        self.text(x, top - 6, number(value), "value", "middle")
        if mark:
            self.add(f'<line class="mark" x1="{x - wide / 2 - 3:.1f}" x2="{x + wide / 2 + 3:.1f}" y1="{self.y(mark):.1f}" y2="{self.y(mark):.1f}"/>')

    def legend(self, names):
        for i, (number_of, name) in enumerate(names):
            y = TOP + 8 + i * 20
            self.add(f'<g class="{SERIES[number_of]}"><rect class="fill" x="{self.width - RIGHT + 10}" y="{y - 9}" width="11" height="11" rx="2"/></g>')
            self.text(self.width - RIGHT + 27, y + 1, name)

    def write(self, path):
        write(path, self.width, self.height, self.title, self.note, self.body)


def write(path, width, height, title, note, body):
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">\n'
                    f'<style>{STYLE.replace("%LIGHT%", colours(LIGHT)).replace("%DARK%", colours(DARK))}</style>\n<rect class="page" width="{width}" height="{height}" rx="6"/>\n'
                    f'<text class="title" x="16" y="24">{escape(title)}</text>\n<text class="note" x="16" y="41">{escape(note)}</text>\n'
                    + "\n".join(body) + "\n</svg>\n")
