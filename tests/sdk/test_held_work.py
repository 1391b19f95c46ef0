"""What a worker holds, through reconnects, lost leases and a cache that forgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepwell import App, WorkflowEntrypoint, workflow
from stepwell.durations import to_datetime
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.worker.dialogue import Dialogue
from stepwell.worker.held_work import HeldWork
from stepwell.worker.leases import Capacity
from tests.sdk.stage import InlinePool, ManualClock, done, in_a_word, settle, slept, waiting

LEASE = Duration(seconds=30)
INTERVAL = Duration(seconds=10)
LARGE = f'"{"x" * 1000}"'


@workflow("nap")
async def nap(event: Any, step: Any) -> str:
    await step.sleep("sleep", "1 hour")
    await step.do("work", lambda: 1)
    return "rested"


@workflow("stuck")
async def stuck(event: Any, step: Any) -> None:
    await step.do("for ever", asyncio.Event().wait)


class Worker:
    """A worker's work with a hand on the wire."""

    def __init__(self, **capacity: int) -> None:
        self.clock = ManualClock()
        self.hold(App([nap, stuck]), Capacity(**capacity))

    def hold(self, app: App, capacity: Capacity | None = None) -> None:
        self.held = HeldWork(app, None, InlinePool(), self.clock, capacity)
        self.dialogue = Dialogue(self.held)

    def welcome(self, *held: tuple[int, int], database_id: str = "db", **fields: Any) -> list[str]:
        tasks = [pb.HeldTask(task_id=task_id, fence=fence) for task_id, fence in held]
        self.dialogue.greets()
        welcome = pb.Welcome(database_id=database_id, lease=LEASE, heartbeat_interval=INTERVAL, held=tasks, **fields)
        self.is_at_one = self.dialogue.welcomed(welcome)
        return self.sent()

    async def receive(self, task_id: int = 1, fence: int = 1, number: int = 0, **body: Any) -> list[str]:
        self.dialogue.receive(pb.ServerFrame(task_id=task_id, fence=fence, number=number, **body))
        sent = self.sent()
        await settle()
        return sent + self.sent()

    async def task(self, name: str = "nap", task_id: int = 1, fence: int = 1, **fields: Any) -> list[str]:
        ref = pb.HandlerRef(kind=pb.HANDLER_KIND_WORKFLOW, name=name)
        task = pb.Task(handler=ref, key=f"{name}-{task_id}", workflow=pb.WorkflowInput(**fields))
        return await self.receive(task_id, fence, task=task)

    async def ack(self, number: int, task_id: int = 1, fence: int = 1, **fields: Any) -> list[str]:
        return await self.receive(task_id, fence, number, ack=pb.Ack(**fields))

    def sent(self) -> list[str]:
        frames = self.dialogue.take_frames()
        self.dialogue.written()
        return [f"credit:{frame.credit.tasks}" if frame.HasField("credit") else in_a_word(frame) for frame in frames]

    def unacked(self) -> list[pb.WorkerFrame]:
        """What would be sent again on another stream."""
        self.dialogue.disconnected()
        self.dialogue.welcomed(pb.Welcome(database_id="db", held=self.held.leases.named()))
        return [frame for frame in self.dialogue.take_frames() if frame.number]

    def leases(self) -> list[tuple[int, int]]:
        return [(held.task_id, held.fence) for held in self.held.leases.named()]


@pytest.fixture
async def worker() -> Worker:
    return Worker(max_tasks=2)


async def suspended(worker: Worker, revision: int = 5) -> None:
    """A run of `nap` that sleeps in the worker's memory."""
    await worker.task()
    await worker.ack(1)
    await worker.ack(2, released=True, revision=revision)


async def test_credit_is_exact(worker: Worker) -> None:
    assert worker.welcome() == ["credit:2"]
    assert await worker.task() == ["task_ack", "wait:sleep", "suspend"]
    assert await worker.ack(1) == []
    assert await worker.ack(2, released=True) == ["credit:1"]


async def test_nothing_begins_before_its_arrival_is_on_its_way(worker: Worker) -> None:
    """A body that kills its process must not do so unknown: it could do so for ever."""
    worker.welcome()
    ref = pb.HandlerRef(kind=pb.HANDLER_KIND_WORKFLOW, name="nap")
    worker.dialogue.receive(pb.ServerFrame(task_id=1, fence=1, task=pb.Task(handler=ref, key="nap-1")))

    assert list(map(in_a_word, worker.dialogue.take_frames())) == ["task_ack"]
    await settle()
    assert worker.dialogue.take_frames() == []

    worker.dialogue.written()
    await settle()
    assert worker.sent() == ["wait:sleep", "suspend"]


