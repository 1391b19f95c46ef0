"""The channel: what every SDK promises about connecting."""

from __future__ import annotations

import asyncio
import socket
import struct

from stepwell import open_channel

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
