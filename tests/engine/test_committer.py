"""Group commit: order, locks held elsewhere, calls the database cannot take, and a full inbox."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import text

from stepwell_server.domain.spine.tasks import NewTask, Verdict
from stepwell_server.domain.spine.work import Rules
from stepwell_server.domain.values.errors import DatabaseUnavailable, Internal, InvalidField, ServerBusy
from stepwell_server.engine.spine import committer as committers
from stepwell_server.engine.spine import group as groups
from stepwell_server.engine.spine.assignments import Ask, Capacity
from stepwell_server.engine.spine.books import Group, HotCall, Undecided
from stepwell_server.engine.spine.claims import claim
from stepwell_server.engine.spine.group import GroupResult
from stepwell_server.engine.spine.kinds import Kinds
from stepwell_server.storage.database.database import Database, Fault, Tx
from stepwell_server.storage.spine import limits
from stepwell_server.storage.spine import tasks as store
from tests.support.databases.postgres import PostgresServer
from tests.support.faults.faults import Rates, faulty
from tests.support.replicas import tickets
from tests.support.replicas.spine import ANNA, BEN, ORDER, Spine, running


@dataclass(frozen=True)
class Poison(HotCall):
    """A call that the database cannot take: the row it writes breaks a constraint."""

    key: str = "poison"

    @property
    def entity(self) -> Hashable:
        return self.key

    def decide(self, group: Group) -> None:
        group.schedule(NewTask(ORDER, self.key, priority=None))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Refused(Poison):
    """A call that is refused by its own rules."""

    def decide(self, group: Group) -> None:
        raise InvalidField("no", field="x")


class TooSlow(Exception):
    """A statement met its limit of time."""


@asynccontextmanager
async def under_way(db: Database, work: Callable[[Tx], object]):
    """Do this in another transaction, which ends with the block."""
    loop = asyncio.get_running_loop()
    has_it, let_go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with db.backend._pool.connect() as connection, connection.begin():  # type: ignore[attr-defined]
            await connection.run_sync(work)
            loop.call_soon(has_it.set)
            await let_go.wait()

    holding = asyncio.create_task(hold())
    await has_it.wait()
    try:
        yield
    finally:
        let_go.set()
        await holding


def claim_of_one(spine: Spine) -> Callable[[Tx], object]:
    """A claim of one task, as a replica makes it."""
    ask, rules = Ask([Capacity(ANNA, frozenset([ORDER]), 1)]), spine.replica.rules
    return lambda tx: claim(tx, ask, spine.replica.kinds, rules)


def locked(db: Database, task_id: int):
    """Hold the lock of a task until the block ends."""
    return under_way(db, lambda tx: store.lock(tx, [task_id], waiting=True))


async def test_many_calls_share_a_commit(spine: Spine) -> None:
    await asyncio.gather(*(spine.schedule(str(number)) for number in range(300)))

    assert len(await spine.rows()) == 300
    assert len(spine.committed) < 10


@pytest.mark.tuning(group_calls=10, group_bytes=5_000)
async def test_a_group_is_bounded(spine: Spine) -> None:
    await asyncio.gather(*(spine.schedule(str(number)) for number in range(45)))
    assert max(len(group.tasks[ORDER.kind]) for group in spine.committed) == 10

    spine.committed.clear()
    await asyncio.gather(*(spine.schedule(f"b{number}", payload="x" * 2000) for number in range(9)))
    assert max(len(group.tasks[ORDER.kind]) for group in spine.committed) == 3


@pytest.mark.tuning(group_items=10)
async def test_a_group_is_bounded_by_what_its_calls_weigh(spine: Spine) -> None:
    """A call that alone weighs more is a group of its own."""
    sizes = [4, 4, 4, 12, 1, 9, 1]
    keys = iter(range(100))
    batches = [tickets.ScheduleMany(tuple(NewTask(ORDER, str(next(keys))) for _ in range(size))) for size in sizes]

    answers = await asyncio.gather(*map(spine.submit, batches))

    assert [len(answer) for answer in answers] == sizes
    assert [len(group.tasks[ORDER.kind]) for group in spine.committed] == [8, 4, 12, 10, 1]


async def test_a_call_that_the_database_cannot_take_fails_alone(spine: Spine) -> None:
    neighbours = [spine.schedule(str(number)) for number in range(20)]

    results = await asyncio.gather(*neighbours[:10], spine.submit(Poison()), *neighbours[10:], return_exceptions=True)

    assert isinstance(results[10], Internal)
    assert not [one for one in results[:10] + results[11:] if isinstance(one, BaseException)]
    assert len(await spine.rows()) == 20


async def test_halving_a_group_keeps_the_order_behind_an_undecided_call(
    spine: Spine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        await spine.schedule(str(number))
    first, second = await spine.claim(credits=2)
    decided: list[tuple[Hashable, int]] = []
    locked_once: list[int] = []

    def run_group(tx: Tx, group: Sequence[Any], kinds: Kinds, rules: Rules, *, waiting: bool) -> GroupResult:
        if len(group) > 2:
            raise RuntimeError("this group cannot be taken as a whole")
        held_up = first.id if not locked_once else None
        locked_once.append(first.id)
        free = [call for call in group if call.entity != held_up]
        decided.extend((call.entity, call.frames[0].number) for call in free)
        result = groups.run_group(tx, free, kinds, rules, waiting=waiting)
        answers = iter(result.answers)
        return replace(result, answers=[Undecided() if call.entity == held_up else next(answers) for call in group])

    monkeypatch.setattr(committers, "run_group", run_group)
    frames = [spine.advance(first, 1), spine.advance(second, 1), spine.advance(first, 2), spine.advance(second, 2)]
    answers = await asyncio.gather(*frames)

    assert [answer.verdict for answer in answers] == [Verdict.ACCEPTED] * 4
    assert [number for entity, number in decided if entity == first.id] == [1, 2]


async def test_a_refused_call_is_refused_alone(spine: Spine) -> None:
    results = await asyncio.gather(
        spine.schedule("a"), spine.submit(Refused()), spine.schedule("b"), return_exceptions=True
    )

    assert [type(one).__name__ for one in results] == ["Task", "InvalidField", "Task"]


@pytest.mark.tuning(inbox_items=5)
async def test_a_full_inbox_turns_callers_away(spine: Spine) -> None:

    results = await asyncio.gather(*(spine.schedule(str(number)) for number in range(50)), return_exceptions=True)

    refused = [one for one in results if isinstance(one, ServerBusy)]
    assert len(refused) == 45
    assert refused[0].retry_after is not None
    assert len(await spine.rows()) == 5


async def test_a_cancelled_caller_loses_its_answer_and_not_its_commit(spine: Spine) -> None:
    caller = asyncio.create_task(spine.schedule("kept"))
    await asyncio.sleep(0)
    caller.cancel()
    await spine.schedule("other")

    assert {row.key for row in await spine.rows()} == {"kept", "other"}


async def test_locked_is_not_lost(spines: tuple[Spine, Spine]) -> None:
    """Rule 3: a result for a task that somebody has locked is kept and counts; for one that is gone it is stale."""
    here, there = spines
    await here.schedule("locked")
    await here.schedule("gone")
    tasks = {task.key: task for task in await here.claim(credits=2)}
    await here.finish(tasks["gone"])

    async with locked(there.db, tasks["locked"].id):
        kept = asyncio.create_task(here.advance(tasks["locked"]))
        assert (await here.advance(tasks["gone"])).verdict is Verdict.STALE
        assert not kept.done()

    assert (await kept).verdict is Verdict.ACCEPTED


async def test_a_locked_task_holds_up_nobody_else(spines: tuple[Spine, Spine]) -> None:
    here, there = spines
    for number in range(10):
        await here.schedule(str(number))
    tasks = await here.claim(credits=10)

    async with locked(there.db, tasks[0].id):
        stuck = [asyncio.create_task(here.advance(tasks[0], number)) for number in (1, 2, 3)]
        for _ in range(5):
            answers = await asyncio.gather(*(here.renew(task) for task in tasks[1:]))
            assert {answer.verdict for answer in answers} == {Verdict.ACCEPTED}
        assert not any(one.done() for one in stuck)

    assert [(await one).verdict for one in stuck] == [Verdict.ACCEPTED] * 3


async def test_calls_about_one_entity_stay_in_order_behind_one_that_is_locked(spines: tuple[Spine, Spine]) -> None:
    here, there = spines
    await here.schedule()
    mine = await here.claim_one()

    async with locked(there.db, mine.id):
        frames = [here.advance(mine, 1), here.advance(mine, 2), here.finish(mine, 3)]
        waiting = [asyncio.create_task(frame) for frame in frames]
        while not here.committer._slow:
            await asyncio.sleep(0.001)

    assert [(await one).verdict for one in waiting] == [Verdict.ACCEPTED] * 3
    assert await here.rows() == []


async def test_groups_and_management_calls_never_deadlock(spines: tuple[Spine, Spine]) -> None:
    """Rule 4: hot groups of both replicas against calls that wait for locks, over the same tasks."""
    here, there = spines
    for number in range(40):
        await here.schedule(str(number))
    tasks = await here.claim(credits=40)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

    async def hot(spine: Spine, backwards: bool) -> None:
        for _ in range(10):
            ordered = list(reversed(tasks)) if backwards else tasks
            answers = await asyncio.gather(*(spine.renew(task) for task in ordered))
            assert {answer.verdict for answer in answers} == {Verdict.ACCEPTED}

    async def manage(spine: Spine) -> None:
        for task in tasks:
            await spine.db.run_tx(lambda tx, one=task.id: tickets.pause(tx, one))  # type: ignore[misc]
            await spine.db.run_tx(lambda tx, one=task.id: tickets.resume(tx, one, 0))  # type: ignore[misc]

    async def many(spine: Spine, ids: list[int]) -> None:
        def touch(tx: Tx) -> None:
            store.save(tx, store.lock(tx, ids, waiting=True).values())

        for _ in range(20):
            await spine.db.run_tx(touch)

    ids = [task.id for task in tasks]
    await asyncio.gather(
        hot(here, False), hot(there, True), manage(here), manage(there), many(here, ids), many(there, ids[::-1])
    )

    count = await here.db.run_tx(lambda tx: tx.execute(text(deadlocks)).scalar_one())
    assert count == 0


async def test_a_wake_that_commits_while_a_release_waits_is_seen(spines: tuple[Spine, Spine]) -> None:
    """Rule 1: the lock comes first and the look second, so nothing committed before the lock is missed."""
    here, there = spines
    await here.schedule()
    mine = await here.claim_one()
    far = await here.now() + 10**12
    loop = asyncio.get_running_loop()
    has_it, let_go = asyncio.Event(), asyncio.Event()

    async def wake() -> None:
        async with there.db.backend._pool.connect() as connection, connection.begin():  # type: ignore[attr-defined]
            await connection.run_sync(
                lambda tx: tickets.change(tx, mine.id, lambda task, at: task.woken(at.now, task.reason, 0))
            )
            loop.call_soon(has_it.set)
            await let_go.wait()

    waking = asyncio.create_task(wake())
    await has_it.wait()
    releasing = asyncio.create_task(here.release(mine, 1, far))
    while not here.committer._slow:
        await asyncio.sleep(0.001)
    let_go.set()
    await waking

    assert (await releasing).verdict is Verdict.ACCEPTED
    assert (await there.claim_one(ANNA)).id == mine.id


async def test_two_replicas_claim_a_limited_handler_without_passing_its_limit(spines: tuple[Spine, Spine]) -> None:
    """Rule 12: the limit is counted under the handler's lock."""
    here, there = spines
    for number in range(60):
        await here.schedule(str(number))
    await here.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=5))

    for _ in range(10):
        claims = await asyncio.gather(*(spine.claim(credits=4) for spine in (here, there) for _ in range(3)))
        running = await here.db.run_tx(lambda tx: limits.count_held(tx, [ORDER]))
        assert running.get(ORDER, 0) <= 5
        await asyncio.gather(*(here.finish(task) for claim in claims for task in claim))

    assert len(await here.rows()) < 60


