"""The test kit for authors of workflows: a real server whose clock stands still until a test moves it.

    from stepwell.testing import Harness

    async def test_an_order_waits_a_day_for_its_approval():
        async with Harness(app) as h:
            order = await h.start(Order, OrderParams(sku=7))
            await h.advance("24 hours")
            assert (await order.status()).status == "errored"

Each `Harness(app)` starts a server of its own, which takes about a second. For many tests start one `VirtualServer` per
session and join it: `Harness(app, address=server.address, namespace=...)`, with a namespace per test.
"""

from stepwell.testing.harness import Harness, StillBusy
from stepwell.testing.servers import ServerDidNotStart, VirtualServer

__all__ = ["Harness", "ServerDidNotStart", "StillBusy", "VirtualServer"]
