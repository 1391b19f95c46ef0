"""Interleavings of waiting and taking, each forced: births, preferences, decided waits, workers without a stream."""

from __future__ import annotations

import asyncio

import pytest

from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason, TaskStatus, Verdict
from stepwell_server.domain.values.errors import LeaseLost, SessionHasStream, SessionNotRegistered
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import HOUR, SECOND
from stepwell_server.domain.workflows.instances import InstanceStatus, NewEvent, StepStatus
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.storage.spine import sessions
from stepwell_server.storage.spine.claims import STICKY
from tests.support.faults.forcing import held_before_commit
from tests.support.replicas.runs import (
    ANNA,
    BEGIN,
    BEN,
    FINISH,
    ORDER,
    REMEMBER,
    SUSPEND,
    Engine,
    Holding,
    asked,
    background,
    done,
    expects,
    failed,
    hello,
    opens,
    sleeps,
    taken,
)

# ---- 16: claimed at birth


async def test_a_newborn_is_claimed_at_birth_if_nothing_older_waits(engine: Engine) -> None:
    """Rule 16, the fast path: one transaction creates it and leases it to a worker that has room."""
    connection = await engine.connect(ANNA)
    connection.grant(1)

    instance = await engine.create()

    assert instance.status is InstanceStatus.RUNNING
    (delivery,) = [one for one in await taken(connection) if isinstance(one, Assignment)]
    assert delivery.input is not None and delivery.holder == connection.owner
    assert (await engine.live()).fence == delivery.held.fence
    assert connection.worker.credits == 0


async def test_a_newborn_does_not_overtake_what_waits(engine: Engine) -> None:
    """Rule 16: each credit that becomes free would go to the newest create, and what resumes would starve."""
    resuming = await engine.begin(BEN, "resuming")
    await engine.say(resuming, expects("event"), SUSPEND)
    await engine.create("older")
    await engine.send(to="resuming")
    connection = await engine.connect(ANNA)
    connection.grant(1)

    newest = await engine.create("newest")
    assert newest.status is InstanceStatus.QUEUED

    order = []
    async with background(engine.handout.run()):
        for _ in range(3):
            (delivery,) = [one for one in await taken(connection) if isinstance(one, Assignment)]
            order.append(delivery.task.key)
            connection.grant(1)
    assert order == ["resuming", "older", "newest"]


async def test_a_newborn_does_not_overtake_one_that_is_being_born(engine: Engine) -> None:
    """Rule 16: the first found no room; when room comes before it is stored, the second must not take it."""
    connection = await engine.connect(ANNA)
    first = asyncio.create_task(engine.create("first"))
    await asyncio.sleep(0)
    while not engine.handout._births[ORDER]:
        await asyncio.sleep(0)
    connection.grant(1)

    second = await engine.create("second")

    assert (await first).status is second.status is InstanceStatus.QUEUED
    assert [one.task.key for one in await engine.claim()] == ["first"]


async def test_a_birth_that_is_refused_gives_its_room_back(engine: Engine) -> None:
    """Rule 16: credits are exact."""
    await engine.create("x", "r1")
    await engine.claim_one()
    connection = await engine.connect(ANNA)
    connection.grant(2)

    again = await engine.create("x", "r1")

    assert again.key.instance_id == "x" and connection.worker.credits == 2
    assert [*connection.outbox] == []


# ---- 31: the worker that has it in memory


async def test_a_run_in_memory_is_left_to_its_worker_for_a_moment_and_never_longer(engine: Engine) -> None:
    """Rule 31: who stored the event would always win, and caches would never hit."""
    await engine.connect(ANNA)
    mine = await engine.begin(ANNA)
    await engine.say(mine, expects("event"), REMEMBER)
    await engine.send()

    assert await engine.claim(BEN, patience=STICKY) == []
    await engine.advance(STICKY - 1)
    assert await engine.claim(BEN, patience=STICKY) == []
    await engine.advance(1)
    (theirs,) = await engine.claim(BEN, patience=STICKY)

    assert theirs.input.known_revision == 0


