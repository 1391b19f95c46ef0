"""The price of a message is bounded: every field that can repeat has a limit, and nothing is done beyond it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import AioRpcError

from stepwell.v1 import workers_pb2, workflows_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell_server.api.edge import bounds, parsing
from stepwell_server.api.edge import counting as wire
from stepwell_server.api.edge.parsing import Parser
from stepwell_server.api.edge.validate import Validator
from stepwell_server.api.wire.frames import NUMBERED, FrameReader
from stepwell_server.api.wire.reading import Reader
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.values import strict_json
from stepwell_server.domain.values.errors import InvalidRequest
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.engine.spine import turns
from stepwell_server.engine.spine.links import Link
from tests.support.calls import raw
from tests.support.calls.requests import METHODS, Path, full, hello, message, name_of, payloads, repeated, with_payload
from tests.support.servers.servers import Served

LIMITS = Limits()
PATHS = [(method.input_type, path) for method in METHODS for path in repeated(method.input_type)]
named = pytest.mark.parametrize(("kind", "path"), PATHS, ids=[name_of(kind, path) for kind, path in PATHS])


def test_every_field_that_can_repeat_has_a_limit() -> None:
    names = {path[-1].full_name.removeprefix("stepwell.v1.") for _, path in PATHS}

    assert names == set(bounds.MOST)


@named
def test_elements_are_counted_before_one_is_looked_at(
    kind: Descriptor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = bounds.most(path[-1], LIMITS)
    if any(f"stepwell.v1.{field.containing_type.name}.{field.name}" in BATCH_ITEMS for field in path[:-1]):
        kind, path = path[-1].containing_type, path[-1:]  # items are checked each by itself
    parsed: Any = GetMessageClass(kind).FromString(message(path, most + 1))
    validator = Validator(LIMITS)
    looked_at: list[str] = []
    parts = validator.parts

    def counting(value: Any, path: str = "") -> Iterator[int]:
        looked_at.append(path)
        return parts(value, path)

    monkeypatch.setattr(validator, "parts", counting)
    with pytest.raises(InvalidRequest) as refused:
        validator.check(parsed)

    where = refused.value.metadata.pop("field")
    assert where.endswith(path[-1].name)
    assert refused.value.metadata == {"size": str(most + 1), "limit": str(most)}
    assert len(looked_at) <= len(path)


BATCH_ITEMS = {
    f"stepwell.v1.{name}.items" for name in ("CreateInstancesRequest", "SendEventsRequest", "TriggerHooksRequest")
}


@named
async def test_a_large_message_is_refused_before_it_is_parsed(
    kind: Descriptor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = message(path, 40_000)
    values = 0
    read = wire._value

    def counting(*at: Any) -> tuple[int, int]:
        nonlocal values
        values += 1
        return read(*at)

    class Unparsed:
        DESCRIPTOR = kind

        def parse(self, raw: bytes) -> NoReturn:
            raise AssertionError("it was parsed")

    monkeypatch.setattr(wire, "_value", counting)
    with pytest.raises(InvalidRequest) as refused:
        await Parser(replace(LIMITS, message_values=5000)).parse(Unparsed().parse, body)

    assert len(body) > parsing.COUNTED_BYTES
    assert refused.value.metadata["field"] == path[0].name
    assert values <= min(5000, 2 * bounds.most(path[0], LIMITS) if len(path) == 1 else 5000) + 1


async def test_numbers_that_come_packed_are_counted_as_well() -> None:
    request = workflows_pb2.ListInstancesRequest(statuses=[1] * 100_000)  # type: ignore[list-item]

    with pytest.raises(InvalidRequest) as refused:
        await Parser(LIMITS).parse(workflows_pb2.ListInstancesRequest.FromString, request.SerializeToString())

    assert refused.value.metadata["field"] == "statuses"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(raw.string_field(999, b"") * 260_000, id="unknown fields"),
        pytest.param(raw.varint_field(8, 1) * 260_000, id="one field again and again"),
        pytest.param(raw.string_field(1, b"\x00" * 100_000)[:-1], id="cut short"),
        pytest.param(b"\xff" * 100_000, id="no number ends"),
        pytest.param(b"\x0b\x0c" * 50_000, id="groups"),
    ],
)
def test_bytes_that_are_no_honest_message_are_refused_before_they_are_parsed(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        for _ in wire.count(body, workflows_pb2.ListInstancesRequest.DESCRIPTOR, LIMITS):
            pass


async def test_a_large_message_that_keeps_the_limits_is_parsed() -> None:
    labels = {str(number): "x" for number in range(32)}
    items = [workflows_pb2.CreateInstancesItem(workflow="order", labels=labels) for _ in range(100)]
    for item in items:
        item.params.json = '"' + "x" * 30_000 + '"'
    request = workflows_pb2.CreateInstancesRequest(items=items)

    parsed = await Parser(LIMITS).parse(workflows_pb2.CreateInstancesRequest.FromString, request.SerializeToString())

    assert parsed == request


# ---- what is within the limits is done in parts


class Rounds:
    """Counts work by the rounds of the loop in which it is done."""

    def __init__(self) -> None:
        self.now = 0
        self.work = Counter[int]()

    def note(self, amount: int) -> None:
        self.work[self.now] += amount

    async def beside(self, work: Awaitable[Any]) -> Any:
        """Do it, and count the rounds meanwhile."""
        done = asyncio.ensure_future(work)
        while not done.done():
            await asyncio.sleep(0)
            self.now += 1
        return await done


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


@pytest.mark.parametrize("least", [True, False], ids=["of the least", "of much"])
@named
async def test_the_largest_message_that_keeps_the_limits_is_checked_in_parts(
    kind: Descriptor, path: Path, least: bool, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks_of = Validator._checks_of

    def counting(validator: Validator, one: Any) -> Any:
        rounds.note(1)
        return checks_of(validator, one)

    monkeypatch.setattr(Validator, "_checks_of", counting)
    request = full(kind, path, least=least, values=20_000)

    await rounds.beside(_read(request))

    assert max(rounds.work.values(), default=0) <= 1.5 * turns.PART / bounds.FIELD_COST


async def _read(request: Any) -> None:
    """Parse a message and read its frames, as calls do and streams."""
    parser, line = Parser(LIMITS), turns.Turns()
    reader = FrameReader(LIMITS, StepPolicy(), line)
    read = parser.decode if isinstance(request, workers_pb2.ConnectRequest) else parser.parse
    parsed: Any = await read(type(request).FromString, request.SerializeToString())
    for frame in getattr(parsed, "frames", ()):
        is_numbered = frame.WhichOneof("body") in {None, *NUMBERED}
        await (reader.read(frame) if is_numbered else reader.check(frame))


async def test_bodies_that_a_frame_begins_are_read_in_parts(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Reader.policy

    def counting(reader: Reader, said: workers_pb2.StepPolicy) -> StepPolicy:
        rounds.note(1)
        return policy(reader, said)

    monkeypatch.setattr(Reader, "policy", counting)
    opens = [workers_pb2.OpenStep(name=f"s{number}", attempt=1) for number in range(bounds.MOST_OPENS)]
    frame = workers_pb2.WorkerFrame(number=1, opens=opens, begin_steps=workers_pb2.BeginSteps())

    read = await rounds.beside(FrameReader(LIMITS, StepPolicy(), turns.Turns()).read(frame))

    assert len(read.opens) == bounds.MOST_OPENS
    assert max(rounds.work.values()) <= 100


PAYLOADS = [(method, path) for method in METHODS for path in payloads(method.input_type)]


@pytest.mark.parametrize(("method", "path"), PAYLOADS, ids=[name_of(one.input_type, path) for one, path in PAYLOADS])
async def test_every_payload_is_looked_at_once_and_in_parts(
    method: Any, path: Path, sqlite_server: Served, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    scan = strict_json.scan

    def counting(text: str, deepest: int) -> Iterator[int]:
        nonlocal looked_at
        for amount in scan(text, deepest):
            looked_at += amount
            rounds.note(amount)
            yield amount

    await WorkerServiceStub(sqlite_server.channel).RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello()))
    monkeypatch.setattr(strict_json, "scan", counting)
    text = "[" + "[]," * 100_000 + "0]"

    await rounds.beside(_answered(sqlite_server, method, with_payload(method.input_type, path, text)))

    assert looked_at == len(text)
    assert max(rounds.work.values()) <= 2 * turns.PART


STRANGE = range(1, 1000)
ACKS = [workers_pb2.WorkerFrame(task_id=one, fence=1, task_ack=workers_pb2.TaskAck()) for one in STRANGE]
BEAT = workers_pb2.Heartbeat(held=[workers_pb2.HeldTask(task_id=one, fence=1) for one in STRANGE], heartbeat_number=1)


@pytest.mark.parametrize("frames", [ACKS, [workers_pb2.WorkerFrame(heartbeat=BEAT)]], ids=["acks", "heartbeat"])
async def test_leases_that_are_not_held_are_answered_in_parts(
    frames: list[workers_pb2.WorkerFrame], sqlite_server: Served, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose = Link.lose

    def counting(link: Link, held: Held) -> None:
        rounds.note(turns.LEASE_COST)
        lose(link, held)

    monkeypatch.setattr(Link, "lose", counting)
    (connect,) = [method for method in METHODS if method.name == "Connect"]
    request = workers_pb2.ConnectRequest(frames=[workers_pb2.WorkerFrame(hello=hello()), *frames])

    await rounds.beside(_answered(sqlite_server, connect, request))

    assert sum(rounds.work.values()) == len(STRANGE) * turns.LEASE_COST
    assert max(rounds.work.values()) <= 2 * turns.PART


async def _answered(server: Served, method: Any, request: Any) -> None:
    """Send the message, and wait for all that is answered, whatever it is."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    if method.client_streaming:
        stream: Any = server.channel.stream_stream(name)([request.SerializeToString()])
        async for _ in stream:
            pass
    else:
        with suppress(AioRpcError):
            await raw.send(server.channel, name, request.SerializeToString())
