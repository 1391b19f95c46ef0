"""Interleavings of frames, each forced: old images, waits beside bodies, lost replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell_server.domain.spine.frames import Body
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import TaskStatus, Verdict
from stepwell_server.domain.values.errors import DatabaseUnavailable, Internal, InvalidField
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.domain.values.times import DAY, HOUR, MINUTE, SECOND
from stepwell_server.domain.values.tuning import Tuning
from stepwell_server.domain.workflows.frames import News, Suspend
from stepwell_server.domain.workflows.instances import InstanceStatus, Step, StepStatus
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.books import HotCall
from stepwell_server.engine.spine.calls import ReportFrames
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.inbox import Sender
from stepwell_server.engine.spine.outbox import Told
from stepwell_server.engine.workflows.book import RunInput
from stepwell_server.storage.database.failpoints import AFTER_COMMIT
from tests.support.faults.faults import Rates, faulty
from tests.support.replicas.runs import (
    ANNA,
    BEGIN,
    BEN,
    FINISH,
    REMEMBER,
    SUSPEND,
    Engine,
    Holding,
    background,
    done,
    expects,
    failed,
    next_resolved,
    opens,
    replicas_on,
    report,
    running,
    sleeps,
    streamed,
    taken,
    until,
)

HOURS_LONG = StepPolicy(timeout=DAY)


# ---- 2: images in memory


@pytest.mark.parametrize("meanwhile", [True, False], ids=["another had it", "nobody had it"])
async def test_a_run_in_memory_is_gone_on_with_only_if_nobody_else_had_it(
    replicas: tuple[Engine, Engine], meanwhile: bool
) -> None:
    """Rule 2: the worker would execute again what another has done since, although no lease ever lapsed."""
    here, there = replicas
    connection, mine = await streamed(here)
    await connection.report(mine.held, mine.frames(done("s1"), sleeps("nap", HOUR), expects("event"), REMEMBER))
    (suspended,) = [one for one in await taken(connection) if isinstance(one, Told)]
    await there.send()
    if meanwhile:
        theirs = await there.claim_one(BEN)
        await there.say(theirs, done("s2"), SUSPEND)
        await here.advance(HOUR)

    async with background(here.handout.run()):
        await here.sweep()
        connection.grant(1)
        (delivery,) = [one for one in await taken(connection) if isinstance(one, Assignment)]

    assert isinstance(delivery.input, RunInput)
    told = {step.name for step in delivery.input.steps}
    if meanwhile:
        assert delivery.input.known_revision == 0
        assert told == {"s1", "nap", "event", "s2"}
    else:
        assert delivery.input.known_revision == suspended.news.answers[-1].revision
        assert told == {"event"}


async def test_a_run_that_was_restarted_is_never_gone_on_with_from_memory(engine: Engine) -> None:
    """Rule 2: the next run has nothing in common with what the worker remembers."""
    mine = await engine.begin()
    await engine.say(mine, done("s1"), sleeps("nap"), REMEMBER)
    await engine.restart()

    again = await engine.claim_one()

    assert (again.input.known_revision, again.task.run_number) == (0, 1)


async def test_every_replica_takes_every_frame_without_having_seen_those_before(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 2: the stream moves there and back under one fence; what was committed elsewhere is never missing."""
    here, there = replicas
    mine = await here.begin()

    await here.say(mine, (done("s1"), opens("s2")))
    await there.say(mine, (done("s2"), opens("s3")))
    await here.say(mine, (failed("s3"), opens("s4")))
    news = await there.say(mine, done("s4"), SUSPEND)

    assert [answer.refusal for answer in news.answers] == [None, None]
    assert {name: step.attempts for name, step in (await here.steps()).items()} == dict.fromkeys(
        ("s1", "s2", "s3", "s4"), 1
    )
    assert (await here.get()).status is InstanceStatus.WAITING
    assert (await here.get()).wake_at == (await here.steps())["s3"].next_retry_at


async def test_each_commit_of_a_run_has_a_revision_of_its_own(engine: Engine) -> None:
    """Rule 2: two states of a run never have the same number, whoever made them."""
    mine = await engine.begin()
    seen = [(await engine.live()).revision]
    for said in (done("a"), expects("event"), (BEGIN, opens("b")), done("b")):
        news = await engine.say(mine, said)
        seen.append(news.answers[0].revision)
        assert (await engine.live()).revision == seen[-1]
    await engine.send()
    seen.append((await engine.live()).revision)
    await engine.say(mine)  # the wait is over
    seen.append((await engine.live()).revision)

    assert seen == sorted(set(seen))


