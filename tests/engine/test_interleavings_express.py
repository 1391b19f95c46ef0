"""Interleavings of express calls, each forced: whatever happens meanwhile, it is as if nothing were express."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import asyncpg
import pytest
from sqlalchemy import select, text

from stepwell_server.domain.spine.executions import load_open
from stepwell_server.domain.spine.frames import Body, Frame, News, Opening
from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.values.errors import IdempotencyKeyReused, InstanceIdAlreadyExists, Internal
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import HOUR
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.calls import ReportFrames
from stepwell_server.engine.spine.timings import Way
from stepwell_server.storage import schema
from stepwell_server.storage.database import postgresql
from stepwell_server.storage.database.database import Tx
from tests.support.databases import templates
from tests.support.databases.postgres import PostgresServer
from tests.support.faults.forcing import held_before_commit
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import (
    ANNA,
    BEGIN,
    BEN,
    FINISH,
    PATIENT,
    Engine,
    Holding,
    Said,
    done,
    opens,
    replicas_on,
    sleeps,
)

REPORTS: dict[str, tuple[Said, ...]] = {
    "results": ((done("s1"), opens("s2")), (done("s2"), opens("s3"))),
    "end": (done("s1"), FINISH),
}


# ---- what happens meanwhile


async def _nothing(there: Engine, holding: Holding) -> None:
    """Nobody does anything."""


async def _event(there: Engine, holding: Holding) -> None:
    await there.send()


async def _pause(there: Engine, holding: Holding) -> None:
    await there.pause()


async def _paused_and_resumed(there: Engine, holding: Holding) -> None:
    await there.pause()
    await there.resume()


async def _terminate(there: Engine, holding: Holding) -> None:
    await there.terminate()


async def _restart(there: Engine, holding: Holding) -> None:
    await there.restart()


async def _renewal(there: Engine, holding: Holding) -> None:
    await there.renew(holding)


async def _moved(there: Engine, holding: Holding) -> None:
    """The session renews through a later connection."""
    await there.submit(calls.Renew(holding.held, Owner(ANNA.session_id, 2), there.times))


async def _shorten(there: Engine, holding: Holding) -> None:
    await there.submit(calls.Shorten(holding.held, holding.owner, there.times))


async def _lapse(there: Engine, holding: Holding) -> None:
    await there.lose_worker()


async def _takeover(there: Engine, holding: Holding) -> None:
    await there.lose_worker()
    await there.claim_one(BEN)


async def _taken_back(there: Engine, holding: Holding) -> None:
    """Another had it, stored a step of this name, and gave it back to the first session."""
    await there.lose_worker()
    theirs = await there.claim_one(BEN)
    await there.say(theirs, (done("s1", attempt=2), opens("s2")))
    await there.lose_worker()
    await there.claim_one(ANNA)


async def _leave(there: Engine, holding: Holding) -> None:
    await there.submit(calls.Leave(holding.held, holding.owner))


async def _refused_frame(there: Engine, holding: Holding) -> None:
    """A frame that is refused uses its number up, and nothing else of the task changes."""
    await _say_next(there, holding, sleeps("nap", 10**9 * HOUR))


async def _said_elsewhere(there: Engine, holding: Holding) -> None:
    """The same report, through another replica."""
    await _say_next(there, holding, done("s1"), opens("s2"))


async def _wait_elsewhere(there: Engine, holding: Holding) -> None:
    await _say_next(there, holding, sleeps("nap"))


async def _say_next(there: Engine, holding: Holding, body: Body, *opens: Opening) -> None:
    frame = Frame((await there.live()).frame_number + 1, body, opens)
    await there.submit(ReportFrames(holding.held, holding.owner.session_id, (frame,)))


MEANWHILE = (
    *(_nothing, _event, _pause, _paused_and_resumed, _terminate, _restart, _renewal, _moved, _shorten, _lapse),
    *(_takeover, _taken_back, _leave, _refused_frame, _said_elsewhere, _wait_elsewhere),
)
STILL_EXPRESS = {_nothing, _renewal, _moved, _shorten}
"""What changes nothing that an image says."""

Gate: TypeAlias = Callable[[Engine, Awaitable[Any]], AbstractAsyncContextManager[asyncio.Task[Any]]]


@asynccontextmanager
async def before_it_is_sent(here: Engine, call: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """The call is decided, and its statement is not sent yet."""
    async with held_before_commit(here, call, "express") as calling:
        yield calling


@asynccontextmanager
async def between_snapshot_and_lock(here: Engine, call: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """The statement that locks has its snapshot, and not its lock yet."""
    plain = await here.db.run_tx(_add_gate)
    gate = await asyncpg.connect(here.db.backend._url.set(drivername="postgresql").render_as_string(False))  # type: ignore[attr-defined]
    await gate.execute(f"SELECT pg_advisory_lock({GATE})")
    calling = asyncio.ensure_future(call)
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'")
    async with asyncio.timeout(PATIENCE):
        while not await here.db.run_tx(lambda tx: tx.execute(waiting).scalar_one()):
            await asyncio.sleep(0)
    try:
        yield calling
    finally:
        await gate.close()
        await asyncio.wait([calling])
        await here.db.run_tx(lambda tx: tx.exec_driver_sql(plain))


GATE = 7


def _add_gate(tx: Tx) -> str:
    """Let the function wait for a lock of ours when its first statement has begun, and before it locks a task.

    Returns what it was before.
    """
    of_it = text("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'express_reports_v1'")
    whole: str = tx.execute(of_it).scalar_one()
    gated = whole.replace(
        "AS image(id, fence, revision, frame)",
        "AS image(id, fence, revision, frame) CROSS JOIN LATERAL"
        f" (SELECT pg_advisory_xact_lock_shared({GATE} + image.id * 0)::text = '' AS passed OFFSET 0) AS gate",
    ).replace("AND NOT tasks.wake_again", "AND NOT tasks.wake_again AND gate.passed")
    assert gated.count("gate.passed") == 1
    tx.exec_driver_sql(gated)
    return whole


# ---- the same with and without


@pytest.mark.parametrize("gate", [before_it_is_sent, between_snapshot_and_lock])
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda one: one.__name__.strip("_"))
async def test_whatever_happens_meanwhile_is_as_if_nothing_were_express(
    pairs: Pairs, gate: Gate, report: str, meanwhile: Meanwhile
) -> None:
    (here, there), (plain, other) = pairs
    holding = await _begun(here)
    before = _express(here)
    async with gate(here, here.say(holding, *REPORTS[report])) as reporting:
        await meanwhile(there, holding)
    found = _said(await reporting), await _stored(here, holding)

    same = await _begun(plain)
    await meanwhile(other, same)
    expected = _said(await plain.say(same, *REPORTS[report])), await _stored(plain, same)

    assert found == expected
    assert _express(here) - before == (meanwhile in STILL_EXPRESS)
    assert here.committer.timings.missed == (meanwhile not in STILL_EXPRESS)


async def test_reports_go_on_being_express_after_a_miss(pairs: Pairs) -> None:
    (here, there), _ = pairs
    holding = await _begun(here)
    await there.send()
    before = _express(here)
    for name in ("s1", "s2", "s3"):
        await here.say(holding, done(name))

    assert _express(here) - before == 2
    assert here.committer.timings.missed == 1


async def test_an_instance_that_is_there_is_refused_as_ever(pairs: Pairs) -> None:
    (here, there), _ = pairs
    await there.create("x", "r1")
    with pytest.raises(InstanceIdAlreadyExists):
        await here.create("x")
    with pytest.raises(IdempotencyKeyReused):
        await here.create("y", "r1")

    again = await there.create("z", "r2")
    assert await here.create("z", "r2") == again
    assert (await here.create("new")).id


async def test_one_that_the_database_refuses_does_not_fail_the_others(pairs: Pairs) -> None:
    (here, _), _ = pairs
    holdings = [await _begun(here, f"x{number}") for number in range(4)]
    bad = StepPolicy(RetryPolicy(2**40), HOUR)  # more than its column takes

    news = await asyncio.gather(
        *(here.say(one, done("s1", policy=bad if one is holdings[2] else PATIENT)) for one in holdings),
        return_exceptions=True,
    )

    assert [isinstance(one, Internal) for one in news] == [False, False, True, False]
    assert _express(here) >= 3
    assert [len(await here.steps(f"x{number}")) for number in range(4)] == [1, 1, 0, 1]


async def test_a_step_that_no_image_knows_fails_nobody(pairs: Pairs) -> None:
    """A takeover has counted the open execution: whoever reports that one again is told, and undoes no other report."""
    (here, _), _ = pairs
    await _begun(here)
    await here.lose_worker()
    again, other = await here.claim_one(BEN), await _begun(here, "y")
    before = _express(here)

    told, news = await asyncio.gather(here.say(again, done("s1", attempt=1)), here.say(other, done("s1")))

    assert (told.stale is not None, news.stale) == (True, None)
    assert (_express(here) - before, here.committer.timings.missed) == (1, 1)
    assert not here.db.faults


async def test_a_run_whose_end_is_told_of_is_ended_under_its_lock(pairs: Pairs) -> None:
    (here, _), _ = pairs
    holding = await _begun(here)
    listener = Handler("default", TaskKind.HOOK, "workflow.completed")
    here.bus.registered.add(listener)  # type: ignore[attr-defined]
    before = _express(here)
    await here.say(holding, done("s1"))
    await here.say(holding, FINISH)

    assert _express(here) - before == 1
    hooks = await here.db.run_tx(lambda tx: tx.execute(select(schema.hooks.c.name)).scalars().all())
    assert hooks == ["workflow.completed"]


# ---- fixtures

Meanwhile: TypeAlias = Callable[[Engine, Holding], Awaitable[None]]
Pairs: TypeAlias = tuple[tuple[Engine, Engine], tuple[Engine, Engine]]


@pytest.fixture
def urls(postgres: PostgresServer) -> Iterator[tuple[str, str]]:
    """Two databases."""
    with postgres.lend(templates.migrate_now) as one, postgres.lend(templates.migrate_now) as other:
        yield one, other


@pytest.fixture
async def pairs(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pairs]:
    """Two replicas of which one is express, and two of which none is, each pair on a database of its own."""
    monkeypatch.setitem(postgresql._HURRIED, "statement_timeout", f"{PATIENCE}s")  # gates are opened in their own time
    monkeypatch.setattr(postgresql, "COMMAND_TIMEOUT", PATIENCE)
    async with AsyncExitStack() as stack:
        here, there = await stack.enter_async_context(replicas_on(urls[0], 2))
        here.make_express()
        plain, other = await stack.enter_async_context(replicas_on(urls[1], 2))
        yield (here, there), (plain, other)


async def _begun(engine: Engine, instance_id: str = "x") -> Holding:
    """A run that is held, with an execution under way."""
    holding = await engine.begin(instance_id=instance_id)
    await engine.say(holding, (BEGIN, opens("s1")))
    return holding


def _express(engine: Engine) -> float:
    return engine.committer.timings.group_calls[Way.EXPRESS].total


def _said(news: News) -> Any:
    answers = [replace(one, refusal=None) for one in news.answers]
    return answers, [type(one.refusal) for one in news.answers], news.revision, type(news.stale)


async def _stored(engine: Engine, holding: Holding) -> dict[str, Any]:
    """All rows of the instance, but for numbers and for times that go on by themselves."""
    instance, task, zero = await engine.get(), await engine.task(), await engine.now()
    known: dict[str, Any] = {
        "instance": replace(instance, id=0, created_at=0, **{name: getattr(instance, name) and 0 for name in TIMES}),
        "steps": [
            step._replace(
                created_at=step.created_at - zero,
                updated_at=step.updated_at - zero,
                wake_at=step.wake_at and step.wake_at - zero,
            )
            for run_number in range(instance.run_number + 1)
            for _, step in sorted((await engine.steps(run_number=run_number)).items())
        ],
        "events": [(one.position, one.type, one.consumed_by_step) for one in await engine.events()],
    }
    if task is not None:
        opened = [(one.name, one.attempt, one.ends_at - zero) for one in load_open(task.open_steps)]
        known["task"] = task._replace(
            id=0,
            fence=task.fence - holding.held.fence,
            open_steps=str(opened),
            run_at=task.run_at - zero,
            locked_until=None,
            claimed_at=None,
        )
    return known


TIMES = ("updated_at", "started_at", "ended_at", "wake_at")
