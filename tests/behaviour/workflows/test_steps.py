"""Steps: done once, remembered by name, and never more than the function asked for."""

from __future__ import annotations

import asyncio
import math
from threading import Event as ThreadEvent
from typing import Any

import pytest

from stepwell import (
    App,
    DuplicateStepKey,
    InstanceStatus,
    StepResultInvalid,
    StepStatus,
    StepTypeMismatch,
    workflow,
)
from tests.behaviour.workflows.conftest import LeasesLapse, StartHarness
from tests.support.workers.workflows import Gate

MEBIBYTE = 1024 * 1024


async def test_a_step_is_done_once_and_the_code_around_it_at_every_replay(harness: StartHarness) -> None:
    """Behaviours 92, 93."""
    done, around = [], []

    @workflow("thrice")
    async def thrice(event, step):
        around.append("begin")
        drawn = await step.do("draw", lambda: done.append("draw") or len(done))
        for number in range(2):
            await step.sleep(f"nap {number}", "1 hour")
        return drawn

    h = await harness(thrice, cache=0)
    instance = await h.start(thrice)
    await h.advance("2 hours")

    assert (await instance.status()).output == 1
    assert (done, around) == (["draw"], ["begin"] * 3)


async def test_a_run_in_memory_goes_on_where_it_was(harness: StartHarness) -> None:
    """Design 7, fast paths: with room in the cache nothing is replayed."""
    around = []

    @workflow("cached")
    async def cached(event, step):
        around.append("begin")
        await step.sleep("nap", "1 hour")

    h = await harness(cached)
    instance = await h.start(cached)
    await h.advance("1 hour")

    assert (await instance.status()).status == InstanceStatus.COMPLETE
    assert around == ["begin"]


async def test_after_a_crash_a_run_goes_on_with_the_step_that_was_cut_short(
    harness: StartHarness, leases_lapse: LeasesLapse
) -> None:
    """Behaviour 94."""
    calls, gate = [], Gate("b")

    @workflow("two-steps")
    async def two_steps(event, step):
        first = await step.do("a", lambda: calls.append("a") or "a")
        return first + await step.do("b", gate)

    h = await harness(two_steps)
    instance = await h.client.workflow(two_steps).create()
    await gate.reached()

    await h.crash_worker()
    await leases_lapse()
    gate.open()
    await h.start_worker()
    await h.run_until_idle()

    assert (await instance.status()).output == "ab"
    assert (calls, gate.count) == (["a"], 2)
    steps = await h.steps(instance)
    assert (steps["a"].attempts, steps["b"].attempts) == (1, 2)


async def test_a_name_that_is_used_again_gives_the_first_result(harness: StartHarness) -> None:
    """Behaviour 95."""

    @workflow("again")
    async def again(event, step):
        return [await step.do("same", lambda: "first"), await step.do("same", lambda: "second")]

    h = await harness(again)
    instance = await h.start(again)

    assert (await instance.status()).output == ["first", "first"]
    assert list(await h.steps(instance)) == ["same"]


async def test_a_name_cannot_be_open_twice(harness: StartHarness) -> None:
    """Behaviour 96."""

    @workflow("twins")
    async def twins(event, step):
        async def body():
            return "one"

        one, other = await asyncio.gather(step.do("same", body), step.do("same", body), return_exceptions=True)
        assert isinstance(other, DuplicateStepKey)
        return [one, str(other)[:18]]

    h = await harness(twins)
    instance = await h.start(twins)

    assert (await instance.status()).output == ["one", "DUPLICATE_STEP_KEY"]


@pytest.mark.parametrize("cache", [1000, 0], ids=["in-memory", "replayed"])
async def test_a_name_keeps_its_type(harness: StartHarness, cache: int) -> None:
    """Behaviour 97."""

    @workflow("changing")
    async def changing(event, step):
        await step.sleep("x", "1 hour")
        try:
            await step.do("x", lambda: "never")
        except StepTypeMismatch as mismatch:
            note = str(mismatch)[:18]
            await step.do("note", lambda: note)
        await step.wait_for_event("x", type="t")

    h = await harness(changing, cache=cache)
    instance = await h.start(changing)
    await h.advance("1 hour")

    error = (await instance.status()).error
    assert error is not None and error.name == "StepTypeMismatch"
    assert (await h.steps(instance))["note"].result == "STEP_TYPE_MISMATCH"


