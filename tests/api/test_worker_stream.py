"""The stream itself: who may open one, how it is kept alive, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from stepwell.errors import CallFailed, failure_of
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell_server.api import workers as servicer
from stepwell_server.api.edge.access import AllowAll, Caller, Category, Principal
from stepwell_server.domain.values.errors import Unauthenticated
from stepwell_server.engine import sessions
from tests.api.conftest import Hire
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import begin, done, finish, opening, wait_for
from tests.support.workers.workers import HandWorker, grant, handlers, held, lease_left

REVOCABLE = "tests.api.test_worker_stream:Revocable"


class Revocable(AllowAll):
    """Whoever says a name may come in, until it is revoked."""

    revoked: set[str] = set()
    passed_on: dict[str, str] = {}
    """Names of those that have the credentials of others by now."""

    async def authenticate(self, caller: Caller) -> Principal:
        name = str(caller.metadata.get("authorization", "anonymous"))
        if name in self.revoked:
            raise Unauthenticated("the credential has expired")
        return Principal(self.passed_on.get(name, name))

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        return namespace in ("", "default")


def ended(worker: HandWorker) -> tuple[str, str]:
    """How the stream ended."""
    assert worker.end is not None
    return worker.end.code.name, worker.end.reason


# ---- hello


async def test_a_stream_that_does_not_begin_with_hello_is_refused(sqlite_server: Served, hire_at: Hire) -> None:
    for frames in ([], [pb.WorkerFrame()], [grant(1)], [pb.WorkerFrame(goodbye=pb.Goodbye())]):
        worker = await hire_at(sqlite_server, connect=False)
        worker.open()

        await worker.say(*frames)
        await worker.until_over()

        assert ended(worker) == ("INVALID_ARGUMENT", "HELLO_REQUIRED")


async def test_a_stream_that_ends_without_a_word_is_refused(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, connect=False)
    worker.open()

    await worker.close_side()

    assert ended(worker) == ("INVALID_ARGUMENT", "HELLO_REQUIRED")


@pytest.mark.tuning(hello_timeout=0.05)
async def test_a_hello_that_does_not_come_is_not_waited_for(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, connect=False)

    worker.open()
    await worker.until_over()

    assert ended(worker) == ("DEADLINE_EXCEEDED", "HELLO_TIMEOUT")


async def test_a_version_that_is_not_spoken_is_refused_with_those_that_are(
    sqlite_server: Served, hire_at: Hire
) -> None:
    for version in (0, 2, -1, 2**31 - 1):
        worker = await hire_at(sqlite_server, connect=False)
        error = await refusal_of(worker.connect(protocol_version=version))
        assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "PROTOCOL_UNSUPPORTED")
        assert error.metadata == {"minimum": "1", "maximum": "1"}
        assert error.message == f"this server speaks versions 1 to 1 of the protocol, not {version}"


async def test_a_stream_speaks_the_version_of_its_worker(
    sqlite_server: Served, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PROTOCOL", (1, 3))
    monkeypatch.setattr(servicer, "PROTOCOL", (1, 3))
    worker = await hire_at(sqlite_server, connect=False)

    assert (await worker.connect(protocol_version=2)).protocol_version == 2


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"session_id": ""}, "INVALID_SESSION_ID"),
    ({"session_id": "a" * 31}, "INVALID_SESSION_ID"),
    ({"session_id": "g" * 32}, "INVALID_SESSION_ID"),
    ({"session_id": "a" * 32 + "\n"}, "INVALID_SESSION_ID"),
    ({"namespace": "nowhere"}, "NAMESPACE_NOT_FOUND"),
    ({"handlers": handlers("order", "order")}, "DUPLICATE_HANDLER"),
    ({"handlers": handlers("-order")}, "INVALID_WORKFLOW_NAME"),
    ({"handlers": handlers("x" * 65)}, "INVALID_WORKFLOW_NAME"),
    ({"handlers": [pb.Handler(name="order")]}, "INVALID_FIELD"),
    ({"handlers": handlers(*(f"h{number}" for number in range(1001)))}, "INVALID_FIELD"),
    ({"worker_id": "x" * 129}, "INVALID_FIELD"),
    ({"sdk": "x" * 129}, "INVALID_FIELD"),
    ({"worker_id": "a\0"}, "MALFORMED_REQUEST"),
]


async def test_a_hello_that_breaks_a_rule_is_refused(sqlite_server: Served, hire_at: Hire) -> None:
    stub = WorkerServiceStub(sqlite_server.channel)
    worker = await hire_at(sqlite_server, connect=False)

    streams = [(await refusal_of(worker.connect(**changes))).reason for changes, _ in REFUSED]
    asked = [pb.RegisterHandlersRequest(hello=worker.hello(**changes)) for changes, _ in REFUSED]
    calls = [(await refusal(stub.RegisterHandlers(request))).reason for request in asked]

    assert streams == calls == [reason for _, reason in REFUSED]


async def test_a_session_id_may_have_upper_case_digits(sqlite_server: Served, hire_at: Hire) -> None:
    """The proto says 32 hexadecimal digits, and those are hexadecimal."""
    worker = await hire_at(sqlite_server, connect=False)

    assert (await worker.connect(session_id="ABCDEF0123456789" * 2)).connection == 1


async def test_the_longest_names_are_taken(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, connect=False)

    assert await worker.connect(handlers=handlers("x" * 64), worker_id="w" * 128, sdk="s" * 128)


async def refusal_of(call: Any) -> Any:
    """The refusal with which a stream ended before it was welcome."""
    with pytest.raises(CallFailed) as caught:
        await call
    return caught.value


# ---- alive


async def test_a_server_with_nothing_to_say_says_that_it_is_there(
    start_server: StartServer, sqlite_url: str, hire_at: Hire
) -> None:
    server = await start_server(sqlite_url, leases={"lease": 1})
    worker = await hire_at(server, credit=3)

    unasked = (await worker.next("heartbeat")).heartbeat
    await worker.beat()
    later = (await worker.next("heartbeat")).heartbeat

    assert (unasked.credit, unasked.heartbeat_number) == (3, 0)
    assert later.heartbeat_number == 1, "the newest that is durable"
    assert later.now.ToMicroseconds() > unasked.now.ToMicroseconds() > 0


@pytest.mark.tuning(policy_interval=0.02)
async def test_a_credential_that_expires_ends_the_stream(
    start_server: StartServer, sqlite_url: str, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server(sqlite_url, policy=REVOCABLE)
    worker = await hire_at(server, metadata=(("authorization", "anna"),))
    other = await hire_at(server, metadata=(("authorization", "ben"),))
    monkeypatch.setattr(Revocable, "revoked", {"anna"})

    await worker.until_over()

    assert ended(worker) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    assert (await other.beat()).credit == 1


@pytest.mark.tuning(policy_interval=0.02)
async def test_a_stream_ends_when_its_credential_becomes_that_of_another(
    start_server: StartServer, sqlite_url: str, hire_at: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session, and what that holds, is the former principal's."""
    server = await start_server(sqlite_url, policy=REVOCABLE)
    worker = await hire_at(server, metadata=(("authorization", "anna"),))
    monkeypatch.setattr(Revocable, "passed_on", {"anna": "ben"})

    await worker.until_over()

    assert ended(worker) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


