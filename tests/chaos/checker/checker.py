"""The checker: a recorded history in, a verdict out. It touches nothing else, so a history can be checked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.checker.invariants import answers, liveness, losses
from tests.chaos.checker.primitives import PRIMITIVES
from tests.chaos.checker.verdicts import Verdict, Violation
from tests.chaos.checker.view import View
from tests.chaos.facts.records import History
from tests.chaos.facts.run import Count

ENOUGH = 0.8
"""Part of the planned requests that must have been answered."""


def check(history: History) -> Verdict:
    """Whether every promise was kept, and whether enough happened to say so."""
    view = View(history)
    figures = {name: value for one in PRIMITIVES for name, value in one.figures(view).items()}
    return Verdict(list(_violations(view)), list(_doubts(view)), figures)


def _violations(view: View) -> Iterator[Violation]:
    """What was promised of each primitive, and of all. Without a snapshot there is little to say."""
    if view.has_snapshot:
        for primitive in PRIMITIVES:
            for one in primitive.checks:
                yield from one(view)
        yield from answers.check(view, PRIMITIVES)
        yield from losses.check(view)
    yield from liveness.check(view)


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
    for primitive in PRIMITIVES:
        if name in primitive.overlaps:
            return primitive.overlaps[name](view)
    return sum(one.count for one in view.history.of(Count) if one.name == name)
