"""WatchInstances: the newest state of any number of instances, when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from grpc import aio

from stepwell.errors import CallFailed, failure_of, reason_name
from stepwell.v1 import workflows_pb2 as pb
from stepwell_server.api.edge.access import AllowAll, Category, Principal
from tests.api.conftest import Hire
from tests.api.test_worker_stream import REVOCABLE, Revocable, until_cut
from tests.support.calls.flows import Flows, status_name
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import done, finish, suspend, wait_for
from tests.support.workers.workers import HandWorker, Job, UnaryWorker, grant

HERE = "tests.api.test_watches"


class OnlyHere(AllowAll):
    """Nobody may look into other namespaces than the default one."""

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        return namespace in ("", "default")


class Watch:
    """A stream of changes."""

    def __init__(self, flows: Flows, *metadata: tuple[str, str]) -> None:
        self._flows = flows
        self._call: Any = flows.stub.WatchInstances(metadata=metadata)
        self.messages: list[pb.WatchInstancesResponse] = []

    async def add(self, *ids: str, drop: tuple[str, ...] = (), **options: Any) -> None:
        """Follow these instances, and no longer those."""
        added = [pb.WatchTarget(**self._flows.key(one), **options) for one in ids]
        dropped = [pb.WatchTarget(**self._flows.key(one)) for one in drop]
        await self._call.write(pb.WatchInstancesRequest(add=added, drop=dropped))

    async def message(self) -> pb.WatchInstancesResponse | None:
        """The next message, perhaps an empty one. None: the stream has ended."""
        async with asyncio.timeout(PATIENCE):
            message = await self._call.read()
        if message is aio.EOF:
            return None
        self.messages.append(message)
        return message  # type: ignore[no-any-return]

    async def change(self) -> pb.InstanceChange:
        """The next message with changes, which must be one."""
        (change,) = await self.changes()
        return change

    async def changes(self) -> list[pb.InstanceChange]:
        """The next message with changes."""
        while (message := await self.message()) is not None:
            if message.changes:
                return list(message.changes)
        raise AssertionError("the stream ended")

    async def until(self, instance_id: str, status: str) -> pb.InstanceChange:
        """The change with which an instance reaches a status."""
        while True:
            for change in await self.changes():
                seen = change.instance
                if (seen.instance_id, status_name(seen.status)) == (instance_id, status):
                    return change

    async def close_side(self) -> None:
        """Say that nothing more will be asked."""
        await self._call.done_writing()

    async def flood(self, *ids: str) -> None:
        """Ask for these again and again, until the server has enough."""
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self.add(*ids)

    async def end(self) -> CallFailed:
        """Read all that comes, and return why nothing more does."""
        with pytest.raises(aio.AioRpcError) as caught:
            while await self.message() is not None:
                pass
        return failure_of(caught.value)

    def cancel(self) -> None:
        """Leave."""
        self._call.cancel()


@asynccontextmanager
async def watching(flows: Flows, *metadata: tuple[str, str]) -> AsyncIterator[Watch]:
    """A stream that is left in the end."""
    watch = Watch(flows, *metadata)
    try:
        yield watch
    finally:
        watch.cancel()


@pytest.fixture
async def worker(hire: Hire) -> HandWorker:
    """A worker that hosts "order" and has no credit yet."""
    return await hire(credit=0)


@pytest.fixture
async def watch(worker: HandWorker, flows: Flows) -> AsyncIterator[Watch]:
    """A stream that follows nothing yet."""
    async with watching(flows) as watch:
        yield watch


async def held(worker: HandWorker, flows: Flows, instance_id: str = "one") -> Job:
    """An instance that the worker holds."""
    await flows.create(instance_id)
    await worker.say(grant(1))
    return await worker.take()


async def test_an_instance_is_sent_when_it_is_added_and_whenever_it_changes(
    watch: Watch, worker: HandWorker, flows: Flows
) -> None:
    await flows.create("one", "7")
    await watch.add("one")
    first = (await watch.change()).instance
    assert (status_name(first.status), first.params.json) == ("QUEUED", "7")

    await worker.say(grant(1))
    job = await worker.take()
    running = (await watch.until("one", "RUNNING")).instance
    await job.tell(finish("42"))
    complete = (await watch.until("one", "COMPLETE")).instance

    assert first.revision < running.revision < complete.revision
    assert complete.output.json == "42"
    assert complete == await flows.get("one")


async def test_many_instances_are_followed_by_one_stream(watch: Watch, flows: Flows) -> None:
    names = [f"i{number:02}" for number in range(30)]
    await flows.create_many(*(flows.item(name) for name in names))

    await watch.add(*names)
    seen: set[str] = set()
    while seen != set(names):
        seen |= {change.instance.instance_id for change in await watch.changes()}
    await flows.manage("Terminate", "i07")

    assert (await watch.until("i07", "TERMINATED")).instance.HasField("ended_at")


async def test_a_change_through_another_replica_is_seen(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [Flows((await start_server(postgres_url)).channel) for _ in range(2)]
    server = await start_server(postgres_url)
    await hire_at(server, credit=0)
    await here.create("one")
    async with watching(there) as watch:
        await watch.add("one")
        await watch.until("one", "QUEUED")

        await here.manage("Pause", "one")

        await watch.until("one", "PAUSED")


async def test_what_is_dropped_is_heard_of_no_more(watch: Watch, flows: Flows) -> None:
    for key in ("one", "two"):
        await flows.create(key)
        await watch.add(key)
        await watch.until(key, "QUEUED")

    await watch.add("nobody", drop=("one", "never followed"))
    assert (await watch.change()).HasField("refusal"), "what was asked before it is done by now"
    await flows.manage("Pause", "one")
    await flows.manage("Pause", "two")

    assert (await watch.change()).instance.instance_id == "two"


async def test_one_that_is_followed_already_is_sent_again(watch: Watch, flows: Flows) -> None:
    await flows.create("one")

    for _ in range(2):
        await watch.add("one")
        assert (await watch.change()).instance.instance_id == "one"


async def test_a_client_that_has_seen_the_newest_revision_hears_only_of_what_comes(watch: Watch, flows: Flows) -> None:
    revision = (await flows.create("one")).revision

    await watch.add("one", known_revision=revision)
    await watch.add("nobody")
    assert (await watch.change()).HasField("refusal")
    await flows.manage("Pause", "one")

    assert (await watch.change()).instance.revision > revision


async def test_steps_come_along_if_they_are_asked_for(watch: Watch, worker: HandWorker, flows: Flows) -> None:
    job = await held(worker, flows)
    await job.report(done("a"), done("b"))

    await watch.add("one", include_steps=True)
    assert [step.name for step in (await watch.change()).steps] == ["a", "b"]
    await job.tell(done("c", "7"))

    (step,) = (await watch.change()).steps
    assert (step.name, step.result.json) == ("c", "7")


async def test_a_client_that_comes_back_gets_the_steps_that_changed_since(
    watch: Watch, worker: HandWorker, flows: Flows
) -> None:
    job = await held(worker, flows)
    seen = await job.tell(done("a"))
    await job.tell(done("b"))

    await watch.add("one", include_steps=True, known_revision=seen.revision)

    assert [step.name for step in (await watch.change()).steps] == ["b"]


async def test_steps_do_not_come_unasked(watch: Watch, worker: HandWorker, flows: Flows) -> None:
    await (await held(worker, flows)).tell(done("a"))

    await watch.add("one")

    assert not (await watch.change()).steps


async def test_a_restart_is_seen_as_a_newer_state(watch: Watch, worker: HandWorker, flows: Flows) -> None:
    await (await held(worker, flows)).report(done("a"), finish())
    await watch.add("one", include_steps=True)
    complete = await watch.until("one", "COMPLETE")

    await flows.manage("Restart", "one")
    again = await watch.until("one", "QUEUED")

    assert again.instance.revision > complete.instance.revision
    assert (again.instance.run_number, list(again.steps)) == (1, [])


async def test_a_wait_and_its_end_are_seen(watch: Watch, worker: HandWorker, flows: Flows) -> None:
    job = await held(worker, flows)
    await watch.add("one", include_steps=True)
    await watch.until("one", "RUNNING")

    await job.report(wait_for("w", "go"), suspend())
    assert (await watch.until("one", "WAITING")).instance.HasField("wake_at")
    await worker.say(grant(1))
    await flows.event("one", "go", "1")

    steps: dict[str, pb.Step] = {}
    while "w" not in steps or steps["w"].status != pb.STEP_STATUS_COMPLETED:
        steps |= {step.name: step for change in await watch.changes() for step in change.steps}
    assert steps["w"].result.json == "1"


async def test_what_is_not_there_is_refused_and_the_others_are_followed(watch: Watch, flows: Flows) -> None:
    await flows.create("one")

    await watch.add("nobody", "one")
    changes: list[pb.InstanceChange] = []
    while len(changes) < 2:
        changes += await watch.changes()

    (refused,) = [change.refusal for change in changes if change.HasField("refusal")]
    assert (refused.target.instance_id, reason_name(refused.error.reason)) == ("nobody", "INSTANCE_NOT_FOUND")
    assert [change.instance.instance_id for change in changes if change.HasField("instance")] == ["one"]


@pytest.mark.parametrize("key", [{"workflow": "unknown"}, {"namespace": "nowhere"}], ids=str)
async def test_a_workflow_that_is_not_there_is_refused_alike(watch: Watch, flows: Flows, key: dict[str, str]) -> None:
    target = pb.WatchTarget(**flows.key("one") | key)
    await watch._call.write(pb.WatchInstancesRequest(add=[target]))

    refused = (await watch.change()).refusal

    assert refused.target == target
    assert reason_name(refused.error.reason) in ("INSTANCE_NOT_FOUND", "WORKFLOW_NOT_FOUND", "NAMESPACE_NOT_FOUND")


async def test_a_namespace_that_is_not_allowed_is_refused_alone(
    start_server: StartServer, sqlite_url: str, hire_at: Hire
) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:OnlyHere")
    await hire_at(server, credit=0)
    flows = Flows(server.channel)
    await flows.create("one")
    async with watching(flows) as watch:
        await watch._call.write(pb.WatchInstancesRequest(add=[pb.WatchTarget(namespace="secret", workflow="order")]))
        refused = (await watch.change()).refusal
        await watch.add("one")

        assert reason_name(refused.error.reason) == "PERMISSION_DENIED"
        assert (await watch.change()).instance.instance_id == "one"


@pytest.mark.tuning(keepalive=0.02)
async def test_silence_is_broken_by_empty_messages(watch: Watch, flows: Flows) -> None:
    await flows.create("one")
    await watch.add("one")
    await watch.change()

    keepalive = await watch.message()

    assert keepalive is not None and not keepalive.changes
    assert keepalive.now.seconds > 0 and not keepalive.draining


async def test_a_slow_reader_misses_states_in_between_and_never_the_last(watch: Watch, flows: Flows) -> None:
    await flows.create("one")
    await watch.add("one")
    for _ in range(20):
        await flows.manage("Pause", "one")
        await flows.manage("Resume", "one")
    await flows.manage("Terminate", "one")

    await watch.until("one", "TERMINATED")

    revisions = [change.instance.revision for message in watch.messages for change in message.changes]
    assert revisions == sorted(set(revisions))


async def test_a_stream_whose_client_asks_no_more_ends_well(watch: Watch, flows: Flows) -> None:
    await flows.create("one")
    await watch.add("one")
    await watch.change()

    await watch.close_side()

    while await watch.message() is not None:
        pass


async def test_large_states_come_in_messages_that_fit(watch: Watch, flows: Flows) -> None:
    large = '"' + "x" * 1_000_000 + '"'
    for number in range(6):
        await flows.create(f"i{number}", large)

    await watch.add(*(f"i{number}" for number in range(6)))
    seen: set[str] = set()
    while len(seen) < 6:
        seen |= {change.instance.instance_id for change in await watch.changes()}

    assert max(message.ByteSize() for message in watch.messages) < 4 * 1024 * 1024


async def test_many_large_steps_do_not_end_the_stream(watch: Watch, worker: HandWorker, flows: Flows) -> None:
    job = await held(worker, flows)
    for number in range(6):
        await job.tell(done(f"s{number}", '"' + "x" * 1_000_000 + '"'))

    await watch.add("one", include_steps=True)
    pieces = [await watch.change()]
    while pieces[-1].more_steps:
        pieces.append(await watch.change())

    assert [step.name for piece in pieces for step in piece.steps] == [f"s{number}" for number in range(6)]
    assert {piece.instance.instance_id for piece in pieces} == {"one"}
    assert max(message.ByteSize() for message in watch.messages) < 4 * 1024 * 1024


async def test_many_refusals_come_in_messages_that_fit(watch: Watch) -> None:
    names = [f"nobody-{number:05}-{'x' * 80}" for number in range(20_000)]

    async def add_all() -> None:
        for first in range(0, len(names), 1000):
            await watch.add(*names[first : first + 1000])

    adding = asyncio.create_task(add_all())
    refused: list[str] = []
    while len(refused) < len(names):
        refused += [change.refusal.target.instance_id for change in await watch.changes()]
    await adding

    assert refused == names
    assert max(message.ByteSize() for message in watch.messages) < 4 * 1024 * 1024


@pytest.mark.tuning(most_followed=2)
async def test_a_stream_follows_so_many_instances_and_no_more(watch: Watch, flows: Flows) -> None:
    await flows.create_many(*(flows.item(name) for name in "abc"))
    for name in "ab":
        await watch.add(name)
        await watch.until(name, "QUEUED")

    await watch.add("c")
    refused = (await watch.change()).refusal
    await watch.add("a", drop=("b",))
    assert (await watch.change()).instance.instance_id == "a", "it is followed already"
    await watch.add("c")

    assert (refused.target.instance_id, reason_name(refused.error.reason)) == ("c", "STREAM_LIMIT")
    assert (await watch.change()).instance.instance_id == "c"


@pytest.mark.tuning(write_timeout=1.0)
async def test_a_client_that_never_reads_states_is_cut_off(server: Served, worker: HandWorker, flows: Flows) -> None:
    await worker.goodbye()  # the workflow is registered
    names = [f"i{number}" for number in range(8)]
    for name in names:
        await flows.create(name, '"' + "x" * 1_000_000 + '"')

    async with watching(flows) as watch:
        async with until_cut(server):
            await watch.add(*names)

        assert (await watch.end()).reason == "SLOW_CONSUMER"


@pytest.mark.tuning(write_timeout=0.0)
async def test_a_client_that_does_not_read_the_first_message_is_told_why_it_is_cut_off(
    server: Served, flows: Flows
) -> None:
    await UnaryWorker(server.channel).register()
    await flows.create("one")

    async with watching(flows) as watch:
        await watch.add("one")

        assert (await watch.end()).reason == "SLOW_CONSUMER"


@pytest.mark.tuning(write_timeout=1.0)
async def test_a_client_that_asks_and_never_reads_is_cut_off(server: Served, flows: Flows) -> None:
    async with watching(flows) as watch, until_cut(server):
        asking = asyncio.create_task(watch.flood(*(f"nobody-{number}" for number in range(1000))))

    await asyncio.wait([asking])


@pytest.mark.tuning(policy_interval=0.02)
async def test_a_credential_that_expires_ends_the_stream_although_much_changes(
    start_server: StartServer, sqlite_url: str, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server(sqlite_url, policy=REVOCABLE)
    await hire_at(server, credit=0)
    flows = Flows(server.channel)
    await flows.create("one")
    async with watching(flows, ("authorization", "anna")) as watch:
        await watch.add("one")
        await watch.change()
        monkeypatch.setattr(Revocable, "revoked", {"anna"})
        ending = asyncio.create_task(watch.end())
        while not ending.done():
            await flows.manage("Pause", "one")
            await flows.manage("Resume", "one")

        assert (await ending).reason == "UNAUTHENTICATED"


async def test_a_server_that_goes_away_says_so(start_server: StartServer, postgres_url: str, hire_at: Hire) -> None:
    server = await start_server(postgres_url, drain_grace=2)
    await hire_at(server, credit=0)
    flows = Flows(server.channel)
    await flows.create("one")
    async with watching(flows) as watch:
        await watch.add("one")
        await watch.change()
        draining = asyncio.create_task(server.app.drain(0))
        try:
            while (message := await watch.message()) is not None and not message.draining:
                pass
            assert message is not None and message.draining
        finally:
            watch.cancel()
            await draining


async def test_a_malformed_target_is_told_by_its_name(sqlite_server: Served) -> None:
    async with watching(Flows(sqlite_server.channel)) as watch:
        await watch._call.write(pb.WatchInstancesRequest(add=[pb.WatchTarget(workflow="a\0")]))

        failure = await watch.end()

    assert (failure.code.name, failure.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")
