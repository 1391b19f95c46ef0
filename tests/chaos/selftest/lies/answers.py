"""Lies about what callers were told, about the end of a run, and about how much happened."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.checker.view import ENDED, EXHAUSTED
from tests.chaos.records import (
    Call,
    Change,
    Count,
    Effect,
    EventRow,
    Exit,
    Fault,
    GivenUp,
    InstanceRow,
    Plan,
    Scan,
    Seen,
    Stage,
    StepRow,
    TaskRow,
    Trouble,
)
from tests.chaos.selftest.lies.forger import EXISTS, Forger, breaks
from tests.chaos.selftest.simulation import LEASE


@breaks("A1")
def a_repeated_request_is_answered_otherwise(forger: Forger) -> None:
    told = forger.any(Call, op="create", phase="ok")
    forger.alter(told, value=told.value | {"created_at": 1})


@breaks("A1")
def a_repeated_create_is_refused(forger: Forger) -> None:
    forger.alter(forger.any(Call, op="create", phase="ok"), **EXISTS)


@breaks("A2")
def a_scan_leaves_something_out(forger: Forger) -> None:
    scan = forger.any(Scan)
    forger.alter(scan, keys=scan.keys[1:])


@breaks("A2")
def a_scan_has_something_twice(forger: Forger) -> None:
    scan = forger.any(Scan)
    forger.alter(scan, keys=[*scan.keys, scan.keys[0]])


@breaks("A3")
def a_watcher_is_told_of_an_older_state(forger: Forger) -> None:
    seen = forger.rng.choice([one for one in forger.all(Seen) if one.revision > 5])
    forger.add(replace(seen, revision=1, mono_ns=10**19))


@breaks("A3")
def a_watcher_is_not_told_of_the_end(forger: Forger) -> None:
    forger.drop(forger.any(Seen, status="complete"))


@breaks("A1")
def a_repeated_pause_is_answered_otherwise(forger: Forger) -> None:
    told = forger.any(Call, op="pause", phase="ok")
    forger.alter(told, value=told.value | {"created_at": 1})


@breaks("A4")
def a_worker_is_handed_too_much(forger: Forger) -> None:
    held = forger.any(Change, table="tasks", status="processing", change="update")
    for number in range(10**6, 10**6 + 5):
        begun = replace(held, seq=number, row=held.row | {"id": number, "fence": number})
        kept = {"locked_until": begun.row["locked_until"] + 1, "connection": 2}
        forger.add(begun, replace(begun, seq=number + 100, row=begun.row | kept))


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
    forger.add(Call("lie", "list", "", "fail", 10**19, "client", **told))


@breaks("A6")
def a_living_instance_refuses(forger: Forger) -> None:
    refused = forger.any(Call, reason="INSTANCE_TERMINAL")
    ended = [one for one in forger.all(Change, table="workflow_instances") if one.row["status"] in ENDED]
    end = next(one for one in ended if forger.key_of(one) == refused.key)
    for number, one in enumerate(forger.all(Call, call=refused.call)):
        forger.alter(one, mono_ns=end.at_us * 1000 - 4_000_000 + number)


@breaks("A7")
def the_api_shows_another_instance(forger: Forger) -> None:
    forger.alter(forger.any(InstanceRow, source="api"), revision=10**6)


@breaks("A7")
def the_api_leaves_a_step_out(forger: Forger) -> None:
    forger.drop(forger.any(StepRow, source="api"))


@breaks("R1")
def a_reader_is_told_of_the_past(forger: Forger) -> None:
    told = forger.rng.choice([one for one in forger.all(Call, op="get", phase="ok") if (one.revision or 0) > 5])
    about = {"call": "lie", "op": "get", "key": told.key, "process": "client"}
    forger.add(Call(**about, phase="invoke", mono_ns=10**19))
    forger.add(Call(**about, phase="ok", mono_ns=10**19, revision=2, value=told.value))


@breaks("R2")
def two_readers_are_told_of_different_states_of_a_revision(forger: Forger) -> None:
    told = forger.any(Call, op="get", phase="ok")
    forger.alter(told, value=told.value | {"status": "errored"})


# ---- the end of the run


@breaks("L1")
def rest_comes_late(forger: Forger) -> None:
    quiet = forger.any(Stage, name="quiet")
    forger.alter(quiet, mono_ns=quiet.mono_ns + 11 * LEASE * 1000)


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
    forger.alter(forger.any(Plan), once=True)


@breaks("O2")
def a_lease_is_taken_over_though_nobody_was_lost(forger: Forger) -> None:
    forger.alter(forger.any(Plan), takeovers_at_most=0)


@breaks("O2")
def a_lease_is_taken_that_was_not_given_up(forger: Forger) -> None:
    forger.drop(forger.any(GivenUp))


# ---- runs that prove nothing


@breaks("")
def a_fault_never_happened(forger: Forger) -> None:
    forger.drop(*forger.all(Fault, fault="F01"))


@breaks("")
def the_zombie_never_reported(forger: Forger) -> None:
    for key, step, value in forger.zombies():
        forger.drop(*forger.all(Effect, key=key, step=step, value=value))


@breaks("")
def no_step_was_exhausted(forger: Forger) -> None:
    for kind in (StepRow, InstanceRow):
        forger.alter_rows(kind, {"error_name": EXHAUSTED}, error_name="Another")


@breaks("")
def no_reply_was_ever_lost(forger: Forger) -> None:
    for lost in forger.all(Call, phase="info"):
        told = forger.any(Call, request_id=lost.request_id, phase="ok")
        forger.alter(lost, phase="ok", code="", value=told.value, revision=told.revision)


@breaks("")
def nobody_watched_anything_to_its_end(forger: Forger) -> None:
    forger.drop(*forger.all(Count, name="watches"))


@breaks("")
def hardly_anything_was_acknowledged(forger: Forger) -> None:
    for call in forger.all(Call, op="event", phase="ok"):
        forger.alter(call, phase="info", code="UNAVAILABLE")


@breaks("")
def repetitions_are_all_that_was_answered(forger: Forger) -> None:
    plan = forger.any(Plan)
    forger.alter(plan, operations=plan.operations | {"create": len(forger.all(Call, op="create", phase="invoke"))})


@breaks("")
def nobody_looked_in_the_end(forger: Forger) -> None:
    forger.drop(*forger.all(InstanceRow), *forger.all(StepRow), *forger.all(EventRow), *forger.all(TaskRow))
