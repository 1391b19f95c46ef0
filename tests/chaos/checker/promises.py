"""What is promised of a primitive, as the checker must know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import View


def _nothing(view: View) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Promises:
    """The invariants of one primitive, and what its calls may be answered."""

    checks: tuple[Callable[[View], Iterator[Violation]], ...]
    figures: Callable[[View], dict[str, Any]] = _nothing
    """What every run prints of it."""
    overlaps: Mapping[str, Callable[[View], int]] = field(default_factory=dict)
    """What makes a fault interesting and can be seen in the history. What cannot is recorded as a `Count`."""
    same_in_repeats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields of an answer that are the same however often a request is made, by op."""
    reasons: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Refusals that a correct caller of it may meet, by code."""
