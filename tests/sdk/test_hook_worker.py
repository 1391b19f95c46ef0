"""Hooks on the wire: what a worker says of them when it comes, while it executes them and when it goes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from stepwell import App, Client, JobContext, Worker, hook, workflow
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1.common_pb2 import Payload
from tests.sdk.fake_server import FakeServer
from tests.sdk.stage import in_a_word

CALLS: list[tuple[Any, str]] = []


@hook("send-receipt")
async def send_receipt(payload: Any, ctx: JobContext) -> None:
    """Send a receipt."""
    CALLS.append((payload, threading.current_thread().name))


@hook("print-receipt")
def print_receipt(payload: Any) -> None:
    CALLS.append((payload, threading.current_thread().name))


@workflow("order")
async def order(event: Any, step: Any) -> None: ...


async def test_a_worker_says_which_hooks_it_hosts(server: FakeServer, client: Client) -> None:
    async with Worker(client, App(workflows=[order], hooks=[send_receipt]), hooks=[print_receipt]):
        hello = (await server.workers.streams.get()).hello

    assert [(handler.kind, handler.name) for handler in hello.handlers] == [
        (pb.HANDLER_KIND_WORKFLOW, "order"),
        (pb.HANDLER_KIND_HOOK, "send-receipt"),
        (pb.HANDLER_KIND_HOOK, "print-receipt"),
    ]
    assert hello.handlers[1].hook.description == "Send a receipt."


async def test_hooks_are_executed_on_the_loop_or_in_threads(server: FakeServer, client: Client) -> None:
    CALLS.clear()
    async with Worker(client, hooks=[send_receipt, print_receipt], max_tasks=7):
        stream = await server.workers.streams.get()
        assert (await stream.until("credit")).credit.tasks == 7
        stream.give_hook("send-receipt", payload=Payload(json="1"))
        await stream.until("outcome")
        stream.frames.clear()
        stream.give_hook("print-receipt", task_id=2, payload=Payload(json="2"))
        await stream.until("outcome")
    await stream.until("goodbye")

    assert [payload for payload, _ in CALLS] == [1, 2]
    assert CALLS[0][1] == threading.current_thread().name and CALLS[1][1].startswith("stepwell-step")
    assert [in_a_word(frame) for frame in stream.frames if frame.task_id] == ["task_ack", "outcome"]


async def test_a_handler_may_trigger_hooks_itself(server: FakeServer, client: Client) -> None:
    """Behaviour 38."""

    @hook("chain")
    async def chain(payload: Any, ctx: JobContext) -> None:
        await client.hook("send-receipt").trigger(payload, id=f"{ctx.id}-receipt")

    async with Worker(client, hooks=[chain]):
        stream = await server.workers.streams.get()
        stream.give_hook("chain", payload=Payload(json="1"))
        assert not (await stream.until("outcome")).outcome.HasField("failure")

    assert [item.hook_id for item in server.hooks.triggers[0].items] == ["chain-1-receipt"]


async def test_a_lost_stream_is_replaced_and_hooks_go_on(server: FakeServer, client: Client) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    @hook("slow")
    async def slow(payload: Any) -> None:
        began.set()
        await gate.wait()

    async with Worker(client, hooks=[slow]):
        first = await server.workers.streams.get()
        first.give_hook("slow", task_id=3, fence=9)
        await asyncio.wait_for(began.wait(), 10)
        first.cut()
        second = await server.workers.streams.get()
        assert [(held.task_id, held.fence) for held in second.hello.held] == [(3, 9)]
        gate.set()
        outcome = await second.until("outcome")

    assert (outcome.task_id, outcome.fence, outcome.number) == (3, 9, 1)


async def test_leaving_lets_a_handler_end(server: FakeServer, client: Client) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    @hook("slow")
    async def slow(payload: Any) -> None:
        began.set()
        await gate.wait()

    async with Worker(client, hooks=[slow]):
        stream = await server.workers.streams.get()
        stream.give_hook("slow")
        await asyncio.wait_for(began.wait(), 10)
        asyncio.get_running_loop().call_later(0.05, gate.set)

    words = [in_a_word(frame) for frame in stream.frames]
    assert words.index("outcome") < words.index("goodbye")
