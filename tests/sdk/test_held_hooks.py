"""Hooks among what a worker holds: their leases, their reports, and leaving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import App, hook
from stepwell.v1 import frames_pb2 as pb
from stepwell.worker.leases import Capacity
from tests.sdk.stage import in_a_word, settle
from tests.sdk.test_held_work import Worker, nap


@hook("quick")
async def quick(payload: Any) -> None: ...


@hook("stuck")
async def stuck(payload: Any) -> None:
    await asyncio.Event().wait()


class HookWorker(Worker):
    """A worker that hosts hooks, and a workflow with the name of one of them."""

    def __init__(self, *hooks: Any) -> None:
        super().__init__()
        app = App(workflows=[nap], hooks=hooks or [quick, stuck])
        self.hold(app, Capacity(max_tasks=2))
        self.welcome()

    async def hook(self, name: str, task_id: int = 1, fence: int = 1) -> list[str]:
        return await self.receive(task_id, fence, task=hook_frame(name).task)


def hook_frame(name: str) -> pb.ServerFrame:
    ref = pb.HandlerRef(kind=pb.HANDLER_KIND_HOOK, name=name)
    return pb.ServerFrame(task_id=1, fence=1, task=pb.Task(handler=ref, key="r-1", hook=pb.HookInput()))


@pytest.fixture
async def worker() -> HookWorker:
    return HookWorker()


async def test_a_hook_is_acked_executed_and_reported_for_one_credit(worker: HookWorker) -> None:
    assert await worker.hook("quick") == ["task_ack", "outcome"]
    assert worker.leases() == [(1, 1)]

    assert await worker.ack(1, released=True) == ["credit:1"]
    assert worker.leases() == []


async def test_a_handler_begins_when_its_arrival_is_on_its_way(worker: HookWorker) -> None:
    """One that kills its process must have been counted."""
    worker.dialogue.receive(hook_frame("quick"))
    assert [in_a_word(frame) for frame in worker.dialogue.take_frames()] == ["task_ack"]
    await settle()
    assert worker.dialogue.take_frames() == []

    worker.dialogue.written()
    await settle()
    assert worker.sent() == ["outcome"]


async def test_an_arrival_that_a_lost_stream_swallowed_is_said_again(worker: HookWorker) -> None:
    worker.dialogue.receive(hook_frame("quick"))
    worker.dialogue.take_frames()
    worker.dialogue.disconnected()

    assert worker.welcome((1, 1)) == ["task_ack", "credit:1"]
    await settle()
    assert worker.sent() == ["outcome"]


async def test_an_outcome_is_sent_again_after_a_reconnect(worker: HookWorker) -> None:
    await worker.hook("quick")
    worker.dialogue.disconnected()

    assert worker.welcome((1, 1)) == ["outcome", "credit:1"]
    assert [frame.number for frame in worker.unacked()] == [1]


async def test_a_handler_goes_on_through_a_reconnect(worker: HookWorker) -> None:
    await worker.hook("stuck")
    worker.dialogue.disconnected()

    assert worker.welcome((1, 1)) == ["credit:1"]
    assert worker.leases() == [(1, 1)]
    await worker.held.close()


async def test_what_ends_without_a_stream_is_said_on_the_next_one() -> None:
    gate = asyncio.Event()

    @hook("gated")
    async def gated(payload: Any) -> None:
        await gate.wait()

    worker = HookWorker(gated)
    await worker.hook("gated")
    worker.dialogue.disconnected()
    gate.set()
    assert await worker.receive(heartbeat=pb.ServerHeartbeat()) == []

    assert worker.welcome((1, 1)) == ["outcome", "credit:1"]


@pytest.mark.parametrize("lost", [{"stale": pb.Stale()}, {"cancel": pb.Cancel(reason="cancelled")}])
async def test_a_hook_that_is_lost_or_cancelled_is_dropped(worker: HookWorker, lost: Any) -> None:
    await worker.hook("stuck")

    assert await worker.receive(**lost) == ["credit:1"]
    assert worker.leases() == []


async def test_a_hook_that_the_server_gave_away_is_dropped(worker: HookWorker) -> None:
    await worker.hook("stuck")
    worker.dialogue.disconnected()

    assert worker.welcome() == ["credit:2"]


async def test_heartbeats_name_hooks_and_a_lease_that_is_not_renewed_is_given_up(worker: HookWorker) -> None:
    await worker.hook("stuck", task_id=5)
    worker.clock.advance(20)
    worker.dialogue.heartbeat()  # never confirmed
    (beat,) = worker.dialogue.take_frames()
    assert [(held.task_id, held.fence) for held in beat.heartbeat.held] == [(5, 1)]

    worker.clock.advance(6)
    worker.dialogue.expire()
    assert worker.leases() == []


async def test_a_hook_under_a_new_fence_replaces_the_old_execution(worker: HookWorker) -> None:
    await worker.hook("stuck", fence=1)

    assert await worker.hook("quick", fence=2) == ["task_ack", "credit:1", "outcome"]
    assert worker.leases() == [(1, 2)]


async def test_a_hook_that_comes_twice_is_executed_once(worker: HookWorker) -> None:
    await worker.hook("stuck")

    assert await worker.hook("stuck") == []
    await worker.held.close()


async def test_a_hook_that_nobody_hosts_here_is_not_held(worker: HookWorker) -> None:
    assert await worker.hook("nap") == ["task_ack", "credit:1"]  # there is a workflow of that name
    assert worker.leases() == []


async def test_leaving_waits_for_handlers_and_for_their_reports() -> None:
    gate = asyncio.Event()

    @hook("gated")
    async def gated(payload: Any) -> None:
        await gate.wait()

    worker = HookWorker(gated)
    await worker.hook("gated")
    worker.held.drain()
    assert not worker.held.quiet.is_set()

    gate.set()
    assert await worker.receive(heartbeat=pb.ServerHeartbeat()) == ["outcome"]
    assert not worker.held.quiet.is_set()
    await worker.ack(1)
    assert worker.held.quiet.is_set()


async def test_a_hook_that_has_just_arrived_goes_back_unbegun_when_the_worker_leaves(worker: HookWorker) -> None:
    """Its arrival is not acknowledged, so nothing is charged to it."""
    worker.dialogue.receive(hook_frame("stuck"))
    worker.held.drain()

    assert (worker.sent(), worker.leases()) == ([], [])
    assert worker.held.quiet.is_set()


async def test_a_hook_whose_arrival_is_being_said_gets_the_grace(worker: HookWorker) -> None:
    worker.dialogue.receive(hook_frame("quick"))
    assert [in_a_word(frame) for frame in worker.dialogue.take_frames()] == ["task_ack"]
    worker.held.drain()
    assert not worker.held.quiet.is_set()

    worker.dialogue.written()
    await settle()
    assert worker.sent() == ["outcome"]
    await worker.ack(1)
    assert worker.held.quiet.is_set()


async def test_a_leaving_worker_does_not_claim_a_hook_that_a_lost_stream_left_unbegun(worker: HookWorker) -> None:
    worker.dialogue.receive(hook_frame("stuck"))
    worker.dialogue.take_frames()
    worker.held.drain()
    worker.dialogue.disconnected()

    assert worker.leases() == []
    assert worker.held.quiet.is_set()


async def test_closing_waits_for_a_handler_that_was_cancelled() -> None:
    ended: list[bool] = []

    @hook("slow")
    async def slow_to_go(payload: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    worker = HookWorker(slow_to_go)
    await worker.hook("slow")
    await worker.held.close()

    assert ended == [True]
