"""W1 to W11: instances, runs and steps. W5 is in `leases`, W6 and W7 are in `attempts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.checker.verdicts import Violation
from tests.chaos.checker.view import ENDED, FINAL, FOREVER, Invocation, Story, View, is_stopped, loads
from tests.chaos.facts.tasks import Change
from tests.chaos.facts.workflows import InstanceRow

_EDGES = {
    "queued": {"running", "paused", "terminated"},
    "running": {"queued", "waiting", "waiting_for_pause", "paused", "complete", "errored", "terminated"},
    "waiting": {"running", "paused", "terminated"},
    "waiting_for_pause": {"running", "queued", "paused", "terminated"},
    "paused": {"queued", "terminated"},
}
"""How a status may change within a run. A restart leads from anywhere to the next run."""
SAME_IN_REPEATS = {
    "create": ("created_at",),
    "event": ("event_id", "created_at"),
    "pause": ("run_number", "created_at"),
    "resume": ("run_number", "created_at"),
    "restart": ("run_number", "created_at"),
    "terminate": ("run_number", "created_at", "status"),
}
"""A repeated call is answered with the instance as it is by then, so that its status may be another."""
REASONS = {
    "NOT_FOUND": frozenset({"INSTANCE_NOT_FOUND", "WORKFLOW_NOT_FOUND"}),
    "ALREADY_EXISTS": frozenset({"INSTANCE_ID_ALREADY_EXISTS"}),
    "FAILED_PRECONDITION": frozenset({"INSTANCE_TERMINAL"}),
}
"""Why a call about an instance may be refused."""


def check(view: View) -> Iterator[Violation]:
    """All of them."""
    yield from _instances_exist_once(view)
    for story in view.stories.values():
        yield from _creates_agree(story)
        yield from _somebody_created(story)
        yield from _stored_as_created(story)
        yield from _restarts_count_once(story)
        yield from _changes_are_not_lost(view, story)
        yield from _statuses_follow_edges(story)
        yield from _results_are_final(story)
        yield from _runs_are_apart(story)
        yield from _pauses_hold(story)
        yield from _pauses_are_ended_by_somebody(view, story)
        yield from _nothing_begins_in_a_pause(story)
        yield from _waits_for_something(story)
        yield from _children_exist(view, story)
        yield from _ends_as_programmed(story)


def _instances_exist_once(view: View) -> Iterator[Violation]:
    """W1: every acknowledged create exists, and nothing that nobody tried to create."""
    rows = Counter(row.key for row in view.history.of(InstanceRow) if row.source == "sql")
    children = {child for story in view.stories.values() if story.program for child in story.program.children.values()}
    for story in view.stories.values():
        created = any(call.op == "create" and call.is_ok for call in story.calls)
        if created and not rows[story.key]:
            yield Violation("W1", story.key, "its create was acknowledged, and it does not exist", "lost")
        yield from _found_once_created(story)
        if rows[story.key] and not story.called("create") and story.key not in children:
            yield Violation("W1", story.key, "it exists, and nobody tried to create it")
        if rows[story.key] > 1:
            yield Violation("W2", story.key, f"it exists {rows[story.key]} times", "double-completed")


def _found_once_created(story: Story) -> Iterator[Violation]:
    """W1: whoever asks after a create was acknowledged finds the instance."""
    acked = [call.reply.mono_ns for call in story.calls if call.op == "create" and call.is_ok and call.reply]
    for call in story.calls:
        missed = call.is_refused and call.reply is not None and call.reply.reason == "INSTANCE_NOT_FOUND"
        if missed and acked and call.invoke.mono_ns > min(acked):
            yield Violation("W1", story.key, f"it had been created, and {call.op} did not find it", "lost")


def _creates_agree(story: Story) -> Iterator[Violation]:
    """W2: one id or one request makes one instance, and all who were acknowledged were told of the same."""
    acked = [call for call in story.calls if call.op == "create" and call.is_ok]
    requests = {call.request_id for call in acked}
    if len(requests) > 1:
        yield Violation("W2", story.key, f"{len(requests)} different creates of it were acknowledged")
    stamps = {call.answer["created_at"] for call in acked if "created_at" in call.answer}
    if story.instance is not None:
        stamps.add(story.instance.created_at)
    if len(stamps) > 1:
        yield Violation("W2", story.key, f"its creators were told of different instances, created at {sorted(stamps)}")


def _somebody_created(story: Story) -> Iterator[Violation]:
    """W2: an id that is refused because it is there is somebody's: one of those who tried it was acknowledged."""
    creates = [call for call in story.calls if call.op == "create"]
    known = {call.request_id for call in creates if call.is_ok or call.is_refused}
    is_unknown = any(call.request_id not in known for call in creates)
    if creates and not is_unknown and not any(call.is_ok for call in creates):
        yield Violation("W2", story.key, "all who tried to create it were refused")


