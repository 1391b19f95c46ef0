"""Lies about hooks and about wakes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests.chaos.checker.invariants.wakes import BOUND_US, COMMIT_US
from tests.chaos.facts.calls import Call
from tests.chaos.facts.hooks import Handling, HookRow
from tests.chaos.facts.wakes import Told
from tests.chaos.selftest.lies.forger import Forger, breaks


@breaks("H1", "H2")
def a_hook_is_there_that_nobody_asked_for(forger: Forger) -> None:
    row = forger.any(HookRow)
    forger.add(replace(row, hook_id="nobodys", idempotency_key="nobodys"))


@breaks("H1")
def a_hook_is_executed_that_was_never_stored(forger: Forger) -> None:
    forger.add(replace(forger.any(Handling, phase="start"), hook_id="nobodys", execution="lie"))


@breaks("H1")
def a_caller_is_told_of_another_time(forger: Forger) -> None:
    told = forger.any(Call, op="trigger", phase="ok")
    forger.alter(told, value={"hooks": dict.fromkeys(told.value["hooks"], 1)})


@breaks("H2", "H1")
def a_hook_vanishes(forger: Forger) -> None:
    forger.drop(forger.any(HookRow))


@breaks("H2")
def a_hook_does_not_end(forger: Forger) -> None:
    forger.alter(forger.any(HookRow), status="open", ended_at=None)


@breaks("H2")
def a_hook_is_said_to_be_completed_that_never_was(forger: Forger) -> None:
    forger.alter(forger.any(HookRow, status="failed"), status="completed")


@breaks("H2")
def a_hook_gives_up_too_soon(forger: Forger) -> None:
    failed = forger.any(HookRow, status="failed")
    forger.alter(failed, attempts=failed.attempts - 1)


@breaks("H2")
def a_hook_is_executed_too_often(forger: Forger) -> None:
    start = forger.any(Handling, phase="start")
    most = forger.any(HookRow, hook_id=start.hook_id).max_attempts or 0
    forger.add(*(replace(start, execution=f"lie-{number}") for number in range(most)))


@breaks("H3")
def a_hook_is_leased_before_its_time(forger: Forger) -> None:
    waited, claim = forger.one_of(
        (before, after)
        for before, after in forger.versions("tasks", kind="hook")
        if before.row["status"] == "pending" and after.row["status"] == "processing"
    )
    forger.alter(claim, at_us=waited.row["run_at"] - 5)


@breaks("H3")
def a_hook_is_executed_before_its_time(forger: Forger) -> None:
    row = forger.any(HookRow)
    start = forger.any(Handling, hook_id=row.hook_id, phase="start")
    forger.alter(start, mono_ns=forger.mono_ns(row.process_at - 3 * forger.truth.clock_slack_us))


@breaks("H4")
def an_execution_has_another_key(forger: Forger) -> None:
    forger.alter(forger.any(Handling), idempotency_key="another")


@breaks("H4")
def two_hooks_have_one_key(forger: Forger) -> None:
    one, other = forger.one_of(pairwise(forger.all(HookRow)))
    for fact in [*forger.all(Handling, hook_id=other.hook_id), other]:
        forger.alter(fact, idempotency_key=one.idempotency_key)


def _asked_while_waiting(forger: Forger) -> Call:
    """An answer that came long after what it names began to wait, and long before its time."""
    answers = [one for one in forger.all(Call, op="next_wake", phase="ok") if one.value["wake_at"] is not None]
    waiting = {
        before.row["run_at"]: before.at_us
        for before, _ in forger.versions("tasks", kind="hook")
        if before.row["status"] == "pending"
    }
    return forger.one_of(
        one
        for one in answers
        if waiting.get(one.value["wake_at"], one.value["now"]) + 2 * COMMIT_US < one.value["now"]
        and one.value["wake_at"] > one.value["now"] + COMMIT_US
    )


@breaks("H5")
def nothing_is_said_to_wait(forger: Forger) -> None:
    asked = _asked_while_waiting(forger)
    forger.alter(asked, value=asked.value | {"wake_at": None})


@breaks("H5")
def the_next_wake_is_said_to_be_later(forger: Forger) -> None:
    asked = _asked_while_waiting(forger)
    forger.alter(asked, value=asked.value | {"wake_at": asked.value["wake_at"] + 1})


@breaks("A3")
def a_follower_is_not_told_of_what_is_sooner(forger: Forger) -> None:
    wake_at = forger.one_of(_long_the_next(forger))
    for told in forger.all(Told, wake_at=wake_at):
        forger.alter(told, wake_at=None)


def _long_the_next(forger: Forger) -> list[int]:
    """Times of hooks that had waited for long when a follower still went by them."""
    waited = {one.process_at: one.created_at for one in forger.all(HookRow)}
    every = sorted(forger.all(Told), key=lambda one: one.mono_ns)
    streams = [[one for one in every if one.stream == name] for name in dict.fromkeys(one.stream for one in every)]
    return [
        told.wake_at
        for stream in streams
        for told, after in pairwise(stream)
        if told.wake_at in waited
        and forger.truth.wall_us(after.mono_ns)
        > max(waited[told.wake_at], forger.truth.wall_us(stream[0].mono_ns)) + BOUND_US + 2 * COMMIT_US
    ]


@breaks("A3")
def the_numbers_of_wakes_go_back(forger: Forger) -> None:
    told = forger.one_of(one for one in forger.all(Told, phase="told") if one.number > 1)
    last = [one for one in forger.all(Told, stream=told.stream, phase="told") if one.number > 1][-1]
    forger.alter(last, number=0)