async def test_a_pause_is_acknowledged_when_every_claim_before_it_has_ended(
    spines: tuple[Spine, Spine], postgres: PostgresServer, postgres_url: str
) -> None:
    """Else a claim that has seen the handler before the pause would hand out its tasks after it."""
    here, there = spines

    async with under_way(there.db, claim_of_one(there)):
        pausing = asyncio.create_task(
            here.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=None, is_paused=True))
        )
        await postgres.wait_for_waiters(postgres_url, 1)
        assert not pausing.done()
    await pausing

    await here.schedule()
    assert await there.claim() == []


async def test_a_claim_does_not_wait_for_a_pause_that_is_under_way_and_gets_nothing(
    spines: tuple[Spine, Spine],
) -> None:
    here, there = spines
    await here.schedule()

    async with under_way(there.db, lambda tx: limits.limit(tx, ORDER, concurrency=None, is_paused=True)):
        claimed = await here.claim()

    assert claimed == []


async def test_a_worker_that_says_hello_again_does_not_wait_for_claims(spines: tuple[Spine, Spine]) -> None:
    here, there = spines

    async with under_way(there.db, claim_of_one(there)):
        await here.register(ORDER)  # a lock that it waited for would refuse it


async def test_four_replicas_worth_of_claims_hand_out_each_task_once(spines: tuple[Spine, Spine]) -> None:
    here, there = spines
    for number in range(100):
        await here.schedule(str(number))

    claims = await asyncio.gather(*(spine.claim(credits=10) for spine in (here, there) for _ in range(10)))

    got = [task.id for claim in claims for task in claim]
    assert len(got) == len(set(got)) == 100


