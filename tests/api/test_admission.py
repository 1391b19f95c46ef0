"""One principal among others: how much of the server it can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from pydantic import SecretStr

from stepwell.v1 import server_pb2
from stepwell.v1.server_pb2_grpc import ServerServiceStub
from stepwell_server.api.edge.access import Principal
from stepwell_server.api.edge.admission import DESERTED, Admission, Bounds
from stepwell_server.app import App
from stepwell_server.config import Settings
from stepwell_server.databases import open_database
from stepwell_server.domain.values.errors import RateLimited, ServerBusy, StepwellError, StreamLimit
from tests.support.calls.errors import refusal
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer

POLICY = "tests.api.test_access:ReadersOnly"
WAIT = "/stepwell.v1.WorkflowService/WaitInstance"
CONNECT = "/stepwell.v1.WorkerService/Connect"
WATCH = "/grpc.health.v1.Health/Watch"


class Door:
    """Admission with a clock that the test moves."""

    def __init__(self, **bounds: Any) -> None:
        self.now = 1000.0
        plenty = {"unary_calls": 100, "waiting_calls": 100, "streams": 100, "streams_per_principal": 100}
        rates = {"health_watches": 100, "call_rate": 500.0, "call_burst": 1000, "one_principal": False}
        self.admission = Admission(Bounds(**{**plenty, **rates, **bounds}), lambda: self.now)

    @asynccontextmanager
    async def inside(self, name: str, method: str = WAIT, *, streaming: bool = False, waits: bool = False) -> Any:
        """A call that is let in for as long as it likes, as one that waits if that is said."""
        context = SimpleNamespace(peer=lambda: f"ipv4:{name}:4711")
        call: Any = SimpleNamespace(method=method, streaming=streaming, principal=Principal(name), context=context)
        async with self.admission.layer(call):
            if not waits:
                yield
                return
            with call.waiting_place():
                yield

    async def crowd(self, stack: AsyncExitStack, name: str, **call: Any) -> StepwellError:
        """Let calls of that name in until one is refused."""
        try:
            while True:
                await stack.enter_async_context(self.inside(name, **call))
        except StepwellError as refused:
            return refused

    def calls(self, name: str) -> Callable[[int], Any]:
        """Calls of that name, one after the other."""

        async def call(times: int) -> None:
            for _ in range(times):
                async with self.inside(name):
                    pass

        return call


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


KINDS = [
    ("unary_calls", {}, ServerBusy),
    ("waiting_calls", {"waits": True}, ServerBusy),
    ("streams", {"method": CONNECT, "streaming": True}, StreamLimit),
    ("health_watches", {"method": WATCH, "streaming": True}, StreamLimit),
]


@pytest.mark.parametrize(("bound", "call", "refusal"), KINDS)
async def test_one_principal_has_at_most_half_and_others_the_rest(
    stack: AsyncExitStack, bound: str, call: dict[str, Any], refusal: type[StepwellError]
) -> None:
    door = Door(**{bound: 10})

    refused = await door.crowd(stack, "greedy", **call)
    assert (type(refused), refused.metadata) == (refusal, {"limit": "5"})

    for name in ("b", "c", "d", "e", "f"):
        await stack.enter_async_context(door.inside(name, **call))
    refused = await door.crowd(stack, "g", **call)
    assert (type(refused), refused.metadata) == (refusal, {"limit": "10"})


@pytest.mark.parametrize(("bound", "call", "refusal"), KINDS[:3])
async def test_where_all_are_one_principal_it_may_use_everything(
    stack: AsyncExitStack, bound: str, call: dict[str, Any], refusal: type[StepwellError]
) -> None:
    door = Door(**{bound: 10}, one_principal=True, call_rate=0.001, call_burst=1)

    refused = await door.crowd(stack, "anonymous", **call)

    assert (type(refused), refused.metadata) == (refusal, {"limit": "10"})


async def test_a_place_is_given_back_when_the_call_is_over(stack: AsyncExitStack) -> None:
    door = Door(unary_calls=2, waiting_calls=2)

    for _ in range(3):
        async with door.inside("a", waits=True):
            pass
        async with door.inside("a"):
            assert isinstance(await door.crowd(stack, "a"), ServerBusy)


async def test_a_principal_calls_so_often_a_second_and_more_after_a_rest(stack: AsyncExitStack) -> None:
    door = Door(call_rate=8.0, call_burst=4)
    greedy, other = door.calls("greedy"), door.calls("other")

    await greedy(4)
    with pytest.raises(RateLimited) as refused:
        await greedy(1)
    assert (refused.value.metadata, refused.value.retry_after) == ({"limit": "8.0"}, 0.125)
    await other(4)

    door.now += 0.125
    await greedy(1)
    with pytest.raises(RateLimited):
        await greedy(1)
    door.now += 60
    await greedy(4)
    with pytest.raises(RateLimited):
        await greedy(1)


async def test_refusals_do_not_put_off_the_next_call() -> None:
    door = Door(call_rate=8.0, call_burst=1)
    greedy = door.calls("greedy")
    await greedy(1)

    for _ in range(100):
        with pytest.raises(RateLimited):
            await greedy(1)
    door.now += 0.125

    await greedy(1)


async def test_principals_that_are_gone_are_forgotten() -> None:
    door = Door(call_rate=10.0, call_burst=5)
    for number in range(1000):
        await door.calls(f"visitor-{number}")(1)
    rate = door.admission._rate
    assert rate is not None and len(rate._full_at) == 1000

    door.now += 1
    await door.calls("another")(1)

    assert list(rate._full_at) == ["another"]


async def test_a_caller_is_told_its_rate_and_when_to_come_back(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy=POLICY, call_rate=0.001, call_burst=2)
    stub = ServerServiceStub(server.channel)

    def info(name: str) -> Any:
        return stub.GetServerInfo(server_pb2.GetServerInfoRequest(), metadata=(("authorization", name),))

    await info("me")
    await info("me")
    error = await refusal(info("me"))

    assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED")
    assert error.metadata == {"limit": "0.001"}
    assert await info("you")


async def test_health_refuses_services_that_it_does_not_know(sqlite_server: Served) -> None:
    health = HealthStub(sqlite_server.channel)
    unknown = health_pb2.HealthCheckRequest(service="no such service")
    watch = health.Watch(unknown)

    async with asyncio.timeout(PATIENCE):
        assert (await refusal(health.Check(unknown))).code.name == "NOT_FOUND"
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        assert (await watch.code()).name == "NOT_FOUND"


async def test_there_are_so_many_streams_of_health(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, health_watches=4)
    health = HealthStub(server.channel)
    ready = health_pb2.HealthCheckRequest(service="readiness")
    watches = [health.Watch(ready) for _ in range(2)]
    for one in watches:
        await one.read()

    error = await refusal(health.Watch(ready).read())

    assert (error.code.name, error.reason, error.metadata) == ("RESOURCE_EXHAUSTED", "STREAM_LIMIT", {"limit": "2"})
    assert await health.Check(ready)
    for one in watches:
        one.cancel()


@pytest.mark.parametrize("method", [WAIT, CONNECT, WATCH])
async def test_a_server_is_deserted_when_nobody_was_inside_for_a_minute(method: str) -> None:
    door = Door()
    assert door.admission.is_deserted()

    async with door.inside("a", method, streaming=method != WAIT):
        door.now += DESERTED
        assert not door.admission.is_deserted()
    door.now += DESERTED - 1
    assert not door.admission.is_deserted()

    door.now += 1
    assert door.admission.is_deserted()


@pytest.mark.parametrize(
    ("said", "calls", "seconds"),
    [({}, 0, 0.0), ({}, 1, 5.0), ({"drain_settle": 5}, 0, 5.0), ({"drain_settle": 0}, 1, 0.0)],
    ids=["nobody", "somebody", "nobody, and said", "somebody, and said"],
)
async def test_balancers_get_time_to_look_away_if_it_is_said_or_somebody_is_there(
    sqlite_url: str, said: dict[str, Any], calls: int, seconds: float
) -> None:
    settings = Settings(listen="127.0.0.1:0", ops_listen="127.0.0.1:0", database=SecretStr(sqlite_url), **said)
    app = App(settings, open_database(settings.database_url))
    addresses = await app.start()
    try:
        async with aio.insecure_channel(addresses.listen) as channel:
            for _ in range(calls):
                await ServerServiceStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest())
        assert app.settle_time() == seconds
    finally:
        await app.stop()