async def test_a_stream_needs_permission_for_its_namespace(
    start_server: StartServer, sqlite_url: str, hire_at: Hire
) -> None:
    server = await start_server(sqlite_url, policy=REVOCABLE)
    worker = await hire_at(server, connect=False)

    assert (await refusal_of(worker.connect(namespace="other"))).reason == "PERMISSION_DENIED"
    assert await worker.connect()


async def test_a_worker_that_comes_while_the_server_goes_away_is_sent_elsewhere(server: Served, hire: Hire) -> None:
    """Taken in and told to go, it would come again at once; taken in and told nothing, it would lose its leases."""
    late = await hire(connect=False)
    server.app.parts.workers.drain()

    assert (await refusal_of(late.connect())).reason == "SHUTTING_DOWN"


# ---- too much


@pytest.mark.tuning(frames_per_second=0)
async def test_a_flood_of_frames_ends_the_stream(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, credit=0)
    flood = [pb.WorkerFrame(task_ack=pb.TaskAck())] * 1000

    for _ in range(5):
        await worker.say(*flood)
    await worker.until_over()

    assert ended(worker) == ("RESOURCE_EXHAUSTED", "FRAME_RATE")


async def test_more_frames_than_a_message_may_have_end_the_stream(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, credit=0)

    await worker.say(*[pb.WorkerFrame()] * 1001)
    await worker.until_over()

    assert ended(worker) == ("INVALID_ARGUMENT", "INVALID_FIELD")


