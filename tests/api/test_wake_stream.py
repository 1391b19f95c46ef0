"""DispatcherService.WakeStream: the next wake, and every change of it."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, aclosing

import pytest
from sqlalchemy import update

from stepwell_server.domain.spine.wakes import WakeFilter
from stepwell_server.domain.values.times import SECOND
from stepwell_server.storage.schema import tasks
from tests.api.conftest import Hire
from tests.api.test_worker_stream import REVOCABLE, Revocable
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import Triggers, at
from tests.support.calls.wakes import HOOK, WORKFLOW, Sidecar, is_due, unserved, until_settled, waits, wake_at
from tests.support.patience import PATIENCE
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import returned
from tests.support.workers.workers import UnaryWorker


@pytest.fixture
def sidecar(external: Served) -> Sidecar:
    """A dispatcher of that server."""
    return Sidecar(external.channel)


@pytest.fixture
def hooks(external: Served) -> Triggers:
    """Hooks of that server."""
    return Triggers(external.channel)


# ---- what it says


async def test_the_first_message_is_how_things_stand(sidecar: Sidecar, hooks: Triggers) -> None:
    async with sidecar.follow() as nothing:
        assert not waits(await nothing.first())

    soon = await hooks.now() + 60
    await hooks.trigger("one", process_at=soon)
    async with sidecar.follow() as follower:
        first, asked = await follower.first(), await sidecar.ask()

    assert wake_at(first.next_wake) == pytest.approx(soon, abs=1e-5)
    assert first.next_wake == asked.next_wake
    assert 0 <= at(asked.now) - at(first.now) < 10
    assert not first.draining


async def test_earlier_later_and_none_are_told(sidecar: Sidecar, hooks: Triggers) -> None:
    now = await hooks.now()
    async with sidecar.follow() as follower:
        await follower.first()
        for hook_id, wait in (("far", 90.0), ("near", 60.0)):
            await hooks.trigger(hook_id, process_at=now + wait)
            await follower.until(lambda said, when=now + wait: _at(said) == pytest.approx(when, abs=1e-5))

        await hooks.manage("Cancel", "near")
        await follower.until(lambda said: _at(said) == pytest.approx(now + 90, abs=1e-5))

        await hooks.manage("Retry", "far")
        await follower.until(is_due)

        await hooks.manage("Cancel", "far")
        await follower.until(lambda said: not waits(said))


async def test_pauses_resumes_and_ends_are_told(sidecar: Sidecar, external: Served, hire_at: Hire) -> None:
    await hire_at(external, "order", credit=0)
    flows = Flows(external.channel)
    async with sidecar.follow() as follower:
        await flows.create("x")
        await follower.until(is_due)
        await flows.manage("Pause", "x")
        await follower.until(lambda said: not waits(said))
        await flows.manage("Resume", "x")
        await follower.until(is_due)
        await flows.manage("Terminate", "x")
        await follower.until(lambda said: not waits(said))
        await flows.manage("Restart", "x")
        await follower.until(is_due)


async def test_a_lease_is_followed_to_its_end(sidecar: Sidecar, external: Served, hooks: Triggers) -> None:
    """Claimed, it is due again when its lease ends; lapsed, it is due; done, it is gone."""
    caller = UnaryWorker(external.channel, (), hooks=("note",))
    await caller.register()
    async with sidecar.follow() as follower:
        await hooks.trigger("one")
        await follower.until(is_due)
        (lost,) = await caller.claim()
        claimed = await follower.until(lambda said: waits(said) and not is_due(said))
        assert 0 < at(claimed.next_wake.wake_at) - at(claimed.now) <= 10

        lapse = update(tasks).values(locked_until=tasks.c.locked_until - 60 * SECOND)
        await external.app.db.run_tx(lambda tx: tx.execute(lapse) and None)
        await external.app.sweep.once()
        await follower.until(is_due)
        (task,) = await caller.claim()
        assert task.fence > lost.fence
        await caller.commit(task, returned(number=1))
        await follower.until(lambda said: not waits(said))


async def test_who_is_unserved_is_told_when_time_passes_and_when_workers_come_and_go(
    sidecar: Sidecar, external: Served, hooks: Triggers, hire_at: Hire
) -> None:
    """Nothing is committed when a time comes; the service that is to wake must hear of it all the same."""
    async with sidecar.follow() as follower:
        await hooks.trigger("one", process_at=await hooks.now() + 1)
        due = await follower.until(lambda said: said.next_wake.unserved)
        assert is_due(due) and unserved(due.next_wake) == {"note": wake_at(due.next_wake)}

        worker = await hire_at(external, hooks=("note",), credit=0)
        await follower.until(lambda said: not said.next_wake.unserved)
        await worker.goodbye()
        await follower.until(lambda said: said.next_wake.unserved)


async def test_a_filter_lets_through_what_it_names_and_nothing_else(sidecar: Sidecar, hooks: Triggers) -> None:
    now = await hooks.now()
    async with sidecar.follow(kinds=[HOOK], names=["mine"]) as follower, sidecar.follow(kinds=[WORKFLOW]) as other:
        await asyncio.gather(follower.first(), other.first())
        for number in range(10):
            await hooks.trigger(f"theirs{number}", name="theirs")
        await hooks.trigger("mine", name="mine", process_at=now + 60)
        said = await follower.until(waits)

    assert _at(said) == pytest.approx(now + 60, abs=1e-5)
    assert len(follower.messages) == 2 and len(other.messages) == 1


async def test_numbers_never_go_back(sidecar: Sidecar, hooks: Triggers) -> None:
    chance, now = random.Random(1), await hooks.now()
    async with sidecar.follow() as follower:
        for number in range(60):
            if number % 3 == 2:
                await hooks.manage("Cancel", f"h{chance.choice([number - 2, number - 1])}")
            else:
                await hooks.trigger(f"h{number}", process_at=now + chance.uniform(10, 100))
        await hooks.trigger("last")
        await follower.until(is_due)

    numbers = [one.next_wake.number for one in follower.messages]
    assert numbers == sorted(numbers) and len(numbers) > 1
    assert len({one.next_wake.replica_id for one in follower.messages}) == 1


async def test_a_slow_reader_gets_the_newest_only(external: Served, hooks: Triggers) -> None:
    now = await hooks.now()
    follow = external.app.parts.dispatchers.follow(WakeFilter("default"), keepalive=30)
    async with aclosing(follow) as wakes, asyncio.timeout(PATIENCE):
        await anext(wakes)
        for number in range(50):  # and nobody reads
            await hooks.trigger(f"h{number}", process_at=now + 100 - number)
        await until_settled(external)

        newest = await anext(wakes)
        assert newest.wake_at == pytest.approx((now + 51) * 1e6, abs=10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(wakes), 0.2)


@pytest.mark.tuning(keepalive=0.1)
async def test_a_message_is_repeated_from_time_to_time_with_the_time_of_then(sidecar: Sidecar, hooks: Triggers) -> None:
    """Who counts from an old time would sleep too long."""
    soon = await hooks.now() + 60
    await hooks.trigger("one", process_at=soon)
    async with sidecar.follow() as follower:
        first = await follower.first()
        await follower.until(lambda said: len(follower.messages) >= 4)
        clock = await hooks.now()

    assert {one.next_wake.SerializeToString() for one in follower.messages} == {first.next_wake.SerializeToString()}
    times = [at(one.now) for one in follower.messages]
    assert times == sorted(set(times))
    assert times[3] - times[0] >= 0.25
    assert times[3] == pytest.approx(clock, abs=5)


# ---- who follows


async def test_many_followers_hear_the_same_and_ask_nothing(external: Served, hooks: Triggers) -> None:
    """The number of statements does not depend on the number of subscribers."""
    counts = {}
    for followers in (1, 60):
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(Sidecar(external.channel).follow()) for _ in range(followers)]
            await asyncio.gather(*(one.until(lambda said: not waits(said)) for one in streams))
            await until_settled(external)
            commits: list[str] = []
            with external.app.db.failpoints.install(commits.append):
                await hooks.trigger(f"h{followers}")
                await asyncio.gather(*(one.until(waits) for one in streams))
                await hooks.manage("Cancel", f"h{followers}")
                await asyncio.gather(*(one.until(lambda said: not waits(said)) for one in streams))
                await until_settled(external)
            counts[followers] = sum(one.startswith("after-commit/") and "sweep" not in one for one in commits)

    assert counts[60] <= counts[1] + 2  # questions that fell together for the one


async def test_nothing_is_kept_of_a_follower_who_has_gone(external: Served, sidecar: Sidecar) -> None:
    async with sidecar.follow() as one, sidecar.follow() as other:
        await asyncio.gather(one.first(), other.first())
        assert len(external.app.parts.dispatchers._feeds) == 1

    async with asyncio.timeout(PATIENCE):
        while external.app.parts.dispatchers._feeds:
            await asyncio.sleep(0.005)


async def test_a_draining_server_says_so_and_ends_the_stream(sidecar: Sidecar, external: Served) -> None:
    async with sidecar.follow() as follower:
        await follower.first()
        external.app.parts.dispatchers.drain()
        last = await follower.until(lambda said: said.draining)
        assert await follower.until_over() is None

    assert last is follower.messages[-1]
    async with sidecar.follow() as late:
        assert (await late.first()).draining
        assert await late.until_over() is None


@pytest.mark.tuning(policy_interval=0.02)
async def test_a_credential_that_expires_ends_the_stream(
    start_server: StartServer, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server(sqlite_url, policy=REVOCABLE)
    async with Sidecar(server.channel).follow() as follower:
        await follower.first()
        monkeypatch.setattr(Revocable, "revoked", {"anonymous"})

        end = await follower.until_over()

    assert end is not None and (end.code.name, end.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


async def test_streams_that_cannot_be_are_refused(start_server: StartServer, sqlite_url: str) -> None:
    served = await start_server(sqlite_url, limits={"streams_per_principal": 1})
    sidecar = Sidecar(served.channel)
    async with Sidecar(served.channel, "nowhere").follow() as lost:
        end = await lost.until_over()
        assert end is not None and end.reason == "NAMESPACE_NOT_FOUND"
    async with sidecar.follow(names=[f"n{number}" for number in range(101)]) as greedy:
        end = await greedy.until_over()
        assert end is not None and end.reason == "INVALID_FIELD"

    async with sidecar.follow() as one:
        await one.first()
        async with sidecar.follow() as too_many:
            end = await too_many.until_over()
            assert end is not None and end.reason == "STREAM_LIMIT"


def _at(said: object) -> float | None:
    return wake_at(said.next_wake)  # type: ignore[attr-defined]
