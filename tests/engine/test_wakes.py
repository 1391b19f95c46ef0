"""The wake bus: when something can be claimed next, by commits, hints and the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.values.errors import DatabaseSlow
from stepwell_server.domain.values.times import HOUR, SECOND
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.loops import sweep
from stepwell_server.engine.spine.loops.refresh_wakes import refresh_wakes
from stepwell_server.engine.spine.wakes import DatabaseTime, WakeBus
from stepwell_server.storage.database.database import MOST_ATTEMPTS, Fault
from stepwell_server.storage.database.hints import Hint, PostgresqlHints
from stepwell_server.storage.spine import limits, wakes
from stepwell_server.storage.spine.tasks import Stamp
from stepwell_server.storage.spine.wakes import HandlerWake
from tests.support.faults.faults import FaultyBackend, Rates
from tests.support.patience import PATIENCE
from tests.support.replicas import tickets
from tests.support.replicas.spine import ANNA, ORDER, Spine, held, running, sweep_of

OTHER = Handler("default", TaskKind.WORKFLOW, "other")


def everything(handler: Handler) -> bool:
    return True


class Follower:
    """What follows the wakes of a spine, and the loops that feed its bus."""

    def __init__(self, spine: Spine) -> None:
        self.spine = spine
        self.bus = spine.replica.bus
        self.sweep = sweep_of(spine.replica)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Follower]:
        replica = self.spine.replica
        loops: list[Callable[[], Awaitable[None]]] = [
            replica.relay.run,
            lambda: refresh_wakes(replica.db, replica.bus),
            lambda: replica.hints.listen(replica.heard),
        ]
        tasks = [asyncio.ensure_future(loop()) for loop in loops]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.bus.changed_since(self.bus.number)

    def due_at(self) -> int | None:
        return self.bus.next_wake(everything).due_at

    def lapses_at(self) -> int | None:
        return self.bus.next_wake(everything).lapses_at


@pytest.fixture
async def follower(spine: Spine) -> AsyncIterator[Follower]:
    async with Follower(spine).at_work() as one:
        yield one


async def test_a_commit_makes_the_next_wake_earlier_and_a_finish_makes_it_none(follower: Follower) -> None:
    later = await follower.spine.now() + HOUR
    await follower.spine.schedule("later", run_at=later)
    await follower.until(lambda: follower.due_at() == later)

    now = await follower.spine.schedule("now")
    await follower.until(lambda: follower.due_at() == now.run_at)

    task = await follower.spine.claim_one()
    await follower.spine.finish(task)
    await follower.until(lambda: follower.due_at() == later)


async def test_numbers_grow_with_changes_and_only_with_changes(follower: Follower) -> None:
    await follower.spine.schedule(run_at=await follower.spine.now() + HOUR)
    await follower.until(lambda: follower.due_at() is not None)
    number = follower.bus.number

    await follower.sweep.once()
    assert follower.bus.number == number


async def test_held_work_counts_by_the_end_of_its_lease(follower: Follower) -> None:
    await follower.spine.schedule()
    task = await follower.spine.claim_one()

    await follower.until(lambda: follower.lapses_at() == task.locked_until and follower.due_at() is None)


async def test_what_cannot_be_claimed_does_not_count(spine: Spine) -> None:
    """Rule 14: parked, paused and saturated."""
    parked = await spine.schedule("parked")
    await spine.db.run_tx(lambda tx: tickets.pause(tx, parked.id))
    assert await due(spine) is None

    task = await spine.schedule("due")
    assert await due(spine) == task.run_at
    await spine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=None, is_paused=True))
    assert await due(spine) is None

    await spine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=1))
    await spine.schedule("waiting")
    held = await spine.claim_one()
    (wake,) = await spine.db.run_tx(wakes.next_wakes)
    assert (wake.due_at, wake.lapses_at) == (None, held.locked_until)


async def due(spine: Spine) -> int | None:
    (wake,) = await spine.db.run_tx(wakes.next_wakes)
    return wake.due_at


async def test_next_wakes_are_told_handler_by_handler(follower: Follower) -> None:
    await follower.spine.register(OTHER)
    mine = await follower.spine.schedule("a")
    theirs = await follower.spine.schedule("b", handler=OTHER)
    await follower.until(lambda: len(follower.bus.due_handlers(everything)) == 2)

    assert follower.bus.due_handlers(everything) == [(ORDER, mine.run_at), (OTHER, theirs.run_at)]
    assert follower.bus.next_wake(lambda handler: handler == OTHER).due_at == theirs.run_at


async def test_a_timer_fires_by_the_databases_time_and_hears_of_earlier_work(follower: Follower) -> None:
    waiting = asyncio.create_task(follower.bus.wait_until_due(everything))
    await follower.spine.schedule("far", run_at=await follower.spine.now() + HOUR)
    await follower.until(lambda: follower.due_at() is not None)
    assert not waiting.done()

    soon = await follower.spine.now() + SECOND // 20
    await follower.spine.schedule("soon", run_at=soon)
    async with asyncio.timeout(PATIENCE):
        await waiting

    assert await follower.spine.now() >= soon


async def test_a_thousand_subscribers_ask_nothing(follower: Follower) -> None:
    statements: list[str] = []

    def is_over() -> bool:
        return follower.lapses_at() is not None and follower.due_at() is None

    told = [asyncio.create_task(follower.until(is_over)) for _ in range(1000)]
    await asyncio.sleep(0)

    with follower.spine.db.failpoints.install(statements.append):
        await follower.spine.schedule()
        await follower.spine.claim_one()
        await asyncio.gather(*told)  # which only the database can tell

    refreshes = [one for one in statements if one == "after-commit/refresh-wakes"]
    assert 1 <= len(refreshes) <= 3


async def test_the_sweep_finds_what_no_hint_told(spine: Spine) -> None:
    task = await spine.schedule()
    blind = Follower(Spine(spine.db))
    assert blind.due_at() is None

    await blind.sweep.once()

    assert blind.due_at() == task.run_at


async def test_the_sweep_takes_lapsed_leases_back_and_writes_nothing_at_rest(spine: Spine) -> None:
    follower = Follower(spine)
    await spine.schedule()
    await follower.sweep.once()
    await spine.claim_one(ANNA)
    await spine.pass_lease_time(11)

    swept = await follower.sweep.once()
    assert swept is not None and len(swept.lapsed) == 1

    rest = await follower.sweep.once()
    assert rest is not None and not rest.lapsed and not rest.gap


async def test_leases_lapse_though_the_next_wakes_take_too_long_to_read(
    spine: Spine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a row for every name that was ever used."""
    follower = Follower(spine)
    await spine.schedule()
    await spine.claim_one(ANNA)
    await follower.sweep.once()
    await spine.pass_lease_time(11)

    def too_many(tx: Any) -> Any:
        raise DatabaseSlow("it took too long")

    monkeypatch.setattr(sweep, "next_wakes", too_many)
    monkeypatch.setattr(spine.db.backend, "classify", lambda error: Fault.TIMEOUT)
    swept = await follower.sweep.once()

    assert swept is not None and len(swept.lapsed) == 1


