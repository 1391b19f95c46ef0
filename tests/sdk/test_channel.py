"""The channel: what every SDK promises about connecting."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus
from grpc import aio

from stepwell import open_channel
from stepwell.backoff import pauses
from stepwell.tuning import DEFAULT, Tuning
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


class Moody(ServerServiceServicer):
    """Refuses its first calls as it is told to, and answers the next."""

    def __init__(self) -> None:
        self.refusals: list[RpcStatus] = []
        self.calls = 0

    async def GetServerInfo(self, request: Any, context: Any) -> server_pb2.GetServerInfoResponse:  # noqa: N802
        self.calls += 1
        await self._refuse(context)
        return server_pb2.GetServerInfoResponse(version="1")

    async def _refuse(self, context: Any) -> None:
        if self.refusals:
            refusal = self.refusals.pop(0)
            metadata = (("grpc-status-details-bin", refusal.SerializeToString()),)
            code = next(code for code in grpc.StatusCode if code.value[0] == refusal.code)
            await context.abort(code, refusal.message, trailing_metadata=metadata)


def refusal(code: grpc.StatusCode, retry_after: float | None = None) -> RpcStatus:
    status = RpcStatus(code=code.value[0], message="not now")
    if retry_after is not None:
        delay = Duration()
        delay.FromTimedelta(timedelta(seconds=retry_after))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    return status


@pytest.fixture
async def moody() -> AsyncIterator[tuple[Moody, str]]:
    server, servicer = aio.server(), Moody()
    add_ServerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(0)


async def ask(address: str, patience: float | None = None, tuning: Tuning = DEFAULT) -> str:
    async with open_channel(address, patience=patience, tuning=tuning) as channel:
        request = server_pb2.GetServerInfoRequest()
        return (await ServerServiceStub(channel).GetServerInfo(request, timeout=30)).version


def pausing(*seconds: float) -> Tuning:
    return Tuning(pauses=lambda: chain(seconds, repeat(0.0)))


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_call_that_a_stopping_server_cut_off_is_repeated(moody: tuple[Moody, str], code: Any) -> None:
    server, address = moody
    server.refusals = [refusal(code)]

    assert (await ask(address), server.calls) == ("1", 2)


async def test_a_call_is_repeated_as_often_as_its_deadline_allows(moody: tuple[Moody, str]) -> None:
    """gRPC's own retries end after five tries, which is 3.3 seconds."""
    server, address = moody
    server.refusals = [refusal(grpc.StatusCode.UNAVAILABLE)] * 20

    assert (await ask(address, tuning=pausing()), server.calls) == ("1", 21)


async def test_a_call_that_finds_no_server_waits_for_one_and_tells_in_the_end_why_there_was_none(
    unused_tcp_port: int,
) -> None:
    async with open_channel(f"127.0.0.1:{unused_tcp_port}", tuning=pausing()) as channel:
        request = server_pb2.GetServerInfoRequest()
        with pytest.raises(aio.AioRpcError, match="Connection refused") as failed:
            await ServerServiceStub(channel).GetServerInfo(request, timeout=0.1)

    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_comes_back_is_asked_at_once_by_all_calls_that_wait(unused_tcp_port: int) -> None:
    """Not one after the other, when their pauses are over: it may be gone again by then."""
    first_tries = asyncio.Semaphore(0)

    def pauses() -> Iterator[float]:
        yield 0.0
        first_tries.release()
        yield 100.0

    address = f"127.0.0.1:{unused_tcp_port}"
    asked = [asyncio.create_task(ask(address, tuning=Tuning(pauses=pauses))) for _ in range(3)]
    for _ in asked:
        await first_tries.acquire()
    server, servicer = aio.server(), Moody()
    add_ServerServiceServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()

    assert await asyncio.gather(*asked) == ["1"] * 3
    await server.stop(0)


@pytest.mark.parametrize(("pause", "patience"), [(31, None), (3, 2)], ids=["the deadline", "the caller's patience"])
async def test_a_call_is_answered_as_it_is_when_there_is_no_time_for_another_try(
    moody: tuple[Moody, str], pause: float, patience: float | None
) -> None:
    server, address = moody
    server.refusals = [refusal(grpc.StatusCode.UNAVAILABLE)] * 20

    with pytest.raises(aio.AioRpcError) as failed:
        await ask(address, patience, pausing(0, 0, pause))

    assert (failed.value.code(), server.calls) == (grpc.StatusCode.UNAVAILABLE, 3)


@pytest.mark.parametrize(
    ("code", "retry_after", "calls"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 0.001, 2),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 31, 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, None, 1),
        (grpc.StatusCode.ABORTED, 0.001, 1),
    ],
    ids=["a busy server", "busy beyond the deadline", "a limit that waiting does not lift", "lost against another"],
)
async def test_only_a_server_that_says_when_to_come_back_is_asked_again(
    moody: tuple[Moody, str], code: Any, retry_after: float | None, calls: int
) -> None:
    server, address = moody
    server.refusals = [refusal(code, retry_after)]

    try:
        await ask(address, tuning=pausing())
    except aio.AioRpcError as error:
        assert error.code() is code

    assert server.calls == calls


async def test_a_stream_that_ends_is_not_repeated_by_the_channel() -> None:
    calls = 0

    async def ends(_request: Any, context: Any) -> AsyncIterator[bytes]:
        nonlocal calls
        calls += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        yield b""

    server = aio.server()
    method = grpc.unary_stream_rpc_method_handler(ends)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.Service", {"Method": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(aio.AioRpcError, match="gone"):
            await channel.unary_stream("/a.Service/Method")(b"").read()
    await server.stop(0)

    assert calls == 1


async def test_a_call_that_waits_for_a_server_ends_with_its_channel() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        call = ServerServiceStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=30)
        waiting = asyncio.ensure_future(call)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_the_pauses_between_tries_grow_to_two_seconds() -> None:
    for wait, pause in zip(pauses(), (0.1, 0.3, 0.9, 2, 2, 2), strict=False):
        assert 0.8 * pause <= wait <= 1.2 * pause
