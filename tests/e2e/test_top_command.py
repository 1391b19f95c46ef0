"""`stepwell top`: against a real server, and against a listener that says what a test wants."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell import App, Client, Worker, workflow
from stepwell.cli import metrics
from tests.support.servers.commands import PROGRAM, start_program, stepwell
from tests.support.servers.servers import Served

PAGE = """\
# HELP stepwell_stage_seconds Time.
# TYPE stepwell_stage_seconds histogram
stepwell_stage_seconds_bucket{{le="0.1",stage="lock"}} {short}.0
stepwell_stage_seconds_bucket{{le="0.5",stage="lock"}} {count}.0
stepwell_stage_seconds_bucket{{le="+Inf",stage="lock"}} {count}.0
stepwell_stage_seconds_count{{stage="lock"}} {count}.0
stepwell_stage_seconds_sum{{stage="lock"}} {sum}
# TYPE stepwell_claimed_total counter
stepwell_claimed_total{{kind="workflow"}} {count}.0
stepwell_claimed_total{{kind="hook"}} 0.0
# TYPE stepwell_claimed_created gauge
stepwell_claimed_created{{kind="workflow"}} 1.7e+09
# TYPE stepwell_rpc_in_flight gauge
stepwell_rpc_in_flight{{shape="unary"}} 3.0
# TYPE process_open_fds gauge
process_open_fds 12.0
"""


def page(short: int, count: int, sum: float) -> str:
    """What a server says that has seen so many values, so many of them short."""
    return PAGE.format(short=short, count=count, sum=sum)


@workflow("order")
async def order(event: Any, step: Any) -> int:
    return int(await step.do("pay", lambda: 42))


async def run_orders(server: Served, count: int) -> None:
    async with Client(server.addresses.listen) as client, Worker(client, App(workflows=[order])):
        for instance in [await client.workflow(order).create() for _ in range(count)]:
            assert await instance.result() == 42


@asynccontextmanager
async def listener(*pages: str, port: int = 0) -> AsyncIterator[str]:
    """An ops listener that serves these pages in turn, and the last one for ever. Gives its address."""
    left = list(pages)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = (left.pop(0) if len(left) > 1 else left[0]).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        await server.wait_closed()


# ---- once


async def test_a_table_shows_what_has_happened_since_the_server_began(sqlite_server: Served) -> None:
    await run_orders(sqlite_server, 3)

    code, out, err = await stepwell("top", "--once", "--ops", sqlite_server.addresses.ops_listen)

    title, columns, *rows = out.splitlines()
    assert (code, err) == (0, "")
    assert title == f"Server with the ops listener {sqlite_server.addresses.ops_listen}, since it began"
    assert columns.split() == ["metric", "of", "value", "per", "second", "mean", "p50", "p99"]
    shown = {tuple(row.split()[:3]) for row in rows}
    assert {
        ("claimed_total", "kind=workflow", "3"),
        ("rpc_in_flight", "shape=unary", "0"),
        ("database_up", "1"),
    } <= shown
    assert {row[1] for row in shown if row[0] == "stage_seconds"} >= {"stage=inbox", "stage=lock", "stage=deliver"}
    assert not [row for row in rows if "kind=hook" in row], "what never happened is left out"


async def test_json_has_every_series_that_the_listener_serves(sqlite_server: Served) -> None:
    await run_orders(sqlite_server, 3)

    code, out, err = await stepwell("top", "--once", "--json", "--ops", sqlite_server.addresses.ops_listen)

    told = json.loads(out)
    found = {(one["name"], *one["labels"].values()): one for one in told["metrics"]}
    claimed, lock = found["stepwell_claimed_total", "workflow"], found["stepwell_stage_seconds", "lock"]
    assert (code, err, told["ops"], told["seconds"]) == (0, "", sqlite_server.addresses.ops_listen, None)
    assert (claimed["type"], claimed["value"], claimed["per_second"], claimed["mean"]) == ("counter", 3, None, None)
    assert lock["value"] == found["stepwell_group_calls", "hot"]["value"] > 0
    assert 0 < lock["p50"] <= lock["p99"] and lock["mean"] > 0
    assert found["stepwell_claimed_total", "hook"]["value"] == 0
    served = {one.name for one in sqlite_server.app.metrics.registry.collect() if one.name.startswith("stepwell_")}
    unlabelled = {"stepwell_database_faults"}  # has no series before the first fault
    assert {name.removesuffix("_total") for name, *_ in found} == served - unlabelled


@pytest.mark.parametrize("others", [(), ("--json",), ("--once",)])
async def test_where_no_ops_listener_is_one_line_says_so(sqlite_server: Served, others: tuple[str, ...]) -> None:
    api = sqlite_server.addresses.listen

    nobody = await stepwell("top", "--ops", "127.0.0.1:1", *others)
    another = await stepwell("top", "--ops", api, *others)

    assert nobody == (1, "", "stepwell: no ops listener answers at 127.0.0.1:1: Connection refused\n")
    assert another == (1, "", f"stepwell: what answers at {api} is not the ops listener of a Stepwell server\n")


async def test_another_page_of_metrics_is_not_taken_for_ours() -> None:
    async with listener("# TYPE go_threads gauge\ngo_threads 7\n") as address:
        code, _, err = await stepwell("top", "--once", "--ops", address)

    assert (code, err) == (1, f"stepwell: what answers at {address} is not the ops listener of a Stepwell server\n")


# ---- live


async def test_it_goes_on_by_intervals_and_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    command = (*PROGRAM, "top", "--json", "--interval", "50ms", "--ops")
    async with AsyncExitStack() as first, AsyncExitStack() as whole:
        address = await first.enter_async_context(listener(page(1, 2, 0.5), page(1, 5, 1.7)))
        shown = await whole.enter_async_context(start_program(*command, address, cwd=tmp_path))
        await shown.says('"seconds"', times=3)
        await first.aclose()
        await shown.says("waiting for it")
        await whole.enter_async_context(listener(page(1, 1, 0.1), port=int(address.rpartition(":")[2])))
        await shown.says('"value": 1.0')  # which it counts from the beginning
        assert await shown.stop(signal.SIGINT) == 130

    looks = [json.loads(line) for line in shown.lines if line.startswith("{")]
    locks, claimed = ([look["metrics"][number] for look in looks] for number in (0, 1))
    assert [one["value"] for one in locks[:3]] == [2, 3, 0]
    assert [one["mean"] for one in locks[:3]] == [0.25, pytest.approx(0.4), None]
    assert claimed[1]["per_second"] == pytest.approx(3 / looks[1]["seconds"])
    assert sum("waiting for it" in line for line in shown.lines) == 1


async def test_a_terminal_shows_the_same_rows_in_every_interval(tmp_path: Path) -> None:
    async with listener(page(1, 2, 0.5), page(1, 5, 1.7)) as address:
        command = (*PROGRAM, "top", "--interval", "50ms", "--ops", address)
        async with start_program(*command, cwd=tmp_path) as shown:
            await shown.says("claimed_total", times=3)
            assert await shown.stop(signal.SIGINT) == 130

    titles = [line for line in shown.lines if line.startswith("Server with the ops listener")]
    locks = [line.split() for line in shown.lines if line.startswith("stage_seconds")]
    assert [title.rpartition(", ")[2].split()[0] for title in titles[:3]] == ["since", "in", "in"]
    assert [row[2] for row in locks[:3]] == ["2", "3", "0"]
    assert locks[0][3:] == ["250.0", "ms", "100.0", "ms", "492.0", "ms"]


# ---- reading


def test_quantiles_are_read_off_the_buckets() -> None:
    [lock, *_] = metrics.read(page(2, 4, 1.0)).since(None)

    assert (lock.quantile(0.25), lock.quantile(0.5), lock.mean()) == (0.05, 0.1, 0.25)
    assert lock.quantile(0.75) == pytest.approx(0.3)


def test_what_lies_above_the_last_bound_is_as_large_as_that_at_least() -> None:
    text = page(0, 4, 9.0).replace('le="0.5",stage="lock"} 4.0', 'le="0.5",stage="lock"} 1.0')

    [lock, *_] = metrics.read(text).since(None)

    assert lock.quantile(0.99) == 0.5


def test_only_our_series_are_read_and_gauges_stay_as_they_stand() -> None:
    look, before = metrics.read(page(1, 5, 1.0)), metrics.read(page(1, 2, 0.5))

    assert [name for name, _ in look.series] == [
        "stepwell_stage_seconds",
        "stepwell_claimed_total",
        "stepwell_claimed_total",
        "stepwell_rpc_in_flight",
    ]
    assert [one.value for one in look.since(before)] == [3, 3, 0, 3]
