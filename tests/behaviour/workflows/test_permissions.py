"""What a policy forbids does not happen, and forbids nothing else. It does not depend on the database."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import App, Instance, workflow
from stepwell.testing import Harness
from tests.support.servers.servers import start_in_process
from tests.support.workers.workflows import refused


@workflow("waiter")
async def waiter(event, step):
    return (await step.wait_for_event("wait", type="go")).payload


async def contents(h: Harness) -> list[Any]:
    """All that is stored of all instances."""
    found = [one async for one in h.client.workflow(waiter).list()]
    return [(one, await Instance(h.client, "waiter", one.id).history()) for one in found]


@pytest.mark.parametrize(
    ("policy", "forbidden"),
    [
        ("NobodyManages", {"pause", "resume", "terminate", "restart"}),
        ("NobodySends", {"send_event"}),
        ("NobodyCreates", {"create"}),
    ],
)
async def test_a_forbidden_call_fails_and_stores_nothing(sqlite_url: str, policy: str, forbidden: set[str]) -> None:
    """Behaviours 90, 91."""
    app = App(workflows=[waiter])
    async with (
        start_in_process(sqlite_url, virtual_clock=True) as served,
        Harness(app, address=served.addresses.listen) as h,
    ):
        await h.start(waiter, id="there")

    async with (
        start_in_process(sqlite_url, virtual_clock=True, policy=f"tests.support.servers.policies:{policy}") as served,
        Harness(app, address=served.addresses.listen) as h,
    ):
        there = await h.client.workflow(waiter).get("there")
        calls = {name: getattr(there, name) for name in ("pause", "resume", "restart", "terminate")}
        calls |= {"create": h.client.workflow(waiter).create, "send_event": lambda: there.send_event("other")}
        await h.run_until_idle()
        before = await contents(h)
        for name in forbidden:
            assert await refused(calls[name]()) == "PERMISSION_DENIED"
        await h.run_until_idle()
        assert await contents(h) == before

        for name in ("pause", "resume", "restart", "send_event", "create", "terminate"):
            if name not in forbidden:
                await calls[name]()
