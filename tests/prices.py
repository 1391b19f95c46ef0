# ruff: noqa: T201  it talks to a person
"""The price of a message: how long the largest one that gRPC lets in keeps others waiting, and what it costs in memory.

Every field that can repeat and every payload of every request is sent to a server process: more of it than may be, up
to 4 MiB, and as much of it as all limits allow. The stall is the longest wait of a health check on another connection
meanwhile. Beside it stands the longest wait of as many health checks when nothing else is sent, which is the noise of
the machine. The memory is the growth of the process beyond that of a server which reads the message, parses it and
drops it. All figures are medians of some rounds, and large blocks go back to the system at once in both processes.

python -m tests.prices [--rounds N] [--only WORD] [--database sqlite|postgresql]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path as File
from statistics import median
from typing import Any

import grpc
import psutil
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from bench.databases import start_postgres, start_sqlite
from stepwell.v1 import frames_pb2, workers_pb2, workflows_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell_server.api.edge.listeners import OPTIONS
from tests.support.calls import raw
from tests.support.calls.requests import (
    LARGEST,
    METHODS,
    SESSION,
    Path,
    elements,
    full,
    hello,
    message,
    name_of,
    payloads,
    repeated,
    with_payload,
)
from tests.support.servers.servers import start_process

PAYLOAD = 1024 * 1024
MOST_STALL = 50.0
MOST_GROWTH = 2.0
"""Times the message."""
LARGE = 32 * 1024
"""Messages with fewer bytes have no memory to speak of."""
QUIET = 0.1
"""Seconds of health checks alone."""
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
"""Large blocks of their own, and nothing kept: what grew in an earlier round grows again."""
TEXTS = {
    "brackets": "[" + "[]," * (PAYLOAD // 3 - 1) + "0]",
    "quotes": "[" + '"\\' * (PAYLOAD // 2 - 1),
    "strings": "[" + '"",' * (PAYLOAD // 3 - 1) + "0]",
    "spaces": "[" + " " * (PAYLOAD - 2) + "]",
    "text": '"' + "x" * (PAYLOAD - 2) + '"',
    "text with a wide character": '"' + "x" * (PAYLOAD - 8) + '\U0001f600"',
    "one number": "9" * PAYLOAD,
}
Lease = frames_pb2.HeldTask


@dataclass(frozen=True)
class Case:
    """A message to send, and where to. Each round has one of its own, made for a lease and by a number."""

    name: str
    method: Any
    make: Callable[[Lease, int], bytes]


@dataclass
class Beside:
    """Health checks on a connection of their own, one after the other."""

    target: str
    longest: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Beside:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with grpc.insecure_channel(self.target) as channel:
            stub = HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest())
            while not self._over.is_set():
                began = time.perf_counter()
                stub.Check(health_pb2.HealthCheckRequest())
                self.longest = max(self.longest, (time.perf_counter() - began) * 1000)


# ---- messages


def cases() -> Iterator[Case]:
    """All messages."""
    for method in METHODS:
        kind = method.input_type
        for path in repeated(kind):
            name = name_of(kind, path)
            yield Case(f"{name}, too many", method, _too_many(path))
            yield Case(f"{name}, most", method, _most(method, path, least=False))
            yield Case(f"{name}, most of the least", method, _most(method, path, least=True))
        for path in payloads(kind):
            name = name_of(kind, path)
            for title, text in TEXTS.items():
                yield Case(f"{name} of {title}", method, _payload(kind, path, text))
            yield Case(f"{name} of bytes", method, _payload(kind, path, b"\xff" * PAYLOAD))
            yield Case(f"{name}, too large", method, _payload(kind, path, '"' + "x" * LARGEST, 1))
            if path[0].is_repeated:
                yield Case(f"{name}, many", method, _payload(kind, path, TEXTS["brackets"][:40_000][:-1] + "0]", 100))
    other = next(one for one in METHODS if one.name == "ListInstances")
    yield Case("unknown fields, too many", other, lambda *_: raw.string_field(999, b"") * (LARGEST // 3))
    yield Case("unknown fields, most", other, lambda *_: raw.string_field(999, b"\x00" * 13) * 249_000)
    yield Case("a long name", other, lambda *_: raw.string_field(2, b"x" * LARGEST))


def _too_many(path: Path) -> Callable[[Lease, int], bytes]:
    most = LARGEST * 250_000 // len(elements(path[-1], 250_000))
    return lambda lease, number: message(path, most)


def _most(method: Any, path: Path, *, least: bool) -> Callable[[Lease, int], bytes]:
    def make(lease: Lease, number: int) -> bytes:
        whole = full(method.input_type, path, least=least, number=number)
        for one in whole.frames if path[0].name == "frames" else ():
            one.task_id, one.fence, one.number = lease.task_id, lease.fence, one.number - number + 1
        if method.name == "Connect" and "hello" not in {one.name for one in path}:
            whole.frames[0].CopyFrom(frames_pb2.WorkerFrame(hello=hello(lease)))
        return bytes(whole.SerializeToString())

    return make


def _payload(kind: Any, path: Path, content: str | bytes, times: int = 3) -> Callable[[Lease, int], bytes]:
    """A message with the payload, as often as it can be there."""
    times = times if any(one.is_repeated for one in path) else 1
    return lambda lease, number: bytes(with_payload(kind, path, content, times, lease, number).SerializeToString())


# ---- servers


@asynccontextmanager
async def drop_all() -> AsyncIterator[tuple[str, psutil.Process]]:
    """A server that parses every message and drops it."""
    command = (sys.executable, "-m", "tests.prices", "--drop")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=os.environ | MEMORY | {"PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), psutil.Process(process.pid)
    finally:
        process.kill()
        await process.wait()


class Drop(grpc.GenericRpcHandler):
    """Parses and drops."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of any method."""
        name = str(details.method).rpartition("/")[2]  # type: ignore[attr-defined]
        parse = GetMessageClass(next(one for one in METHODS if one.name == name).input_type).FromString

        async def drop(requests: AsyncIterator[bytes], context: Any) -> bytes:
            async for one in requests:
                parse(one)
            return b""

        return grpc.stream_unary_rpc_method_handler(drop)


