"""Traces: what a call is part of, by the names of W3C Trace Context. Stored and passed on, never read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from stepwell_server.domain.values.errors import InvalidField

TRACE_ENTRIES = 8
TRACE_BYTES = 4096
W3C_NAMES = ("traceparent", "tracestate", "baggage")
"""Names of headers: W3C Trace Context, and W3C Baggage."""

Trace: TypeAlias = Mapping[str, str]

_NAME = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)
_VALUE = re.compile(r"[ -~]*", re.ASCII)


def trace_size(trace: Trace) -> int:
    """How many characters it brings."""
    return sum(len(name) + len(value) for name, value in trace.items())


def check_trace(trace: Trace) -> None:
    """Refuse a trace that is too large, or that could not be a header of a request."""
    if len(trace) > TRACE_ENTRIES or trace_size(trace) > TRACE_BYTES:
        raise InvalidField(f"a trace has at most {TRACE_ENTRIES} entries and {TRACE_BYTES} bytes", field="trace")
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in trace.items()):
        raise InvalidField(
            'names of a trace are 1 to 64 lower-case letters, digits, "-" or "_", values printable ASCII', field="trace"
        )