async def test_what_could_not_be_refreshed_is_asked_for_again(follower: Follower) -> None:
    """Nobody may ever touch that name a second time."""
    follower.spine.committer.on_commit = lambda committed: None  # as a commit of another replica
    task = await follower.spine.schedule()
    follower.spine.db.backend = faulty = FaultyBackend(follower.spine.db.backend, {"refresh-wakes": Rates(error=1.0)})
    follower.bus.notes.add([ORDER])
    async with asyncio.timeout(PATIENCE):
        while faulty.fired["error"] < MOST_ATTEMPTS:
            await asyncio.sleep(0.001)

    faulty.rates.clear()

    await follower.until(lambda: follower.due_at() == task.run_at)


async def test_a_question_about_too_many_names_does_not_hold_up_those_that_are_served(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_wakes = wakes.next_wakes

    def too_many(tx: Any, of: Any = None) -> Any:
        if of is None:
            raise DatabaseSlow("it took too long")
        return next_wakes(tx, of)

    follower.spine.committer.on_commit = lambda committed: None
    follower.bus.serve(frozenset([ORDER]))
    task = await follower.spine.schedule()
    monkeypatch.setattr(wakes, "next_wakes", too_many)
    monkeypatch.setattr(follower.spine.db.backend, "classify", lambda error: Fault.TIMEOUT)

    follower.bus.notes.add(None)

    await follower.until(lambda: follower.due_at() == task.run_at)


async def test_replicas_hear_of_each_others_commits(spines: tuple[Spine, Spine], postgres_url: str) -> None:
    async with hinting(spines[0], postgres_url) as here, hinting(spines[1], postgres_url) as there:
        while not (here.spine.hints.working and there.spine.hints.working):
            await asyncio.sleep(0.01)

        task = await here.spine.schedule()
        await there.until(lambda: there.due_at() == task.run_at)


@asynccontextmanager
async def hinting(spine: Spine, postgres_url: str) -> AsyncIterator[Follower]:
    """Another replica on the same database, which tells others by hints and hears of them."""
    other = Spine(spine.db, hints=PostgresqlHints(make_url(postgres_url)))
    async with running(other), Follower(other).at_work() as follower:
        yield follower


async def test_lost_hints_are_noticed_and_come_back(spines: tuple[Spine, Spine], postgres_url: str, postgres) -> None:
    spine, other = spines
    later = await other.schedule("later", run_at=await other.now() + HOUR)  # nobody hints: this spine has no relay
    async with hinting(spine, postgres_url) as follower:
        await follower.until(lambda: follower.due_at() == later.run_at)  # the question of the first connection is over
        missed = await other.schedule("missed")
        listening = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        postgres.execute(listening, postgres_url)
        while follower.spine.hints.working:
            await asyncio.sleep(0.001)

        await follower.until(lambda: follower.due_at() == missed.run_at)
        assert follower.spine.hints.working


async def test_a_ping_that_does_not_come_back_shows(postgres_url: str) -> None:
    hints = PostgresqlHints(make_url(postgres_url), Tuning(ping_timeout=0.01))
    listening = asyncio.create_task(hints.listen(lambda hint: None))
    while not hints.working:
        await asyncio.sleep(0.01)

    hints.expect_ping()  # and then it is never sent
    while hints.working:
        await asyncio.sleep(0.005)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening


@pytest.mark.parametrize(
    "error", [OSError(), asyncpg.InterfaceError("x"), asyncpg.InternalClientError()], ids=lambda one: type(one).__name__
)
async def test_a_hint_that_meets_a_connection_as_it_is_cut_off_is_dropped(postgres_url: str, error: Exception) -> None:
    class Cut:
        async def execute(self, *_: Any, **__: Any) -> None:
            raise error

    hints = PostgresqlHints(make_url(postgres_url))
    hints._connection = Cut()  # type: ignore[assignment]

    await hints.send(Hint())


async def test_a_connection_over_which_no_ping_comes_is_replaced(postgres_url: str) -> None:
    """What a firewall has forgotten looks open for ever, from this side."""
    heard: list[Hint] = []
    hints = PostgresqlHints(make_url(postgres_url), Tuning(deaf_timeout=0.01))
    listening = asyncio.create_task(hints.listen(heard.append))
    async with asyncio.timeout(PATIENCE):
        while not hints.working:
            await asyncio.sleep(0.01)
        while len(heard) < 2:  # once for each connection: anything may have changed
            hints.expect_ping()  # and then it is never sent
            await asyncio.sleep(0.02)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening


# ---- what is believed, and when


def bus() -> WakeBus:
    return WakeBus(DatabaseTime(virtual=False))


def due_order(due_at: int | None, **more: Any) -> HandlerWake:
    return HandlerWake(ORDER, due_at, None, **more)


def committed(**what: Any) -> Committed:
    return Committed(frozenset([ORDER]), Stamp(0, 0), **what)


async def test_an_answer_that_was_asked_for_before_a_commit_does_not_undo_it() -> None:
    """Sweeps, questions of dispatchers and of the bus itself overlap with commits all the time."""
    one = bus()
    asked = one.notes.mark()
    one.learn(committed(due={ORDER: 5}))
    assert await one.notes.take() == [ORDER]  # another question is under way already

    one.refresh([due_order(9)], Stamp(0, 0), asked)
    assert one.due_at(ORDER) == 5

    one.refresh([due_order(9)], Stamp(0, 0), one.notes.mark())
    assert one.due_at(ORDER) == 9


async def test_an_answer_that_comes_late_does_not_replace_a_newer_one() -> None:
    one = bus()
    early = one.notes.mark()
    one.notes.add([ORDER])
    one.refresh([due_order(None)], Stamp(0, 0), one.notes.mark())

    one.refresh([due_order(5)], Stamp(0, 0), early)

    assert one.due_at(ORDER) is None


async def test_a_whole_answer_says_of_all_others_that_they_have_no_tasks() -> None:
    """Names that nothing waits for are not read."""
    one = bus()
    one.refresh([due_order(5), HandlerWake(OTHER, 6, None)], Stamp(0, 0), one.notes.mark())
    early = one.notes.mark()

    one.refresh([], Stamp(0, 0), one.notes.mark(), whole=lambda handler: handler == ORDER)
    assert (one.due_at(ORDER), one.due_at(OTHER)) == (None, 6)

    one.learn(committed(due={ORDER: 7}))
    one.refresh([], Stamp(0, 0), early, whole=everything)
    assert (one.due_at(ORDER), one.due_at(OTHER)) == (7, None)


async def test_what_a_claim_saw_does_not_undo_a_commit_that_it_did_not_see() -> None:
    one = bus()
    began = one.notes.mark()
    one.learn(committed(due={ORDER: 5}))

    one.learn(committed(wakes=(due_order(None),), mark=began))
    assert one.due_at(ORDER) == 5

    one.learn(committed(wakes=(due_order(None),), mark=one.notes.mark()))
    assert one.due_at(ORDER) is None


async def test_what_a_claim_committed_is_known_though_a_later_question_did_not_see_it() -> None:
    """A question that begins after the claim may be answered before the claim has committed."""
    one = bus()
    began = one.notes.mark()
    one.notes.add([OTHER])
    one.refresh([due_order(None)], Stamp(0, 0), one.notes.mark())

    one.learn(committed(wakes=(HandlerWake(ORDER, None, lapses_at=7),), mark=began))

    assert one.next_wake(everything).lapses_at == 7
    assert await one.notes.take()  # and the database is asked again


async def test_what_a_group_made_due_and_claimed_itself_is_not_due() -> None:
    one = bus()

    one.learn(committed(due={ORDER: 5}, wakes=(due_order(None),), mark=one.notes.mark()))

    assert one.due_at(ORDER) is None


async def test_a_lease_that_ends_sooner_is_known_with_its_commit(spine: Spine) -> None:
    here = Follower(spine)
    await spine.schedule()
    task = await spine.claim_one()
    await spine.renew(task)
    await here.sweep.once()
    asked_nothing = here.bus.notes.mark()

    await spine.submit(calls.Shorten(held(task), ANNA, spine.times))

    stored = await spine.read(task.id)
    assert stored is not None and here.lapses_at() == stored.locked_until
    assert here.bus.notes.mark() > asked_nothing


async def test_what_a_full_handler_held_back_is_due_with_the_commit_that_makes_room(spine: Spine) -> None:
    here = Follower(spine)
    await spine.schedule("held")
    await spine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=1))
    task = await spine.claim_one()
    waiting = await spine.schedule("waiting")
    await here.sweep.once()
    assert here.due_at() is None

    await spine.finish(task)

    assert here.due_at() == waiting.run_at


async def test_a_clock_that_was_set_back_is_believed_and_an_answer_that_comes_late_is_not() -> None:
    """Else timers would be asked about again and again until the clock has caught up."""
    time, noon = DatabaseTime(virtual=False), 10**15
    time.observe(Stamp(noon, noon))

    time.observe(Stamp(noon - 2 * SECOND, noon - 2 * SECOND))
    assert time.now() >= noon

    time.observe(Stamp(noon - 90 * SECOND, noon - 90 * SECOND))
    assert time.now() < noon - 80 * SECOND


async def test_who_serves_is_news() -> None:
    one = bus()
    before = one.number

    one.serve(frozenset([ORDER]))
    assert one.number == before + 1

    one.serve(frozenset([ORDER]))
    assert one.number == before + 1