def _stored_as_created(story: Story) -> Iterator[Violation]:
    """W1: an instance has the parameters with which it was created."""
    for call in story.calls:
        acked = call.op == "create" and call.is_ok and story.instance is not None
        if acked and story.instance is not None and loads(story.instance.params) != call.invoke.value:
            text = f"it was created with {call.invoke.value}, and has {story.instance.params}"
            yield Violation("W1", story.key, text, "lost")


def _restarts_count_once(story: Story) -> Iterator[Violation]:
    """W2: one request to restart makes one run, however often it is repeated."""
    asked = len({call.request_id for call in story.calls if call.op == "restart"})
    if story.instance is not None and story.instance.run_number > asked:
        text = f"it is in run {story.instance.run_number}, and was to be restarted {asked} times"
        yield Violation("W2", story.key, text, "double-completed")


def _changes_are_not_lost(view: View, story: Story) -> Iterator[Violation]:
    """W1: what was acknowledged has happened: a run was terminated, the next one was begun, or it was to pause.

    Each request ends another run, or begins another, whatever the instance was when a repetition was answered.
    """
    if not story.versions:
        return
    ended = {version.row["run_number"] for version in story.versions if version.row["status"] == "terminated"}
    asked = len(story.acked("terminate"))
    if asked > len(ended):
        text = f"{asked} requests to terminate it were acknowledged, {len(ended)} of its runs were terminated"
        yield Violation("W1", story.key, text, "lost")
    restarts = story.acked("restart").values()
    told = [call.answer["run_number"] for calls in restarts for call in calls if call.is_ok]
    least = max([len(restarts), *told])
    if story.instance is not None and story.instance.run_number < least:
        text = f"its restart as run {least} was acknowledged, and it is in run {story.instance.run_number}"
        yield Violation("W1", story.key, text, "lost")
    for calls in story.acked("pause").values():
        if not _was_to_pause(view, story, calls):
            yield Violation("W1", story.key, "its pause was acknowledged, and it was never to pause then", "lost")


def _was_to_pause(view: View, story: Story, calls: list[Invocation]) -> bool:
    """Whether the instance was paused, or was to pause, between a request and its first acknowledgement."""
    if view.plan.clock_steps:
        return story.was_paused(0, FOREVER)
    begin = view.wall_us(min(call.invoke.mono_ns for call in calls))
    end = view.wall_us(min(call.reply.mono_ns for call in calls if call.is_ok and call.reply))
    return story.was_paused(begin - view.clock_slack_us, end + view.clock_slack_us)