async def test_the_same_key_scheduled_by_two_replicas_at_once_is_stored_once(spines: tuple[Spine, Spine]) -> None:
    here, there = spines
    keys = [str(number) for number in range(50)]

    def schedule(spine: Spine, ordered: list[str]) -> list[object]:
        return [spine.submit(tickets.Schedule(NewTask(ORDER, key))) for key in ordered]

    results = await asyncio.gather(*schedule(here, keys), *schedule(there, keys[::-1]))

    assert len([one for one in results if one is not None]) == 50
    assert len(await here.rows()) == 50


async def test_a_claim_passes_over_what_is_locked(spines: tuple[Spine, Spine]) -> None:
    here, there = spines
    first = await here.schedule("first")
    await here.schedule("second")

    async with locked(there.db, first.id):
        claimed = await here.claim(credits=2)

    assert [task.key for task in claimed] == ["second"]


async def test_a_claim_keeps_others_from_nothing_that_it_does_not_take(spines: tuple[Spine, Spine]) -> None:
    """Else the oldest of what is less urgent would be passed over as long as anybody claims what is more urgent."""
    here, there = spines
    for key, priority in (("oldest", 5), ("newer", 5), ("urgent", 0)):
        await here.schedule(key, priority=priority)

    async with under_way(there.db, claim_of_one(there)):
        claimed = await here.claim(BEN)

    assert [task.key for task in claimed] == ["oldest"]


