"""Interleavings of changes and those who watch them, each forced: what was seen is a revision per instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from stepwell_server.domain.spine.births import Wanted
from stepwell_server.domain.values.asked import NOT_ASKED
from stepwell_server.domain.values.errors import DatabaseUnavailable
from stepwell_server.domain.values.limits import PART_BYTES
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import MINUTE
from stepwell_server.domain.workflows.instances import Instance, InstanceStatus, NewInstance
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.assignments import Ask, Capacity
from stepwell_server.engine.workflows.calls import CreateRun
from stepwell_server.engine.workflows.reads import Reads
from stepwell_server.engine.workflows.watches import Watcher
from stepwell_server.storage.database.database import CALL, Database, TxOptions, Work
from stepwell_server.storage.database.hints import Hint
from tests.support.faults.forcing import held_before_commit
from tests.support.patience import PATIENCE
from tests.support.replicas.runs import (
    ANNA,
    BEGIN,
    FINISH,
    ORDER,
    SUSPEND,
    Engine,
    background,
    done,
    opens,
    sleeps,
    until,
)


async def newest(engine: Engine, watcher: Watcher) -> dict[str, Instance]:
    """What a watcher is told next, by instance."""
    async with asyncio.timeout(PATIENCE):
        told = [head.id for head, _ in await watcher.take()]
        return {one.key.instance_id: one async for one in engine.watches.read(told)}


async def watching(engine: Engine, *names: str) -> Watcher:
    """Somebody who follows these instances and knows them as they are."""
    watcher = Watcher()
    for name in names:
        mark = engine.watches.mark()
        instance = await engine.get(name)
        engine.watches.follow(watcher, instance.head, instance.revision, mark)
    return watcher


async def test_a_change_that_commits_after_a_later_one_was_seen_is_not_missed(replicas: tuple[Engine, Engine]) -> None:
    """Rule 27: a cursor over everything would have passed it already; hints are lost, and the sweep finds both."""
    here, there = replicas
    for name in ("early", "late"):
        await here.create(name)
    watcher = await watching(here, "early", "late")
    async with background(here.watches.run()):
        async with held_before_commit(there, there.pause("early"), label="call"):
            await here.pause("late")
            assert set(await newest(here, watcher)) == {"late"}
        here.watches.note_all()

        told = await newest(here, watcher)

    assert told["early"].status is InstanceStatus.PAUSED and set(told) == {"early"}


async def test_a_pause_that_takes_effect_because_the_worker_is_lost_is_told(engine: Engine) -> None:
    """Rule 27: every change of a status has a revision, also one that no call has made."""
    mine = await engine.begin()
    await engine.say(mine, (BEGIN, opens("a")))
    await engine.pause()
    watcher = await watching(engine, "x")

    async with background(engine.watches.run()):
        await engine.lose_worker()
        told = await newest(engine, watcher)

    assert told["x"].status is InstanceStatus.PAUSED


async def test_no_two_statuses_of_an_instance_have_one_revision(engine: Engine) -> None:
    """Rule 27: from birth over a takeover, a pause and an end to the next run, revisions only grow."""
    seen = [await engine.create()]

    async def look() -> None:
        now = await engine.get()
        assert now.status is not seen[-1].status, "this was to change the status"
        seen.append(now)

    mine = await engine.claim_one()
    await look()
    await engine.lose_worker()
    await look()
    mine = await engine.claim_one()
    await look()
    await engine.say(mine, sleeps("nap"), SUSPEND)
    await look()
    await engine.pause()
    await look()
    await engine.resume()
    await look()
    mine = await engine.claim_one()
    await look()
    await engine.pause()
    await look()
    await engine.say(mine, done("a"))
    await look()
    await engine.terminate()
    await look()
    await engine.restart()
    await look()
    mine = await engine.claim_one()
    await look()
    await engine.say(mine, FINISH)
    await look()

    revisions = [one.revision for one in seen]
    assert revisions == sorted(set(revisions))


async def test_what_changes_between_reading_and_following_is_told(engine: Engine) -> None:
    """Rule 27: who asks for the end of an instance that ends in this very moment would wait for the next sweep."""
    mine = await engine.begin()
    watcher = Watcher()
    mark = engine.watches.mark()
    read = await engine.get()
    await engine.say(mine, FINISH)

    async with background(engine.watches.run()):
        engine.watches.follow(watcher, read.head, read.revision, mark)
        told = await newest(engine, watcher)

    assert told["x"].status is InstanceStatus.COMPLETE


async def test_a_wait_for_the_end_is_answered_by_the_end(engine: Engine) -> None:
    """Rule 27: by the commit itself, without a sweep and without asking again."""
    mine = await engine.begin()
    async with background(engine.watches.run()):
        waiting = asyncio.create_task(engine.instances.wait(engine.key(), MINUTE))
        await engine.say(mine, done("a"))
        await engine.pause()
        await engine.resume()
        assert not waiting.done()
        await engine.say(mine, FINISH)
        async with asyncio.timeout(PATIENCE):
            ended = await waiting

    assert ended.status is InstanceStatus.COMPLETE


async def test_a_watcher_is_never_told_of_an_older_state_after_a_newer_one(engine: Engine) -> None:
    """Rule 27: states are conflated, and their order is that of their revisions."""
    mine = await engine.begin()
    watcher = await watching(engine, "x")
    old = await engine.get()
    await engine.say(mine, FINISH)
    async with background(engine.watches.run()):
        assert (await newest(engine, watcher))["x"].status is InstanceStatus.COMPLETE
        engine.watches._offer(watcher, old.head)

    assert not watcher.ready.is_set()


async def test_a_watcher_that_has_no_room_costs_a_number_for_each_instance(
    engine: Engine, payload_bytes: list[int]
) -> None:
    names = [f"x{number}" for number in range(6)]
    for name in names:
        new = NewInstance(engine.key(name), Payload('"' + "x" * 1_000_000 + '"'))
        await engine.workflows.create(new, NOT_ASKED)
    watcher = await watching(engine, *names)
    for name in names:
        await engine.pause(name)
    payload_bytes.clear()

    async with background(engine.watches.run()):
        told: dict[int, int] = {}
        while len(told) < len(names):
            told |= {head.id: head.revision for head, _ in await watcher.take()}
        assert payload_bytes == []

        reading = engine.watches.read(list(told))
        seen = [await anext(reading)]
        assert sum(payload_bytes) <= PART_BYTES
        seen += [one async for one in reading]

    assert [one.key.instance_id for one in seen] == names
    assert {one.id: one.revision for one in seen} == told


async def test_steps_that_changed_are_read_as_many_as_a_message_holds(engine: Engine, payload_bytes: list[int]) -> None:
    mine = await engine.begin()
    names = [f"s{number}" for number in range(6)]
    for name in names:
        await engine.say(mine, done(name, result='"' + "x" * 1_000_000 + '"'))
    instance = await engine.get()
    payload_bytes.clear()

    reading = engine.instances.changed_steps(instance, 0)
    seen = [await anext(reading)]
    assert sum(payload_bytes) <= PART_BYTES
    seen += [step async for step in reading]

    assert [step.name for step in seen] == names


async def test_what_was_read_newer_than_it_was_told_is_not_told_again(engine: Engine) -> None:
    await engine.create()
    watcher = await watching(engine, "x")
    async with background(engine.watches.run()):
        await engine.pause()
        told = [head.id for head, _ in await watcher.take()]
        await engine.resume()
        await until(lambda: bool(watcher.changed))
        async for instance in engine.watches.read(told):
            watcher.saw(instance)

    assert instance.status is InstanceStatus.QUEUED
    assert not watcher.changed


async def followed_newborn(engine: Engine, name: str = "x") -> Watcher:
    """The creator of an instance that follows it next, knowing how it was stored."""
    watcher = Watcher()
    newborn = engine.watches.take_newborn(engine.key(name))
    assert newborn is not None
    head, mark = newborn
    engine.watches.follow(watcher, head, head.revision, mark)
    return watcher


async def test_a_newborn_is_followed_without_a_question(engine: Engine) -> None:
    """Its own birth is no news to its creator: nothing is read before it changes."""
    await engine.create()
    watcher = await followed_newborn(engine)
    assert not watcher.ready.is_set() and not engine.watches._any_dirty.is_set()

    async with background(engine.watches.run()):
        await engine.pause()
        assert (await newest(engine, watcher))["x"].status is InstanceStatus.PAUSED


async def test_what_changes_before_a_newborn_is_followed_is_told(engine: Engine) -> None:
    """Rule 27: of this replica's own commits."""
    mine = await engine.begin()
    await engine.say(mine, FINISH)
    async with background(engine.watches.run()):
        watcher = await followed_newborn(engine)
        assert (await newest(engine, watcher))["x"].status is InstanceStatus.COMPLETE