async def test_what_is_resolved_before_a_run_begins_is_heard_when_it_does(worker: Worker) -> None:
    worker.welcome()
    ref = pb.HandlerRef(kind=pb.HANDLER_KIND_WORKFLOW, name="nap")
    asleep = pb.WorkflowInput(steps=[waiting("sleep", states.STEP_TYPE_SLEEP)])
    worker.dialogue.receive(pb.ServerFrame(task_id=1, fence=1, task=pb.Task(handler=ref, key="nap-1", workflow=asleep)))

    assert await worker.receive(resolved=pb.Resolved(steps=[slept("sleep")])) == [
        "task_ack",
        "step_done:work",
        "finish",
    ]


async def test_the_server_bounds_the_credit(worker: Worker) -> None:
    assert worker.welcome(max_credit=1) == ["credit:1"]


async def test_a_cached_task_goes_on_in_memory(worker: Worker) -> None:
    worker.welcome()
    await suspended(worker)

    woken = await worker.task(fence=2, cached=True, known_revision=5, steps=[slept("sleep")])

    assert woken == ["task_ack", "step_done:work", "finish"]


@pytest.mark.parametrize("wrong", [{"known_revision": 4}, {"known_revision": 5, "run_number": 1}])
async def test_a_run_that_is_not_the_one_that_is_meant_is_not_used(worker: Worker, wrong: dict[str, int]) -> None:
    worker.welcome()
    await suspended(worker)

    assert await worker.task(fence=2, cached=True, steps=[slept("sleep")], **wrong) == ["task_ack", "need_state"]
    assert await worker.task(fence=2, steps=[slept("sleep")]) == ["step_done:work", "finish"]


async def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    worker = Worker(max_tasks=2, cache=1)
    worker.welcome()
    for task_id in (1, 2):
        await worker.task(task_id=task_id)
        await worker.ack(1, task_id)
        await worker.ack(2, task_id, released=True, revision=5)

    assert await worker.task(task_id=1, fence=2, cached=True, known_revision=5) == ["task_ack", "need_state"]
    assert await worker.task(task_id=2, fence=2, cached=True, known_revision=5) == ["task_ack", "suspend"]


async def test_the_cache_forgets_what_was_used_longest_ago_if_results_are_large() -> None:
    worker = Worker(max_tasks=3, cache_bytes=2500)
    worker.welcome()
    for task_id in (1, 2, 3):
        await worker.task(task_id=task_id, steps=[done("large", LARGE)])
        await worker.ack(1, task_id)
        await worker.ack(2, task_id, released=True, revision=5)

    assert await worker.task(task_id=2, fence=2, cached=True, known_revision=5) == ["task_ack", "suspend"]
    assert await worker.task(task_id=1, fence=2, cached=True, known_revision=5) == ["task_ack", "need_state"]
    assert await worker.task(task_id=3, fence=2, cached=True, known_revision=5) == ["task_ack", "suspend"]


async def test_state_that_comes_in_pieces_is_waited_for(worker: Worker) -> None:
    worker.welcome()

    assert await worker.task(more=True) == ["task_ack"]
    assert await worker.receive(task_state=pb.TaskState(steps=[slept("sleep")])) == ["step_done:work", "finish"]


async def test_a_reconnect_sends_again_what_was_not_acknowledged(worker: Worker) -> None:
    worker.welcome()
    await worker.task()
    await worker.ack(1)
    worker.dialogue.disconnected()
    assert worker.leases() == [(1, 1)]

    assert worker.welcome((1, 1)) == ["suspend", "credit:1"]


async def test_what_the_server_repeats_after_a_reconnect_is_heard_once(worker: Worker) -> None:
    everything = pb.Resolved(steps=[slept("sleep")])
    worker.welcome()
    await worker.task()
    worker.dialogue.disconnected()
    assert worker.welcome((1, 1)) == ["wait:sleep", "suspend", "credit:1"]

    assert await worker.receive(resolved=everything) == []  # the server has not heard of the Suspend yet
    assert await worker.ack(1) == []
    assert await worker.ack(2, released=False) == ["begin_steps +work"]
    assert await worker.receive(resolved=everything) == []
    assert await worker.ack(3) == ["step_done:work", "finish"]


