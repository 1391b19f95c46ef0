"""How the harness talks to a process that it started: one JSON line each way, an order and its answer.

Needs nothing but the standard library, because peers run in environments of their own.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def announce(**facts: Any) -> None:
    """Tell the harness that this process is ready, and what it should know of it."""
    _write(facts)


def next_order() -> dict[str, Any] | None:
    """Wait for the next order; None when the harness has no more."""
    line = sys.stdin.readline()
    order: dict[str, Any] | None = json.loads(line) if line else None
    return order


def answer(result: dict[str, Any]) -> None:
    """Send what was measured."""
    _write(result)


def _write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