def _statuses_follow_edges(story: Story) -> Iterator[Violation]:
    """W3: a status moves along the edges, an end is final within its run, and runs only grow, one by one."""
    for before, after in pairwise(story.versions):
        old, new = before.row, after.row
        if new["run_number"] == old["run_number"] + 1:
            continue
        if new["run_number"] != old["run_number"]:
            yield Violation("W3", story.key, f"after run {old['run_number']} came run {new['run_number']}")
        elif old["status"] in ENDED:
            changed = [name for name in ("status", "output", "error_name", "ended_at") if old[name] != new[name]]
            if changed:
                yield Violation(
                    "W3",
                    story.key,
                    f"it had ended {old['status']}, and then its {', '.join(changed)} changed: now {new['status']}",
                    "double-completed",
                )
        elif new["status"] != old["status"] and new["status"] not in _EDGES[old["status"]]:
            yield Violation("W3", story.key, f"it went from {old['status']} to {new['status']} at {after.at_us}")


def _results_are_final(story: Story) -> Iterator[Violation]:
    """W4: a step ends once, and stays as it ended."""
    for (run, name), versions in story.steps.items():
        for before, after in pairwise(versions):
            if before.row["status"] in FINAL and _outcome(before) != _outcome(after):
                yield Violation(
                    "W4",
                    story.key,
                    f"step {name!r} of run {run} was {_outcome(before)}, and became {_outcome(after)}",
                    "double-completed",
                )


def _outcome(version: Change) -> tuple[str, str | None, str | None]:
    return version.row["status"], version.row["result"], version.row["error_name"]


def _runs_are_apart(story: Story) -> Iterator[Violation]:
    """W8: nothing of one run is stored in another: no step is written, and no event arrives."""
    current = {task.seq: task.row["run_number"] for task in story.tasks}
    starts = sorted(current)
    steps = ((f"step {name!r}", run, one) for (run, name), versions in story.steps.items() for one in versions)
    events = ((f"event {event_id}", run, versions[0]) for (run, event_id), versions in story.events.items())
    for what, run, version in (*steps, *events):
        earlier = [seq for seq in starts if seq <= version.seq]
        now = current[earlier[-1]] if earlier else run
        if run < now:
            yield Violation("W8", story.key, f"{what} of run {run} was written when run {now} had begun")


def _pauses_hold(story: Story) -> Iterator[Violation]:
    """W8: a pause that is acknowledged holds, and nobody claims what is paused."""
    for before, after in pairwise(story.tasks):
        if before.row["status"] == "parked" and after.row["status"] == "processing":
            yield Violation("W8", story.key, f"it was claimed under fence {after.row['fence']} while it was paused")
    for call in story.calls:
        status = call.answer.get("status", "paused")
        if call.op == "pause" and call.is_ok and status not in ("paused", "waiting_for_pause"):
            yield Violation("W8", story.key, f"its pause was acknowledged, and it is {status}")


def _pauses_are_ended_by_somebody(view: View, story: Story) -> Iterator[Violation]:
    """W8: a run that is paused, or is to pause, goes on when somebody has asked for that, and not before."""
    asked = min((call.invoke.mono_ns for call in story.calls if call.op == "resume"), default=None)
    asked_us = FOREVER if asked is None else view.wall_us(asked)
    for before, after in pairwise(story.tasks):
        of_one_run = before.row["run_number"] == after.row["run_number"] and after.change == "update"
        if not of_one_run or not is_stopped(before.row) or is_stopped(after.row):
            continue
        if asked is None or (after.at_us < asked_us - view.clock_slack_us and not view.plan.clock_steps):
            yield Violation("W8", story.key, f"its pause ended under fence {after.row['fence']}, and nobody resumed it")


def _nothing_begins_in_a_pause(story: Story) -> Iterator[Violation]:
    """W8: between the answer that it is paused and the next call that changes that, no body begins."""
    moves = [call for call in story.calls if call.op in ("resume", "restart", "terminate")]
    for pause in story.calls:
        if pause.op != "pause" or pause.reply is None or pause.answer.get("status") != "paused":
            continue
        began = pause.reply.mono_ns
        others = [move for move in moves if move.reply is None or move.reply.mono_ns > pause.invoke.mono_ns]
        until = min((move.invoke.mono_ns for move in others), default=None)
        fence = max((one.row["fence"] for one in story.tasks if one.row["status"] == "parked"), default=None)
        for (run, name), executions in story.executions.items():
            for one in executions:
                inside = one.start.mono_ns > began and (until is None or one.start.mono_ns < until)
                if inside and fence is not None and (one.start.fence or 0) >= fence:
                    yield Violation("W8", story.key, f"step {name!r} of run {run} was begun while it was paused")


