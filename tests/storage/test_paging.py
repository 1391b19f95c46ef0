"""Page tokens and keyset conditions."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, insert, select

from stepwell_server.domain.values.errors import PageTokenInvalid
from stepwell_server.storage.database.database import Database, Tx
from stepwell_server.storage.database.paging import PageTokens, Position, beyond

TOKENS = PageTokens(b"k" * 32)
positions = st.lists(st.integers(-(2**63), 2**63 - 1) | st.text(max_size=40), max_size=3)


@given(positions)
def test_a_token_brings_its_position_back(position: Position) -> None:
    assert TOKENS.decode(["List", "ns"], TOKENS.encode(["List", "ns"], position)) == position


@given(positions, st.data())
def test_a_token_with_one_bit_flipped_is_refused(position: Position, data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(TOKENS.encode(["List"], position) + "=="))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8

    with pytest.raises(PageTokenInvalid):
        TOKENS.decode(["List"], base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("="))


@given(st.text(max_size=2000))
def test_nonsense_is_refused(token: str) -> None:
    with pytest.raises(PageTokenInvalid):
        TOKENS.decode(["List"], token)


@pytest.mark.parametrize("scope", [["Other", "ns"], ["List", "other"], ["List", "ns", "filter"], ["List"], ["Listns"]])
def test_a_token_is_good_for_its_own_scope_only(scope: list[str]) -> None:
    token = TOKENS.encode(["List", "ns"], ["a"])

    with pytest.raises(PageTokenInvalid):
        TOKENS.decode(scope, token)


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_over_three_columns_meet_every_row_once(db: Database, descending: bool) -> None:
    words = Table("words", MetaData(), Column("a", Text), Column("b", BigInteger), Column("c", Text))
    columns = [words.c.a, words.c.b, words.c.c]
    micros = 1_700_000_000_000_001
    rows = [(a, micros + b, c) for a in "xy" for b in range(3) for c in "pqr"]

    def page(tx: Tx, after: Position | None) -> list[tuple[str, int, str]]:
        order = [column.desc() if descending else column for column in columns]
        statement = select(words).order_by(*order).limit(4)
        if after is not None:
            statement = statement.where(beyond(columns, after, descending=descending))
        return [tuple(row) for row in tx.execute(statement)]

    def walk(tx: Tx) -> list[tuple[str, int, str]]:
        words.create(tx)
        tx.execute(insert(words), [dict(zip("abc", row, strict=True)) for row in reversed(rows)])
        seen: list[tuple[str, int, str]] = []
        after: Position | None = None
        while found := page(tx, after):
            seen += found
            after = list(found[-1])
        words.drop(tx)
        return seen

    assert await db.run_tx(walk) == sorted(rows, reverse=descending)