async def test_a_call_stays_behind_while_its_entity_is_on_the_slow_lane(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    lane = spine.committer._slow[mine.id] = asyncio.create_task(asyncio.sleep(60))

    behind = asyncio.create_task(spine.advance(mine))
    await spine.schedule("other")
    stored = await spine.read(mine.id)
    assert stored is not None and stored.frame_number == 0
    assert not behind.done()

    del spine.committer._slow[mine.id]
    lane.cancel()
    spine.committer._arrived.set()
    assert (await behind).verdict is Verdict.ACCEPTED


async def test_locks_are_taken_in_one_order_whatever_was_asked(
    spines: tuple[Spine, Spine], postgres_url: str, postgres: PostgresServer
) -> None:
    here, there = spines
    ids = [(await here.schedule(str(number))).id for number in range(50)]

    async with locked(there.db, ids[0]):
        waiting = asyncio.create_task(here.db.run_tx(lambda tx: store.lock(tx, ids[::-1], waiting=True)))
        await postgres.wait_for_waiters(postgres_url, 1)
        free = await there.db.run_tx(lambda tx: store.lock(tx, ids[1:], waiting=False))
        assert [*free] == ids[1:]  # the other waits for the first, and has none of these yet

    assert [*await waiting] == ids


async def test_a_refusal_that_nobody_waits_for_any_more_is_no_error(spine: Spine) -> None:
    """A stream that broke leaves its calls behind; their answers are not missed."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    gc.collect()  # what other tests have left behind is not complained of here
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    try:
        refused = spine.committer.enqueue(Refused())
        await asyncio.wait([refused])
        del refused
        gc.collect()
    finally:
        loop.set_exception_handler(None)

    assert complaints == []


async def test_a_call_that_loses_again_and_again_is_decided_on_the_slow_lane(spine: Spine, db: Database) -> None:
    """No conflict leaves the server as long as a transaction of its own can win."""
    losing, backend = faulty(db, 0, group=Rates(conflict=1.0))
    async with running(Spine(losing)) as stumbling:
        stored = await asyncio.gather(*(stumbling.schedule(str(number)) for number in range(3)))

    assert {task.key for task in stored} == {"0", "1", "2"}
    assert backend.fired["conflict"] > 3


async def test_what_takes_a_group_too_long_is_done_in_parts(spine: Spine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 13: a time limit is met by the whole, and by one call perhaps; its neighbours do not pay for that."""

    def run_group(tx: Tx, group: Sequence[Any], kinds: Kinds, rules: Rules, *, waiting: bool) -> GroupResult:
        if len(group) > 2:
            raise TooSlow
        return groups.run_group(tx, group, kinds, rules, waiting=waiting)

    classify = spine.db.backend.classify
    as_seen = lambda error: Fault.TIMEOUT if isinstance(error, TooSlow) else classify(error)  # noqa: E731
    monkeypatch.setattr(spine.db.backend, "classify", as_seen)
    monkeypatch.setattr(committers, "run_group", run_group)

    await asyncio.gather(*(spine.schedule(str(number)) for number in range(10)))

    assert len(await spine.rows()) == 10


async def test_callers_of_a_group_that_fails_have_a_refusal_each(spine: Spine, db: Database) -> None:
    """One exception that all of them raise would gather their tracebacks, and show each what the others did."""
    broken, _ = faulty(db, 0, group=Rates(error=1.0))
    async with running(Spine(broken)) as stumbling:
        refused = [stumbling.committer.enqueue(tickets.Schedule(NewTask(ORDER, str(number)))) for number in range(3)]
        await asyncio.wait(refused)

    errors = [one.exception() for one in refused]
    assert {type(error) for error in errors} == {DatabaseUnavailable}
    assert len({id(error) for error in errors}) == 3


async def test_the_id_of_a_finished_task_is_never_given_to_another(spine: Spine) -> None:
    ids = []
    for _ in range(3):
        await spine.schedule()
        task = await spine.claim_one()
        ids.append(task.id)
        await spine.finish(task)

    assert len(set(ids)) == 3
