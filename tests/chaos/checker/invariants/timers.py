"""T1 to T3 and the order of stamps: sleeps, deadlines of waits, and retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import FINAL, Story, View
from tests.chaos.facts.tasks import Change


@dataclass(frozen=True, slots=True)
class Firing:
    """A timer has fired: the version of its step that waited, and the one that did no longer."""

    waited: Change
    fired: Change

    @property
    def due_us(self) -> int:
        """When it was to fire."""
        row = self.waited.row
        return int(row["next_retry_at"] if row["type"] == "do" else row["wake_at"])

    @property
    def by_time(self) -> bool:
        """Whether it was the time that ended the wait, and not an event or a report."""
        row = self.fired.row
        match row["type"]:
            case "sleep":
                return bool(row["status"] == "completed")
            case "wait_for_event":
                return bool(row["status"] == "errored")
        return bool(row["status"] == "pending")

    @property
    def lateness_us(self) -> int:
        """How long after its time it fired."""
        return int(self.fired.row["updated_at"]) - self.due_us


def firings(story: Story) -> Iterator[Firing]:
    """Every end of a wait."""
    for versions in story.steps.values():
        for before, after in pairwise(versions):
            if before.row["status"] == "waiting" and after.row["status"] != "waiting":
                yield Firing(before, after)


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    for story in view.stories.values():
        yield from _never_early(view, story)
        yield from _never_over_at_once(view, story)
        if not view.plan.clock_steps:
            yield from _never_executed_early(view, story)
        yield from _never_moved(story)
        yield from _never_late(view, story)
        yield from _never_twice(story)
        if not view.plan.clock_steps:
            yield from _stamps_follow_commits(story)


def _never_early(view: View, story: Story) -> Iterator[Violation]:
    """T1: no timer fires before its time, by the server's stamp nor by the database's own clock, unless that is moved
    between the two."""
    for firing in firings(story):
        early = firing.due_us - _fired_us(view, firing.fired)
        if firing.by_time and early > 0:
            yield Violation("T1", story.key, f"{_name(firing)} fired {early} us before its time", "early-fired")


def _never_over_at_once(view: View, story: Story) -> Iterator[Violation]:
    """T1: nor is one stored as over before its time that was never seen to wait."""
    for (run, name), (first, *_) in story.steps.items():
        row = first.row
        by_time = (row["type"], row["status"]) in (("sleep", "completed"), ("wait_for_event", "errored"))
        if by_time and row["wake_at"] > _fired_us(view, first):
            text = f"step {name!r} of run {run} was over when it was stored, before its time"
            yield Violation("T1", story.key, text, "early-fired")


def _fired_us(view: View, over: Change) -> int:
    """When a timer had fired: by the server's stamp, and by the database's own clock unless that is moved."""
    stamp = int(over.row["updated_at"])
    return stamp if view.plan.clock_steps else min(over.at_us, stamp)


def _never_executed_early(view: View, story: Story) -> Iterator[Violation]:
    """T1: no body is executed again before its retry is due."""
    for (run, name), versions in story.steps.items():
        for waiting in versions:
            row = waiting.row
            if row["type"] != "do" or row["status"] != "waiting":
                continue
            for one in story.executions.get((run, name), ()):
                early = row["next_retry_at"] - view.wall_us(one.start.mono_ns)
                if (one.start.attempt or 0) > row["attempts"] and early > view.clock_slack_us:
                    text = f"execution {one.start.attempt} of step {name!r} of run {run} began {early} us too early"
                    yield Violation("T1", story.key, text, "early-fired")


def _never_moved(story: Story) -> Iterator[Violation]:
    """T1: the time of a sleep or a wait stays what it was when it was first stored."""
    for (run, name), versions in story.steps.items():
        times = {version.row["wake_at"] for version in versions}
        if len(times) > 1:
            yield Violation(
                "T1", story.key, f"the time of step {name!r} of run {run} was moved: {sorted(times, key=str)}"
            )


def _never_late(view: View, story: Story) -> Iterator[Violation]:
    """T2: a timer fires soon after its time, unless what was broken excuses it or the run was not to go on."""
    for firing in firings(story):
        end = firing.due_us + firing.lateness_us
        if firing.by_time and is_late(view, story, firing.due_us, end):
            late = firing.lateness_us / 1e6
            yield Violation("T2", story.key, f"{_name(firing)} fired {late:.1f} s after its time", "late")
    bound = view.plan.lateness_us or view.plan.lease_us
    for (run, name), step in story.final_steps.items():
        due = step.next_retry_at if step.type == "do" else step.wake_at
        if step.status != "waiting" or due is None or story.task is None or run != story.task.row["run_number"]:
            continue
        if due + bound < story.task.now_us and not story.was_paused(due, story.task.now_us):
            yield Violation("T2", story.key, f"step {name!r} of run {run} was due at {due} and never fired", "late")


def is_late(view: View, story: Story, due_us: int, done_us: int) -> bool:
    """Whether what was due at the first was done at the second, and that is too late without an excuse: it took too
    long though nothing was broken any more and nobody wanted a pause."""
    patience = view.plan.lateness_us or view.plan.lease_us
    since_us = max(view.whole_since(due_us, done_us), story.paused_until(due_us, done_us))
    if done_us - since_us <= patience or view.plan.clock_steps:
        return False
    meanwhile = [claim for claim in view.claims if since_us < claim.at_us < done_us]
    own = [claim for claim in meanwhile if story.key.startswith(f"{claim.row['namespace']}/")]
    if _was_passed_over(own, due_us, done_us - patience, _priority(story, done_us)):
        return True
    moments = [since_us, *(claim.at_us for claim in meanwhile), done_us]
    gaps = [(before, after) for before, after in pairwise(moments) if after - before > patience]
    return any(not view.is_full((before + after) // 2) for before, after in gaps)


def _priority(story: Story, at_us: int) -> int:
    """How urgent it was when it last waited for a worker: the less, the more. 0 if it had one."""
    waited = [task for task in story.tasks if task.at_us <= at_us and task.change != "delete"]
    return int(waited[-1].row["priority"]) if waited and waited[-1].row["status"] == "pending" else 0


def _was_passed_over(claims: list[Change], due_us: int, until_us: int, priority: int) -> bool:
    """Whether somebody took what was due later and is not more urgent. All may be busy with what was due before.

    The claims are those of one namespace, as the workers of another have room of their own.
    """
    later = [claim for claim in claims if claim.row["run_at"] > due_us and claim.row["priority"] >= priority]
    return any(claim.at_us < until_us for claim in later)


def _never_twice(story: Story) -> Iterator[Violation]:
    """T3: each time fires once."""
    fired = Counter(
        (firing.fired.row["run_number"], firing.fired.row["name"], firing.waited.row["attempts"])
        for firing in firings(story)
    )
    for (run, name, _), times in fired.items():
        if times > 1:
            yield Violation("T3", story.key, f"the timer of step {name!r} of run {run} fired {times} times")
    for (run, name), versions in story.steps.items():
        over = [version for version in versions if version.row["status"] in FINAL]
        if over and over[0].row["type"] == "sleep" and any(one.row["status"] == "waiting" for one in versions[1:]):
            yield Violation("T3", story.key, f"sleep {name!r} of run {run} began anew")


def _stamps_follow_commits(story: Story) -> Iterator[Violation]:
    """R3: what is committed later about an instance is stamped later, or who was in time could not be told."""
    steps = [version for versions in story.steps.values() for version in versions]
    events = [versions[0] for versions in story.events.values()]
    changes = sorted([*story.versions, *steps, *events], key=lambda change: change.seq)
    for before, after in pairwise(changes):
        if _stamp(after) < _stamp(before):
            back = _stamp(before) - _stamp(after)
            yield Violation(
                "R3", story.key, f"a {after.table} row was stamped {back} us before what was stored earlier"
            )


def _stamp(change: Change) -> int:
    return int(change.row["created_at"] if change.table == "workflow_events" else change.row["updated_at"])


def _name(firing: Firing) -> str:
    row = firing.fired.row
    return f"the timer of step {row['name']!r} of run {row['run_number']}"