async def _serve_drop() -> None:
    server = aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Drop(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


# ---- the walk


def send(channel: grpc.Channel, method: Any, body: bytes) -> str:
    """Send the message and wait for the answer, or for the first one; its code."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    shape = "stream" if method.client_streaming else "unary"
    answer = "stream" if method.server_streaming else "unary"
    call = getattr(channel, f"{shape}_{answer}")(path, request_serializer=None, response_deserializer=None)
    given = iter([body]) if method.client_streaming else body
    try:
        answered = call(given, timeout=20)
        if answer == "stream":
            for _ in answered:
                if not method.client_streaming:
                    answered.cancel()
                    break
    except grpc.RpcError as error:
        return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def growth(process: psutil.Process, act: Callable[[], Any]) -> tuple[int, Any]:
    """How many bytes the process grew by meanwhile, at most, and what was done."""
    File(f"/proc/{process.pid}/clear_refs").write_text("5")  # forget the highest memory so far
    before = process.memory_info().rss
    done = act()
    status = File(f"/proc/{process.pid}/status").read_text()
    highest = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return max(0, highest - before), done


@dataclass
class Walk:
    """All that is measured, against a server and against one that drops everything."""

    target: str
    channel: grpc.Channel
    process: psutil.Process
    dropper: grpc.Channel
    drop_process: psutil.Process
    number: int = 0

    def prepare(self) -> None:
        """Register a worker, and create what the messages are about."""
        self._register()
        self._create("one")

    def _register(self) -> None:
        WorkerServiceStub(self.channel).RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello()))

    def _create(self, instance_id: str) -> None:
        request = workflows_pb2.CreateInstanceRequest(workflow="order", instance_id=instance_id)
        WorkflowServiceStub(self.channel).CreateInstance(request)

    def lease(self) -> Lease:
        """A task of its own for this round."""
        self._register()
        self._create(f"lease{self.number}")
        request = workers_pb2.ClaimTasksRequest(session_id=SESSION, max_tasks=1)
        found = WorkerServiceStub(self.channel).ClaimTasks(request).frames
        return Lease(task_id=found[0].task_id, fence=found[0].fence) if found else Lease(task_id=1, fence=1)

    def measure(self, case: Case) -> tuple[float, float, float, int, str]:
        """The stall and the noise in milliseconds, the growth as a multiple of the message, its bytes and the code."""
        self.number += 1
        needs_lease = case.method.name in ("Connect", "CommitTask")
        body = case.make(self.lease() if needs_lease else Lease(), self.number * 1_000_000)
        with Beside(self.target) as alone:
            time.sleep(QUIET)
        with Beside(self.target) as beside:
            grown, code = growth(self.process, lambda: send(self.channel, case.method, body))
        base, _ = growth(self.drop_process, lambda: send(self.dropper, case.method, body))
        times = (grown - base) / len(body) if len(body) > LARGE else 0.0
        return beside.longest, alone.longest, times, len(body), code


def walk(measured: Walk, rounds: int, only: str) -> None:
    """Measure every message, and print."""
    measured.prepare()
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"load {load} on {os.cpu_count()} cores")
    print(f"{'message':84} {'bytes':>8} {'stall ms':>8} {'noise ms':>8} {'memory':>7}  answer")
    stalls, memory, noise, over = [0.0], [0.0], [0.0], 0
    for case in cases():
        if only not in case.name:
            continue
        found = [measured.measure(case) for _ in range(rounds)]
        stall, alone, times = (median(one[place] for one in found) for place in range(3))
        stalls, memory, noise = [*stalls, stall], [*memory, times], [*noise, alone]
        mark = ("  TOO LONG" if stall > MOST_STALL else "") + ("  TOO MUCH" if times > MOST_GROWTH else "")
        over += bool(mark)
        size, code = found[-1][3:]
        print(f"{case.name:84} {size:8} {stall:8.1f} {alone:8.1f} {times:6.1f}x  {code}{mark}", flush=True)
    print(f"longest stall {max(stalls):.1f} ms, longest noise {max(noise):.1f} ms, most memory {max(memory):.1f} times")
    print(f"over the limits: {over} of {len(stalls) - 1}; load {', '.join(f'{one:.1f}' for one in os.getloadavg())}")


async def main(rounds: int, only: str, database: str) -> None:
    """Start both servers, and walk."""
    start = {"sqlite": start_sqlite, "postgresql": start_postgres}[database]
    with start() as source, source.fresh() as url:
        async with start_process(url, "--log-level", "error", **MEMORY) as server, drop_all() as (drop, drop_process):
            process = psutil.Process(server.process.pid)
            with grpc.insecure_channel(server.listen, UNLIMITED) as one, grpc.insecure_channel(drop, UNLIMITED) as two:
                measured = Walk(server.listen, one, process, two, drop_process)
                await asyncio.to_thread(walk, measured, rounds, only)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--drop", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    asyncio.run(_serve_drop() if given.drop else main(given.rounds, given.only, given.database))
