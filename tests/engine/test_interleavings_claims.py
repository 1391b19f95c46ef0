"""Interleavings of claims, each forced: what was leased to a worker that nobody told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Held, LeaseTimes
from stepwell_server.domain.spine.tasks import Task, TaskStatus
from stepwell_server.domain.spine.wakes import ProcessOrder, WakeFilter
from stepwell_server.domain.values.errors import DatabaseSlow, DatabaseUnavailable
from stepwell_server.domain.values.times import SECOND
from stepwell_server.domain.workflows.frames import Suspend
from stepwell_server.engine.spine import claims
from stepwell_server.engine.spine.assignments import Ask, Assignment, Capacity, Claimed
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.calls import Claim
from stepwell_server.engine.spine.claims import MOST_ASKED, claim
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.connections import Connection
from stepwell_server.engine.spine.group import GroupResult
from stepwell_server.engine.spine.handout import Handout
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.local_workers import LocalWorker
from stepwell_server.storage.database.database import Fault, Tx, TxOptions
from stepwell_server.storage.spine.claims import Served
from stepwell_server.storage.workflows import runs as run_store
from stepwell_server.storage.workflows.runs import RunRef
from tests.support.faults.faults import FaultyBackend, Rates
from tests.support.faults.forcing import held_before_commit
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import ANNA, BEN, ORDER, Engine, Holding, background, done, replicas_on, taken, until
from tests.support.replicas.spine import Spine

ANY = ProcessOrder(WakeFilter("default", frozenset(), frozenset()), max_tasks=10, max_steps=0)
STUCK = Handler("default", TaskKind.WORKFLOW, "stuck")
IN_A_MOMENT = LeaseTimes(ack_window=SECOND // 2)
"""Leases that are no longer worth to be delivered after a quarter of a second."""


async def test_a_claim_whose_answer_was_lost_is_returned_and_made_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: else it stays with a worker that never heard of it until its lease is over."""
    connection = await engine.connect(ANNA)
    await engine.create()
    fences = list[int]()

    async def lose_the_first(result: GroupResult) -> None:
        fences.append(result.committed.assigned[0].task.fence)
        if len(fences) == 1:
            raise DatabaseUnavailable("the answer was lost")

    after_claims(monkeypatch, lose_the_first)
    async with background(engine.handout.run()):
        connection.grant(1)
        (delivery,) = await taken(connection)

    assert isinstance(delivery, Assignment)
    assert delivery.held.fence == fences[-1] > fences[0]
    assert (delivery.task.interruptions, connection.worker.credits) == (0, 0)


def after_claims(monkeypatch: pytest.MonkeyPatch, action: Callable[[GroupResult], Awaitable[None]]) -> None:
    """Do this when a group with a claim is committed, before its replica hears of that."""
    run = Committer._run

    async def interrupted(committer: Committer, calls: Sequence[HotCall], options: TxOptions) -> GroupResult:
        result = await run(committer, calls, options)
        if any(isinstance(call, Claim) for call in calls):
            await action(result)
        return result

    monkeypatch.setattr(Committer, "_run", interrupted)


async def test_an_order_whose_claim_was_lost_leaves_its_worker_able_to_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: nothing else may ever happen on a server that moves work on request only."""
    engine.handout.close()  # it hands out nothing by itself
    connection = await engine.connect(ANNA)
    connection.grant(1)
    await engine.create()
    submit, lost = Committer.submit, []

    async def lose_the_first(committer: Committer, call: Any, *sender: Sender) -> Any:
        if isinstance(call, Claim) and not lost:
            lost.append(call)
            raise DatabaseUnavailable("it did not answer")
        return await submit(committer, call, *sender)

    monkeypatch.setattr(Committer, "submit", lose_the_first)
    async with background(engine.handout.run()):
        await asyncio.sleep(0)  # it waits for something to happen
        assert await engine.handout.process(ANY) == []
        async with asyncio.timeout(PATIENCE):
            while not connection.worker.takes_more:
                await asyncio.sleep(0.001)
        assert len(await engine.handout.process(ANY)) == 1


async def test_what_is_on_its_way_to_a_worker_is_not_taken_for_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: of two orders one is lost, while the other has claimed and not yet delivered."""
    engine.handout.close()
    connection = await engine.connect(ANNA)
    await engine.create()
    deliver = asyncio.Event()

    async def wait(result: GroupResult) -> None:
        await deliver.wait()

    after_claims(monkeypatch, wait)
    async with background(engine.handout.run()):
        first = await lose_the_second_order(engine, connection, monkeypatch)
        deliver.set()
        await arrives(engine, connection, first)


