"""The price of a message: how long the largest one that gRPC lets in keeps others waiting, and what it costs in memory.

Every field that can repeat and every payload of every request, each filled up to 4 MiB, is sent to a server process.
The stall is the longest wait of a health check on another connection meanwhile, the least of some rounds, as other work
of the machine only adds to it.

python -m bench.prices [--rounds N] [--only WORD]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import grpc
import psutil
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from stepwell.v1 import workers_pb2
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from tests.support import raw
from tests.support.requests import METHODS, Path, elements, message, name_of, repeated
from tests.support.servers import start_process

LARGEST = 4 * 1024 * 1024 - 64 * 1024
PAYLOAD = 1024 * 1024
MOST_STALL = 50.0
SESSION = "0123456789abcdef" * 2
PAYLOADS = {
    "brackets": "[" + "[]," * (PAYLOAD // 3 - 1) + "0]",
    "quotes": "[" + '"\\' * (PAYLOAD // 2 - 1),
    "text": '"' + "x" * (PAYLOAD - 2) + '"',
}
NAMES = {"workflow": "order", "instance_id": "one", "type": "go", "name": "note", "session_id": SESSION}


@dataclass(frozen=True)
class Case:
    """A message to send, and where to."""

    name: str
    method: Any
    body: bytes


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
                self.longest = max(self.longest, time.perf_counter() - began)


def cases() -> Iterator[Case]:
    """All messages."""
    for method in METHODS:
        kind = method.input_type
        for path in repeated(kind):
            most = LARGEST * 250_000 // len(elements(path[-1], 250_000))
            yield Case(name_of(kind, path), method, message(path, most))
        for path in payloads(kind):
            for title, text in PAYLOADS.items():
                yield Case(f"{name_of(kind, path)} of {title}", method, with_payload(kind, path, text))
    any_method = next(one for one in METHODS if one.name == "ListInstances")
    yield Case("unknown fields", any_method, raw.string_field(999, b"") * (LARGEST // 3))


def payloads(kind: Any, path: Path = ()) -> Iterator[Path]:
    """The ways to every payload."""
    for one in kind.fields:
        inner = one.message_type
        if inner is not None and inner.full_name == "stepwell.v1.Payload":
            yield (*path, one)
        elif inner is not None and not inner.GetOptions().map_entry:
            yield from payloads(inner, (*path, one))


def with_payload(kind: Any, path: Path, text: str) -> bytes:
    """A message with the payload, as often as it can be there."""
    whole: Any = GetMessageClass(kind)()
    if kind.name == "ConnectRequest":
        whole.frames.add(hello=hello())
    for number in range(3 if any(one.is_repeated for one in path) else 1):
        inside = _named(whole)
        for one in path:
            inside = getattr(inside, one.name).add() if one.is_repeated else getattr(inside, one.name)
            inside = _named(inside, number + 1)
        inside.json = text
    return bytes(whole.SerializeToString())


def _named(part: Any, number: int = 0) -> Any:
    fields = part.DESCRIPTOR.fields_by_name
    for name, text in NAMES.items():
        if name in fields:
            setattr(part, name, text)
    for name in ("task_id", "fence", "number"):
        if number and name in fields:
            setattr(part, name, number if name == "number" else 1)
    return part


def hello() -> workers_pb2.Hello:
    """A worker that hosts what the messages name."""
    hosted = [workers_pb2.Handler(kind=workers_pb2.HANDLER_KIND_WORKFLOW, name="order")]
    return workers_pb2.Hello(worker_id="bench", session_id=SESSION, protocol_version=1, handlers=hosted)


def send(channel: grpc.Channel, case: Case) -> str:
    """Send the message and wait for the answer; its code."""
    path = f"/{case.method.containing_service.full_name}/{case.method.name}"
    shape = "stream" if case.method.client_streaming else "unary"
    answer = "stream" if case.method.server_streaming else "unary"
    call = getattr(channel, f"{shape}_{answer}")(path, request_serializer=None, response_deserializer=None)
    given = iter([case.body]) if case.method.client_streaming else case.body
    try:
        answered = call(given, timeout=20)
        if answer == "stream":
            for _ in answered:
                pass
    except grpc.RpcError as error:
        return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def measure(case: Case, channel: grpc.Channel, target: str, process: psutil.Process) -> tuple[float, int, str]:
    """The stall in milliseconds, the growth in bytes, and the code."""
    File(f"/proc/{process.pid}/clear_refs").write_text("5")  # forget the highest memory so far
    before = process.memory_info().rss
    with Beside(target) as beside:
        code = send(channel, case)
    status = File(f"/proc/{process.pid}/status").read_text()
    highest = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return beside.longest * 1000, max(0, highest - before), code


async def main(rounds: int, only: str) -> None:
    """Measure every message, and print."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with tempfile.TemporaryDirectory() as folder:
        async with start_process(f"sqlite:///{folder}/prices.db") as server:
            target, process = server.listen, psutil.Process(server.process.pid)
            with grpc.insecure_channel(target, options) as channel:
                WorkerServiceStub(channel).RegisterHandlers(workers_pb2.RegisterHandlersRequest(hello=hello()))
                with Beside(target) as beside:
                    await asyncio.sleep(2)
                print(f"at rest: {beside.longest * 1000:.1f} ms")
                await asyncio.to_thread(_walk, channel, target, process, rounds, only)


def _walk(channel: grpc.Channel, target: str, process: psutil.Process, rounds: int, only: str) -> None:
    print(f"{'message':88} {'bytes':>8} {'stall ms':>8} {'growth':>7}  answer")
    worst = 0.0
    for case in cases():
        if only not in case.name:
            continue
        measured = [measure(case, channel, target, process) for _ in range(rounds)]
        stall, growth = min(one[0] for one in measured), min(one[1] for one in measured)
        worst = max(worst, stall)
        mark = "  TOO LONG" if stall > MOST_STALL else ""
        factor = growth / len(case.body)
        print(f"{case.name:88} {len(case.body):8} {stall:8.1f} {factor:6.1f}x  {measured[-1][2]}{mark}", flush=True)
    print(f"longest stall: {worst:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.only))