async def test_names_are_taken_as_they_are(harness: StartHarness) -> None:
    """Behaviour 98: not trimmed."""

    @workflow("spaces")
    async def spaces(event, step):
        return [await step.do(name, lambda: "done") for name in ("a", " a", "a ")]

    h = await harness(spaces)
    instance = await h.start(spaces)

    assert list(await h.steps(instance)) == ["a", " a", "a "]


async def test_steps_side_by_side_are_each_stored_once(harness: StartHarness) -> None:
    """Behaviour 99."""
    calls: list[str] = []

    @workflow("parallel")
    async def parallel(event, step):
        def body(name: str) -> Any:
            return lambda: calls.append(name) or name

        both = await asyncio.gather(step.do("a", body("a")), step.do("b", body("b")))
        await step.sleep("nap", "1 hour")
        return both

    h = await harness(parallel, cache=0)
    instance = await h.start(parallel)
    await h.advance("1 hour")

    assert (await instance.status()).output == ["a", "b"]
    assert sorted(calls) == ["a", "b"]


async def test_a_step_that_ends_after_its_run_changes_nothing(harness: StartHarness) -> None:
    """Behaviour 100."""
    gate, released = Gate("late"), ThreadEvent()

    @workflow("torn")
    async def torn(event, step):
        async def fails():
            await gate.reached()
            raise ValueError("for good")

        await asyncio.gather(
            step.do("a", fails, retries={"limit": 0}),
            step.do("b", gate),
            step.do("in a thread", lambda: released.wait(5)),
        )

    h = await harness(torn)
    instance = await h.client.workflow(torn).create()
    with pytest.raises(Exception, match="for good"):
        await instance.result(timeout="10 seconds")
    ended = await instance.status()

    gate.open()
    released.set()
    await h.run_until_idle()

    assert await instance.status() == ended
    assert (await h.steps(instance)).get("b") is None or (await h.steps(instance))["b"].result is None


async def test_a_branch_that_executes_is_awaited_before_the_run_suspends(harness: StartHarness) -> None:
    """Behaviour 101."""
    gate = Gate("worked")

    @workflow("branches")
    async def branches(event, step):
        worked, _ = await asyncio.gather(step.do("work", gate), step.sleep("nap", "1 hour"))
        return worked

    h = await harness(branches, cache=0)
    instance = await h.client.workflow(branches).create()
    await gate.reached()
    assert (await instance.status()).status == InstanceStatus.RUNNING

    gate.open()
    await h.run_until_idle()
    assert (await instance.status()).status == InstanceStatus.WAITING
    assert (await h.steps(instance))["work"].status == StepStatus.COMPLETED

    await h.advance("1 hour")
    assert (await instance.status()).output == "worked"
    assert gate.count == 1


async def test_every_branch_ends_at_its_own_time(harness: StartHarness) -> None:
    """Behaviours 101, 119; trap 3 of behaviours.md."""
    order: list[str] = []

    @workflow("timers")
    async def timers(event, step):
        async def branch(name: str, length: str) -> None:
            await step.sleep(name, length)
            await step.do(f"after {name}", lambda: order.append(name))

        await asyncio.gather(branch("long", "3 hours"), branch("short", "1 hour"), branch("middle", "2 hours"))

    h = await harness(timers, cache=0)
    instance = await h.start(timers)
    for expected in (["short"], ["short", "middle"], ["short", "middle", "long"]):
        await h.advance("1 hour")
        assert order == expected

    assert (await instance.status()).status == InstanceStatus.COMPLETE


@pytest.mark.parametrize("result", [object(), math.nan, "\ud800"], ids=["object", "nan", "surrogate"])
async def test_a_result_that_is_not_json_fails_its_step(harness: StartHarness, result: Any) -> None:
    """Behaviour 102."""

    @workflow("opaque")
    async def opaque(event, step):
        try:
            await step.do("make", lambda: result)
        except StepResultInvalid:
            return "refused"

    h = await harness(opaque)
    instance = await h.start(opaque)

    assert (await instance.status()).output == "refused"
    made = (await h.steps(instance))["make"]
    assert (made.status, made.attempts) == (StepStatus.ERRORED, 1)
    assert made.error is not None and "'make'" in made.error.message


