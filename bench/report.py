"""Tables of what was measured: medians of rounds, and ratios taken round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import loads
from bench.results import Results

SUMMARY = {
    loads.RATE: "in flight, workflows/s",
    loads.A_CALL_EACH: "a call each, workflows/s",
    loads.ALONE: "one at a time, p50 ms",
    loads.SLEEPERS: "sleepers late, p99 ms",
    loads.SIGNALS_ALONE: "event alone, p50 ms",
    loads.SIGNALS_RATE: "events at once/s",
}
RESTATE = ("restate-python", "restate-typescript")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, and what they say."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """For a terminal: the first column reads from the left, the others end at the right."""
        table = [self.heads, *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.heads))]
        lines = [f"\n{self.title}"]
        for first, *others in table:
            cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
            lines.append("  " + "   ".join(cells).rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """For the documentation."""
        lines = [self.heads, ["---", *("---:" for _ in self.heads[1:])], *self.rows]
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One of our figures over the best of a peer's, round by round."""

    title: str
    ours: tuple[str, str]
    """Contestant and figure."""
    peers: tuple[str, ...]
    figure: str
    best: Callable[[Sequence[float]], float] = max

    def values(self, results: Results) -> list[float]:
        """Of the rounds that have all figures: what the machine did to both cancels out."""
        found = []
        name, label = self.ours
        for figures in results.rounds:
            theirs = [figures[peer][self.figure] for peer in self.peers if self.figure in figures.get(peer, {})]
            if theirs and label in figures.get(name, {}):
                found.append(figures[name][label] / self.best(theirs))
        return found


RATIOS = (
    Ratio("in flight, PostgreSQL / best Restate", ("stepwell-postgresql", loads.RATE), RESTATE, loads.RATE),
    Ratio("in flight, PostgreSQL / DBOS", ("stepwell-postgresql", loads.RATE), ("dbos-postgresql",), loads.RATE),
    Ratio("in flight, SQLite / best Restate", ("stepwell-sqlite", loads.RATE), RESTATE, loads.RATE),
    Ratio("in flight, SQLite / Temporal dev", ("stepwell-sqlite", loads.RATE), ("temporal-dev",), loads.RATE),
    Ratio("in flight, PostgreSQL / ceiling", ("stepwell-postgresql", loads.RATE), ("probe-postgresql",), loads.RATE),
    Ratio("in flight, SQLite / ceiling", ("stepwell-sqlite", loads.RATE), ("probe-sqlite",), loads.RATE),
    Ratio("a call each / Restate Python", ("stepwell-postgresql", loads.A_CALL_EACH), RESTATE[:1], loads.RATE),
    Ratio("one at a time, PostgreSQL / best Restate", ("stepwell-postgresql", loads.ALONE), RESTATE, loads.ALONE, min),
    Ratio("one at a time, PostgreSQL / DBOS", ("stepwell-postgresql", loads.ALONE), ("dbos-postgresql",), loads.ALONE),
    Ratio("one at a time, SQLite / best Restate", ("stepwell-sqlite", loads.ALONE), RESTATE, loads.ALONE, min),
    Ratio("sleepers late / best Restate", ("stepwell-postgresql", loads.SLEEPERS), RESTATE, loads.SLEEPERS, min),
    Ratio(
        "event alone / best Restate", ("stepwell-postgresql", loads.SIGNALS_ALONE), RESTATE, loads.SIGNALS_ALONE, min
    ),
    Ratio("events at once / best Restate", ("stepwell-postgresql", loads.SIGNALS_RATE), RESTATE, loads.SIGNALS_RATE),
)


def tables(results: Results) -> list[Table]:
    """The summary, what it costs, and the ratios."""
    made = [summary(results), costs(results), ratios(results)]
    return [table for table in made if table.rows]


def summary(results: Results) -> Table:
    """One row per contestant, one column per figure that matters."""
    labels = [label for label in SUMMARY if any(results.of(name, label) for name in results.names())]
    rows = [[name, *(cell(results.of(name, label)) for label in labels)] for name in results.names()]
    heads = ["contestant", *(SUMMARY[label] for label in labels)]
    return Table("Median (lowest to highest) of the rounds", heads, rows)


def costs(results: Results) -> Table:
    """Processor time per workflow and process, with so many in flight."""
    rows = []
    for name in results.names():
        figures = next(figures[name] for figures in results.rounds if name in figures)
        roles = [label for label in figures if label.startswith(loads.COST)]
        parts = ", ".join(f"{label.removeprefix(loads.COST)} {middle(results.of(name, label))}" for label in roles)
        if roles:
            total = sum(statistics.median(results.of(name, label)) for label in roles)
            rows.append([name, number(total), parts, middle(results.of(name, loads.CORES))])
    return Table(
        "Processor time per workflow, in flight, microseconds", ["contestant", "sum", "by process", "cores busy"], rows
    )


def ratios(results: Results) -> Table:
    """Ours to theirs, round by round."""
    found = [(ratio.title, ratio.values(results)) for ratio in RATIOS]
    rows = [[title, cell(values), str(len(values))] for title, values in found if values]
    return Table("Ratios per round: median (lowest to highest)", ["ratio", "of the rounds", "rounds"], rows)


def cell(values: Sequence[float]) -> str:
    """The median, and how far the rounds lie apart."""
    if len(values) < 2:
        return middle(values)
    return f"{middle(values)} ({number(min(values))} to {number(max(values))})"


def middle(values: Sequence[float]) -> str:
    """The median alone."""
    return number(statistics.median(values)) if values else "-"


def number(value: float) -> str:
    """Three digits that mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
