"""Pauses and limits of a client that its caller does not set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepwell import backoff


@dataclass(frozen=True, slots=True)
class Tuning:
    """Holds what a test changes about the time that a client takes. One object per client."""

    pauses: Callable[[], Iterator[float]] = backoff.pauses
    """Seconds before each further try of a call."""
    silence: float = 45.0
    """Seconds without a message after which a stream counts as broken: more than four keepalives of the server."""


DEFAULT = Tuning()