async def test_what_happens_without_a_stream_is_said_on_the_next_one(worker: Worker) -> None:
    worker.welcome()
    await worker.task(more=True)
    worker.dialogue.disconnected()
    worker.dialogue.receive(pb.ServerFrame(task_id=1, fence=1, task_state=pb.TaskState()))
    await settle()
    assert worker.sent() == []

    assert worker.welcome((1, 1)) == ["wait:sleep", "suspend", "credit:1"]


async def test_a_task_that_the_server_gave_away_is_dropped(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck")
    worker.dialogue.disconnected()

    assert worker.welcome() == ["credit:2"]
    assert worker.leases() == []


async def test_what_was_given_up_between_a_hello_and_its_welcome_needs_another_hello(worker: Worker) -> None:
    """Else nobody would execute it until its lease is over, and the server would hand out as many again."""
    worker.welcome()
    await worker.task("stuck")
    worker.dialogue.disconnected()
    said = worker.leases()
    worker.clock.advance(LEASE.seconds)
    worker.dialogue.expire()

    assert worker.welcome(*said) == []
    assert not worker.is_at_one

    assert worker.welcome() == ["credit:2"]
    assert worker.is_at_one


async def test_another_database_is_another_world(worker: Worker) -> None:
    worker.welcome()
    await suspended(worker)
    await worker.task("stuck", task_id=2)
    worker.dialogue.disconnected()

    assert worker.welcome((2, 1), database_id="restored") == []
    assert not worker.is_at_one
    assert worker.welcome(database_id="restored") == ["credit:2"]
    assert await worker.task(fence=2, cached=True, known_revision=5) == ["task_ack", "need_state"]


async def test_a_stale_lease_gives_its_credit_back(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck")

    assert await worker.receive(stale=pb.Stale()) == ["credit:1"]
    assert worker.leases() == []


async def test_frames_under_an_old_fence_are_ignored(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck", fence=2)

    assert await worker.receive(fence=1, stale=pb.Stale()) == []
    assert worker.leases() == [(1, 2)]
    await worker.held.close()


async def test_a_task_under_a_new_fence_replaces_the_old_one(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck", fence=1)

    assert await worker.task("stuck", fence=2) == ["task_ack", "credit:1"]
    assert worker.leases() == [(1, 2)]
    await worker.held.close()


async def test_a_cancelled_task_is_dropped(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck")

    assert await worker.receive(cancel=pb.Cancel(reason="terminated")) == ["credit:1"]


async def test_heartbeats_name_every_lease_and_a_confirmed_one_renews_it(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck")
    worker.clock.advance(20)
    worker.dialogue.heartbeat()
    (beat,) = worker.dialogue.take_frames()
    assert [(held.task_id, held.fence) for held in beat.heartbeat.held] == [(1, 1)]

    await worker.receive(0, 0, heartbeat=pb.ServerHeartbeat(heartbeat_number=1))
    worker.clock.advance(20)
    worker.dialogue.expire()

    assert worker.leases() == [(1, 1)]
    await worker.held.close()


async def test_with_a_heartbeat_a_run_asks_again_for_what_a_pause_holds_up(worker: Worker) -> None:
    @workflow("branches")
    async def branches(event: Any, step: Any) -> None:
        await asyncio.gather(step.do("for ever", asyncio.Event().wait), one_after_the_other(step))

    async def one_after_the_other(step: Any) -> None:
        await step.do("first", lambda: 1)
        await step.do("second", lambda: 2)

    worker.hold(App([branches]))
    worker.welcome()
    await worker.task("branches")
    assert await worker.ack(1, stop=pb.STOP_PAUSE) == []

    worker.dialogue.heartbeat()
    await settle()
    assert worker.sent() == ["heartbeat", "begin_steps +second"]
    await worker.held.close()


async def test_a_lease_that_is_not_renewed_is_given_up_before_it_ends(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck")
    worker.clock.advance(20)
    worker.dialogue.heartbeat()  # never confirmed
    assert worker.leases() == [(1, 1)]

    worker.clock.advance(6)
    worker.dialogue.expire()

    assert worker.leases() == []


@pytest.mark.parametrize("is_connected", [True, False], ids=["on a stream", "without one"])
async def test_who_has_given_up_everything_wants_another_hello_if_there_is_a_stream(
    worker: Worker, is_connected: bool
) -> None:
    hellos: list[list[tuple[int, int]]] = []
    worker.dialogue.reconnect = lambda: hellos.append(worker.leases())
    worker.welcome()
    await worker.task("stuck")
    worker.clock.advance(10)
    await worker.task("stuck", task_id=2)
    if not is_connected:
        worker.dialogue.disconnected()
    worker.clock.advance(LEASE.seconds - 10)
    worker.dialogue.expire()
    assert (worker.leases(), hellos) == ([(2, 1)], [])

    worker.clock.advance(10)
    worker.dialogue.expire()

    assert worker.leases() == []
    assert hellos == ([[]] if is_connected else [])
    await worker.held.close()


async def test_a_reconnect_renews_from_when_hello_was_sent(worker: Worker) -> None:
    worker.welcome()
    await worker.task("stuck")
    worker.dialogue.disconnected()
    worker.clock.advance(10)
    worker.dialogue.greets()
    worker.clock.advance(9)  # so long took the answer, to a lease that counts from the question
    worker.dialogue.welcomed(pb.Welcome(database_id="db", lease=LEASE, held=worker.held.leases.named()))

    worker.clock.advance(17)  # 26 after the question
    worker.dialogue.expire()
    assert worker.leases() == []


async def test_no_body_begins_unannounced_without_a_stream(worker: Worker) -> None:
    gate = asyncio.Event()
    began: list[str] = []

    @workflow("late")
    async def late(event: Any, step: Any) -> None:
        await gate.wait()
        await step.do("work", lambda: began.append("work"))

    worker.hold(App([late]))
    worker.welcome()
    await worker.task("late")
    worker.dialogue.disconnected()
    gate.set()
    await settle()
    assert began == []

    worker.welcome((1, 1))
    await worker.ack(1)
    assert began == ["work"]


async def test_a_draining_worker_takes_no_task_and_grants_no_credit(worker: Worker) -> None:
    worker.welcome()
    worker.held.drain()
    assert worker.held.quiet.is_set()

    assert await worker.task() == []
    assert worker.leases() == []


async def test_draining_waits_for_bodies_that_execute(worker: Worker) -> None:
    gate = asyncio.Event()

    @workflow("slow")
    async def slow(event: Any, step: Any) -> None:
        await step.do("work", gate.wait)

    worker.hold(App([slow]))
    worker.welcome()
    await worker.task("slow")
    worker.held.drain()
    assert not worker.held.quiet.is_set()

    gate.set()
    await settle()
    assert worker.sent() == ["step_done:work", "finish"]
    await worker.ack(1)
    await worker.ack(2, released=True)

    assert worker.held.quiet.is_set()


async def test_a_body_that_takes_its_time_is_named_so_that_people_see_where_the_run_is(worker: Worker) -> None:
    @workflow("slow")
    async def slow(event: Any, step: Any) -> None:
        await step.do("work", asyncio.Event().wait)

    worker.hold(App([slow]))
    worker.welcome()
    assert await worker.task("slow") == ["task_ack"]

    worker.held.name_bodies()
    assert worker.sent() == ["begin_steps =work"]

    worker.held.name_bodies()
    assert worker.sent() == []


async def test_a_class_that_cannot_be_made_fails_its_run_not_the_worker(worker: Worker) -> None:
    class Broken(WorkflowEntrypoint[Any, Any]):
        name = "broken"

        def __init__(self) -> None:
            raise LookupError("no settings")

        async def run(self, event: Any, step: Any) -> None: ...

    worker.hold(App([Broken]))
    worker.welcome()

    assert await worker.task("broken") == ["task_ack", "finish"]


async def test_idle_time_counts_from_the_welcome_or_the_end_of_the_last_task(worker: Worker) -> None:
    worker.clock.advance(60)
    worker.welcome()
    assert worker.held.leases.idle_for() == 0
    worker.clock.advance(3)
    assert worker.held.leases.idle_for() == 3

    await worker.task()
    worker.clock.advance(4)
    assert worker.held.leases.idle_for() == 0
    await worker.ack(1)
    await worker.ack(2, released=True)
    worker.clock.advance(2)
    assert worker.held.leases.idle_for() == 2


async def test_the_database_s_clock_is_known_from_the_newest_answer_and_never_too_early() -> None:
    worker = Worker()
    worker.clock.advance(100)
    worker.dialogue.greets()
    worker.clock.advance(5)
    worker.dialogue.welcomed(pb.Welcome(database_id="db", now=Timestamp(seconds=1_000)))
    terms = worker.held.terms
    assert terms.timers(105).latest == to_datetime(Timestamp(seconds=1_005)) + terms.max_timer

    worker.dialogue.heartbeat()
    worker.clock.advance(10)
    await worker.receive(heartbeat=pb.ServerHeartbeat(heartbeat_number=1, now=Timestamp(seconds=2_000)))
    terms = worker.held.terms
    assert terms.timers(115).latest == to_datetime(Timestamp(seconds=2_010)) + terms.max_timer
