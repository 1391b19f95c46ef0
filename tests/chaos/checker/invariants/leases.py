"""W5: leases exclude each other, and only who holds one is believed; W4 and W8, as far as results are concerned."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import EXHAUSTED, Story, View
from tests.chaos.facts.tasks import Change

RECENT = 1000
"""Changes that others may have written between the moment a lease is given and the moment that is noted."""

_BY_ITSELF = (EXHAUSTED, "StepTimeoutError")
"""Errors that a step may also get from the server, whoever holds its run."""


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    yield from _fences_are_unique(view)
    yield from _leases_are_short(view)
    for story in view.stories.values():
        yield from _fences_grow(story)
        yield from _leases_exclude_each_other(view, story)
        yield from _results_are_of_the_holder(story)
        yield from _failures_are_of_the_holder(story)
        yield from _ends_are_of_the_holder(story)


# ---- leases


def _fences_are_unique(view: View) -> Iterator[Violation]:
    """W5: no fence is used for two tasks, of whatever kind."""
    users: dict[int, set[int]] = defaultdict(set)
    for change in view.changes:
        if change.table == "tasks" and change.row["fence"]:
            users[change.row["fence"]].add(change.row["id"])
    for fence, tasks in users.items():
        if len(tasks) > 1:
            yield Violation("W5", f"task {min(tasks)}", f"fence {fence} was also given to task {max(tasks)}")


def _fences_grow(story: Story) -> Iterator[Violation]:
    """W5: every claim has a fence above all earlier ones of its instance, whatever ended or began anew in between."""
    newest = 0
    for before, after in pairwise([None, *story.tasks]):
        assert after is not None
        fence = after.row["fence"]
        if _is_claim(before, after) and fence <= newest:
            yield Violation("W5", story.key, f"it was claimed under fence {fence}, and {newest} had been used before")
        elif after.change != "insert" and fence < newest:
            yield Violation("W5", story.key, f"fence {fence} came after {newest}")
        newest = max(newest, fence)


def _is_claim(before: Change | None, after: Change) -> bool:
    """Whether a lease begins. A task that is stored anew is without a fence until somebody claims it."""
    if after.change == "delete" or after.row["status"] != "processing":
        return False
    if before is None or after.change == "insert" or before.row["status"] != "processing":
        return True
    return bool(before.row["fence"] != after.row["fence"])


def _leases_are_short(view: View) -> Iterator[Violation]:
    """W5: whoever gets a lease or keeps it has it for one length, not for ever.

    Its end is compared with the database's clock when it was noted. If that was put back a moment before, the lease may
    have been given by the old time.
    """
    longest = view.plan.lease_us + view.plan.lease_us // 10
    lately: deque[int] = deque(maxlen=RECENT)
    ends: dict[int, int | None] = {}
    for change in view.changes:
        lately.append(change.at_us)
        row = change.row
        if change.table != "tasks" or row.get("kind") == "internal":
            continue
        end = row["locked_until"]
        is_new = end is not None and end != ends.get(row["id"])
        if is_new and end - change.at_us > longest and end - max(lately) > longest:
            length = (end - change.at_us) / 1e6
            yield Violation("W5", f"task {row['id']}", f"its lease of fence {row['fence']} lasts {length:.1f} s")
        ends[row["id"]] = end


def _leases_exclude_each_other(view: View, story: Story) -> Iterator[Violation]:
    """W5: a lease stays with its session, and nobody takes it from a living one before it is over.

    Who says goodbye, or comes back and no longer names it, has given it up; so has who reports what does not count.
    """
    for before, after in pairwise(story.tasks):
        old, new = before.row, after.row
        if after.change == "insert" or old["run_number"] != new["run_number"] or old["status"] != "processing":
            continue
        moved = new["session_id"] != old["session_id"] or (new["connection"] or 0) < (old["connection"] or 0)
        if moved and new["status"] == "processing" and new["fence"] == old["fence"]:
            yield Violation("W5", story.key, f"the lease of fence {old['fence']} passed to another without a claim")
        last = view.last_lease.get((old["session_id"], old["connection"]), 0)
        holds_on = (old["id"], old["fence"]) not in view.given_up
        lives_on = holds_on and last > after.at_us + view.plan.lease_us // 2
        if lives_on and _is_takeover(old, new) and (old["locked_until"] or 0) > after.at_us:
            early = old["locked_until"] - after.at_us
            yield Violation("W5", story.key, f"its lease of fence {old['fence']} was taken {early} us before its end")


def _is_takeover(old: dict[str, object], new: dict[str, object]) -> bool:
    """Whether a lease ended though its holder had not given it up."""
    if new["status"] == "processing":
        return new["fence"] != old["fence"]
    if new["frame_number"] != old["frame_number"]:
        return False  # by a report of its holder, who has gone on with a result that is not stored
    return new["reason"] == "takeover" and old["reason"] != "takeover"  # what is only given back keeps its reason


# ---- what holders report


def _results_are_of_the_holder(story: Story) -> Iterator[Violation]:
    """W4, W5, W8: a result is what an execution of its run returned, and that one held the lease when it was stored."""
    for (run, name), versions in story.steps.items():
        done = next((one for one in versions if one.row["status"] == "completed"), None)
        if done is None or done.row["type"] != "do" or not story.has_ledger(name):
            continue
        makers = [one for one in story.of_step(name) if one.returned(done)]
        own = [one for one in makers if one.start.run == run]
        step = f"step {name!r} of run {run}"
        if not makers:
            result = str(done.row["result"])[:80]
            yield Violation("W4", story.key, f"{step} has a result that no execution returned: {result}")
        elif not own and not story.has_copies:
            yield Violation("W8", story.key, f"{step} has a result of run {makers[0].start.run}")
        elif own:
            yield from _held(story, done, {one.start.fence for one in own}, f"the result of {step}")


def _failures_are_of_the_holder(story: Story) -> Iterator[Violation]:
    """W4, W5: a failure that is stored is of an execution that held the lease. It may have failed without saying so."""
    for (run, name), versions in story.steps.items():
        for failed in versions:
            row = failed.row
            by_body = row["status"] in ("waiting", "errored") and row["error_name"] not in _BY_ITSELF
            if row["type"] != "do" or not by_body or not story.has_ledger(name):
                continue
            fences = {
                one.start.fence
                for one in story.executions.get((run, name), ())
                if (one.end is None or one.end.phase == "fail")
                and (one.start.attempt or row["attempts"]) == row["attempts"]
            }
            what = f"failure {row['attempts']} of step {name!r} of run {run}"
            if fences:
                yield from _held(story, failed, fences, what)
            else:
                yield Violation("W4", story.key, f"{what} is of no execution: none of that number failed", "lost")


def _held(story: Story, step: Change, fences: set[int | None], what: str) -> Iterator[Violation]:
    task = story.task_with(step)
    if task is not None and None not in fences and task.row["fence"] not in fences:
        text = f"{what} is of fence {fences}, and was stored under {task.row['fence']}"
        yield Violation("W5", story.key, text, "stale-accepted")


def _ends_are_of_the_holder(story: Story) -> Iterator[Violation]:
    """W5: a run that ends by itself is ended by whoever holds it, under the last of its fences."""
    for version in story.versions:
        row = version.row
        last = next((task for task in reversed(story.tasks) if task.row["run_number"] == row["run_number"]), None)
        if row["status"] not in ("complete", "errored") or last is None:
            continue
        if last.row["status"] != "processing" or last.row["fence"] != row["ended_fence"]:
            text = f"run {row['run_number']} was ended under fence {row['ended_fence']}, and was {last.row['status']}"
            yield Violation("W5", story.key, f"{text} under {last.row['fence']}", "stale-accepted")
