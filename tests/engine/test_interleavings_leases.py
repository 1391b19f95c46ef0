"""Interleavings of leases and runs, each forced: what was never delivered, who may shorten, whom a takeover charges."""

from __future__ import annotations

import asyncio

import pytest

from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import Reason, TaskStatus, Verdict
from stepwell_server.domain.values.errors import LeaseLost, Superseded
from stepwell_server.domain.values.retry import RetryPolicy, StepPolicy
from stepwell_server.domain.values.times import DAY, HOUR, MINUTE, SECOND
from stepwell_server.domain.workflows.instances import InstanceStatus, StepStatus
from stepwell_server.engine.spine import calls
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.storage.spine import sessions
from stepwell_server.storage.spine import tasks as store
from tests.support.replicas.runs import (
    ANNA,
    BEGIN,
    BEN,
    FINISH,
    SUSPEND,
    Engine,
    background,
    done,
    expects,
    failed,
    opens,
    sleeps,
    taken,
    until,
)

ONCE = StepPolicy(RetryPolicy(max_attempts=1))


async def lasts(engine: Engine, instance_id: str = "x") -> float:
    """For how many seconds a lease still holds."""
    until = (await engine.live(instance_id)).locked_until
    assert until is not None
    return (until - (await engine.db.run_tx(store.stamp)).lease_now) / SECOND


# ---- 7: claimed and never delivered


async def test_a_frame_that_is_refused_shows_all_the_same_that_its_task_has_arrived(engine: Engine) -> None:
    """Rule 7: its TaskAck travels with it, and the next heartbeat may come when the ack window is over."""
    await engine.create()
    mine = await engine.claim_one()

    (refused,) = (await engine.say(mine, SUSPEND)).answers  # nothing waits

    assert refused.refusal is not None
    assert await lasts(engine) > 20
    assert (await engine.live()).acked


