"""Tells lies: each in every recorded history that has a place for it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.facts.records import History
from tests.chaos.selftest.histories import view_of
from tests.chaos.selftest.lies import LIES
from tests.chaos.selftest.lies.forger import Forger, Lie, NoPlace
from tests.chaos.selftest.recordings import RECORDINGS

TRIES = 2
"""Times that a lie is told in each history, of another place if it has more than one."""


def told(lie: Lie) -> Iterator[History]:
    """What is left of each history in which the lie has a place."""
    for name in RECORDINGS:
        for seed in range(TRIES):
            forger = Forger(view_of(name), seed)
            try:
                lie.tell(forger)
            except NoPlace:
                break
            yield forger.history


def without_a_place() -> list[str]:
    """The lies that cannot be told."""
    return [lie.name for lie in LIES if not any(told(lie))]
