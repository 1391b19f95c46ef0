"""A worker in a process of its own, until the harness has no more orders.

python -m bench.drivers.stepwell_worker ADDRESS
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from bench.drivers.orders import announce, next_order
from bench.drivers.stepwell_app import app
from stepwell import Client, Worker, __version__


async def main(address: str) -> None:
    """Serve the workflows of the loads."""
    async with Client(address) as client, Worker(client, app):
        announce(version=__version__)
        await asyncio.to_thread(next_order)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
