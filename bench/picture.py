"""The results of a run as an SVG: one panel per figure, one row per contestant, on logarithmic scales."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from bench.report import SUMMARY, number
from bench.results import Results

WIDTH = 860
NAMES = 170
"""Room for the contestants' names, left of the scale."""
VALUES = 70
"""Room for the values, right of it."""
ROW = 20
HEAD = 44
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 } .note { fill: #6e7781 } .value { text-anchor: end }
  line { stroke: #d0d7de } .spread { stroke: #57606a; stroke-width: 2 }
  circle { fill: #8c959f } .ours circle { fill: #0969da } .ceiling circle { fill: #d4a72c }
  .ours .name { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #8d96a0 } line { stroke: #30363d } .spread { stroke: #8d96a0 }
  }
"""


def draw(results: Results) -> str:
    """The whole picture."""
    top, panels = 0, []
    for label, title in SUMMARY.items():
        rows = [(name, values) for name in results.names() if (values := results.of(name, label))]
        if rows:
            panels.append(f'<g transform="translate(0 {top})">{_panel(label, title, rows)}</g>')
            top += HEAD + ROW * len(rows) + ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    return f"{head}\n<style>{STYLE}</style>\n" + "\n".join(panels) + "\n</svg>\n"


def _panel(label: str, title: str, rows: Sequence[tuple[str, list[float]]]) -> str:
    """A title, a scale of whole decades, and a row for each contestant."""
    lowest = math.floor(math.log10(min(min(values) for _, values in rows)))
    highest = max(lowest + 1, math.ceil(math.log10(max(max(values) for _, values in rows))))
    bottom = HEAD + ROW * len(rows)

    def place(value: float) -> float:
        """Where a value lies on the scale."""
        return round(NAMES + (WIDTH - NAMES - VALUES) * (math.log10(value) - lowest) / (highest - lowest), 1)

    better = "further right is better" if label.endswith("/s") else "further left is better"
    parts = [f'<text class="title" y="14">{escape(title)} <tspan class="note">({better})</tspan></text>']
    for power in range(lowest, highest + 1):
        at = place(10.0**power)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{HEAD - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="note" x="{at}" y="{HEAD - 12}" text-anchor="middle">{10.0**power:,g}</text>')
    for position, (name, values) in enumerate(rows):
        parts.append(_row(name, values, [place(value) for value in values], HEAD + ROW * position + ROW / 2))
    return "".join(parts)


def _row(name: str, values: Sequence[float], places: Sequence[float], y: float) -> str:
    """The median as a dot, the rounds between as a line, and the value in figures."""
    kind = "ours" if name.startswith("stepwell") else "ceiling" if name.startswith("probe") else "peer"
    return (
        f'<g class="{kind}"><text class="name" y="{y + 4}">{escape(name)}</text>'
        f'<line class="spread" x1="{min(places)}" x2="{max(places)}" y1="{y}" y2="{y}"/>'
        f'<circle cx="{statistics.median(places)}" cy="{y}" r="4.5"/>'
        f'<text class="value" x="{WIDTH}" y="{y + 4}">{number(statistics.median(values))}</text></g>'
    )
