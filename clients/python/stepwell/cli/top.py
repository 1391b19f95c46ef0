"""`stepwell top`: what a server measures of itself, live."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Annotated

import typer

from stepwell.cli import arguments, metrics, options, printing, watching
from stepwell.cli.metrics import Look, Series

COLUMNS = ["metric", "of", "value", "per second", "mean", "p50", "p99"]

Interval = Annotated[
    timedelta,
    typer.Option("--interval", metavar="DURATION", parser=arguments.duration, help="How long from look to look."),
]
Once = Annotated[bool, typer.Option("--once", help="Look once, at everything since the server began.")]


def top(
    ops: options.Ops = options.DEFAULT_OPS,
    interval: Interval = timedelta(seconds=2),
    once: Once = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what a server measures of itself since it began, then what comes in each interval, until Ctrl-C."""
    before, look = None, metrics.fetch(ops)
    try:
        while True:
            if as_json:
                _print_json(ops, look, before, one_line=not once)
            else:
                _print_table(ops, look, before)
            if once:
                return
            before, look = look, _next_look(ops, interval.total_seconds())
            if not as_json:
                printing.clear()
    except KeyboardInterrupt:
        raise typer.Exit(watching.INTERRUPTED) from None


def _next_look(ops: str, interval: float) -> Look:
    """Look after an interval. A server that is away is waited for."""
    is_told = False
    while True:
        time.sleep(interval)
        try:
            return metrics.fetch(ops)
        except ConnectionError as error:
            if not is_told:
                printing.print_note(f"{error}: waiting for it")
            is_told = True


def _print_table(ops: str, look: Look, before: Look | None) -> None:
    """Print what came, without series in which nothing ever happened: so rows stay where they are."""
    seconds = _seconds(look, before)
    period = "since it began" if seconds is None else f"in {seconds:.1f} s"
    happened = {key for key, series in look.series.items() if series.value or series.type == "gauge"}
    rows = [_row(one, seconds) for one in look.since(before) if (one.name, one.labels) in happened]
    printing.print_table(COLUMNS, rows, title=f"Server with the ops listener {ops}, {period}")


def _print_json(ops: str, look: Look, before: Look | None, *, one_line: bool) -> None:
    seconds = _seconds(look, before)
    told = [
        {
            "name": one.name,
            "labels": dict(one.labels),
            "type": one.type,
            "value": one.value,
            "per_second": _rate(one, seconds),
            "mean": one.mean(),
            "p50": one.quantile(0.5),
            "p99": one.quantile(0.99),
        }
        for one in look.since(before)
    ]
    page = {"ops": ops, "seconds": seconds, "metrics": told}
    print(json.dumps(page, indent=None if one_line else 2), flush=one_line)


def _seconds(look: Look, before: Look | None) -> float | None:
    return None if before is None else look.at - before.at


def _rate(series: Series, seconds: float | None) -> float | None:
    return None if seconds is None or series.type == "gauge" else series.value / seconds


def _row(series: Series, seconds: float | None) -> list[str]:
    rate = _rate(series, seconds)
    spread = (series.mean(), series.quantile(0.5), series.quantile(0.99))
    return [
        series.name.removeprefix(metrics.PREFIX),
        " ".join(f"{name}={value.removeprefix('/stepwell.v1.')}" for name, value in series.labels),
        f"{series.value:,.0f}",
        "" if rate is None else f"{rate:,.1f}",
        *("" if value is None else _readable(series.name, value) for value in spread),
    ]


def _readable(name: str, value: float) -> str:
    if not name.endswith("_seconds"):
        return f"{value:,.1f}"
    if value < 0.001:
        return f"{value * 1e6:,.0f} µs"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:,.2f} s"
