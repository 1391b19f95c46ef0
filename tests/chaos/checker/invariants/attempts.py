"""W6 and W7: how often bodies are begun, what of that is recorded, and what is never begun again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import EXHAUSTED, FINAL, Story, View, loads
from tests.chaos.facts.tasks import Change
from tests.chaos.facts.workflows import Effect, StepRow


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    for story in view.stories.values():
        yield from _attempts_are_counted(story)
        yield from _attempts_are_explained(story)
        yield from _nothing_runs_after_the_end(story)
        yield from _what_came_before_is_not_done_again(story)
        yield from _what_came_before_is_stored(view, story)


def _attempts_are_counted(story: Story) -> Iterator[Violation]:
    """W6: a body is not begun more often than its policy allows, nor more often than is recorded.

    One that was lost before anybody knew that its task had arrived does not count: a server died in that moment.
    """
    limits = story.program.steps if story.program is not None else {}
    arrived = _arrived(story)
    for (run, name), executions in story.executions.items():
        limit, step = limits.get(name), f"step {name!r} of run {run}"
        known = sum(one.start.fence is None or one.start.fence in arrived for one in executions)
        if limit is not None and known > limit:
            text = f"{step} was begun {known} times, {limit} are allowed"
            yield Violation("W6", story.key, text, "attempts-over-limit")
        final = story.final_steps.get((run, name))
        if final is not None and final.status in FINAL and known > final.attempts:
            yield Violation("W6", story.key, f"{step} was begun {known} times, {final.attempts} are recorded")


def _arrived(story: Story) -> set[int]:
    """The fences under which the server heard of a worker: it acknowledged the task, or reported something."""
    told = {task.row["fence"] for task in story.tasks if task.row["acked"] or task.row["frame_number"]}
    ended = {version.row.get("ended_fence") for version in story.versions}
    makers = {
        one.start.fence
        for (_, name), executions in story.executions.items()
        for one in executions
        if any(one.returned(done) for done in story.steps.get((one.start.run, name), ()))
    }
    return {fence for fence in told | ended | makers if fence is not None}


def _attempts_are_explained(story: Story) -> Iterator[Violation]:
    """W6: an execution that is recorded was begun, or its worker was lost when it was about to begin.

    A step that ran out of executions has had them all.
    """
    for (run, name), final in story.final_steps.items():
        step = f"step {name!r} of run {run}"
        if final.error_name == EXHAUSTED and final.attempts != final.max_attempts:
            text = f"{step} was given up after {final.attempts} executions of {final.max_attempts}"
            yield Violation("W6", story.key, text)
        if final.type != "do" or final.status not in FINAL or not story.has_ledger(name) or story.has_copies:
            continue
        begun = len(story.executions.get((run, name), ()))
        if final.attempts - begun > _lost_before_they_began(story, final):
            text = f"{step} was begun {begun} times, {final.attempts} are recorded, and no lost worker explains that"
            yield Violation("W6", story.key, text)


def _lost_before_they_began(story: Story, step: StepRow) -> int:
    """Executions that were open when a lease ended, and never began.

    If nobody had said what was open, the loss is counted for the body that begins next.
    """
    begun = {(one.start.fence, one.start.attempt) for one in story.executions.get((step.run, step.name), ())}
    lost = 0
    for before, after in pairwise(story.tasks):
        old, new = before.row, after.row
        ended = old["status"] == "processing" and new["status"] != "processing"
        if not ended or old["run_number"] != step.run or new["run_number"] != step.run:
            continue
        attempts = [attempt for name, attempt, *_ in loads(new["open_steps"] or "[]") if name == step.name]
        if attempts:
            lost += (old["fence"], attempts[0]) not in begun
        elif new["interruptions"] > old["interruptions"]:
            is_charged = _charged(story, after) in ("", step.name)
            lost += is_charged and old["fence"] not in {fence for fence, _ in begun}
    return lost


def _charged(story: Story, lapse: Change) -> str | None:
    """The step whose body was the first to begin under a later lease. None: not it either, as its worker had reported
    something by then. Empty: nobody knows, as none began."""
    run, fence, interruptions = (lapse.row[name] for name in ("run_number", "fence", "interruptions"))
    starts = [one.start for executions in story.executions.values() for one in executions]
    later = [one for one in starts if one.run == run and one.fence and one.fence > fence]
    if not later:
        return ""
    first = min(later, key=lambda start: (start.fence, start.mono_ns))
    claim = story.claims().get(first.fence or 0)
    return None if claim is not None and claim.row["interruptions"] < interruptions else first.step


def _nothing_runs_after_the_end(story: Story) -> Iterator[Violation]:
    """W7: who takes a run over does not execute what was recorded before."""
    claims = story.claims()
    for (run, name), versions in story.steps.items():
        over = next((one for one in versions if one.row["status"] in FINAL), None)
        if over is None:
            continue
        for execution in story.executions.get((run, name), ()):
            claim = claims.get(execution.start.fence or 0)
            if claim is not None and claim.seq > over.seq:
                yield Violation(
                    "W7",
                    story.key,
                    f"step {name!r} of run {run} was {over.row['status']}, and begun again "
                    f"under the later fence {execution.start.fence}",
                    "double-completed",
                )


def _what_came_before_is_not_done_again(story: Story) -> Iterator[Violation]:
    """W7: a body begins when all results before it are stored, so nothing before it is executed again."""
    order, starts = _order(story), _starts(story)
    for earlier in starts:
        for later in starts:
            again = earlier.mono_ns > later.mono_ns and (earlier.fence or 0) >= (later.fence or 0)
            if again and earlier.run == later.run and order[earlier.step] < order[later.step]:
                text = f"step {earlier.step!r} of run {earlier.run} was executed after {later.step!r}, which follows it"
                yield Violation("W7", story.key, text)


def _what_came_before_is_stored(view: View, story: Story) -> Iterator[Violation]:
    """W7: the same by the clock, which the ledger and the trail share unless the run moves the database's."""
    if view.plan.clock_steps:
        return
    order = _order(story)
    for (run, name), versions in story.steps.items():
        over = next((one for one in versions if one.row["status"] in FINAL), None)
        for start in _starts(story) if over is not None and name in order else ():
            too_soon = over.at_us - view.wall_us(start.mono_ns)
            if start.run == run and order[name] < order[start.step] and too_soon > view.clock_slack_us:
                text = f"step {start.step!r} of run {run} was begun {too_soon} us before {name!r} was stored"
                yield Violation("W7", story.key, text)


def _order(story: Story) -> dict[str, int]:
    """Where in the program the steps stand that follow each other."""
    return {name: place for place, name in enumerate(story.program.steps)} if story.program is not None else {}


def _starts(story: Story) -> list[Effect]:
    """The beginnings of all bodies of the program."""
    order = _order(story)
    return [one.start for executions in story.executions.values() for one in executions if one.start.step in order]
