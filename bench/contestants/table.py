"""All contestants, one line each."""

from __future__ import annotations

from dataclasses import dataclass

from bench.contestants import dbos, probe, restate, stepwell, temporal
from bench.contestants.engine import StartEngine


@dataclass(frozen=True, slots=True)
class Contestant:
    """An engine on a kind of storage."""

    start: StartEngine
    product: str
    """Key of `databases.PRODUCTS`."""
    share: float = 1.0
    """Of the sizes of the loads: a slower engine needs fewer instances for the same certainty."""
    once: bool = False
    """In the first round only."""


CONTESTANTS = {
    "stepwell-postgresql": Contestant(stepwell.start, "postgresql"),
    "stepwell-sqlite": Contestant(stepwell.start, "sqlite"),
    "dbos-postgresql": Contestant(dbos.start, "postgresql", share=0.2),
    "restate-python": Contestant(restate.start_python, "files"),
    "restate-typescript": Contestant(restate.start_typescript, "files"),
    "temporal-dev": Contestant(temporal.start, "sqlite", share=0.05, once=True),
    "probe-postgresql": Contestant(probe.start, "postgresql"),
    "probe-sqlite": Contestant(probe.start, "sqlite"),
}
OURS = ("stepwell-postgresql", "stepwell-sqlite")
