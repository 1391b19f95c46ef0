"""What one tenant feels of another that floods the server: the latency of its creates, first alone and then beside it.

The flood is one session of another namespace that sends acknowledgements and heartbeats of leases it does not hold,
creates instances in batches and opens watches, all as fast as it can. Server, flood and caller are processes of their
own, on this machine.

python -m bench.fairness [--seconds N] [--flood ack heartbeat create watch]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from grpc import aio

from bench.processes import start_server
from stepwell.v1 import frames_pb2, namespaces_pb2, workers_pb2, workflows_pb2
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell.v1.workers_pb2_grpc import WorkerServiceStub
from stepwell.v1.workflows_pb2_grpc import WorkflowServiceStub
from stepwell_server.policy import AllowAll, Caller, Principal

CALM, FLOOD = "calm", "flood"
KINDS = ("ack", "heartbeat", "create", "watch")
FRAMES = 1000
"""Acknowledgements in a message, and leases in a heartbeat."""
BATCH = 100
CREATORS = 16
WATCHERS = 4


class ByName(AllowAll):
    """A policy that believes callers who they say they are."""

    async def authenticate(self, caller: Caller) -> Principal:
        """Whoever it says."""
        return Principal(str(caller.metadata.get("authorization", "nobody")))


def metadata(name: str) -> tuple[tuple[str, str], ...]:
    """How a tenant says who it is."""
    return (("authorization", name),)


# ---- the tenant that minds its own business


async def main(options: argparse.Namespace) -> None:
    """Measure alone, then beside the flood, and print both."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    policy = ("--policy", "bench.fairness:ByName", "--insecure", "--log-level", "error")
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/stepwell.db"
        async with start_server(database, *policy) as server, aio.insecure_channel(server.listen) as channel:
            for name in (CALM, FLOOD):
                await settle(channel, name)
            await creates(channel, 1.0)
            show("alone", alone := await creates(channel, options.seconds))
            async with flooding(server.listen, options):
                beside = await creates(channel, options.seconds)
            show("beside the flood", beside)
    print(f"p99 beside the flood is {percentile(beside[0]) / percentile(alone[0]):.1f} times that alone")


async def settle(channel: aio.Channel, name: str) -> None:
    """Make a tenant's namespace, with a workflow in it."""
    await NamespaceServiceStub(channel).CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name=name))
    request = workers_pb2.RegisterHandlersRequest(hello=hello(name))
    await WorkerServiceStub(channel).RegisterHandlers(request, metadata=metadata(name))


def hello(name: str) -> frames_pb2.Hello:
    """How a worker of a tenant introduces itself."""
    order = frames_pb2.Handler(kind=frames_pb2.HANDLER_KIND_WORKFLOW, name="order")
    return frames_pb2.Hello(
        worker_id=name, session_id=uuid4().hex, protocol_version=1, namespace=name, handlers=[order]
    )


async def creates(channel: aio.Channel, seconds: float) -> tuple[list[float], Counter[str]]:
    """Create one instance after the other: the seconds that each took, and the refusals."""
    stub, request = WorkflowServiceStub(channel), workflows_pb2.CreateInstanceRequest(namespace=CALM, workflow="order")
    took: list[float] = []
    refused: Counter[str] = Counter()
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        try:
            await stub.CreateInstance(request, metadata=metadata(CALM))
            took.append(time.perf_counter() - began)
        except aio.AioRpcError as error:
            refused[error.code().name] += 1
    return took, refused


