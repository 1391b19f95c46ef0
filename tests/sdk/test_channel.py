"""The channel: what every SDK promises about connecting."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import grpc
import pytest
from grpc import aio

from stepwell import open_channel
from stepwell.channel import pauses
from stepwell.v1 import server_pb2
from stepwell.v1.server_pb2_grpc import (
    ServerServiceServicer,
    ServerServiceStub,
    add_ServerServiceServicer_to_server,
)

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close an RST."""


async def test_a_server_that_is_away_is_looked_for_again_and_again() -> None:
    """gRPC's own pauses grow from one second to two minutes: six attempts would take a quarter of a minute."""
    attempts = 0
    enough = asyncio.Event()

    def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
        if attempts >= 6:
            enough.set()

    nobody = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = nobody.sockets[0].getsockname()[1]
    async with nobody, open_channel(f"127.0.0.1:{port}") as channel:
        async with asyncio.timeout(8):
            while not enough.is_set():
                state = channel.get_state(try_to_connect=True)
                changed = asyncio.ensure_future(channel.wait_for_state_change(state))
                arrived = asyncio.ensure_future(enough.wait())
                await asyncio.wait([changed, arrived], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                arrived.cancel()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_call_that_a_stopping_server_cut_off_is_repeated(code: grpc.StatusCode) -> None:
    calls = 0

    class CutsOffTheFirst(ServerServiceServicer):
        async def GetServerInfo(self, request: Any, context: Any) -> server_pb2.GetServerInfoResponse:  # noqa: N802
            nonlocal calls
            calls += 1
            if calls == 1:
                await context.abort(code)
            return server_pb2.GetServerInfoResponse(version="1")

    server = aio.server()
    add_ServerServiceServicer_to_server(CutsOffTheFirst(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        answer = await ServerServiceStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=10)
    await server.stop(0)

    assert (answer.version, calls) == ("1", 2)


def test_what_is_repeated_one_by_one_is_repeated_as_calls_are() -> None:
    waits = list(pauses())

    assert len(waits) == 4  # after the first of five tries
    for wait, pause in zip(waits, (0.1, 0.3, 0.9, 2), strict=True):
        assert 0.8 * pause <= wait <= 1.2 * pause