async def test_what_a_replica_claimed_and_never_sent_goes_back_when_its_worker_says_hello_elsewhere(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 7: the worker has never seen it, and would renew it for ever with the rest."""
    here, there = replicas
    kept = await here.begin(ANNA, "kept")
    await here.create("lost")
    await here.claim_one()  # and here dies before it writes the frame

    connection = await there.connect(ANNA, [kept.held])

    assert (await there.live("kept")).owner == connection.owner
    again = await there.claim_one(BEN)
    assert (again.task.key, again.task.interruptions) == ("lost", 0)
    assert (await there.get("kept")).status is InstanceStatus.RUNNING


@pytest.mark.parametrize("acked", [True, False], ids=["acknowledged", "unacknowledged"])
async def test_what_a_hello_does_not_name_counts_if_it_had_arrived(engine: Engine, acked: bool) -> None:
    """Rule 9: a worker that was cut off gave its runs up by itself, in the middle of their bodies, and comes back."""
    await engine.create()
    mine = await engine.claim_one(ANNA)
    if acked:
        await engine.renew(mine)

    await engine.connect(ANNA)
    again = await engine.claim_one(BEN)

    assert again.task.interruptions == int(acked)


async def test_a_heartbeat_renews_what_it_names_and_nothing_else(engine: Engine) -> None:
    """Rule 7: no statement renews all that a session holds."""
    connection = await engine.connect(ANNA)
    for name in ("known", "unknown"):
        await engine.create(name)
    holdings = {one.task.key: one for one in await engine.claim(connection.owner, 2)}
    for one in holdings.values():
        engine.handout.holders.hold(connection.worker, one.held)

    for _ in range(2):
        await connection.heartbeat(1, [holdings["known"].held])
        await taken(connection)
        await engine.pass_lease_time(6)

    assert await engine.sweep() == [holdings["unknown"].held.task_id]
    assert await lasts(engine, "known") > 20
    taken_over = await engine.claim_one(BEN)
    assert (taken_over.task.key, taken_over.task.interruptions) == ("unknown", 0)


async def test_a_stale_lease_is_not_kept_by_a_hello_that_names_it(engine: Engine) -> None:
    """Rule 7: (task, fence) is what is held; an old fence is not."""
    lost = await engine.begin(ANNA)
    await engine.lose_worker()
    theirs = await engine.claim_one(BEN)

    connection = await engine.connect(ANNA, [lost.held])

    assert connection.worker.held == {}
    assert (await engine.live()).owner == theirs.owner
    assert (await engine.renew(lost, connection.owner)).verdict is Verdict.STALE


async def test_a_hello_takes_only_what_its_own_session_holds(engine: Engine) -> None:
    """Rule 7: naming somebody else's lease does not give it to you, and leaving it out does not take it away."""
    mine = await engine.begin(ANNA)

    connection = await engine.connect(BEN, [mine.held])

    assert connection.worker.held == {}
    assert (await engine.live()).owner == ANNA


# ---- 8: living workers keep their leases


async def test_a_replica_that_notices_late_does_not_shorten_what_moved_to_another(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 8: the worker is back elsewhere; its next heartbeat is ten seconds away, and the grace would be five."""
    here, there = replicas
    old = await here.connect(ANNA)
    await here.create()
    mine = await here.claim_one(old.owner)
    here.handout.holders.hold(old.worker, mine.held)
    await here.renew(mine)

    new = await there.connect(ANNA, [mine.held])
    await here.workers.disconnect(old, goodbye=False)

    assert new.owner.connection > old.owner.connection
    assert await lasts(here) > 20
    await here.pass_lease_time(6)
    assert await here.sweep() == []


async def test_a_late_goodbye_of_an_old_stream_gives_nothing_away(replicas: tuple[Engine, Engine]) -> None:
    """Rule 8: returning is guarded by the connection as well."""
    here, there = replicas
    old = await here.connect(ANNA)
    await here.create()
    mine = await here.claim_one(old.owner)
    here.handout.holders.hold(old.worker, mine.held)

    await there.connect(ANNA, [mine.held])
    await here.workers.disconnect(old, goodbye=True)

    assert (await here.live()).status is TaskStatus.PROCESSING
    assert (await here.get()).status is InstanceStatus.RUNNING


async def test_a_stream_that_breaks_leaves_a_short_grace(engine: Engine) -> None:
    """Rule 8: the one case in which a lease is shortened."""
    connection = await engine.connect(ANNA)
    await engine.create()
    mine = await engine.claim_one(connection.owner)
    engine.handout.holders.hold(connection.worker, mine.held)
    await engine.renew(mine)

    await engine.workers.disconnect(connection, goodbye=False)

    assert 0 < await lasts(engine) <= 5


async def test_an_older_stream_of_a_session_is_closed_by_a_newer_one_on_another_replica(
    replicas: tuple[Engine, Engine],
) -> None:
    """Rule 8: two processes with one session id do not keep each other's leases alive."""
    here, there = replicas
    old = await here.connect(ANNA)
    new = await there.connect(ANNA)

    await here.sweep()
    await there.sweep()

    with pytest.raises(Superseded):
        await taken(old)
    assert not new.outbox.ready.is_set()  # there is nothing to send, and no reason to end it


async def test_a_session_that_comes_back_after_a_clean_up_has_a_higher_number(engine: Engine) -> None:
    """Rule 8: a number that was used again would let a stream that is long dead pass for the newest."""
    first = await engine.connect(ANNA)
    await engine.workers.disconnect(first, goodbye=False)
    await engine.db.run_tx(sessions.delete_gone)

    assert (await engine.connect(ANNA)).owner.connection == 2


async def test_a_draining_replica_returns_what_it_never_sent_and_shortens_nothing(engine: Engine) -> None:
    """Rule 8: on a rolling restart, what workers execute stays theirs."""
    connection = await engine.connect(ANNA)
    await engine.create("running")
    mine = await engine.claim_one(connection.owner)
    engine.handout.holders.hold(connection.worker, mine.held)
    await engine.renew(mine)
    async with background(engine.handout.run()):
        connection.grant(1)
        await engine.create("unsent")
        await until(lambda: any(isinstance(one, Assignment) for one in connection.outbox))

    engine.workers.drain()
    await engine.workers.disconnect(connection, goodbye=False)

    assert await lasts(engine, "running") > 20
    back = await engine.live("unsent")
    assert (back.status, back.interruptions) == (TaskStatus.PENDING, 0)


# ---- 9: whom a takeover charges


async def test_a_step_that_kills_its_worker_ends_though_its_siblings_go_on(engine: Engine) -> None:
    """Rule 9: no commit of a sibling clears anything, so poison is executed as often as it may be and no more."""
    holder = await engine.begin()
    executions = 0
    while (poison := (await engine.steps()).get("poison")) is None or not poison.status.final:
        attempt = 1 if poison is None else poison.attempts + 1
        await engine.say(holder, (BEGIN, opens("poison", attempt), opens(f"quick{attempt}")))
        await engine.say(holder, *(done(f"{attempt}-{number}") for number in range(3)), done(f"quick{attempt}"))
        executions += 1
        assert executions <= 3, "it is executed more often than its policy says"
        await engine.lose_worker()
        holder = await engine.claim_one(Owner(f"{executions:032x}", 1))

    assert executions == 3
    assert (poison.attempts, poison.status) == (3, StepStatus.ERRORED)
    assert poison.failure is not None and poison.failure.message == "STEP_MAX_ATTEMPTS_EXCEEDED"


async def test_a_step_that_never_began_is_not_charged(engine: Engine) -> None:
    """Rule 9: the worker was lost between two steps; a step with one attempt must still have it."""
    mine = await engine.begin()
    await engine.say(mine, (done("a"), opens("b", policy=ONCE)))
    await engine.say(mine, done("b", policy=ONCE))

    await engine.lose_worker()
    theirs = await engine.claim_one(BEN)

    assert theirs.task.interruptions == 0
    assert {name: step.attempts for name, step in (await engine.steps()).items()} == {"a": 1, "b": 1}


async def test_takeovers_and_failures_add_up(engine: Engine) -> None:
    """Rule 9: two holders were lost in it, then it failed: that was its third and last."""
    holder = await engine.begin()
    for attempt in (1, 2):
        await engine.say(holder, (BEGIN, opens("a", attempt)))
        await engine.lose_worker()
        holder = await engine.claim_one(Owner(f"{attempt:032x}", 1))
        assert (await engine.steps())["a"].attempts == attempt

    await engine.say(holder, (BEGIN, opens("a", 3)))
    await engine.say(holder, failed("a", 3))

    step = (await engine.steps())["a"]
    assert (step.attempts, step.status) == (3, StepStatus.ERRORED)


@pytest.mark.parametrize("acked", [True, False], ids=["acknowledged", "unacknowledged"])
async def test_a_holder_that_is_lost_without_a_word_counts_if_it_had_the_task(engine: Engine, acked: bool) -> None:
    """Rule 9: it may have begun the first bodies; one that never got the task has not."""
    await engine.create()
    mine = await engine.claim_one()
    if acked:
        await engine.renew(mine)

    await engine.lose_worker()
    theirs = await engine.claim_one(BEN)

    assert (theirs.task.reason, theirs.task.interruptions) == (Reason.TAKEOVER, int(acked))
    await engine.say(theirs, done("a", 1 + acked))
    assert (await engine.live()).interruptions == 0


@pytest.mark.parametrize("during", [True, False], ids=["during a body", "between bodies"])
async def test_a_goodbye_counts_for_bodies_that_it_interrupts(engine: Engine, during: bool) -> None:
    """Rule 9: a drain between bodies costs nothing, one during a body costs an attempt."""
    connection = await engine.connect(ANNA)
    await engine.create()
    mine = await engine.claim_one(connection.owner)
    engine.handout.holders.hold(connection.worker, mine.held)
    await engine.say(mine, (BEGIN, opens("a")))
    if not during:
        await engine.say(mine, done("a"))

    await engine.workers.disconnect(connection, goodbye=True)
    theirs = await engine.claim_one(BEN)

    step = (await engine.steps())["a"]
    assert (step.attempts, theirs.task.interruptions) == (1, 0)
    assert step.status is (StepStatus.PENDING if during else StepStatus.COMPLETED)


@pytest.mark.parametrize("how", ["goodbye", "broken"])
async def test_a_stream_that_ends_right_after_an_arrival_counts_unless_it_says_goodbye(
    engine: Engine, how: str
) -> None:
    """Rule 9: a first body that kills its worker at once must end, and one that never began keeps its attempt."""
    connection = await engine.connect(ANNA)
    await engine.create()
    mine = await engine.claim_one(connection.owner)
    engine.handout.holders.hold(connection.worker, mine.held)
    connection.acknowledge(mine.held)

    await engine.workers.disconnect(connection, goodbye=how == "goodbye")
    await engine.pass_lease_time(6)
    await engine.sweep()

    theirs = await engine.claim_one(BEN)
    assert theirs.task.interruptions == (0 if how == "goodbye" else 1)


async def test_a_takeover_is_charged_once_though_the_claim_that_charges_is_lost_too(engine: Engine) -> None:
    """Rule 9: the claim adds the attempts and forgets what was open, in one transaction."""
    mine = await engine.begin()
    await engine.say(mine, (BEGIN, opens("a")))
    await engine.lose_worker()
    for number in range(3):  # these get the task, and never know it
        await engine.claim_one(Owner(f"{number:032x}", 1))
        assert (await engine.live()).open_steps == ""
        await engine.pass_lease_time(11)
        await engine.sweep()

    assert (await engine.steps())["a"].attempts == 1


async def test_every_other_lease_is_left_alone_by_a_takeover(engine: Engine) -> None:
    """What is open in one run is charged to that run, and to its current number."""
    first = await engine.begin(ANNA, "first")
    second = await engine.begin(ANNA, "second")
    for one in (first, second):
        await engine.say(one, (BEGIN, opens("a")))
    await engine.pass_lease_time(31)
    await engine.renew(second)
    await engine.sweep()

    theirs = await engine.claim_one(BEN)

    assert theirs.task.key == "first"
    assert await engine.steps("second") == {}
    assert (await engine.say(second, done("a"))).stale is None


async def test_a_result_after_the_lease_lapsed_counts_until_another_has_the_task(engine: Engine) -> None:
    """Checked and found sound: an unswept lease that is over is still this worker's."""
    mine = await engine.begin()
    await engine.pass_lease_time(60)
    assert (await engine.say(mine, done("a"))).stale is None

    await engine.lose_worker()
    assert isinstance((await engine.say(mine, done("b"))).stale, LeaseLost)
    assert set(await engine.steps()) == {"a"}


async def test_calls_about_one_run_in_one_group_see_each_other(engine: Engine) -> None:
    """An acknowledgement between two events is not undone by the second, nor is a departure."""
    await engine.create("acked")
    acked = await engine.claim_one()
    await engine.create("left")
    left = await engine.claim_one()

    await asyncio.gather(
        engine.send(to="acked"),
        engine.renew(acked),
        engine.send(to="acked"),
        engine.send(to="left"),
        engine.submit(calls.Leave(left.held, left.owner)),
        engine.send(to="left"),
    )

    task = await engine.live("acked")
    assert (task.acked, task.pending_events) == (True, 2)
    task = await engine.live("left")
    assert (task.status, task.pending_events) == (TaskStatus.PENDING, 2)
    assert (await engine.get("left")).status is InstanceStatus.QUEUED


# ---- 18: two clocks


async def test_a_lease_outlives_virtual_time_and_lapses_in_real_time(engine: Engine) -> None:
    """Rule 18: an advance while a step runs is no takeover; a dead worker is noticed while time stands still."""
    mine = await engine.begin()
    await engine.say(mine, (BEGIN, opens("a", policy=StepPolicy(timeout=2 * DAY))))
    await engine.advance(DAY)
    assert await engine.sweep() == []
    assert (await engine.say(mine, sleeps("nap"))).stale is None
    before = await engine.now()

    await engine.lose_worker()

    assert await engine.now() == before
    theirs = await engine.claim_one(BEN)
    assert (await engine.steps())["a"].attempts == 1
    assert (await engine.say(theirs, done("a", 2))).stale is None


async def test_waits_and_timeouts_follow_virtual_time(engine: Engine) -> None:
    """Rule 18: sleeps, deadlines of events and timeouts of bodies are users' time, to the microsecond."""
    mine = await engine.begin()
    await engine.say(mine, sleeps("nap", HOUR), expects("event", timeout=2 * HOUR), (BEGIN, opens("body")))

    for by, expected in (
        (10 * MINUTE - 1, set()),
        (1, {"body"}),
        (50 * MINUTE - 1, set()),
        (1, {"nap"}),
        (HOUR - 1, set()),
        (1, {"event"}),
    ):
        await engine.advance(by)
        news = await engine.say(mine)
        assert {step.name for step in news.resolved} - {"body"} | {*news.timed_out} == expected


async def test_a_sleep_of_a_year_is_claimed_when_it_is_over_and_not_before(engine: Engine) -> None:
    """Rule 18: the wait ends in the claim, at its own time."""
    mine = await engine.begin()
    await engine.say(mine, sleeps("nap", 365 * DAY), SUSPEND)
    due_at = await engine.now() + 365 * DAY
    assert (await engine.get()).wake_at == due_at

    await engine.advance(365 * DAY - 1)
    assert await engine.claim() == []
    await engine.advance(1)
    again = await engine.claim_one()

    assert [(one.name, one.status) for one in again.input.steps] == [("nap", StepStatus.COMPLETED)]
    await engine.say(again, FINISH)
    assert (await engine.get()).status is InstanceStatus.COMPLETE
