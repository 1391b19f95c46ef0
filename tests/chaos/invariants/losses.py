"""O1 and O2: where nobody is lost, nothing is executed twice and nothing is taken over."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.figures import completing, takeovers
from tests.chaos.verdicts import Violation
from tests.chaos.view import View


def check(view: View) -> Iterator[Violation]:
    """Both, if the plan asks for them."""
    if view.plan.once:
        yield from _executed_once(view)
    most = view.plan.takeovers_at_most
    if most is not None and takeovers(view) > most:
        yield Violation("O2", "run", f"{takeovers(view)} leases were taken over, and at most {most} holders were lost")


def _executed_once(view: View) -> Iterator[Violation]:
    """O1: no body is executed again that did not fail on purpose."""
    for story in view.stories.values():
        for (run, name), executions in story.executions.items():
            times = completing(executions)
            if times > 1:
                yield Violation("O1", story.key, f"step {name!r} of run {run} was executed {times} times")
