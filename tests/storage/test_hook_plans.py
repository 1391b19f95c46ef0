"""Plans of hooks: they are found and listed along an index, however many there are and whatever is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import pytest
from sqlalchemy import text

from stepwell_server.domain.hooks.hooks import HookFilter, HookKey, HookStatus, NewHook
from stepwell_server.domain.spine.births import Birth, Wanted
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import DAY
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.hooks import hooks
from stepwell_server.storage.spine import fates
from tests.support.databases.plans import explained, nodes, opened, statements, steps
from tests.support.databases.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOOKS = 100_000
HELD = 50
PAGE = 25
MOST_PAGES = 1500
"""For 26 rows of each of the four statuses that are stored, with their tasks. A walk would be many thousands."""
MOST_STEPS = 30_000
FIRST = 1_000_000
MIDDLE = FIRST + HOOKS // 2

Ask: TypeAlias = Callable[[Tx], Any]


def page(*statuses: HookStatus, name: str = "", after: int | None = None) -> Ask:
    wanted = HookFilter("default", name, statuses)
    position = None if after is None else [after, after]
    least = 1 if statuses == (HookStatus.PROCESSING,) else PAGE

    def ask(tx: Tx) -> None:
        found, _ = hooks.list_page(tx, wanted, PAGE, position)
        assert len(found) >= least

    return ask


def find(tx: Tx) -> None:
    new = NewHook(HookKey("default", "h7"), "note", Payload("{}"), "key")
    assert len(hooks.find(tx, [Birth(1, Wanted(new, "r9"), 0)])) == 2


def unserved(tx: Tx) -> None:
    assert hooks.lock_unserved(tx, [Handler("default", TaskKind.HOOK, "ring")], 10_000 * DAY * 365, 10) == []


ASKS: dict[str, Ask] = {
    f"{told}{of}{where}": page(*statuses, name=name, after=after)
    for told, statuses in (
        ("all", ()),
        *((status.value, (status,)) for status in HookStatus),
        ("open", tuple(HookStatus)[:2]),
    )
    for of, name in (("", ""), (" of a name", "note"))
    for where, after in (("", None), (", with a token", MIDDLE))
} | {
    "get": lambda tx: hooks.get(tx, HookKey("default", "h7")),
    "find": find,
    "by number": lambda tx: hooks.get_many(tx, [FIRST + 7, FIRST + 8]),
    "unserved": unserved,
    "how they ended": lambda tx: fates.read(tx, [FIRST + 7, FIRST + 8], {TaskKind.HOOK: hooks.KEPT}),
}
asking = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS.keys())


@pytest.fixture(scope="module")
async def crowded_postgres(postgres: PostgresServer) -> AsyncIterator[Database]:
    """A hundred thousand hooks; those that have not ended have tasks."""
    db = await opened(postgres.create_database())
    await db.run_unhurried(lambda tx: crowd(tx, analyzed=True))
    yield db
    await db.close()


@asking
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_postgresql_finds_hooks_along_an_index(crowded_postgres: Database, ask: Ask, mode: str) -> None:
    plans = await crowded_postgres.run_tx(lambda tx: explained(tx, ask, mode))

    for plan in plans:
        walked = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert not {"hooks", "tasks"} & {*walked}
    assert sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans) <= MOST_PAGES


@pytest.fixture(scope="module", params=[False, True], ids=["as it grew", "analyzed"])
async def crowded_sqlite(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Database]:
    """The same. The server never tells SQLite how much there is; somebody else may."""
    db = await opened(f"sqlite:///{tmp_path_factory.mktemp('crowd')}/stepwell.db")
    await db.run_tx(lambda tx: crowd(tx, analyzed=bool(request.param)))
    yield db
    await db.close()


@asking
async def test_sqlite_finds_hooks_along_an_index(crowded_sqlite: Database, ask: Ask) -> None:
    def work(tx: Tx) -> tuple[list[str], int]:
        plans = [
            row.detail
            for statement, parameters in statements(tx, ask)
            for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
        return plans, steps(tx, ask)

    plans, taken = await crowded_sqlite.run_tx(work)

    assert not [line for line in plans if line.startswith(("SCAN hooks", "SCAN tasks"))]
    assert taken < MOST_STEPS


def crowd(tx: Tx, *, analyzed: bool) -> None:
    """Hooks of two names in every status, by statements that both databases understand: seven of ten have ended."""
    tx.execute(
        text(f"""
        WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {HOOKS})
        INSERT INTO hooks (id, namespace, name, hook_id, status, payload, idempotency_key, attempts, retry_delay,
                           retry_backoff, created_at, process_at, request_id)
        SELECT {FIRST} + n, 'default', CASE n % 7 WHEN 0 THEN 'note' ELSE 'ring' END, 'h' || n,
               CASE WHEN n % 10 < 3 THEN 'open' WHEN n % 10 < 6 THEN 'completed' WHEN n % 10 < 8 THEN 'failed'
               ELSE 'cancelled' END, '{{}}', 'k' || n, 0, 1, 'exponential', {FIRST} + n, {FIRST} + n, 'r' || n
        FROM numbers""")
    )
    tx.execute(
        text(f"""
        INSERT INTO tasks (id, namespace, kind, name, key, priority, run_at, status, run_number, reason, fence,
                           revision, frame_number, stop, wake_again, interruptions, acked, open_steps, created_at)
        SELECT id, namespace, 'hook', name, hook_id, 5, created_at,
               CASE WHEN id % {HOOKS // HELD} = 1 THEN 'processing' ELSE 'pending' END, 0, 'run',
               0, 1, 0, 'none', false, 0, false, '', created_at
        FROM hooks WHERE status = 'open'""")
    )
    if analyzed:
        tx.execute(text("ANALYZE"))
