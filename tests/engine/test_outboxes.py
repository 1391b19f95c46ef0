"""What waits for a worker to read it: bounded, complete, and never lost; and what a worker says of leases it lacks."""

from __future__ import annotations

import asyncio

import pytest

from stepwell_server.domain.spine.frames import News
from stepwell_server.domain.spine.leases import Held
from stepwell_server.domain.spine.tasks import TaskStatus
from stepwell_server.domain.workflows.instances import Step
from stepwell_server.engine.spine.assignments import Assignment
from stepwell_server.engine.spine.committer import Committer
from stepwell_server.engine.spine.connections import MOST_CREDIT, Connection
from stepwell_server.engine.spine.outbox import Beat, Message, State, Told
from stepwell_server.engine.workflows.book import RunInput
from tests.support.faults.faults import FaultyBackend, Rates
from tests.support.replicas.runs import ANNA, BEN, FINISH, Engine, Holding, background, done, streamed, taken, until

STRANGE = Held(4711, 1)


async def two_runs(engine: Engine) -> tuple[Connection, Holding, Holding]:
    """Two runs that a worker holds through a stream."""
    connection, one = await streamed(engine)
    await engine.create("y")
    other = await engine.claim_one(connection.owner)
    engine.handout.holders.hold(connection.worker, other.held)
    return connection, one, other


async def next_state(connection: Connection) -> Assignment:
    """The state that comes next."""
    while True:
        for message in await taken(connection):
            if isinstance(message, State):
                return message.assignment


def steps_of(assignment: Assignment) -> tuple[Step, ...]:
    """The steps that a worker is told."""
    assert isinstance(assignment.input, RunInput)
    return assignment.input.steps


def waiting(connection: Connection) -> list[type[Message]]:
    """What waits in the outbox."""
    return [type(message) for message in connection.outbox]


async def settled(engine: Engine) -> None:
    """Let everything happen that could: others have read several times by now."""
    for _ in range(5):
        await engine.get()


# ---- states


async def test_a_state_contains_what_was_reported_before_it_was_asked_for(engine: Engine) -> None:
    """Else a replay would execute again what was done: also if the database could not take the report at first."""
    connection, mine = await streamed(engine)
    backend = engine.db.backend
    engine.db.backend = FaultyBackend(backend, {"group": Rates(error=1.0)})
    await connection.report(mine.held, mine.frames(done("a")))
    await connection.need_state(mine.held)
    await until(lambda: connection._reports._lanes)
    engine.db.backend = backend

    state = await next_state(connection)

    assert [step.name for step in steps_of(state)] == ["a"]


async def test_a_state_that_is_asked_for_again_while_it_is_read_is_sent_once(engine: Engine) -> None:
    connection, mine = await streamed(engine)

    for _ in range(200):
        await connection.need_state(mine.held)
    await next_state(connection)
    await connection.heartbeat(1, [mine.held])
    rest = await taken(connection)

    assert [type(message) for message in rest] == [Beat]


async def test_a_state_that_is_asked_for_after_a_report_contains_it_though_one_is_on_its_way(engine: Engine) -> None:
    connection, mine = await streamed(engine)
    async with connection._reports._reading:  # the first is as good as read
        await connection.need_state(mine.held)
        await connection.report(mine.held, mine.frames(done("a")))
        for _ in range(3):
            await connection.need_state(mine.held)
        await until(lambda: engine.committer._inbox or [*connection.outbox])

    await next_state(connection)
    second = await next_state(connection)

    assert [step.name for step in steps_of(second)] == ["a"]
    assert connection._reports._asked == {}


async def test_a_state_that_was_never_sent_leaves_the_lease_to_its_worker(engine: Engine) -> None:
    """It holds the run all the same, and names it in its next hello."""
    connection, mine = await streamed(engine)
    await connection.need_state(mine.held)
    await until(lambda: State in waiting(connection))

    await connection.lose()
    moved = await engine.connect(ANNA, held=[mine.held])

    assert list(moved.worker.held.values()) == [mine.held]


# ---- bounds


