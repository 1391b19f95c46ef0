"""What a run prints: its seed, what was done and broken, and the counters that must be zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.checker.verdicts import Status, Verdict
from tests.chaos.facts.calls import Call
from tests.chaos.facts.records import History
from tests.chaos.facts.run import Fault
from tests.chaos.scenarios.scenario import Scenario
from tests.chaos.site.site import Topology
from tests.chaos.site.vitals import Level, Vitals


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over."""

    scenario: Scenario
    seed: int
    verdict: Verdict
    history: History
    vitals: Vitals

    @property
    def repeated(self) -> int:
        """Steps with more than one execution that did not fail on purpose."""
        counted: dict[str, int] = self.verdict.figures["executions per step"]
        return sum(number for times, number in counted.items() if int(times) > 1)

    @property
    def grown(self) -> list[Level]:
        """What there is more of than there was, in a run that is to show that nothing is."""
        return [level for level in self.vitals.levels() if level.has_grown] if self.scenario.flat else []

    @property
    def status(self) -> Status:
        """The verdict, and whether what should stay as it was has."""
        return "invalid" if self.grown else self.verdict.status

    @property
    def fired(self) -> Counter[str]:
        """The faults that began."""
        return Counter(one.fault for one in self.history.of(Fault) if one.phase == "begin")

    def again(self, *, short: bool) -> str:
        """The command that repeats the run."""
        lease = self.scenario.topology.lease
        longer = f' ARGS="--lease {lease:g}"' if lease != Topology().lease else ""
        return f"make chaos SCENARIO={self.scenario.name} SEED={self.seed}{' SHORT=1' if short else ''}{longer}"


def text(outcome: Outcome, *, short: bool) -> str:
    """Everything about one run."""
    lines = [
        str(outcome.verdict),
        f"  steps executed more than once: {outcome.repeated}{' (must be 0)' if outcome.scenario.once else ''}",
        f"  slowest call in seconds: {slowest(outcome.history):.2f}",
        f"  peak RSS in MiB: {outcome.vitals.peaks()}",
        f"  peak connections to the database: {outcome.vitals.peak_connections}",
    ]
    if outcome.scenario.flat:
        lines += [f"  {'GROWN ' if level.has_grown else ''}{level}" for level in outcome.vitals.levels()]
    return "\n".join([*lines, f"{outcome.scenario.name}: {outcome.status}; again: {outcome.again(short=short)}"])


def slowest(history: History) -> float:
    """How long the slowest call took until it was answered, or was given up."""
    began = {call.call: call.mono_ns for call in history.of(Call) if call.phase == "invoke"}
    took = [call.mono_ns - began[call.call] for call in history.of(Call) if call.phase != "invoke"]
    return max(took, default=0) / 1e9


def table(outcomes: Sequence[Outcome]) -> str:
    """One line per run, in Markdown."""
    head = (
        "scenario",
        "seed",
        "calls ok/unknown",
        "instances",
        "faults",
        "bad",
        "takeovers",
        "twice",
        "R p50/p99 in L",
    )
    rows = [head, ("---",) * len(head), *map(_row, outcomes)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(outcome: Outcome) -> tuple[str, ...]:
    figures: dict[str, Any] = outcome.verdict.figures
    calls, recovery = figures["calls"], figures["recovery in leases"]
    bad = {name: number for name, number in outcome.verdict.counters.items() if number}
    return (
        outcome.scenario.name,
        str(outcome.seed),
        f"{calls['ok']}/{calls['info']}",
        figures["instances"],
        " ".join(f"{fault} x {number}" for fault, number in sorted(outcome.fired.items())),
        "0" if outcome.status == "valid" else f"{outcome.status} {bad or ''} {' '.join(outcome.verdict.broken)}",
        str(figures["takeovers"]),
        str(outcome.repeated),
        f"{recovery['p50']}/{recovery['p99']}" if recovery else "-",
    )
