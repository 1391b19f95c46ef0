"""Rows as parameters: a batch of any size is one statement, and its payloads are bound once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, Text, select

from stepwell_server.storage.database import dialect
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.hooks import hooks
from stepwell_server.storage.schema import workflow_instances
from stepwell_server.storage.spine import tasks
from stepwell_server.storage.workflows import instances as workflows
from stepwell_server.storage.workflows import runs

GIVEN = [
    {"id": 1, "params": '"\u00e4\U0001f600"', "output": "[1]"},
    {"id": 2, "params": "{}", "output": None},
    {"id": 3, "params": '"\\""'},
]


async def test_payloads_arrive_as_they_are_and_none_is_none(db: Database) -> None:
    def read(tx: Tx) -> list[tuple[Any, ...]]:
        rows = dialect.rows(dialect.product(tx), "given", id=BigInteger(), params=Text(), output=Text())
        found = tx.execute(select(rows).order_by(rows.c.id), dialect.with_payloads("given", map(_encoded, GIVEN)))
        return [tuple(row) for row in found]

    assert await db.run_tx(read) == [(one["id"], one["params"], one.get("output")) for one in GIVEN]


def _encoded(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its texts as bytes."""
    return {key: value.encode() if isinstance(value, str) else value for key, value in row.items()}


def test_a_payload_is_copied_into_one_parameter_and_not_into_the_rows() -> None:
    text = b'"' + b"x" * 1_000_000 + b'"'

    given = dialect.with_payloads("given", [{"id": number, "payload": text} for number in range(3)])

    assert given["given_payloads"] == text * 3
    assert len(given["given"]) < 200


STATEMENTS = {
    "instances": workflows._insert_sql("sqlite", tuple(workflow_instances.columns.keys())),
    "ends": workflows._end_sql("sqlite"),
    "steps": runs._save_sql("sqlite"),
    "events": runs._insert_events_sql("sqlite"),
    "hooks": hooks._insert_sql("sqlite"),
    "tasks": tasks._insert_sql("sqlite"),
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_no_statement_takes_a_payload_out_of_the_rows(statement: Any) -> None:
    asked = {str(value) for value in statement.compile().params.values()}

    assert asked.isdisjoint(f"$.{name}" for name in dialect.PAYLOADS)
    assert any(name.endswith("_payloads") for name in statement.compile().params)
