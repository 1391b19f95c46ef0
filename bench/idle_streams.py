"""What idle streams cost: a server's memory and processor time with thousands of them, and small calls beside them.

python -m bench.idle_streams [STREAMS]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from bench.processes import start_server
from stepwell.v1 import server_pb2
from stepwell.v1.server_pb2_grpc import ServerServiceStub

PER_CHANNEL = 900
REST = 10.0


async def main(streams: int) -> None:
    """Open the streams, rest, measure, and print."""
    limits = ("--limits.streams-per-principal", str(streams), "--log-level", "warning")
    with tempfile.TemporaryDirectory() as folder:
        async with start_server(f"sqlite:///{folder}/stepwell.db", *limits) as server:
            process = server.watched
            before = process.memory_info().rss
            channels, calls = await watch(server.listen, streams)
            held = process.memory_info().rss
            used = process.cpu_times()
            await asyncio.sleep(REST)
            rested = process.cpu_times()
            busy = (rested.user + rested.system - used.user - used.system) / REST
            latencies = await small_calls(server.listen)
            for call in calls:
                call.cancel()
            for channel in channels:
                await channel.close()
    print(f"{streams} idle streams on {len(channels)} connections")
    each = (held - before) / streams / 1024
    print(f"  memory        {before / 2**20:.0f} -> {held / 2**20:.0f} MiB: {each:.1f} KiB each")
    print(f"  processor     {busy:.1%} of a core at rest")
    print(f"  GetServerInfo beside them: p50 {latencies[0]:.1f} ms, p99 {latencies[1]:.1f} ms")


async def watch(listen: str, streams: int) -> tuple[list[aio.Channel], list[aio.UnaryStreamCall]]:
    """Open that many Health.Watch streams and wait until each has its first answer."""
    channels, calls = [], []
    for first in range(0, streams, PER_CHANNEL):
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        channel = aio.insecure_channel(listen, options=options)
        channels.append(channel)
        request = health_pb2.HealthCheckRequest(service="readiness")
        here = [HealthStub(channel).Watch(request) for _ in range(min(PER_CHANNEL, streams - first))]
        await asyncio.gather(*(call.read() for call in here))
        calls += here
    return channels, calls


async def small_calls(listen: str) -> tuple[float, float]:
    """Median and 99th percentile of 1,000 calls one after the other, in milliseconds."""
    times = []
    async with aio.insecure_channel(listen) as channel:
        stub = ServerServiceStub(channel)
        for _ in range(1000):
            began = time.perf_counter()
            await stub.GetServerInfo(server_pb2.GetServerInfoRequest())
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
