"""The wire delays every byte, loses none, and keeps them in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.wire import Wire, distant

DELAY = 0.02


@asynccontextmanager
async def echoing(delay: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through a wire to a server that says everything again and closes when the other side does."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as upstream:
        port = upstream.sockets[0].getsockname()[1]
        accept = Wire(f"127.0.0.1:{port}", delay).accept
        async with await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0) as wire:
            reader, writer = await asyncio.open_connection("127.0.0.1", wire.sockets[0].getsockname()[1])
            yield reader, writer
            writer.close()
            await writer.wait_closed()


async def test_a_round_trip_takes_the_delay_twice() -> None:
    async with echoing(DELAY) as (reader, writer):
        for _ in range(3):
            began = time.perf_counter()
            writer.write(b"ping")
            assert await reader.readexactly(4) == b"ping"
            assert time.perf_counter() - began >= 2 * DELAY


async def test_bytes_arrive_in_order() -> None:
    sent = b"".join(number.to_bytes(4, "big") for number in range(200_000))
    async with echoing(0.001) as (reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent


async def test_without_a_delay_there_is_no_wire() -> None:
    async with distant("postgresql://someone@somewhere/name", 0.0) as url:
        assert url == "postgresql://someone@somewhere/name"
    async with distant("sqlite:///file", 5.0) as url:
        assert url == "sqlite:///file"