async def test_what_waits_for_its_input_is_not_taken_for_lost(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7: what a worker must know of a run that has begun is read when the claim is committed."""
    engine.handout.close()
    await engine.say(await engine.begin(), done("a"), Suspend(yields=True))
    connection = await engine.connect(ANNA)

    async with background(engine.handout.run()):
        async with engine.handout.deliveries._reading:
            first = await lose_the_second_order(engine, connection, monkeypatch)
        await arrives(engine, connection, first)


async def lose_the_second_order(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> asyncio.Task[list[Held]]:
    """Two orders: the first has claimed, and the claim of the second is lost. Returns the first."""
    submit, claims = Committer.submit, []

    async def lose_the_second(committer: Committer, call: Any, *sender: Sender) -> Any:
        if isinstance(call, Claim):
            claims.append(call)
            if len(claims) == 2:
                raise DatabaseUnavailable("it did not answer")
        return await submit(committer, call, *sender)

    monkeypatch.setattr(Committer, "submit", lose_the_second)
    connection.grant(1)
    first = engine.handout.take_order(ANY)
    while (await engine.live()).status is not TaskStatus.PROCESSING:
        await asyncio.sleep(0)
    connection.grant(1)
    assert await engine.handout.process(ANY) == []
    await engine.get()  # time for somebody to return what seems to be lost
    return first


async def arrives(engine: Engine, connection: Connection, order: asyncio.Task[list[Held]]) -> None:
    """What an order has claimed arrives at its worker, which can take more then."""
    (held,) = await order
    async with asyncio.timeout(PATIENCE):
        while connection.worker.has_lost_claim:
            await asyncio.sleep(0.001)

    task = await engine.live()
    assert (task.status, task.fence) == (TaskStatus.PROCESSING, held.fence)
    assert list(connection.worker.held.values()) == [held]


async def test_runs_whose_steps_take_too_long_to_read_hold_up_no_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were all given back, and claimed again, for ever."""
    for mine in [await engine.begin(instance_id=f"i{number}") for number in range(5)]:
        await engine.say(mine, done("a"), Suspend(yields=True))
    huge = (await engine.live("i2")).id
    all_steps = run_store.all_steps

    def slow(tx: Any, runs: Sequence[RunRef]) -> Any:
        if huge in {run.task_id for run in runs}:
            raise DatabaseSlow("it took too long")
        return all_steps(tx, runs)

    monkeypatch.setattr(run_store, "all_steps", slow)
    monkeypatch.setattr(engine.db.backend, "classify", lambda error: Fault.TIMEOUT)
    connection = await engine.connect(ANNA)
    connection.grant(5)
    given: list[str] = []
    async with background(engine.handout.run()):
        while len(given) < 4:
            given += [one.task.key for one in await taken(connection) if isinstance(one, Assignment)]

    assert sorted(given) == ["i0", "i1", "i3", "i4"]


async def test_a_newborn_whose_commit_seemed_to_fail_is_returned_and_claimed_again(engine: Engine) -> None:
    """Rule 7: it was born into the hands of a worker, and whoever stored it does not know that it did."""
    connection = await engine.connect(ANNA)
    connection.grant(1)
    backend = engine.db.backend
    engine.db.backend = FaultyBackend(backend, {"group": Rates(execute_then_fail=1.0)})
    with pytest.raises(DatabaseUnavailable):
        await engine.create()
    engine.db.backend = backend
    born = await engine.live()

    async with background(engine.handout.run()):
        (delivery,) = await taken(connection)

    assert isinstance(delivery, Assignment)
    assert (delivery.held.task_id, delivery.task.interruptions) == (born.id, 0)
    assert delivery.held.fence > born.fence


async def test_a_newborn_whose_creator_went_away_is_delivered_all_the_same(postgres_url: str) -> None:
    """Rule 7: a cancelled call stops waiting; what it began ends whole."""
    async with replicas_on(postgres_url) as (engine,):
        connection = await engine.connect(ANNA)
        connection.grant(1)
        async with held_before_commit(engine, engine.create()) as creating:
            creating.cancel()
            await asyncio.wait([creating])

        (delivery,) = await taken(connection)

    assert isinstance(delivery, Assignment)
    assert connection.worker.credits == 0


# ---- 7: what a replica that stood still would deliver


async def stand_still(times: LeaseTimes = IN_A_MOMENT) -> None:
    """Return once half of the ack window has passed."""
    over = asyncio.get_running_loop().time() + times.ack_window / 2 / SECOND
    await until(lambda: asyncio.get_running_loop().time() > over)


async def test_a_claim_that_took_too_long_is_not_delivered_to_a_worker_whose_task_it_no_longer_is(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: its lease has ended uncounted while the replica stood still, and another has the task."""
    theirs: list[Assignment] = []
    async with replicas_on(database_url, times=IN_A_MOMENT) as (engine,):
        replica, ask = engine.replica, Ask([Capacity(BEN, frozenset([ORDER]), 1)])

        async def stand_still_after_it(result: GroupResult) -> None:
            await stand_still()
            await engine.lose_worker()
            theirs.extend((await engine.db.run_tx(lambda tx: claim(tx, ask, replica.kinds, replica.rules))).assigned)

        after_claims(monkeypatch, stand_still_after_it)
        connection = await engine.connect(ANNA)
        await engine.create()
        connection.grant(1)

        assert await engine.handout.process(ANY) == []

        (their,) = map(Holding, theirs)
        await engine.say(their, done("a"))  # after what was given back
        assert ([*connection.outbox], connection.worker.held, connection.worker.credits) == ([], {}, 1)
        task = await engine.live()
        assert (task.owner, task.fence, task.interruptions) == (BEN, their.held.fence, 0)


async def test_a_claim_that_took_too_long_is_returned_and_made_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 7: its commit waited, and nobody knows how much of the lease was over before."""
    fences = list[int]()

    async def note(result: GroupResult) -> None:
        fences.extend(assignment.task.fence for assignment in result.committed.assigned)

    after_claims(monkeypatch, note)
    async with replicas_on(postgres_url, times=IN_A_MOMENT) as (engine,):
        connection = await engine.connect(ANNA)
        await engine.create()
        connection.grant(1)
        async with background(engine.handout.run()):
            async with held_before_commit(engine, taken(connection)) as taking:
                await stand_still()

            (delivery,) = await taking

    assert isinstance(delivery, Assignment)
    assert (delivery.task.interruptions, connection.worker.credits) == (0, 0)
    assert delivery.held.fence == fences[-1] > fences[0]


async def test_a_run_whose_steps_took_too_long_to_read_is_returned_and_claimed_again(database_url: str) -> None:
    """Rule 7: its lease went on meanwhile."""
    async with replicas_on(database_url, times=IN_A_MOMENT) as (engine,):
        await engine.say(await engine.begin(), done("a"), Suspend(yields=True))
        connection = await engine.connect(ANNA)
        connection.grant(1)
        async with background(engine.handout.run()):
            async with engine.handout.deliveries._reading:
                while (first := await engine.live()).status is not TaskStatus.PROCESSING:
                    await asyncio.sleep(0)
                await stand_still()
            (delivery,) = await taken(connection)

    assert isinstance(delivery, Assignment)
    assert (delivery.task.interruptions, connection.worker.credits) == (0, 0)
    assert delivery.held.fence > first.fence


async def test_a_newborn_that_took_too_long_is_returned_and_claimed(postgres_url: str) -> None:
    """Rule 7: the same for one that was born into the hands of a worker."""
    async with replicas_on(postgres_url, times=IN_A_MOMENT) as (engine,):
        connection = await engine.connect(ANNA)
        connection.grant(1)
        async with held_before_commit(engine, engine.create()):
            await stand_still()
        await engine.send()  # after what was given back
        born = await engine.live()
        assert (born.status, [*connection.outbox], connection.worker.held) == (TaskStatus.PENDING, [], {})

        async with background(engine.handout.run()):
            (delivery,) = await taken(connection)

    assert isinstance(delivery, Assignment)
    assert (delivery.task.interruptions, connection.worker.credits) == (0, 0)
    assert delivery.held.fence > born.fence


# ---- 14: what is due, and nobody gets it


LONG_PAUSES = pytest.mark.tuning(claim_pause=60.0)
"""A hand-out that has long been refused what is due."""


def entered(spine: Spine, *more: Handler) -> tuple[Handout, LocalWorker]:
    """A hand-out by the real clock, and a worker of it that hosts all of the names here."""
    worker = LocalWorker(ANNA, frozenset([ORDER, STUCK, *more]), lambda assignment: None, lambda held, news: None)
    spine.replica.handout._embedded = True
    handout = spine.replica.handout
    handout.workers.enter(worker)
    handout.workers.grant(worker, 2)
    return handout, worker


@LONG_PAUSES
async def test_work_that_becomes_due_does_not_wait_for_work_that_nobody_gets(
    spine: Spine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 14: somebody has locked what is due, and a claim that got nothing is not made again for a while."""
    lock_due = claims.lock_due
    monkeypatch.setattr(claims, "lock_due", lambda *asked: [one for one in lock_due(*asked) if one.handler != STUCK])
    await spine.register(STUCK)
    handout, worker = entered(spine)
    await spine.schedule(handler=STUCK)
    await spine.schedule(run_at=await spine.now() + SECOND // 2)

    async with background(handout.run()):
        await until(lambda: worker.held)


@LONG_PAUSES
async def test_where_many_handlers_are_due_a_claim_asks_for_some_and_none_is_forgotten(
    spine: Spine, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [Handler("default", TaskKind.WORKFLOW, f"name{number}") for number in range(3 * MOST_ASKED)]
    nothing = frozenset(many[: 2 * MOST_ASKED])
    lock_due, asked = claims.lock_due, list[int]()

    def note(tx: Tx, served: Sequence[Served], *rest: Any) -> list[Task]:
        asked.append(len(served))
        return [one for one in lock_due(tx, served, *rest) if one.handler not in nothing]

    monkeypatch.setattr(claims, "lock_due", note)
    await spine.register(*many)
    handout, worker = entered(spine, *many)
    await asyncio.gather(*(spine.schedule(handler=handler) for handler in many))
    handout.workers.grant(worker, len(many))

    async with background(handout.run()):
        await until(lambda: len(worker.held) == MOST_ASKED)

    assert max(asked) <= MOST_ASKED


@LONG_PAUSES
async def test_a_time_that_comes_while_a_claim_is_under_way_is_not_slept_through(
    spine: Spine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 10: a held run waits for it, and the claim gets nothing."""
    handout, worker = entered(spine)
    await spine.schedule()
    mine, told = Held(12345, 1), list[Held]()
    worker.tell = lambda held, news: told.append(held)
    over = await spine.now() + SECOND // 4
    handout.holders.hold(worker, mine)
    handout.holders.set_timer(worker, mine, over)

    async def get_nothing(committer: Committer, call: Any, *sender: Sender) -> Claimed:
        await until(lambda: spine.replica.bus.time.now() >= over)
        return Claimed()

    monkeypatch.setattr(Committer, "submit", get_nothing)
    async with background(handout.run()):
        await until(lambda: told)

    assert told == [mine]
