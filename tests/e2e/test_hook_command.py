"""`stepwell hook`, as a person types it, against a server with a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import App, Client, Worker, hook
from tests.e2e.test_workflow_command import Typed
from tests.support.patience import PATIENCE
from tests.support.servers.commands import stepwell_process
from tests.support.servers.servers import Served

LATER = "2999-01-01T00:00:00Z"


@hook("note")
async def note(payload: Any) -> None:
    """Takes a note."""
    if payload.get("fails"):
        raise ValueError("it \x1b[31mis\x1b[0m broken")


@pytest.fixture
async def typed(sqlite_server: Served) -> AsyncIterator[Typed]:
    address = sqlite_server.addresses.listen
    async with Client(address) as client, Worker(client, App(hooks=[note]), worker_id="the-worker"):
        yield Typed(address, client)


async def ended(typed: Typed, id: str) -> Any:
    """The hook as JSON, when it has ended."""
    async with asyncio.timeout(PATIENCE):
        while not (shown := await typed.json("hook", "get", id)).get("ended_at"):
            pass
    return shown


async def test_hooks_are_triggered_from_json_of_any_source(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"n": 2}')

    in_a_process = await stepwell_process(
        "hook", "trigger", "note", "--id", "a", "-p", '{"n": 1}', server=typed.address
    )
    assert in_a_process == (0, "triggered note a\n", "")
    assert await typed("hook", "trigger", "note", "--id", "b", "-p", f"@{file}") == "triggered note b\n"
    assert await typed("hook", "trigger", "note", "--id", "c", "-p", "-", stdin='{"n": 3}') == "triggered note c\n"

    shown = [await ended(typed, id) for id in "abc"]
    assert [one["payload"] for one in shown] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert {one["status"] for one in shown} == {"HOOK_STATUS_COMPLETED"}


async def test_a_hook_is_shown_with_how_its_executions_went(typed: Typed) -> None:
    await typed("hook", "trigger", "note", "--id", "bad", "-p", '{"fails": true}', "--max-attempts", "1")
    told = await ended(typed, "bad")
    shown = await typed("hook", "get", "bad")

    assert (told["attempts"], told["retry"]["max_attempts"]) == (1, 1)
    for line in ("note bad", "failed", "1 of 1", told["idempotency_key"], r"ValueError: it \x1b[31mis\x1b[0m broken"):
        assert line in shown
    listed = await typed("hook", "list", "note", "--status", "failed")
    assert "bad  note  failed  1 of 1" in listed and "ValueError" in listed


async def test_a_hook_can_wait_be_cancelled_and_be_retried(typed: Typed) -> None:
    await typed("hook", "trigger", "note", "--id", "late", "--at", LATER, "--delay", "5s")
    listed = await typed("hook", "list", "--status", "pending")
    assert "late  note  pending  0 of 5" in listed and "not before 2999-01-01 00:00:00" in listed

    assert await typed("hook", "cancel", "late") == "note late is cancelled\n"
    refused = await typed("hook", "cancel", "late", code=1)
    assert "HOOK_ENDED" in refused
    assert (await typed("hook", "retry", "late")).startswith("note late is ")
    assert (await ended(typed, "late"))["status"] == "HOOK_STATUS_COMPLETED"


async def test_lists_are_filtered_and_cut(typed: Typed) -> None:
    for id in ("one", "two", "three"):
        await typed("hook", "trigger", "later", "--id", id, "--at", LATER)

    async def ids(*filters: str) -> list[str]:
        return [one["hook_id"] for one in (await typed.json("hook", "list", *filters))["hooks"]]

    assert await ids("later") == ["three", "two", "one"]
    assert await ids("later", "--limit", "2") == ["three", "two"]
    assert await ids("later", "--status", "completed", "--status", "failed") == []
    assert await ids("none") == []


async def test_refusals_are_one_line(typed: Typed) -> None:
    await typed("hook", "trigger", "note", "--id", "taken", "--at", LATER)

    assert "HOOK_ID_ALREADY_EXISTS" in await typed("hook", "trigger", "note", "--id", "taken", code=1)
    assert "HOOK_NOT_FOUND" in await typed("hook", "get", "nobody", code=1)
    assert "INVALID_HOOK_NAME" in await typed("hook", "trigger", "workflow.completed", code=1)
    assert "time zone" in await typed("hook", "trigger", "note", "--at", "2999-01-01T00:00:00", code=2)
    assert "an instant such as" in await typed("hook", "trigger", "note", "--at", "tomorrow", code=2)
    assert "must be one of pending" in await typed("hook", "list", "--status", "done", code=2)


async def test_workers_show_their_hooks(typed: Typed) -> None:
    shown = await typed("workers")
    header, row = shown.splitlines()

    assert "hooks" in header and "the-worker" in row
    assert row[header.index("hooks") :].startswith("note")


async def test_webhooks_are_off_unless_the_server_says_otherwise(typed: Typed) -> None:
    refused = await typed("hook", "target", "put", "note", "https://example.com/in", code=1)

    assert "WEBHOOKS_DISABLED" in refused
    assert json.loads(await typed("hook", "target", "list", "--json"))["targets"] == []
    assert "HOOK_TARGET_NOT_FOUND" in await typed("hook", "target", "delete", "note", code=1)