async def test_what_another_replica_changes_before_the_creator_is_answered_is_told(
    replicas: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 27: its hint is heard before the replica that has created the instance knows of its own commit."""
    here, there = replicas
    commit = Database.run_tx

    async def commit_and_be_late(db: Database, work: Work[Any], options: TxOptions = CALL) -> Any:
        result = await commit(db, work, options)
        if db is here.db and options.label == "group":
            paused = await there.pause()
            here.replica.heard(Hint(frozenset(), moved=frozenset([paused.id])))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Database, "run_tx", commit_and_be_late)
        await here.create()

    async with background(here.watches.run()):
        watcher = await followed_newborn(here)
        assert (await newest(here, watcher))["x"].status is InstanceStatus.PAUSED


async def test_a_newborn_that_is_claimed_in_its_own_group_is_news(engine: Engine) -> None:
    """Its creator is answered with how it was stored, and a claim of the same group has changed that already."""
    new = NewInstance(engine.key(), Payload("{}"))
    ask = Ask([Capacity(ANNA, frozenset([ORDER]), 1)])
    mark = engine.watches.mark()
    creating = engine.committer.enqueue(CreateRun(Wanted(new)))
    claiming = engine.committer.enqueue(calls.Claim(ask, by_call=True))
    created, claimed = await creating, await claiming
    assert [one.task.id for one in claimed.assigned] == [created.thing.id]

    watcher = Watcher()
    async with background(engine.watches.run()):
        engine.watches.follow(watcher, created.thing.head, created.thing.revision, mark)
        assert (await newest(engine, watcher))["x"].status is InstanceStatus.RUNNING


async def test_those_who_wait_at_once_share_a_question_that_begins_after_they_asked(engine: Engine) -> None:
    """Rule 27: who asks while another's question is in flight may know of a change that it did not see."""
    names = [f"x{number}" for number in range(4)]
    numbers = [(await engine.create(name)).id for name in names]
    asked: list[list[int]] = []
    gate = asyncio.Event()

    async def read(ids: Sequence[int]) -> AsyncIterator[Instance]:
        asked.append([*ids])
        found = [one async for one in engine.watches.read(ids)]
        await gate.wait()
        for one in found:
            yield one

    reads = Reads(read)
    first = asyncio.create_task(reads.one(numbers[0]))
    await until(lambda: asked)
    await engine.pause(names[0])
    later = [asyncio.create_task(reads.one(number)) for number in (*numbers, 0)]
    await until(lambda: len(reads._wanted) == len(later))
    gate.set()

    assert [getattr(one, "status", None) for one in await asyncio.gather(first, *later)] == [
        InstanceStatus.QUEUED,
        InstanceStatus.PAUSED,
        *[InstanceStatus.QUEUED] * 3,
        None,
    ]
    assert asked == [numbers[:1], [*numbers, 0]]


async def test_a_question_that_fails_fails_for_those_who_asked_it_and_no_others() -> None:
    failures = [DatabaseUnavailable("away")]

    async def read(ids: Sequence[int]) -> AsyncIterator[Instance]:
        if failures:
            raise failures.pop()
        return
        yield

    reads = Reads(read)
    both = await asyncio.gather(reads.one(1), reads.one(1), return_exceptions=True)

    assert [type(one) for one in both] == [DatabaseUnavailable] * 2 and both[0] is not both[1]
    assert await reads.one(1) is None
