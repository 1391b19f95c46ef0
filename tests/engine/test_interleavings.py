"""Interleavings of two replicas over one run, each forced: locks, verdicts, pauses, restarts, request ids.

The numbers are those of the rules that forbid what would go wrong. What SQLite cannot do (a transaction that waits in
the middle) is forced on PostgreSQL alone; what both can do runs on both.
"""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from stepwell_server.domain.spine.frames import Body
from stepwell_server.domain.spine.tasks import Stop, TaskStatus, Verdict
from stepwell_server.domain.values.asked import NOT_ASKED
from stepwell_server.domain.values.errors import (
    IdempotencyKeyReused,
    InstanceIdAlreadyExists,
    InstanceTerminal,
    RunSuperseded,
)
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import HOUR
from stepwell_server.domain.workflows.instances import InstanceStatus, NewEvent, StepStatus
from stepwell_server.engine.workflows.calls import Stored
from tests.support.faults.forcing import before_statement, held_before_commit, undecided
from tests.support.replicas.runs import (
    ANNA,
    BEN,
    FINISH,
    SUSPEND,
    Engine,
    Said,
    done,
    expects,
    failed,
    opens,
    sleeps,
    until,
)

# ---- 1: lock, then stamp, then read


async def test_an_event_that_commits_while_a_suspend_waits_for_it_is_not_missed(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 1: the run would sleep until its deadline, the event beside it."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, expects("approval"))

    async with held_before_commit(there, there.send("go", '"yes"')):
        suspending = asyncio.create_task(here.say(mine, SUSPEND))
        await undecided(here)

    news = await suspending
    assert [(step.name, step.result) for step in news.resolved] == [("approval", Payload('"yes"'))]
    assert not news.answers[0].released
    assert (await here.live()).status is TaskStatus.PROCESSING


async def test_a_wait_that_commits_while_an_event_is_on_its_way_is_woken(replicas: tuple[Engine, Engine]) -> None:
    """Rule 1, the mirror image: the sender would not see the wait just stored."""
    here, there = replicas
    mine = await here.begin()

    async with held_before_commit(here, here.say(mine, expects("approval"), SUSPEND)):
        sending = asyncio.create_task(there.send())
        await undecided(there)

    await sending
    (handed,) = await there.claim(BEN)
    assert [(step.name, step.status) for step in handed.input.steps] == [("approval", StepStatus.COMPLETED)]


async def test_an_event_that_commits_between_a_suspends_first_look_and_its_lock_is_seen(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 1: whatever is committed before the lock is taken is looked at after it."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, expects("approval"))

    with before_statement(here, "FOR NO KEY UPDATE", there.send) as met:
        news = await here.say(mine, SUSPEND)

    assert met and [step.name for step in news.resolved] == ["approval"]


async def test_time_is_read_after_the_last_lock(replicas: tuple[Engine, Engine]) -> None:
    """Rule 1: an event that had to wait until after the deadline came after the deadline."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, expects("approval", timeout=HOUR))

    async with held_before_commit(here, here.pause(), label="call"):
        sending = asyncio.create_task(there.send())
        await undecided(there)
        await there.advance(2 * HOUR)

    assert (await sending).event.created_at == await there.now()
    await here.say(mine, SUSPEND)
    await here.resume()
    (handed,) = await here.claim()
    assert [(step.name, step.status) for step in handed.input.steps] == [("approval", StepStatus.ERRORED)]


# ---- 3: locked is not lost


async def test_a_result_for_a_run_that_somebody_has_locked_is_kept(replicas: tuple[Engine, Engine]) -> None:
    """Rule 3: it would be thrown away as stale, and the body would be executed again."""
    here, there = replicas
    mine = await here.begin()

    async with held_before_commit(there, there.send("other")):
        reporting = asyncio.create_task(here.say(mine, done("a")))
        await undecided(here)

    news = await reporting
    assert news.stale is None and news.answers[0].verdict is Verdict.ACCEPTED
    assert (await here.steps())["a"].status is StepStatus.COMPLETED


async def test_a_result_for_a_run_that_is_being_terminated_waits_for_the_verdict(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 3: only a row that is seen to be gone is lost."""
    here, there = replicas
    mine = await here.begin()

    async with held_before_commit(there, there.terminate(), label="call"):
        reporting = asyncio.create_task(here.say(mine, done("a")))
        await undecided(here)

    assert isinstance((await reporting).stale, RunSuperseded)
    assert await here.steps() == {}


async def test_frames_stay_in_order_behind_a_lock(replicas: tuple[Engine, Engine]) -> None:
    """Rules 3 and 13: a finish never overtakes the result before it."""
    here, there = replicas
    mine = await here.begin()

    async with held_before_commit(there, there.send("other")):
        reports = [asyncio.create_task(here.say(mine, one)) for one in (done("a"), done("b"), FINISH)]
        await undecided(here)

    answers = [(await one).answers[0] for one in reports]
    assert [(one.verdict, one.refusal) for one in answers] == [(Verdict.ACCEPTED, None)] * 3
    assert (await here.get()).status is InstanceStatus.COMPLETE
    assert set(await here.steps()) == {"a", "b"}


@pytest.mark.parametrize("count", [1, 5])
async def test_locked_runs_hold_up_nobody_else(replicas: tuple[Engine, Engine], count: int) -> None:
    """Rule 3: the slow lane is for those who wait, and its waiting takes no connection away from the groups."""
    here, there = replicas
    stuck = [await here.begin(ANNA, f"stuck-{number}") for number in range(count)]
    other = await here.begin(ANNA, "other")
    events = [(NewEvent(here.key(one.task.key), "go", None), NOT_ASKED) for one in stuck]

    async with held_before_commit(there, there.workflows.send_events(events)):
        reporting = [asyncio.create_task(here.say(one, done("a"))) for one in stuck]
        await until(lambda: len(here.committer._slow) == count)
        for number in range(5):
            assert (await here.say(other, done(str(number)))).stale is None
        assert not any(one.done() for one in reporting)

    assert [(await one).stale for one in reporting] == [None] * count


# ---- 4: nobody deadlocks


async def test_frames_events_and_management_calls_over_the_same_runs_never_deadlock(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 4: hot groups of both replicas against calls that wait for locks."""
    here, _ = replicas
    names = [f"x{number}" for number in range(12)]
    holdings = {name: await here.begin(ANNA, name) for name in names}

    async def report(name: str) -> None:
        for number in range(20):
            news = await replicas[number % 2].say(holdings[name], (done(f"s{number}"), opens("body", begun=True)))
            assert news.answers[0].refusal is None

    async def manage(engine: Engine, ordered: list[str]) -> None:
        for name in ordered:
            await engine.pause(name)
            await engine.send(to=name)
            await engine.resume(name)

    async def send(engine: Engine, ordered: list[str]) -> None:
        for _ in range(3):
            await asyncio.gather(*(engine.send(to=name) for name in ordered))

    await asyncio.gather(
        *(report(name) for name in names),
        *(manage(engine, ordered) for engine in replicas for ordered in (names, names[::-1])),
        *(send(engine, ordered) for engine in replicas for ordered in (names, names[::-1])),
    )

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await here.db.run_tx(lambda tx: tx.execute(text(deadlocks)).scalar_one()) == 0
    for name in names:
        task = await here.live(name)
        assert (task.step_count, task.pending_events) == (20, 16)
        assert (await here.get(name)).status is InstanceStatus.RUNNING


# ---- 5: what an accepted frame must see


@pytest.mark.parametrize("together", [True, False], ids=["with-the-last-result", "alone"])
async def test_a_pause_that_commits_while_a_finish_waits_is_honoured(
    replicas: tuple[Engine, Engine], together: bool
) -> None:
    """Rule 5: the last result is stored and the end withheld, until the instance is resumed."""
    here, there = replicas
    mine = await here.begin()
    said: tuple[Said, ...] = (done("a"), FINISH)
    if not together:
        await here.say(mine, said[0])
        said = said[1:]

    async with held_before_commit(there, there.pause(), label="call"):
        reporting = asyncio.create_task(here.say(mine, *said))
        await undecided(here)

    answers = (await reporting).answers
    assert [(one.stop, one.released) for one in answers] == [(Stop.PAUSE, True)] * len(said)
    assert (await here.get()).status is InstanceStatus.PAUSED
    assert (await here.steps())["a"].status is StepStatus.COMPLETED
    await here.resume()
    theirs = await there.claim_one(BEN)
    await there.say(theirs, FINISH)
    assert (await here.get()).status is InstanceStatus.COMPLETE


async def test_a_pause_that_commits_while_a_suspend_waits_is_honoured(replicas: tuple[Engine, Engine]) -> None:
    """Rule 5: the suspend would overwrite it, and the pause would come a year later."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, sleeps("nap"))

    async with held_before_commit(there, there.pause(), label="call"):
        suspending = asyncio.create_task(here.say(mine, SUSPEND))
        await undecided(here)

    assert (await suspending).answers[0].stop is Stop.PAUSE
    assert (await here.get()).status is InstanceStatus.PAUSED
    assert (await here.live()).status is TaskStatus.PARKED


async def test_a_run_that_is_to_pause_lets_its_open_bodies_end_and_begins_no_other(engine: Engine) -> None:
    """Rule 5: paused when the last body that was executing has ended, with its result saved."""
    mine = await engine.begin()
    await engine.say(mine, (done("first"), opens("a"), opens("b")))
    assert (await engine.pause()).status is InstanceStatus.WAITING_FOR_PAUSE

    still = (await engine.say(mine, (done("a"), opens("next")))).answers[0]
    assert (still.stop, still.released) == (Stop.PAUSE, False)
    last = (await engine.say(mine, done("b"), FINISH)).answers

    assert [(one.stop, one.released) for one in last] == [(Stop.PAUSE, True)] * 2
    assert (await engine.get()).status is InstanceStatus.PAUSED
    assert set(await engine.steps()) == {"first", "a", "b"}
    assert (await engine.live()).open_steps == ""


@pytest.mark.parametrize("last", [done("b"), failed("b")], ids=["done", "failed"])
async def test_a_run_that_is_to_pause_keeps_every_result_that_came_together(engine: Engine, last: Body) -> None:
    """Bodies that begin unannounced are in no list, so that the first result seems to be the only one."""
    mine = await engine.begin()
    await engine.pause()

    answers = (await engine.say(mine, done("a"), last, FINISH)).answers

    assert [one.released for one in answers] == [False, True, True]
    assert (await engine.get()).status is InstanceStatus.PAUSED
    assert {name: step.attempts for name, step in (await engine.steps()).items()} == {"a": 1, "b": 1}


async def test_a_result_of_a_run_that_was_restarted_is_not_stored_in_the_next(engine: Engine) -> None:
    """Rules 5 and 6: the restart gives the row a new fence at once, not at the next claim."""
    mine = await engine.begin()
    await engine.say(mine, (done("a"), opens("b")))

    restarted = await engine.restart()
    news = await engine.say(mine, done("b"))

    assert isinstance(news.stale, RunSuperseded) and not news.answers
    assert (restarted.run_number, restarted.status) == (1, InstanceStatus.QUEUED)
    assert await engine.steps() == {}
    assert set(await engine.steps(run_number=0)) == {"a"}
    theirs = await engine.claim_one(BEN)
    assert (theirs.task.open_steps, theirs.task.interruptions) == ("", 0)


async def test_a_restart_that_commits_while_a_result_waits_keeps_it_out(replicas: tuple[Engine, Engine]) -> None:
    """Rule 5: the result was on its way when the row was given to the next run."""
    here, there = replicas
    mine = await here.begin()

    async with held_before_commit(there, there.restart(), label="call"):
        reporting = asyncio.create_task(here.say(mine, done("a"), FINISH))
        await undecided(here)

    assert isinstance((await reporting).stale, RunSuperseded)
    assert (await here.get()).status is InstanceStatus.QUEUED
    assert await here.steps() == await here.steps(run_number=0) == {}


async def test_a_finish_after_a_termination_does_not_complete_anything(engine: Engine) -> None:
    """Rule 5: only who still owns the task ends the instance."""
    mine = await engine.begin()
    await engine.terminate()

    news = await engine.say(mine, done("a"), FINISH)

    assert isinstance(news.stale, RunSuperseded)
    instance = await engine.get()
    assert (instance.status, instance.output) == (InstanceStatus.TERMINATED, None)


async def test_two_restarts_of_an_instance_that_ended_make_two_runs(replicas: tuple[Engine, Engine]) -> None:
    """The second finds no task, waits for the instance, and must look again from the beginning."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, FINISH)

    async with held_before_commit(here, here.restart(), label="call"):
        second = asyncio.create_task(there.restart())
        await asyncio.wait([second], timeout=0.05)
        assert not second.done()

    assert (await second).run_number == 2
    assert (await here.live()).run_number == 2
    assert len(await here.claim(credits=5)) == 1


async def test_an_event_for_an_instance_that_is_restarted_meanwhile_is_stored(replicas: tuple[Engine, Engine]) -> None:
    """It had ended when the sender looked for its task, and lives when it looks at the instance: it is never absent."""
    here, there = replicas
    await here.create()
    await here.terminate()

    with before_statement(here, "workflow_instances.instance_id", there.restart) as met:
        stored = await here.send()

    assert met and stored.status is InstanceStatus.QUEUED
    assert len(await here.events()) == 1


# ---- 20: request ids


async def test_the_same_create_in_flight_on_two_replicas_makes_one_instance(replicas: tuple[Engine, Engine]) -> None:
    """Rule 20: the second would be neither new nor a repetition, because it cannot see what it waited for."""
    here, there = replicas

    async with held_before_commit(here, here.create("x", "r1")) as first:
        second = asyncio.create_task(there.create("x", "r1"))
        await asyncio.wait([second], timeout=0.05)
        assert not second.done()

    assert (await first).id == (await second).id
    with pytest.raises(InstanceIdAlreadyExists):
        await there.create("x", "r2")
    assert len(await here.claim(credits=5)) == 1


async def test_a_create_without_an_id_that_is_repeated_finds_its_own_instance(engine: Engine) -> None:
    """Rule 20: also within one group, where the two have nothing in common but the request id."""
    first, second = await asyncio.gather(engine.create("", "r1"), engine.create("", "r1"))
    third = await engine.create("", "r1")

    assert first.id == second.id == third.id
    assert first.key == third.key
    assert len(await engine.claim(credits=5)) == 1


async def test_the_same_event_in_flight_on_two_replicas_is_stored_once(replicas: tuple[Engine, Engine]) -> None:
    """Rule 20: the second waits for the run's lock and then sees the first."""
    here, there = replicas
    await here.create()

    async with held_before_commit(here, here.send(request_id="r1")) as first:
        second = asyncio.create_task(there.send(request_id="r1"))
        await undecided(there)

    assert (await first).event.position == (await second).event.position
    assert len(await here.events()) == 1


async def test_a_request_id_in_flight_for_one_instance_cannot_be_used_for_another(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 20: the two share no lock; what the second runs into is read in a later statement."""
    here, there = replicas
    await here.create("x")
    await here.create("y")

    async with held_before_commit(here, here.send(to="x", request_id="r1")) as first:
        second = asyncio.create_task(there.send(to="y", request_id="r1"))
        await asyncio.wait([second], timeout=0.05)
        assert not second.done()

    assert isinstance(await first, Stored)
    with pytest.raises(IdempotencyKeyReused):
        await second
    assert len(await here.events("x")) == 1 and await here.events("y") == []


async def test_an_event_to_an_instance_that_has_ended_is_refused_and_a_repeated_one_is_not(engine: Engine) -> None:
    """Rule 20: who repeats a request that was accepted is answered, whatever has happened since."""
    mine = await engine.begin()
    sent = await engine.send(request_id="r1")
    await engine.say(mine, FINISH)

    with pytest.raises(InstanceTerminal):
        await engine.send()
    again = await engine.send(request_id="r1")

    assert (again.event.position, again.status) == (sent.event.position, InstanceStatus.COMPLETE)
