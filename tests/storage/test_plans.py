"""Plans: what the claim and the next wake touch grows neither with what sleeps nor with what nobody serves."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import event, make_url, text

from stepwell_server.databases import open_database
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import LeaseTimes
from stepwell_server.domain.spine.tasks import NewTask
from stepwell_server.domain.spine.work import Rules
from stepwell_server.engine.spine import claims
from stepwell_server.engine.spine.assignments import Ask, Capacity
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.engine.workflows.kind import WorkflowKind
from stepwell_server.storage.database import migrate
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.spine import handlers, leases, wakes
from stepwell_server.storage.spine import tasks as store
from stepwell_server.storage.spine.claims import STICKY
from tests.support.databases.postgres import PostgresServer
from tests.support.replicas.spine import ANNA, ORDER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SLEEPING = 1_000_000
UNSERVED = 100_000
BACKLOG = 50_000
"""Due tasks of the one handler that is served, all of the least urgent class."""
CREDITS = 16
MOST_PAGES = 200
FAR_FUTURE = 2**60
PATIENCE = STICKY
IDLE = 10_000
"""Names that nothing waits for."""
KINDS = Kinds.of(WorkflowKind(None))  # type: ignore[arg-type]
"""As far as claims need them: nobody follows anything."""
NOBODY_SERVES = [Handler("default", TaskKind.WORKFLOW, f"unserved{number}") for number in range(20)]

Plan: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Tx], Any]


def claim(tx: Tx) -> None:
    ask = Ask([Capacity(ANNA, frozenset([ORDER]), CREDITS)], PATIENCE)
    claimed = claims.claim(tx, ask, KINDS, Rules())
    assert len(claimed.assigned) == CREDITS


def next_wake(tx: Tx) -> None:
    (wake,) = wakes.next_wakes(tx, [ORDER])
    assert wake.due_at is not None


def all_wakes(tx: Tx) -> None:
    assert len(wakes.next_wakes(tx)) == 1 + len(NOBODY_SERVES)


def sweep(tx: Tx) -> None:
    assert leases.sweep(tx, LeaseTimes()) == []


# ---- PostgreSQL


@pytest.fixture(scope="module")
async def crowded_postgres(postgres: PostgresServer) -> AsyncIterator[Database]:
    """A million sleepers, a hundred thousand due tasks that nobody serves, and a backlog."""
    db = await opened(postgres.create_database())
    await db.run_unhurried(lambda tx: crowd(tx, analyzed=True))
    yield db
    await db.close()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("work", [claim, next_wake, sweep])
async def test_a_crowd_does_not_make_postgresql_touch_many_pages(
    crowded_postgres: Database, work: Work, mode: str
) -> None:
    plans = await crowded_postgres.run_tx(lambda tx: explained(tx, work, mode))

    assert 0 < max(pages(plan) for plan in plans if not writes(plan)) <= MOST_PAGES
    assert not any(map(walks_all_tasks, plans))


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_the_wakes_of_all_handlers_are_looked_up_one_by_one_on_postgresql(
    crowded_postgres: Database, mode: str
) -> None:
    (plan,) = await crowded_postgres.run_tx(lambda tx: explained(tx, all_wakes, mode))

    assert pages(plan) <= MOST_PAGES * (1 + len(NOBODY_SERVES))
    assert not walks_all_tasks(plan)


async def test_a_plan_that_was_made_while_there_were_no_tasks_serves_a_hundred_thousand(postgres_url: str) -> None:
    db = await opened(postgres_url)

    def prepare(tx: Tx) -> None:
        (task,) = store.insert(tx, [NewTask(ORDER, "first")], store.stamp(tx)).values()
        store.remove(tx, [task.id])
        for _ in range(6):  # PostgreSQL keeps the plan from the sixth time on
            store.save(tx, [task])

    await db.run_tx(prepare)
    await db.run_unhurried(lambda tx: fill(tx, 100_000, "'order'", priority=0, run_at=1))

    def kept(tx: Tx) -> tuple[int, Plan]:
        prepared = "SELECT name, generic_plans FROM pg_prepared_statements WHERE statement LIKE 'UPDATE tasks%'"
        name, times_kept = tx.exec_driver_sql(prepared).one()
        return times_kept, explain(tx, f"EXPLAIN (FORMAT JSON) EXECUTE {name}('[]')")

    times_kept, plan = await db.run_tx(kept)
    await db.close()
    assert times_kept == 1  # else this is another connection, or a plan of today
    assert [node["Index Name"] for node in nodes(plan) if "Index Cond" in node] == ["tasks_pkey"]
    assert not walks_all_tasks(plan)


def explained(tx: Tx, work: Work, mode: str) -> list[Plan]:
    """What PostgreSQL does for each statement of the function about tasks, as the driver has prepared it."""
    tx.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
    plans = []
    for statement, parameters in statements(tx, work):
        prepared = "SELECT name FROM pg_prepared_statements WHERE statement = $1"
        name = tx.exec_driver_sql(prepared, (statement,)).scalar_one()
        values = ", ".join(f"'{value}'" for value in parameters)
        call = f"{name}({values})" if values else name
        plans.append(
            undone(tx, lambda tx, call=call: explain(tx, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {call}"))
        )
    return plans


def explain(tx: Tx, statement: str) -> Plan:
    found = tx.exec_driver_sql(statement).scalar_one()
    plan: Plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def pages(plan: Plan) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def writes(plan: Plan) -> bool:
    return bool(plan["Node Type"] == "ModifyTable")


def walks_all_tasks(plan: Plan) -> bool:
    return any(node["Node Type"] == "Seq Scan" and node["Relation Name"] == "tasks" for node in nodes(plan))


# ---- SQLite

NARROW = re.compile(
    r"SEARCH due USING INDEX ix_tasks__claim .*"
    r"|SEARCH tasks USING (COVERING )?INDEX ix_tasks__(next_wake|held) .*"
    r"|SEARCH tasks USING INTEGER PRIMARY KEY .*"
    r"|SEARCH after USING COVERING INDEX sqlite_autoindex_tasks_1 \(\(namespace,kind,name\)>=?\(\?,\?,\?\)\)"
    r"|SCAN tasks USING INDEX ix_tasks__held"  # only what somebody holds is in it
    r"|SCAN handlers USING INDEX ix_handlers__listeners"  # only what is told of events is in it
    r"|SEARCH handlers .*"
    r"|SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 \(session_id=\?\)"
    r"|(SCAN|SEARCH) (\w+_json|hook_targets|clock|lease_clock|CONSTANT ROW|namespaces|used|wanted)\b.*"
)


@pytest.fixture(params=[False, True], ids=["as it grew", "analyzed"])
def analyzed(request: pytest.FixtureRequest) -> bool:
    """Whether SQLite was told how much there is. The server never tells it; somebody else may."""
    return bool(request.param)


@pytest.fixture(scope="module")
async def crowds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Database]]:
    """A million sleepers, a hundred thousand due tasks that nobody serves, and a backlog: as it grew, and analyzed."""
    folder = tmp_path_factory.mktemp("crowds")
    grown = await opened(f"sqlite:///{folder}/grown.db")
    await grown.run_tx(lambda tx: crowd(tx, analyzed=False))
    await grown.close()  # so that all is in the one file
    shutil.copy(folder / "grown.db", folder / "analyzed.db")
    both = [await opened(f"sqlite:///{folder}/{name}.db") for name in ("grown", "analyzed")]
    await both[True].run_tx(lambda tx: tx.execute(text("ANALYZE")))
    yield both
    for db in both:
        await db.close()


@pytest.fixture
def crowded_sqlite(crowds: list[Database], analyzed: bool) -> Database:
    """The crowd of one kind."""
    return crowds[analyzed]


@pytest.fixture
async def calm_sqlite(tmp_path: Path, analyzed: bool) -> AsyncIterator[Database]:
    """A thousandth of the crowd."""
    db = await opened(f"sqlite:///{tmp_path}/stepwell.db")
    await db.run_tx(lambda tx: crowd(tx, share=1000, analyzed=analyzed))
    yield db
    await db.close()


@pytest.mark.parametrize("work", [claim, next_wake, all_wakes, sweep])
async def test_a_crowd_is_never_walked_on_sqlite(crowded_sqlite: Database, work: Work) -> None:
    accesses = await crowded_sqlite.run_tx(lambda tx: accessed(tx, work))

    assert accesses
    assert [one for one in accesses if not NARROW.fullmatch(one)] == []


@pytest.mark.parametrize("work", [claim, next_wake, all_wakes, sweep])
async def test_a_thousand_times_the_crowd_is_the_same_work_on_sqlite(
    crowded_sqlite: Database, calm_sqlite: Database, work: Work
) -> None:
    calm = await calm_sqlite.run_tx(lambda tx: steps(tx, work))
    crowded = await crowded_sqlite.run_tx(lambda tx: steps(tx, work))

    assert 0 < crowded < 2 * calm


def accessed(tx: Tx, work: Work) -> list[str]:
    """How SQLite goes to each table for the statements of the function about tasks."""
    plans = [
        tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        for statement, parameters in statements(tx, work)
    ]
    return [row.detail for plan in plans for row in plan if row.detail.startswith(("SCAN", "SEARCH"))]


def steps(tx: Tx, work: Work) -> int:
    """How many instructions of its virtual machine SQLite executes for the function."""
    connection: Any = tx.connection.dbapi_connection
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1

    connection.set_progress_handler(step, 1)
    undone(tx, work)
    connection.set_progress_handler(None, 1)
    return taken


# ---- both


async def opened(url: str) -> Database:
    db = open_database(make_url(url))
    await db.run_unhurried(lambda tx: migrate.upgrade(tx, virtual_clock=False))
    return db


def crowd(tx: Tx, share: int = 1, *, analyzed: bool) -> None:
    """Sleepers of the most urgent class, due tasks of names that nobody serves, a backlog to claim, and idle names."""
    idle = [Handler("default", TaskKind.WORKFLOW, f"idle{number}") for number in range(IDLE // share)]
    handlers.register(tx, [ORDER, *NOBODY_SERVES, *idle])
    fill(tx, SLEEPING // share, "'order'", priority=0, run_at=FAR_FUTURE)
    fill(tx, UNSERVED // share, f"'unserved' || (n % {len(NOBODY_SERVES)})", priority=0, run_at=1)
    fill(tx, BACKLOG // share, "'order'", priority=9, run_at=1)
    if analyzed:
        tx.execute(text("ANALYZE"))


def fill(tx: Tx, count: int, name: str, *, priority: int, run_at: int) -> None:
    """Store pending tasks, by one statement that both databases understand."""
    statement = f"""
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
        INSERT INTO tasks (namespace, kind, name, key, priority, run_at, status, run_number, reason, fence, revision,
                           frame_number, stop, wake_again, interruptions, acked, open_steps, created_at)
        SELECT 'default', 'workflow', {name}, {priority} || '-' || n, {priority}, {run_at} + n, 'pending', 0, 'run', 0,
               0, 0, 'none', false, 0, false, '', 0
        FROM numbers"""
    tx.execute(text(statement))


def statements(tx: Tx, work: Work) -> list[tuple[str, Any]]:
    """What the function asks of the database about tasks, with parameters. What it changes is undone."""
    seen: list[tuple[str, Any]] = []

    def note(_tx: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if re.search(r"\btasks\b", statement):
            seen.append((statement, parameters))

    event.listen(tx, "before_cursor_execute", note)
    undone(tx, work)
    event.remove(tx, "before_cursor_execute", note)
    return seen


def undone(tx: Tx, work: Work) -> Any:
    """Run the function, and take back what it changed."""
    with tx.begin_nested() as savepoint:
        result = work(tx)
        savepoint.rollback()
    return result
