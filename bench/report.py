"""Tables of what was measured: medians of rounds, and ratios taken round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.loads import Figures


def print_table(title: str, rounds: dict[str, list[Figures]]) -> None:
    """One row per figure, one column per engine, and the first engine against the second where there are two."""
    names = list(rounds)
    labels = list(dict.fromkeys(label for measured in rounds.values() for figures in measured for label in figures))
    heads = [*names, f"{names[0].split()[0]} / {names[1].split()[0]}"] if len(names) == 2 else names
    rows = [[label, *(_cell(_values(rounds[name], label)) for name in names)] for label in labels]
    if len(names) == 2:
        for row in rows:
            row.append(_cell(_ratios(rounds[names[0]], rounds[names[1]], row[0])))
    print_rows(f"{title}, median (lowest to highest) of the rounds", heads, rows)


def print_ratio(what: str, label: str, rounds: dict[str, list[Figures]]) -> None:
    """One line for the figure that matters most, where there are two engines."""
    if len(rounds) == 2:
        (ours, mine), (theirs, other) = rounds.items()
        print(f"\n{ours} does {_cell(_ratios(mine, other, label))} times the {what} of {theirs}")


def print_rows(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose first column reads from the left and whose others end at the right."""
    table = [["", *heads], *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    print(f"\n{title}")
    for first, *others in table:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  " + "   ".join(cells).rstrip())


def _values(measured: Sequence[Figures], label: str) -> list[float]:
    return [figures[label] for figures in measured if label in figures]


def _ratios(ours: Sequence[Figures], theirs: Sequence[Figures], label: str) -> list[float]:
    """Of the rounds in which both have the figure: what the machine did to both cancels out."""
    pairs = zip(ours, theirs, strict=False)
    return [mine[label] / other[label] for mine, other in pairs if label in mine and other.get(label)]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = _number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    """Three digits that mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
