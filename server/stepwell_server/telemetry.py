"""Logs and metrics: how they are made and where they go. No other module configures them."""

from __future__ import annotations

import logging
import sys

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

from stepwell_server.config import LogFormat, LogLevel

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
    """What Prometheus sees. Labels come from fixed sets, never from what callers send."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
