"""T1 to T3 and the order of stamps: sleeps, deadlines of waits, and retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.records import Change
from tests.chaos.verdicts import Violation
from tests.chaos.view import FINAL, Story, View


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
        yield from _never_moved(story)
        yield from _never_late(view, story)
        yield from _never_twice(story)
        if not view.plan.clock_steps:
            yield from _stamps_follow_commits(story)


def _never_early(view: View, story: Story) -> Iterator[Violation]:
    """T1: no timer fires before its time, by the server's stamp nor by the database's own clock, unless that is moved
    between the two."""
    for firing in firings(story):
        stamp = firing.fired.row["updated_at"]
        early = firing.due_us - (stamp if view.plan.clock_steps else min(firing.fired.at_us, stamp))
        if firing.by_time and early > 0:
            yield Violation("T1", story.key, f"{_name(firing)} fired {early} us before its time", "early-fired")


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
    """Whether what was due at the first was done at the second, and that is too late without an excuse."""
    patience = view.patience_us(due_us, done_us)
    if done_us - due_us <= patience or view.plan.clock_steps or story.was_paused(due_us, done_us):
        return False
    return _was_forgotten(view, due_us, done_us, patience, _priority(story, done_us))


def _priority(story: Story, at_us: int) -> int:
    """How urgent it was when it last waited for a worker: the less, the more. 0 if it had one."""
    waited = [task for task in story.tasks if task.at_us <= at_us and task.change != "delete"]
    return int(waited[-1].row["priority"]) if waited and waited[-1].row["status"] == "pending" else 0


def _was_forgotten(view: View, due_us: int, fired_us: int, bound: float, priority: int) -> bool:
    """Whether somebody who could have fired a timer did something else: took what was due later and is not more
    urgent, or nothing at all.

    All workers may simply be busy with what was due before.
    """
    meanwhile = [claim for claim in view.claims if due_us < claim.at_us < fired_us]
    later = [claim for claim in meanwhile if claim.row["run_at"] > due_us and claim.row["priority"] >= priority]
    if any(claim.at_us < fired_us - bound for claim in later):
        return True
    moments = [due_us, *(claim.at_us for claim in meanwhile), fired_us]
    gaps = [(before, after) for before, after in pairwise(moments) if after - before > bound]
    return any(not view.is_full((before + after) // 2) for before, after in gaps)


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
