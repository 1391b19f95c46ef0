"""Lies about hooks and about wakes."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.records import Call, Change, Handling, HookRow, Told
from tests.chaos.selftest.hook_simulation import LIMIT
from tests.chaos.selftest.lies.forger import Forger, breaks


@breaks("H1")
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


@breaks("H2")
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
    forger.alter(forger.any(HookRow, status="failed"), attempts=LIMIT - 1)


@breaks("H2")
def a_hook_is_executed_too_often(forger: Forger) -> None:
    start = forger.any(Handling, phase="start")
    forger.add(*(replace(start, execution=f"lie-{number}") for number in range(LIMIT)))


@breaks("H3")
def a_hook_is_leased_before_its_time(forger: Forger) -> None:
    claims = forger.all(Change, kind="hook", change="update", status="processing")
    claim = next(one for one in claims if one.row["key"].startswith("scheduled"))
    forger.alter(claim, at_us=claim.row["run_at"] - 5)


@breaks("H3")
def a_hook_is_executed_before_its_time(forger: Forger) -> None:
    row = next(one for one in forger.all(HookRow) if one.hook_id.startswith("scheduled"))
    (start,) = forger.all(Handling, hook_id=row.hook_id, phase="start")
    forger.alter(start, mono_ns=start.mono_ns - 10_000_000_000)


@breaks("H4")
def an_execution_has_another_key(forger: Forger) -> None:
    forger.alter(forger.any(Handling), idempotency_key="another")


@breaks("H4")
def two_hooks_have_one_key(forger: Forger) -> None:
    one, other, *_ = forger.all(HookRow)
    for fact in [*forger.all(Handling, hook_id=other.hook_id), other]:
        forger.alter(fact, idempotency_key=one.idempotency_key)


def _asked_while_waiting(forger: Forger) -> Call:
    return next(one for one in forger.all(Call, op="next_wake", phase="ok") if one.value["wake_at"] is not None)


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
    row = next(one for one in forger.all(HookRow) if one.hook_id.startswith("scheduled"))
    forger.drop(*forger.all(Told, wake_at=row.process_at))


@breaks("A3")
def the_numbers_of_wakes_go_back(forger: Forger) -> None:
    *_, last = forger.all(Told, phase="told")
    forger.alter(last, number=1)
