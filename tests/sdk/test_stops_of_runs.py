"""How a run is stopped, released, refused and taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref
from collections import Counter
from datetime import UTC
from typing import Any

import pytest

from stepwell.v1 import frames_pb2 as pb
from stepwell.worker import strays
from stepwell.worker.host import Phase
from stepwell.worker.run import Run
from stepwell.worker.server_terms import Terms
from tests.sdk.stage import LATER, ManualClock, Stage, in_a_word, pending, settle, slept, task_of, waiting


async def three_steps(event: Any, step: Any) -> Any:
    first = await step.do("a", lambda: 1)
    second = await step.do("b", lambda: first + 1)
    return await step.do("c", lambda: second + 1)


async def test_a_pause_is_honoured_after_the_result_and_begins_no_body(stage: Stage) -> None:
    run = await stage.begin(three_steps)

    await stage.ack(run, 1, stop=pb.STOP_PAUSE, released=True)

    assert (run.phase, stage.kinds()) == (Phase.DROPPED, ["step_done:a +b"])


def beside_a_slow_one(gate: asyncio.Event) -> Any:
    """A workflow of two steps, one after the other, beside one that takes as long as the gate is closed."""

    async def pair(step: Any) -> None:
        await step.do("a", lambda: 1)
        await step.do("b", lambda: 2)

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(pair(step), step.do("slow", gate.wait))

    return order


async def test_a_pause_waits_for_bodies_that_execute_and_then_asks_to_go(stage: Stage) -> None:
    gate = asyncio.Event()
    run = await stage.begin(beside_a_slow_one(gate))
    assert stage.kinds() == ["step_done:a =slow +b"]
    await stage.ack(run, 1, stop=pb.STOP_PAUSE)
    assert stage.kinds() == []

    gate.set()
    await settle()
    assert stage.kinds() == ["step_done:slow"]
    await stage.ack(run, 2, stop=pb.STOP_PAUSE, released=True)
    assert run.phase is Phase.DROPPED


async def asking_to_pause(stage: Stage) -> Run:
    """A run whose last body the server has timed out, while a pause held up the body of another branch."""
    run = await stage.begin(beside_a_slow_one(asyncio.Event()))
    await stage.ack(run, 1, stop=pb.STOP_PAUSE)
    run.cancel_step("slow")
    await stage.resolve(run, waiting("slow", attempts=1))
    assert in_a_word(stage.sent[-1]) == "suspend"
    return run


async def test_a_pause_is_asked_for_when_the_server_has_ended_the_last_body(stage: Stage) -> None:
    run = await asking_to_pause(stage)

    await stage.ack(run, 2, stop=pb.STOP_PAUSE, released=True)
    assert run.phase is Phase.DROPPED


async def test_a_run_that_asks_to_pause_is_due_at_once_if_the_pause_was_withdrawn(stage: Stage) -> None:
    """Else it would sleep for the retry of its other branch, or be refused if nothing of it waits."""
    run = await asking_to_pause(stage)
    assert stage.take()[-1].suspend == pb.Suspend(yields=True)

    await stage.ack(run, 2, stop=pb.STOP_NONE, released=True)
    assert run.phase is Phase.DROPPED


async def test_a_pause_that_was_withdrawn_lets_bodies_begin(stage: Stage) -> None:
    run = await asking_to_pause(stage)
    stage.take()

    await stage.ack(run, 2, stop=pb.STOP_NONE, released=False)  # as the retry is due by now
    assert stage.kinds() == ["begin_steps +b"]
    await stage.resolve(run, pending("slow", attempts=1))
    await stage.ack(run, 3)
    assert stage.kinds() == ["begin_steps +slow", "step_done:b"]
    run.drop()


async def test_a_pause_that_was_withdrawn_does_not_hold_a_branch_until_its_sibling_ends(stage: Stage) -> None:
    run = await stage.begin(beside_a_slow_one(asyncio.Event()), max_steps=3)
    await stage.ack(run, 1, stop=pb.STOP_PAUSE)
    stage.take()

    for number in (2, 3):  # still to pause: what it asks for is not begun, and uses up none of its steps
        run.ask_again()
        await settle()
        assert stage.kinds() == ["begin_steps +b"]
        await stage.ack(run, number, stop=pb.STOP_PAUSE)
        assert stage.kinds() == []

    run.ask_again()
    await settle()
    await stage.ack(run, 4, stop=pb.STOP_NONE)
    assert stage.kinds() == ["begin_steps +b", "step_done:b"]
    run.drop()


async def test_a_run_that_is_not_held_up_asks_for_nothing_again(stage: Stage) -> None:
    run = await stage.begin(beside_a_slow_one(asyncio.Event()))
    run.ask_again()
    await stage.ack(run, 1)
    stage.take()

    run.ask_again()
    await settle()
    assert stage.kinds() == []
    run.drop()


async def test_a_draining_worker_begins_no_further_body(stage: Stage) -> None:
    stage.is_draining = True

    run = await stage.begin(three_steps)

    assert (stage.kinds(), run.is_quiet) == ([], True)
    run.drop()


async def test_a_dropped_run_can_do_nothing_and_says_nothing(stage: Stage) -> None:
    seen: list[str] = []

    async def order(event: Any, step: Any) -> None:
        try:
            await step.do("a", asyncio.Event().wait)
        except Exception:
            seen.append("caught by a broad except")
        finally:
            await step.do("cleanup", lambda: seen.append("executed in finally"))

    run = await stage.begin(order)
    run.drop()
    await settle()

    assert (seen, stage.kinds(), stage.let_go_work) == ([], [], [run])


def catching_everything(calls: Counter[int], branches: int) -> Any:
    """A workflow that goes on in each of its branches, whatever its steps raise."""

    async def branch(number: int, step: Any) -> None:
        while True:
            calls[number] += 1
            with contextlib.suppress(BaseException):
                await step.do(f"{number}-{calls[number]}", asyncio.Event().wait)

    async def order(event: Any, step: Any) -> None:
        if branches == 1:
            await branch(1, step)
        await asyncio.gather(*(branch(number, step) for number in range(branches)))

    return order


@pytest.mark.parametrize("branches", [1, 2])
async def test_a_dropped_run_gets_no_answer_any_more_and_nobody_waits_for_it(stage: Stage, branches: int) -> None:
    calls: Counter[int] = Counter()

    others = asyncio.all_tasks()
    run = await stage.begin(catching_everything(calls, branches))
    run.drop()
    await settle()

    assert set(calls.values()) == {2} and len(calls) == branches
    left = [task for task in asyncio.all_tasks() - others if strays._family_of(task) is not None]  # no server's
    assert not left, "asyncio.run would wait for them"


@pytest.mark.parametrize("branches", [1, 2])
async def test_a_dropped_run_that_goes_on_is_warned_of_once_and_thrown_away_in_silence(
    stage: Stage, branches: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what other tests left
    caplog.clear()
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    run = await stage.begin(catching_everything(Counter(), branches))
    run.drop()
    await settle()

    dropped = weakref.ref(run)
    del run
    stage.left, stage.let_go_work, stage.clock = [], [], ManualClock()
    gc.collect()

    assert (dropped(), said) == (None, [])
    assert [record.message.partition(":")[0] for record in caplog.records] == ["workflow_goes_on"]


async def test_a_dropped_run_that_only_cleans_up_is_not_warned_of(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def order(event: Any, step: Any) -> None:
        try:
            await step.do("a", asyncio.Event().wait)
        finally:
            await step.do("cleanup", lambda: None)

    run = await stage.begin(order)
    run.drop()
    await settle()

    assert caplog.records == []


async def test_a_refused_frame_ends_the_run_with_its_reason(stage: Stage) -> None:
    run = await stage.begin(three_steps)
    stage.take()

    run.refused(1, "PAYLOAD_TOO_LARGE", "too large")
    await settle()

    (finish,) = stage.take()
    assert (finish.number, finish.finish.failure.name) == (2, "PAYLOAD_TOO_LARGE")


async def test_a_refusal_that_follows_from_another_does_not_hide_why_the_run_ended(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.sleep_until("a", LATER.ToDatetime(UTC))

    run = await stage.begin(order)
    assert stage.kinds() == ["wait:a", "suspend"]

    run.refused(1, "DURATION_OUT_OF_RANGE", "too long")
    run.refused(2, "INVALID_FIELD", "nothing waits")
    await settle()

    (finish,) = stage.take()
    assert (finish.number, finish.finish.failure.name) == (3, "DURATION_OUT_OF_RANGE")


async def test_frames_after_a_refused_one_are_kept_but_set_nothing_off(stage: Stage) -> None:
    began: list[str] = []

    async def branch(step: Any, first: str, second: str, gate: asyncio.Event) -> None:
        await gate.wait()
        await step.do(first, lambda: None)
        await step.do(second, lambda: began.append(second))

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(branch(step, "a", "b", gates[0]), branch(step, "c", "d", gates[1]))

    gates = [asyncio.Event(), asyncio.Event()]
    gates[0].set()
    run = await stage.begin(order)
    gates[1].set()
    await settle()
    assert stage.kinds() == ["step_done:a +b", "begin_steps +c"]

    run.refused(1, "PAYLOAD_TOO_LARGE", "too large")
    await settle()
    assert [frame.number for frame in run.unacked_frames()] == [2, 3]
    await stage.ack(run, 2)
    assert (began, stage.kinds()) == ([], ["finish"])


async def test_no_body_begins_once_the_function_has_ended(stage: Stage) -> None:
    """It would execute for nobody, and nothing would stop it."""
    began: list[str] = []
    gate = asyncio.Event()

    async def check() -> None:
        await gate.wait()
        raise LookupError("out of stock")

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(pair(step, lambda: began.append("b")), check())

    async def pair(step: Any, body: Any) -> None:
        await step.do("a", lambda: 1)
        await step.do("b", body)

    run = await stage.begin(order)
    assert stage.kinds() == ["step_done:a +b"]
    gate.set()
    await settle()
    assert stage.kinds() == ["finish"]

    await stage.ack(run, 1)
    assert began == []
    await stage.ack(run, 2, released=True)
    assert stage.let_go_work == [run]


async def test_a_refused_end_is_the_end(stage: Stage) -> None:
    run = await stage.begin(three_steps)
    run.refused(1, "PAYLOAD_TOO_LARGE", "too large")
    await settle()
    stage.take()

    run.refused(2, "INVALID_FIELD", "no failures here")
    await settle()

    assert (run.phase, stage.kinds()) == (Phase.DROPPED, [])


async def test_what_is_asked_for_while_nobody_holds_the_run_waits_for_the_next_lease(stage: Stage) -> None:
    elsewhere = asyncio.Event()

    async def branch(step: Any) -> None:
        await elsewhere.wait()  # against the rules: a wait that is not a step
        await step.do("a", lambda: 1)

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(branch(step), step.sleep("nap", "1 hour"))

    run = await stage.begin(order)
    await stage.ack(run, 1, 2, released=True)
    stage.take()
    elsewhere.set()
    await settle()
    assert stage.kinds() == []

    run.attach(1, 2, task_of(steps=[slept("nap")], interruptions=1))
    await settle()
    done, finish = stage.take()
    assert (done.step_done.attempt, finish.WhichOneof("body")) == (2, "finish")


async def test_an_interruption_is_charged_once(stage: Stage) -> None:
    stage.terms = Terms(virtual_clock=True)

    async def late(step: Any) -> None:
        await step.sleep("nap", 0)
        await step.do("b", asyncio.Event().wait)

    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(step.do("a", asyncio.Event().wait), late(step))

    run = await stage.begin(order, interruptions=1)
    await stage.resolve(run, slept("nap"))

    opened = [step for frame in stage.take() for step in frame.opens]
    assert [(step.name, step.attempt) for step in opened] == [("a", 2), ("b", 1)]
    run.drop()


async def test_an_acknowledged_frame_renews_the_lease_from_when_it_was_sent(stage: Stage) -> None:
    run = await stage.begin(three_steps)
    stage.clock.advance(5)
    await stage.ack(run, 1)  # sent at 0
    assert run.renewed_at == 0

    stage.clock.advance(5)
    await stage.ack(run, 2)  # sent at 5
    assert run.renewed_at == 5


async def test_a_result_finds_its_way_through_nested_gathers_into_one_message(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await asyncio.gather(asyncio.gather(step.do("a", lambda: 1)))
        await step.do("b", lambda: 2)

    await stage.begin(order)

    assert stage.kinds() == ["step_done:a +b"]
