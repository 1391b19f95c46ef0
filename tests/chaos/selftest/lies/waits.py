"""Lies about timers and events."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.facts.calls import Call
from tests.chaos.facts.run import Fault, Plan
from tests.chaos.facts.tasks import Change, TaskRow
from tests.chaos.facts.workflows import Effect, EventRow, InstanceRow, StepRow
from tests.chaos.selftest.lies.forger import Forger, breaks


@breaks("T1", "R3")
def a_sleep_ends_early(forger: Forger) -> None:
    woken = forger.any(Change, table="workflow_steps", type="sleep", status="completed")
    forger.alter(woken, updated_at=woken.row["wake_at"] - 1)


@breaks("T1")
def a_sleep_ends_early_by_the_clock_of_the_database(forger: Forger) -> None:
    woken = forger.any(Change, table="workflow_steps", type="sleep", status="completed")
    forger.alter(woken, at_us=woken.row["wake_at"] - 1)


@breaks("T1")
def a_sleep_is_over_when_it_begins(forger: Forger) -> None:
    _never_waits(forger, forger.any(Change, table="workflow_steps", type="sleep", status="completed"))


@breaks("T1")
def a_wait_times_out_when_it_begins(forger: Forger) -> None:
    _never_waits(forger, forger.any(Change, table="workflow_steps", type="wait_for_event", status="errored"))


def _never_waits(forger: Forger, over: Change) -> None:
    """Let a step be over before its time, and never have waited."""
    like = {name: over.row[name] for name in ("task_id", "run_number", "name")}
    forger.drop(*forger.all(Change, table="workflow_steps", status="waiting", **like))
    forger.alter(over, at_us=over.row["wake_at"] - 1)


@breaks("T1")
def a_body_is_executed_before_its_retry(forger: Forger) -> None:
    failed = forger.any(Change, table="workflow_steps", name="charge", status="waiting")
    like = {"key": forger.key_of(failed), "run": failed.row["run_number"], "step": "charge"}
    like["attempt"] = failed.row["attempts"] + 1
    again = forger.any(Effect, phase="start", **like)
    forger.alter(again, mono_ns=forger.mono_ns(failed.row["next_retry_at"] - 3 * forger.truth.clock_slack_us))


@breaks("T1", "R3")
def a_retry_comes_early(forger: Forger) -> None:
    failed, again = forger.one_of(
        (before, after)
        for before, after in forger.versions("workflow_steps", name="charge")
        if (before.row["status"], after.row["status"]) == ("waiting", "pending")
    )
    forger.alter(again, updated_at=failed.row["next_retry_at"] - 1)


@breaks("T1")
def a_sleep_is_computed_anew(forger: Forger) -> None:
    woken = forger.any(Change, table="workflow_steps", type="sleep", status="completed")
    forger.alter(woken, wake_at=woken.row["wake_at"] + 1)


@breaks("T2", "R3")
def a_sleep_ends_late(forger: Forger) -> None:
    forger.nothing_is_broken()
    _ends_late(forger, _woken(forger))


@breaks("T2", "R3")
def a_sleep_ends_later_than_any_fault_excuses(forger: Forger) -> None:
    forger.alter(forger.any(Plan), excuse=False)
    _ends_late(forger, _woken(forger))


@breaks("T2", "R3")
def a_sleep_ends_long_after_what_excuses_it(forger: Forger) -> None:
    forger.alter(forger.any(Plan), excuse=True)
    forger.nothing_is_broken()
    woken = _woken(forger)
    due = woken.row["wake_at"]
    forger.add(Fault("F05", "server-1", "begin", forger.mono_ns(due), due))
    _ends_late(forger, woken)


@breaks("T2", "R3")
def a_sleep_ends_long_after_its_pause(forger: Forger) -> None:
    forger.nothing_is_broken()
    paused = {one.key for one in forger.all(Call, op="pause", phase="ok") if one.value["status"] == "paused"}
    every = forger.all(Change, table="workflow_steps", type="sleep", status="completed")
    _ends_late(forger, forger.one_of(one for one in every if forger.key_of(one) in paused))


def _ends_late(forger: Forger, woken: Change) -> None:
    forger.alter(woken, updated_at=woken.row["wake_at"] + forger.too_late_us)


def _woken(forger: Forger) -> Change:
    """The end of a sleep that nobody paused."""
    paused = {one.row["id"] for one in forger.all(Change, table="tasks", status="parked")}
    every = forger.all(Change, table="workflow_steps", type="sleep", status="completed")
    return forger.one_of(one for one in every if one.row["task_id"] not in paused)


@breaks("T2")
def an_event_is_taken_late(forger: Forger) -> None:
    forger.nothing_is_broken()
    paused = {one.key for one in forger.all(Call, op="pause")}
    taken = forger.one_of(one for one in forger.all(EventRow) if one.delivered_at and one.key not in paused)
    late = (taken.delivered_at or 0) + forger.too_late_us
    forger.alter_rows(EventRow, {"key": taken.key, "event_id": taken.event_id}, delivered_at=late)


@breaks("T2")
def a_sleep_never_ends(forger: Forger) -> None:
    key = forger.any(TaskRow).key
    forger.alter_rows(StepRow, {"key": key, "name": "rest"}, wake_at=1)


@breaks("T3", "W4")
def a_sleep_ends_twice(forger: Forger) -> None:
    woken = forger.of_last_run(status="completed", type="sleep")
    forger.after(woken, status="waiting")
    forger.after(woken)


# ---- events


@breaks("E1", "E2")
def an_event_is_lost(forger: Forger) -> None:
    event = forger.any(EventRow)
    forger.drop(*forger.all(EventRow, key=event.key, event_id=event.event_id))


@breaks("E1")
def an_event_is_there_twice(forger: Forger) -> None:
    event = forger.any(EventRow)
    for one in forger.all(EventRow, key=event.key, event_id=event.event_id):
        forger.add(replace(one, event_id=10**6, delivered_at=None, consumed_by_step=None))


@breaks("E1")
def an_event_says_something_else(forger: Forger) -> None:
    event = forger.any(EventRow, consumed_by_step=None)
    forger.alter_rows(EventRow, {"key": event.key, "event_id": event.event_id}, type="stop")


@breaks("E1")
def an_event_is_stamped_otherwise_than_its_sender_was_told(forger: Forger) -> None:
    event = forger.any(EventRow, consumed_by_step=None)
    like = {"key": event.key, "event_id": event.event_id}
    forger.alter_rows(EventRow, like, created_at=event.created_at + 1)


@breaks("E1")
def an_event_comes_from_nowhere(forger: Forger) -> None:
    key = forger.any(InstanceRow).key
    for source in ("api", "sql"):
        forger.add(EventRow(source, key, 0, 10**6, "stop", '"nobody"', 1, None, None))


@breaks("E1")
def an_event_is_taken_again(forger: Forger) -> None:
    forger.after(forger.any(Change, table="workflow_events", consumed_by_step="approval"), consumed_by_step="another")


@breaks("E2", "E1")
def a_wait_takes_two_events(forger: Forger) -> None:
    event = forger.any(EventRow, consumed_by_step="approval")
    for one in forger.all(EventRow, key=event.key, event_id=event.event_id):
        forger.add(replace(one, event_id=10**6, payload='"other"'))


@breaks("E2", "E1")
def a_wait_passes_over_an_older_event(forger: Forger) -> None:
    event = forger.any(EventRow, consumed_by_step="approval")
    for one in forger.all(EventRow, key=event.key, event_id=event.event_id):
        forger.add(replace(one, event_id=1, payload='"older"', delivered_at=None, consumed_by_step=None))


@breaks("E2", "W11")
def a_wait_takes_what_nobody_sent(forger: Forger) -> None:
    key = forger.any(EventRow, consumed_by_step="approval").key
    forger.alter_rows(StepRow, {"key": key, "name": "approval"}, result='"other"')


@breaks("E3", "E1")
def an_event_counts_after_its_deadline(forger: Forger) -> None:
    event = forger.any(EventRow, consumed_by_step="approval")
    wait = forger.any(StepRow, key=event.key, name="approval", run=event.run)
    late = (wait.wake_at or 0) + 1
    forger.alter_rows(EventRow, {"key": event.key, "event_id": event.event_id}, created_at=late)


@breaks("E3", "E1")
def a_wait_times_out_though_its_event_was_in_time(forger: Forger) -> None:
    wait = _timed_out(forger)
    forger.alter_rows(EventRow, {"key": wait.key, "run": wait.run}, created_at=wait.wake_at)


@breaks("E4", "E1")
def a_wait_times_out_though_its_event_was_there_before(forger: Forger) -> None:
    wait = _timed_out(forger)
    forger.alter_rows(EventRow, {"key": wait.key, "run": wait.run}, created_at=wait.created_at - 1)


def _timed_out(forger: Forger) -> StepRow:
    """A wait whose event came too late."""
    waits = forger.all(StepRow, name="approval", status="errored")
    return forger.one_of(one for one in waits if forger.all(EventRow, key=one.key, run=one.run))


@breaks("E4", "E1")
def a_wait_goes_on_though_its_event_is_there(forger: Forger) -> None:
    key = forger.any(TaskRow).key
    forger.alter_rows(EventRow, {"key": key}, delivered_at=None, consumed_by_step=None, created_at=1)
    forger.alter_rows(StepRow, {"key": key, "name": "approval"}, status="waiting", result=None)


@breaks("E5")
def an_event_is_stored_after_the_end(forger: Forger) -> None:
    ended = forger.any(Change, table="workflow_instances", status="terminated")
    event = forger.any(Change, table="workflow_events", change="insert")
    row = event.row | {"task_id": ended.row["id"], "run_number": ended.row["run_number"], "position": 10**6}
    row["created_at"] = forger.last_stamp(forger.key_of(ended))
    forger.add(replace(event, seq=ended.seq + 10**6, row=row))


@breaks("E5")
def a_refused_event_is_there(forger: Forger) -> None:
    lost = {one.request_id for one in forger.all(Call, op="event", phase="info")}
    refused = forger.one_of(one for one in forger.all(Call, op="event", phase="fail") if one.request_id not in lost)
    asked = forger.any(Call, call=refused.call, phase="invoke")
    like = forger.any(EventRow, source="sql")
    free = {"delivered_at": None, "consumed_by_step": None, "event_id": 10**6, "type": "stop"}
    for source in ("api", "sql"):
        forger.add(replace(like, source=source, key=refused.key, payload=asked.value["payload"], **free))


@breaks("R3")
def an_event_is_stamped_before_it_had_its_turn(forger: Forger) -> None:
    event = forger.any(Change, table="workflow_events", change="insert")
    born = forger.any(Change, table="workflow_instances", change="insert", id=event.row["task_id"])
    forger.alter(event, created_at=born.row["created_at"] - 1)
