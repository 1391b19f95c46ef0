"""The worker's stream: from hello to finish, by hand."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from stepwell.errors import reason_name
from stepwell.v1 import frames_pb2 as pb
from stepwell.v1 import workflows_pb2
from stepwell.v1.common_pb2 import Payload
from stepwell_server.engine.spine.connections import MOST_CREDIT
from tests.api.conftest import Hire
from tests.support.calls import raw
from tests.support.calls.flows import Flows, status_name
from tests.support.calls.triggers import Triggers
from tests.support.workers.frames import begin, done, fail, failed, finish, opening, policy, sleep, suspend, wait_for
from tests.support.workers.workers import grant


async def test_a_run_goes_from_hello_to_its_result(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one", '{"sku":7}')

    job = await worker.take()
    first, second, last = await job.report(done("a", "41"), done("b", "42"), finish('"good"'))

    assert (job.task.handler.name, job.task.key, job.task.reason) == ("order", "one", pb.TASK_REASON_RUN)
    assert (job.run.run_number, job.run.params.json, job.run.cached) == (0, '{"sku":7}', False)
    assert [ack.stop for ack in (first, second, last)] == [pb.STOP_NONE] * 3
    assert [ack.released for ack in (first, second, last)] == [False, False, True]
    assert first.revision < second.revision < last.revision
    instance = await flows.get("one")
    assert (instance.status, instance.output.json) == (workflows_pb2.INSTANCE_STATUS_COMPLETE, '"good"')
    assert {name: step.result.json for name, step in (await flows.steps("one")).items()} == {"a": "41", "b": "42"}


async def test_the_welcome_says_what_to_work_by(hire: Hire) -> None:
    worker = await hire(connect=False)

    welcome = await worker.connect()

    assert (welcome.protocol_version, welcome.connection, list(welcome.held)) == (1, 1, [])
    assert (welcome.lease.seconds, welcome.heartbeat_interval.seconds) == (30, 10)
    assert (welcome.ack_window.seconds, welcome.reconnect_grace.seconds) == (10, 5)
    assert welcome.max_credit == MOST_CREDIT
    assert welcome.limits.max_payload_bytes == 1024 * 1024
    assert welcome.default_step_policy.retry.max_attempts == 6
    assert welcome.default_step_policy.timeout.seconds == 600
    assert welcome.database_id and welcome.replica_id and welcome.server_version


@pytest.mark.parametrize("given", [{}, {"params": Payload()}, {"params": Payload(encoding="zip")}])
async def test_params_that_nobody_gave_are_an_empty_object(hire: Hire, flows: Flows, given: dict[str, Payload]) -> None:
    worker = await hire()
    await flows.create_many(flows.item("one", **given))

    assert (await worker.take()).run.params.json == "{}"


async def test_a_payload_without_a_body_is_no_data(hire: Hire, flows: Flows, triggers: Triggers) -> None:
    worker = await hire(hooks=("note",), credit=2)
    await flows.create("one")
    job = await worker.take()
    bare = pb.StepDone(name="a", attempt=1, result=Payload())
    await job.report(pb.WorkerFrame(step_done=bare), wait_for("w", "go"))

    await flows.event("one", "go", payload=Payload())
    got = (await job.resolved())["w"]
    await job.tell(pb.WorkerFrame(finish=pb.Finish(output=Payload())))
    await triggers.trigger("note", payload=Payload())

    steps, ended = await flows.steps("one"), await flows.get("one")
    assert [one.HasField("result") for one in (got, *steps.values())] == [False] * 3
    assert (status_name(ended.status), ended.HasField("output")) == ("COMPLETE", False)
    assert (await worker.take()).hook.payload.json == "{}"


async def test_a_newborn_is_handed_to_a_free_worker_by_the_create_itself(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await worker.beat()

    created = await flows.create("one")

    assert created.status == workflows_pb2.INSTANCE_STATUS_RUNNING
    assert (await worker.take()).task.key == "one"


async def test_a_newborn_does_not_overtake_older_work_of_its_name(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=0)
    older = await flows.create("older")
    younger = await flows.create("younger")
    assert {older.status, younger.status} == {workflows_pb2.INSTANCE_STATUS_QUEUED}

    await worker.say(grant(1))
    first = await worker.take()
    await flows.create("youngest")
    await worker.say(grant(2))

    assert [first.task.key, *[(await worker.take()).task.key for _ in range(2)]] == ["older", "younger", "youngest"]


async def test_resuming_work_comes_before_new_starts(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("begun")
    await (await worker.take()).report(wait_for("w", "go"), suspend())
    await flows.create("new")
    await worker.beat()
    await flows.event("begun", "go")

    await worker.say(grant(1))
    assert (await worker.take()).task.key == "begun"
    await worker.say(grant(1))
    assert (await worker.take()).task.key == "new"


async def test_no_more_tasks_come_than_credit_was_granted(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=2)
    for number in range(5):
        await flows.create(f"i{number}")
    jobs = [await worker.take() for _ in range(2)]

    for job in jobs:
        await job.tell(finish())
    assert (await worker.beat()).credit == 0
    assert not worker.has("task")
    assert sorted([await flows.status(f"i{number}") for number in range(5)])[2:] == ["QUEUED"] * 3

    await worker.say(grant(3))
    assert {(await worker.take()).task.key for _ in range(3)} == {"i2", "i3", "i4"}


async def test_credit_for_nothing_is_refused_and_the_stream_goes_on(hire: Hire) -> None:
    worker = await hire(credit=0)

    for tasks in (0, -1, -(2**31)):
        await worker.say(grant(tasks))
        refused = await worker.next("refused")
        assert (refused.number, reason_name(refused.refused.reason)) == (0, "INVALID_FIELD")

    assert (await worker.beat()).credit == 0


async def test_credit_above_the_most_is_dropped(hire: Hire) -> None:
    worker = await hire(credit=0)

    await worker.say(grant(10**9), grant(1))

    assert (await worker.beat()).credit == MOST_CREDIT


async def test_only_names_that_a_worker_registered_are_given_to_it(hire: Hire, flows: Flows) -> None:
    orders = await hire("order", credit=5)
    bills = await hire("bill", credit=5)
    await flows.create("one")
    await Flows(bills.channel, "bill").create("two")

    assert [(await orders.take()).task.key, (await bills.take()).task.key] == ["one", "two"]
    assert [(await worker.beat()).credit for worker in (orders, bills)] == [4, 4]


async def test_a_frame_of_a_kind_that_is_not_known_is_ignored(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    unknown = pb.WorkerFrame.FromString(raw.varint_field(1, job.task_id) + raw.string_field(99, b"news"))
    await worker.say(pb.WorkerFrame(), unknown)

    assert (await job.tell(finish())).released


async def test_a_worker_without_handlers_gets_nothing_and_may_stay(hire: Hire) -> None:
    worker = await hire(connect=False)
    worker.names = ()

    await worker.connect(credit=1)

    assert (await worker.beat()).credit == 1


# ---- numbers


async def test_a_repeated_frame_is_acknowledged_again_and_changes_nothing(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()
    await job.tell(done("a", "1"))

    again = await job.tell(done("a", "2", number=1))

    assert not again.released
    assert (await flows.steps("one"))["a"].result.json == "1"
    assert (await job.tell(done("b"))).stop == pb.STOP_NONE


async def test_a_gap_in_the_numbers_is_refused_and_the_task_is_kept(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    assert await job.refused(done("a", number=3)) == "INVALID_FIELD"
    assert (await job.tell(done("a", number=1))).stop == pb.STOP_NONE
    assert [*(await flows.steps("one"))] == ["a"]


async def test_a_refused_frame_uses_its_number_up_and_stores_nothing(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    assert await job.refused(done("a", "not json")) == "PAYLOAD_NOT_JSON"
    await job.report(done("b"), finish())

    assert [*(await flows.steps("one"))] == ["b"]


async def test_a_repeated_failure_is_told_the_same_time_of_its_retry(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()
    first = await job.tell(failed("a", policy=policy(3, delay=60)))

    again = await job.tell(failed("a", policy=policy(3, delay=60), number=1))

    assert first.HasField("wake_at")
    assert again.wake_at == first.wake_at, "unset would mean that it is never tried again"
    assert (await flows.steps("one"))["a"].attempts == 1


async def test_a_repeated_wait_is_told_the_time_that_was_stored(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    first = await job.tell(sleep("nap", 60))

    assert (await job.tell(sleep("nap", 60, number=1))).wake_at == first.wake_at
    assert (await job.tell(sleep("nap", 90))).wake_at == first.wake_at


@pytest.mark.parametrize("last", [finish(), fail(), suspend()], ids=["finish", "failure", "suspend"])
async def test_the_last_frame_sent_again_after_a_reconnect_is_acknowledged(
    hire: Hire, flows: Flows, last: pb.WorkerFrame
) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()
    await job.report(wait_for("w", "go"), last)
    await worker.break_off()

    await worker.connect()
    again = pb.WorkerFrame()
    again.CopyFrom(last)
    again.number = 2

    assert (await job.tell(again)).released
    assert not worker.has("stale")


async def test_a_frame_numbered_below_one_is_refused_without_harm_to_other_runs(hire: Hire, flows: Flows) -> None:
    worker = await hire(credit=2)
    await flows.create("one")
    await flows.create("two")
    one, two = await worker.take(), await worker.take()

    await worker.say(pb.WorkerFrame(task_id=one.task_id, fence=one.fence, number=-1, finish=pb.Finish()))
    error = await worker.until_over()

    assert error is not None and error.reason == "INVALID_FIELD"
    assert [await flows.status(key) for key in ("one", "two")] == ["RUNNING", "RUNNING"]
    assert two.number == 0


# ---- what cannot be stored is refused, alone


REFUSED = [
    (done("a", "[" * 65 + "]" * 65), "PAYLOAD_TOO_DEEP"),
    (done("a", '"' + "x" * (1024 * 1024) + '"'), "PAYLOAD_TOO_LARGE"),
    (done("a", "NaN"), "PAYLOAD_NOT_JSON"),
    (done("a", ""), "PAYLOAD_NOT_JSON"),
    (done(""), "INVALID_STEP_NAME"),
    (done("x" * 257), "INVALID_STEP_NAME"),
    (done("a", attempt=0), "INVALID_FIELD"),
    (sleep("a", 366 * 86400), "DURATION_OUT_OF_RANGE"),
    (wait_for("a", "go", 0.5), "DURATION_OUT_OF_RANGE"),
    (wait_for("a", "go", 366 * 86400), "DURATION_OUT_OF_RANGE"),
    (wait_for("a", "no type"), "INVALID_EVENT_TYPE"),
    (wait_for("a", "go\n"), "INVALID_EVENT_TYPE"),
    (pb.WorkerFrame(wait=pb.Wait(name="a")), "INVALID_FIELD"),
    (suspend(), "INVALID_FIELD"),
    (finish("Infinity"), "PAYLOAD_NOT_JSON"),
    (begin(opening("")), "INVALID_STEP_NAME"),
]


async def test_a_frame_that_breaks_a_rule_is_refused_alone(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    reasons = [await job.refused(frame) for frame, _ in REFUSED]

    assert reasons == [reason for _, reason in REFUSED]
    assert not await flows.steps("one")
    assert (await job.tell(finish())).released


@pytest.mark.parametrize(
    "frame",
    [
        done("a\0b"),
        done("a", '"\0"'),
        failed("a", message="\0"),
        pb.WorkerFrame(wait=pb.Wait(name="a", sleep=Duration(seconds=-1))),
    ],
    ids=["name", "payload", "failure", "duration"],
)
async def test_what_no_message_may_hold_does_not_end_the_stream_of_a_worker(
    hire: Hire, flows: Flows, frame: pb.WorkerFrame
) -> None:
    """One step of one run must not take all others of its worker with it, again after every reconnect."""
    worker = await hire(credit=2)
    await flows.create("bad")
    await flows.create("good")
    bad, good = await worker.take(), await worker.take()

    assert await bad.refused(frame) in ("MALFORMED_REQUEST", "DURATION_OUT_OF_RANGE")

    assert (await good.tell(finish())).released


@pytest.mark.parametrize("frame", [sleep("a", 1), wait_for("a", "go")], ids=["sleep", "event"])
async def test_a_step_name_cannot_become_another_kind(hire: Hire, flows: Flows, frame: pb.WorkerFrame) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()
    await job.tell(done("a"))

    assert await job.refused(frame) == "STEP_TYPE_MISMATCH"
    assert (await job.tell(finish())).released


async def test_what_a_failure_says_is_cut_and_not_refused(hire: Hire, flows: Flows) -> None:
    worker = await hire()
    await flows.create("one")
    job = await worker.take()

    await job.tell(failed("a", name="N" * 300, message="m" * 5000, details="d" * 20_000, non_retryable=True))

    failure = (await flows.steps("one"))["a"].failure
    assert (len(failure.name), len(failure.message), len(failure.details)) == (256, 4096, 16 * 1024)
    assert failure.non_retryable
    assert (await job.tell(finish())).released
