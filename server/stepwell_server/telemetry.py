"""Logs and metrics: how they are made and where they go. No other module configures them.

Measurements of the engine are counted in `engine/spine/timings.py`, without locks, and read at a scrape.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import TypeVar

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from stepwell_server.config import LogFormat, LogLevel
from stepwell_server.engine.spine import timings
from stepwell_server.engine.spine.timings import Timings

Label = TypeVar("Label", bound=StrEnum)

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """One line per event, on standard error: JSON for machines, columns for people."""
    last: list[structlog.typing.Processor]
    if log_format == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Plain, because the fancy ones print local variables, and those hold credentials and payloads.
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class Metrics:
    """The metrics for Prometheus. Labels come from fixed sets, never from what callers send."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.timings = Timings()
        self.registry.register(_Engine(self.timings))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.calls = Histogram(
            "stepwell_rpc_duration_seconds",
            "Time from the arrival of a call to its end, by method and status code.",
            ["method", "code"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "stepwell_rpc_in_flight", "Calls that have not ended yet, by shape.", ["shape"], registry=self.registry
        )
        self.database_up = Gauge(
            "stepwell_database_up", "1 if the last contact with the database succeeded.", registry=self.registry
        )
        self.database_faults = Counter(
            "stepwell_database_faults_total", "Transactions that failed, by cause.", ["cause"], registry=self.registry
        )
        self.internal_errors = Counter(
            "stepwell_internal_errors_total", "Calls that ended with INTERNAL: bugs.", registry=self.registry
        )


class _Engine(Collector):
    """The counts of the engine, as they stand at a scrape."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings

    def collect(self) -> Iterator[Metric]:
        """Every metric of the engine, with all its labels from the start."""
        counted = self._timings
        yield _histogram("stage_seconds", "Time of calls and groups in a stage.", "stage", counted.stages)
        yield _histogram("group_calls", "Calls of a transaction, by way.", "way", counted.group_calls)
        yield _histogram("wake_lateness_seconds", "From due to claimed, by kind of task.", "kind", counted.lateness)
        yield _counter("claimed", "Tasks that were leased to workers, by kind.", counted.claimed)
        yield _counter("leases_lapsed", "Leases that ended with the loss of a worker, by kind.", counted.lapsed)
        yield CounterMetricFamily("stepwell_leases_extended", "Times that all leases were extended.", counted.extended)
        yield CounterMetricFamily("stepwell_stale_frames", "Frames that told of a lost lease.", counted.stale)
        yield CounterMetricFamily("stepwell_missed", "Express calls with an outdated image.", counted.missed)
        yield CounterMetricFamily("stepwell_undecided", "Calls put back as a task was locked.", counted.undecided)


def _histogram(name: str, about: str, label: str, found: Mapping[Label, timings.Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"stepwell_{name}", about, labels=[label])
    for value, histogram in found.items():
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([value], buckets, histogram.total)
    return family


def _counter(name: str, about: str, found: Mapping[Label, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"stepwell_{name}", about, labels=["kind"])
    for kind, count in found.items():
        family.add_metric([kind], count)
    return family
