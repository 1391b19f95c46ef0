"""Lies about instances, runs, steps and leases."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.chaos.checker.view import EXHAUSTED, is_stopped
from tests.chaos.facts.calls import Call
from tests.chaos.facts.tasks import Change, TaskRow
from tests.chaos.facts.workflows import Effect, InstanceRow, StepRow
from tests.chaos.selftest.lies.forger import AFTER_ALL_NS, EXISTS, Forger, breaks


@breaks("W1", "A7")
def an_instance_is_lost(forger: Forger) -> None:
    forger.drop(*forger.all(InstanceRow, key=_created(forger)))


@breaks("W1")
def an_instance_is_not_found(forger: Forger) -> None:
    about = {"call": "lie", "op": "get", "key": _created(forger), "process": "client"}
    forger.add(
        Call(**about, phase="invoke", mono_ns=AFTER_ALL_NS),
        Call(**about, phase="fail", mono_ns=AFTER_ALL_NS, code="NOT_FOUND", reason="INSTANCE_NOT_FOUND"),
    )


@breaks("W1", "W2")
def an_instance_comes_from_nowhere(forger: Forger) -> None:
    for one in forger.all(InstanceRow, key=_complete(forger)):
        forger.add(replace(one, key="default/order/nobody"))


@breaks("W1")
def an_instance_has_the_params_of_another(forger: Forger) -> None:
    forger.alter_rows(InstanceRow, {"key": _created(forger)}, params='{"name": "another"}')


@breaks("W1", "A6", "W3")
def a_termination_is_lost(forger: Forger) -> None:
    forger.alter(forger.any(Change, table="workflow_instances", status="terminated"), status="waiting")


@breaks("W1", "A3", "W11")
def a_restart_is_lost(forger: Forger) -> None:
    key = forger.any(Call, op="restart", phase="ok").key
    forger.alter_rows(InstanceRow, {"key": key}, run_number=0)


@breaks("W1", "T2")
def a_pause_is_lost(forger: Forger) -> None:
    key = forger.one_of(_paused_at_once(forger)).key
    for stopped in forger.all(Change, table="tasks"):
        if forger.key_of(stopped) == key and is_stopped(stopped.row):
            status = "pending" if stopped.row["status"] == "parked" else stopped.row["status"]
            forger.alter(stopped, status=status, stop="none")


def _created(forger: Forger) -> str:
    return forger.any(Call, op="create", phase="ok").key


def _paused_at_once(forger: Forger) -> list[Call]:
    """Answers to pauses that nobody had to wait for."""
    pauses = forger.all(Call, op="pause", phase="ok")
    return [one for one in pauses if one.value["status"] == "paused"]


@breaks("W2", "A1")
def a_rival_is_acknowledged(forger: Forger) -> None:
    refused = forger.any(Call, op="create", phase="fail")
    forger.alter(refused, phase="ok", code="", reason="")


@breaks("W2", "A1", "A5")
def a_creator_is_told_of_another_instance(forger: Forger) -> None:
    told = forger.any(Call, op="create", phase="ok")
    forger.alter(told, value=told.value | {"created_at": 1})


@breaks("W2")
def nobody_is_told_that_it_created_an_instance(forger: Forger) -> None:
    for told in forger.all(Call, key=_created(forger), op="create"):
        if told.phase in ("ok", "info"):
            forger.alter(told, **EXISTS)


@breaks("W2", "A3", "W11")
def a_restart_counts_twice(forger: Forger) -> None:
    restarted = forger.any(Call, op="restart", phase="ok")
    asked = {one.request_id for one in forger.all(Call, op="restart", key=restarted.key)}
    forger.alter_rows(InstanceRow, {"key": restarted.key}, run_number=len(asked) + 1)


@breaks("W3")
def an_ended_instance_runs_on(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_instances", status="complete"), status="running")


@breaks("W3", "W5")
def a_terminated_instance_completes(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_instances", status="terminated"), status="complete")


@breaks("W3")
def a_run_is_left_out(forger: Forger) -> None:
    last = forger.any(Change, table="workflow_instances", status="complete")
    forger.after(last, run_number=last.row["run_number"] + 2, status="queued")


# ---- steps and leases


@breaks("W4")
def a_result_changes(forger: Forger) -> None:
    forger.after(forger.of_last_run(status="completed", type="do"), result='"other"')


@breaks("W4")
def a_result_is_made_up(forger: Forger) -> None:
    done = forger.any(Change, table="workflow_steps", status="completed", type="do")
    forger.alter(done, result='"made up"')


@breaks("W4")
def a_result_is_stored_as_a_failure(forger: Forger) -> None:
    done = forger.any(Change, table="workflow_steps", status="completed", type="do")
    forger.alter(done, status="errored", result=None, error_name="Oops")


@breaks("W5")
def a_zombie_is_believed(forger: Forger) -> None:
    late, done = forger.one_of(
        (late, done)
        for late in forger.zombies()
        for done in forger.all(Change, table="workflow_steps", status="completed", name=late.step, run_number=late.run)
        if forger.key_of(done) == late.key and json.loads(done.row["result"]) != json.loads(late.value or "")
    )
    forger.alter(done, result=late.value)
    forger.alter_rows(StepRow, {"key": late.key, "run": late.run, "name": late.step}, result=late.value)
    for row in forger.all(InstanceRow, key=late.key, run_number=late.run, status="complete"):
        output = json.loads(row.output or "{}") | {late.step: json.loads(late.value or "")}
        forger.alter(row, output=json.dumps(output))


@breaks("W5")
def a_fence_goes_back(forger: Forger) -> None:
    _, given_back = forger.one_of(
        (before, after)
        for before, after in forger.versions("tasks")
        if before.row["fence"] == after.row["fence"] > 1 and after.row["status"] == "pending"
    )
    forger.alter(given_back, fence=given_back.row["fence"] - 1)


@breaks("W5")
def a_restart_begins_with_old_fences(forger: Forger) -> None:
    number = _restarted(forger)
    old = forger.any(Change, table="tasks", id=number, run_number=0, status="processing").row["fence"]
    for change in forger.all(Change, table="tasks", id=number, run_number=1):
        forger.alter(change, fence=old)


@breaks("W5", "W7")
def a_fence_is_used_twice(forger: Forger) -> None:
    one = forger.any(Change, table="tasks", status="processing", acked=False)
    every = forger.all(Change, table="tasks", status="processing")
    other = forger.one_of(change for change in every if change.row["id"] != one.row["id"])
    forger.alter(one, fence=other.row["fence"])


@breaks("W5")
def a_failure_of_a_zombie_is_believed(forger: Forger) -> None:
    failed = forger.any(Effect, phase="fail")
    for one in forger.all(Effect, execution=failed.execution):
        forger.alter(one, fence=(failed.fence or 0) - 1)


@breaks("W5")
def a_zombie_ends_a_run(forger: Forger) -> None:
    ended = forger.any(Change, table="workflow_instances", status="complete")
    forger.alter(ended, ended_fence=ended.row["ended_fence"] - 1)


@breaks("W5")
def a_run_ends_that_nobody_holds(forger: Forger) -> None:
    ended = forger.any(Change, table="workflow_instances", status="complete")
    (gone,) = forger.all(Change, table="tasks", change="delete", id=ended.row["id"])
    forger.alter(gone, status="pending")


@breaks("W5")
def a_lease_has_no_end(forger: Forger) -> None:
    held = forger.any(Change, table="tasks", status="processing", change="update")
    forger.alter(held, locked_until=held.at_us + 2 * forger.plan.lease_us)


@breaks("W5")
def a_lease_is_taken_too_early(forger: Forger) -> None:
    lease_us = forger.plan.lease_us
    last, taken = forger.one_of(
        (before, after)
        for before, after in forger.versions("tasks")
        if before.row["status"] == "processing"
        and after.row["status"] == "pending"
        and after.row["reason"] == "takeover" != before.row["reason"]
        and (before.row["id"], before.row["fence"]) not in forger.truth.given_up
    )
    alive = {"id": 10**6, "fence": 10**6, "locked_until": taken.at_us + 2 * lease_us}
    forger.add(replace(last, seq=10**6, at_us=taken.at_us + lease_us, row=last.row | alive))
    forger.alter(last, locked_until=taken.at_us + lease_us)


@breaks("W5")
def a_lease_changes_hands(forger: Forger) -> None:
    _, held = forger.one_of(
        (before, after)
        for before, after in forger.versions("tasks", status="processing")
        if before.row["fence"] == after.row["fence"]
    )
    forger.alter(held, session_id="thief")


@breaks("W6")
def a_body_runs_too_often(forger: Forger) -> None:
    step = forger.any(StepRow, source="sql", type="do", status="completed")
    start = forger.any(Effect, phase="start", key=step.key, run=step.run, step=step.name)
    forger.add(*(replace(start, execution=f"lie-{number}") for number in range(step.max_attempts or 0)))


@breaks("W6")
def an_execution_is_not_counted(forger: Forger) -> None:
    done = forger.any(StepRow, source="sql", type="do", status="completed")
    _count(forger, done, 0)


@breaks("W6")
def an_execution_is_counted_that_never_was(forger: Forger) -> None:
    lost = {forger.key_of(one) for one in forger.all(Change, table="tasks", reason="takeover")}
    every = forger.all(StepRow, source="sql", type="do", status="completed")
    done = forger.one_of(one for one in every if one.key not in lost)
    _count(forger, done, done.attempts + 1)


@breaks("W6")
def an_execution_is_counted_twice(forger: Forger) -> None:
    """One that had begun when its worker was lost, and nothing else of its run was lost."""
    key, run, name = forger.one_of(_lost_once_begun(forger))
    done = forger.any(StepRow, source="sql", key=key, run=run, name=name, status="completed")
    _count(forger, done, len(forger.all(Effect, key=key, run=run, step=name, phase="start")) + 1)


def _lost_once_begun(forger: Forger) -> list[tuple[str, int, str]]:
    lost = [
        (before, after)
        for before, after in forger.versions("tasks")
        if before.row["status"] == "processing" != after.row["status"] and after.row["reason"] == "takeover"
    ]
    found = []
    for before, after in lost:
        key, run = forger.key_of(after), after.row["run_number"]
        for name, attempt, *_ in json.loads(after.row["open_steps"] or "[]"):
            like = {"key": key, "run": run, "step": name, "attempt": attempt, "fence": before.row["fence"]}
            if forger.all(Effect, phase="start", **like):
                found.append((key, run, name))
    return [place for place in found if sum(forger.key_of(after) == place[0] for _, after in lost) == 1]


def _count(forger: Forger, step: StepRow, attempts: int) -> None:
    forger.alter_rows(StepRow, {"key": step.key, "run": step.run, "name": step.name}, attempts=attempts)


@breaks("W6")
def a_step_is_given_up_too_soon(forger: Forger) -> None:
    exhausted = forger.any(StepRow, error_name=EXHAUSTED)
    _count(forger, exhausted, exhausted.attempts - 1)


@breaks("W7", "W6")
def what_is_done_is_done_again(forger: Forger) -> None:
    claims = forger.truth.claims
    done, later = forger.one_of(
        (done, claim)
        for done in forger.all(Change, table="workflow_steps", status="completed", type="do")
        for claim in claims
        if claim.row["id"] == done.row["task_id"]
        and claim.row["run_number"] == done.row["run_number"]
        and claim.seq > done.seq
    )
    like = {"key": forger.key_of(done), "step": done.row["name"], "run": done.row["run_number"]}
    forger.add(replace(forger.any(Effect, phase="start", **like), execution="lie", fence=later.row["fence"]))


@breaks("W7", "W6")
def what_came_before_is_done_again(forger: Forger) -> None:
    start = forger.any(Effect, phase="start", step="spawn")
    forger.add(replace(start, execution="lie", step="reserve", mono_ns=start.mono_ns + 1))


@breaks("W7")
def a_body_begins_before_what_came_before_it_is_stored(forger: Forger) -> None:
    start = forger.any(Effect, phase="start", step="charge", attempt=1)
    stored = forger.all(Change, table="workflow_steps", status="completed", name="reserve", run_number=start.run)
    first = forger.one_of(one for one in stored if forger.key_of(one) == start.key)
    forger.alter(start, mono_ns=forger.mono_ns(first.at_us - 3 * forger.truth.clock_slack_us))


@breaks("W8")
def a_result_is_of_another_run(forger: Forger) -> None:
    second = forger.any(Change, table="workflow_steps", run_number=1, name="reserve", status="completed")
    first = forger.any(Effect, key=forger.key_of(second), run=0, phase="end", step="reserve")
    forger.alter(second, result=first.value)


@breaks("W8")
def an_old_run_is_written_to(forger: Forger) -> None:
    like = {"run_number": 0, "name": "reserve", "status": "completed"}
    old = forger.any(Change, table="workflow_steps", task_id=_restarted(forger), **like)
    forger.after(old)


@breaks("W8")
def an_event_goes_to_a_run_that_is_over(forger: Forger) -> None:
    number = _restarted(forger)
    begun = forger.all(Change, table="tasks", id=number, run_number=1)[0]
    stamp = forger.all(Change, table="workflow_instances", id=number, run_number=1)[0].row["updated_at"]
    event = forger.any(Change, table="workflow_events", change="insert")
    late = {"task_id": number, "run_number": 0, "position": 10**6, "created_at": stamp}
    forger.add(replace(event, seq=begun.seq, row=event.row | late))


def _restarted(forger: Forger) -> int:
    return int(forger.any(Change, table="workflow_instances", run_number=1).row["id"])


@breaks("W8", "W5")
def a_paused_instance_is_claimed(forger: Forger) -> None:
    _, resumed = forger.one_of(
        (before, after)
        for before, after in forger.versions("tasks")
        if before.row["status"] == "parked" and after.change == "update" and after.row["status"] == "pending"
    )
    forger.alter(resumed, status="processing")


@breaks("W8", "R2")
def a_pause_does_nothing(forger: Forger) -> None:
    pause = forger.any(Call, op="pause", phase="ok")
    forger.alter(pause, value=pause.value | {"status": "waiting"})


@breaks("W8", "W6", "W7")
def a_body_begins_in_a_pause(forger: Forger) -> None:
    pause = forger.one_of(_paused_at_once(forger))
    start = forger.first(one for one in forger.all(Effect, phase="start", key=pause.key) if one.mono_ns > pause.mono_ns)
    forger.add(replace(start, execution="lie", mono_ns=pause.mono_ns + 1))


@breaks("W8", "W1")
def a_pause_dies_with_its_holder(forger: Forger) -> None:
    """Nobody has asked for its end by then."""
    resumed = {one.key: one.mono_ns for one in reversed(forger.all(Call, op="resume", phase="invoke"))}
    _, parked = forger.one_of(
        (before, after)
        for before, after in forger.versions("tasks")
        if is_stopped(before.row)
        and (after.row["status"], after.row["reason"]) == ("parked", "takeover")
        and forger.mono_ns(after.at_us + forger.truth.clock_slack_us) < resumed.get(forger.key_of(after), AFTER_ALL_NS)
    )
    forger.alter(parked, status="pending")


@breaks("W8")
def a_pause_ends_that_nobody_ends(forger: Forger) -> None:
    pauses = forger.all(Call, op="pause", phase="ok")
    pause = forger.one_of(one for one in pauses if one.value["status"] == "waiting_for_pause")
    forger.drop(*forger.all(Call, op="resume", key=pause.key))


@breaks("W9")
def an_instance_is_stuck(forger: Forger) -> None:
    forger.alter_rows(InstanceRow, {"key": _complete(forger)}, status="waiting")


@breaks("W9")
def an_instance_waits_for_nothing(forger: Forger) -> None:
    task = forger.any(TaskRow)
    forger.alter(task, row=task.row | {"run_at": task.now_us - 1})


def _complete(forger: Forger) -> str:
    return forger.any(InstanceRow, status="complete").key


@breaks("W10")
def a_child_is_lost(forger: Forger) -> None:
    child = forger.one_of(one.key for one in forger.all(InstanceRow) if one.key.endswith("-parcel"))
    forger.drop(*forger.all(InstanceRow, key=child))


@breaks("W11")
def an_output_is_not_what_the_steps_returned(forger: Forger) -> None:
    forger.alter_rows(InstanceRow, {"key": _complete(forger)}, output="{}")


@breaks("W11", "A3")
def an_instance_ends_otherwise(forger: Forger) -> None:
    forger.alter_rows(InstanceRow, {"key": _complete(forger)}, status="errored")


@breaks("W11")
def an_instance_fails_for_another_reason(forger: Forger) -> None:
    key = forger.any(InstanceRow, status="errored").key
    forger.alter_rows(InstanceRow, {"key": key}, error_name="Another")
