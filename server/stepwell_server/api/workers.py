"""WorkerService: the worker's stream, frames in and frames out, and its unary twins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from stepwell.v1 import workers_pb2 as pb
from stepwell.v1.workers_pb2_grpc import WorkerServiceServicer
from stepwell_server.api.edge import streams, validate
from stepwell_server.api.edge.calls import Call, Context, asked_of, current, waiting
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import frames
from stepwell_server.api.wire.frames import NUMBERED, FrameReader
from stepwell_server.api.wire.server import limits_to_pb
from stepwell_server.api.wire.workflows import has_state, without_state
from stepwell_server.domain.spine.frames import Frame
from stepwell_server.domain.spine.leases import Held, LeaseTimes, session_key
from stepwell_server.domain.spine.tasks import Verdict
from stepwell_server.domain.values.errors import (
    DurationOutOfRange,
    FrameRate,
    HelloRequired,
    HelloTimeout,
    InvalidField,
    StepwellError,
)
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.values.pages import PageRequest
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import SECOND
from stepwell_server.engine.server import Server
from stepwell_server.engine.sessions import PROTOCOL, Hello
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.connections import MOST_CREDIT, Connection
from stepwell_server.engine.spine.outbox import Beat, Draining, Message, Refused, State, Told
from stepwell_server.engine.spine.turns import LEASE_COST, Turns
from stepwell_server.engine.worker_calls import LONGEST_CLAIM, WorkerCalls
from stepwell_server.engine.workers import Workers

log = structlog.get_logger()

FRAMES_AT_ONCE = 40_000
STRANGE = 10
"""Frames for which a lease counts that the worker names and does not hold: it costs much and is rarely needed."""
TOO_FAST = 1.0
"""Seconds for which a worker that sends too much is kept waiting for the end of its stream."""

_ABOUT_LEASES = NUMBERED | {"task_ack", "need_state"}


@dataclass(frozen=True, slots=True)
class Terms:
    """The times and policies that workers are told."""

    times: LeaseTimes
    policy: StepPolicy
    drain_grace: float

    @property
    def heartbeat(self) -> int:
        """How often a worker says that it is there: three times in a lease."""
        return self.times.lease // 3


class WorkerServicer(WorkerServiceServicer):
    """Translates between the wire and `engine.workers`."""

    def __init__(self, workers: Workers, calls: WorkerCalls, server: Server, terms: Terms) -> None:
        self._workers = workers
        self._calls = calls
        self._server = server
        self._terms = terms
        self._turns = Turns()

    async def Connect(  # type: ignore[override]  # it writes to the context itself, to see a peer that does not read
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: Context
    ) -> None:
        call = current.get()
        first, rest = await _hello(request_iterator)
        call.permit(convert.namespace_from_pb(first.namespace))
        hello = frames.hello_from_pb(first, call.principal.name)
        reader = await self._reader(hello.namespace)
        connection, held = await self._workers.connect(hello)
        stream = _Stream(context, connection, self._workers, reader, self._turns, self._terms)
        try:
            welcome = await self._welcome(hello, connection.owner.connection, held)
            await stream.serve(welcome, rest, request_iterator, call)
        finally:
            await self._workers.disconnect(connection, goodbye=stream.said_goodbye)

    async def RegisterHandlers(
        self, request: pb.RegisterHandlersRequest, context: Context
    ) -> pb.RegisterHandlersResponse:
        hello = frames.hello_from_pb(request.hello, current.get().principal.name)
        number = await self._calls.register(hello)
        return pb.RegisterHandlersResponse(welcome=await self._welcome(hello, number, []))

    async def ClaimTasks(self, request: pb.ClaimTasksRequest, context: Context) -> pb.ClaimTasksResponse:
        namespace, session_id = _session(request)
        if request.max_tasks < 0:
            raise InvalidField("max_tasks must not be negative", field="max_tasks")
        wait = convert.duration_from_pb(request.wait)
        if wait > LONGEST_CLAIM:
            raise DurationOutOfRange("wait must be at most 30 seconds", field="wait")
        only = frozenset(frames.handler_from_pb(namespace, one) for one in request.handlers)
        with waiting(wait):
            assignments = await self._calls.claim(
                namespace, session_id, request.max_tasks or 1, wait, only, asked_of(request)
            )
        pages, left_out = _first_pages(assignments)
        await self._calls.give_back(left_out)
        return pb.ClaimTasksResponse(frames=pages)

    async def RenewTasks(self, request: pb.RenewTasksRequest, context: Context) -> pb.RenewTasksResponse:
        namespace, session_id = _session(request)
        answers = await self._calls.renew(namespace, session_id, [frames.held_from_pb(one) for one in request.tasks])
        results = [
            pb.RenewTasksResult(
                held=one.verdict is Verdict.ACCEPTED, stop=frames.stop_to_pb(one.stop), wake_again=one.wake_again
            )
            for one in answers
        ]
        return pb.RenewTasksResponse(results=results)

    async def CommitTask(self, request: pb.CommitTaskRequest, context: Context) -> pb.CommitTaskResponse:
        held = _one_task(request.frames)
        bodies = [frame.WhichOneof("body") for frame in request.frames]
        if not {*bodies} <= NUMBERED | {"task_ack", "need_state"}:
            raise InvalidField("only frames about a task can be committed", field="frames")
        answered: list[pb.ServerFrame] = []
        namespace, session_id = _session(request)
        reader = await self._reader(namespace)
        numbered = tuple([await reader.read(one) for one in request.frames if one.WhichOneof("body") in NUMBERED])
        if "task_ack" in bodies and not numbered:
            await self._acknowledge(namespace, session_id, held)
        if numbered or "need_state" not in bodies:
            news = await self._calls.commit(namespace, session_id, held, numbered)
            answered.extend(frames.news_to_pb(held, news))
        if "need_state" in bodies:
            offset = next(one.need_state.offset for one in request.frames if one.HasField("need_state"))
            answered.append(next(frames.assignment_to_pb(await self._calls.state(session_id, held, offset))))
        return pb.CommitTaskResponse(frames=answered)

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        page = await self._workers.list(namespace, PageRequest(request.page_size, request.page_token))
        return pb.ListWorkersResponse(workers=map(frames.worker_to_pb, page.items), next_page_token=page.next_token)

    async def _acknowledge(self, namespace: str, session_id: str, held: Held) -> None:
        (answer,) = await self._calls.renew(namespace, session_id, [held])
        if answer.verdict is not Verdict.ACCEPTED:
            raise held.lost()

    async def _reader(self, namespace: str) -> FrameReader:
        return FrameReader(await self._workers.limits_of(namespace), self._terms.policy, self._turns)

    async def _welcome(self, hello: Hello, connection: int, held: Iterable[Held]) -> pb.Welcome:
        replica, terms = self._server.replica, self._terms
        clock = await self._server.clock()
        return pb.Welcome(
            server_version=replica.version,
            protocol_version=min(hello.protocol_version, PROTOCOL[1]),
            replica_id=replica.replica_id,
            connection=connection,
            now=convert.timestamp_to_pb(clock.now),
            virtual_clock=clock.virtual,
            limits=limits_to_pb(await self._workers.limits_of(hello.namespace)),
            lease=convert.duration_to_pb(terms.times.lease),
            heartbeat_interval=convert.duration_to_pb(terms.heartbeat),
            ack_window=convert.duration_to_pb(terms.times.ack_window),
            reconnect_grace=convert.duration_to_pb(terms.times.reconnect_grace),
            max_credit=MOST_CREDIT,
            held=[pb.HeldTask(task_id=one.task_id, fence=one.fence) for one in held],
            default_step_policy=frames.policy_to_pb(terms.policy),
            database_id=replica.deployment.database_id,
        )


@dataclass(slots=True)
class _Stream:
    """One stream, from its welcome to its end."""

    context: Context
    connection: Connection
    workers: Workers
    reader: FrameReader
    turns: Turns
    terms: Terms
    said_goodbye: bool = False
    is_closed: bool = False
    _tokens: float = FRAMES_AT_ONCE
    _filled_at: float = 0.0
    _beat_at: float = 0.0

    async def serve(
        self,
        welcome: pb.Welcome,
        rest: list[pb.WorkerFrame],
        requests: AsyncIterator[pb.ConnectRequest],
        call: Call,
    ) -> None:
        """Answer hello, then read and write until one side has enough."""
        self._beat_at = asyncio.get_running_loop().time()
        await self._write([pb.ServerFrame(welcome=welcome)])
        reading = asyncio.create_task(self._read(rest, requests))
        try:
            async with streams.checked(call):
                while not self.is_closed:
                    await self._write([frame for message in await self._take() for frame in self._to_pb(message)])
                await reading
        finally:
            reading.cancel()

    # ---- out

    async def _take(self) -> list[Message]:
        """Take the messages that are ready, and a heartbeat if the last one is an interval ago."""
        loop, interval = asyncio.get_running_loop(), self.terms.heartbeat / SECOND
        ready: list[Message] = []
        try:
            async with asyncio.timeout_at(self._beat_at + interval):
                ready = await self.connection.take()
        except TimeoutError:
            pass
        if any(isinstance(one, Beat) for one in ready):
            self._beat_at = loop.time()
        elif loop.time() >= self._beat_at + interval:
            self._beat_at = loop.time()
            ready.append(Beat())
        return ready

    def _to_pb(self, message: Message) -> Iterator[pb.ServerFrame]:
        match message:
            case Assignment():
                yield from frames.assignment_to_pb(message)
            case State():
                yield from frames.assignment_to_pb(message.assignment)
            case Told():
                yield from frames.news_to_pb(message.held, message.news)
            case Beat():
                yield pb.ServerFrame(heartbeat=self._beat())
            case Refused():
                yield pb.ServerFrame(refused=convert.item_error_to_pb(message.refusal))
            case Draining():
                deadline = convert.duration_to_pb(round(self.terms.drain_grace * SECOND))
                yield pb.ServerFrame(drain=pb.Drain(deadline=deadline))

    def _beat(self) -> pb.ServerHeartbeat:
        now = self.workers.now()
        return pb.ServerHeartbeat(
            now=convert.timestamp_to_pb(now),
            credit=self.connection.worker.credits,
            heartbeat_number=self.connection.last_beat,
        )

    async def _write(self, ready: list[pb.ServerFrame]) -> None:
        """Write frames, as few messages as their size allows. A worker that does not read is cut off."""
        batch: list[pb.ServerFrame] = []
        size = 0
        for frame in ready:
            frame_size = frame.ByteSize()
            if batch and size + frame_size > PART_BYTES:
                await streams.write(self.context, pb.ConnectResponse(frames=batch))
                batch, size = [], 0
            batch.append(frame)
            size += frame_size
        if batch:
            await streams.write(self.context, pb.ConnectResponse(frames=batch))

    # ---- in

    async def _read(self, rest: list[pb.WorkerFrame], requests: AsyncIterator[pb.ConnectRequest]) -> None:
        """Take frames in until the worker has closed its side or said goodbye. An error here ends the stream."""
        try:
            await self._take_in(rest)
            async for request in requests:
                await self._take_in(request.frames)
                if self.said_goodbye:
                    break
        except StepwellError as error:
            self.connection.stop(error)
            return
        except Exception:
            log.exception("stream_reader_failed")
            self.connection.stop(current.get().broken())
            return
        self.is_closed = True
        self.connection.outbox.ready.set()

    async def _spend(self, count: int) -> None:
        """Hold a worker to the rate of frames that one can have a reason for."""
        now, rate = asyncio.get_running_loop().time(), current.get().tuning.frames_per_second
        if self._filled_at:
            self._tokens = min(FRAMES_AT_ONCE, self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        self._tokens -= count
        if self._tokens < 0:
            with current.get().waiting():
                await asyncio.sleep(TOO_FAST)  # another stream would only begin anew
            raise FrameRate(f"more than {rate} frames a second", limit=rate, retry_after=TOO_FAST)

    def _cost(self, frame: pb.WorkerFrame) -> int:
        """Count a frame: one for each thing that it names, and more for each lease that is not held."""
        body = frame.WhichOneof("body")
        if body == "heartbeat":
            named = map(frames.held_from_pb, frame.heartbeat.held)
            return 1 + sum(1 if self.connection.holds(one) else STRANGE for one in named)
        is_strange = body in _ABOUT_LEASES and not self.connection.holds(Held(frame.task_id, frame.fence))
        return (STRANGE if is_strange else 1) + len(frame.opens)

    async def _take_in(self, incoming: Sequence[pb.WorkerFrame]) -> None:
        """Frames about one task go on together; an acknowledgement beside them is theirs.

        While the worker does not read what it is sent, nothing of what it says is taken in.
        """
        if self.connection.outbox.is_full:
            with current.get().waiting():
                await self.connection.outbox.room()
        if not incoming:
            await self._spend(1)  # a message with nothing in it has a price as well
        reports: dict[Held, list[Frame]] = {}
        arrived: dict[Held, None] = {}
        forgotten: dict[Held, None] = {}
        beats: list[pb.Heartbeat] = []
        for frame in incoming:
            held, body = Held(frame.task_id, frame.fence), frame.WhichOneof("body")
            if body not in NUMBERED:
                await self.reader.check(frame)
            await self._spend(self._cost(frame))
            if body in NUMBERED:
                reports.setdefault(held, []).append(await self.reader.read(frame))
            elif body == "task_ack":
                arrived[held] = None
            elif body == "heartbeat":
                beats.append(frame.heartbeat)
            elif body == "need_state":
                forgotten[held] = None
            elif body == "credit":
                self.connection.grant(frame.credit.tasks)
            elif body == "goodbye":
                self.said_goodbye = True
        for held, read in reports.items():
            arrived.pop(held, None)
            await self.connection.report(held, tuple(read))
        async for held in self.turns.over(arrived, LEASE_COST):
            self.connection.acknowledge(held)
        for held in forgotten:
            await self.connection.need_state(held)
        for beat in beats:
            named = [frames.held_from_pb(one) async for one in self.turns.over(beat.held, LEASE_COST)]
            await self.connection.heartbeat(beat.heartbeat_number, named)


async def _hello(requests: AsyncIterator[pb.ConnectRequest]) -> tuple[pb.Hello, list[pb.WorkerFrame]]:
    """The hello that a stream begins with, and what came in the same message after it."""
    limit = current.get().tuning.hello_timeout
    try:
        async with asyncio.timeout(limit):
            first = await anext(requests, None)
    except TimeoutError:
        raise HelloTimeout(f"no hello came within {limit:.0f} seconds", limit=limit) from None
    if first is None or not first.frames or first.frames[0].WhichOneof("body") != "hello":
        raise HelloRequired("a stream begins with hello")
    validate.standard.check(first.frames[0])
    return first.frames[0].hello, list(first.frames[1:])


def _session(request: pb.ClaimTasksRequest | pb.RenewTasksRequest | pb.CommitTaskRequest) -> tuple[str, str]:
    """The namespace of a request, and what the session is known by that it is made for."""
    namespace = convert.namespace_from_pb(request.namespace)
    return namespace, session_key(namespace, current.get().principal.name, request.session_id)


def _first_pages(assignments: Sequence[Assignment]) -> tuple[list[pb.ServerFrame], list[Assignment]]:
    """The first page of each task, and the tasks that do not fit into the message and have no other page.

    Of a run that does not fit there is a page without anything. The others have the first choice of the room, so that a
    repeated claim brings those again that it brought.
    """
    pages = {one.held: next(frames.assignment_to_pb(one)) for one in assignments}
    room, left_out = PART_BYTES, []
    for one in sorted(assignments, key=lambda one: has_state(pages[one.held].task)):
        page = pages[one.held]
        fits = page.ByteSize() <= room
        if not fits and not has_state(page.task):
            left_out.append(one)
            del pages[one.held]
            continue
        if not fits:
            without_state(page.task)
        room -= page.ByteSize()
    return list(pages.values()), left_out


def _one_task(incoming: Iterable[pb.WorkerFrame]) -> Held:
    held = {Held(one.task_id, one.fence) for one in incoming}
    if len(held) != 1:
        raise InvalidField("a commit has frames about one task", field="frames")
    return held.pop()