async def test_states_are_read_one_at_a_time_when_there_is_room_for_them(engine: Engine) -> None:
    connection, one, other = await two_runs(engine)
    connection.outbox.most_bytes = 1
    connection._link.send(Beat())

    for held in (one.held, other.held):
        await connection.need_state(held)
    await settled(engine)
    assert waiting(connection) == [Beat]

    await taken(connection)
    await settled(engine)
    assert waiting(connection) == [], "what is being written counts"

    assert [type(one) for one in await taken(connection)] == [State]
    await settled(engine)
    assert waiting(connection) == []
    assert [type(one) for one in await taken(connection)] == [State]


async def test_a_worker_that_does_not_read_is_given_no_more_tasks_and_others_are(engine: Engine) -> None:
    lazy, busy = await engine.connect(ANNA), await engine.connect(BEN)
    lazy.outbox.most_bytes = 1
    for instance_id in ("x", "y", "z"):
        await engine.create(instance_id)

    async with background(engine.handout.run()):
        lazy.grant(3)
        await until(lambda: Assignment in waiting(lazy))
        await settled(engine)
        assert waiting(lazy) == [Assignment]
        assert lazy.worker.credits == 2, "credit is not lost"
        busy.grant(1)
        assert [type(one) for one in await taken(busy)] == [Assignment]

        for _ in range(2):
            assert [type(one) for one in await taken(lazy)] == [Assignment]

    assert [(await engine.live(one)).status for one in ("x", "y", "z")] == [TaskStatus.PROCESSING] * 3
    assert len(lazy.worker.held) == 2


async def test_news_of_a_run_wait_until_its_worker_reads(engine: Engine) -> None:
    connection, mine = await streamed(engine)
    connection.worker.is_full = True

    engine.handout.holders.look([mine.held.task_id])

    assert not engine.committer._inbox
    assert connection.worker.must_repeat == {mine.held.task_id}


@pytest.mark.tuning(part_messages=3)
async def test_a_part_of_the_outbox_is_taken_at_a_time(engine: Engine) -> None:
    connection = await engine.connect(ANNA)

    connection._link.send(*[Beat()] * 4)

    assert [len(await taken(connection)) for _ in range(2)] == [3, 1]


async def test_a_worker_has_no_more_tasks_than_it_can_name_in_a_heartbeat(engine: Engine) -> None:
    connection, _, _ = await two_runs(engine)

    connection.grant(MOST_CREDIT)

    assert connection.worker.credits == MOST_CREDIT - 2


# ---- leases that are not held


def idle_committer(engine: Engine) -> Committer:
    """A committer that takes calls in and does nothing."""
    replica = engine.replica
    return Committer(engine.db, replica.kinds, replica.rules, lambda committed: None, tuning=replica.tuning)


async def test_what_is_not_held_is_stale_at_once(engine: Engine) -> None:
    """Without a word to the database: a flood of it would keep others from being committed."""
    connection, mine = await streamed(engine)
    connection.committer = idle_committer(engine)

    connection.acknowledge(STRANGE)
    await connection.need_state(STRANGE)
    await connection.heartbeat(1, [STRANGE])

    assert not connection.committer._inbox
    told = await taken(connection)
    assert [one.held for one in told if isinstance(one, Told) and one.news.stale] == [STRANGE] * 3
    assert connection.last_beat == 1
    assert connection.holds(mine.held)


async def test_an_end_that_is_reported_again_through_another_stream_is_acknowledged(engine: Engine) -> None:
    """Rule 15: its lease is not held any more, and only the database can tell that from one that is lost."""
    connection, mine = await streamed(engine)
    end = mine.frames(FINISH)
    await connection.report(mine.held, end)
    await taken(connection)
    await connection.lose()

    moved = await engine.connect(ANNA, held=[mine.held])
    await moved.report(mine.held, end)
    (told,) = await taken(moved)

    assert isinstance(told, Told) and told.news.stale is None
    assert [answer.released for answer in told.news.answers] == [True]


@pytest.mark.tuning(strange_reports=5)
async def test_reports_of_what_is_not_held_wait_for_their_answers(engine: Engine) -> None:
    connection, mine = await streamed(engine)
    idle = connection._link.committer = idle_committer(engine)

    async def flood() -> None:
        for number in range(1, 20):
            await connection.report(Held(4711 + number, 1), mine.frames(done("a")))

    flooding = asyncio.create_task(flood())
    await settled(engine)
    assert len(idle._inbox) == 5

    idle._inbox.take().settle(News(stale=STRANGE.lost()))
    await settled(engine)
    assert len(idle._inbox) == 5
    flooding.cancel()
