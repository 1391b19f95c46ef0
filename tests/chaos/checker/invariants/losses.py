"""O1 and O2: where nobody is lost, nothing is executed twice and nothing is taken over."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.checker.figures import completing, taken_over
from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import View


def check(view: View) -> Iterator[Violation]:
    """Both, if the plan asks for them."""
    if view.plan.once:
        yield from _executed_once(view)
    yield from _taken_from_nobody(view)


def _taken_from_nobody(view: View) -> Iterator[Violation]:
    """O2: no more leases are taken over than holders were lost, or gave up if they may."""
    most = view.plan.takeovers_at_most
    given_up = set(view.given_up) if view.plan.may_give_up else set()
    taken = [lease for lease in taken_over(view) if lease not in given_up]
    if most is not None and len(taken) > most:
        yield Violation("O2", "run", f"{len(taken)} leases were taken over, and at most {most} holders were lost")


def _executed_once(view: View) -> Iterator[Violation]:
    """O1: no body is executed again that did not fail on purpose."""
    for story in view.stories.values():
        for (run, name), executions in story.executions.items():
            times = completing(executions)
            if times > 1:
                yield Violation("O1", story.key, f"step {name!r} of run {run} was executed {times} times")
