"""A token goes with every call and every stream."""

from __future__ import annotations

import pytest

from stepwell import App, CallFailed, Client, Worker, workflow
from stepwell_server.domain.values.errors import Unauthenticated
from stepwell_server.policy import Caller, Category, Principal
from tests.support.servers.servers import StartServer


class Tokens:
    """A policy that takes two tokens, and remembers which came."""

    seen: set[str] = set()

    async def authenticate(self, caller: Caller) -> Principal:
        """By the token alone."""
        given = str(caller.metadata.get("authorization", ""))
        if given not in ("Bearer one", "Bearer two"):
            raise Unauthenticated("who are you?")
        self.seen.add(given)
        return Principal("somebody")

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        """Everything."""
        return True


@workflow("greet")
async def greet(event, step):
    return await step.do("hello", lambda: "hello")


async def test_calls_and_streams_carry_the_present_token(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy="tests.sdk.test_credentials:Tokens")
    tokens = iter(["one"] + ["two"] * 1000)
    client = Client(server.addresses.listen, token=lambda: next(tokens))
    async with client, Worker(client, App(workflows=[greet])):
        instance = await client.workflow(greet).create()
        assert await instance.result() == "hello"

    assert Tokens.seen == {"Bearer one", "Bearer two"}


@pytest.mark.parametrize("token", [None, "three"])
async def test_another_token_is_refused(start_server: StartServer, sqlite_url: str, token: str | None) -> None:
    server = await start_server(sqlite_url, policy="tests.sdk.test_credentials:Tokens")
    async with Client(server.addresses.listen, token=token) as client:
        with pytest.raises(CallFailed) as refused:
            await client.workflow("greet").create()

    assert refused.value.reason == "UNAUTHENTICATED"
