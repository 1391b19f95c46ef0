"""Plans of listings: a page of instances is read along an index, however many there are and whatever is asked for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from sqlalchemy import text

from stepwell_server.domain.workflows.instances import InstanceFilter, InstanceStatus
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.workflows import pages as listings
from tests.support.databases.plans import explained, nodes, opened, statements, steps
from tests.support.databases.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

INSTANCES = 100_000
PAGE = 26
"""What a page of 25 asks for: one more, to know whether there is another."""
MOST_PAGES = 1000
"""For 25 rows, of every seventh row met, each with its task: a few pages per row. A walk would be many thousands."""
STATUSES = ("queued", "running", "waiting", "paused", "complete", "errored", "terminated")
FIRST, LAST = 1_000_000, 1_000_000 + INSTANCES
MIDDLE = (FIRST + LAST) // 2


@dataclass(frozen=True)
class Question:
    """A listing: what is asked, and the index that must answer."""

    wanted: InstanceFilter
    index: str
    statements: int = 1

    def ask(self, tx: Tx) -> None:
        """The first page."""
        assert len(listings.instances(tx, self.wanted, PAGE, None)[0]) == PAGE

    def ask_on(self, tx: Tx) -> None:
        """A page from the middle, as a token would."""
        assert len(listings.instances(tx, self.wanted, PAGE, [MIDDLE, MIDDLE])[0]) == PAGE


def question(index: str, statements: int = 1, **options: Any) -> Question:
    return Question(InstanceFilter("default", "order", **options), index, statements)


CREATED, STATUS, LABEL = "ix_workflow_instances__created", "ix_workflow_instances__status", "workflow_labels"
QUESTIONS = {
    f"{name}, {'oldest' if oldest else 'newest'} first": question(*answer, **options, oldest_first=oldest)
    for oldest in (False, True)
    for name, answer, options in (
        ("all", (CREATED,), {}),
        ("by time", (CREATED,), {"created_from": FIRST + 1000, "created_before": LAST - 1000}),
        ("by status", (STATUS,), {"statuses": (InstanceStatus.ERRORED,)}),
        ("by two statuses", (STATUS, 2), {"statuses": (InstanceStatus.ERRORED, InstanceStatus.PAUSED)}),
        (
            "by status and time",
            (STATUS,),
            {"statuses": (InstanceStatus.QUEUED,), "created_from": FIRST + 1000, "created_before": LAST - 1000},
        ),
        ("by label", (LABEL,), {"labels": {"customer": "c7"}}),
        ("by two labels", (LABEL,), {"labels": {"customer": "c7", "region": "us"}}),
        ("by label and status", (LABEL,), {"labels": {"region": "eu"}, "statuses": (InstanceStatus.COMPLETE,)}),
        (
            "by label and time",
            (LABEL,),
            {"labels": {"customer": "c7"}, "created_from": FIRST + 1000, "created_before": LAST - 1000},
        ),
    )
}
asking = pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
paging = pytest.mark.parametrize("ask", [Question.ask, Question.ask_on], ids=["first page", "with a token"])

Ask: TypeAlias = Callable[[Question, Tx], None]


# ---- PostgreSQL


@pytest.fixture(scope="module")
async def crowded_postgres(postgres: PostgresServer) -> AsyncIterator[Database]:
    """A hundred thousand instances with two labels each; those that have not ended have tasks."""
    db = await opened(postgres.create_database())
    await db.run_unhurried(lambda tx: crowd(tx, INSTANCES, analyzed=True))
    yield db
    await db.close()


@asking
@paging
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_postgresql_reads_a_page_along_an_index(
    crowded_postgres: Database, question: Question, ask: Ask, mode: str
) -> None:
    plans = await crowded_postgres.run_tx(lambda tx: explained(tx, lambda tx: ask(question, tx), mode))

    assert len(plans) == question.statements
    for plan in plans:
        used = [node.get("Index Name", "") for node in nodes(plan)]
        assert any(name.startswith(question.index) for name in used)
        assert not [node for node in nodes(plan) if node["Node Type"] in ("Seq Scan", "Sort", "Incremental Sort")]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= MOST_PAGES


# ---- SQLite


@pytest.fixture(scope="module", params=[False, True], ids=["as it grew", "analyzed"])
def analyzed(request: pytest.FixtureRequest) -> bool:
    """Whether SQLite was told how much there is. The server never tells it; somebody else may."""
    return bool(request.param)


@pytest.fixture(scope="module")
async def crowded_sqlite(tmp_path_factory: pytest.TempPathFactory, analyzed: bool) -> AsyncIterator[Database]:
    """A hundred thousand instances with two labels each."""
    db = await opened(f"sqlite:///{tmp_path_factory.mktemp('crowd')}/stepwell.db")
    await db.run_tx(lambda tx: crowd(tx, INSTANCES, analyzed=analyzed))
    yield db
    await db.close()


@asking
@paging
async def test_sqlite_reads_a_page_along_an_index(crowded_sqlite: Database, question: Question, ask: Ask) -> None:
    def work(tx: Tx) -> tuple[list[list[str]], int]:
        plans = [
            [row.detail for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            for statement, parameters in statements(tx, lambda tx: ask(question, tx))
        ]
        return plans, steps(tx, lambda tx: ask(question, tx))

    plans, taken = await crowded_sqlite.run_tx(work)

    assert len(plans) == question.statements
    for plan in plans:
        assert re.fullmatch(rf"SEARCH \w+ USING (COVERING )?INDEX \w*{question.index}\w* \(.*\)", plan[0])
        assert not [line for line in plan if line.startswith(("SCAN", "USE TEMP B-TREE"))]
    assert taken < 1000 * PAGE * question.statements


# ---- both


def crowd(tx: Tx, count: int, *, analyzed: bool) -> None:
    """Instances in every status, a label of a hundred values and one of two, by statements that both understand."""
    numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
    status = " ".join(f"WHEN {place} THEN '{one}'" for place, one in enumerate(STATUSES))
    where = "'default', 'order'"
    tx.execute(
        text(f"""
        {numbers}
        INSERT INTO workflow_instances (id, namespace, workflow, instance_id, run_number, status, params, labels,
                                        created_at, updated_at, revision, first_fence)
        SELECT {FIRST} + n, {where}, 'i' || n, 0, CASE n % {len(STATUSES)} {status} END, '{{}}',
               '{{}}', {FIRST} + n, {FIRST} + n, 1, 0
        FROM numbers""")
    )
    for name, value in (("customer", "'c' || (n % 100)"), ("region", "CASE n % 2 WHEN 0 THEN 'eu' ELSE 'us' END")):
        tx.execute(
            text(f"""
            {numbers}
            INSERT INTO workflow_labels (namespace, workflow, name, value, created_at, id)
            SELECT {where}, '{name}', {value}, {FIRST} + n, {FIRST} + n FROM numbers""")
        )
    tx.execute(
        text("""
        INSERT INTO tasks (id, namespace, kind, name, key, priority, run_at, status, run_number, reason, fence,
                           revision, frame_number, stop, wake_again, interruptions, acked, open_steps, created_at)
        SELECT id, namespace, 'workflow', workflow, instance_id, 5, created_at,
               CASE status WHEN 'running' THEN 'processing' WHEN 'paused' THEN 'parked' ELSE 'pending' END, 0, 'run',
               0, 1, 0, 'none', false, 0, false, '', created_at
        FROM workflow_instances WHERE status NOT IN ('complete', 'errored', 'terminated')""")
    )
    if analyzed:
        tx.execute(text("ANALYZE"))
