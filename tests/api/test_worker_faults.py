"""A database that stumbles, with commits that fail or only say that they failed, costs time and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from grpc import aio

from stepwell.errors import failure_of
from stepwell.v1 import workers_pb2 as pb
from stepwell_server.domain.values.errors import DatabaseUnavailable
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.engine.spine.calls import Renew
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.inbox import Sender
from tests.api.conftest import Hire
from tests.support.calls.flows import Flows, step_status
from tests.support.faults.faults import FaultyBackend, Rates
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import begin, done, failed, finish, opening, policy, suspend, wait_for
from tests.support.workers.workers import HandWorker, Job, grant, held, lease_left

T = TypeVar("T")


@pytest.fixture
async def server(start_server: StartServer, database_url: str) -> Served:
    """A server that soon notices a task that it claimed and never sent."""
    return await start_server(database_url, tuning=Tuning(sweep_interval=0.05), leases={"ack_window": 1})


@pytest.fixture(params=[1, 2])
def backend(server: Served, request: pytest.FixtureRequest) -> FaultyBackend:
    """The server's database, with faults in what it commits in groups."""
    rates = {"group": Rates(error=0.15, execute_then_fail=0.15)}
    backend = FaultyBackend(server.app.db.backend, rates, request.param)
    server.app.db.backend = backend
    return backend


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of a call that is repeated until the database is there."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except aio.AioRpcError as error:
                assert failure_of(error).reason in ("DATABASE_UNAVAILABLE", "CONFLICT", "SERVER_BUSY")


async def heard(job: Job, name: str, status: str) -> pb.StepState:
    """A step that has changed by itself, as a worker hears of it that sends its heartbeats; it may hear of more."""
    beat = pb.WorkerFrame(heartbeat=pb.Heartbeat(held=held(job), heartbeat_number=1))
    async with asyncio.timeout(PATIENCE):
        while True:
            await job.worker.say(beat)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    step = (await job.resolved()).get(name)
                if step is not None and step_status(step) == status:
                    return step


async def run(worker: HandWorker, flows: Flows, key: str) -> None:
    """One run with everything in it."""
    job = await worker.take()
    await job.report(done("a", opens=[opening("b")]), failed("b", policy=policy(3, delay=0.01)))
    await heard(job, "b", "PENDING")
    await job.report(begin(opening("b", 2)), done("b", attempt=2), wait_for("w", "go"))
    await insist(lambda: flows.event(key, "go", '"x"', request_id=f"event-{key}"))
    assert (await heard(job, "w", "COMPLETED")).result.json == '"x"'
    await job.tell(finish('"end"'))


async def test_a_run_on_a_database_that_stumbles_is_exact_all_the_same(
    hire: Hire, flows: Flows, backend: FaultyBackend
) -> None:
    worker = await hire(credit=6)
    keys = [f"i{number}" for number in range(6)]
    for key in keys:
        await insist(lambda key=key: flows.create(key, request_id=f"create-{key}"))  # type: ignore[misc]
        await run(worker, flows, key)

    assert backend.fired["error"] and backend.fired["execute_then_fail"]
    for key in keys:
        assert (await flows.get(key)).output.json == '"end"'
        entries = (await flows.history(key)).entries
        assert [(one.step.name, one.step.attempts) for one in entries if one.HasField("step")] == [
            ("a", 1),
            ("b", 2),
            ("w", 0),
        ]
        assert [one.event.consumed_by_step for one in entries if one.HasField("event")] == ["w"]


async def test_a_suspended_run_wakes_on_a_database_that_stumbles(
    hire: Hire, flows: Flows, backend: FaultyBackend
) -> None:
    worker = await hire()
    await insist(lambda: flows.create("one", request_id="create"))
    for number in range(8):
        job = await worker.take()
        acks = await job.report(wait_for(f"w{number}", "go"), suspend(cached=number % 2 == 0))
        assert acks[-1].released
        await worker.say(grant(1))
        await insist(lambda number=number: flows.event("one", "go", request_id=f"r{number}"))  # type: ignore[misc]

    last = await worker.take()
    await last.tell(finish())

    entries = (await flows.history("one", page_size=100)).entries
    consumed = [one.event.consumed_by_step for one in entries if one.HasField("event")]
    assert consumed == [f"w{number}" for number in range(8)]


async def test_an_acknowledgement_that_met_a_fault_is_tried_again(
    hire: Hire, flows: Flows, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker hears nothing of it, and would lose a long first body to another after the ack window."""
    enqueue = Committer.enqueue
    refused: list[Renew] = []

    def enqueue_with_a_fault(self: Committer, call: Any, *sender: Sender) -> Any:
        if not isinstance(call, Renew) or refused:
            return enqueue(self, call, *sender)
        refused.append(call)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(DatabaseUnavailable("it is away"))
        return answer

    monkeypatch.setattr(Committer, "enqueue", enqueue_with_a_fault)
    worker = await hire()
    await flows.create("one")

    job = await worker.take()

    async with asyncio.timeout(PATIENCE):
        while await lease_left(server, job) < 10:
            assert not worker.has("stale")
    assert refused