async def test_a_run_in_memory_of_a_worker_that_is_gone_is_anybodys_at_once(engine: Engine) -> None:
    """Rule 31: there is nobody to wait for."""
    connection = await engine.connect(ANNA)
    mine = await engine.begin(ANNA)
    await engine.say(mine, expects("event"), REMEMBER)
    await engine.send()
    assert await engine.claim(BEN, patience=STICKY) == []

    await engine.db.run_tx(lambda tx: sessions.disconnect(tx, connection.owner))

    (theirs,) = await engine.claim(BEN, patience=STICKY)
    assert theirs.input.known_revision == 0


async def test_the_worker_that_has_it_in_memory_gets_it_at_once(engine: Engine) -> None:
    """Rule 31: with room on several, it goes to that one."""
    mine = await engine.begin(ANNA)
    suspended = await engine.say(mine, expects("event"), REMEMBER)
    await engine.send()

    (again,) = await engine.claim(ANNA, patience=STICKY)

    assert again.input.known_revision == suspended.answers[-1].revision
    assert [step.name for step in again.input.steps] == ["event"]


async def test_a_run_that_nobody_has_in_memory_is_anybodys_at_once(engine: Engine) -> None:
    """Rule 31: the preference is the worker's own word, and ends with the lease."""
    mine = await engine.begin(ANNA)
    await engine.say(mine, expects("event"), SUSPEND)
    await engine.send()
    assert len(await engine.claim(BEN, patience=STICKY)) == 1

    mine = await engine.begin(ANNA, "y")
    await engine.say(mine, expects("event"), REMEMBER)
    await engine.send(to="y")
    await engine.claim_one(ANNA)
    await engine.lose_worker()
    assert {one.task.key for one in await engine.claim(BEN, 2, patience=STICKY)} == {"x", "y"}


# ---- 32: where a wait is decided


async def test_what_a_claim_decides_stays_decided(engine: Engine) -> None:
    """Rule 32: the workflow has acted on it; a takeover must not find otherwise."""
    mine = await engine.begin()
    await engine.say(mine, expects("event", timeout=HOUR), SUSPEND)
    await engine.advance(HOUR)
    timed_out = await engine.claim_one()
    assert [step.status for step in timed_out.input.steps] == [StepStatus.ERRORED]

    await engine.send()
    await engine.lose_worker()
    theirs = await engine.claim_one(BEN)

    assert [step.status for step in theirs.input.steps] == [StepStatus.ERRORED]
    step = (await engine.steps())["event"]
    assert step.status is StepStatus.ERRORED
    assert step.failure is not None and step.failure.name == "WaitForEventTimeoutError"
    assert [event.delivered_at for event in await engine.events()] == [None]


@pytest.mark.parametrize("late", [0, 1], ids=["in-time", "late"])
async def test_an_event_counts_by_when_it_was_stored_and_not_by_when_somebody_looks(engine: Engine, late: int) -> None:
    """Rule 32: the claim comes a day later and decides as if it had been there."""
    mine = await engine.begin()
    await engine.say(mine, expects("event", timeout=HOUR), SUSPEND)
    await engine.advance(HOUR + late)
    await engine.send()
    await engine.advance(24 * HOUR)

    again = await engine.claim_one(BEN)

    expected = StepStatus.ERRORED if late else StepStatus.COMPLETED
    assert [step.status for step in again.input.steps] == [expected]


async def test_events_are_delivered_the_oldest_first_and_each_once(engine: Engine) -> None:
    """Rule 32: two waits, three events of one stamp; the order is that of their numbers."""
    mine = await engine.begin()
    sent = [(NewEvent(engine.key(), "go", Payload(str(number))), asked()) for number in range(3)]
    await engine.workflows.send_events(sent)
    await engine.say(mine, expects("first"))
    second = await engine.say(mine, expects("second"), expects("other", "else"))

    assert [(step.name, step.result) for step in second.resolved] == [("second", Payload("1"))]
    assert (await engine.steps())["first"].result == Payload("0")
    assert [event.consumed_by_step for event in await engine.events()] == ["first", "second", ""]
    assert (await engine.live()).pending_events == 1


