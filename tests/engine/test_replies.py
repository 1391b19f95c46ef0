"""Stored replies of hot calls: a request is decided once, on whatever replica, and then answered as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from stepwell_server.domain.spine.tasks import NewTask
from stepwell_server.domain.values.asked import RequestKey
from stepwell_server.domain.values.errors import IdempotencyKeyReused
from stepwell_server.engine.spine import committer as committers
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.group import run_group
from stepwell_server.storage.database.database import Tx
from stepwell_server.storage.schema import requests as table
from stepwell_server.storage.spine import requests
from tests.support.databases.plans import statements
from tests.support.databases.postgres import PostgresServer
from tests.support.faults.forcing import held_before_commit
from tests.support.replicas.spine import ORDER, Spine
from tests.support.replicas.tickets import Schedule, ScheduleMany


def request(request_id: str = "r1", body: bytes = b"body") -> RequestKey:
    return RequestKey("default", "tester", "Schedule", request_id, body)


def batch(*keys: str, of: RequestKey | None = None) -> ScheduleMany:
    """A batch of tasks with these keys, as one request."""
    return ScheduleMany(tuple(NewTask(ORDER, key) for key in keys), of or request())


async def stored(spine: Spine) -> list[str]:
    """The requests whose replies are stored."""
    return list(await spine.db.run_tx(lambda tx: tx.execute(select(table.c.request_id)).scalars().all()))


async def keys(spine: Spine) -> list[str]:
    """The keys of all tasks."""
    return sorted(row.key for row in await spine.rows())


async def test_a_repeated_batch_is_answered_and_done_once_though_its_items_are_gone(spine: Spine) -> None:
    first = await spine.submit(batch("a", "b"))
    for task in await spine.claim(credits=2):
        await spine.finish(task)

    assert await spine.submit(batch("a", "b")) == first
    assert await spine.rows() == []


async def test_items_that_were_refused_by_themselves_are_part_of_the_reply(spine: Spine) -> None:
    taken = await spine.schedule("a")
    first = await spine.submit(batch("a", "b"))
    await spine.finish(next(task for task in await spine.claim(credits=2) if task.id == taken.id))

    assert await spine.submit(batch("a", "b")) == first == [None, first[1]]
    assert await keys(spine) == ["b"]


async def test_a_batch_of_which_nothing_was_accepted_is_decided_anew(spine: Spine) -> None:
    taken = await spine.schedule("a")
    assert await spine.submit(batch("a")) == [None]
    assert await stored(spine) == []
    await spine.finish(await spine.claim_one())

    (again,) = await spine.submit(batch("a"))

    assert again is not None and again != taken.id
    assert await stored(spine) == ["r1"]


async def test_a_request_id_that_was_used_for_something_else_is_refused_alone(spine: Spine) -> None:
    await spine.submit(batch("a"))

    other, neighbour = await asyncio.gather(
        spine.submit(batch("b", of=request(body=b"other"))),
        spine.submit(batch("c", of=request("r2"))),
        return_exceptions=True,
    )

    assert isinstance(other, IdempotencyKeyReused)
    assert neighbour[0] is not None
    assert await keys(spine) == ["a", "c"]


async def test_one_request_that_comes_twice_at_once_is_decided_once(spine: Spine) -> None:
    answers = await asyncio.gather(*(spine.submit(batch("a", "b")) for _ in range(5)))

    assert answers == [answers[0]] * 5
    assert await keys(spine) == ["a", "b"]


async def test_a_reply_that_is_a_day_old_is_none(spine: Spine) -> None:
    (first,) = await spine.submit(batch("a"))
    await spine.finish(await spine.claim_one())
    old = table.c.created_at - requests.KEPT - 1
    await spine.db.run_tx(lambda tx: tx.execute(update(table).values(created_at=old)))

    (second,) = await spine.submit(batch("a"))
    assert second is not None and second != first
    assert await spine.submit(batch("a")) == [second]


@pytest.mark.parametrize("body", [b"", bytes(range(256)), b"\xff" * 32])
async def test_any_hash_and_any_reply_is_stored_as_it_is(spine: Spine, body: bytes) -> None:
    replies = {request("r1", body): {"text": 'a\\b"c\u2028 äö', "none": None}, request("r2", body): [1, 2]}

    assert await spine.db.run_tx(lambda tx: requests.store(tx, replies)) == set()

    known = await spine.db.run_tx(lambda tx: requests.known(tx, replies.keys()))
    assert known == {key: (body, reply) for key, reply in replies.items()}


async def test_requests_cost_two_statements_however_many_there_are(spine: Spine) -> None:
    def asked(*calls: HotCall) -> Any:
        def group(tx: Tx) -> list[str]:
            run = lambda tx: run_group(tx, calls, spine.replica.kinds, spine.replica.rules, waiting=False)  # noqa: E731
            return [text for text, _ in statements(tx, run) if "requests" in text]

        return spine.db.run_tx(group)

    many = [batch(f"a{number}", of=request(f"r{number}")) for number in range(10)]
    again = [batch(f"a{number}", of=request(f"r{number}")) for number in range(10)]

    assert len(await asked(Schedule(NewTask(ORDER, "x")), replace(batch("y"), request=None))) == 0
    assert len(await asked(*many, Schedule(NewTask(ORDER, "z")))) == 2
    assert len(await asked(*again)) == 1


# ---- on two replicas at once


async def test_a_request_in_flight_on_two_replicas_is_decided_by_one_of_them(
    spines: tuple[Spine, Spine], postgres: PostgresServer, shared_url: str
) -> None:
    here, there = spines

    async with held_before_commit(here, here.submit(batch("a", "b"))) as first:
        second = asyncio.gather(there.submit(batch("a2", "b2")), there.schedule("neighbour"))
        await postgres.wait_for_waiters(shared_url, 1)
        assert not second.done()
    again, neighbour = await second

    assert again == await first
    assert neighbour.key == "neighbour"
    assert await keys(here) == ["a", "b", "neighbour"]


async def test_a_request_that_was_taken_back_elsewhere_is_decided_here(
    spines: tuple[Spine, Spine], postgres: PostgresServer, shared_url: str
) -> None:
    here, there = spines

    async with here.db.backend._pool.connect() as connection:  # type: ignore[attr-defined]
        await connection.run_sync(lambda tx: requests.store(tx, {request(): [1]}))
        second = asyncio.ensure_future(there.submit(batch("a")))
        await postgres.wait_for_waiters(shared_url, 1)
        await connection.rollback()

    assert (await second)[0] is not None
    assert await keys(here) == ["a"]


async def test_a_request_that_is_lost_twice_holds_up_its_neighbours_no_longer(
    spine: Spine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on without it, all together, and it is tried again."""
    lost = [request(), request()]
    groups = list[int]()
    store = requests.store

    def store_or_lose(tx: Tx, replies: Mapping[RequestKey, Any]) -> set[RequestKey]:
        return {lost.pop()} if lost and request() in replies else store(tx, replies)

    def counted(tx: Tx, calls: Sequence[HotCall], *more: Any, **options: Any) -> Any:
        groups.append(len(calls))
        return run_group(tx, calls, *more, **options)

    monkeypatch.setattr("stepwell_server.engine.spine.replies.requests.store", store_or_lose)
    monkeypatch.setattr(committers, "run_group", counted)
    neighbours = [batch(f"n{number}", of=request(f"r{number + 2}")) for number in range(6)]
    calls = [*neighbours[:3], batch("a"), *neighbours[3:]]
    answers = await asyncio.gather(*map(spine.submit, calls))

    assert all(answer[0] is not None for answer in answers)
    assert groups == [7, 7, 6, 1]
    assert await keys(spine) == ["a", *(f"n{number}" for number in range(6))]