def _waits_for_something(story: Story) -> Iterator[Violation]:
    """W9: at rest, what has not ended waits for something that is named, and what is to end has ended."""
    if story.instance is None or story.has_ended:
        if story.has_ended and story.task is not None:
            yield Violation("W9", story.key, "it has ended, and still has a task")
        return
    if story.program is not None and story.program.ends:
        yield Violation("W9", story.key, f"it has not ended: {_standing(story)}", "stuck")
    elif not _is_named(story):
        yield Violation("W9", story.key, f"it waits for nothing: {_standing(story)}", "stuck")


def _is_named(story: Story) -> bool:
    task = story.task
    if task is None:
        return False
    match task.row["status"]:
        case "pending":
            return bool(task.row["run_at"] > task.now_us)
        case "processing":
            return bool(task.row["locked_until"] > task.now_us)
        case "parked":
            return story.called("pause")
    return False


def _standing(story: Story) -> str:
    """Where an instance stands, for people."""
    assert story.instance is not None
    waits = [f"{name!r} {step.status}" for (_, name), step in story.final_steps.items() if step.status not in FINAL]
    if story.task is None:
        return f"{story.instance.status}, without a task"
    row, now = story.task.row, story.task.now_us
    due = (row["run_at"] - now) / 1e6
    lease = f", lease for {(row['locked_until'] - now) / 1e6:.1f} s" if row["locked_until"] else ""
    task = (
        f"{row['status']}, reason {row['reason']}, stop {row['stop']}, fence {row['fence']}, due in {due:.1f} s{lease}"
    )
    return (
        f"{story.instance.status}; task {task}; open {row['open_steps'] or 'none'}; steps {', '.join(waits) or 'done'}"
    )


def _children_exist(view: View, story: Story) -> Iterator[Violation]:
    """W10: a child that a completed step created exists."""
    children = story.program.children if story.program is not None else {}
    for (run, name), step in story.final_steps.items():
        child = children.get(name)
        if child is not None and step.status == "completed":
            known = view.stories.get(child)
            if known is None or known.instance is None:
                yield Violation(
                    "W10", story.key, f"step {name!r} of run {run} created {child}, which is not there", "lost"
                )


def _ends_as_programmed(story: Story) -> Iterator[Violation]:
    """W11: an instance ends with one of the statuses of its program, and what its steps returned or failed with."""
    instance, program = story.instance, story.program
    if instance is None or program is None or not story.has_ended or not program.ends:
        return
    if instance.status not in program.ends:
        why = f" ({instance.error_name}: {instance.error_message})" if instance.error_name else ""
        yield Violation("W11", story.key, f"it ended {instance.status}{why}, not {' or '.join(program.ends)}")
    if instance.status == "errored":
        steps = [step for (run, _), step in story.final_steps.items() if run == instance.run_number]
        if instance.error_name not in {step.error_name for step in steps if step.status == "errored"}:
            text = f"it failed with {instance.error_name}, with which none of its steps had failed"
            yield Violation("W11", story.key, text)
    if instance.status == "complete" and program.output:
        made = {name: story.final_steps.get((instance.run_number, name)) for name in program.output}
        expected = {name: loads(step.result) if step is not None else None for name, step in made.items()}
        missing = [name for name, step in made.items() if step is None or step.status != "completed"]
        if missing:
            yield Violation("W11", story.key, f"it is complete without its steps {', '.join(missing)}")
        elif loads(instance.output) != expected:
            yield Violation("W11", story.key, f"its output is {instance.output}, its steps returned {expected}")
