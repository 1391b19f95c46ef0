"""Workflows that start others: in a step, once, without waiting for them."""

from __future__ import annotations

from stepwell import CallFailed, InstanceStatus, WorkflowEntrypoint, workflow
from stepwell.testing import Harness
from tests.behaviour.workflows.conftest import StartHarness


@workflow("child")
async def child(event, step):
    await step.sleep("grow up", "1 day")
    return f"child of {event.payload['parent']}"


class Parent(WorkflowEntrypoint):
    name = "parent"

    async def run(self, event, step):
        async def begin():
            try:
                started = await self.workflow(child).create(id="the-child", params={"parent": event.instance_id})
            except CallFailed as failure:
                return failure.reason
            return started.id

        begun = await step.do("begin child", begin)
        await step.sleep("rest", "1 hour")
        return begun


async def children(h: Harness) -> list[str]:
    return [one.id async for one in h.client.workflow(child).list()]


async def test_a_parent_goes_on_without_waiting_for_its_child(harness: StartHarness) -> None:
    """Behaviours 86, 87."""
    h = await harness(Parent, child, cache=0)
    parent = await h.start(Parent, id="p")
    await h.advance("1 hour")

    assert (await parent.status()).output == "the-child"
    assert await children(h) == ["the-child"]

    grown = await h.client.workflow(child).get("the-child")
    assert (await grown.status()).status == InstanceStatus.WAITING
    await h.advance("1 day")
    assert (await grown.status()).output == "child of p"


async def test_a_restarted_parent_meets_the_child_it_had(harness: StartHarness) -> None:
    """Behaviour 88."""
    h = await harness(Parent, child)
    parent = await h.start(Parent)
    await h.advance("1 hour")

    await parent.restart()
    await h.advance("1 hour")

    assert (await parent.status()).output == "INSTANCE_ID_ALREADY_EXISTS"
    assert await children(h) == ["the-child"]


async def test_a_step_that_fails_after_its_calls_makes_each_of_them_once(harness: StartHarness) -> None:
    failures = [ConnectionError("down")]

    class Mother(WorkflowEntrypoint):
        name = "mother"

        async def run(self, event, step):
            async def begin():
                async with h.client.transaction() as tx:
                    committed = tx.workflow(child).create(params={"parent": "a transaction"})
                named = await self.workflow(child).create(id="the-child", params={"parent": event.instance_id})
                [batched] = await self.workflow(child).create_batch([{"params": {"parent": "a batch"}}])
                ended = await self.workflow(child).create(params={"parent": "nobody"})
                await ended.terminate()
                if failures:
                    raise failures.pop()
                return [committed.id, named.id, batched.id, ended.id]

            return await step.do("begin children", begin)

    h = await harness(Mother, child)
    mother = await h.start(Mother)
    await h.advance("10 seconds")

    assert (await h.steps(mother))["begin children"].attempts == 2
    assert sorted((await mother.status()).output) == sorted(await children(h))