async def test_a_heartbeat_of_more_leases_than_can_be_held_ends_the_stream(
    sqlite_server: Served, hire_at: Hire
) -> None:
    worker = await hire_at(sqlite_server, credit=0)

    await worker.say(pb.WorkerFrame(heartbeat=pb.Heartbeat(held=[pb.HeldTask(task_id=1, fence=1)] * 1001)))
    await worker.until_over()

    assert ended(worker) == ("INVALID_ARGUMENT", "INVALID_FIELD")


@pytest.mark.tuning(frames_per_second=0)
async def test_a_flood_of_empty_messages_counts_too(sqlite_server: Served, hire_at: Hire) -> None:
    worker = await hire_at(sqlite_server, credit=0)
    for _ in range(40):
        await worker.say(*[pb.WorkerFrame()] * 999)

    for _ in range(41):
        await worker.say()
    await worker.until_over()

    assert ended(worker) == ("RESOURCE_EXHAUSTED", "FRAME_RATE")


@pytest.mark.tuning(write_timeout=1.0)  # on a busy machine a reader must still keep up
async def test_a_worker_that_never_reads_is_cut_off_and_its_tasks_go_to_others(
    start_server: StartServer, sqlite_url: str, hire_at: Hire
) -> None:
    server = await start_server(sqlite_url, leases={"reconnect_grace": 0})
    stream = WorkerServiceStub(server.channel).Connect()
    hello = HandWorker(server.channel).hello()
    await stream.write(pb.ConnectRequest(frames=[pb.WorkerFrame(hello=hello), grant(20)]))
    flows, large = Flows(server.channel), '"' + "x" * 1_000_000 + '"'
    await worker_is_known(server)
    async with until_cut(server):
        for number in range(8):
            await flows.create(f"i{number}", large)

    other = await hire_at(server, credit=8)
    keys = {(await other.take()).task.key for _ in range(8)}

    assert keys == {f"i{number}" for number in range(8)}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await stream.read() is not grpc.aio.EOF:
            pass
    assert failure_of(caught.value).reason == "SLOW_CONSUMER"


@asynccontextmanager
async def until_cut(server: Served) -> AsyncIterator[None]:
    """Once the only stream is there, send what is not read. Return when the server has ended the stream."""
    opened = server.app._admission._streams
    async with asyncio.timeout(PATIENCE):
        while opened.total != 1:
            await asyncio.sleep(0.005)
        yield
        while opened.total:
            await asyncio.sleep(0.005)


async def worker_is_known(server: Served) -> None:
    """Wait until a worker is registered."""
    stub = WorkerServiceStub(server.channel)
    async with asyncio.timeout(PATIENCE):
        while not (await stub.ListWorkers(pb.ListWorkersRequest())).workers:
            pass


async def test_a_caller_has_so_many_streams_and_not_one_more(
    start_server: StartServer, sqlite_url: str, hire_at: Hire
) -> None:
    server = await start_server(sqlite_url, limits={"streams_per_principal": 2})
    workers = [await hire_at(server) for _ in range(2)]
    third = await hire_at(server, connect=False)

    error = await refusal_of(third.connect())
    assert (error.code.name, error.reason, error.metadata) == ("RESOURCE_EXHAUSTED", "STREAM_LIMIT", {"limit": "2"})

    await workers[0].goodbye()
    async with asyncio.timeout(PATIENCE):
        while third.end is not None:
            try:
                await third.connect()
            except (type(error), grpc.aio.AioRpcError):  # it may be refused before it has said Hello
                continue


