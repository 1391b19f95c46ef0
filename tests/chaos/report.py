"""What a run prints: its seed, what was done and broken, and the counters that must be zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.records import Fault, History
from tests.chaos.run import Scenario
from tests.chaos.verdicts import Verdict
from tests.chaos.vitals import Vitals


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over."""

    scenario: Scenario
    seed: int
    verdict: Verdict
    history: History
    vitals: Vitals


def text(outcome: Outcome, *, short: bool) -> str:
    """Everything about one run."""
    again = f"make chaos SCENARIO={outcome.scenario.name} SEED={outcome.seed}{' SHORT=1' if short else ''}"
    fired = Counter(one.fault for one in outcome.history.of(Fault) if one.phase == "begin")
    vitals = outcome.vitals
    lines = [
        str(outcome.verdict),
        f"faults fired: {dict(fired)}",
        f"peak RSS in MiB: { {role: kib // 1024 for role, kib in vitals.peak_rss_kib.items()} }; "
        f"peak connections to the database: {vitals.peak_connections}",
        f"again: {again}",
    ]
    return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> str:
    """One line per run."""
    return "\n".join(f"{one.scenario.name}: {one.verdict.status}" for one in outcomes)