@pytest.mark.parametrize("size", [MEBIBYTE, MEBIBYTE + 1])
async def test_a_result_is_at_most_a_mebibyte(harness: StartHarness, size: int) -> None:
    """Behaviour 103."""

    @workflow("large")
    async def large(event, step):
        return len(await step.do("make", lambda: "x" * (size - 2)))  # and its two quotation marks

    h = await harness(large)
    ended = await (await h.start(large)).status()

    if size == MEBIBYTE:
        assert ended.output == MEBIBYTE - 2
    else:
        assert ended.error is not None and ended.error.name == "StepResultInvalid"


@pytest.mark.parametrize("length", [0, 1, 256, 257])
async def test_a_step_name_has_1_to_256_characters(harness: StartHarness, length: int) -> None:
    """Behaviour 104."""

    @workflow("named")
    async def named(event, step):
        return await step.do("ä" * length, lambda: "done")

    h = await harness(named)
    ended = await (await h.start(named)).status()

    if 1 <= length <= 256:
        assert ended.output == "done"
    else:
        assert ended.error is not None and ended.error.name == "InvalidStepName"


async def test_a_run_has_1024_steps_however_often_it_is_replayed(harness: StartHarness) -> None:
    """Behaviours 105, 106: sleeps do not count, and cached steps count once."""

    async def body():
        return 1

    @workflow("counting")
    async def counting(event, step):
        for part in range(16):
            await asyncio.gather(*(step.do(f"{part}.{number}", body) for number in range(64)))
            if part % 8 == 7:
                await step.sleep(f"nap {part}", "1 minute")
        return await step.do("one more", body) if event.payload["more"] else "all done"

    h = await harness(counting, cache=0)
    enough, too_many = await h.start(counting, {"more": False}), await h.start(counting, {"more": True})
    await h.advance("2 minutes")

    assert (await enough.status()).output == "all done"
    error = (await too_many.status()).error
    assert error is not None
    assert (error.name, error.message[:18]) == ("MaxStepsExceeded", "MAX_STEPS_EXCEEDED")


async def test_new_code_goes_on_with_the_results_of_the_old(harness: StartHarness) -> None:
    """Behaviour 108."""

    def version(number: int) -> Any:
        @workflow("deployed")
        async def deployed(event, step):
            first = await step.do("first", lambda: f"first by {number}")
            await step.sleep("nap", "1 hour")
            return [first, await step.do("second", lambda: f"second by {number}")]

        return deployed

    h = await harness(version(1))
    instance = await h.start("deployed")
    await h.replace_worker(App(workflows=[version(2)]))
    await h.advance("1 hour")

    assert (await instance.status()).output == ["first by 1", "second by 2"]


@pytest.mark.parametrize("net", [Exception, BaseException], ids=["Exception", "BaseException"])
async def test_a_broad_except_does_not_swallow_a_suspension(harness: StartHarness, net: type[BaseException]) -> None:
    """Behaviour 110."""

    @workflow("careless")
    async def careless(event, step):
        try:
            await step.sleep("nap", "1 hour")
        except net:
            return "swallowed"
        return "slept"

    h = await harness(careless, cache=0)
    instance = await h.start(careless)
    assert (await instance.status()).status == InstanceStatus.WAITING
    await h.advance("1 hour")

    assert (await instance.status()).output == "slept"


async def test_a_step_in_a_finally_block_is_done_when_the_block_is_reached_for_real(harness: StartHarness) -> None:
    """Behaviour 111."""
    calls: list[str] = []

    @workflow("tidy")
    async def tidy(event, step):
        try:
            await step.sleep("nap", "1 hour")
        finally:
            await step.do("tidy up", lambda: calls.append("tidied"))

    h = await harness(tidy, cache=0)
    instance = await h.start(tidy)
    assert calls == []
    await h.replace_worker()
    await h.advance("1 hour")

    assert (await instance.status()).status == InstanceStatus.COMPLETE
    assert calls == ["tidied"]


async def test_a_body_may_raise_whatever_it_likes(harness: StartHarness) -> None:
    """Behaviours 81, 158."""

    class Odd(BaseException):
        pass

    @workflow("raising")
    async def raising(event, step):
        async def on_the_loop():
            raise Odd("on the loop")

        def in_a_thread():
            raise Odd("in a thread")

        heard = []
        for name, body in (("loop", on_the_loop), ("thread", in_a_thread)):
            try:
                await step.do(name, body, retries={"limit": 0})
            except Exception as error:
                heard.append([error.name, str(error)])
        return heard

    h = await harness(raising)
    instance = await h.client.workflow(raising).create()

    assert await instance.result(timeout="5 seconds") == [["Odd", "on the loop"], ["Odd", "in a thread"]]
