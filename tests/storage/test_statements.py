"""Statements that travel together: each is as if it had come by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest
from sqlalchemy import BigInteger, Text, make_url, select, text
from sqlalchemy.util import await_only

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.tasks import NewTask, Stop, Task
from stepwell_server.domain.values.errors import Conflict
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.workflows.instances import Event, Step, StepStatus, StepType
from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Database, LostRace, Tx, TxOptions
from stepwell_server.storage.database.statements import Statement, ask, ask_together, write
from stepwell_server.storage.spine import tasks
from stepwell_server.storage.workflows import runs
from stepwell_server.storage.workflows.runs import RunRef, SentEvent
from tests.support.patience import PATIENCE

ORDER = Handler("default", TaskKind.WORKFLOW, "order")
RUN = RunRef(1, 0)
ONCE = TxOptions(attempts=1)


@cache
def _echo_sql(product: str) -> Any:
    given = dialect.rows(product, "echoed", name=Text(), number=BigInteger())
    return select(given.c.name, given.c.number)


def _echo(rows: list[dict[str, Any]]) -> Statement[list[tuple[str, int]]]:
    return Statement(_echo_sql, {"echoed": dialect.as_rows(rows)}, lambda rows: [tuple(row) for row in rows])


def _step(name: str, revision: int) -> Step:
    return Step(name, StepType.DO, StepStatus.COMPLETED, revision, revision, 1, 1, 1, result=Payload("1"))


def _store_task(tx: Tx) -> Task:
    (task,) = tasks.insert(tx, [NewTask(ORDER, "i1", id=RUN.task_id)], tasks.stamp(tx)).values()
    return task


@pytest.mark.parametrize("name", ["it's", "a\\", "\\'; DROP TABLE tasks; --", "$1", "$$", ":calls", "%s", "\n", "日本"])
async def test_what_is_asked_together_is_what_was_given(db: Database, name: str) -> None:
    rows = [{"name": name, "number": 1}, {"name": None, "number": 2**53}]

    def work(tx: Tx) -> tuple[Any, dict[str, Any]]:
        alone = ask(tx, _echo(rows))
        return alone, ask_together(tx, {"one": _echo(rows), "none": _echo([]), "two": _echo(rows[:1])})

    alone, together = await db.run_tx(work)

    assert alone == [(name, 1), (None, 2**53)]
    assert together == {"one": alone, "none": [], "two": alone[:1]}


async def test_a_statement_is_prepared_once_for_each_connection(db: Database) -> None:
    asked = {1: _echo([{"name": "a", "number": 1}]), 2: tasks.STAMPING}
    for _ in range(3):
        assert (await db.run_tx(lambda tx: ask_together(tx, asked)))[1] == [("a", 1)]


async def test_each_sees_what_was_committed_while_the_one_before_waited(two: tuple[Database, Database]) -> None:
    """Rule 1: a look that travels with a lock sees what the lock waited for."""
    here, there = two
    task = await here.run_tx(_store_task)
    is_locked, may_commit = asyncio.Event(), asyncio.Event()

    def change(tx: Tx) -> None:
        tasks.lock(tx, [task.id], waiting=True)
        changed = tasks.saving([task._replace(stop=Stop.PAUSE, run_number=0)])
        write(tx, [changed, runs.saving_steps([(RUN, _step("step1", 1))])])
        is_locked.set()
        await_only(may_commit.wait())

    def look(tx: Tx) -> dict[str, Any]:
        seen: list[tuple[int, Step]] = []
        steps = runs.steps_ahead([(task.id, "step1")], [task.id], seen.extend)
        asked = {"locked": tasks.locking([task.id], waiting=True), "stamp": tasks.STAMPING, "steps": steps}
        return ask_together(tx, asked) | {"steps": seen}

    changing = asyncio.create_task(here.run_tx(change, ONCE))
    await is_locked.wait()
    looking = asyncio.create_task(there.run_tx(look, ONCE))
    await _waits_for_a_lock(here)
    before = (await here.run_tx(tasks.stamp)).now
    may_commit.set()
    await changing
    found = await looking

    assert found["locked"][task.id].stop is Stop.PAUSE
    assert [step.name for _, step in found["steps"]] == ["step1"]
    assert found["stamp"].now >= before


async def test_what_is_written_together_is_lost_together(db: Database) -> None:
    """An event whose request id another transaction took: nothing of the rest is stored."""
    task = await db.run_tx(_store_task)
    event = SentEvent(RUN, "default", Event(1, "paid", None, 1), "r1")
    again = SentEvent(RUN, "default", Event(2, "paid", None, 1), "r1")
    await db.run_tx(lambda tx: write(tx, [runs.inserting_events([event])]))

    def work(tx: Tx) -> None:
        steps = runs.saving_steps([(RUN, _step("step1", 1))])
        with pytest.raises(LostRace):
            write(tx, [steps, runs.inserting_events([again]), tasks.saving([task])])
        raise LostRace

    with pytest.raises(Conflict):
        await db.run_tx(work, ONCE)
    assert (await db.run_tx(lambda tx: runs.all_steps(tx, [RUN])))[RUN] == []


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[Database, Database]]:
    """Two replicas' databases, on one PostgreSQL."""
    here, there = (open_database(make_url(postgres_url)) for _ in range(2))
    yield here, there
    await here.close()
    await there.close()


async def _waits_for_a_lock(db: Database) -> None:
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    waiting = text(f"{mine} AND wait_event_type = 'Lock'")
    async with asyncio.timeout(PATIENCE):
        while not await db.run_tx(lambda tx: tx.execute(waiting).scalar_one()):
            await asyncio.sleep(0)
