"""Workers that send too much, or do not read what they are sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell.v1 import workers_pb2 as pb
from stepwell_server.api.edge import streams
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import begin, done, need_state, opening
from tests.support.workers.workers import HandWorker


def ended(worker: HandWorker) -> str:
    """Why the stream ended."""
    assert worker.end is not None
    return worker.end.reason


def many_leases() -> pb.WorkerFrame:
    """A heartbeat of a thousand leases that nobody holds."""
    return pb.WorkerFrame(heartbeat=pb.Heartbeat(held=[pb.HeldTask(task_id=1, fence=n) for n in range(1, 1001)]))


def many_bodies() -> pb.WorkerFrame:
    """A frame that begins nine thousand bodies."""
    return begin(*[opening("a")] * 9000, number=1)


@pytest.mark.tuning(frames_per_second=0)
@pytest.mark.parametrize("frame", [many_leases(), many_bodies()], ids=["leases", "bodies"])
async def test_everything_that_a_frame_names_counts(
    sqlite_server: Served, hire_at: Hire, frame: pb.WorkerFrame
) -> None:
    worker = await hire_at(sqlite_server, credit=0)

    await worker.say(*[frame] * 5)
    await worker.until_over()

    assert ended(worker) == "FRAME_RATE"


@pytest.mark.tuning(frames_per_second=0)
async def test_frames_beside_a_hello_count(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, connect=False)

    await worker.connect(*[many_leases()] * 41)
    await worker.until_over()

    assert ended(worker) == "FRAME_RATE"


async def test_what_a_worker_says_waits_until_it_reads_what_it_is_told(
    start_server: StartServer, sqlite_url: str, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, write = asyncio.Event(), streams.write

    async def write_when_read(context: Any, message: Any) -> None:
        await is_read.wait()
        await write(context, message)

    is_read.set()
    monkeypatch.setattr(streams, "write", write_when_read)
    server = await start_server(sqlite_url, limits={"outbox_bytes": 2048})
    worker, flows = await hire_at(server), Flows(server.channel)
    await flows.create("one", '"' + "x" * 2048 + '"')
    job = await worker.take()
    (connection,) = server.app.parts.workers._connections.values()

    is_read.clear()
    await job.send(need_state())
    async with asyncio.timeout(PATIENCE):
        while not connection.outbox.is_full:
            await flows.steps("one")
    await job.send(done("a"))
    for _ in range(10):
        assert not await flows.steps("one")

    is_read.set()
    await job.answer(1)
