"""Lies about instances, runs, steps and leases."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.chaos.checker.view import EXHAUSTED
from tests.chaos.records import Call, Change, Effect, InstanceRow, StepRow, TaskRow
from tests.chaos.selftest.lies.forger import EXISTS, Forger, breaks
from tests.chaos.selftest.simulation import LEASE, LIMIT


@breaks("W1")
def an_instance_is_lost(forger: Forger) -> None:
    key = forger.any(Call, op="create", phase="ok").key
    forger.drop(*forger.all(InstanceRow, key=key))


@breaks("W1")
def an_instance_is_not_found(forger: Forger) -> None:
    about = {"call": "lie", "op": "get", "key": forger.any(Call, op="create", phase="ok").key, "process": "client"}
    forger.add(
        Call(**about, phase="invoke", mono_ns=10**19),
        Call(**about, phase="fail", mono_ns=10**19, code="NOT_FOUND", reason="INSTANCE_NOT_FOUND"),
    )


@breaks("W1")
def an_instance_comes_from_nowhere(forger: Forger) -> None:
    for one in forger.all(InstanceRow, key=forger.any(InstanceRow).key):
        forger.add(replace(one, key="default/order/nobody"))


@breaks("W1")
def an_instance_has_the_params_of_another(forger: Forger) -> None:
    key = forger.any(Call, op="create", phase="ok").key
    forger.alter_rows(InstanceRow, {"key": key}, params='{"name": "another"}')


@breaks("W1")
def a_termination_is_lost(forger: Forger) -> None:
    forger.alter(forger.any(Change, table="workflow_instances", status="terminated"), status="waiting")


@breaks("W1")
def a_restart_is_lost(forger: Forger) -> None:
    key = forger.any(Call, op="restart", phase="ok").key
    forger.alter_rows(InstanceRow, {"key": key}, run_number=0)


@breaks("W1")
def a_pause_is_lost(forger: Forger) -> None:
    for parked in forger.all(Change, table="tasks", status="parked"):
        forger.alter(parked, status="pending")


@breaks("W2")
def a_rival_is_acknowledged(forger: Forger) -> None:
    refused = forger.any(Call, op="create", phase="fail")
    forger.alter(refused, phase="ok", code="", reason="")


@breaks("W2")
def a_creator_is_told_of_another_instance(forger: Forger) -> None:
    told = forger.any(Call, op="create", phase="ok")
    forger.alter(told, value=told.value | {"created_at": 1})


@breaks("W2")
def nobody_is_told_that_it_created_an_instance(forger: Forger) -> None:
    key = forger.any(Call, op="create", phase="ok").key
    for told in [*forger.all(Call, key=key, op="create", phase="ok"), *forger.all(Call, key=key, phase="info")]:
        forger.alter(told, **EXISTS)


@breaks("W2")
def a_restart_counts_twice(forger: Forger) -> None:
    key = forger.any(Call, op="restart", phase="ok").key
    forger.alter_rows(InstanceRow, {"key": key}, run_number=2)


@breaks("W3")
def an_ended_instance_runs_on(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_instances", status="complete"), status="running")


@breaks("W3")
def a_sleeper_completes(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_instances", status="terminated"), status="complete")


@breaks("W3")
def a_run_is_left_out(forger: Forger) -> None:
    last = forger.any(Change, table="workflow_instances", status="complete")
    forger.after(last, run_number=last.row["run_number"] + 2, status="queued")


# ---- steps and leases


@breaks("W4")
def a_result_changes(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_steps", status="completed", type="do"), result='"other"')


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
    for key, step, value in forger.zombies():
        for done in forger.all(Change, table="workflow_steps", status="completed", name=step):
            if forger.key_of(done) == key:
                forger.alter(done, result=value)
        forger.alter_rows(StepRow, {"key": key, "name": step}, result=value)
        outputs = {one.key: one.output for one in forger.all(InstanceRow, key=key)}
        output = json.dumps(json.loads(outputs[key] or "{}") | {step: json.loads(value)})
        forger.alter_rows(InstanceRow, {"key": key}, output=output)


@breaks("W5")
def a_fence_goes_back(forger: Forger) -> None:
    claim = forger.rng.choice(
        [one for one in forger.all(Change, table="tasks", status="pending") if one.row["fence"] > 1]
    )
    forger.after(claim, fence=claim.row["fence"] - 1)


@breaks("W5")
def a_restart_begins_with_old_fences(forger: Forger) -> None:
    number = _restarted(forger)
    old = forger.any(Change, table="tasks", id=number, run_number=0, status="processing").row["fence"]
    for change in forger.all(Change, table="tasks", id=number, run_number=1):
        forger.alter(change, fence=old)


@breaks("W5")
def a_fence_is_used_twice(forger: Forger) -> None:
    one, other = forger.rng.sample(forger.all(Change, table="tasks", status="processing", acked=False), 2)
    while other.row["id"] == one.row["id"]:
        other = forger.any(Change, table="tasks", status="processing")
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
    forger.alter(held, locked_until=held.at_us + 2 * LEASE)


@breaks("W5")
def a_lease_is_taken_too_early(forger: Forger) -> None:
    taken = forger.any(Change, table="tasks", status="pending", reason="takeover")
    held = [one for one in forger.all(Change, table="tasks", id=taken.row["id"]) if one.seq < taken.seq]
    last = max(held, key=lambda one: one.seq)
    alive = {"id": 10**6, "fence": 10**6, "locked_until": taken.at_us + 2 * LEASE}
    forger.add(replace(last, seq=10**6, at_us=taken.at_us + LEASE, row=last.row | alive))
    forger.alter(last, locked_until=taken.at_us + LEASE)


@breaks("W5")
def a_lease_changes_hands(forger: Forger) -> None:
    held = forger.any(Change, table="tasks", status="processing", change="update")
    forger.after(held, session_id="thief")
    forger.drop(*[one for one in forger.all(Change, table="tasks", id=held.row["id"]) if one.seq > held.seq][:-1])


@breaks("W6")
def a_body_runs_too_often(forger: Forger) -> None:
    start = forger.any(Effect, phase="start", step="first")
    forger.add(*(replace(start, execution=f"lie-{number}") for number in range(LIMIT)))


@breaks("W6")
def an_execution_is_not_counted(forger: Forger) -> None:
    done = forger.any(StepRow, source="sql", type="do", status="completed")
    forger.alter_rows(StepRow, {"key": done.key, "run": done.run, "name": done.name}, attempts=0)


@breaks("W6")
def an_execution_is_counted_that_never_was(forger: Forger) -> None:
    done = forger.any(StepRow, source="sql", type="do", status="completed", name="spawn")
    forger.alter_rows(StepRow, {"key": done.key, "run": done.run, "name": done.name}, attempts=2)


@breaks("W6")
def an_execution_is_counted_twice(forger: Forger) -> None:
    lost = forger.any(Change, table="tasks", status="pending", reason="takeover")
    key, run = forger.key_of(lost), lost.row["run_number"]
    first = forger.any(StepRow, source="sql", key=key, run=run, name="first")
    begun = forger.all(Effect, key=key, run=run, step="first", phase="start")
    more = {"attempts": first.attempts + 1 + (len(begun) < first.attempts)}
    forger.alter_rows(StepRow, {"key": key, "run": run, "name": "first"}, **more)


@breaks("W6")
def a_step_is_given_up_too_soon(forger: Forger) -> None:
    forger.alter_rows(StepRow, {"error_name": EXHAUSTED}, attempts=LIMIT - 1)


@breaks("W7")
def what_is_done_is_done_again(forger: Forger) -> None:
    done = forger.any(Change, table="workflow_steps", status="completed", name="flaky")
    key = forger.key_of(done)
    later = forger.all(Change, table="tasks", id=done.row["task_id"], status="processing")
    fence = max(one.row["fence"] for one in later)
    start = forger.any(Effect, phase="start", key=key, step="flaky", run=done.row["run_number"])
    forger.add(replace(start, execution="lie", fence=fence))


@breaks("W7")
def what_came_before_is_done_again(forger: Forger) -> None:
    start = forger.any(Effect, phase="start", step="spawn")
    forger.add(replace(start, execution="lie", step="first", mono_ns=start.mono_ns + 1))


@breaks("W7")
def a_body_begins_before_what_came_before_it_is_stored(forger: Forger) -> None:
    start = forger.any(Effect, phase="start", step="flaky", attempt=1)
    stored = forger.all(Change, table="workflow_steps", status="completed", name="first", run_number=start.run)
    first = next(one for one in stored if forger.key_of(one) == start.key)
    forger.alter(start, mono_ns=first.at_us * 1000 - 3_000_000)


@breaks("W8")
def a_result_is_of_another_run(forger: Forger) -> None:
    second = forger.any(Change, table="workflow_steps", run_number=1, name="first", status="completed")
    first = next(one for one in forger.all(Effect, key=forger.key_of(second), run=0, phase="end", step="first"))
    forger.alter(second, result=first.value)


@breaks("W8")
def an_old_run_is_written_to(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_steps", run_number=0, name="first", task_id=_restarted(forger)))


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


@breaks("W8")
def a_paused_instance_is_claimed(forger: Forger) -> None:
    parked = forger.any(Change, table="tasks", status="parked")
    later = [one for one in forger.all(Change, table="tasks", id=parked.row["id"]) if one.seq > parked.seq]
    forger.alter(min(later, key=lambda one: one.seq), status="processing")


@breaks("W8")
def a_pause_does_nothing(forger: Forger) -> None:
    pause = forger.any(Call, op="pause", phase="ok")
    forger.alter(pause, value=pause.value | {"status": "waiting"})


@breaks("W8")
def a_body_begins_in_a_pause(forger: Forger) -> None:
    pauses = forger.all(Call, op="pause", phase="ok")
    pause = forger.rng.choice([one for one in pauses if one.value["status"] == "paused"])
    start = forger.any(Effect, phase="start", key=pause.key, step="spawn")
    forger.add(replace(start, execution="lie", mono_ns=pause.mono_ns + 1))


@breaks("W8")
def a_pause_dies_with_its_holder(forger: Forger) -> None:
    forger.alter(forger.any(Change, table="tasks", status="parked", reason="takeover"), status="pending")


@breaks("W8")
def a_pause_ends_that_nobody_ends(forger: Forger) -> None:
    pauses = forger.all(Call, op="pause", phase="ok")
    pause = forger.rng.choice([one for one in pauses if one.value["status"] == "waiting_for_pause"])
    forger.drop(*forger.all(Call, op="resume", key=pause.key))


@breaks("W9")
def an_instance_is_stuck(forger: Forger) -> None:
    key = forger.any(InstanceRow, status="complete").key
    forger.alter_rows(InstanceRow, {"key": key}, status="waiting")


@breaks("W9")
def an_instance_waits_for_nothing(forger: Forger) -> None:
    task = forger.any(TaskRow)
    forger.alter(task, row=task.row | {"run_at": task.now_us - 1})


@breaks("W10")
def a_child_is_lost(forger: Forger) -> None:
    child = forger.rng.choice([one.key for one in forger.all(InstanceRow) if "/parcel/" in one.key])
    forger.drop(*forger.all(InstanceRow, key=child))


@breaks("W11")
def an_output_is_not_what_the_steps_returned(forger: Forger) -> None:
    key = forger.any(InstanceRow, status="complete").key
    forger.alter_rows(InstanceRow, {"key": key}, output="{}")


@breaks("W11")
def an_instance_ends_otherwise(forger: Forger) -> None:
    key = forger.any(InstanceRow, status="complete").key
    forger.alter_rows(InstanceRow, {"key": key}, status="errored")


@breaks("W11")
def an_instance_fails_for_another_reason(forger: Forger) -> None:
    key = forger.any(InstanceRow, status="errored").key
    forger.alter_rows(InstanceRow, {"key": key}, error_name="Another")