@pytest.mark.tuning(handshake_timeout=0.1)
async def test_a_connection_that_never_says_a_word_is_closed(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url)
    host, _, port = server.addresses.listen.rpartition(":")

    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE):
        while await reader.read(1000):
            pass
    writer.close()


async def test_bytes_that_are_no_frames_end_the_stream_with_a_clear_word(sqlite_server: Served) -> None:
    method: Any = sqlite_server.channel.stream_stream(
        "/stepwell.v1.WorkerService/Connect", request_serializer=None, response_deserializer=None
    )

    error = await refusal(method(iter([b"\xff\xff"])).read())

    assert (error.code.name, error.reason) == ("INVALID_ARGUMENT", "MALFORMED_REQUEST")


# ---- drain


async def test_a_worker_goes_on_through_another_replica_when_its_own_drains(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    worker, other = await hire_at(here), await hire_at(there, worker_id="other", credit=5)
    flows = Flows(there.channel)
    await Flows(here.channel).create("one")
    job = await worker.take()
    await job.tell(begin(opening("long")))

    draining = asyncio.create_task(here.app.drain(0))
    drain = (await worker.next("drain")).drain
    await job.tell(done("long", opens=[opening("longer")]))
    await worker.close_side()
    assert worker.end is None
    worker.channel = there.channel
    welcome = await worker.connect(held=held(job))

    assert drain.deadline.seconds == 25
    assert [one.task_id for one in welcome.held] == [job.task_id]
    assert (await job.report(done("longer"), finish()))[-1].released
    assert {name: step.attempts for name, step in (await flows.steps("one")).items()} == {"long": 1, "longer": 1}
    await other.beat()
    assert not other.has("task"), "nobody else was given it"
    await draining


async def test_a_worker_is_not_sent_away_while_balancers_would_send_it_back(server: Served, hire_at: Hire) -> None:
    worker = await hire_at(server)
    await Flows(server.channel).create("one")
    job = await worker.take()
    ready = HealthStub(server.channel).Watch(HealthCheckRequest(service="readiness"))
    await ready.read()

    draining = asyncio.create_task(server.app.drain(settle=60))
    await ready.read()  # not any more
    await job.tell(done("a"))
    await worker.beat(job)

    assert not worker.has("drain")
    draining.cancel()
    ready.cancel()


async def test_leases_keep_their_length_when_a_drained_stream_ends(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    worker = await hire_at(here)
    await Flows(here.channel).create("one")
    job = await worker.take()
    await job.tell(wait_for("w", "go"))

    draining = asyncio.create_task(here.app.drain(0))
    await worker.next("drain")
    await worker.close_side()
    await draining

    assert await lease_left(there, job) > 20


async def test_a_draining_server_hands_out_nothing_more(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    leaving = await hire_at(here, credit=5)
    staying = await hire_at(there, worker_id="staying", credit=0)
    draining = asyncio.create_task(here.app.drain(0))
    await leaving.next("drain")
    await leaving.say(grant(5))

    await Flows(there.channel).create("one")
    await staying.say(grant(1))

    assert (await staying.take()).task.key == "one"
    assert not leaving.has("task")
    await leaving.close_side()
    await draining


@pytest.mark.tuning(sweep_interval=0.05)
async def test_a_worker_that_came_back_elsewhere_supersedes_its_old_stream(
    start_server: StartServer, postgres_url: str, hire_at: Hire
) -> None:
    here, there = [await start_server(postgres_url) for _ in range(2)]
    worker = await hire_at(here)
    again = await hire_at(there, session_id=worker.session_id)

    await worker.until_over()

    assert ended(worker) == ("ABORTED", "SUPERSEDED")
    assert (await again.beat()).credit == 1
