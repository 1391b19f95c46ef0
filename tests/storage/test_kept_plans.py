"""Plans that PostgreSQL keeps: one made while next to nothing was stored still serves a hundred thousand rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from sqlalchemy import make_url, text

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.births import Wanted
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.workflows.instances import (
    InstanceKey,
    InstanceStatus,
    NewInstance,
    Step,
    StepStatus,
    StepType,
)
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.spine import handlers
from stepwell_server.storage.workflows import express
from stepwell_server.storage.workflows.express import Report, Written
from stepwell_server.storage.workflows.instances import End
from tests.support.databases.plans import Plan, explain_prepared, nodes, statements
from tests.support.databases.postgres import PostgresServer
from tests.support.databases.storage_calls import CALLS, FIRST, IMAGE, NOTE, ORDER, crowd, functions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CROWD = 100_000
T = TypeVar("T")
MOST_ROWS = 1000
"""That a statement may look at which asks for a few."""
FILLED = (
    *("handlers", "tasks", "hooks", "requests"),
    *("workflow_instances", "workflow_labels", "workflow_steps", "workflow_events"),
)


def test_every_function_of_the_floor_is_planned() -> None:
    assert {one.__qualname__ for one in functions() if one not in CALLS} == set()
    assert {one.__qualname__ for one in CALLS if one not in [*functions()]} == set()


@pytest.mark.parametrize("analyzed", [False, True], ids=["unknown", "analyzed"])
@pytest.mark.parametrize("rows", [0, 1, 3, 10])
async def test_a_plan_made_of_next_to_nothing_serves_a_hundred_thousand(
    postgres: PostgresServer, rows: int, analyzed: bool
) -> None:
    async with at_rest(postgres.create_database(), rows, analyzed=analyzed) as db:
        made = await db.run_tx(lambda tx: {one for call in CALLS.values() for one, _ in asked(tx, call)})
        await db.run_unhurried(lambda tx: crowd(tx, rows + 1, CROWD))
        walks = await db.run_tx(lambda tx: [walk for call in CALLS.values() for walk in walks_of(tx, call, made)])

    assert walks == []


@pytest.mark.parametrize("rows", [0, 1, 3, 10])
async def test_express_functions_look_at_nothing_but_what_they_are_asked_for(
    postgres: PostgresServer, rows: int
) -> None:
    """Nobody sees the plans inside of a function. So the rows are counted that it fetched."""
    async with at_rest(postgres.create_database(), rows, analyzed=True) as db:
        for _ in range(6):  # until plans are kept
            await db.run_tx(lambda tx: undone(tx, lambda tx: [_report(tx, 3), _bear(tx, 3)]))
        await db.run_unhurried(lambda tx: crowd(tx, rows + 1, CROWD))
        await db.run_unhurried(lambda tx: tx.execute(text("UPDATE tasks SET status = 'processing'")))
        written, fetched = await db.run_tx(lambda tx: _fetched(tx, lambda tx: _report(tx, 100)))
        born, looked_at = await db.run_tx(lambda tx: _fetched(tx, lambda tx: _bear(tx, 100)))

    assert (len(written.reported), len(born.born)) == (100, 100)
    assert fetched < 100 * 12
    assert looked_at < 100 * 4


def _report(tx: Tx, many: int) -> Written:
    """Reports about the first tasks, of which half end."""
    return express.report(tx, [_report_of(FIRST + number) for number in range(1, many + 1)], 1)


def _report_of(task_id: int) -> Report:
    before = IMAGE._replace(id=task_id)
    after = before._replace(revision=2, frame_number=1, step_count=1)
    step = Step("new", StepType.DO, StepStatus.COMPLETED, 2, 2, 0, 0, 1, StepPolicy())
    end = End(task_id, InstanceStatus.COMPLETE, 0, 2, fence=0) if task_id % 2 else None
    return Report(before, after, [step], ["new", "next"], end)


def _bear(tx: Tx, many: int) -> Written:
    keys = (InstanceKey("default", "order", f"new{number}") for number in range(many))
    return express.bear(tx, [Wanted(NewInstance(key, Payload("{}"), {})) for key in keys], 1)


def _fetched(tx: Tx, work: Callable[[Tx], T]) -> tuple[T, int]:
    """What the function returns, and how many rows of tables were fetched for it."""
    counted = text("SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables")
    before = tx.execute(counted).scalar_one()
    result = work(tx)
    return result, int(tx.execute(counted).scalar_one() - before)


@asynccontextmanager
async def at_rest(url: str, rows: int, *, analyzed: bool) -> AsyncIterator[Database]:
    """A database with next to nothing in it, which one connection asks that keeps all its plans."""
    db = open_database(make_url(url).update_query_dict({"prepared_statement_cache_size": "1000"}))

    def prepare(tx: Tx) -> None:
        migrate.upgrade(tx, virtual_clock=False)
        handlers.register(tx, [ORDER, NOTE])
        crowd(tx, 1, rows)
        for table in FILLED:  # nobody looks at how much there is later
            tx.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
        if analyzed:
            tx.execute(text("ANALYZE"))

    try:
        await db.run_unhurried(prepare)
        await db.run_tx(lambda tx: tx.execute(text("SET plan_cache_mode = force_generic_plan")))
        yield db
    finally:
        await db.close()


def walks_of(tx: Tx, call: Callable[[Tx], object], made: set[str]) -> list[str]:
    """Those statements of a call that look at more rows than they may, or whose plan was not kept."""
    tx.execute(text("SET LOCAL statement_timeout = 0"))
    found = []
    for statement, parameters in asked(tx, call):
        plan = undone(tx, lambda tx, given=parameters, of=statement: explain_prepared(tx, of, given))
        if statement not in made or rows_met(plan) > MOST_ROWS:
            found.append(f"{rows_met(plan)} rows: {statement}")
    return found


def rows_met(plan: Plan) -> float:
    """How many rows the parts of a plan look at, taken or not."""
    return sum(_rows(node) * node["Actual Loops"] for node in nodes(plan))


def _rows(node: Plan) -> float:
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    return float(removed + (node["Actual Rows"] if "Scan" in node["Node Type"] else 0))


def asked(tx: Tx, call: Callable[[Tx], object]) -> list[tuple[str, tuple[object, ...]]]:
    """What a call asks the database, about tables. What it changes is undone."""
    seen = undone(tx, lambda tx: statements(tx, call))
    return [(statement, given) for statement, given in seen if " FROM " in statement or " INTO " in statement]


def undone(tx: Tx, work: Callable[[Tx], T]) -> T:
    """Run the function, and take back what it changed."""
    with tx.begin_nested() as savepoint:
        result = work(tx)
        savepoint.rollback()
    return result
