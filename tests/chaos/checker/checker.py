"""The checker: a recorded history in, a verdict out. It touches nothing else, so a history can be checked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tests.chaos.checker import figures
from tests.chaos.checker.invariants import (
    answers,
    attempts,
    events,
    hooks,
    leases,
    liveness,
    losses,
    timers,
    wakes,
    workflows,
)
from tests.chaos.checker.verdicts import Verdict
from tests.chaos.checker.view import View
from tests.chaos.facts.records import History
from tests.chaos.facts.run import Count

CHECKS = (
    workflows.check,
    leases.check,
    attempts.check,
    timers.check,
    events.check,
    hooks.check,
    wakes.check,
    answers.check,
    losses.check,
    liveness.check,
)

ENOUGH = 0.8
"""Part of the planned requests that must have been answered."""

OVERLAPS: dict[str, Callable[[View], int]] = {
    "zombie-reports": figures.zombie_reports,
    "takeovers": figures.takeovers,
    "exhausted": figures.exhausted,
    "near-deadline": figures.near_deadline,
    "repeats": figures.repeats,
}
"""What makes a fault interesting and can be seen in the history. What cannot is recorded as a `Count`."""


def check(history: History) -> Verdict:
    """Whether every promise was kept, and whether enough happened to say so."""
    view = View(history)
    checks = CHECKS if view.has_snapshot else (liveness.check,)
    violations = [violation for one in checks for violation in one(view)]
    return Verdict(violations, list(_doubts(view)), figures.of(view))


def _doubts(view: View) -> Iterator[str]:
    """Why the run proves nothing, if it does not."""
    yield from _calls_missing(view)
    begun = [fault.fault for fault in view.faults if fault.phase == "begin"]
    for fault, least in view.plan.faults.items():
        if begun.count(fault) < least:
            yield f"fault {fault} was to begin {least} times, and began {begun.count(fault)} times"
    for name, least in view.plan.overlaps.items():
        happened = overlap(view, name)
        if happened < least:
            yield f"{name} was to happen {least} times, and happened {happened} times"
    if "heal" not in view.stages:
        yield "it was never healed"
    elif not liveness.tails(view):
        yield "nobody called after the heal"
    if not view.changes:
        yield "there is no trail"
    if not view.has_snapshot:
        yield "there is no snapshot"


def _calls_missing(view: View) -> Iterator[str]:
    """Too few requests were answered or acknowledged. One that was repeated counts once, and more than planned do not
    make up for those that are missing."""
    planned = view.plan.operations
    calls = [call for call in view.calls if call.op in planned]
    known = {(call.op, call.request_id) for call in calls if call.is_ok or call.is_refused}
    counted = Counter(op for op, _ in known)
    answered = sum(min(counted[op], wanted) for op, wanted in planned.items())
    if answered < ENOUGH * sum(planned.values()):
        yield f"{answered} requests of {sum(planned.values())} were answered"
    acked = Counter(op for op, _ in {(call.op, call.request_id) for call in calls if call.is_ok})
    for op, wanted in planned.items():
        if acked[op] < min(view.plan.least_per_operation, wanted // 2):
            yield f"{acked[op]} of {wanted} requests of {op} were acknowledged"


def overlap(view: View, name: str) -> int:
    """How often something interesting happened."""
    if name in OVERLAPS:
        return OVERLAPS[name](view)
    return sum(one.count for one in view.history.of(Count) if one.name == name)
