"""Tells a person at the terminal when the server that a command follows goes away, and when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpc import ChannelConnectivity

from stepwell.cli import printing
from stepwell.client.client import Client


@asynccontextmanager
async def told(client: Client) -> AsyncIterator[None]:
    """Say on standard error, for as long as this lasts, that the server is away or back; a line per change."""
    telling = asyncio.create_task(_tell(client))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait({telling})


async def _tell(client: Client) -> None:
    address, was_there, is_away = client.address, False, False
    while True:
        state = client.channel.get_state(try_to_connect=True)
        if state is ChannelConnectivity.READY:
            if is_away:
                printing.print_note(f"the server at {address} is {'back' if was_there else 'there'}")
            was_there, is_away = True, False
        elif state is ChannelConnectivity.TRANSIENT_FAILURE and not is_away:
            no_server = f"the server at {address} is away" if was_there else f"no server answers at {address} yet"
            printing.print_note(f"{no_server}: waiting for it")
            is_away = True
        await client.channel.wait_for_state_change(state)
