"""`stepwell workflow` and `stepwell workers`, as a person types them, against a server with a worker."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import App, Client, Worker, WorkflowEvent, WorkflowStep, workflow
from stepwell.v1 import workflows_pb2 as pb
from tests.sdk.fake_server import fake_server
from tests.support.servers.commands import start_command, stepwell
from tests.support.servers.servers import Served


@workflow("order")
async def order(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
    """Doubles, if allowed to."""
    doubled = await step.do("double", lambda: event.payload.get("n", 1) * 2)
    approval = await step.wait_for_event("await approval", type="approval", timeout="1 hour")
    return {"doubled": doubled, "approved": approval.payload}


@workflow("broken")
async def broken(event: WorkflowEvent[Any], step: WorkflowStep) -> None:
    raise ValueError("it \x1b[31mis\x1b[0m broken")


class Typed:
    """What is typed at one server."""

    def __init__(self, address: str, client: Client) -> None:
        self.address = address
        self.client = client

    async def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """What a command prints: on standard output if all is well, else on standard error."""
        found, out, err = await stepwell(*arguments, server=self.address, stdin=stdin)
        assert found == code, (found, out, err)
        return err if code else out

    async def json(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        return json.loads(await self(*arguments, "--json"))

    async def waiting(self, id: str, **params: Any) -> None:
        """An order that waits for its approval."""
        created = await self.client.workflow("order").create(id=id, params=params, labels={"who": id})
        async for change in created.watch():
            if change.instance.status == "waiting":
                return


@pytest.fixture
async def typed(sqlite_server: Served) -> AsyncIterator[Typed]:
    address = sqlite_server.addresses.listen
    app = App(workflows=[order, broken])
    async with Client(address) as client, Worker(client, app, worker_id="the-worker"):
        yield Typed(address, client)


async def test_workflows_and_workers_are_listed(typed: Typed) -> None:
    shown = await typed("workflow", "list")
    assert "order     1        Doubles, if allowed to." in shown

    listed = await typed.json("workflow", "list")
    assert [one["name"] for one in listed["workflows"]] == ["broken", "order"]

    shown = await typed("workers")
    assert "the-worker" in shown and "order broken" in shown
    [worker] = (await typed.json("workers"))["workers"]
    assert worker["worker_id"] == "the-worker"


async def test_instances_are_created_from_json_of_any_source(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text('{"n": 2}')

    assert await typed("workflow", "create", "order", "--id", "a", "-p", '{"n": 1}') == "created order a\n"
    assert await typed("workflow", "create", "order", "--id", "b", "-p", f"@{file}") == "created order b\n"
    assert await typed("workflow", "create", "order", "--id", "c", "-p", "-", stdin='{"n": 3}') == "created order c\n"

    params = [(await typed.json("workflow", "get", "order", id))["params"] for id in "abc"]
    assert params == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_instances_are_listed_by_status_and_label(typed: Typed) -> None:
    await typed("workflow", "create", "order", "--id", "labelled", "-l", "who=me", "-l", "what=x=y")
    for id in ("second", "third"):
        await typed.waiting(id)
    await typed("workflow", "terminate", "order", "third")

    async def ids(*filters: str) -> list[str]:
        listed = await typed.json("workflow", "list", "order", *filters)
        return [one["instance_id"] for one in listed["instances"]]

    assert await ids() == ["third", "second", "labelled"]
    assert await ids("--status", "terminated") == ["third"]
    assert await ids("--status", "waiting", "--status", "terminated", "-l", "who=second") == ["second"]
    assert await ids("--label", "what=x=y", "--label", "who=me") == ["labelled"]
    assert await ids("--limit", "1") == ["third"]

    code, out, err = await stepwell("workflow", "list", "order", "--limit", "2", server=typed.address)
    assert (code, err) == (0, "there are more: raise --limit\n")
    assert "third" in out and "labelled" not in out


async def test_create_can_wait_and_its_exit_code_says_how_it_ended(typed: Typed, tmp_path: Path) -> None:
    late = await typed("workflow", "create", "order", "--id", "late", "--wait", "10ms", code=1)
    assert late == "stepwell: order late has not ended within 10 ms\n"

    failed = await stepwell("workflow", "create", "broken", "--wait", "30s", server=typed.address)
    assert failed[0] == 1
    assert failed[1].startswith("created broken ")
    assert r"ValueError: it \x1b[31mis\x1b[0m broken" in failed[1]

    arguments = ("workflow", "create", "order", "--id", "good", "--wait", "30s", "--json")
    async with start_command(*arguments, server=typed.address, cwd=tmp_path) as waiting:
        await waiting.says("stepwell: created order good")
        await typed("workflow", "send-event", "order", "good", "approval")
        assert await asyncio.wait_for(waiting.process.wait(), 30) == 0
    assert json.loads("".join(waiting.lines[1:]))["output"] == {"doubled": 2, "approved": None}


async def test_an_instance_is_steered(typed: Typed) -> None:
    await typed.waiting("it", n=4)

    assert await typed("workflow", "pause", "order", "it") == "order it is paused\n"
    sent = await typed("workflow", "send-event", "order", "it", "approval", "-p", "true")
    assert sent == "sent approval to order it\n"
    assert (await typed("workflow", "resume", "order", "it")).startswith("order it is ")
    instance = await typed.client.workflow("order").get("it")
    assert await instance.result(timeout="10 seconds") == {"doubled": 8, "approved": True}

    again = await typed("workflow", "restart", "order", "it", "--from-step", "await approval")
    assert again.endswith("(run 1)\n")
    assert await typed("workflow", "terminate", "order", "it") == "order it is terminated (run 1)\n"
    assert await typed("workflow", "terminate", "order", "it", code=1) == (
        "stepwell: the instance has ended (INSTANCE_TERMINAL: instance_id=it, status=terminated)\n"
    )


async def test_get_and_history_show_everything(typed: Typed) -> None:
    await typed.waiting("it", n=4)
    shown = await typed("workflow", "history", "order", "it")
    assert "await approval  waiting" in shown and "for approval, until 2" in shown

    await typed("workflow", "send-event", "order", "it", "approval", "-p", '{"by": "Ada"}')
    await (await typed.client.workflow("order").get("it")).result(timeout="10 seconds")

    shown = await typed("workflow", "get", "order", "it")
    assert "complete" in shown and "who=it" in shown and '"by": "Ada"' in shown

    shown = await typed("workflow", "history", "order", "it")
    assert "order it, run 0" in shown
    assert "double          completed  1 of 6    8" in shown
    assert 'by await approval  {"by": "Ada"}' in shown

    history = await typed.json("workflow", "history", "order", "it", "--run", "0")
    results = [entry["step"]["result"] for entry in history["entries"] if "step" in entry]
    assert results == [8, {"by": "Ada"}]
    assert await typed("workflow", "history", "order", "it", "--run", "7", code=1) == (
        "stepwell: the instance has no such run (RUN_NOT_FOUND: instance_id=it, run_number=7)\n"
    )


async def test_a_long_id_stays_on_the_line_of_its_title(typed: Typed) -> None:
    long = "i" * 100
    await typed("workflow", "create", "broken", "--id", long, "--wait", "20s", code=1)

    assert f"broken {long}\n" in await typed("workflow", "get", "broken", long)
    assert await typed("workflow", "history", "broken", long) == (
        f"broken {long}, run 0\nat    what  name  status  attempts\nnone\n"
    )


async def test_watch_follows_an_instance_to_its_end(typed: Typed, tmp_path: Path) -> None:
    await typed.waiting("it", n=4)
    async with start_command("workflow", "watch", "order", "it", server=typed.address, cwd=tmp_path) as watching:
        await watching.says("order it is waiting")
        await (await typed.client.workflow("order").get("it")).send_event("approval", "yes")
        await watching.says('order it is complete: {"doubled":8,"approved":"yes"}')
        assert await asyncio.wait_for(watching.process.wait(), 10) == 0
    assert any("do 'double' completed  8" in line for line in watching.lines)

    newest = (await typed("workflow", "watch", "order", "it", "--json")).splitlines()[-1]
    assert json.loads(newest)["instance"]["output"] == {"doubled": 8, "approved": "yes"}


async def test_watch_ends_with_ctrl_c(typed: Typed, tmp_path: Path) -> None:
    await typed.waiting("it")
    async with start_command("workflow", "watch", "order", "it", server=typed.address, cwd=tmp_path) as watching:
        await watching.says("order it is waiting")
        assert await watching.stop(signal.SIGINT) == 130
    assert not any("Traceback" in line for line in watching.lines)


async def test_watch_says_that_the_server_is_away_and_back(tmp_path: Path) -> None:
    async with fake_server() as first:
        address = first.address
    async with start_command("workflow", "watch", "order", "it", "--json", server=address, cwd=tmp_path) as watching:
        for said in ("away: waiting for it", "back"):
            async with fake_server(address) as served:
                running = pb.Instance(workflow="order", instance_id="it", status=pb.INSTANCE_STATUS_RUNNING)
                served.workflows.instances["it"] = running
                await served.workflows.until_watched(1)
            await watching.says(f"the server at {address} is {said}")


async def test_refusals_are_one_line(typed: Typed) -> None:
    assert await typed("workflow", "create", "nothing", code=1) == (
        "stepwell: no worker has registered this workflow (WORKFLOW_NOT_FOUND: workflow=nothing)\n"
    )
    for verb in ("get", "history", "watch", "pause", "resume", "terminate", "restart"):
        refused = await typed("workflow", verb, "order", "nothing", code=1)
        named = "INSTANCE_NOT_FOUND: instance_id=nothing, workflow=order"
        assert refused == f"stepwell: there is no such instance ({named})\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("create", "order", "-p", "{'n': 1}"), "not JSON"),
        (("create", "order", "-p", "[NaN]"), "NaN is not a JSON value"),
        (("create", "order", "-p", "@nowhere.json"), "nowhere.json: No such file or directory"),
        (("create", "order", "--wait", "30"), "a duration is a number and a unit"),
        (("create", "order", "-l", "who"), "must be KEY=VALUE"),
        (("list", "order", "--status", "done"), "must be one of queued, running"),
        (("list", "--status", "queued"), "name one"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_anybody_is_asked(arguments: tuple[str, ...], why: str) -> None:
    code, _, err = await stepwell("workflow", *arguments)

    assert code == 2
    assert why in err
