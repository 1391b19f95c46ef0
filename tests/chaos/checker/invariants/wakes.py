"""H5 and A3: who goes by the next wake, asked for or told, is not late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import View
from tests.chaos.facts.wakes import Told

COMMIT_US = 1_000_000
"""A change is noted before it is committed; by then it is."""
BOUND_US = 15_000_000
"""Two sweeps and a little: within this a follower knows of everything, though every hint was lost."""
LOOK_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Pending:
    """From when to when a task could be claimed at its time."""

    begin_us: int
    end_us: int
    run_at: int


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    pending = list(_pending(view))
    yield from _answers_are_not_late(view, pending)
    for stream, told in _streams(view).items():
        yield from _numbers_go_forward(stream, told)
        yield from _followers_are_not_late(view, stream, told, pending)


def _pending(view: View) -> Iterator[Pending]:
    last: dict[int, tuple[int, int]] = {}
    for change in view.changes:
        if change.table != "tasks":
            continue
        begun = last.pop(change.row["id"], None)
        if begun is not None:
            yield Pending(begun[0], change.at_us, begun[1])
        if change.change != "delete" and change.row["status"] == "pending":
            last[change.row["id"]] = (change.at_us, change.row["run_at"])
    for begin, run_at in last.values():
        yield Pending(begin, 2**62, run_at)


def _next(pending: list[Pending], begin_us: int, end_us: int) -> int | None:
    """The earliest time of what could be claimed all the while."""
    there = (one.run_at for one in pending if one.begin_us <= begin_us and end_us <= one.end_us)
    return min(there, default=None)


def _answers_are_not_late(view: View, pending: list[Pending]) -> Iterator[Violation]:
    """H5: the next wake that is answered is not after anything that waits."""
    for call in view.calls:
        if call.op != "next_wake" or not call.is_ok or call.reply is None:
            continue
        asked, answered = view.wall_us(call.invoke.mono_ns), view.wall_us(call.reply.mono_ns)
        due, wake = _next(pending, asked - COMMIT_US, answered), call.answer["wake_at"]
        if due is not None and (wake is None or wake > max(due, call.answer["now"])):
            yield Violation("H5", call.invoke.server, f"the next wake was said to be {wake}, and {due} was due", "late")


def _streams(view: View) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = defaultdict(list)
    for told in sorted(view.history.of(Told), key=lambda one: one.mono_ns):
        found[told.stream].append(told)
    return found


def _numbers_go_forward(stream: str, told: list[Told]) -> Iterator[Violation]:
    """A3: numbers of one stream never go back."""
    numbers = [one.number for one in told if one.phase == "told"]
    if any(after < before for before, after in pairwise(numbers)):
        yield Violation("A3", stream, "the numbers of wakes went back")


def _followers_are_not_late(view: View, stream: str, told: list[Told], pending: list[Pending]) -> Iterator[Violation]:
    """A3: what a follower knows is never later than the truth for longer than it takes to sweep."""
    if not told or told[0].phase == "over":
        return
    times = [(view.wall_us(one.mono_ns), one.wake_at) for one in told]
    for (begin, wake), (end, _) in pairwise(times):
        for moment in range(max(begin, times[0][0] + BOUND_US), end, LOOK_US):
            due = _next(pending, moment - BOUND_US, moment)
            if due is not None and (wake is None or wake > max(due, moment)):
                yield Violation("A3", stream, f"a follower went by {wake} for too long, and {due} was due", "late")
                return
