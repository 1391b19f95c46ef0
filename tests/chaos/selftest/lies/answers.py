"""Lies about what callers were told, about the end of a run, and about how much happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.chaos.checker.figures import completing, is_late, taken_over
from tests.chaos.checker.view import ENDED, EXHAUSTED
from tests.chaos.facts.calls import Call
from tests.chaos.facts.run import Count, Exit, Fault, Plan, Stage, Trouble
from tests.chaos.facts.tasks import Change, GivenUp, TaskRow
from tests.chaos.facts.workflows import EventRow, InstanceRow, Scan, Seen, StepRow
from tests.chaos.selftest.lies.forger import AFTER_ALL_NS, EXISTS, Forger, breaks


@breaks("A1", "A5", "W2")
def a_repeated_request_is_answered_otherwise(forger: Forger) -> None:
    told = _answered_twice(forger)
    forger.alter(told, value=told.value | {"created_at": 1})


@breaks("A1")
def a_repeated_create_is_refused(forger: Forger) -> None:
    forger.alter(_answered_twice(forger), **EXISTS)


def _answered_twice(forger: Forger) -> Call:
    """An answer to a create that was acknowledged more than once."""
    acks = forger.all(Call, op="create", phase="ok")
    times = Counter(one.request_id for one in acks)
    return forger.one_of(one for one in acks if times[one.request_id] > 1)


@breaks("A2")
def a_scan_leaves_something_out(forger: Forger) -> None:
    known = {one.key: one.mono_ns for one in reversed(forger.all(Call, op="create", phase="ok"))}
    scan, key = forger.one_of(
        (scan, key) for scan in forger.all(Scan) for key in scan.keys if known.get(key, AFTER_ALL_NS) < scan.invoke_ns
    )
    forger.alter(scan, keys=[one for one in scan.keys if one != key])


@breaks("A2")
def a_scan_has_something_twice(forger: Forger) -> None:
    scan = forger.one_of(one for one in forger.all(Scan) if one.keys)
    forger.alter(scan, keys=[*scan.keys, scan.keys[0]])


@breaks("A3", "R2")
def a_watcher_is_told_of_an_older_state(forger: Forger) -> None:
    seen = forger.one_of(one for one in forger.all(Seen) if one.revision > 5)
    forger.add(replace(seen, revision=1, mono_ns=AFTER_ALL_NS))


@breaks("A3")
def a_watcher_is_not_told_of_the_end(forger: Forger) -> None:
    watched = {one.key for one in forger.all(Seen, status="running")}
    ended = forger.all(InstanceRow, source="sql", status="complete")
    key = forger.one_of(one.key for one in ended if one.key in watched)
    forger.drop(*forger.all(Seen, key=key, status="complete"))


@breaks("A1", "A5")
def a_repeated_pause_is_answered_otherwise(forger: Forger) -> None:
    lost, told = forger.one_of(
        (lost, told)
        for lost in forger.all(Call, op="pause", phase="info")
        for told in forger.all(Call, request_id=lost.request_id, phase="ok")
    )
    forger.alter(lost, phase="ok", code="", mono_ns=told.mono_ns, value=told.value | {"created_at": 1})


@breaks("A4")
def a_worker_is_handed_too_much(forger: Forger) -> None:
    held = forger.any(Change, table="tasks", status="processing", change="update")
    for number in range(10**6, 10**6 + forger.plan.slots + 1):
        begun = replace(held, seq=number, row=held.row | {"id": number, "fence": number})
        kept = {"locked_until": begun.row["locked_until"] + 1, "connection": 2}
        forger.add(begun, replace(begun, seq=number + 1000, row=begun.row | kept))


@breaks("A5")
def a_scan_shows_what_belongs_to_others(forger: Forger) -> None:
    scan = forger.any(Scan)
    forger.alter(scan, keys=[*scan.keys, "secret/order/1"])


@breaks("A5")
def a_reader_is_shown_another_instance(forger: Forger) -> None:
    told = forger.any(Call, op="get", phase="ok")
    forger.alter(told, value=told.value | {"created_at": told.value["created_at"] + 1})


@breaks("A6")
def a_call_fails_for_unknown_reasons(forger: Forger) -> None:
    forger.alter(forger.any(Call, phase="fail"), code="UNKNOWN", reason="")


@breaks("A6")
def a_page_is_refused(forger: Forger) -> None:
    told = {"code": "INVALID_ARGUMENT", "reason": "PAGE_TOKEN_INVALID"}
    forger.add(Call("lie", "list", "", "fail", AFTER_ALL_NS, "client", **told))


@breaks("A6")
def a_living_instance_refuses(forger: Forger) -> None:
    refused = forger.any(Call, reason="INSTANCE_TERMINAL")
    ended = [one for one in forger.all(Change, table="workflow_instances") if one.row["status"] in ENDED]
    end = min(one.at_us for one in ended if forger.key_of(one) == refused.key)
    for number, one in enumerate(forger.all(Call, call=refused.call)):
        forger.alter(one, mono_ns=forger.mono_ns(end - 3 * forger.truth.clock_slack_us) + number)


@breaks("A7")
def the_api_shows_another_instance(forger: Forger) -> None:
    forger.alter(forger.any(InstanceRow, source="api"), revision=10**6)


@breaks("A7")
def the_api_leaves_a_step_out(forger: Forger) -> None:
    forger.drop(forger.any(StepRow, source="api"))


@breaks("R1", "R2")
def a_reader_is_told_of_the_past(forger: Forger) -> None:
    told = forger.one_of(one for one in forger.all(Call, op="get", phase="ok") if (one.revision or 0) > 5)
    about = {"call": "lie", "op": "get", "key": told.key, "process": "client"}
    forger.add(Call(**about, phase="invoke", mono_ns=AFTER_ALL_NS))
    forger.add(Call(**about, phase="ok", mono_ns=AFTER_ALL_NS, revision=2, value=told.value))


@breaks("R2")
def two_readers_are_told_of_different_states_of_a_revision(forger: Forger) -> None:
    seen = {(one.key, one.revision) for one in forger.all(Seen) if one.status != "errored"}
    answers = forger.all(Call, op="get", phase="ok")
    told = forger.one_of(one for one in answers if (one.key, one.revision) in seen)
    forger.alter(told, value=told.value | {"status": "errored"})


# ---- the end of the run


@breaks("L1")
def rest_comes_late(forger: Forger) -> None:
    quiet = forger.any(Stage, name="quiet")
    late_us = (forger.plan.drain_leases + 1) * forger.plan.lease_us
    forger.alter(quiet, mono_ns=quiet.mono_ns + round(late_us) * 1000)


@breaks("L1")
def rest_never_comes(forger: Forger) -> None:
    forger.drop(forger.any(Stage, name="quiet"))


@breaks("L2")
def a_server_does_not_answer_any_more(forger: Forger) -> None:
    last = max(forger.all(Call, phase="ok"), key=lambda call: call.mono_ns)
    forger.alter(last, phase="info", code="UNAVAILABLE")


@breaks("P1")
def a_server_dies_by_itself(forger: Forger) -> None:
    forger.alter(forger.any(Exit), ordered=False)


@breaks("P1")
def a_server_writes_a_traceback(forger: Forger) -> None:
    forger.add(Trouble("server", "Traceback (most recent call last)", 1))


# ---- runs in which nobody was to be lost


@breaks("O1")
def a_step_is_executed_twice_though_nobody_was_lost(forger: Forger) -> None:
    bodies = (one for story in forger.truth.stories.values() for one in story.executions.values())
    forger.one_of(one for one in bodies if completing(one) > 1)
    forger.alter(forger.any(Plan), once=True)


@breaks("O2")
def a_lease_is_taken_over_though_nobody_was_lost(forger: Forger) -> None:
    forger.one_of(taken_over(forger.truth))
    forger.alter(forger.any(Plan), takeovers_at_most=0)


@breaks("O2")
def a_lease_is_taken_that_was_not_given_up(forger: Forger) -> None:
    most = len([lease for lease in taken_over(forger.truth) if lease not in forger.truth.given_up])
    forger.alter(forger.any(Plan), takeovers_at_most=most, may_give_up=True)
    taken = set(taken_over(forger.truth))
    given_up = forger.one_of(one for one in forger.all(GivenUp, told=False) if (one.task_id, one.fence) in taken)
    forger.drop(*forger.all(GivenUp, task_id=given_up.task_id, fence=given_up.fence))


# ---- runs that prove nothing


def _needs(forger: Forger, overlap: str) -> None:
    """A lie about what is to happen often enough has a place only where that is asked for."""
    forger.one_of(name for name in forger.plan.overlaps if name == overlap)


@breaks("")
def a_fault_never_happened(forger: Forger) -> None:
    forger.drop(*forger.all(Fault, fault=forger.one_of(forger.plan.faults)))


@breaks("")
def the_zombie_never_reported(forger: Forger) -> None:
    _needs(forger, "zombie-reports")
    forger.drop(*(one.end for one in forger.truth.executions if is_late(forger.truth, one)))


@breaks("")
def no_step_was_exhausted(forger: Forger) -> None:
    _needs(forger, "exhausted")
    for kind in (StepRow, InstanceRow):
        forger.alter_rows(kind, {"error_name": EXHAUSTED}, error_name="Another")


@breaks("")
def no_reply_was_ever_lost(forger: Forger) -> None:
    _needs(forger, "repeats")
    for request_id in {one.request_id for one in forger.all(Call, phase="info") if one.request_id}:
        _answer_at_once(forger, request_id)


def _answer_at_once(forger: Forger, request_id: str) -> None:
    """Make one call that took its time of a request that was repeated until it was answered."""
    calls = sorted(forger.all(Call, request_id=request_id), key=lambda one: one.mono_ns)
    for lost in [one for one in calls if one.phase == "info"]:
        forger.drop(*(one for one in calls if one.call == lost.call))
    asked = forger.all(Call, request_id=request_id, phase="invoke")
    if asked:
        forger.alter(min(asked, key=lambda one: one.mono_ns), mono_ns=calls[0].mono_ns)


@breaks("")
def nobody_watched_anything_to_its_end(forger: Forger) -> None:
    _needs(forger, "watches")
    forger.drop(*forger.all(Count, name="watches"))


@breaks("")
def hardly_anything_was_acknowledged(forger: Forger) -> None:
    for call in forger.all(Call, op="event", phase="ok"):
        forger.alter(call, phase="info", code="UNAVAILABLE")


@breaks("")
def repetitions_are_all_that_was_answered(forger: Forger) -> None:
    acked = {one.request_id for one in forger.all(Call, op="create", phase="ok")}
    calls = len(forger.all(Call, op="create", phase="invoke"))
    forger.one_of([calls] if len(acked) < calls // 2 else [])
    plan = forger.any(Plan)
    forger.alter(plan, operations=plan.operations | {"create": calls})


@breaks("")
def nobody_looked_in_the_end(forger: Forger) -> None:
    forger.drop(*forger.all(InstanceRow), *forger.all(StepRow), *forger.all(EventRow), *forger.all(TaskRow))