# ---- 10: waits beside bodies


async def test_a_wait_beside_a_body_that_executes_is_stored_at_once_and_ends_in_time(engine: Engine) -> None:
    """Rule 10: it would begin when the body ends, ten minutes late."""
    connection, mine = await streamed(engine)
    async with background(engine.handout.run()):
        await report(connection, mine, (BEGIN, opens("big", policy=HOURS_LONG)), sleeps("nap", SECOND))
        opened_at = await engine.now()
        assert (await engine.steps())["nap"].wake_at == opened_at + SECOND

        await engine.advance(SECOND)
        resolved = await next_resolved(connection)

    assert [(step.name, step.status) for step in resolved] == [("nap", StepStatus.COMPLETED)]
    task = await engine.live()
    assert (task.status, task.fence) == (TaskStatus.PROCESSING, mine.held.fence)
    assert "big" in task.open_steps


async def test_a_retry_beside_a_body_that_executes_comes_in_time(engine: Engine) -> None:
    """Rule 10: a step's delay is its own, whatever its siblings do."""
    connection, mine = await streamed(engine)
    async with background(engine.handout.run()):
        await report(connection, mine, (BEGIN, opens("big", policy=HOURS_LONG), opens("flaky")))
        await report(connection, mine, failed("flaky"))
        await engine.advance(10 * SECOND)
        resolved = await next_resolved(connection)

    assert [(step.name, step.status, step.attempts) for step in resolved] == [("flaky", StepStatus.PENDING, 1)]


@pytest.mark.parametrize("hinted", [True, False], ids=["hinted", "hint-lost"])
async def test_an_event_that_comes_elsewhere_while_a_body_executes_is_delivered(
    replicas: tuple[Engine, Engine], hinted: bool
) -> None:
    """Rule 10: a hint tells at once, and if it is lost the next heartbeat does."""
    here, there = replicas
    connection, mine = await streamed(here)
    await report(connection, mine, (BEGIN, opens("big", policy=HOURS_LONG)), expects("approval"))

    await there.send("go", '"yes"')
    if hinted:
        here.handout.holders.look(there.committed[-1].must_look)
    else:
        await connection.heartbeat(1, [mine.held])
    resolved: list[Step] = []
    while not resolved:
        resolved = await next_resolved(connection)

    assert [(step.name, step.status) for step in resolved] == [("approval", StepStatus.COMPLETED)]
    assert [event.consumed_by_step for event in await here.events()] == ["approval"]


