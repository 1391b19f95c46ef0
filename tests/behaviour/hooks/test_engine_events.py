"""Hooks that the engine triggers: what happens to instances, told in the transaction in which it happens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from stepwell import HookDefinition, Retry, workflow
from stepwell.testing import Harness
from tests.behaviour.hooks.conftest import StartHarness
from tests.support.workers.hooks import Calls

HOUR = timedelta(hours=1)


@workflow("quick")
async def quick(event: Any, step: Any) -> str:
    return await step.do("work", lambda: "done")


@workflow("broken")
async def broken(event: Any, step: Any) -> None:
    raise ValueError("it is broken")


@workflow("nap")
async def nap(event: Any, step: Any) -> None:
    await step.sleep("nap", "1 hour")


@workflow("waits")
async def waits(event: Any, step: Any) -> Any:
    return (await step.wait_for_event("wait", type="go", timeout="1 day")).payload


def watch(*names: str) -> tuple[dict[str, Calls], list[HookDefinition[Any]]]:
    told = {name: Calls(f"workflow.{name}") for name in names}
    return told, [calls.hook for calls in told.values()]


def reasons(calls: Calls) -> list[str]:
    return [event["reason"] for event in calls.payloads]


async def listed(h: Harness, name: str) -> list[Any]:
    return [state async for state in h.client.hook(f"workflow.{name}").list()]


async def test_a_completed_instance_is_told(harness: StartHarness) -> None:
    told, hooks = watch("completed", "errored", "terminated")
    h = await harness(quick, hooks=hooks)
    await h.start(quick, id="q-1")

    (event,) = told["completed"].payloads
    assert event | {"at": ""} == {
        "event": "workflow.completed",
        "namespace": h.namespace,
        "workflow": "quick",
        "instance_id": "q-1",
        "run_number": 0,
        "at": "",
    }
    assert datetime.fromisoformat(event["at"]) == await h.now()
    assert not told["errored"].payloads and not told["terminated"].payloads


async def test_an_errored_instance_is_told_with_its_failure(harness: StartHarness) -> None:
    told, hooks = watch("completed", "errored")
    h = await harness(broken, hooks=hooks)
    await h.start(broken, id="b-1")

    (event,) = told["errored"].payloads
    assert event["failure"] == {"name": "ValueError", "message": "it is broken"}
    assert (event["instance_id"], told["completed"].payloads) == ("b-1", [])


async def test_a_terminated_instance_is_told(harness: StartHarness) -> None:
    told, hooks = watch("terminated", "completed")
    h = await harness(nap, hooks=hooks)
    instance = await h.start(nap, id="n-1")
    await instance.terminate()
    await h.run_until_idle()

    assert [event["instance_id"] for event in told["terminated"].payloads] == ["n-1"]
    assert told["completed"].payloads == []


async def test_a_new_instance_is_enqueued(harness: StartHarness) -> None:
    """Behaviour 72."""
    told, hooks = watch("enqueued")
    h = await harness(quick, hooks=hooks)
    await h.start(quick, id="q-1")

    (event,) = told["enqueued"].payloads
    assert (event["reason"], event["instance_id"], event["run_number"]) == ("create", "q-1", 0)
    assert datetime.fromisoformat(event["run_at"]) == datetime.fromisoformat(event["at"]) == await h.now()


async def test_a_sleep_is_told_of_at_its_end(harness: StartHarness) -> None:
    """Behaviour 113."""
    told, hooks = watch("enqueued")
    h = await harness(nap, hooks=hooks)
    began = await h.now()
    await h.start(nap)

    scheduled = (await listed(h, "enqueued"))[0]
    assert (scheduled.status, scheduled.process_at) == ("pending", began + HOUR)
    await h.advance(HOUR)

    assert reasons(told["enqueued"]) == ["create", "wake"]
    assert datetime.fromisoformat(told["enqueued"].payloads[1]["run_at"]) == began + HOUR


async def test_an_event_that_wakes_is_told(harness: StartHarness) -> None:
    """Behaviour 144."""
    told, hooks = watch("enqueued")
    h = await harness(waits, hooks=hooks)
    instance = await h.start(waits)
    await h.send_event(instance, "other")
    assert "event" not in reasons(told["enqueued"])

    await h.send_event(instance, "go")
    assert reasons(told["enqueued"]).count("event") == 1


async def test_a_resume_is_told(harness: StartHarness) -> None:
    told, hooks = watch("enqueued")
    h = await harness(waits, hooks=hooks)
    instance = await h.start(waits)
    await instance.pause()
    await instance.resume()
    await h.run_until_idle()

    assert "resume" in reasons(told["enqueued"])


async def test_a_retry_is_told_of_at_its_time(harness: StartHarness) -> None:
    fails = iter([True, False])

    def body() -> None:
        if next(fails):
            raise OSError

    @workflow("flaky")
    async def flaky(event: Any, step: Any) -> None:
        await step.do("work", body, retries=Retry(limit=1, delay="10 seconds"))

    told, hooks = watch("enqueued")
    h = await harness(flaky, hooks=hooks)
    await h.start(flaky)
    assert reasons(told["enqueued"]) == ["create"]
    await h.advance("10 seconds")

    assert reasons(told["enqueued"]) == ["create", "retry"]


async def test_a_restart_is_a_new_run(harness: StartHarness) -> None:
    told, hooks = watch("enqueued", "completed")
    h = await harness(quick, hooks=hooks)
    instance = await h.start(quick)
    await instance.restart()
    await h.run_until_idle()

    assert [event["run_number"] for event in told["completed"].payloads] == [0, 1]
    assert [event["run_number"] for event in told["enqueued"].payloads] == [0, 1]


async def test_nothing_is_written_where_nobody_wants_to_know(harness: StartHarness) -> None:
    _, hooks = watch("completed")
    h = await harness(quick, broken, hooks=hooks)
    await h.start(quick)
    await h.start(broken)

    assert [len(await listed(h, name)) for name in ("completed", "enqueued", "errored")] == [1, 0, 0]


async def test_another_namespace_is_not_told(harness: StartHarness) -> None:
    told, hooks = watch("completed")
    await harness(hooks=hooks)
    h = await harness(quick)
    await h.start(quick)

    assert (told["completed"].payloads, await listed(h, "completed")) == ([], [])


@pytest.mark.parametrize("name", ["completed", "enqueued"])
async def test_a_hook_that_fails_later_changes_nothing_for_the_caller(harness: StartHarness, name: str) -> None:
    """Behaviours 69 and 71."""
    told = Calls(f"workflow.{name}", failures=2)
    h = await harness(quick, hooks=[told.hook])
    instance = await h.start(quick)
    assert (await instance.status()).output == "done"

    await h.advance("1 minute")
    assert [ctx.attempt for ctx in told.contexts] == [1, 2, 3]
    assert (await instance.status()).output == "done"


async def test_instances_of_a_refused_transaction_are_not_told_of(harness: StartHarness) -> None:
    told, hooks = watch("enqueued")
    h = await harness(quick, hooks=hooks)
    await h.start(quick, id="taken")
    with pytest.raises(Exception, match="INSTANCE_ID_ALREADY_EXISTS"):
        async with h.client.transaction() as tx:
            tx.workflow(quick).create(id="fresh")
            tx.workflow(quick).create(id="taken")
    await h.run_until_idle()

    assert [event["instance_id"] for event in told["enqueued"].payloads] == ["taken"]