def percentile(seconds: list[float], number: int = 99) -> float:
    """A percentile, in milliseconds."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[number - 1] * 1000


def show(what: str, measured: tuple[list[float], Counter[str]]) -> None:
    """Print what a tenant felt."""
    took, refused = measured
    figures = f"p50 {percentile(took, 50):.1f} ms, p99 {percentile(took):.1f} ms, longest {max(took) * 1000:.1f} ms"
    print(f"  {what:<17} {len(took)} creates, {refused.total()} refused {dict(refused) or ''}: {figures}", flush=True)


# ---- the flood


@asynccontextmanager
async def flooding(listen: str, options: argparse.Namespace) -> AsyncIterator[None]:
    """The flood, in a process of its own that has begun."""
    arguments = ("-m", "bench.fairness", "--listen", listen, "--seconds", str(options.seconds + 1))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--flood", *options.flood, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    yield
    print((await process.stdout.read()).decode(), end="")
    await process.wait()


async def flood(options: argparse.Namespace) -> None:
    """Do all of it at once, as fast as it goes."""
    loads: dict[str, tuple[int, Callable[[aio.Channel, Counter[str]], Awaitable[None]]]] = {
        "ack": (1, flood_acks),
        "heartbeat": (1, flood_heartbeats),
        "create": (CREATORS, flood_creates),
        "watch": (WATCHERS, flood_watches),
    }
    done: Counter[str] = Counter()
    async with aio.insecure_channel(options.listen) as channel:
        chosen = [loads[kind] for kind in options.flood]
        flows = [again(load, channel, done) for count, load in chosen for _ in range(count)]
        print("flooding", flush=True)
        try:
            async with asyncio.timeout(options.seconds):
                await asyncio.gather(*flows)
        except TimeoutError:
            pass
        finally:
            print(f"  the flood: {dict(done)}", flush=True)


async def again(
    load: Callable[[aio.Channel, Counter[str]], Awaitable[None]], channel: aio.Channel, done: Counter[str]
) -> None:
    """Do it again whenever it is refused."""
    while True:
        try:
            await load(channel, done)
        except aio.AioRpcError as error:
            done[f"refused {why(error)}"] += 1


def why(error: aio.AioRpcError) -> str:
    """The code of a refusal. gRPC loses that of a stream which ends while a message is written (grpc/grpc#36066)."""
    return "while writing" if error.details() == "Internal error from Core" else error.code().name


async def flood_acks(channel: aio.Channel, done: Counter[str]) -> None:
    """Acknowledge what was never sent."""
    acks = [
        frames_pb2.WorkerFrame(task_id=number, fence=number, task_ack=frames_pb2.TaskAck())
        for number in range(1, FRAMES + 1)
    ]
    await flood_stream(channel, acks, done, "acks", FRAMES)


async def flood_heartbeats(channel: aio.Channel, done: Counter[str]) -> None:
    """Renew what is not held."""
    held = [frames_pb2.HeldTask(task_id=number, fence=number) for number in range(1, FRAMES + 1)]
    beat = frames_pb2.Heartbeat(held=held, heartbeat_number=1)
    await flood_stream(channel, [frames_pb2.WorkerFrame(heartbeat=beat)], done, "leases in heartbeats", FRAMES)


async def flood_stream(
    channel: aio.Channel, frames: list[frames_pb2.WorkerFrame], done: Counter[str], what: str, count: int
) -> None:
    """Write the same message until the stream is ended, and read what comes."""
    stream = WorkerServiceStub(channel).Connect(metadata=metadata(FLOOD))
    await stream.write(workers_pb2.ConnectRequest(frames=[frames_pb2.WorkerFrame(hello=hello(FLOOD))]))
    reading = asyncio.create_task(read_all(stream))
    message = workers_pb2.ConnectRequest(frames=frames)
    try:
        while not reading.done():
            await stream.write(message)
            done[what] += count
        await reading
    except asyncio.InvalidStateError:  # it was ended meanwhile
        await reading
    finally:
        reading.cancel()
        stream.cancel()


async def read_all(stream: aio.StreamStreamCall[workers_pb2.ConnectRequest, workers_pb2.ConnectResponse]) -> None:
    """Read until the stream ends."""
    while await stream.read() is not aio.EOF:
        pass


async def flood_creates(channel: aio.Channel, done: Counter[str]) -> None:
    """Create instances, a batch at a time."""
    stub = WorkflowServiceStub(channel)
    items = [workflows_pb2.CreateInstancesItem(workflow="order")] * BATCH
    request = workflows_pb2.CreateInstancesRequest(namespace=FLOOD, items=items)
    while True:
        answer = await stub.CreateInstances(request, metadata=metadata(FLOOD))
        done["creates"] += sum(one.HasField("instance") for one in answer.results)
        done["creates refused"] += sum(one.HasField("error") for one in answer.results)


async def flood_watches(channel: aio.Channel, done: Counter[str]) -> None:
    """Open a watch, hear its first word, and leave it."""
    targets = [
        workflows_pb2.WatchTarget(namespace=FLOOD, workflow="order", instance_id=str(number)) for number in range(BATCH)
    ]
    while True:
        stream = WorkflowServiceStub(channel).WatchInstances(metadata=metadata(FLOOD))
        await stream.write(workflows_pb2.WatchInstancesRequest(add=targets))
        await stream.read()
        stream.cancel()
        done["watches"] += 1


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="of each measurement (default 10)")
    parser.add_argument("--flood", nargs="+", choices=KINDS, default=KINDS, help="of what (default: of everything)")
    parser.add_argument("--listen", metavar="HOST:PORT", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    chosen = parse()
    asyncio.run(flood(chosen) if chosen.listen else main(chosen))