async def test_a_wait_keeps_its_time_over_a_crash(engine: Engine) -> None:
    """Rule 10: the next holder opens it again, and is told the time that it got first."""
    mine = await engine.begin()
    first = await engine.say(mine, expects("approval", timeout=2 * HOUR), sleeps("nap", HOUR))
    await engine.advance(HOUR // 2)
    await engine.lose_worker()

    theirs = await engine.claim_one(BEN)
    again = await engine.say(theirs, expects("approval", timeout=2 * HOUR), sleeps("nap", HOUR), SUSPEND)

    assert [one.wake_at for one in again.answers[:2]] == [one.wake_at for one in first.answers]
    assert (await engine.get()).wake_at == first.answers[1].wake_at


async def test_a_suspend_that_crosses_the_end_of_a_wait_on_its_way_does_not_release(engine: Engine) -> None:
    """Rules 10 and 32: the worker believes that all branches wait, and one of them goes on."""
    mine = await engine.begin()
    opened = await engine.say(mine, expects("approval"), sleeps("nap", HOUR))
    await engine.send()
    assert [step.name for step in (await engine.say(mine)).resolved] == ["approval"]  # this is on its way

    crossing = await engine.say(mine, Suspend(known_revision=opened.revision))
    assert not crossing.answers[0].released
    assert "approval" in {step.name for step in crossing.resolved}
    assert (await engine.live()).status is TaskStatus.PROCESSING

    after = await engine.say(mine, done("next"), Suspend(known_revision=crossing.revision))
    assert after.answers[-1].released


# ---- 15: frames that are sent again

SAID: dict[str, tuple[Body, ...]] = {
    "a result": (done("a"),),
    "a failure": (failed("a"),),
    "a wait": (expects("w"),),
    "a suspend": (sleeps("nap"), SUSPEND),
    "a finish": (done("a"), FINISH),
    "a refusal": (SUSPEND,),
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
async def test_what_was_committed_and_not_acknowledged_is_acknowledged_by_another_replica(
    replicas: tuple[Engine, Engine], said: tuple[Body, ...]
) -> None:
    """Rule 15: it would be answered as stale, and the worker would drop a run that it holds."""
    here, there = replicas
    mine = await here.begin()
    call = mine.reports(*said)

    def die(point: str) -> None:
        if point == f"{AFTER_COMMIT}/group":
            raise ConnectionResetError

    with here.db.failpoints.install(die), pytest.raises(Internal):
        await here.submit(call)
    stored = (await there.get(), await there.steps())
    again = await there.submit(call)

    assert again.stale is None
    assert [answer.verdict for answer in again.answers] == [Verdict.REPEATED] * len(said)
    assert [answer.released for answer in again.answers] == [said[-1] is FINISH or len(said) == 2] * len(said)
    assert (await there.get(), await there.steps()) == stored
    assert {step.attempts for step in stored[1].values()} <= {0, 1}


@pytest.mark.parametrize("way", ["the same frame again", "a hello elsewhere"])
async def test_the_end_of_a_wait_that_the_worker_never_heard_of_is_told_again(
    replicas: tuple[Engine, Engine], way: str
) -> None:
    """Rules 10 and 15: it is stored, the word about it is lost with the replica, and the worker would wait for ever."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, expects("approval"), sleeps("nap", HOUR))
    await here.send()
    suspend = mine.reports(SUSPEND)
    assert [step.name for step in (await here.submit(suspend)).resolved] == ["approval"]  # and this is lost

    if way == "the same frame again":
        resolved = (await there.submit(suspend)).resolved
    else:
        resolved = tuple(await next_resolved(await there.connect(ANNA, [mine.held])))

    assert [(step.name, step.status) for step in resolved] == [("approval", StepStatus.COMPLETED)]


@pytest.mark.tuning(question_retry=0.01)
async def test_a_question_that_found_nothing_does_not_hide_what_another_found_and_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules 10 and 15: two are on their way, the answer of the first is lost, and the second finds nothing more."""
    connection, mine = await streamed(engine)
    await report(connection, mine, expects("approval"))
    enqueue, asked, answers = Committer.enqueue, [], [asyncio.Future[News](), asyncio.Future[News]()]

    def hold_back_two(committer: Committer, call: HotCall, *sender: Sender) -> asyncio.Future[Any]:
        real = enqueue(committer, call, *sender)
        if not isinstance(call, ReportFrames) or len(asked) == 2:
            return real
        asked.append(real)
        return answers[len(asked) - 1]

    monkeypatch.setattr(Committer, "enqueue", hold_back_two)
    await engine.send()
    engine.handout.holders.look([mine.held.task_id])
    engine.handout.holders.look([mine.held.task_id])
    found, nothing = await asyncio.gather(*asked)
    assert (len(found.resolved), len(nothing.resolved)) == (1, 0)

    answers[0].set_exception(DatabaseUnavailable("the answer was lost"))
    await asyncio.sleep(0)
    answers[1].set_result(nothing)

    assert [step.name for step in await next_resolved(connection)] == ["approval"]


async def test_a_timeout_that_the_worker_never_heard_of_is_told_again(replicas: tuple[Engine, Engine]) -> None:
    """Rules 15 and 22: the server ended the body, and the word about it is lost."""
    here, there = replicas
    mine = await here.begin()
    await here.say(mine, (BEGIN, opens("hangs")))
    await here.advance(11 * MINUTE)
    assert (await here.say(mine)).timed_out == ("hangs",)  # and this is lost

    resolved = await next_resolved(await there.connect(ANNA, [mine.held]))

    assert [(step.name, step.attempts) for step in resolved] == [("hangs", 1)]


async def test_a_frame_of_an_older_lease_is_never_taken_for_a_repetition(engine: Engine) -> None:
    """Rule 15: numbers count under one fence."""
    mine = await engine.begin()
    await engine.say(mine, done("a"), done("b"))
    await engine.lose_worker()
    theirs = await engine.claim_one(ANNA)  # the same worker, another lease
    await engine.say(theirs, done("c"))

    old = ReportFrames(mine.held, ANNA.session_id, Holding(mine.assignment).frames(done("z")))
    assert (await engine.submit(old)).stale is not None
    assert set(await engine.steps()) == {"a", "b", "c"}


@pytest.mark.parametrize("seed", range(3))
async def test_frames_over_a_stream_whose_commits_are_of_unknown_outcome_count_once_and_in_order(
    database_url: str, seed: int
) -> None:
    """Rule 15: the stream keeps them and commits them again, until the database says that they are there."""
    async with replicas_on(database_url) as (healthy,):
        connection, mine = await streamed(healthy)
        db, backend = faulty(healthy.db, seed, group=Rates(error=0.1, execute_then_fail=0.4))
        broken = Engine(db, tuning=Tuning(report_retry=0.001))
        async with running(broken):
            connection._link.committer = broken.committer
            for number in range(12):
                await connection.report(mine.held, mine.frames(done(f"s{number}")))
                await until(lambda: not broken.committer._inbox)
            await connection.report(mine.held, mine.frames(FINISH))
            answers: list[Verdict] = []
            while len(answers) < 13:
                told = [one.news for one in await taken(connection) if isinstance(one, Told)]
                assert not [one.stale for one in told if one.stale is not None]
                answers += [answer.verdict for one in told for answer in one.answers]

        assert (await healthy.get()).status is InstanceStatus.COMPLETE
        steps = sorted((await healthy.steps()).values(), key=lambda step: step.position)
        assert [step.name for step in steps] == [f"s{number}" for number in range(12)]
        assert backend.fired["execute_then_fail"] > 0 and Verdict.REPEATED in answers


async def test_a_batch_that_its_run_paused_in_is_acknowledged_again(engine: Engine) -> None:
    """Rule 15: the finish that was not applied, too, or its worker would be told that it had lost the run."""
    mine = await engine.begin()
    await engine.pause()
    batch = mine.reports(done("a"), FINISH)
    await engine.submit(batch)

    again = await engine.submit(batch)

    assert [(one.verdict, one.released) for one in again.answers] == [(Verdict.REPEATED, True)] * 2
    assert again.stale is None and (await engine.get()).status is InstanceStatus.PAUSED


async def test_a_gap_in_the_numbers_is_refused_and_nothing_after_it_is_taken(engine: Engine) -> None:
    """A frame that was lost on the way must come first."""
    mine = await engine.begin()
    lost = mine.frames(done("a"))
    early = await engine.say(mine, done("b"), done("c"))

    assert all(isinstance(answer.refusal, InvalidField) for answer in early.answers)
    news = await engine.submit(
        ReportFrames(mine.held, ANNA.session_id, lost + Holding(mine.assignment, 1).frames(done("b"), done("c")))
    )
    assert [answer.verdict for answer in news.answers] == [Verdict.ACCEPTED] * 3


async def test_a_body_that_hangs_is_ended_by_the_server_and_its_worker_told(engine: Engine) -> None:
    """Rule 22: a worker whose user code hangs but whose loop heartbeats would never end the step."""
    connection, mine = await streamed(engine)
    async with background(engine.handout.run()):
        await report(connection, mine, (BEGIN, opens("hangs")))
        await engine.advance(10 * MINUTE)
        (told,) = [one for one in await taken(connection) if isinstance(one, Told)]

    assert told.news.timed_out == ("hangs",)
    step = (await engine.steps())["hangs"]
    assert (step.status, step.attempts, step.failure and step.failure.message) == (
        StepStatus.WAITING, 1, "STEP_TIMEOUT",
    )  # fmt: skip
    assert (await engine.live()).open_steps == ""


async def test_a_stream_is_told_nothing_when_there_is_nothing_to_tell(engine: Engine) -> None:
    """A look that finds nothing costs the worker no frame."""
    connection, mine = await streamed(engine)
    engine.handout.holders.look([mine.held.task_id])
    await connection.heartbeat(7, [Held(mine.held.task_id, mine.held.fence)])
    await until(lambda: connection.last_beat == 7)

    assert not [one for one in await taken(connection) if isinstance(one, Told)]
