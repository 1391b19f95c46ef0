"""`stepwell dispatcher` and `stepwell wake`, against a server that says what a test wants."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from stepwell.v1 import dispatchers_pb2 as pb
from tests.sdk.fake_server import FakeServer, fake_server
from tests.support.patience import PATIENCE
from tests.support.servers.commands import start_command, stepwell, stepwell_process

PROGRAM = """
from stepwell import App, workflow


@workflow("order")
async def order(event, step):
    return await step.do("pay", lambda: 42)


app = App(workflows=[order])
"""


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


# stepwell dispatcher


@pytest.mark.parametrize("mode", [(), ("--mode", "poll", "--interval", "50ms")], ids=["stream", "poll"])
async def test_a_dispatcher_has_due_work_handed_out_until_it_is_told_to_stop(
    server: FakeServer, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    fake = server.dispatchers
    async with start_command("dispatcher", *mode, server=server.address, cwd=tmp_path) as sidecar:
        await sidecar.says(f"has what is due handed out, in default at {server.address}")
        assert fake.passes() == 0

        fake.handed_out = 1
        for passes in (1, 2, 3):
            fake.change(0)
            await until(lambda passes=passes: fake.passes() == passes)

        assert await sidecar.stop(signal.SIGTERM) == 0
        await sidecar.says("dispatcher has stopped")
        assert fake.passes() == 3


async def test_a_dispatcher_looks_at_what_it_was_told_to(server: FakeServer, tmp_path: Path) -> None:
    choice = ("--kind", "workflow", "--name", "a", "--name", "b", "-n", "billing")
    bounds = ("--max-tasks", "7", "--max-steps", "3")
    server.dispatchers.change(0)
    server.dispatchers.handed_out = 1
    async with start_command("dispatcher", *choice, *bounds, server=server.address, cwd=tmp_path):
        await until(server.dispatchers.passes)

    for request in server.dispatchers.requests:
        assert request.namespace == "billing"
        assert (request.filter.names, len(request.filter.kinds)) == (["a", "b"], 1)
    [asked] = [request for request in server.dispatchers.requests if isinstance(request, pb.ProcessRequest)]
    assert (asked.max_tasks, asked.max_steps) == (7, 3)


async def test_a_dispatcher_waits_for_its_server_and_outlives_it(tmp_path: Path) -> None:
    async with fake_server() as first:
        address = first.address
    async with start_command("dispatcher", server=address, cwd=tmp_path) as sidecar:
        await sidecar.says(f"no server answers at {address} yet: waiting for it")
        for times, said in enumerate(("there", "back"), start=1):
            async with fake_server(address) as served:
                await sidecar.says(f"the server at {address} is {said}")
                served.dispatchers.handed_out = 1
                served.dispatchers.change(0)
                await until(served.dispatchers.passes)
            await sidecar.says(f"the server at {address} is away: waiting for it", times)
        assert await sidecar.stop() == 0


async def test_a_dispatcher_that_is_refused_says_why_and_ends(server: FakeServer) -> None:
    server.dispatchers.refuses = grpc.StatusCode.PERMISSION_DENIED

    code, _, err = await stepwell_process("dispatcher", server=server.address)

    assert (code, err) == (1, "stepwell: not now (PERMISSION_DENIED)\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--wake-url", "ftp://x"), "must be http://HOST"),
        (("--wake-url", "http://x", "--app", "a"), "choose one"),
        (("--interval", "0s"), "more than nothing"),
        (("--kind", "cron"), "must be one of workflow"),
        (("--mode", "guess"), "'stream', 'poll'"),
        (("--app", "nowhere"), "there is no module nowhere"),
    ],
)
async def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...], why: str, tmp_path: Path) -> None:
    code, _, err = await stepwell("dispatcher", *arguments, server="127.0.0.1:1", cwd=tmp_path)

    assert code == 2
    assert why in err


# --wake-url


@dataclass
class Service:
    """A service that can be woken by HTTP, and answers as a test wants."""

    url: str = ""
    status: str = "202 Accepted"
    bodies: list[Any] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split()[0])
        assert head.startswith("post /wake ") and "content-type: application/json" in head
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {self.status}\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n".encode())
        writer.close()


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    it = Service()
    listening = await asyncio.start_server(it.answer, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/wake"
    async with listening:
        yield it


async def test_due_work_without_a_worker_is_posted_until_it_has_one(server: FakeServer, tmp_path: Path) -> None:
    fake = server.dispatchers
    async with (
        service() as woken,
        start_command("dispatcher", "--wake-url", woken.url, server=server.address, cwd=tmp_path) as sidecar,
    ):
        await sidecar.says("posts to")
        await until(lambda: fake.streams)
        fake.change(60)
        fake.change(-1, "order", "refund")
        await until(lambda: woken.bodies)
        [body] = woken.bodies
        assert (body["namespace"], body["names"]) == ("default", ["order", "refund"])
        assert body["unserved"][0] == {"kind": "workflow", "name": "order", "due_at": fake.now.isoformat()}

        await until(lambda: len(woken.bodies) == 2)  # it is still due, and still has no worker
        fake.change(-1)  # it has one
        fake.requests.clear()
        await until(lambda: any(isinstance(request, pb.GetNextWakeRequest) for request in fake.requests))
        assert (len(woken.bodies), fake.passes()) == (2, 0)
        assert await sidecar.stop() == 0


@pytest.mark.parametrize("status", ["503 Service Unavailable", "302 Found"])
async def test_a_post_that_is_not_accepted_is_told_and_made_again(
    server: FakeServer, tmp_path: Path, status: str
) -> None:
    server.dispatchers.change(0, "order")
    async with (
        service() as woken,
        start_command("dispatcher", "--wake-url", woken.url, server=server.address, cwd=tmp_path) as sidecar,
    ):
        woken.status = status
        await sidecar.says(f"dispatch_failed: {woken.url} answered {status[:3]}")
        woken.status = "204 No Content"
        await sidecar.says("posted status=204")


async def test_a_service_that_is_not_there_is_told_and_tried_again(server: FakeServer, tmp_path: Path) -> None:
    server.dispatchers.change(0, "order")
    url = "http://127.0.0.1:1/wake"
    async with start_command("dispatcher", "--wake-url", url, server=server.address, cwd=tmp_path) as sidecar:
        await sidecar.says(f"dispatch_failed: {url} cannot be reached: ")
        await until(lambda: len([line for line in sidecar.lines if "cannot be reached" in line]) == 2)


# --app


async def test_an_app_is_hosted_while_there_is_work_for_it(server: FakeServer, folder: Path) -> None:
    fake = server.dispatchers
    arguments = ("--app", "program:app", "--idle", "300ms")
    async with start_command("dispatcher", *arguments, server=server.address, cwd=folder) as sidecar:
        await sidecar.says("hosts order while that has no other worker")
        await until(lambda: fake.streams)
        assert server.workers.all_streams == []
        assert fake.requests[0].filter.names == ["order"]

        for begun in (1, 2):  # it comes when it is needed, each time
            fake.change(0, "order")
            worker = await asyncio.wait_for(server.workers.streams.get(), 20)
            assert len(server.workers.all_streams) == begun
            await until(fake.passes)  # for a server that hands nothing out by itself
            fake.change(None)
            worker.give("order", begun)
            assert (await worker.until("finish")).finish.output.json == "42"
            await worker.until("goodbye")

        assert await sidecar.stop() == 0


async def test_a_hosting_dispatcher_that_is_told_to_stop_lets_its_worker_leave(
    server: FakeServer, folder: Path
) -> None:
    arguments = ("--app", "program:app", "--idle", "1 hour")
    server.dispatchers.change(0, "order")
    async with start_command("dispatcher", *arguments, server=server.address, cwd=folder) as sidecar:
        worker = await asyncio.wait_for(server.workers.streams.get(), 20)
        await sidecar.says("hosting")
        assert await sidecar.stop() == 0
        await worker.until("goodbye")


# stepwell wake


async def test_wake_next_shows_when_and_what_has_no_worker(server: FakeServer) -> None:
    fake = server.dispatchers
    code, out, _ = await stepwell("wake", "next", server=server.address)
    assert code == 0
    assert "none: nothing waits" in out and "1 of replica r1" in out

    fake.change(90)
    _, out, _ = await stepwell("wake", "next", server=server.address)
    assert "in 1 min 30 s, at " in out

    fake.change(0, "order")
    _, out, _ = await stepwell("wake", "next", "--kind", "workflow", "--name", "order", server=server.address)
    assert "now: due since " in out and "workflow order, due since " in out
    assert fake.requests[-1].filter.names == ["order"]

    _, out, _ = await stepwell("wake", "next", "--json", server=server.address)
    answer = json.loads(out)
    assert answer["next_wake"]["wake_at"] == answer["now"]
    assert answer["next_wake"]["unserved"][0]["name"] == "order"


@pytest.mark.parametrize("as_json", [False, True])
async def test_wake_stream_prints_a_line_per_change(server: FakeServer, tmp_path: Path, as_json: bool) -> None:
    fake = server.dispatchers
    options = ("--json",) if as_json else ()
    async with start_command("wake", "stream", *options, server=server.address, cwd=tmp_path) as stream:
        await until(lambda: len(stream.lines) == 1)
        fake.tell()  # a keepalive
        fake.change(90, "order")
        await until(lambda: len(stream.lines) == 2)
        fake.cut()  # another replica goes on
        await until(lambda: fake.streams)
        fake.change(None)
        await until(lambda: len(stream.lines) == 3)
        assert await stream.stop(signal.SIGINT) == 130

    if as_json:
        assert [json.loads(line)["next_wake"]["number"] for line in stream.lines] == ["1", "2", "3"]
    else:
        assert "in 1 min 30 s, at " in stream.lines[1] and "; no worker for workflow order" in stream.lines[1]
        assert "none: nothing waits" in stream.lines[2]


async def test_wake_stream_says_that_its_server_is_away_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as first:
        address = (await first.enter_async_context(fake_server())).address
        async with start_command("wake", "stream", server=address, cwd=tmp_path) as stream:
            await stream.says("none: nothing waits")
            await first.aclose()
            await stream.says(f"the server at {address} is away: waiting for it")
            async with fake_server(address) as second:
                await stream.says(f"the server at {address} is back")
                await until(lambda: second.dispatchers.streams)
                second.dispatchers.change(90)
                await stream.says("in 1 min 30 s, at ")
                assert await stream.stop(signal.SIGINT) == 130


async def test_wake_stream_ends_if_there_is_no_server() -> None:
    code, _, err = await stepwell_process("wake", "stream", server="127.0.0.1:1")

    assert code == 1
    assert "no server answers at 127.0.0.1:1" in err.splitlines()[-1]