async def test_one_event_is_not_delivered_by_two_replicas(replicas: tuple[Engine, Engine]) -> None:
    """Rule 32: the claim that decides has the lock, and the other passes it over."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, expects("one"), expects("two"), SUSPEND)
    await here.send()

    async with held_before_commit(here, here.claim_one()) as first:
        assert await there.claim(BEN) == []

    told = {step.name: step.status for step in (await first).input.steps}
    assert told == {"one": StepStatus.COMPLETED, "two": StepStatus.WAITING}
    assert [event.consumed_by_step for event in await here.events()] == ["one"]
    assert (await here.steps())["two"].status is StepStatus.WAITING


async def test_a_suspend_that_finds_its_event_keeps_the_lease_and_goes_on(engine: Engine) -> None:
    """Rule 32: same fence, no claim between."""
    mine = await engine.begin()
    await engine.send("go", '"early"')

    news = await engine.say(mine, expects("event"), SUSPEND)

    assert [answer.released for answer in news.answers] == [False, False]
    assert [step.result for step in news.resolved] == [Payload('"early"')]
    assert (await engine.say(mine, done("next"), FINISH)).stale is None
    assert (await engine.get()).status is InstanceStatus.COMPLETE


async def test_a_wait_that_is_opened_again_after_it_ended_is_told_its_end(engine: Engine) -> None:
    """Rule 32: a worker that does not know opens it once more; it neither waits nor takes another event."""
    mine = await engine.begin()
    await engine.say(mine, expects("event"))
    await engine.send("go", "1")
    await engine.say(mine)
    await engine.send("go", "2")

    again = await engine.say(mine, expects("event"))

    assert [(step.name, step.result) for step in again.resolved] == [("event", Payload("1"))]
    assert [event.consumed_by_step for event in await engine.events()] == ["event", ""]


# ---- 33: workers without a stream


async def registered(engine: Engine, owner: Owner = ANNA) -> None:
    await engine.worker_calls.register(hello(owner.session_id))


async def claimed(engine: Engine, request_id: str = "", owner: Owner = ANNA, most: int = 5) -> list[Holding]:
    """What a unary claim gets."""
    found = await engine.worker_calls.claim("default", owner.session_id, most, 0, frozenset(), asked(request_id))
    return [Holding(one) for one in found]


async def test_a_claim_that_is_repeated_gets_what_is_still_held_and_nothing_new(engine: Engine) -> None:
    """Rule 33: its reply was lost; the tasks would be leased and nobody would know."""
    await registered(engine)
    for name in ("a", "b", "c"):
        await engine.create(name)
    first = await claimed(engine, "r1")
    await engine.create("d")
    finished, released, kept = first
    await engine.worker_calls.commit("default", ANNA.session_id, finished.held, finished.frames(FINISH))
    await engine.worker_calls.commit("default", ANNA.session_id, released.held, released.frames(sleeps("nap"), SUSPEND))

    again = await claimed(engine, "r1")

    assert [one.held for one in again] == [kept.held]
    assert {one.task.key for one in await claimed(engine, "r2")} == {"d"}


async def test_a_session_with_a_stream_does_not_claim_by_call(engine: Engine) -> None:
    """Rule 33: nobody would know whose heartbeat keeps what."""
    await engine.connect(ANNA)
    await engine.create()

    with pytest.raises(SessionHasStream):
        await claimed(engine)
    with pytest.raises(SessionHasStream):
        await registered(engine)
    with pytest.raises(SessionNotRegistered):
        await claimed(engine, owner=BEN)


async def test_a_worker_without_a_stream_keeps_its_task_by_renewing_it(engine: Engine) -> None:
    """Rule 33: and by nothing else."""
    await registered(engine)
    await engine.create()
    (mine,) = await claimed(engine)

    for _ in range(3):
        (answer,) = await engine.worker_calls.renew("default", ANNA.session_id, [mine.held])
        assert answer.verdict is Verdict.ACCEPTED
        await engine.pass_lease_time(20)
        assert await engine.sweep() == []
    await engine.pass_lease_time(11)

    assert await engine.sweep() == [mine.held.task_id]
    with pytest.raises(LeaseLost):
        await engine.worker_calls.commit("default", ANNA.session_id, mine.held, mine.frames(FINISH))


async def test_the_frames_of_one_commit_are_one_batch(engine: Engine) -> None:
    """Rule 33: a pause lets the result in and holds the end back, as on a stream."""
    await registered(engine)
    await engine.create()
    (mine,) = await claimed(engine)
    await engine.pause()

    news = await engine.worker_calls.commit("default", ANNA.session_id, mine.held, mine.frames(done("a"), FINISH))

    assert [answer.released for answer in news.answers] == [True, True]
    assert (await engine.get()).status is InstanceStatus.PAUSED
    assert (await engine.steps())["a"].status is StepStatus.COMPLETED


async def test_frames_of_another_session_do_not_count(engine: Engine) -> None:
    """Rule 33: a fence alone is no proof."""
    mine = await engine.begin(ANNA)

    with pytest.raises(LeaseLost):
        await engine.worker_calls.commit("default", BEN.session_id, mine.held, mine.frames(done("a")))

    assert await engine.steps() == {}


# ---- 34: what came meanwhile


async def test_an_event_that_comes_during_the_last_body_does_not_revive_the_run(engine: Engine) -> None:
    """Rule 34: a finish ignores it; the event stays undelivered on the run that has ended."""
    mine = await engine.begin()
    await engine.say(mine, expects("event"), (BEGIN, opens("a")))
    await engine.send()
    assert (await engine.live()).wake_again

    news = await engine.say(mine, FINISH)

    assert news.answers[0].released
    assert (await engine.get()).status is InstanceStatus.COMPLETE
    assert await engine.task() is None
    assert [event.delivered_at for event in await engine.events()] == [None]


@pytest.mark.parametrize("when", ["before it pauses", "while it is paused"])
async def test_an_event_that_comes_around_a_pause_is_delivered_after_it(engine: Engine, when: str) -> None:
    """Rule 34: whatever came, a resume makes the run due at once, and it finds it."""
    mine = await engine.begin()
    await engine.say(mine, expects("event", timeout=HOUR), (BEGIN, opens("a")))
    if when == "before it pauses":
        await engine.send()
    await engine.pause()
    await engine.say(mine, done("a"))
    assert (await engine.get()).status is InstanceStatus.PAUSED
    if when == "while it is paused":
        await engine.send()
    assert await engine.claim() == []

    await engine.advance(2 * HOUR)
    await engine.resume()
    again = await engine.claim_one()

    assert again.task.reason is Reason.RESUME
    step = (await engine.steps())["event"]
    assert (step.status, step.result) == (StepStatus.COMPLETED, Payload("1"))


async def test_a_wait_that_ends_while_the_run_is_paused_ends_at_its_own_time(engine: Engine) -> None:
    """Rule 34: pausing does not stop clocks."""
    mine = await engine.begin()
    await engine.say(mine, sleeps("nap", HOUR), failed("flaky"), SUSPEND)
    wakes = (await engine.get()).wake_at
    assert wakes == await engine.now() + 10 * SECOND
    await engine.pause()
    await engine.advance(HOUR)
    assert await engine.claim() == []

    await engine.resume()
    task = await engine.live()
    again = await engine.claim_one()

    assert (task.status, task.run_at) == (TaskStatus.PENDING, await engine.now())
    assert {(step.name, step.status) for step in again.input.steps} == {
        ("nap", StepStatus.COMPLETED),
        ("flaky", StepStatus.PENDING),
    }
